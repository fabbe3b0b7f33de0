// SPDX-License-Identifier: GPL-2.0
/*
 * Proves that KVM_HARVEST_ACCESSED tells which pages the guest has accessed since the
 * last time: all of these that are still mapped, and no others; and that
 * KVM_POPULATE_BITMAP maps the pages of a bitmap, and no others.
 */
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <linux/mman.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>

#include "test_util.h"
#include "kvm_util.h"
#include "processor.h"
#include "global_tdp.h"

#define MEM_SIZE	SZ_8M
#define NR_PAGES	(MEM_SIZE / PAGE_SIZE)
#define NR_WORDS	(NR_PAGES / 64)

#define HOST_TAG	1

#define FEATURES	(KVM_GLOBAL_TDP_POPULATE | KVM_GLOBAL_TDP_HARVEST)

/* Pages that the host's own fault-around maps at a time, by default. */
#define NR_AROUND	16

/* How often all that may happen to memory happens at once. */
#define NR_ROUNDS	40

/* How often a guest that runs is harvested, twice each time. */
#define NR_HARVESTS	200

struct env {
	struct kvm_vm *vm;
	struct kvm_vcpu *vcpu;
	struct gtdp_mem mem;
	struct gtdp_job job;
	bool stop;
};

static void create_vm(struct env *env, u64 features)
{
	env->vm = gtdp_vm_create(features, 1, &env->vcpu);
	gtdp_prefault_code(env->vcpu);
}

static bool create_at(struct env *env, u64 features, enum gtdp_backing backing, size_t offset)
{
	*env = (struct env) {};
	if (!gtdp_mem_alloc(&env->mem, backing, MEM_SIZE, offset))
		return false;

	gtdp_stamp(env->mem.hva, NR_PAGES, HOST_TAG);
	if (backing == GTDP_THP && !gtdp_is_huge(env->mem.hva, MEM_SIZE)) {
		gtdp_mem_free(&env->mem);
		return false;
	}

	create_vm(env, features);
	gtdp_add_slot(env->vm, GTDP_SLOT, 0, GTDP_GPA, &env->mem);
	return true;
}

static bool create(struct env *env, u64 features, enum gtdp_backing backing)
{
	return create_at(env, features, backing, 0);
}

static bool create_populated(struct env *env, enum gtdp_backing backing)
{
	if (!create(env, FEATURES, backing))
		return false;

	gtdp_populate_full(env->vm, GTDP_GPA, MEM_SIZE);
	return true;
}

static void destroy(struct env *env)
{
	kvm_vm_free(env->vm);
	gtdp_mem_free(&env->mem);
}

static bool bit(const u64 *bitmap, u64 page)
{
	return bitmap[page / 64] >> page % 64 & 1;
}

static u64 nr_bits(const u64 *bitmap, u64 nr)
{
	u64 i, sum = 0;

	for (i = 0; i < nr; i++)
		sum += bit(bitmap, i);

	return sum;
}

/* The guest reads, or writes, the pages first, first + step, ... */
static u64 run_from(struct env *env, enum gtdp_op op, u64 first, u64 step)
{
	return gtdp_run_job(env->vcpu, (struct gtdp_job) {
		.op = op,
		.gpa = GTDP_GPA + first * PAGE_SIZE,
		.nr = NR_PAGES - first,
		.step = step,
		.tag = HOST_TAG + first,
	});
}

static void harvest(struct env *env, u64 *bitmap)
{
	u64 accessed = gtdp_harvest(env->vm, 0, GTDP_GPA, MEM_SIZE, bitmap);

	TEST_ASSERT_EQ(accessed, nr_bits(bitmap, NR_PAGES) * PAGE_SIZE);
}

/* The pages first, first + step, ... and no others. */
static void check_bits(const u64 *bitmap, u64 first, u64 step)
{
	u64 i;

	for (i = 0; i < NR_PAGES; i++)
		TEST_ASSERT(bit(bitmap, i) == (i >= first && (i - first) % step == 0),
			    "Page %lu: %d", i, bit(bitmap, i));
}

static void check_harvest(struct env *env, u64 first, u64 step)
{
	u64 bitmap[NR_WORDS];

	harvest(env, bitmap);
	check_bits(bitmap, first, step);
}

static void check_nothing(struct env *env)
{
	check_harvest(env, NR_PAGES, 1);
}

static bool test_populated(enum gtdp_backing backing)
{
	struct env env;
	int i;

	if (!create_populated(&env, backing))
		return false;

	check_nothing(&env);

	/* The second time, the CPU may have the pages in its TLB. */
	for (i = 0; i < 3; i++) {
		TEST_ASSERT_EQ(run_from(&env, GTDP_CHECK, 0, 3), 0);
		check_harvest(&env, 0, 3);
		check_nothing(&env);
	}

	run_from(&env, GTDP_WRITE, 1, 5);
	check_harvest(&env, 1, 5);

	destroy(&env);
	return true;
}

static bool test_anon(void)
{
	return test_populated(GTDP_ANON);
}

static bool test_memfd(void)
{
	return test_populated(GTDP_MEMFD);
}

/* What is populated around a fault was not accessed. */
static bool test_faults(u64 features)
{
	struct env env;

	if (!create(&env, features | KVM_GLOBAL_TDP_HARVEST, GTDP_MEMFD))
		return false;

	TEST_ASSERT(run_from(&env, GTDP_CHECK, 2, 7) > 0, "There were no faults");
	check_harvest(&env, 2, 7);
	run_from(&env, GTDP_WRITE, 3, 11);
	check_harvest(&env, 3, 11);
	check_nothing(&env);

	destroy(&env);
	return true;
}

static bool test_harvest_alone(void)
{
	return test_faults(0);
}

static bool test_fault_around(void)
{
	return test_faults(KVM_GLOBAL_TDP_FAULT_AROUND);
}

/*
 * A huge page is accessed as a whole.  A part of it may be harvested at a time: all of it is
 * told until its last page has been.
 */
static bool test_huge(enum gtdp_backing backing)
{
	const u64 part = SZ_2M / 4, bits = part / PAGE_SIZE;
	u64 bitmap[NR_WORDS];
	struct env env;

	if (!create_populated(&env, backing))
		return false;

	check_nothing(&env);
	gtdp_run(env.vcpu, GTDP_CHECK, GTDP_GPA + SZ_2M + 7 * PAGE_SIZE, 1,
		 HOST_TAG + GTDP_REGION_PAGES + 7);
	TEST_ASSERT_EQ(gtdp_harvest(env.vm, 0, GTDP_GPA + SZ_2M + part, part, bitmap), part);
	TEST_ASSERT_EQ(nr_bits(bitmap, bits), bits);
	TEST_ASSERT_EQ(gtdp_harvest(env.vm, 0, GTDP_GPA, 2 * SZ_2M - part, bitmap), SZ_2M - part);
	TEST_ASSERT_EQ(gtdp_harvest(env.vm, 0, GTDP_GPA + 2 * SZ_2M - part, part, bitmap), part);
	check_nothing(&env);

	destroy(&env);
	return true;
}

static bool test_thp(void)
{
	return test_huge(GTDP_THP);
}

static bool test_hugetlb(void)
{
	return test_huge(GTDP_HUGETLB);
}

/* What is zapped is not told, but for what is accessed after that. */
static bool test_zapped(void)
{
	struct env env;

	if (!create_populated(&env, GTDP_ANON))
		return false;

	run_from(&env, GTDP_CHECK, 0, 3);
	TEST_ASSERT(!mprotect(env.mem.hva, MEM_SIZE, PROT_NONE), "mprotect()");
	TEST_ASSERT(!mprotect(env.mem.hva, MEM_SIZE, PROT_READ | PROT_WRITE), "mprotect()");
	gtdp_populate_full(env.vm, GTDP_GPA, MEM_SIZE);
	run_from(&env, GTDP_CHECK, 1, 4);
	check_harvest(&env, 1, 4);

	run_from(&env, GTDP_CHECK, 0, 3);
	TEST_ASSERT(!madvise(env.mem.hva, MEM_SIZE, MADV_DONTNEED), "madvise()");
	run_from(&env, GTDP_READ, 2, 5);
	check_harvest(&env, 2, 5);
	check_nothing(&env);

	destroy(&env);
	return true;
}

/* A huge page that is split was accessed as a whole; to make one is to zap small ones. */
static bool test_collapsed(void)
{
	u64 bitmap[NR_WORDS];
	struct env env;

	if (!gtdp_has_thp() || !create_populated(&env, GTDP_ANON))
		return false;

	gtdp_run(env.vcpu, GTDP_CHECK, GTDP_GPA + 5 * PAGE_SIZE, 1, HOST_TAG + 5);
	TEST_ASSERT(!madvise(env.mem.hva, MEM_SIZE, MADV_HUGEPAGE) &&
		    !madvise(env.mem.hva, MEM_SIZE, MADV_COLLAPSE), "MADV_COLLAPSE");
	gtdp_populate_full(env.vm, GTDP_GPA, MEM_SIZE);
	check_nothing(&env);

	gtdp_run(env.vcpu, GTDP_CHECK, GTDP_GPA + 5 * PAGE_SIZE, 1, HOST_TAG + 5);
	gtdp_add_slot(env.vm, GTDP_SLOT, KVM_MEM_LOG_DIRTY_PAGES, GTDP_GPA, &env.mem);
	harvest(&env, bitmap);
	TEST_ASSERT_EQ(nr_bits(bitmap, GTDP_REGION_PAGES), GTDP_REGION_PAGES);
	TEST_ASSERT_EQ(nr_bits(bitmap, NR_PAGES), GTDP_REGION_PAGES);

	/* A huge page in the place of small ones, as logging ends, is as its first page was. */
	gtdp_populate_full(env.vm, GTDP_GPA, MEM_SIZE);
	harvest(&env, bitmap);
	gtdp_run(env.vcpu, GTDP_CHECK, GTDP_GPA, 1, HOST_TAG);
	gtdp_add_slot(env.vm, GTDP_SLOT, 0, GTDP_GPA, &env.mem);
	TEST_ASSERT(gtdp_vm_stat(env.vm, "pages_2m"), "No page is huge again");
	harvest(&env, bitmap);
	TEST_ASSERT_EQ(nr_bits(bitmap, GTDP_REGION_PAGES), GTDP_REGION_PAGES);
	TEST_ASSERT_EQ(nr_bits(bitmap, NR_PAGES), GTDP_REGION_PAGES);

	destroy(&env);
	return true;
}

/* Memslots that begin and end anywhere, what is between them, and the ends of the range. */
static bool test_slots(void)
{
	const u64 first = 5, nr = 1000, hole = 77, nr2 = 300;
	u64 bitmap[NR_WORDS], gpa, gpa2;
	struct gtdp_mem part;
	struct env env = {};
	u64 i;

	gtdp_mem_alloc(&env.mem, GTDP_MEMFD, MEM_SIZE, 0);
	gtdp_stamp(env.mem.hva, NR_PAGES, HOST_TAG);
	create_vm(&env, FEATURES);

	part = env.mem;
	part.size = nr * PAGE_SIZE;
	gpa = GTDP_GPA + first * PAGE_SIZE;
	gtdp_add_slot(env.vm, GTDP_SLOT, 0, gpa, &part);
	part.hva += part.size;
	part.size = nr2 * PAGE_SIZE;
	gpa2 = gpa + (nr + hole) * PAGE_SIZE;
	gtdp_add_slot(env.vm, GTDP_SLOT + 1, 0, gpa2, &part);

	gtdp_run(env.vcpu, GTDP_CHECK, gpa, nr, HOST_TAG);
	gtdp_run(env.vcpu, GTDP_CHECK, gpa2, nr2, HOST_TAG + nr);

	/* Bits behind the end of the range are zero, and not taken. */
	memset(bitmap, 0xff, sizeof(bitmap));
	TEST_ASSERT_EQ(gtdp_harvest(env.vm, 0, GTDP_GPA, 10 * PAGE_SIZE, bitmap),
		       (10 - first) * PAGE_SIZE);
	TEST_ASSERT_EQ(bitmap[0], GENMASK_ULL(9, first));
	TEST_ASSERT_EQ(bitmap[1], ~0ULL);

	harvest(&env, bitmap);
	for (i = 0; i < NR_PAGES; i++)
		TEST_ASSERT_EQ(bit(bitmap, i), (i >= 10 && i < first + nr) ||
			       (i >= first + nr + hole && i < first + nr + hole + nr2));
	check_nothing(&env);

	/* Where there is no memory, there is nothing. */
	TEST_ASSERT_EQ(gtdp_harvest(env.vm, 0, 1ULL << 50, MEM_SIZE, bitmap), 0);
	TEST_ASSERT_EQ(nr_bits(bitmap, NR_PAGES), 0);

	destroy(&env);
	return true;
}

static int call(struct env *env, struct kvm_harvest_accessed *range)
{
	return ioctl(env->vm->fd, KVM_HARVEST_ACCESSED, range) ? errno : 0;
}

/* More than is told at a time; the bitmap can be written in parts only, at first. */
static bool test_large(void)
{
	const u64 size = 5 * SZ_8M, nr = size / PAGE_SIZE, told = SZ_16M;
	struct kvm_harvest_accessed range = { .gpa = GTDP_GPA, .size = size };
	u64 *bitmap, i, words = nr / 64, first = told / PAGE_SIZE / 64;
	struct env env = {};
	void *map;

	gtdp_mem_alloc(&env.mem, GTDP_MEMFD, size, 0);
	gtdp_stamp(env.mem.hva, nr, HOST_TAG);
	create_vm(&env, FEATURES);
	gtdp_add_slot(env.vm, GTDP_SLOT, 0, GTDP_GPA, &env.mem);
	gtdp_populate_full(env.vm, GTDP_GPA, size);
	gtdp_run_job(env.vcpu, (struct gtdp_job) {
		.op = GTDP_CHECK, .gpa = GTDP_GPA, .nr = nr, .step = 3, .tag = HOST_TAG,
	});

	map = mmap(NULL, 2 * PAGE_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
		   -1, 0);
	TEST_ASSERT(map != MAP_FAILED, "mmap()");
	bitmap = map + PAGE_SIZE - first * 8 - 8;
	TEST_ASSERT(!mprotect(map + PAGE_SIZE, PAGE_SIZE, PROT_READ), "mprotect()");
	range.bitmap = (uintptr_t)bitmap;
	TEST_ASSERT_EQ(call(&env, &range), EFAULT);
	TEST_ASSERT_EQ(range.gpa, GTDP_GPA + told);
	TEST_ASSERT_EQ(range.size, size - told);
	TEST_ASSERT_EQ(range.bitmap, (uintptr_t)(bitmap + first));

	/* As it was returned, it goes on. */
	TEST_ASSERT(!mprotect(map + PAGE_SIZE, PAGE_SIZE, PROT_READ | PROT_WRITE), "mprotect()");
	TEST_ASSERT_EQ(call(&env, &range), 0);
	TEST_ASSERT_EQ(range.bitmap, (uintptr_t)(bitmap + words));
	for (i = 0; i < nr; i++)
		TEST_ASSERT_EQ(bit(bitmap, i), !(i % 3));

	munmap(map, 2 * PAGE_SIZE);
	destroy(&env);
	return true;
}

static void do_nothing(int sig)
{
}

/*
 * A call that is interrupted time after time gets on.  All memslots have the same
 * pages, of which the guest reads one by either of two: told are those that it used.
 */
static bool test_interrupted(void)
{
	const u64 nr_slots = 100, size = nr_slots * MEM_SIZE;
	struct itimerval timer = { .it_interval.tv_usec = 200, .it_value.tv_usec = 200 };
	const struct sigaction action = { .sa_handler = do_nothing };
	u64 *bitmap = calloc(size / PAGE_SIZE / 64, sizeof(*bitmap)), i, tries = 0;
	struct kvm_harvest_accessed range;
	struct env env = {};
	bool got_on = false;

	TEST_ASSERT(bitmap, "calloc()");
	gtdp_mem_alloc(&env.mem, GTDP_MEMFD, MEM_SIZE, 0);
	gtdp_stamp(env.mem.hva, NR_PAGES, HOST_TAG);
	create_vm(&env, FEATURES);
	for (i = 0; i < nr_slots; i++)
		gtdp_add_slot(env.vm, GTDP_SLOT + i, 0, GTDP_GPA + i * MEM_SIZE, &env.mem);
	gtdp_populate_full(env.vm, GTDP_GPA, size);
	gtdp_run(env.vcpu, GTDP_CHECK, GTDP_GPA, 1, HOST_TAG);
	gtdp_run(env.vcpu, GTDP_CHECK, GTDP_GPA + 7 * MEM_SIZE + PAGE_SIZE, 1, HOST_TAG + 1);

	sigaction(SIGALRM, &action, NULL);
	setitimer(ITIMER_REAL, &timer, NULL);

	/* Signals may all have come before a call, or after it. */
	while (!got_on && tries++ < 20) {
		range = (struct kvm_harvest_accessed) {
			.gpa = GTDP_GPA, .size = size, .bitmap = (uintptr_t)bitmap,
		};
		for (i = 0; call(&env, &range); i++) {
			TEST_ASSERT_EQ(errno, EINTR);
			TEST_ASSERT(i < 10000, "A call gets nowhere");
			got_on |= range.size < size;
		}
		TEST_ASSERT_EQ(range.bitmap, (uintptr_t)(bitmap + size / PAGE_SIZE / 64));

		/* What has been told is not told again. */
		for (i = 0; i < size / PAGE_SIZE; i++)
			TEST_ASSERT_EQ(bit(bitmap, i),
				       tries == 1 && (i == 0 || i == 7 * NR_PAGES + 1));
	}

	timer = (struct itimerval) {};
	setitimer(ITIMER_REAL, &timer, NULL);
	TEST_ASSERT(got_on, "A call that was interrupted had done nothing");

	free(bitmap);
	destroy(&env);
	return true;
}

/* A range that no bitmap is large enough for: the signal ends it, not the end of the bitmap. */
static bool test_endless(void)
{
	const u64 piece = SZ_2M, bytes = 128 * piece, size = BIT_ULL(63);
	struct itimerval timer = { .it_interval.tv_usec = 10000, .it_value.tv_usec = 10000 };
	const struct sigaction action = { .sa_handler = do_nothing };
	struct kvm_harvest_accessed range = { .gpa = BIT_ULL(62), .size = size };
	struct env env;
	u64 done, i;
	void *map;
	int fd;

	if (!create_populated(&env, GTDP_MEMFD))
		return false;

	/* The same memory, again and again. */
	fd = memfd_create("bitmap", 0);
	TEST_ASSERT(fd >= 0 && !ftruncate(fd, piece), "memfd_create()");
	map = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	TEST_ASSERT(map != MAP_FAILED, "mmap()");
	for (i = 0; i < bytes; i += piece)
		TEST_ASSERT(mmap(map + i, piece, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
				 fd, 0) == map + i, "mmap()");
	range.bitmap = (uintptr_t)map;

	sigaction(SIGALRM, &action, NULL);
	setitimer(ITIMER_REAL, &timer, NULL);
	TEST_ASSERT(call(&env, &range) == EINTR, "No signal ends a harvest without an end");
	timer = (struct itimerval) {};
	setitimer(ITIMER_REAL, &timer, NULL);

	done = range.gpa - BIT_ULL(62);
	ksft_print_msg("Harvested %lu MiB\n", (unsigned long)(done / SZ_1M));
	TEST_ASSERT(done && done < bytes * 8 * PAGE_SIZE, "%lu bytes", (unsigned long)done);
	TEST_ASSERT_EQ(range.size, size - done);
	TEST_ASSERT_EQ(range.bitmap - (uintptr_t)map, done / PAGE_SIZE / 8);
	TEST_ASSERT_EQ(range.accessed, 0);

	munmap(map, bytes);
	close(fd);
	destroy(&env);
	return true;
}

/* System management mode has page tables of its own. */
static bool test_smm(void)
{
	u64 bitmap[NR_WORDS];
	struct env env;

	if (!kvm_has_cap(KVM_CAP_MULTI_ADDRESS_SPACE) ||
	    !(kvm_check_cap(KVM_CAP_MULTI_ADDRESS_SPACE) > 1) ||
	    !create_populated(&env, GTDP_MEMFD))
		return false;

	gtdp_add_slot(env.vm, BIT(16) | GTDP_SLOT, 0, GTDP_GPA, &env.mem);
	run_from(&env, GTDP_CHECK, 0, 3);
	TEST_ASSERT_EQ(gtdp_harvest(env.vm, 1, GTDP_GPA, MEM_SIZE, bitmap), 0);
	check_harvest(&env, 0, 3);

	destroy(&env);
	return true;
}

/* Whoever is refused has taken nothing, and finds the arguments as they were. */
static bool test_refused(void)
{
	u64 bitmap[NR_WORDS + 1] = {};
	const struct kvm_harvest_accessed good = {
		.gpa = GTDP_GPA,
		.size = MEM_SIZE,
		.bitmap = (uintptr_t)bitmap,
	};
	struct kvm_harvest_accessed range, before;
	struct env env;
	void *none;

#define REFUSED(field, value) do {						\
	range = good;								\
	range.field = value;							\
	before = range;								\
	TEST_ASSERT_EQ(call(&env, &range), EINVAL);				\
	TEST_ASSERT(!memcmp(&range, &before, sizeof(range)), "Refused, but changed"); \
} while (0)

	/* The module's parameter does not turn it on. */
	if (!create(&env, GTDP_DEFAULT, GTDP_MEMFD))
		return false;
	range = good;
	TEST_ASSERT_EQ(call(&env, &range), EOPNOTSUPP);
	destroy(&env);

	create_populated(&env, GTDP_MEMFD);
	run_from(&env, GTDP_CHECK, 0, 3);
	REFUSED(gpa, GTDP_GPA + PAGE_SIZE);
	REFUSED(gpa, GTDP_GPA + 1);
	REFUSED(size, MEM_SIZE + 1);
	REFUSED(size, -PAGE_SIZE);
	REFUSED(flags, 1);
	REFUSED(flags, BIT(31));
	REFUSED(as_id, 2);
	REFUSED(bitmap, (uintptr_t)bitmap + 4);
	REFUSED(reserved[0], 1);
	REFUSED(reserved[1], 1);
	REFUSED(reserved[2], BIT_ULL(63));

	/* A bitmap, or a result, that can't be written. */
	none = mmap(NULL, 2 * PAGE_SIZE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	range = good;
	range.bitmap = (uintptr_t)none;
	TEST_ASSERT_EQ(call(&env, &range), EFAULT);
	TEST_ASSERT_EQ(range.gpa, GTDP_GPA);
	TEST_ASSERT_EQ(range.accessed, 0);
	munmap(none, 2 * PAGE_SIZE);

	TEST_ASSERT_EQ(call(&env, (void *)PAGE_SIZE), EFAULT);

	none = mmap(NULL, PAGE_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	memcpy(none, &good, sizeof(good));
	TEST_ASSERT(!mprotect(none, PAGE_SIZE, PROT_READ), "mprotect()");
	TEST_ASSERT_EQ(call(&env, none), EFAULT);
	munmap(none, PAGE_SIZE);

	range = good;
	range.size = 0;
	range.accessed = 77;
	TEST_ASSERT_EQ(call(&env, &range), 0);
	TEST_ASSERT_EQ(range.accessed, 0);

	check_harvest(&env, 0, 3);
	destroy(&env);
	return true;
#undef REFUSED
}

static void *zapper(void *arg)
{
	struct env *env = arg;
	struct kvm_random_state rng = new_kvm_random_state(1);

	while (!READ_ONCE(env->stop)) {
		u64 first = kvm_random_u32(&rng) % NR_PAGES;
		u64 nr = min_t(u64, kvm_random_u32(&rng) % 600, NR_PAGES - first);
		void *hva = env->mem.hva + first * PAGE_SIZE;

		/* Neither of them takes away what is in there. */
		TEST_ASSERT(!mprotect(hva, nr * PAGE_SIZE, PROT_READ), "mprotect()");
		TEST_ASSERT(!madvise(hva, nr * PAGE_SIZE, MADV_DONTNEED), "madvise()");
		TEST_ASSERT(!mprotect(hva, nr * PAGE_SIZE, PROT_READ | PROT_WRITE), "mprotect()");
	}

	return NULL;
}

static void *populator(void *arg)
{
	struct env *env = arg;

	while (!READ_ONCE(env->stop))
		gtdp_populate(env->vm, GTDP_GPA, MEM_SIZE);

	return NULL;
}

static void *runner(void *arg)
{
	struct env *env = arg;

	gtdp_run_job(env->vcpu, env->job);
	return NULL;
}

/* The guest reads a page, and counts, until it is told to stop. */
static void make_reader(struct env *env, u64 page, u64 counter, u64 flag)
{
	u8 *code = env->mem.hva + GTDP_CODE_OFFSET;
	const u64 gvas[] = { page, counter, flag };
	int i;

	/* sti, as Bochs lets interrupts end no guest that has them disabled from the start */
	*code++ = 0xfb;
	/* mov $page, %rax; mov $counter, %rcx; mov $flag, %rdx */
	for (i = 0; i < ARRAY_SIZE(gvas); i++) {
		*code++ = 0x48;
		*code++ = 0xb8 + i;
		*(u64 *)code = GTDP_GPA + gvas[i] * PAGE_SIZE;
		code += 8;
	}

	/* 1: mov (%rax), %rsi; incq (%rcx); cmpb $0, (%rdx); je 1b; ret */
	memcpy(code, "\x48\x8b\x30\x48\xff\x01\x80\x3a\x00\x74\xf5\xc3", 12);
}

/*
 * A guest that never stops to read a page, which it has in its TLB, has accessed it
 * between any two harvests.
 */
static bool test_running(void)
{
	/* The rest is not in the word that is harvested: TLBs are flushed for the page. */
	const u64 page = 100, counter = 1100, flag = 1200, first = 64;
	u64 word, *count, before;
	pthread_t vcpu;
	struct env env;
	int i;

	if (!create_populated(&env, GTDP_MEMFD))
		return false;

	make_reader(&env, page, counter, flag);
	count = env.mem.hva + counter * PAGE_SIZE;
	*count = 0;
	*(u64 *)(env.mem.hva + flag * PAGE_SIZE) = 0;
	env.job = (struct gtdp_job) { .op = GTDP_EXEC, .gpa = GTDP_GPA, .nr = 1, .step = 1 };
	pthread_create(&vcpu, NULL, runner, &env);

	for (i = 0; i < NR_HARVESTS; i++) {
		gtdp_harvest(env.vm, 0, GTDP_GPA + first * PAGE_SIZE, SZ_256K, &word);
		before = READ_ONCE(*count);
		/* It may have read the page before, and be about to count. */
		__gtdp_wait_until(READ_ONCE(*count) > before + 1, 0);
		gtdp_harvest(env.vm, 0, GTDP_GPA + first * PAGE_SIZE, SZ_256K, &word);
		TEST_ASSERT(bit(&word, page - first), "What was accessed was not harvested");
	}

	*(u64 *)(env.mem.hva + flag * PAGE_SIZE) = 1;
	pthread_join(vcpu, NULL);
	destroy(&env);
	return true;
}

/*
 * While a guest reads, memory is taken away, populated again, and harvested: nothing is
 * told but what the guest has read in the meantime.
 */
static bool test_storm(void)
{
	pthread_t threads[2], vcpu;
	struct env env;
	u64 page;
	int i;

	if (!create_populated(&env, GTDP_MEMFD))
		return false;

	check_nothing(&env);
	pthread_create(&threads[0], NULL, zapper, &env);
	pthread_create(&threads[1], NULL, populator, &env);

	for (i = 0; i < NR_ROUNDS; i++) {
		u64 sum[NR_WORDS] = {}, bitmap[NR_WORDS], first = i % 5, step = 2 + i % 3;
		int word;
		bool done;

		env.job = (struct gtdp_job) {
			.op = GTDP_CHECK,
			.gpa = GTDP_GPA + first * PAGE_SIZE,
			.nr = NR_PAGES - first,
			.step = step,
			.tag = HOST_TAG + first,
		};
		pthread_create(&vcpu, NULL, runner, &env);

		/* Once more when the guest is done; in every other round, only then. */
		do {
			done = !pthread_tryjoin_np(vcpu, NULL);
			if (!done && i % 2) {
				usleep(100);
				continue;
			}
			harvest(&env, bitmap);
			for (word = 0; word < NR_WORDS; word++)
				sum[word] |= bitmap[word];
		} while (!done);

		for (page = 0; page < NR_PAGES; page++)
			TEST_ASSERT(!bit(sum, page) ||
				    (page >= first && (page - first) % step == 0),
				    "Page %lu was not read", (unsigned long)page);
	}

	WRITE_ONCE(env.stop, true);
	pthread_join(threads[0], NULL);
	pthread_join(threads[1], NULL);
	run_from(&env, GTDP_CHECK, 0, 3);
	check_harvest(&env, 0, 3);
	destroy(&env);
	return true;
}

/*
 * KVM_POPULATE_BITMAP
 */
static struct kvm_populate_memory populate_bitmap(struct env *env, u64 size,
						  const u64 *bitmap, u32 flags)
{
	struct kvm_populate_memory sum, range = {
		.gpa = GTDP_GPA,
		.size = size,
		.flags = KVM_POPULATE_BITMAP | flags,
		.bitmap = (uintptr_t)bitmap,
	};

	TEST_ASSERT_EQ(gtdp_populate_on(env->vm, &range, &sum), 0);
	TEST_ASSERT_EQ(range.size, 0);
	TEST_ASSERT_EQ(range.gpa, GTDP_GPA + size);
	TEST_ASSERT_EQ(range.bitmap, (uintptr_t)(bitmap + DIV_ROUND_UP(size / PAGE_SIZE, 64)));
	return sum;
}

/* Runs of all lengths, within and over words and regions. */
static u64 make_bitmap(u64 *bitmap)
{
	struct kvm_random_state rng = new_kvm_random_state(2);
	u64 i = 0, nr;
	bool set = false;

	memset(bitmap, 0, NR_PAGES / 8);
	while (i < NR_PAGES) {
		nr = kvm_random_u32(&rng) % (kvm_random_u32(&rng) % 8 ? 20 : 700);
		for ( ; nr && i < NR_PAGES; nr--, i++)
			bitmap[i / 64] |= (u64)set << i % 64;
		set = !set;
	}

	return nr_bits(bitmap, NR_PAGES);
}

/* A guest that reads the pages whose bits are @value; returns the number of faults. */
static u64 run_bits(struct env *env, const u64 *bitmap, bool value)
{
	u64 i, faults = 0;

	for (i = 0; i < NR_PAGES; i++) {
		if (bit(bitmap, i) == value)
			faults += gtdp_run(env->vcpu, GTDP_CHECK, GTDP_GPA + i * PAGE_SIZE, 1,
					   HOST_TAG + i);
	}

	return faults;
}

static bool test_bitmap(enum gtdp_backing backing, size_t offset)
{
	struct kvm_populate_memory sum;
	u64 bitmap[NR_WORDS], some[NR_WORDS], nr, nr_some, before;
	struct env env;
	int i;

	if (!create_at(&env, KVM_GLOBAL_TDP_POPULATE, backing, offset))
		return false;

	nr = make_bitmap(bitmap);
	for (i = 0; i < NR_WORDS; i++)
		some[i] = bitmap[i] & 0x0ff0f0f00cc05aaf;
	nr_some = nr_bits(some, NR_PAGES);

	/* Into new page tables, and then into holes of these. */
	before = gtdp_nr_mapped(env.vm);
	sum = populate_bitmap(&env, MEM_SIZE, some, 0);
	TEST_ASSERT_EQ(sum.mapped, nr_some * PAGE_SIZE);
	TEST_ASSERT_EQ(gtdp_nr_mapped(env.vm) - before, nr_some);

	sum = populate_bitmap(&env, MEM_SIZE, bitmap, 0);
	TEST_ASSERT_EQ(sum.mapped, nr * PAGE_SIZE);
	TEST_ASSERT_EQ(sum.absent, 0);
	TEST_ASSERT_EQ(gtdp_nr_mapped(env.vm) - before, nr);
	TEST_ASSERT_EQ(run_bits(&env, bitmap, true), 0);
	TEST_ASSERT_EQ(run_bits(&env, bitmap, false), NR_PAGES - nr);

	/* That is all there is, now. */
	sum = populate_bitmap(&env, MEM_SIZE, bitmap, 0);
	TEST_ASSERT_EQ(sum.mapped, nr * PAGE_SIZE);

	destroy(&env);
	return true;
}

static bool test_bitmap_anon(void)
{
	return test_bitmap(GTDP_ANON, 0);
}

/* Regions are in two of the host's page tables each. */
static bool test_bitmap_misaligned(void)
{
	return test_bitmap(GTDP_ANON, 3 * PAGE_SIZE);
}

static bool test_bitmap_memfd(void)
{
	return test_bitmap(GTDP_MEMFD, 0);
}

/* What can't be mapped, after the last page that is wanted, keeps none from being mapped. */
static bool test_bitmap_holes(void)
{
	u64 bitmap[NR_WORDS] = { 0xff };
	struct env env;

	if (!create(&env, KVM_GLOBAL_TDP_POPULATE, GTDP_MEMFD))
		return false;

	TEST_ASSERT(!munmap(env.mem.hva + 300 * PAGE_SIZE, PAGE_SIZE), "munmap()");
	TEST_ASSERT_EQ(populate_bitmap(&env, MEM_SIZE, bitmap, 0).mapped, 8 * PAGE_SIZE);

	/* Before it, all of the region is left to faults. */
	bitmap[305 / 64] |= BIT_ULL(305 % 64);
	TEST_ASSERT_EQ(populate_bitmap(&env, MEM_SIZE, bitmap, 0).absent, 9 * PAGE_SIZE);

	destroy(&env);
	return true;
}

/* One page of a huge one has all of it mapped, and counts as one. */
static bool test_bitmap_huge(void)
{
	u64 bitmap[NR_WORDS] = { [GTDP_REGION_PAGES / 64] = BIT_ULL(17) }, before;
	struct kvm_populate_memory sum;
	struct env env;

	if (!create(&env, KVM_GLOBAL_TDP_POPULATE, GTDP_THP))
		return false;

	before = gtdp_nr_mapped(env.vm);
	sum = populate_bitmap(&env, MEM_SIZE, bitmap, 0);
	TEST_ASSERT_EQ(sum.mapped, PAGE_SIZE);
	TEST_ASSERT_EQ(gtdp_nr_mapped(env.vm) - before, GTDP_REGION_PAGES);

	destroy(&env);
	return true;
}

/*
 * The host maps no more of its page cache than is asked for, but around the first page of
 * each of its page tables, which is what its own fault-around does.
 */
static bool test_bitmap_page_cache(void)
{
	u64 bitmap[NR_WORDS], pfns[NR_PAGES], nr, touched;
	struct kvm_populate_memory sum;
	struct env env;

	if (!create(&env, KVM_GLOBAL_TDP_POPULATE, GTDP_MEMFD))
		return false;

	nr = make_bitmap(bitmap);
	TEST_ASSERT(!madvise(env.mem.hva, MEM_SIZE, MADV_DONTNEED), "madvise()");
	sum = populate_bitmap(&env, MEM_SIZE, bitmap, 0);
	TEST_ASSERT_EQ(sum.mapped, 0);
	TEST_ASSERT_EQ(sum.absent, nr * PAGE_SIZE);

	sum = populate_bitmap(&env, MEM_SIZE, bitmap, KVM_POPULATE_PAGE_CACHE);
	TEST_ASSERT_EQ(sum.mapped, nr * PAGE_SIZE);
	TEST_ASSERT_EQ(sum.absent, 0);
	touched = gtdp_get_pfns(env.mem.hva, NR_PAGES, pfns);
	TEST_ASSERT(touched >= nr && touched <= nr + NR_AROUND * NR_PAGES / GTDP_REGION_PAGES,
		    "%lu pages are mapped for %lu", touched, nr);
	TEST_ASSERT_EQ(run_bits(&env, bitmap, true), 0);

	destroy(&env);
	return true;
}

/* Bits of pages that are in no memslot are passed over; a range may end within a word. */
static bool test_bitmap_slots(void)
{
	const u64 first = 5, nr = 1000, hole = 77, nr2 = 300;
	struct kvm_populate_memory sum;
	u64 bitmap[NR_WORDS], before;
	struct gtdp_mem part;
	struct env env = {};

	gtdp_mem_alloc(&env.mem, GTDP_MEMFD, MEM_SIZE, 0);
	gtdp_stamp(env.mem.hva, NR_PAGES, HOST_TAG);
	create_vm(&env, KVM_GLOBAL_TDP_POPULATE);

	part = env.mem;
	part.size = nr * PAGE_SIZE;
	gtdp_add_slot(env.vm, GTDP_SLOT, 0, GTDP_GPA + first * PAGE_SIZE, &part);
	part.hva += part.size;
	part.size = nr2 * PAGE_SIZE;
	gtdp_add_slot(env.vm, GTDP_SLOT + 1, 0, GTDP_GPA + (first + nr + hole) * PAGE_SIZE, &part);

	memset(bitmap, 0xff, sizeof(bitmap));
	before = gtdp_nr_mapped(env.vm);
	sum = populate_bitmap(&env, 10 * PAGE_SIZE, bitmap, 0);
	TEST_ASSERT_EQ(sum.mapped, (10 - first) * PAGE_SIZE);
	TEST_ASSERT_EQ(gtdp_nr_mapped(env.vm) - before, 10 - first);

	sum = populate_bitmap(&env, MEM_SIZE, bitmap, 0);
	TEST_ASSERT_EQ(sum.mapped, (nr + nr2) * PAGE_SIZE);
	TEST_ASSERT_EQ(sum.absent, 0);
	TEST_ASSERT_EQ(gtdp_nr_mapped(env.vm) - before, nr + nr2);

	destroy(&env);
	return true;
}

static bool test_bitmap_refused(void)
{
	u64 bitmap[NR_WORDS + 1] = { 1 }, before;
	const struct kvm_populate_memory good = {
		.gpa = GTDP_GPA,
		.size = MEM_SIZE,
		.flags = KVM_POPULATE_BITMAP,
		.bitmap = (uintptr_t)bitmap,
	};
	struct kvm_populate_memory range;
	struct env env;
	void *none;

#define REFUSED(field, value) do {						\
	range = good;								\
	range.field = value;							\
	TEST_ASSERT(__vm_ioctl(env.vm, KVM_POPULATE_MEMORY, &range) && errno == EINVAL,	\
		    "Not refused: " #field);					\
	TEST_ASSERT_EQ(range.size, MEM_SIZE);					\
} while (0)

	if (!create(&env, KVM_GLOBAL_TDP_POPULATE, GTDP_MEMFD))
		return false;

	before = gtdp_nr_mapped(env.vm);
	REFUSED(gpa, GTDP_GPA + PAGE_SIZE);
	REFUSED(gpa, GTDP_GPA + SZ_128K);
	REFUSED(bitmap, (uintptr_t)bitmap + 4);
	REFUSED(flags, 0);
	REFUSED(flags, KVM_POPULATE_PAGE_CACHE);
	REFUSED(flags, KVM_POPULATE_BITMAP | KVM_POPULATE_ASYNC);
	REFUSED(flags, KVM_POPULATE_BITMAP << 1);
	REFUSED(reserved, 1);

	/* A bitmap that can't be read from its second page on: what is before counts. */
	none = mmap(NULL, 2 * PAGE_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
		    -1, 0);
	*(u64 *)(none + PAGE_SIZE - 8) = 1;
	TEST_ASSERT(!mprotect(none + PAGE_SIZE, PAGE_SIZE, PROT_NONE), "mprotect()");
	range = good;
	range.bitmap = (uintptr_t)none + PAGE_SIZE - SZ_2M / PAGE_SIZE / 8;
	TEST_ASSERT(__vm_ioctl(env.vm, KVM_POPULATE_MEMORY, &range) && errno == EFAULT,
		    "A bitmap that can't be read");
	TEST_ASSERT_EQ(range.gpa, GTDP_GPA + SZ_2M);
	TEST_ASSERT_EQ(range.bitmap, (uintptr_t)none + PAGE_SIZE);
	TEST_ASSERT_EQ(range.mapped, PAGE_SIZE);
	TEST_ASSERT_EQ(gtdp_nr_mapped(env.vm) - before, 1);
	munmap(none, 2 * PAGE_SIZE);

	destroy(&env);
	return true;
#undef REFUSED
}

/* What one guest needed, the next one has. */
static bool test_replay(void)
{
	u64 bitmap[NR_WORDS];
	struct env env;

	if (!create(&env, KVM_GLOBAL_TDP_HARVEST | KVM_GLOBAL_TDP_FAULT_AROUND, GTDP_MEMFD))
		return false;
	run_from(&env, GTDP_CHECK, 0, 3);
	harvest(&env, bitmap);
	destroy(&env);

	create(&env, FEATURES, GTDP_MEMFD);
	TEST_ASSERT_EQ(populate_bitmap(&env, MEM_SIZE, bitmap, 0).mapped,
		       DIV_ROUND_UP(NR_PAGES, 3) * PAGE_SIZE);
	check_nothing(&env);
	TEST_ASSERT_EQ(run_from(&env, GTDP_CHECK, 0, 3), 0);
	check_harvest(&env, 0, 3);
	destroy(&env);
	return true;
}

static const struct gtdp_test tests[] = {
	{ "populated, anonymous", test_anon },
	{ "populated, memfd", test_memfd },
	{ "nothing but faults", test_harvest_alone },
	{ "fault-around", test_fault_around },
	{ "huge pages", test_thp },
	{ "hugetlb", test_hugetlb },
	{ "zapped", test_zapped },
	{ "collapsed and split", test_collapsed },
	{ "memslots", test_slots },
	{ "large", test_large },
	{ "interrupted", test_interrupted },
	{ "endless", test_endless },
	{ "SMM", test_smm },
	{ "refused", test_refused },
	{ "while a guest runs", test_running },
	{ "storm", test_storm },
	{ "bitmap, anonymous", test_bitmap_anon },
	{ "bitmap, memfd", test_bitmap_memfd },
	{ "bitmap, misaligned", test_bitmap_misaligned },
	{ "bitmap, holes", test_bitmap_holes },
	{ "bitmap, huge pages", test_bitmap_huge },
	{ "bitmap, page cache", test_bitmap_page_cache },
	{ "bitmap, memslots", test_bitmap_slots },
	{ "bitmap, refused", test_bitmap_refused },
	{ "replay", test_replay },
};

int main(int argc, char *argv[])
{
	gtdp_require(KVM_GLOBAL_TDP_POPULATE | KVM_GLOBAL_TDP_HARVEST);
	gtdp_run_some_tests(tests, ARRAY_SIZE(tests), argc > 1 ? argv[1] : NULL);
}
