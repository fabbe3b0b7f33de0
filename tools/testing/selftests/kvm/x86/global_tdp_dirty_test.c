// SPDX-License-Identifier: GPL-2.0
/*
 * Proves that dirty logging loses nothing and invents nothing while memory is
 * populated, whichever way userspace gets the log: as a bitmap, as one that it
 * clears by itself, with all bits set to start with, or from the dirty ring.
 *
 *   exact:   populating leaves the log empty, and what the guest writes is the
 *            log, however often pages are populated in between
 *   precopy: a copy of memory that is kept up to date by means of the log is
 *            right in the end, with the guest writing, and logging turned on
 *            and off, while other threads populate
 *   ended:   when logging has ended, the host's huge pages are the guest's again,
 *            whether or not somebody populates on his own, and whyever they were
 *            small: no vCPU faults for that, nor is there a time when it would
 *            have to, and what the guest wrote meanwhile is not lost
 *   huge pages that are not split: who clears the log flushes in time
 */
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <linux/bitmap.h>
#include <linux/mman.h>

#include "test_util.h"
#include "kvm_util.h"
#include "processor.h"
#include "global_tdp.h"

#define MEM_SIZE	SZ_4M
#define NR_PAGES	(MEM_SIZE / PAGE_SIZE)
#define NR_REGIONS	(MEM_SIZE / SZ_2M)

/* More than there are pages, so that a ring is never full. */
#define RING_SIZE	(4 * NR_PAGES * sizeof(struct kvm_dirty_gfn))

#define HOST_TAG	1
#define GUEST_TAG	1000000
#define ROUNDS		3
#define NR_POPULATORS	2
#define NR_PAGEOUTS	3

enum mode {
	BITMAP,
	CLEAR,
	ALL_SET,
	RING,
};

static const char * const mode_names[] = {
	[BITMAP] = "bitmap",
	[CLEAR] = "cleared by userspace",
	[ALL_SET] = "initially all set",
	[RING] = "ring",
};

struct env {
	struct kvm_vm *vm;
	struct kvm_vcpu *vcpu;
	struct gtdp_mem mem;
	enum mode mode;
	/* The pages in the log when it was looked at last. */
	unsigned long *log;
	u32 ring_next;
	/* What the other threads have done, and that they are to end. */
	bool populated;
	bool read;
	bool stop;
	/* What precopy has sent. */
	void *copy;
};

static bool is_mode_supported(enum mode mode)
{
	u64 manual = kvm_check_cap(KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2);

	switch (mode) {
	case CLEAR:
		return manual & KVM_DIRTY_LOG_MANUAL_PROTECT_ENABLE;
	case ALL_SET:
		return manual & KVM_DIRTY_LOG_INITIALLY_SET;
	case RING:
		return kvm_check_cap(KVM_CAP_DIRTY_LOG_RING) ||
		       kvm_check_cap(KVM_CAP_DIRTY_LOG_RING_ACQ_REL);
	default:
		return true;
	}
}

static bool env_create(struct env *env, u64 features, enum mode mode,
		       enum gtdp_backing backing)
{
	u64 manual = KVM_DIRTY_LOG_MANUAL_PROTECT_ENABLE;

	*env = (struct env) { .mode = mode };

	if (!is_mode_supported(mode) || (backing == GTDP_THP && !gtdp_has_thp()) ||
	    !gtdp_mem_alloc(&env->mem, backing, MEM_SIZE, 0))
		return false;

	gtdp_stamp(env->mem.hva, NR_PAGES, HOST_TAG);

	env->vm = __gtdp_vm_create(features, mode == RING ? RING_SIZE : 0, 1, &env->vcpu);
	if (mode == ALL_SET)
		manual |= KVM_DIRTY_LOG_INITIALLY_SET;
	if (mode == CLEAR || mode == ALL_SET)
		vm_enable_cap(env->vm, KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2, manual);

	env->log = bitmap_zalloc(NR_PAGES);
	gtdp_populate_code(env->vm);
	return true;
}

static void env_destroy(struct env *env)
{
	kvm_vm_free(env->vm);
	gtdp_mem_free(&env->mem);
	free(env->log);
}

static void set_logging(struct env *env, bool on)
{
	gtdp_add_slot(env->vm, GTDP_SLOT, on ? KVM_MEM_LOG_DIRTY_PAGES : 0, GTDP_GPA,
		      &env->mem);
}

static void collect_ring(struct env *env)
{
	u32 nr = gtdp_read_ring(env->vcpu, env->ring_next, env->log, NR_PAGES, true);

	TEST_ASSERT_EQ(kvm_vm_reset_dirty_ring(env->vm), nr);
	env->ring_next += nr;
}

/* Get the log; what is written from now on is in the next one. */
static void collect(struct env *env)
{
	memset(env->log, 0, NR_PAGES / BITS_PER_BYTE);

	switch (env->mode) {
	case RING:
		collect_ring(env);
		break;
	case BITMAP:
		kvm_vm_get_dirty_log(env->vm, GTDP_SLOT, env->log);
		break;
	default:
		kvm_vm_get_dirty_log(env->vm, GTDP_SLOT, env->log);
		kvm_vm_clear_dirty_log(env->vm, GTDP_SLOT, env->log, 0, NR_PAGES);
	}
}

/* Logging starts with an empty log or with a full one, which is cleared here. */
static void start_logging(struct env *env)
{
	u64 i;

	set_logging(env, true);
	if (env->mode != ALL_SET)
		return;

	collect(env);
	for (i = 0; i < NR_PAGES; i++)
		TEST_ASSERT(test_bit(i, env->log), "Page %lu is not in the log", i);
}

/* Expect that pages 0, @step, 2 * @step, ... were written, none if 0. */
static void check_log(struct env *env, u64 step)
{
	u64 i;

	collect(env);
	for (i = 0; i < NR_PAGES; i++)
		TEST_ASSERT(test_bit(i, env->log) == (step && !(i % step)),
			    "Page %lu is %sin the log", i,
			    test_bit(i, env->log) ? "" : "not ");
}

static u64 stamp_every(struct env *env, u64 step, u64 tag)
{
	return gtdp_run_job(env->vcpu, (struct gtdp_job) {
		.op = GTDP_STAMP,
		.gpa = GTDP_GPA,
		.nr = NR_PAGES,
		.step = step,
		.tag = tag,
	});
}

static void populate(struct env *env)
{
	gtdp_populate_full(env->vm, GTDP_GPA, MEM_SIZE);
}

/* Rounds of populating, writing, and populating, with a log of each. */
static void check_rounds(struct env *env)
{
	const u64 steps[ROUNDS] = { 3, 1, 7 };
	int i;

	for (i = 0; i < ROUNDS; i++) {
		populate(env);
		TEST_ASSERT_EQ(gtdp_run(env->vcpu, GTDP_CHECK, GTDP_GPA, NR_PAGES, HOST_TAG), 0);
		populate(env);
		check_log(env, 0);

		/* Populated again before, after, and while the log is cleared. */
		stamp_every(env, steps[i], HOST_TAG);
		populate(env);
		check_log(env, steps[i]);
		check_log(env, 0);
		stamp_every(env, steps[i] + 1, HOST_TAG);
		check_log(env, steps[i] + 1);
		populate(env);
		check_log(env, 0);
	}
}

static bool test_exact(enum mode mode, enum gtdp_backing backing)
{
	struct env env;

	if (!env_create(&env, KVM_GLOBAL_TDP_POPULATE, mode, backing))
		return false;

	/* Logged from the start, when nothing is mapped yet. */
	start_logging(&env);
	check_rounds(&env);

	/* Mapped, and written, before logging starts. */
	set_logging(&env, false);
	populate(&env);
	stamp_every(&env, 1, HOST_TAG);
	start_logging(&env);
	check_rounds(&env);

	env_destroy(&env);
	return true;
}

static void *populator(void *arg)
{
	struct env *env = arg;
	struct kvm_populate_memory range;
	u64 first = 0;
	int r;

	while (!READ_ONCE(env->stop)) {
		/* Parts as well as all of it. */
		first = (first + 77) % (NR_PAGES / 2);
		range = (struct kvm_populate_memory) {
			.gpa = GTDP_GPA + first * PAGE_SIZE,
			.size = MEM_SIZE - 2 * first * PAGE_SIZE,
		};

		r = __vm_ioctl(env->vm, KVM_POPULATE_MEMORY, &range);
		TEST_ASSERT(!r || errno == EAGAIN || errno == ENOENT || errno == EINTR,
			    KVM_IOCTL_ERROR(KVM_POPULATE_MEMORY, r));
		if (range.mapped)
			WRITE_ONCE(env->populated, true);
		sched_yield();
	}

	return NULL;
}

static void *writer(void *arg)
{
	struct env *env = arg;
	u64 tag = HOST_TAG, round;

	for (round = 0; !READ_ONCE(env->stop); round++)
		stamp_every(env, 1 + round % 5, tag += NR_PAGES);

	return NULL;
}

/* Returns how many pages that were. */
static u64 copy_logged(struct env *env)
{
	u64 i, nr = 0;

	collect(env);
	for (i = 0; i < NR_PAGES; i++) {
		if (!test_bit(i, env->log))
			continue;
		memcpy(env->copy + i * PAGE_SIZE, env->mem.hva + i * PAGE_SIZE, PAGE_SIZE);
		nr++;
	}

	return nr;
}

static bool test_precopy(enum mode mode, enum gtdp_backing backing)
{
	pthread_t threads[NR_POPULATORS], vcpu;
	struct env env;
	int i, round;

	if (!env_create(&env, GTDP_ALL, mode, backing))
		return false;

	env.copy = malloc(MEM_SIZE);
	TEST_ASSERT(env.copy, "Insufficient memory");
	set_logging(&env, false);

	for (round = 0; round < ROUNDS; round++) {
		WRITE_ONCE(env.stop, false);
		for (i = 0; i < NR_POPULATORS; i++)
			pthread_create(&threads[i], NULL, populator, &env);
		pthread_create(&vcpu, NULL, writer, &env);

		/* All of it, then what was written meanwhile. */
		start_logging(&env);
		memcpy(env.copy, env.mem.hva, MEM_SIZE);
		WRITE_ONCE(env.populated, false);
		for (i = 0; i < ROUNDS; i++) {
			gtdp_wait_until(copy_logged(&env));
			usleep(1000);
		}
		gtdp_wait_until(READ_ONCE(env.populated));

		WRITE_ONCE(env.stop, true);
		pthread_join(vcpu, NULL);
		copy_logged(&env);
		for (i = 0; i < NR_PAGES; i++)
			TEST_ASSERT(!memcmp(env.copy + i * PAGE_SIZE,
					    env.mem.hva + i * PAGE_SIZE, PAGE_SIZE),
				    "A write to page %d is not in the log", i);

		/* And off again, while it is still populated. */
		set_logging(&env, false);
		for (i = 0; i < NR_POPULATORS; i++)
			pthread_join(threads[i], NULL);
	}

	free(env.copy);
	env_destroy(&env);
	return true;
}

/*
 * A file's pages can be huge where addresses are as aligned as offsets are.  That
 * does not depend on whether they would be by themselves.
 */
static bool make_file_huge(struct gtdp_mem *mem)
{
	void *map = mmap(mem->hva, MEM_SIZE, PROT_READ | PROT_WRITE,
			 MAP_SHARED | MAP_FIXED, mem->fd, 0);

	TEST_ASSERT(map == mem->hva, __KVM_SYSCALL_ERROR("mmap()", -1));
	gtdp_stamp(mem->hva, NR_PAGES, HOST_TAG);

	return !madvise(mem->hva, MEM_SIZE, MADV_HUGEPAGE) &&
	       !madvise(mem->hva, MEM_SIZE, MADV_COLLAPSE) &&
	       !madvise(mem->hva, MEM_SIZE, MADV_POPULATE_WRITE);
}

/* Huge pages, but no memslot yet. */
static bool ended_create(struct env *env, u64 features, enum gtdp_backing backing)
{
	if (!env_create(env, features, BITMAP, backing))
		return false;

	if ((backing == GTDP_MEMFD && !make_file_huge(&env->mem)) ||
	    !gtdp_is_huge(env->mem.hva, MEM_SIZE)) {
		env_destroy(env);
		return false;
	}

	gtdp_make_code(env->mem.hva, NR_PAGES);
	return true;
}

/* All is mapped, and as huge pages what can be. */
static void check_huge(struct env *env)
{
	TEST_ASSERT_EQ(gtdp_vm_stat(env->vm, "pages_2m"), NR_REGIONS);
	TEST_ASSERT_EQ(gtdp_vm_stat(env->vm, "pages_4k"),
		       gtdp_code_size(env->vm) / PAGE_SIZE);
}

/* All is mapped, as small pages, and the guest writes some of it. */
static void write_logged(struct env *env)
{
	populate(env);
	TEST_ASSERT_EQ(gtdp_vm_stat(env->vm, "pages_2m"), 0);
	TEST_ASSERT_EQ(gtdp_run(env->vcpu, GTDP_CHECK, GTDP_GPA, NR_PAGES, HOST_TAG), 0);
	stamp_every(env, 3, HOST_TAG);
	TEST_ASSERT_EQ(gtdp_vm_stat(env->vm, "pages_2m"), 0);
	TEST_ASSERT_EQ(gtdp_nr_mapped(env->vm),
		       NR_PAGES + gtdp_code_size(env->vm) / PAGE_SIZE);
}

/* They are as good as ever: not even writing takes a fault. */
static void check_as_ever(struct env *env)
{
	TEST_ASSERT_EQ(gtdp_run(env->vcpu, GTDP_CHECK, GTDP_GPA, NR_PAGES, HOST_TAG), 0);
	TEST_ASSERT_EQ(stamp_every(env, 1, GUEST_TAG), 0);
	gtdp_check(env->mem.hva, NR_PAGES, GUEST_TAG);
	check_huge(env);
}

static u64 nr_flushes(struct env *env)
{
	return gtdp_vm_stat(env->vm, "remote_tlb_flush_requests");
}

/* Logging has just ended, and all is mapped by huge pages. */
static bool test_ended(u64 features, enum gtdp_backing backing)
{
	u64 flushes;
	struct env env;

	if (!ended_create(&env, features, backing))
		return false;

	set_logging(&env, false);
	populate(&env);
	check_huge(&env);

	set_logging(&env, true);
	write_logged(&env);
	flushes = nr_flushes(&env);
	set_logging(&env, false);
	TEST_ASSERT(nr_flushes(&env) > flushes, "Page tables were replaced without a flush");
	check_huge(&env);
	check_as_ever(&env);

	env_destroy(&env);
	return true;
}

static void *end_logging(void *arg)
{
	set_logging(arg, false);
	return NULL;
}

static void discard(struct env *env)
{
	int r = madvise(env->mem.hva, MEM_SIZE, MADV_DONTNEED);

	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("madvise()", r));
}

/* What the host takes away meanwhile does not come back as part of a huge page. */
static bool test_ended_discarded(u64 features, enum gtdp_backing backing)
{
	pthread_t thread;
	struct env env;
	int round;

	if (!ended_create(&env, features, backing))
		return false;

	for (round = 0; round < ROUNDS; round++) {
		set_logging(&env, true);
		write_logged(&env);

		pthread_create(&thread, NULL, end_logging, &env);
		__gtdp_wait_until(gtdp_vm_stat(env.vm, "pages_2m"), 0);
		discard(&env);
		pthread_join(thread, NULL);
		gtdp_run(env.vcpu, GTDP_CHECK_ZERO, GTDP_GPA, NR_PAGES, 0);

		/* Not in place of a huge page of zeroes, that is split. */
		discard(&env);
		gtdp_stamp(env.mem.hva, NR_PAGES, HOST_TAG);
		if (!gtdp_is_huge(env.mem.hva, MEM_SIZE))
			break;
	}

	env_destroy(&env);
	return true;
}

static void *reader(void *arg)
{
	struct env *env = arg;

	while (!READ_ONCE(env->stop)) {
		gtdp_run(env->vcpu, GTDP_READ, GTDP_GPA, NR_PAGES, 0);
		WRITE_ONCE(env->read, true);
	}

	return NULL;
}

/*
 * The same while the vCPU runs all the time.  It may see a page table that is
 * just being replaced, and come back in vain, or find a huge page in its place,
 * of which it then sets the bits that its own fault would have set.  If they were
 * zapped, it would have to come back for each.
 */
static bool test_ended_running(u64 features, enum gtdp_backing backing)
{
	u64 before, fixed = 0;
	pthread_t thread;
	struct env env;
	int round;

	if (!ended_create(&env, features, backing))
		return false;

	for (round = 0; round < ROUNDS; round++) {
		set_logging(&env, true);
		write_logged(&env);
		WRITE_ONCE(env.stop, false);
		WRITE_ONCE(env.read, false);
		before = gtdp_vcpu_stat(env.vcpu, "pf_fixed");
		pthread_create(&thread, NULL, reader, &env);
		gtdp_wait_until(READ_ONCE(env.read));

		set_logging(&env, false);
		check_huge(&env);

		WRITE_ONCE(env.stop, true);
		pthread_join(thread, NULL);
		fixed += gtdp_vcpu_stat(env.vcpu, "pf_fixed") - before;
	}
	TEST_ASSERT(fixed <= ROUNDS * NR_REGIONS / 2, "%lu faults of %u huge pages", fixed,
		    ROUNDS * NR_REGIONS);
	check_as_ever(&env);

	env_destroy(&env);
	return true;
}

/* Keep the follower from running while this thread does, or no longer. */
static bool hold_follower(bool hold)
{
	const struct sched_param param = { .sched_priority = hold };

	return !sched_setscheduler(0, hold ? SCHED_FIFO : SCHED_OTHER, &param);
}

/*
 * Where huge pages are not executable, executing makes small ones of them.  What
 * had to be small anyway is nothing that anybody remembers to make huge again.
 */
static bool executed(struct env *env)
{
	u64 faults;
	int r;

	/*
	 * Let the follower find nothing, so that the guest gets there first.  It
	 * has run before, and waits for nobody then.
	 */
	r = mprotect(env->mem.hva, MEM_SIZE, PROT_NONE);
	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("mprotect()", r));
	set_logging(env, true);
	gtdp_run(env->vcpu, GTDP_READ, GTDP_GPA, 0, 0);

	if (!hold_follower(true))
		return false;
	r = mprotect(env->mem.hva, MEM_SIZE, PROT_READ | PROT_WRITE);
	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("mprotect()", r));
	faults = gtdp_run_job(env->vcpu, (struct gtdp_job) {
		.op = GTDP_EXEC,
		.gpa = GTDP_GPA,
		.nr = NR_PAGES,
		.step = GTDP_REGION_PAGES,
	});
	hold_follower(false);
	TEST_ASSERT_EQ(faults, NR_REGIONS);

	write_logged(env);
	set_logging(env, false);
	check_huge(env);
	check_as_ever(env);

	/* They can be executed, as ever. */
	gtdp_run(env->vcpu, GTDP_EXEC, GTDP_GPA, NR_PAGES, 0);
	return true;
}

static bool test_ended_executed(u64 features, enum gtdp_backing backing)
{
	cpu_set_t cpus, cpu;
	struct env env;
	bool done;

	if (!gtdp_set_param("nx_huge_pages", "force"))
		return false;

	/* The follower inherits this. */
	sched_getaffinity(0, sizeof(cpus), &cpus);
	CPU_ZERO(&cpu);
	CPU_SET(sched_getcpu(), &cpu);
	sched_setaffinity(0, sizeof(cpu), &cpu);

	done = ended_create(&env, features, backing);
	if (done) {
		done = executed(&env);
		env_destroy(&env);
	}

	sched_setaffinity(0, sizeof(cpus), &cpus);
	gtdp_restore_params();
	return done;
}

/*
 * That the guest wrote to a page is known from the SPTE's dirty bit only, if the
 * host could have dropped the page before.
 */
static bool test_ended_reclaimed(u64 features, enum gtdp_backing backing)
{
	struct env env;
	int i, r;

	if (!ended_create(&env, features, backing))
		return false;

	set_logging(&env, true);
	r = madvise(env.mem.hva, MEM_SIZE, MADV_FREE);
	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("madvise()", r));
	populate(&env);
	stamp_every(&env, 1, GUEST_TAG);
	set_logging(&env, false);
	check_huge(&env);

	for (i = 0; i < NR_PAGEOUTS; i++) {
		gtdp_drain_lru();
		r = madvise(env.mem.hva, MEM_SIZE, MADV_PAGEOUT);
		TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("madvise()", r));
		gtdp_check(env.mem.hva, NR_PAGES, GUEST_TAG);
	}
	gtdp_run(env.vcpu, GTDP_CHECK, GTDP_GPA, NR_PAGES, GUEST_TAG);

	env_destroy(&env);
	return true;
}

/*
 * The same, where the SPTEs go: with the memslot, with the VM's roots, i.e. those of a VM
 * without Global TDP whose memslot is deleted, or with a VM that is closed as it is.
 */
static bool test_gone(u64 features, bool delete)
{
	struct kvm_vcpu *vcpu;
	struct gtdp_mem mem;
	struct kvm_vm *vm;
	int i, r;

	if (!gtdp_mem_alloc(&mem, GTDP_ANON, MEM_SIZE, 0))
		return false;

	gtdp_stamp(mem.hva, NR_PAGES, HOST_TAG);
	vm = gtdp_vm_create(features, 1, &vcpu);
	gtdp_add_slot(vm, GTDP_SLOT, 0, GTDP_GPA, &mem);
	r = madvise(mem.hva, MEM_SIZE, MADV_FREE);
	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("madvise()", r));
	if (features)
		gtdp_populate(vm, GTDP_GPA, MEM_SIZE);
	gtdp_run(vcpu, GTDP_STAMP, GTDP_GPA, NR_PAGES, GUEST_TAG);

	if (delete)
		gtdp_delete_slot(vm, GTDP_SLOT);
	else
		kvm_vm_release(vm);

	for (i = 0; i < NR_PAGEOUTS; i++) {
		gtdp_drain_lru();
		r = madvise(mem.hva, MEM_SIZE, MADV_PAGEOUT);
		TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("madvise()", r));
		gtdp_check(mem.hva, NR_PAGES, GUEST_TAG);
	}

	if (delete)
		kvm_vm_free(vm);
	gtdp_mem_free(&mem);
	return true;
}

/* Small pages, too, are written without a fault again once populated. */
static bool test_ended_small(u64 features, enum gtdp_backing backing)
{
	struct env env;

	if (!env_create(&env, features, BITMAP, backing))
		return false;

	set_logging(&env, true);
	populate(&env);
	set_logging(&env, false);
	populate(&env);
	TEST_ASSERT_EQ(gtdp_run(env.vcpu, GTDP_CHECK, GTDP_GPA, NR_PAGES, HOST_TAG), 0);
	TEST_ASSERT_EQ(stamp_every(&env, 1, HOST_TAG), 0);

	env_destroy(&env);
	return true;
}

static u64 flushes_to_clear(struct env *env, u64 first)
{
	u64 before = nr_flushes(env);

	kvm_vm_clear_dirty_log(env->vm, GTDP_SLOT, env->log, first, BITS_PER_LONG);
	return nr_flushes(env) - before;
}

/*
 * Huge pages that are not split before they are written to are write-protected when
 * the log of any part of them is cleared first.  That is flushed before anybody else
 * finds them so, and once more, as ever, when the log is cleared.
 */
static bool test_clear_huge(void)
{
	struct env env;

	if (!gtdp_set_param("eager_page_split", "N") ||
	    !env_create(&env, KVM_GLOBAL_TDP_POPULATE, ALL_SET, GTDP_THP))
		return false;
	if (!gtdp_is_huge(env.mem.hva, MEM_SIZE)) {
		env_destroy(&env);
		return false;
	}

	set_logging(&env, false);
	populate(&env);
	set_logging(&env, true);
	check_huge(&env);

	memset(env.log, 0xff, NR_PAGES / 8);
	TEST_ASSERT_EQ(flushes_to_clear(&env, 0), 2);
	TEST_ASSERT_EQ(flushes_to_clear(&env, BITS_PER_LONG), 1);

	env_destroy(&env);
	gtdp_restore_params();
	return true;
}

static const struct {
	enum gtdp_backing backing;
	const char *name;
} memory[] = {
	{ GTDP_ANON, "small pages" },
	{ GTDP_THP, "huge pages" },
};

static const struct {
	const char *name;
	bool (*fn)(u64 features, enum gtdp_backing backing);
	enum gtdp_backing backing;
	const char *what;
} ended[] = {
	{ "idle", test_ended, GTDP_THP, "huge pages" },
	{ "idle", test_ended, GTDP_HUGETLB, "hugetlb" },
	{ "idle", test_ended, GTDP_MEMFD, "huge pages of a memfd" },
	{ "discarded", test_ended_discarded, GTDP_THP, "huge pages" },
	{ "running", test_ended_running, GTDP_THP, "huge pages" },
	{ "executed", test_ended_executed, GTDP_THP, "huge pages" },
	{ "reclaimed", test_ended_reclaimed, GTDP_THP, "huge pages" },
	{ "populated again", test_ended_small, GTDP_ANON, "small pages" },
};

static const struct {
	const char *name;
	u64 features;
} followers[] = {
	{ "", KVM_GLOBAL_TDP_POPULATE | KVM_GLOBAL_TDP_FOLLOW },
	{ ", no follower", KVM_GLOBAL_TDP_POPULATE },
};

static void report(bool passed, const char *name)
{
	if (passed)
		ksft_test_result_pass("%s\n", name);
	else
		ksft_test_result_skip("%s\n", name);
}

/* Runs the tests with @part in their name, all if that is NULL, or counts them. */
static int run_tests(const char *part, bool count_only)
{
	enum mode mode;
	int i, j, nr = 0;
	char name[128];

#define RUN(test, ...)								\
do {										\
	snprintf(name, sizeof(name), __VA_ARGS__);				\
	if (gtdp_is_chosen(name, part)) {					\
		nr++;								\
		if (!count_only)						\
			report(test, name);					\
	}									\
} while (0)

	for (i = 0; i < ARRAY_SIZE(ended); i++) {
		for (j = 0; j < ARRAY_SIZE(followers); j++)
			RUN(ended[i].fn(followers[j].features, ended[i].backing),
			    "ended: %s, %s%s", ended[i].name, ended[i].what,
			    followers[j].name);
	}

	RUN(test_gone(KVM_GLOBAL_TDP_POPULATE, true), "gone: memslot");
	RUN(test_gone(0, true), "gone: roots");
	RUN(test_gone(KVM_GLOBAL_TDP_POPULATE, false), "gone: VM");
	RUN(test_clear_huge(), "huge pages, not split, cleared");

	for (mode = BITMAP; mode <= RING; mode++) {
		for (i = 0; i < ARRAY_SIZE(memory); i++) {
			RUN(test_exact(mode, memory[i].backing), "exact: %s, %s",
			    mode_names[mode], memory[i].name);
			RUN(test_precopy(mode, memory[i].backing), "precopy: %s, %s",
			    mode_names[mode], memory[i].name);
		}
	}

	return nr;
}

/* Takes part of the name of a test, to leave out all others. */
int main(int argc, char *argv[])
{
	const char *part = argc > 1 ? argv[1] : NULL;
	int nr;

	gtdp_require(GTDP_ALL);

	nr = run_tests(part, true);
	TEST_ASSERT(nr, "No test has '%s' in its name", part);

	ksft_print_header();
	ksft_set_plan(nr);
	run_tests(part, false);
	ksft_finished();
}
