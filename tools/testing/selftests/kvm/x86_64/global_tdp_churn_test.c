// SPDX-License-Identifier: GPL-2.0
/*
 * Looks for races: threads populate all of the guest's memory, at random and
 * all the time, while memslots are deleted, created, moved and logged, their
 * memory is discarded, replaced, write-protected and collapsed, and vCPUs work.
 * A page that was mapped when it must not have been is noticed as the guest
 * does not find what the host wrote, or the other way round.
 *
 * To see that it would be, run it with a kernel that does not check for a range
 * being invalidated before it maps what is in there.
 *
 * Meanwhile, a vCPU writes to memory that another thread copies as live
 * migration does, by the dirty log, and that the host shares with a child, ages,
 * collapses and reclaims.  A write that was not logged leaves the copy different.
 *
 * Forty rounds by default; -t has it go on for some time.
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

/*
 * Memory that things happen to.  Its slot has several places to be at, of which
 * one lets huge pages of the host be huge pages of the guest.
 */
#define MEM_SIZE	SZ_4M
#define NR_PAGES	(MEM_SIZE / PAGE_SIZE)
#define NR_PLACES	3
#define PLACE_DISTANCE	(SZ_16M + PAGE_SIZE)

/* Memory of vCPUs that just work, and are not to be disturbed. */
#define STABLE_SLOT	(GTDP_SLOT + 1)
#define STABLE_GPA	(GTDP_GPA + SZ_64M)
#define STABLE_PAGES	256
#define NR_WORKERS	2

/* Memory that is copied by the dirty log while it is written to. */
#define LOGGED_SLOT	(GTDP_SLOT + 2)
#define LOGGED_GPA	(GTDP_GPA + SZ_128M)
#define LOGGED_SIZE	SZ_4M
#define LOGGED_PAGES	(LOGGED_SIZE / PAGE_SIZE)

/* All that populating threads may ask for: some of it is not there. */
#define RANGE_SIZE	(SZ_128M + SZ_16M)
#define NR_POPULATORS	2

static struct kvm_vm *vm;
static struct gtdp_mem mem, stable, logged;
static struct guest_random_state rng;
static uint64_t place, tag, calls, copies, copied_pages;
static uint64_t log_caps;
/* Held by who needs the vCPU that writes to logged memory not to run. */
static pthread_mutex_t writing = PTHREAD_MUTEX_INITIALIZER;
static uint32_t slot_flags;
static bool stop;

static uint64_t random_below(struct guest_random_state *state, uint64_t end)
{
	return guest_random_u32(state) % end;
}

static void *populator(void *arg)
{
	unsigned long id = (unsigned long)arg;
	struct guest_random_state state = new_guest_random_state(guest_random_seed + id);
	struct kvm_populate_memory range;
	uint64_t page, before;
	int r;

	while (!READ_ONCE(stop)) {
		page = random_below(&state, RANGE_SIZE / PAGE_SIZE);
		range = (struct kvm_populate_memory) {
			.gpa = GTDP_GPA + page * PAGE_SIZE,
			.size = (1 + random_below(&state, NR_PAGES)) * PAGE_SIZE,
			/* One of the threads leaves it to the follower. */
			.flags = id == 1 ? KVM_POPULATE_ASYNC : 0,
		};
		/* Most calls find what they were made for. */
		if (guest_random_bool(&state)) {
			range.gpa = GTDP_GPA + READ_ONCE(place) * PLACE_DISTANCE;
			range.size = MEM_SIZE;
		}

		before = range.gpa;
		r = __vm_ioctl(vm, KVM_POPULATE_MEMORY, &range);
		TEST_ASSERT(!r || errno == EAGAIN || errno == ENOENT || errno == EINTR,
			    KVM_IOCTL_ERROR(KVM_POPULATE_MEMORY, r));
		if (!range.flags)
			TEST_ASSERT_EQ(range.mapped + range.absent, range.gpa - before);
		else
			usleep(1000);
		__atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED);

		/* Let others have the CPU, if there are few. */
		if (guest_random_bool(&state))
			sched_yield();
	}

	return NULL;
}

static uint64_t worker_gpa(struct kvm_vcpu *vcpu)
{
	return STABLE_GPA + (vcpu->id - 1) * STABLE_PAGES * PAGE_SIZE;
}

static void *worker(void *arg)
{
	struct kvm_vcpu *vcpu = arg;
	uint64_t gpa = worker_gpa(vcpu), i = 0;
	void *hva = stable.hva + (gpa - STABLE_GPA);

	while (!READ_ONCE(stop)) {
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
	struct guest_random_state state = new_guest_random_state(guest_random_seed + 1000);
	struct kvm_vcpu *vcpu = arg;
	uint64_t first, nr, i = 0;

	while (!READ_ONCE(stop)) {
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
static void harvest(uint32_t slot, uint64_t nr, unsigned long *log)
{
	kvm_vm_get_dirty_log(vm, slot, log);
	if (log_caps)
		kvm_vm_clear_dirty_log(vm, slot, log, 0, nr);
}

static void copy_dirty(void *copy, unsigned long *log)
{
	uint64_t i;

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
	struct guest_random_state state = new_guest_random_state(guest_random_seed + 2000);
	unsigned long *log = bitmap_zalloc(LOGGED_PAGES);
	void *copy = malloc(LOGGED_SIZE);
	uint64_t i, rounds;

	while (!READ_ONCE(stop)) {
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
				    i, guest_random_seed);
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

/* Idle page tracking asks whether a page was accessed, and makes KVM forget. */
static void age(void *hva, uint64_t nr)
{
	int pagemap = open("/proc/self/pagemap", O_RDONLY);
	int idle = open("/sys/kernel/mm/page_idle/bitmap", O_RDWR);
	uint64_t i, entry, pfn, bit;

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
	struct guest_random_state state = new_guest_random_state(guest_random_seed + 3000);
	uint64_t what;
	pid_t pid;

	while (!READ_ONCE(stop)) {
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

static uint64_t gpa(void)
{
	return GTDP_GPA + place * PLACE_DISTANCE;
}

static void set_slot(void)
{
	gtdp_add_slot(vm, GTDP_SLOT, slot_flags, gpa(), &mem);
}

static void refill(void)
{
	tag += NR_PAGES;
	gtdp_stamp(mem.hva, NR_PAGES, tag);
}

static void advise(int advice)
{
	/* Collapsing, and the like, may not be possible just now. */
	madvise(mem.hva, MEM_SIZE, advice);
}

static void discard(void)
{
	uint64_t first = random_below(&rng, NR_PAGES);
	uint64_t nr = 1 + random_below(&rng, NR_PAGES - first);

	/* In part, so that it is in the midst of what is being populated. */
	madvise(mem.hva + first * PAGE_SIZE, nr * PAGE_SIZE, MADV_DONTNEED);
	refill();
}

/* The memory is elsewhere for a moment, and there is nothing in its place. */
static void remap(void)
{
	void *tmp, *map;

	tmp = mremap(mem.hva, MEM_SIZE, MEM_SIZE, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
	TEST_ASSERT(tmp != MAP_FAILED, __KVM_SYSCALL_ERROR("mremap()", -1));
	sched_yield();
	map = mremap(tmp, MEM_SIZE, MEM_SIZE, MREMAP_MAYMOVE | MREMAP_FIXED, mem.hva);
	TEST_ASSERT(map == mem.hva, __KVM_SYSCALL_ERROR("mremap()", -1));
}

static void age_all(void)
{
	age(mem.hva, NR_PAGES);
}

static void replace(void)
{
	void *map;

	map = mmap(mem.hva, MEM_SIZE, PROT_READ | PROT_WRITE,
		   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	TEST_ASSERT(map == mem.hva, __KVM_SYSCALL_ERROR("mmap()", -1));
	advise(guest_random_bool(&rng) ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
	refill();
}

static void collapse(void)
{
	advise(MADV_HUGEPAGE);
	advise(MADV_COLLAPSE);
}

static void protect(void)
{
	int r;

	/* Populated, it is read-only; a stale writable page would be kept. */
	r = mprotect(mem.hva, MEM_SIZE, PROT_READ);
	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("mprotect()", r));
	sched_yield();
	r = mprotect(mem.hva, MEM_SIZE, PROT_READ | PROT_WRITE);
	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("mprotect()", r));
	refill();
}

/* Has every page copied on the next write to it, while it remains mapped. */
static void fork_child(void)
{
	pid_t pid = fork();

	if (!pid)
		_exit(0);
	refill();
	waitpid(pid, NULL, 0);
}

static void delete_slot(void)
{
	gtdp_delete_slot(vm, GTDP_SLOT);
	place = random_below(&rng, NR_PLACES);
	if (guest_random_bool(&rng))
		refill();
	set_slot();
}

static void move_slot(void)
{
	place = (place + 1) % NR_PLACES;
	set_slot();
}

static void toggle_logging(void)
{
	slot_flags ^= KVM_MEM_LOG_DIRTY_PAGES;
	set_slot();
}

static void (* const actions[])(void) = {
	discard, replace, collapse, protect, fork_child, delete_slot, move_slot, toggle_logging,
	remap, age_all,
};

static const char * const names[] = {
	"discard", "replace", "collapse", "protect", "fork", "delete slot", "move slot",
	"toggle logging", "remap", "age",
};

static uint64_t counts[ARRAY_SIZE(actions)];

/* The log is what the guest wrote, regardless of what else is going on. */
static void check_log(struct kvm_vcpu *vcpu)
{
	uint64_t step = 1 + random_below(&rng, 100), i;
	unsigned long *log = bitmap_zalloc(NR_PAGES);

	/* Only populating is known not to log: have all of it mapped before. */
	gtdp_populate(vm, gpa(), MEM_SIZE);
	gtdp_run(vcpu, GTDP_READ, gpa(), NR_PAGES, 0);
	harvest(GTDP_SLOT, NR_PAGES, log);

	gtdp_run_job(vcpu, (struct gtdp_job) {
		.op = GTDP_STAMP,
		.gpa = gpa(),
		.nr = NR_PAGES,
		.step = step,
		.tag = tag,
	});
	harvest(GTDP_SLOT, NR_PAGES, log);
	for (i = 0; i < NR_PAGES; i++)
		TEST_ASSERT(test_bit(i, log) == !(i % step), "Page %lu is %sin the log",
			    i, test_bit(i, log) ? "" : "not ");
	free(log);
}

static void help(const char *name)
{
	printf("usage: %s [-h] [-i iterations] [-t seconds] [-s seed]\n", name);
	exit(0);
}

int main(int argc, char *argv[])
{
	pthread_t threads[NR_POPULATORS + NR_WORKERS + 3];
	struct kvm_vcpu *vcpus[2 + NR_WORKERS];
	int i, action, done, iterations = 40, seconds = 0;
	time_t end, report;
	unsigned long id;
	int opt;

	while ((opt = getopt(argc, argv, "hi:t:s:")) != -1) {
		switch (opt) {
		case 'i':
			iterations = atoi_positive("Number of iterations", optarg);
			break;
		case 't':
			seconds = atoi_positive("Number of seconds", optarg);
			break;
		case 's':
			guest_random_seed = strtoul(optarg, NULL, 0);
			break;
		default:
			help(argv[0]);
		}
	}

	gtdp_require(GTDP_ALL);

	pr_info("seed 0x%x\n", guest_random_seed);
	rng = new_guest_random_state(guest_random_seed);
	gtdp_mem_alloc(&mem, GTDP_ANON, MEM_SIZE, PAGE_SIZE);
	gtdp_mem_alloc(&stable, GTDP_ANON, NR_WORKERS * STABLE_PAGES * PAGE_SIZE, 0);
	gtdp_mem_alloc(&logged, GTDP_ANON, LOGGED_SIZE, 0);
	gtdp_stamp(logged.hva, LOGGED_PAGES, 0);
	refill();

	vm = gtdp_vm_create(GTDP_ALL, ARRAY_SIZE(vcpus), vcpus);
	switch (guest_random_seed % 3) {
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
	set_slot();

	for (id = 0; id < NR_POPULATORS; id++)
		pthread_create(&threads[id], NULL, populator, (void *)id);
	for (i = 0; i < NR_WORKERS; i++)
		pthread_create(&threads[NR_POPULATORS + i], NULL, worker, vcpus[1 + i]);
	i = NR_POPULATORS + NR_WORKERS;
	pthread_create(&threads[i++], NULL, writer, vcpus[1 + NR_WORKERS]);
	pthread_create(&threads[i++], NULL, copier, NULL);
	pthread_create(&threads[i++], NULL, mover, NULL);

	report = time(NULL) + 10;
	end = time(NULL) + seconds;
	for (done = 0; seconds ? time(NULL) < end : done < iterations; done++) {
		if (time(NULL) >= report) {
			pr_info("%d rounds, %lu calls, %lu copies\n", done, calls, copies);
			report += 10;
		}

		action = random_below(&rng, ARRAY_SIZE(actions));
		actions[action]();
		counts[action]++;

		gtdp_run(vcpus[0], GTDP_CHECK, gpa(), NR_PAGES, tag);
		tag += NR_PAGES;
		gtdp_run(vcpus[0], GTDP_STAMP, gpa(), NR_PAGES, tag);
		gtdp_check(mem.hva, NR_PAGES, tag);

		if (slot_flags)
			check_log(vcpus[0]);
	}

	WRITE_ONCE(stop, true);
	for (i = 0; i < ARRAY_SIZE(threads); i++)
		pthread_join(threads[i], NULL);

	/* All is quiet: what is mapped now is what remains. */
	gtdp_populate_full(vm, gpa(), MEM_SIZE);
	gtdp_run(vcpus[0], GTDP_CHECK, gpa(), NR_PAGES, tag);
	refill();
	gtdp_run(vcpus[0], GTDP_CHECK, gpa(), NR_PAGES, tag);

	for (action = 0; action < (int)ARRAY_SIZE(actions); action++)
		pr_info("%-16s %8lu\n", names[action], counts[action]);
	pr_info("%d rounds, %lu calls, %lu pages populated, %lu copies of %lu pages\n",
		done, calls, gtdp_nr_populated(vm), copies, copied_pages);

	kvm_vm_free(vm);
	gtdp_mem_free(&mem);
	gtdp_mem_free(&stable);
	gtdp_mem_free(&logged);
	return 0;
}
