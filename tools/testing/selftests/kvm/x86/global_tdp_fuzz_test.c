// SPDX-License-Identifier: GPL-2.0
/*
 * Hands random and hostile arguments to KVM_ENABLE_CAP(KVM_CAP_GLOBAL_TDP), to
 * KVM_POPULATE_MEMORY and to KVM_HARVEST_ACCESSED, while memslots come and go over
 * memory that is partly present, missing, unmapped or not accessible, and compares
 * each result with what the documentation says of these arguments, and what is
 * mapped with what the host has (/proc/self/pagemap).
 *
 * Memslots of both address spaces share memory with each other, and are next to
 * each other, at the end of what page tables reach, across that, and beyond it,
 * where KVM has memslots that no vCPU can use: those are never mapped.
 *
 * First one thread alone, where the result is known; then with another thread
 * that changes memslots and memory, and a timer's signals, where some results
 * depend on who is first.
 */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>

#include "test_util.h"
#include "kvm_util.h"
#include "processor.h"
#include "global_tdp.h"
#include "global_tdp_layout.h"

#define NR_SLOTS	8
#define NR_AS		2

/*
 * Host memory that memslots are somewhere in.  Parts of it are unmapped, so have
 * it where nobody else's memory is put in the meantime.
 */
#define ARENA_PAGES	8192
#define ARENA_ADDRESS	((void *)BIT_ULL(40))

/* What a bitmap is for, at most. */
#define BITMAP_PAGES	8192

/* Where memslots are, if they are not at the end of the address space. */
#define WINDOW_PAGES	16384

struct slot {
	u64 gfn;
	u64 npages;
	u64 hva_page;
};

/* What the host says of a page of the memory; whether it is there, it is asked. */
enum access {
	ALLOWED,
	FORBIDDEN,	/* PROT_NONE */
	UNMAPPED,
};

static struct kvm_vm *vm;
static struct kvm_vcpu *vcpu;
static struct kvm_random_state rng;
static struct slot slots[NR_AS][NR_SLOTS];
static void *arena;
static enum access host_access[ARENA_PAGES];
static int pagemap;
static int nr_as;
/* Where page tables end, and where memslots may. */
static u64 reach_gfn, end_gfn;
static u64 results[256];
/* What was mapped by calls of which that was known before. */
static u64 predicted;
static bool stop;

static u64 below(struct kvm_random_state *state, u64 end)
{
	return kvm_random_u32(state) % end;
}

static u64 any_u64(struct kvm_random_state *state)
{
	u64 value = (u64)kvm_random_u32(state) << 32 | kvm_random_u32(state);

	switch (below(state, 5)) {
	case 0:
		return value;
	case 1:
		return value >> below(state, 64);
	case 2:
		return -(value >> below(state, 64));
	case 3:
		return BIT_ULL(below(state, 64)) - (value & 1);
	default:
		return value & PAGE_MASK;
	}
}

static void set_access(u64 first, u64 nr, enum access new)
{
	while (nr--)
		host_access[first++] = new;
}

/* Goes as far as there is a mapping. */
static void protect(u64 first, u64 nr, int prot)
{
	u64 end = first;

	while (end < first + nr && host_access[end] != UNMAPPED)
		end++;

	mprotect(arena + first * PAGE_SIZE, nr * PAGE_SIZE, prot);
	set_access(first, end - first, prot == PROT_NONE ? FORBIDDEN : ALLOWED);
}

/* Memory of the host, of any kind and any state. */
static void change_memory(struct kvm_random_state *state)
{
	u64 first = below(state, ARENA_PAGES), nr = 1 + below(state, 600);
	void *hva = arena + first * PAGE_SIZE;
	size_t size;

	nr = min(nr, ARENA_PAGES - first);
	size = nr * PAGE_SIZE;

	switch (below(state, 6)) {
	case 0:
		munmap(hva, size);
		set_access(first, nr, UNMAPPED);
		break;
	case 1:
		protect(first, nr, PROT_NONE);
		break;
	case 2:
		protect(first, nr, PROT_READ);
		break;
	case 3:
		madvise(hva, size, MADV_DONTNEED);
		break;
	default:
		TEST_ASSERT(mmap(hva, size, PROT_READ | PROT_WRITE,
				 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == hva,
			    "mmap() failed");
		set_access(first, nr, ALLOWED);
		/* Every second page is there. */
		for (first = 0; first < nr; first += 2)
			memset(hva + first * PAGE_SIZE, 1, 1);
	}
}

static int set_slot(int as_id, int i, u32 flags, u64 gfn, u64 npages, void *hva)
{
	return __vm_set_user_memory_region(vm, as_id << 16 | (GTDP_SLOT + i), flags,
					   gfn << PAGE_SHIFT, npages << PAGE_SHIFT, hva);
}

/* Where to put a memslot. */
static u64 any_gfn(struct kvm_random_state *state, int as_id, u64 npages)
{
	const struct slot *other = &slots[as_id][below(state, NR_SLOTS)];
	const u64 window = (GTDP_GPA >> PAGE_SHIFT) + below(state, WINDOW_PAGES);

	switch (below(state, 16)) {
	case 0:
		return vm->max_gfn + 1 - npages;
	case 1:
		return end_gfn - npages;
	case 2:
		return reach_gfn - npages;
	case 3:
		return reach_gfn - below(state, npages + 1);
	case 4:
		/* The same place, but for address bits that page tables don't have. */
		return reach_gfn + window;
	case 5:
		return reach_gfn + below(state, 2000);
	case 6:
	case 7:
		return other->gfn + other->npages;
	default:
		return window;
	}
}

static void change_slot(struct kvm_random_state *state)
{
	int as_id = below(state, nr_as), i = below(state, NR_SLOTS);
	struct slot *slot = &slots[as_id][i], new;
	const struct slot *other = &slots[below(state, nr_as)][below(state, NR_SLOTS)];

	if (slot->npages) {
		TEST_ASSERT_EQ(set_slot(as_id, i, 0, slot->gfn, 0, 0), 0);
		slot->npages = 0;
		return;
	}

	/* Every second one shares memory with another. */
	new.hva_page = below(state, ARENA_PAGES);
	if (other->npages && below(state, 2))
		new.hva_page = other->hva_page + below(state, other->npages);
	new.npages = min(1 + below(state, 2000), ARENA_PAGES - new.hva_page);
	new.gfn = any_gfn(state, as_id, new.npages);

	/* Refused if they overlap. */
	if (!set_slot(as_id, i, below(state, 4) ? 0 : KVM_MEM_READONLY, new.gfn, new.npages,
		      arena + new.hva_page * PAGE_SIZE))
		*slot = new;
}

/* The first page from @gpa on that is in no memslot. */
static u64 first_hole(int as_id, u64 gpa)
{
	struct slot *slot, *end = slots[as_id] + NR_SLOTS;
	u64 gfn = gpa >> PAGE_SHIFT;

	if (!as_id && gfn < gtdp_code_size(vm) >> PAGE_SHIFT)
		gfn = gtdp_code_size(vm) >> PAGE_SHIFT;

	for (slot = slots[as_id]; slot < end; slot++) {
		if (slot->npages && gfn >= slot->gfn && gfn < slot->gfn + slot->npages) {
			gfn = slot->gfn + slot->npages;
			slot = slots[as_id] - 1;
		}
	}

	return gfn << PAGE_SHIFT;
}

/* Of pages that are a part of a region: if not all are a mapping, none is mapped. */
static u64 mappable_in_part(u64 first, u64 nr)
{
	u64 entries[GTDP_REGION_PAGES], i, present = 0;
	ssize_t r;

	for (i = 0; i < nr; i++) {
		if (host_access[first + i] == UNMAPPED)
			return 0;
	}

	r = pread(pagemap, entries, nr * sizeof(*entries),
		  ((uintptr_t)arena / PAGE_SIZE + first) * sizeof(*entries));
	TEST_ASSERT_EQ(r, nr * sizeof(*entries));
	for (i = 0; i < nr; i++)
		present += host_access[first + i] == ALLOWED && entries[i] & BIT_ULL(63);
	return present;
}

static u64 mappable_in_slot(const struct slot *slot, u64 gfn, u64 end)
{
	u64 next, nr = 0;

	end = min(min(end, slot->gfn + slot->npages), reach_gfn);
	for (gfn = max(gfn, slot->gfn); gfn < end; gfn = next) {
		next = (gfn / GTDP_REGION_PAGES + 1) * GTDP_REGION_PAGES;
		next = min(next, end);
		nr += mappable_in_part(slot->hva_page + gfn - slot->gfn, next - gfn);
	}

	return nr;
}

/* How much of [@gpa, @end), all of which has memslots, is there to be mapped. */
static u64 mappable(int as_id, u64 gpa, u64 end)
{
	u64 code = as_id ? 0 : gtdp_code_size(vm), nr = 0;
	int i;

	for (i = 0; i < NR_SLOTS; i++) {
		if (slots[as_id][i].npages)
			nr += mappable_in_slot(&slots[as_id][i], gpa >> PAGE_SHIFT,
					       end >> PAGE_SHIFT);
	}

	/* All of the guest's own code is. */
	return (nr << PAGE_SHIFT) + max(min(end, code), gpa) - gpa;
}

static struct kvm_populate_memory any_range(struct kvm_random_state *state)
{
	static const u32 flags[] = { 0, 0, KVM_POPULATE_ASYNC, KVM_POPULATE_PAGE_CACHE };
	int as_id = below(state, nr_as);
	struct slot *slot = &slots[as_id][below(state, NR_SLOTS)];
	/* From before a slot to behind it. */
	u64 gfn = READ_ONCE(slot->gfn) + below(state, 4) * below(state, 600) - 2;
	struct kvm_populate_memory range = {
		.gpa = gfn << PAGE_SHIFT,
		.size = below(state, below(state, 8) ? 1000 : 20000) << PAGE_SHIFT,
		.as_id = as_id,
		.flags = flags[below(state, ARRAY_SIZE(flags))],
		/* These are results. */
		.mapped = any_u64(state),
		.absent = any_u64(state),
	};

	switch (below(state, 16)) {
	case 0:
		range.gpa = any_u64(state);
		break;
	case 1:
		range.size = any_u64(state);
		break;
	case 2:
		range.flags = any_u64(state) & ~KVM_POPULATE_BITMAP;
		break;
	case 3:
		range.as_id = any_u64(state);
		break;
	case 4:
		range.reserved = any_u64(state);
		break;
	case 7:
		range.bitmap = any_u64(state);
		break;
	case 5:
		range.size = 0;
		break;
	case 6:
		range.gpa = any_u64(state);
		range.size = any_u64(state);
		range.flags = any_u64(state) & ~KVM_POPULATE_BITMAP;
		range.as_id = any_u64(state);
		break;
	}

	return range;
}

static bool is_valid(const struct kvm_populate_memory *range)
{
	return !(range->gpa % PAGE_SIZE) && !(range->size % PAGE_SIZE) &&
	       range->gpa <= UINT64_MAX - range->size &&
	       range->flags <= KVM_POPULATE_PAGE_CACHE && range->as_id < nr_as &&
	       !range->bitmap && !range->reserved;
}

/* How much of [@gpa, @end) is beyond the page tables. */
static u64 unreached(u64 gpa, u64 end)
{
	return end - min(end, max(gpa, reach_gfn << PAGE_SHIFT));
}

static int populate(int fd, void *range)
{
	int err = ioctl(fd, KVM_POPULATE_MEMORY, range) ? errno : 0;

	results[err]++;
	return err;
}

static void check_range(struct kvm_random_state *state, bool alone)
{
	struct kvm_populate_memory range = any_range(state), before = range;
	u64 end = before.gpa + before.size, hole = end, least = 0, most;
	bool known = alone && is_valid(&before);
	int err;

	if (known) {
		hole = before.size ? min(end, first_hole(before.as_id, before.gpa)) : end;
		least = mappable(before.as_id, before.gpa, hole);
	}
	err = populate(vm->fd, &range);

	if (!is_valid(&before)) {
		TEST_ASSERT_EQ(err, EINVAL);
		TEST_ASSERT(!memcmp(&range, &before, sizeof(range)), "Refused, but changed");
		return;
	}

	/* The follower may be at the same place, if not for long. */
	if (alone && err != EAGAIN) {
		TEST_ASSERT_EQ(err, hole < end ? ENOENT : 0);
		TEST_ASSERT_EQ(range.gpa, hole);
	} else {
		TEST_ASSERT(!err || err == ENOENT || err == EAGAIN || err == EINTR,
			    "gpa %#llx size %#llx: %s", before.gpa, before.size, strerror(err));
		TEST_ASSERT(range.gpa >= before.gpa && range.gpa <= end,
			    "%#llx is not in [%#llx, %#lx]", range.gpa, before.gpa, end);
		TEST_ASSERT_EQ(!err, range.gpa == end);
	}

	TEST_ASSERT_EQ(range.gpa + range.size, end);
	if (range.flags & KVM_POPULATE_ASYNC) {
		TEST_ASSERT(!range.mapped && !range.absent, "Done at once, although async");
		return;
	}
	TEST_ASSERT_EQ(range.mapped + range.absent, range.gpa - before.gpa);
	if (known && err != EAGAIN) {
		/* khugepaged may bring in more. */
		most = mappable(before.as_id, before.gpa, hole);
		TEST_ASSERT(range.mapped >= least && range.mapped <= most,
			    "Mapped %#llx bytes of [%#llx, %#llx), not %#lx to %#lx",
			    range.mapped, before.gpa, range.gpa, least, most);
		predicted += range.mapped;
	}
	TEST_ASSERT(range.absent >= unreached(before.gpa, range.gpa),
		    "Mapped %#llx bytes of [%#llx, %#llx), absent %#llx, but page tables end at %#lx",
		    range.mapped, before.gpa, range.gpa, range.absent, reach_gfn << PAGE_SHIFT);
}

/* A bit a page, with a word behind them that is nobody's. */
static u64 bitmap[BITMAP_PAGES / 64 + 1];

static u64 nr_bits(u64 nr)
{
	u64 i, sum = 0;

	for (i = 0; i < nr; i++)
		sum += bitmap[i / 64] >> i % 64 & 1;

	return sum;
}

/* Arguments, mostly good ones, for what has a bitmap; @expected is an error, or 0. */
static struct kvm_populate_memory any_bitmap(struct kvm_random_state *state, int *expected)
{
	int as_id = below(state, nr_as);
	struct slot *slot = &slots[as_id][below(state, NR_SLOTS)];
	struct kvm_populate_memory range = {
		.gpa = (READ_ONCE(slot->gfn) & ~63ull) << PAGE_SHIFT,
		.size = below(state, BITMAP_PAGES) << PAGE_SHIFT,
		.flags = KVM_POPULATE_BITMAP,
		.as_id = as_id,
		.bitmap = (uintptr_t)bitmap,
	};

	*expected = EINVAL;
	switch (below(state, 16)) {
	case 0:
		range.gpa += (1 + below(state, SZ_256K - 1));
		break;
	case 1:
		range.size += 1 + below(state, PAGE_SIZE - 1);
		break;
	case 2:
		range.bitmap += 1 + below(state, 7);
		break;
	case 3:
		range.as_id = NR_AS + below(state, 100);
		break;
	case 4:
		/* Of the kernel, or of nobody; also if it begins in the last word that is good. */
		range.bitmap = below(state, 2) ? BIT_ULL(63) | (any_u64(state) & ~7ull) : PAGE_SIZE;
		*expected = range.size ? EFAULT : 0;
		break;
	default:
		*expected = 0;
	}

	return range;
}

static void check_bitmap(struct kvm_random_state *state, bool alone)
{
	int expected, err;
	struct kvm_populate_memory range = any_bitmap(state, &expected), before;
	u64 i, nr = range.size / PAGE_SIZE;

	for (i = 0; i < ARRAY_SIZE(bitmap); i++)
		bitmap[i] = any_u64(state);
	range.flags |= below(state, 2) ? KVM_POPULATE_PAGE_CACHE : 0;
	before = range;

	err = populate(vm->fd, &range);
	if (expected == EINVAL) {
		TEST_ASSERT_EQ(err, EINVAL);
		TEST_ASSERT(!memcmp(&range, &before, sizeof(range)), "Refused, but changed");
		return;
	}

	if (err == EAGAIN || (err == EINTR && !alone)) {
		TEST_ASSERT(range.gpa >= before.gpa && !(range.gpa % SZ_256K),
			    "Can't go on at %#llx", range.gpa);
	} else {
		TEST_ASSERT_EQ(err, expected);
		TEST_ASSERT_EQ(range.gpa, expected ? before.gpa : before.gpa + nr * PAGE_SIZE);
	}
	TEST_ASSERT_EQ(range.gpa + range.size, before.gpa + before.size);
	TEST_ASSERT_EQ(range.bitmap - before.bitmap,
		       DIV_ROUND_UP((range.gpa - before.gpa) / PAGE_SIZE, 64) * 8);
	if (!expected)
		TEST_ASSERT(range.mapped + range.absent <= nr_bits(nr) * PAGE_SIZE,
			    "%#llx bytes for %lu bits", range.mapped + range.absent, nr_bits(nr));
}

static void check_harvest(struct kvm_random_state *state, bool alone)
{
	int expected, err;
	struct kvm_populate_memory args = any_bitmap(state, &expected);
	struct kvm_harvest_accessed range = {
		.gpa = args.gpa,
		.size = args.size,
		.as_id = args.as_id,
		.bitmap = args.bitmap,
		.accessed = any_u64(state),
	}, before;
	u64 nr = range.size / PAGE_SIZE, words = DIV_ROUND_UP(nr, 64);
	const u64 guard = any_u64(state);

	if (!below(state, 16)) {
		range.reserved[below(state, ARRAY_SIZE(range.reserved))] = 1 + below(state, 1000);
		expected = EINVAL;
	}
	if (!below(state, 16)) {
		range.flags = 1 + below(state, 1000);
		expected = EINVAL;
	}
	if (!(vm_check_cap(vm, KVM_CAP_GLOBAL_TDP) & KVM_GLOBAL_TDP_HARVEST))
		expected = EOPNOTSUPP;

	memset(bitmap, 0xff, sizeof(bitmap));
	bitmap[words] = guard;
	before = range;
	err = ioctl(vm->fd, KVM_HARVEST_ACCESSED, &range) ? errno : 0;
	TEST_ASSERT_EQ(bitmap[words], guard);

	if (expected == EINVAL || expected == EOPNOTSUPP) {
		TEST_ASSERT_EQ(err, expected);
		TEST_ASSERT(!memcmp(&range, &before, sizeof(range)), "Refused, but changed");
		return;
	}

	if (err != EINTR || alone)
		TEST_ASSERT_EQ(err, expected);
	TEST_ASSERT_EQ(range.gpa + range.size, before.gpa + before.size);
	TEST_ASSERT_EQ(range.bitmap - before.bitmap,
		       DIV_ROUND_UP((range.gpa - before.gpa) / PAGE_SIZE, 64) * 8);
	if (!err) {
		TEST_ASSERT_EQ(range.size, 0);
		TEST_ASSERT_EQ(range.accessed, nr_bits(nr) * PAGE_SIZE);
		TEST_ASSERT_EQ(nr_bits(nr), nr_bits(words * 64));
	}
}

static void check_any(struct kvm_random_state *state, bool alone)
{
	switch (below(state, 8)) {
	case 0:
		check_bitmap(state, alone);
		break;
	case 1:
		check_harvest(state, alone);
		break;
	default:
		check_range(state, alone);
	}
}

/* The structure is somewhere else than it should be, or not quite there. */
static void check_pointer(struct kvm_random_state *state)
{
	static void *pages;
	struct kvm_populate_memory range = any_range(state);
	bool writable = false, readable = false;
	u64 hole;
	void *where;
	int err;

	if (!pages) {
		pages = mmap(NULL, 2 * PAGE_SIZE, PROT_READ | PROT_WRITE,
			     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		TEST_ASSERT(pages != MAP_FAILED, "mmap() failed");
		munmap(pages + PAGE_SIZE, PAGE_SIZE);
	}

	switch (below(state, 4)) {
	case 0:
		/* Of the kernel, of nobody, or small. */
		where = (void *)(any_u64(state) | BIT_ULL(63));
		break;
	case 1:
		where = (void *)below(state, PAGE_SIZE);
		break;
	case 2:
		where = pages + PAGE_SIZE - 1 - below(state, sizeof(range) - 1);
		break;
	default:
		/* Not aligned. */
		where = pages + below(state, PAGE_SIZE - sizeof(range) + 1);
		readable = true;
		writable = below(state, 2);
		memcpy(where, &range, sizeof(range));
		if (!writable)
			mprotect(pages, PAGE_SIZE, PROT_READ);
	}

	err = populate(vm->fd, where);
	mprotect(pages, PAGE_SIZE, PROT_READ | PROT_WRITE);

	if (err == EAGAIN) {
		TEST_ASSERT(readable && writable && is_valid(&range), "Unexpected EAGAIN");
	} else if (!readable) {
		TEST_ASSERT_EQ(err, EFAULT);
	} else if (!is_valid(&range)) {
		TEST_ASSERT_EQ(err, EINVAL);
	} else if (!writable) {
		TEST_ASSERT_EQ(err, EFAULT);
	} else {
		hole = first_hole(range.as_id, range.gpa);
		TEST_ASSERT_EQ(err, range.size && hole < range.gpa + range.size ? ENOENT : 0);
	}
}

/* Whether a vCPU's CPUID decides on the depth of the page tables: 5-level EPT. */
static bool is_depth_open(void)
{
	static int open = -1;
	char line[4096];
	FILE *file;

	if (open < 0) {
		open = 0;
		file = fopen("/proc/cpuinfo", "r");
		TEST_ASSERT(file, "No /proc/cpuinfo");
		while (fgets(line, sizeof(line), file))
			open |= !strncmp(line, "vmx flags", 9) && strstr(line, "ept_5level");
		fclose(file);
	}

	return open;
}

static void check_cap(struct kvm_random_state *state, bool has_vcpu)
{
	struct kvm_populate_memory range = any_range(state);
	u64 supported = vm_check_cap(vm, KVM_CAP_GLOBAL_TDP);
	struct kvm_enable_cap cap = {
		.cap = KVM_CAP_GLOBAL_TDP,
		.flags = below(state, 4) ? 0 : any_u64(state),
		.args = { below(state, 2) ? below(state, GTDP_SUPPORTED + 1) : any_u64(state) },
	};
	int err = __vm_ioctl(vm, KVM_ENABLE_CAP, &cap) ? errno : 0;

	if (cap.flags || cap.args[0] & ~supported)
		TEST_ASSERT_EQ(err, EINVAL);
	else
		TEST_ASSERT_EQ(err, has_vcpu ? EBUSY : 0);

	if (has_vcpu || err)
		return;

	err = populate(vm->fd, &range);
	if (!(cap.args[0] & KVM_GLOBAL_TDP_POPULATE))
		TEST_ASSERT_EQ(err, EOPNOTSUPP);
	else if (!is_valid(&range))
		TEST_ASSERT_EQ(err, EINVAL);
	else if (!is_depth_open() || err != ENXIO)
		TEST_ASSERT_EQ(err, range.size ? ENOENT : 0);
}

/* File descriptors that are not of a VM of this process. */
static void check_other_fds(void)
{
	struct kvm_populate_memory range = {};
	int fd = open_kvm_dev_path_or_exit(), status;
	pid_t child;

	TEST_ASSERT(ioctl(fd, KVM_POPULATE_MEMORY, &range) && errno == EINVAL,
		    "Populated /dev/kvm");
	TEST_ASSERT(ioctl(vcpu->fd, KVM_POPULATE_MEMORY, &range) && errno == EINVAL,
		    "Populated a vCPU");
	close(fd);

	child = fork();
	TEST_ASSERT(child >= 0, "fork() failed");
	if (!child)
		_exit(populate(vm->fd, &range) != EIO);
	TEST_ASSERT(waitpid(child, &status, 0) == child && !status,
		    "Another process populated a VM");
}

static void *changer(void *arg)
{
	struct kvm_random_state state = new_kvm_random_state(kvm_random_seed + 1);

	while (!READ_ONCE(stop)) {
		if (below(&state, 2))
			change_memory(&state);
		else
			change_slot(&state);
	}

	return NULL;
}

static void do_nothing(int sig)
{
}

static void new_vm(bool has_vcpu)
{
	if (vm)
		kvm_vm_free(vm);

	memset(slots, 0, sizeof(slots));
	vm = has_vcpu ? gtdp_vm_create(kvm_check_cap(KVM_CAP_GLOBAL_TDP), 1, &vcpu) :
			vm_create_barebones();
	reach_gfn = gtdp_reach(vm) >> PAGE_SHIFT;
	end_gfn = BIT_ULL(vm->pa_bits) >> PAGE_SHIFT;
}

int main(int argc, char *argv[])
{
	struct itimerval timer = { .it_interval.tv_usec = 3000, .it_value.tv_usec = 3000 };
	struct sigaction action = { .sa_handler = do_nothing, .sa_flags = SA_RESTART };
	u64 i, eagain, nr = 4000;
	pthread_t thread;
	int opt;

	while ((opt = getopt(argc, argv, "hn:s:")) != -1) {
		switch (opt) {
		case 'n':
			nr = atoi_positive("Number of calls", optarg);
			break;
		case 's':
			kvm_random_seed = strtoul(optarg, NULL, 0);
			break;
		default:
			printf("usage: %s [-n calls] [-s seed]\n", argv[0]);
			exit(opt == 'h' ? 0 : 1);
		}
	}

	gtdp_require(GTDP_ALL);
	nr_as = kvm_check_cap(KVM_CAP_MULTI_ADDRESS_SPACE) > 1 ? NR_AS : 1;
	arena = mmap(ARENA_ADDRESS, ARENA_PAGES * PAGE_SIZE, PROT_READ | PROT_WRITE,
		     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	TEST_ASSERT(arena == ARENA_ADDRESS, "mmap() failed");
	pagemap = open_path_or_exit("/proc/self/pagemap", O_RDONLY);

	ksft_print_header();
	ksft_set_plan(4);
	ksft_print_msg("seed %#x, %lu calls each\n", kvm_random_seed, nr);
	rng = new_kvm_random_state(kvm_random_seed);

	for (i = 0; i < nr; i++) {
		if (!(i % 64))
			new_vm(false);
		check_cap(&rng, false);
	}
	new_vm(true);
	for (i = 0; i < nr / 16; i++)
		check_cap(&rng, true);
	ksft_test_result_pass("capability\n");

	check_other_fds();
	ksft_test_result_pass("file descriptors\n");

	eagain = results[EAGAIN];
	for (i = 0; i < nr; i++) {
		if (!(i % 16))
			change_memory(&rng);
		if (!(i % 8))
			change_slot(&rng);
		if (below(&rng, 4))
			check_any(&rng, true);
		else
			check_pointer(&rng);
	}
	TEST_ASSERT(results[EAGAIN] - eagain <= nr / 50, "EAGAIN is not the exception");
	TEST_ASSERT(predicted, "Nothing was mapped");
	ksft_print_msg("%lu MiB were mapped as predicted\n", predicted / SZ_1M);
	ksft_test_result_pass("calls, one at a time\n");

	sigaction(SIGALRM, &action, NULL);
	pthread_create(&thread, NULL, changer, NULL);
	setitimer(ITIMER_REAL, &timer, NULL);
	for (i = 0; i < nr; i++)
		check_any(&rng, false);
	timer.it_value.tv_usec = 0;
	setitimer(ITIMER_REAL, &timer, NULL);
	WRITE_ONCE(stop, true);
	pthread_join(thread, NULL);
	ksft_test_result_pass("calls while memslots and memory change\n");

	for (i = 0; i < ARRAY_SIZE(results); i++) {
		if (results[i])
			ksft_print_msg("%8lu  %s\n", results[i], i ? strerror(i) : "done");
	}

	kvm_vm_free(vm);
	ksft_finished();
}
