// SPDX-License-Identifier: GPL-2.0
/*
 * Looks for races: threads populate all of the guest's memory, at random and
 * all the time, while memslots are deleted, created, moved and logged, their
 * memory is discarded, replaced, write-protected, collapsed, paged out, merged
 * and so on, and vCPUs work.  A page that was mapped when it must not have been
 * is noticed as the guest does not find what the host wrote, or the other way
 * round.
 *
 * Every few rounds the memslots are arranged anew: several over one mapping of
 * the host, next to each other or with holes, the same memory in more than one
 * of them and in both address spaces, read-only ones, at the end of what page
 * tables reach and beyond.  The guest checks and writes to the memory through
 * each of them that a vCPU can reach.  And in another VM, pages are taken away
 * while a range of many memslots is being invalidated, see global_tdp_storm.c.
 *
 * To see that it would notice, run it with a kernel that does not check for a
 * range being invalidated before it maps what is in there, that yields mmu_lock
 * before it has flushed what it zapped in another memslot, or that populates
 * beyond the reach of page tables (on a machine that has memslots there).
 *
 * Ten times a second, global_tdp is "never" for a moment, and all goes on after that.
 *
 * Meanwhile, a vCPU writes to memory that another thread copies as live
 * migration does, by the dirty log, and that the host shares with a child, ages,
 * collapses and reclaims.  A write that was not logged leaves the copy different.
 *
 * Forty rounds by default; -t has it go on for some time.  -s repeats the layouts
 * and operations of an earlier run, but not who is first in a race.
 */
#include <pthread.h>
#include <sched.h>
#include <sys/wait.h>

#include <linux/bitmap.h>
#include <linux/mman.h>

#include "test_util.h"
#include "kvm_util.h"
#include "processor.h"
#include "global_tdp.h"
#include "global_tdp_damon.h"
#include "global_tdp_layout.h"
#include "global_tdp_storm.h"

/*
 * Memory that things happen to, and how much of it at once: what is more than
 * 2MiB is invalidated with mmu_lock held for read.
 */
#define MEM_SIZE	SZ_4M
#define NR_PAGES	(MEM_SIZE / PAGE_SIZE)
#define LAYOUTS_SIZE	SZ_256M
#define LAYOUT_ROUNDS	5

/* Memory of vCPUs that just work, and are not to be disturbed. */
#define STABLE_SLOT	(GTDP_SLOT + 1)
#define STABLE_GPA	(GTDP_GPA + SZ_512M)
#define STABLE_PAGES	256
#define NR_WORKERS	2

/* Memory that is copied by the dirty log while it is written to. */
#define LOGGED_SLOT	(GTDP_SLOT + 2)
#define LOGGED_GPA	(STABLE_GPA + SZ_64M)
#define LOGGED_SIZE	SZ_4M
#define LOGGED_PAGES	(LOGGED_SIZE / PAGE_SIZE)

/* A vCPU for each address space, vCPUs that work, and one that writes. */
#define NR_AS		2
#define NR_VCPUS	(NR_AS + NR_WORKERS + 1)

#define NR_POPULATORS	2

/* Copies, and pages populated in each round, that there are to be in any case. */
#define MIN_COPIES	2
#define MIN_POPULATED	100

/* Pages that are alike, for KSM to merge. */
#define MERGED_PAGES	32

#define PAGE_IDLE	"/sys/kernel/mm/page_idle/bitmap"

/* Between two looks of DAMON, at a page of each of its regions. */
#define AGE_USECS	5000

/* What is paged out at a time. */
#define PAGED_OUT	SZ_256K

/* Pages that are taken away in the midst of other invalidations, for each layout. */
#define STORM_PAGES	24

static struct kvm_vm *vm;
static struct kvm_vcpu *vcpus[NR_VCPUS];
static struct gtdp_mem mem, stable, logged;
static struct gtdp_areas areas;
static struct gtdp_layout layout;
static struct kvm_random_state rng;
static u64 reach, tag, calls, copies, copied_pages, merged_pages;
static u64 log_caps;
/* Page n of the memory has the stamp tags[n] + n. */
static u64 tags[NR_PAGES];
static u64 layouts[GTDP_NR_LAYOUTS];
/* Held by who needs the vCPU that writes to logged memory not to run. */
static pthread_mutex_t writing = PTHREAD_MUTEX_INITIALIZER;
/* Held while global_tdp is "never", and by those who need calls to succeed. */
static pthread_mutex_t stopping = PTHREAD_MUTEX_INITIALIZER;
static bool paused, stop;

/* For threads to ask before each of their turns. */
static bool go_on(void)
{
	while (READ_ONCE(paused) && !READ_ONCE(stop))
		usleep(10000);
	return !READ_ONCE(stop);
}

static u64 random_below(struct kvm_random_state *state, u64 end)
{
	return kvm_random_u32(state) % end;
}

/* Some of it is in no memslot, and some is where no vCPU gets. */
static struct kvm_populate_memory any_range(struct kvm_random_state *state)
{
	struct gtdp_area *area = &areas.areas[random_below(state, areas.nr)];
	struct gtdp_piece *piece = &layout.pieces[random_below(state, GTDP_MAX_PIECES)];

	/* Most calls find what they were made for. */
	if (kvm_random_bool(state))
		return (struct kvm_populate_memory) {
			.gpa = READ_ONCE(piece->gpa),
			.size = READ_ONCE(piece->nr) * PAGE_SIZE,
			.as_id = READ_ONCE(piece->as_id),
		};

	return (struct kvm_populate_memory) {
		.gpa = area->gpa + random_below(state, area->size / PAGE_SIZE) * PAGE_SIZE,
		.size = (1 + random_below(state, NR_PAGES)) * PAGE_SIZE,
		.as_id = random_below(state, areas.nr_as),
	};
}

static void *populator(void *arg)
{
	unsigned long id = (unsigned long)arg;
	struct kvm_random_state state = new_kvm_random_state(kvm_random_seed + id);
	struct kvm_populate_memory range;
	u64 before;
	int r;

	while (go_on()) {
		range = any_range(&state);
		/* One of the threads leaves it to the follower. */
		range.flags = id == 1 ? KVM_POPULATE_ASYNC :
			      kvm_random_bool(&state) ? KVM_POPULATE_PAGE_CACHE : 0;

		before = range.gpa;
		r = __vm_ioctl(vm, KVM_POPULATE_MEMORY, &range);
		TEST_ASSERT(!r || errno == EAGAIN || errno == ENOENT || errno == EINTR ||
			    errno == EOPNOTSUPP, KVM_IOCTL_ERROR(KVM_POPULATE_MEMORY, r));
		if (range.flags != KVM_POPULATE_ASYNC)
			TEST_ASSERT_EQ(range.mapped + range.absent, range.gpa - before);
		else
			usleep(1000);
		TEST_ASSERT(range.mapped <= (before < reach ? reach - before : 0),
			    "Mapped %#llx bytes from %#lx on, which no vCPU reaches (seed 0x%x)",
			    range.mapped, before, kvm_random_seed);
		__atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED);

		/* Let others have the CPU, if there are few. */
		if (kvm_random_bool(&state))
			sched_yield();
	}

	return NULL;
}

static u64 worker_gpa(struct kvm_vcpu *vcpu)
{
	return STABLE_GPA + (vcpu->id - NR_AS) * STABLE_PAGES * PAGE_SIZE;
}

static void *worker(void *arg)
{
	struct kvm_vcpu *vcpu = arg;
	u64 gpa = worker_gpa(vcpu), i = 0;
	void *hva = stable.hva + (gpa - STABLE_GPA);

	while (go_on()) {
		gtdp_run(vcpu, GTDP_STAMP, gpa, STABLE_PAGES, ++i);
		gtdp_run(vcpu, GTDP_CHECK, gpa, STABLE_PAGES, i);
		gtdp_check(hva, STABLE_PAGES, i);
		gtdp_stamp(hva, STABLE_PAGES, ++i);
		gtdp_run(vcpu, GTDP_CHECK, gpa, STABLE_PAGES, i);
	}

	return NULL;
}

static void *writer(void *arg)
{
	struct kvm_random_state state = new_kvm_random_state(kvm_random_seed + 1000);
	struct kvm_vcpu *vcpu = arg;
	u64 first, nr, i = 0;

	while (go_on()) {
		first = random_below(&state, LOGGED_PAGES);
		nr = 1 + random_below(&state, LOGGED_PAGES - first);
		i += LOGGED_PAGES;

		pthread_mutex_lock(&writing);
		gtdp_run(vcpu, GTDP_STAMP, LOGGED_GPA + first * PAGE_SIZE, nr, i);
		gtdp_run(vcpu, GTDP_CHECK, LOGGED_GPA + first * PAGE_SIZE, nr, i);
		pthread_mutex_unlock(&writing);
		sched_yield();
	}

	return NULL;
}

/* Get the log and have it start anew, whatever that takes. */
static void harvest(u32 slot, u64 nr, unsigned long *log)
{
	kvm_vm_get_dirty_log(vm, slot, log);
	if (log_caps)
		kvm_vm_clear_dirty_log(vm, slot, log, 0, nr);
}

static void copy_dirty(void *copy, unsigned long *log)
{
	u64 i;

	harvest(LOGGED_SLOT, LOGGED_PAGES, log);
	for (i = 0; i < LOGGED_PAGES; i++) {
		if (!test_bit(i, log))
			continue;
		memcpy(copy + i * PAGE_SIZE, logged.hva + i * PAGE_SIZE, PAGE_SIZE);
		copied_pages++;
	}
}

static void *copier(void *arg)
{
	struct kvm_random_state state = new_kvm_random_state(kvm_random_seed + 2000);
	unsigned long *log = bitmap_zalloc(LOGGED_PAGES);
	void *copy = malloc(LOGGED_SIZE);
	u64 i, rounds;

	while (go_on()) {
		gtdp_add_slot(vm, LOGGED_SLOT, KVM_MEM_LOG_DIRTY_PAGES, LOGGED_GPA, &logged);
		memcpy(copy, logged.hva, LOGGED_SIZE);

		for (rounds = random_below(&state, 10); rounds; rounds--)
			copy_dirty(copy, log);

		pthread_mutex_lock(&writing);
		copy_dirty(copy, log);
		for (i = 0; i < LOGGED_PAGES; i++)
			TEST_ASSERT(!memcmp(copy + i * PAGE_SIZE,
					    logged.hva + i * PAGE_SIZE, PAGE_SIZE),
				    "A write to page %lu was not logged (seed 0x%x)",
				    i, kvm_random_seed);
		pthread_mutex_unlock(&writing);
		copies++;

		/* Huge pages may come back. */
		gtdp_add_slot(vm, LOGGED_SLOT, 0, LOGGED_GPA, &logged);
		usleep(random_below(&state, 20000));
	}

	free(copy);
	free(log);
	return NULL;
}

/* Who does not have idle page tracking may have DAMON, which then does it all the time. */
static bool start_ageing(void)
{
	const struct gtdp_damon_target targets[] = {
		{ mem.hva, MEM_SIZE },
		{ logged.hva, LOGGED_SIZE },
	};

	if (!access(PAGE_IDLE, W_OK)) {
		pr_info("pages age by idle page tracking\n");
		return true;
	}
	if (!gtdp_damon_create(targets, ARRAY_SIZE(targets), AGE_USECS, 10 * AGE_USECS))
		return false;

	gtdp_damon_start();
	pr_info("pages age by DAMON\n");
	return true;
}

/* Idle page tracking asks whether a page was accessed, and makes KVM forget. */
static void age(void *hva, u64 nr)
{
	int pagemap = open("/proc/self/pagemap", O_RDONLY);
	int idle = open(PAGE_IDLE, O_RDWR);
	u64 i, entry, pfn, bit;

	if (idle < 0)
		usleep(AGE_USECS);

	for (i = 0; i < nr && pagemap >= 0 && idle >= 0; i++) {
		if (pread(pagemap, &entry, sizeof(entry),
			  ((uintptr_t)hva / PAGE_SIZE + i) * sizeof(entry)) != sizeof(entry))
			break;

		pfn = entry & GENMASK_ULL(54, 0);
		bit = BIT_ULL(pfn % 64);
		if (!(entry & BIT_ULL(63)) || !pfn)
			continue;

		if (pwrite(idle, &bit, sizeof(bit), pfn / 64 * 8) != sizeof(bit) ||
		    pread(idle, &bit, sizeof(bit), pfn / 64 * 8) != sizeof(bit))
			break;
	}

	close(pagemap);
	close(idle);
}

/* What the host does to memory without changing it. */
static void *mover(void *arg)
{
	static const int advices[] = {
		MADV_HUGEPAGE, MADV_COLLAPSE, MADV_COLD, MADV_PAGEOUT,
		MADV_MERGEABLE, MADV_UNMERGEABLE, MADV_NOHUGEPAGE,
	};
	struct kvm_random_state state = new_kvm_random_state(kvm_random_seed + 3000);
	u64 what;
	pid_t pid;

	while (go_on()) {
		what = random_below(&state, ARRAY_SIZE(advices) + 2);
		if (what < ARRAY_SIZE(advices)) {
			/* What this kernel doesn't have, or can't do now, is left out. */
			madvise(logged.hva, LOGGED_SIZE, advices[what]);
		} else if (what == ARRAY_SIZE(advices)) {
			age(logged.hva, LOGGED_PAGES);
		} else {
			pid = fork();
			if (!pid)
				_exit(0);
			waitpid(pid, NULL, 0);
		}
		usleep(random_below(&state, 20000));
	}

	return NULL;
}

/*
 * Invalidates single pages of what else is happening to, which remain as they
 * are: those come while more is being invalidated.
 */
static void *nibbler(void *arg)
{
	struct kvm_random_state state = new_kvm_random_state(kvm_random_seed + 4000);
	void *hva;

	while (go_on()) {
		hva = mem.hva + random_below(&state, NR_PAGES) * PAGE_SIZE;
		madvise(hva, PAGE_SIZE, kvm_random_bool(&state) ? MADV_PAGEOUT : MADV_COLD);
		usleep(random_below(&state, 20000));
	}

	return NULL;
}

/* Ten times a second, Global TDP is stopped for the whole host, and goes on. */
static void *stopper(void *arg)
{
	bool stopped = true;

	while (stopped && go_on()) {
		pthread_mutex_lock(&stopping);
		stopped = gtdp_set_param("global_tdp", "never");
		usleep(10000);
		gtdp_restore_params();
		pthread_mutex_unlock(&stopping);
		usleep(90000);
	}

	return NULL;
}

static struct kvm_vcpu *vcpu_of(struct gtdp_piece *piece)
{
	return vcpus[piece->as_id];
}

/* The end of the pages from @first on, but not beyond @end, with the same tag. */
static u64 end_of_run(u64 first, u64 end)
{
	u64 i;

	for (i = first + 1; i < end && tags[i] == tags[first]; i++)
		;
	return i;
}

static void set_tags(u64 first, u64 nr)
{
	u64 i;

	tag += NR_PAGES;
	for (i = first; i < first + nr; i++)
		tags[i] = tag;
}

static void refill_part(u64 first, u64 nr)
{
	set_tags(first, nr);
	gtdp_stamp(mem.hva + first * PAGE_SIZE, nr, tag + first);
}

static void refill(void)
{
	refill_part(0, NR_PAGES);
}

static void check_host(void)
{
	u64 first, end;

	for (first = 0; first < NR_PAGES; first = end) {
		end = end_of_run(first, NR_PAGES);
		gtdp_check(mem.hva + first * PAGE_SIZE, end - first, tags[first] + first);
	}
}

/* The guest finds what is in the memory, wherever that is. */
static void check_piece(struct gtdp_piece *piece)
{
	u64 first, end, last = piece->first + piece->nr_reached;

	for (first = piece->first; first < last; first = end) {
		end = end_of_run(first, last);
		gtdp_run(vcpu_of(piece), GTDP_CHECK,
			 piece->gva + (first - piece->first) * PAGE_SIZE,
			 end - first, tags[first] + first);
	}
}

static struct gtdp_piece *pieces_end(void)
{
	return layout.pieces + layout.nr;
}

static void check_guest(void)
{
	struct gtdp_piece *piece;

	for (piece = layout.pieces; piece < pieces_end(); piece++)
		check_piece(piece);
}

/* Each word that the guest wants to write is an exit to whoever emulates a ROM. */
static void check_readonly(struct gtdp_piece *piece)
{
	u64 page = random_below(&rng, piece->nr_reached);
	struct kvm_vcpu *vcpu = vcpu_of(piece);
	struct kvm_run *run = vcpu->run;
	int exits;

	gtdp_set_job(vcpu, (struct gtdp_job) {
		.op = GTDP_STAMP,
		.gpa = piece->gva + page * PAGE_SIZE,
		.nr = 1,
		.step = 1,
		.tag = tag + 1,
	});
	for (exits = 0; vcpu_run(vcpu), run->exit_reason == KVM_EXIT_MMIO; exits++) {
		TEST_ASSERT(run->mmio.is_write, "Read-only memory is not readable");
		TEST_ASSERT_EQ(run->mmio.phys_addr & PAGE_MASK,
			       piece->gpa + page * PAGE_SIZE);
	}
	gtdp_finish_job(vcpu);
	TEST_ASSERT(exits == 2, "%d of 2 writes to a read-only memslot exited (seed 0x%x)",
		    exits, kvm_random_seed);
}

static void stamp_piece(struct gtdp_piece *piece)
{
	u64 first = random_below(&rng, piece->nr_reached);
	u64 nr = 1 + random_below(&rng, piece->nr_reached - first);

	/* In part, so that there is something of others' next to it. */
	set_tags(piece->first + first, nr);
	gtdp_run(vcpu_of(piece), GTDP_STAMP, piece->gva + first * PAGE_SIZE, nr,
		 tag + piece->first + first);
}

static void write_guest(void)
{
	struct gtdp_piece *piece;

	for (piece = layout.pieces; piece < pieces_end(); piece++) {
		if (!piece->nr_reached)
			continue;
		if (piece->flags & KVM_MEM_READONLY)
			check_readonly(piece);
		else
			stamp_piece(piece);
	}
}

static void set_piece(struct gtdp_piece *piece)
{
	gtdp_piece_set(vm, piece, mem.hva);
}

static void new_layout(void)
{
	struct gtdp_piece *piece;
	int tries = 1000;

	for (piece = layout.pieces; piece < pieces_end(); piece++)
		gtdp_piece_delete(vm, piece);
	do {
		TEST_ASSERT(tries--, "No layout has a memslot");
		gtdp_layout_choose(&layout, &areas, &rng, NR_PAGES);
	} while (!layout.nr);
	layouts[layout.kind]++;
	for (piece = layout.pieces; piece < pieces_end(); piece++)
		set_piece(piece);
}

static struct gtdp_piece *any_piece(void)
{
	return &layout.pieces[random_below(&rng, layout.nr)];
}

struct part {
	u64 first;
	u64 nr;
	void *hva;
	size_t size;
};

/* More or less than 2MiB, of any number of memslots. */
static struct part any_part(void)
{
	struct part part;

	part.first = random_below(&rng, NR_PAGES);
	part.nr = 1 + random_below(&rng, kvm_random_bool(&rng) ? NR_PAGES : GTDP_REGION_PAGES);
	if (!random_below(&rng, 4))
		part = (struct part) { .nr = NR_PAGES };
	part.nr = min_t(u64, part.nr, NR_PAGES - part.first);
	part.hva = mem.hva + part.first * PAGE_SIZE;
	part.size = part.nr * PAGE_SIZE;
	return part;
}

/* Others fork all the time, and each page copied costs a fault of host and guest. */
static void keep_from_children(void)
{
	int r = madvise(mem.hva, MEM_SIZE, MADV_DONTFORK);

	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("madvise()", r));
}

static void refill_after(struct part part)
{
	/* As to the rest, let it be what it is. */
	if (kvm_random_bool(&rng))
		refill();
	else
		refill_part(part.first, part.nr);
}

static void discard(void)
{
	struct part part = any_part();
	int r;

	r = madvise(part.hva, part.size, MADV_DONTNEED);
	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("madvise()", r));
	refill_after(part);
}

/* The memory is elsewhere for a moment, and there is nothing in its place. */
static void remap(void)
{
	struct part part = any_part();
	void *tmp, *map;

	/* What is moved must be one mapping. */
	tmp = mremap(part.hva, part.size, part.size, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
	if (tmp == MAP_FAILED)
		return;
	sched_yield();
	map = mremap(tmp, part.size, part.size, MREMAP_MAYMOVE | MREMAP_FIXED, part.hva);
	TEST_ASSERT(map == part.hva, __KVM_SYSCALL_ERROR("mremap()", -1));
}

static void age_part(void)
{
	struct part part = any_part();

	age(part.hva, part.nr);
}

static void replace(void)
{
	struct part part = any_part();
	void *map;

	map = mmap(part.hva, part.size, PROT_READ | PROT_WRITE,
		   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	TEST_ASSERT(map == part.hva, __KVM_SYSCALL_ERROR("mmap()", -1));
	madvise(part.hva, part.size, kvm_random_bool(&rng) ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
	keep_from_children();
	refill_after(part);
}

static void collapse(void)
{
	struct part part = any_part();

	/* May not be possible just now. */
	madvise(part.hva, part.size, MADV_HUGEPAGE);
	madvise(part.hva, part.size, MADV_COLLAPSE);
}

static void protect(void)
{
	struct part part = any_part();
	int r;

	/* Populated, it is read-only; a stale writable page would be kept. */
	r = mprotect(part.hva, part.size, kvm_random_bool(&rng) ? PROT_READ : PROT_NONE);
	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("mprotect()", r));
	sched_yield();
	r = mprotect(part.hva, part.size, PROT_READ | PROT_WRITE);
	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("mprotect()", r));
	refill_after(part);
}

/* Has every page copied on the next write to it, while it remains mapped. */
static void fork_child(void)
{
	struct part part = any_part();
	pid_t pid;

	madvise(part.hva, part.size, MADV_DOFORK);
	pid = fork();
	if (!pid)
		_exit(0);
	if (kvm_random_bool(&rng))
		refill_after(part);
	waitpid(pid, NULL, 0);
	keep_from_children();
}

static void page_out(void)
{
	struct part part = any_part();

	/* That goes page by page, and so does bringing them back. */
	part.size = min_t(size_t, part.size, PAGED_OUT);
	madvise(part.hva, part.size, MADV_PAGEOUT);
}

static u64 read_ksm(const char *name)
{
	u64 value = 0;
	char path[64];
	FILE *file;

	snprintf(path, sizeof(path), "/sys/kernel/mm/ksm/%s", name);
	file = fopen(path, "r");
	if (!file || fscanf(file, "%lu", &value) != 1)
		value = 0;
	if (file)
		fclose(file);
	return value;
}

static void write_ksm(const char *name, u64 value)
{
	char path[64];
	FILE *file;

	snprintf(path, sizeof(path), "/sys/kernel/mm/ksm/%s", name);
	file = fopen(path, "w");
	if (!file)
		return;
	fprintf(file, "%lu", value);
	fclose(file);
}

/* Have pages that are alike become one, which is copied when it is written to. */
static void merge(void)
{
	u64 first = random_below(&rng, NR_PAGES - MERGED_PAGES), i, scans;
	void *hva = mem.hva + first * PAGE_SIZE;
	int tries = 100;

	tag += NR_PAGES;
	for (i = 0; i < MERGED_PAGES; i++) {
		tags[first + i] = tag - first - i;
		gtdp_stamp(hva + i * PAGE_SIZE, 1, tag);
	}

	if (madvise(hva, MERGED_PAGES * PAGE_SIZE, MADV_MERGEABLE))
		return;
	scans = read_ksm("full_scans");
	write_ksm("pages_to_scan", 4096);
	write_ksm("sleep_millisecs", 1);
	write_ksm("run", 1);
	while (read_ksm("full_scans") < scans + 3 && --tries)
		usleep(1000);
	write_ksm("run", 0);
	merged_pages += read_ksm("pages_sharing");
}

static void delete_slot(void)
{
	struct gtdp_piece *piece = any_piece();

	gtdp_piece_delete(vm, piece);
	gtdp_piece_move(&layout, piece, &areas, &rng);
	if (kvm_random_bool(&rng))
		piece->flags ^= KVM_MEM_READONLY;
	if (kvm_random_bool(&rng))
		refill();
	set_piece(piece);
}

static void move_slot(void)
{
	struct gtdp_piece *piece = any_piece();

	if (gtdp_piece_move(&layout, piece, &areas, &rng))
		set_piece(piece);
}

static void toggle_logging(void)
{
	struct gtdp_piece *piece = any_piece();

	piece->flags ^= KVM_MEM_LOG_DIRTY_PAGES;
	set_piece(piece);
}

static void (* const actions[])(void) = {
	discard, replace, collapse, protect, fork_child, delete_slot, move_slot, toggle_logging,
	remap, age_part, page_out, merge,
};

static const char * const names[] = {
	"discard", "replace", "collapse", "protect", "fork", "delete slot", "move slot",
	"toggle logging", "remap", "age", "page out", "merge",
};

static u64 counts[ARRAY_SIZE(actions)];

/* The log of a memslot is what the guest wrote there, regardless of all else. */
static void check_log(struct gtdp_piece *piece)
{
	u64 step = 1 + random_below(&rng, 100), i;
	unsigned long *log = bitmap_zalloc(piece->nr);
	bool writable = !(piece->flags & KVM_MEM_READONLY);

	/* Only populating is known not to log: have all of it mapped before. */
	pthread_mutex_lock(&stopping);
	gtdp_piece_populate(vm, piece);
	pthread_mutex_unlock(&stopping);
	gtdp_run(vcpu_of(piece), GTDP_READ, piece->gva, piece->nr_reached, 0);
	harvest(piece->slot, piece->nr, log);

	if (writable) {
		set_tags(piece->first, piece->nr_reached);
		gtdp_run_job(vcpu_of(piece), (struct gtdp_job) {
			.op = GTDP_STAMP,
			.gpa = piece->gva,
			.nr = piece->nr_reached,
			.step = step,
			.tag = tag + piece->first,
		});
	}
	harvest(piece->slot, piece->nr, log);
	for (i = 0; i < piece->nr; i++)
		TEST_ASSERT(test_bit(i, log) ==
			    (writable && i < piece->nr_reached && !(i % step)),
			    "Page %lu of %lu is %sin the log (seed 0x%x)", i, piece->nr,
			    test_bit(i, log) ? "" : "not ", kvm_random_seed);
	free(log);

	/* Those that were left out, too. */
	if (writable)
		gtdp_run(vcpu_of(piece), GTDP_STAMP, piece->gva, piece->nr_reached,
			 tag + piece->first);
}

static void check_logs(void)
{
	struct gtdp_piece *piece;

	for (piece = layout.pieces; piece < pieces_end(); piece++) {
		if (piece->flags & KVM_MEM_LOG_DIRTY_PAGES)
			check_log(piece);
	}
}

/* At random, but each of them once before any of them is next again. */
static int next_action(void)
{
	static int left[ARRAY_SIZE(actions)];
	static u64 nr_left;
	u64 chosen;
	int action;

	if (!nr_left) {
		for (nr_left = 0; nr_left < ARRAY_SIZE(actions); nr_left++)
			left[nr_left] = nr_left;
	}

	chosen = random_below(&rng, nr_left);
	action = left[chosen];
	left[chosen] = left[--nr_left];
	return action;
}

static void one_round(void)
{
	int action = next_action();

	actions[action]();
	counts[action]++;

	check_guest();
	write_guest();
	check_host();
	check_guest();
	check_logs();
}

/* In a VM of its own.  What matters is when two threads run: let others rest. */
static void storm(void)
{
	WRITE_ONCE(paused, true);
	pthread_mutex_lock(&stopping);
	gtdp_storm(&rng, STORM_PAGES);
	pthread_mutex_unlock(&stopping);
	WRITE_ONCE(paused, false);
}

/*
 * However short the run, and however busy the machine: what is to be raced against
 * is done, and what is copied has been written to meanwhile.
 */
static void check_busy(u64 rounds, u64 before)
{
	/* Pages that the log begins with, though nobody has written to them. */
	const u64 all_set = log_caps & KVM_DIRTY_LOG_INITIALLY_SET ? LOGGED_PAGES : 0;
	u64 populated;

	gtdp_wait_until(READ_ONCE(calls) > rounds);
	gtdp_wait_until(READ_ONCE(copies) > MIN_COPIES && READ_ONCE(copied_pages) > LOGGED_PAGES +
			(READ_ONCE(copies) + 1) * all_set);
	populated = gtdp_nr_populated(vm) - before;
	TEST_ASSERT(populated > rounds * MIN_POPULATED,
		    "Only %lu pages were populated in %lu rounds", populated, rounds);
}

/* All is quiet: what is mapped now is what remains. */
static void check_rest(void)
{
	struct kvm_populate_memory sum;
	struct gtdp_piece *piece;

	refill();
	for (piece = layout.pieces; piece < pieces_end(); piece++) {
		sum = gtdp_piece_populate(vm, piece);
		TEST_ASSERT_EQ(sum.mapped, piece->nr_reached * PAGE_SIZE);
	}
	check_guest();
	refill();
	check_guest();
}

static void report(u64 done)
{
	struct gtdp_storm_counts storms = gtdp_storm_end();
	u64 i;

	for (i = 0; i < ARRAY_SIZE(actions); i++)
		pr_info("%-16s %8lu\n", names[i], counts[i]);
	for (i = 0; i < GTDP_NR_LAYOUTS; i++)
		pr_info("layout %-16s %8lu, in storms %lu\n", gtdp_layout_names[i], layouts[i],
			storms.layouts[i]);
	pr_info("%lu pages merged; %lu taken away in storms, %lu while more was invalidated\n",
		merged_pages, storms.pages, storms.raced);
	pr_info("%lu rounds, %lu calls, %lu pages populated, %lu copies of %lu pages\n",
		done, calls, gtdp_nr_populated(vm), copies, copied_pages);
}

static void create_vm(void)
{
	u64 i;

	gtdp_mem_alloc(&mem, GTDP_ANON, MEM_SIZE, PAGE_SIZE);
	gtdp_mem_alloc(&stable, GTDP_ANON, NR_WORKERS * STABLE_PAGES * PAGE_SIZE, 0);
	gtdp_mem_alloc(&logged, GTDP_ANON, LOGGED_SIZE, 0);
	gtdp_stamp(logged.hva, LOGGED_PAGES, 0);
	keep_from_children();
	refill();

	vm = gtdp_vm_create(GTDP_ALL, NR_VCPUS, vcpus);
	reach = gtdp_reach(vm);
	gtdp_areas_init(&areas, vm, LAYOUTS_SIZE);
	switch (kvm_random_seed % 3) {
	case 0:
		break;
	case 1:
		log_caps = KVM_DIRTY_LOG_MANUAL_PROTECT_ENABLE;
		break;
	case 2:
		log_caps = KVM_DIRTY_LOG_MANUAL_PROTECT_ENABLE | KVM_DIRTY_LOG_INITIALLY_SET;
		break;
	}
	if (log_caps)
		vm_enable_cap(vm, KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2, log_caps);
	gtdp_add_slot(vm, STABLE_SLOT, 0, STABLE_GPA, &stable);
	gtdp_add_slot(vm, LOGGED_SLOT, 0, LOGGED_GPA, &logged);

	/* A vCPU in SMM runs the same code, which must be there, too. */
	if (areas.nr_as > 1) {
		vm_set_user_memory_region(vm, 1 << 16, 0, 0, gtdp_code_size(vm),
					  addr_gpa2hva(vm, 0));
		gtdp_enter_smm(vcpus[1]);
	}

	for (i = 0; i < areas.nr; i++)
		pr_info("memslots at %#lx to %#lx\n", areas.areas[i].gpa,
			areas.areas[i].gpa + areas.areas[i].size);
	pr_info("page tables reach %#lx\n", reach);
}

static int create_threads(pthread_t *threads)
{
	unsigned long id;
	int nr = 0, i;

	for (id = 0; id < NR_POPULATORS; id++)
		pthread_create(&threads[nr++], NULL, populator, (void *)id);
	for (i = 0; i < NR_WORKERS; i++)
		pthread_create(&threads[nr++], NULL, worker, vcpus[NR_AS + i]);
	pthread_create(&threads[nr++], NULL, writer, vcpus[NR_AS + NR_WORKERS]);
	pthread_create(&threads[nr++], NULL, copier, NULL);
	pthread_create(&threads[nr++], NULL, mover, NULL);
	pthread_create(&threads[nr++], NULL, nibbler, NULL);
	pthread_create(&threads[nr++], NULL, stopper, NULL);
	return nr;
}

static void help(const char *name)
{
	printf("usage: %s [-h] [-i iterations] [-t seconds] [-s seed]\n", name);
	exit(0);
}

int main(int argc, char *argv[])
{
	pthread_t threads[NR_POPULATORS + NR_WORKERS + 5];
	int opt, nr_threads, iterations = 40, seconds = 0;
	time_t end, next;
	u64 done, before;

	while ((opt = getopt(argc, argv, "hi:t:s:")) != -1) {
		switch (opt) {
		case 'i':
			iterations = atoi_positive("Number of iterations", optarg);
			break;
		case 't':
			seconds = atoi_positive("Number of seconds", optarg);
			break;
		case 's':
			kvm_random_seed = strtoul(optarg, NULL, 0);
			break;
		default:
			help(argv[0]);
		}
	}

	gtdp_require(GTDP_ALL);

	pr_info("seed 0x%x\n", kvm_random_seed);
	rng = new_kvm_random_state(kvm_random_seed);
	create_vm();
	gtdp_storm_init();
	/* There are others to have pages age, but this kernel has neither. */
	TEST_REQUIRE(start_ageing());
	/* There is nothing to race with if nothing is populated at all. */
	gtdp_populate_code(vm);
	before = gtdp_nr_populated(vm);
	nr_threads = create_threads(threads);

	next = time(NULL) + 10;
	end = time(NULL) + seconds;
	for (done = 0; seconds ? time(NULL) < end : done < iterations; done++) {
		if (time(NULL) >= next) {
			pr_info("%lu rounds, %lu calls, %lu copies\n", done, calls, copies);
			next += 10;
		}

		if (!(done % LAYOUT_ROUNDS)) {
			new_layout();
			storm();
		}
		one_round();
	}

	check_busy(done, before);
	WRITE_ONCE(stop, true);
	while (nr_threads)
		pthread_join(threads[--nr_threads], NULL);

	TEST_ASSERT(gtdp_damon_stop(), "DAMON has stopped by itself");
	check_rest();
	report(done);

	kvm_vm_free(vm);
	gtdp_mem_free(&mem);
	gtdp_mem_free(&stable);
	gtdp_mem_free(&logged);
	return 0;
}
