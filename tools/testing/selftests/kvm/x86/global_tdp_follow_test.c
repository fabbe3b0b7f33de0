// SPDX-License-Identifier: GPL-2.0
/*
 * Proves that a VM's follower maps memory without being asked: what is present
 * when a memslot is created, before any vCPU has run, and what arrives later.
 * Also that KVM_POPULATE_ASYNC hands over a range to it.  How long it works is not
 * tested, only that it does not sleep for long before.
 */
#include <sched.h>
#include <signal.h>
#include <unistd.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "test_util.h"
#include "kvm_util.h"
#include "processor.h"
#include "global_tdp.h"

#define MEM_SIZE	SZ_32M
#define NR_PAGES	(MEM_SIZE / PAGE_SIZE)

/* Memslots of the same memory, for passes that take a while. */
#define NR_SMALL	(SZ_2G / MEM_SIZE)
#define NR_LARGE	(SZ_4G / MEM_SIZE + 1)

/* Pages that arrive one by one in so many regions, in each one this often. */
#define NR_SPARSE	32ul
#define SPARSE_SIZE	(NR_SPARSE * SZ_2M)
#define SPARSE_ROUNDS	2
#define SPARSE_USECS	50000

/* More than the pauses of a follower that finds little: by then it sleeps, beside vCPUs. */
#define SETTLE_USECS	1000000
#define ASLEEP_SECONDS	3

/* Wasted scans for what was zapped beside a vCPU, until it is gone for good. */
#define LOOKS_ZAPPED	3

/* Little enough to meet a follower that is at work. */
#define POLL_USECS	50

#define HOST_TAG	1
#define GUEST_TAG	1000000

/* The guest's code is present from the start: have it mapped, and count it. */
static struct kvm_vm *create(struct kvm_vcpu **vcpu, u64 *nr_code)
{
	struct kvm_vm *vm = gtdp_vm_create(KVM_GLOBAL_TDP_FOLLOW, 1, vcpu);

	*nr_code = gtdp_code_size(vm) / PAGE_SIZE;
	gtdp_wait_mapped(vm, *nr_code);
	return vm;
}

static void check_no_faults(struct kvm_vcpu *vcpu, struct gtdp_mem *mem)
{
	TEST_ASSERT_EQ(gtdp_vcpu_stat(vcpu, "pf_taken"), 0);
	TEST_ASSERT_EQ(gtdp_run(vcpu, GTDP_CHECK, GTDP_GPA, NR_PAGES, HOST_TAG), 0);
	TEST_ASSERT_EQ(gtdp_run(vcpu, GTDP_STAMP, GTDP_GPA, NR_PAGES, GUEST_TAG), 0);
	gtdp_check(mem->hva, NR_PAGES, GUEST_TAG);
}

static bool test_present(enum gtdp_backing backing)
{
	struct kvm_vcpu *vcpu;
	struct gtdp_mem mem;
	struct kvm_vm *vm;
	u64 nr_code;

	if (!gtdp_mem_alloc(&mem, backing, MEM_SIZE, 0))
		return false;
	gtdp_stamp(mem.hva, NR_PAGES, HOST_TAG);
	if (backing == GTDP_THP && !gtdp_is_huge(mem.hva, MEM_SIZE)) {
		gtdp_mem_free(&mem);
		return false;
	}

	vm = create(&vcpu, &nr_code);
	gtdp_add_slot(vm, GTDP_SLOT, 0, GTDP_GPA, &mem);
	gtdp_wait_mapped_in(vm, nr_code + NR_PAGES, GTDP_SOON_MSECS);
	check_no_faults(vcpu, &mem);

	kvm_vm_free(vm);
	gtdp_mem_free(&mem);
	return true;
}

static bool test_present_anon(void)
{
	return test_present(GTDP_ANON);
}

static bool test_present_thp(void)
{
	return gtdp_has_thp() && test_present(GTDP_THP);
}

static bool test_present_hugetlb(void)
{
	return test_present(GTDP_HUGETLB);
}

static bool test_present_memfd(void)
{
	return test_present(GTDP_MEMFD);
}

/* As in a migration's destination: the memslot is there first, and is empty. */
static bool test_arriving(enum gtdp_backing backing)
{
	const u64 chunk = NR_PAGES / 8 + 1;
	u64 i, nr, nr_code, here = 0;
	struct kvm_vcpu *vcpu;
	struct gtdp_mem mem;
	struct kvm_vm *vm;

	if (!gtdp_mem_alloc(&mem, backing, MEM_SIZE, 0))
		return false;

	vm = create(&vcpu, &nr_code);
	gtdp_add_slot(vm, GTDP_SLOT, 0, GTDP_GPA, &mem);

	/* That is no run: until the first, the follower looks for what arrives. */
	vcpu_run_complete_io(vcpu);
	if (backing == GTDP_ANON)
		sleep(ASLEEP_SECONDS);

	for (i = 0; i < NR_PAGES; i += nr) {
		nr = min_t(u64, chunk, NR_PAGES - i);
		gtdp_stamp(mem.hva + i * PAGE_SIZE, nr, HOST_TAG + i);

		/* With huge pages, more is there than was written. */
		here = gtdp_nr_resident(mem.hva, MEM_SIZE);

		/* Some chunks follow closely, others after all has settled. */
		if (i / chunk % 2)
			gtdp_wait_mapped_in(vm, nr_code + here, GTDP_SOON_MSECS);
	}

	gtdp_wait_mapped_in(vm, nr_code + NR_PAGES, GTDP_SOON_MSECS);
	TEST_ASSERT(gtdp_nr_populated(vm) >= nr_code + NR_PAGES,
		    "Only %lu pages are the follower's", gtdp_nr_populated(vm));
	check_no_faults(vcpu, &mem);

	kvm_vm_free(vm);
	gtdp_mem_free(&mem);
	return true;
}

static bool test_arriving_anon(void)
{
	return test_arriving(GTDP_ANON);
}

static bool test_arriving_thp(void)
{
	return gtdp_has_thp() && test_arriving(GTDP_THP);
}

/*
 * The zero page does not count as resident: it is the page tables that tell that
 * something has arrived.
 */
static bool test_arriving_zero(void)
{
	struct kvm_vcpu *vcpu;
	struct gtdp_mem mem;
	struct kvm_vm *vm;
	u64 nr_code;
	int r;

	vm = create(&vcpu, &nr_code);
	gtdp_mem_alloc(&mem, GTDP_ANON, MEM_SIZE, 0);
	gtdp_add_slot(vm, GTDP_SLOT, 0, GTDP_GPA, &mem);
	usleep(SETTLE_USECS);

	r = madvise(mem.hva, MEM_SIZE, MADV_POPULATE_READ);
	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("madvise()", r));
	gtdp_wait_mapped_in(vm, nr_code + NR_PAGES, GTDP_SOON_MSECS);
	TEST_ASSERT_EQ(gtdp_vcpu_stat(vcpu, "pf_taken"), 0);
	TEST_ASSERT_EQ(gtdp_run(vcpu, GTDP_CHECK_ZERO, GTDP_GPA, NR_PAGES, 0), 0);

	kvm_vm_free(vm);
	gtdp_mem_free(&mem);
	return true;
}

static bool test_arriving_memfd(void)
{
	return test_arriving(GTDP_MEMFD);
}

/* Some time after the last, a page is not left for seconds: pauses are short enough. */
static bool test_arriving_soon(void)
{
	struct kvm_vcpu *vcpu;
	struct gtdp_mem mem;
	struct kvm_vm *vm;
	u64 nr_code, i;

	vm = create(&vcpu, &nr_code);
	gtdp_mem_alloc(&mem, GTDP_ANON, MEM_SIZE, 0);
	gtdp_add_slot(vm, GTDP_SLOT, 0, GTDP_GPA, &mem);

	for (i = 0; i < 4; i++) {
		usleep(SETTLE_USECS);
		gtdp_stamp(mem.hva + i * PAGE_SIZE, 1, HOST_TAG + i);
		gtdp_wait_mapped_in(vm, nr_code + i + 1, GTDP_SOON_MSECS);
	}

	kvm_vm_free(vm);
	gtdp_mem_free(&mem);
	return true;
}

/* What the follower finds absent stays absent. */
static bool test_absent(void)
{
	struct kvm_vcpu *vcpu;
	struct gtdp_mem mem;
	struct kvm_vm *vm;
	u64 nr_code;

	gtdp_mem_alloc(&mem, GTDP_ANON, MEM_SIZE, 0);
	gtdp_stamp(mem.hva, NR_PAGES / 2, HOST_TAG);

	vm = create(&vcpu, &nr_code);
	gtdp_add_slot(vm, GTDP_SLOT, 0, GTDP_GPA, &mem);
	gtdp_wait_mapped(vm, nr_code + NR_PAGES / 2);
	gtdp_wait_until(gtdp_nr_absent(vm) >= NR_PAGES / 2);
	TEST_ASSERT_EQ(gtdp_nr_mapped(vm), nr_code + NR_PAGES / 2);
	TEST_ASSERT_EQ(gtdp_nr_resident(mem.hva, MEM_SIZE), NR_PAGES / 2);
	TEST_ASSERT_EQ(gtdp_run(vcpu, GTDP_CHECK, GTDP_GPA, NR_PAGES / 2, HOST_TAG), 0);

	kvm_vm_free(vm);
	gtdp_mem_free(&mem);
	return true;
}

/* A hint works whether or not the follower also acts on its own. */
static bool test_async(void)
{
	u64 features[] = {
		KVM_GLOBAL_TDP_POPULATE,
		KVM_GLOBAL_TDP_POPULATE | KVM_GLOBAL_TDP_FOLLOW,
	};
	struct kvm_populate_memory range;
	struct kvm_vcpu *vcpu;
	struct gtdp_mem mem;
	struct kvm_vm *vm;
	u64 nr_code;
	int i;

	for (i = 0; i < ARRAY_SIZE(features); i++) {
		gtdp_mem_alloc(&mem, GTDP_ANON, MEM_SIZE, 0);
		gtdp_stamp(mem.hva, NR_PAGES, HOST_TAG);

		vm = gtdp_vm_create(features[i], 1, &vcpu);
		nr_code = gtdp_code_size(vm) / PAGE_SIZE;
		gtdp_populate_code(vm);
		gtdp_add_slot(vm, GTDP_SLOT, 0, GTDP_GPA, &mem);

		range = (struct kvm_populate_memory) {
			.gpa = GTDP_GPA,
			.size = MEM_SIZE,
			.flags = KVM_POPULATE_ASYNC,
		};
		vm_ioctl(vm, KVM_POPULATE_MEMORY, &range);
		TEST_ASSERT_EQ(range.gpa, GTDP_GPA + MEM_SIZE);
		TEST_ASSERT_EQ(range.size, 0);

		gtdp_wait_mapped_in(vm, nr_code + NR_PAGES, GTDP_SOON_MSECS);
		check_no_faults(vcpu, &mem);

		kvm_vm_free(vm);
		gtdp_mem_free(&mem);
	}

	return true;
}

/* Those of other VMs have been stopped, but may be about to exit yet. */
static int nr_kernel_threads(void)
{
	pid_t tids[8];

	return gtdp_kernel_threads(tids, ARRAY_SIZE(tids));
}

/* The follower is on if, and only if, it is enabled: without, there is no thread. */
static bool test_default(void)
{
	u64 features[] = { GTDP_DEFAULT, 0 };
	struct kvm_vcpu *vcpu;
	struct gtdp_mem mem;
	struct kvm_vm *vm;
	int i;

	for (i = 0; i < ARRAY_SIZE(features); i++) {
		gtdp_wait_until(!nr_kernel_threads());
		gtdp_mem_alloc(&mem, GTDP_ANON, MEM_SIZE, 0);
		gtdp_stamp(mem.hva, NR_PAGES, HOST_TAG);

		vm = gtdp_vm_create(features[i], 1, &vcpu);
		gtdp_add_slot(vm, GTDP_SLOT, 0, GTDP_GPA, &mem);
		if (features[i] && gtdp_enabled_by_default()) {
			gtdp_wait_mapped(vm, NR_PAGES);
		} else {
			gtdp_run(vcpu, GTDP_READ, GTDP_GPA, 0, 0);
			TEST_ASSERT_EQ(nr_kernel_threads(), 0);
			TEST_ASSERT_EQ(gtdp_nr_populated(vm), 0);
		}

		kvm_vm_free(vm);
		gtdp_mem_free(&mem);
	}

	return true;
}

/*
 * With global_tdp=never, the follower sleeps.  Half of the memory is zapped and comes back
 * meanwhile, the other half arrives, and there is another memslot: later, all is found.
 */
static bool test_never(bool has_run)
{
	u64 nr_code, sleeps;
	struct gtdp_mem mem, other;
	struct kvm_vcpu *vcpu;
	struct kvm_vm *vm;
	pid_t tid;
	int r;

	gtdp_wait_until(!nr_kernel_threads());
	vm = create(&vcpu, &nr_code);
	if (has_run)
		gtdp_run(vcpu, GTDP_READ, GTDP_GPA, 0, 0);
	gtdp_mem_alloc(&mem, GTDP_ANON, MEM_SIZE, 0);
	gtdp_stamp(mem.hva, NR_PAGES / 2, HOST_TAG);
	gtdp_add_slot(vm, GTDP_SLOT, 0, GTDP_GPA, &mem);
	gtdp_wait_mapped(vm, nr_code + NR_PAGES / 2);
	TEST_ASSERT_EQ(gtdp_kernel_threads(&tid, 1), 1);
	if (has_run)
		sleep(ASLEEP_SECONDS);

	if (!gtdp_set_param("global_tdp", "never")) {
		kvm_vm_free(vm);
		gtdp_mem_free(&mem);
		return false;
	}
	/* What the follower was doing just then is finished. */
	usleep(SETTLE_USECS);
	sleeps = gtdp_nr_sleeps(tid);

	r = madvise(mem.hva, MEM_SIZE / 2, MADV_DONTNEED);
	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("madvise()", r));
	gtdp_stamp(mem.hva, NR_PAGES, HOST_TAG);
	gtdp_mem_alloc(&other, GTDP_ANON, SZ_2M, 0);
	gtdp_stamp(other.hva, GTDP_REGION_PAGES, HOST_TAG);
	/* Beside a vCPU, nothing but the end of "never" tells of what has arrived. */
	if (!has_run)
		gtdp_add_slot(vm, GTDP_SLOT + 1, 0, GTDP_GPA + MEM_SIZE, &other);
	usleep(2 * SETTLE_USECS);
	TEST_ASSERT(gtdp_nr_mapped(vm) == nr_code, "The follower maps in spite of 'never'");
	sleeps = gtdp_nr_sleeps(tid) - sleeps;
	TEST_ASSERT(sleeps <= 4, "With 'never', the follower woke %lu times", sleeps);

	TEST_ASSERT(gtdp_set_param("global_tdp", "ask"), "It stays 'never'");
	gtdp_wait_mapped(vm, nr_code + NR_PAGES + (has_run ? 0 : GTDP_REGION_PAGES));
	TEST_ASSERT_EQ(gtdp_run(vcpu, GTDP_CHECK, GTDP_GPA, NR_PAGES, HOST_TAG), 0);

	gtdp_restore_params();
	kvm_vm_free(vm);
	gtdp_mem_free(&other);
	gtdp_mem_free(&mem);
	return true;
}

static bool test_never_early(void)
{
	return test_never(false);
}

static bool test_never_late(void)
{
	return test_never(true);
}

static void add_slots(struct kvm_vm *vm, struct gtdp_mem *mem, u64 nr_slots)
{
	u64 i;

	for (i = 0; i < nr_slots; i++)
		gtdp_add_slot(vm, GTDP_SLOT + i, 0, GTDP_GPA + i * MEM_SIZE, mem);
}

/*
 * Be stopped, by a signal or by global_tdp=never, while the follower is at work, until
 * it was hit, and have it finish what it was doing.  Nothing but the call tells it that
 * there is something to do: no vCPU has run, and it has got over the memory that arrived
 * before.
 */
static void stopped_vmm(u64 nr_slots, bool never)
{
	struct kvm_vcpu *vcpu;
	struct gtdp_mem mem;
	struct kvm_vm *vm;
	u64 nr_code, nr;
	const struct sched_param param = { .sched_priority = 1 };
	int i, hits = 0;

	/* With a single CPU, too, run before the follower is done. */
	TEST_ASSERT(!sched_setscheduler(0, SCHED_FIFO, &param), "sched_setscheduler()");

	gtdp_mem_alloc(&mem, GTDP_ANON, MEM_SIZE, 0);
	gtdp_stamp(mem.hva, NR_PAGES, HOST_TAG);

	for (i = 0; i < 10 && hits < 2; i++) {
		vm = gtdp_vm_create(KVM_GLOBAL_TDP_POPULATE, 1, &vcpu);
		gtdp_populate_code(vm);
		nr_code = gtdp_nr_mapped(vm);
		add_slots(vm, &mem, nr_slots);
		nr = nr_code + nr_slots * NR_PAGES;

		gtdp_populate_async(vm, 0, 0);
		usleep(SETTLE_USECS);

		gtdp_populate_async(vm, GTDP_GPA, nr_slots * MEM_SIZE);
		__gtdp_wait_until(gtdp_nr_mapped(vm) != nr_code, POLL_USECS);
		if (never) {
			TEST_ASSERT(gtdp_set_param("global_tdp", "never"), "It can't be stopped");
			usleep(SETTLE_USECS);
		} else {
			raise(SIGSTOP);
		}
		hits += gtdp_nr_mapped(vm) < nr;

		if (never)
			TEST_ASSERT(gtdp_set_param("global_tdp", "always"), "It stays 'never'");
		gtdp_wait_mapped(vm, nr);
		kvm_vm_free(vm);
	}

	TEST_ASSERT(hits, "The follower was always done before it was stopped");
	gtdp_restore_params();
	gtdp_mem_free(&mem);
	_exit(0);
}

static void small_stopped_vmm(void)
{
	stopped_vmm(NR_SMALL, false);
}

static void large_stopped_vmm(void)
{
	stopped_vmm(NR_LARGE, false);
}

static void never_vmm(void)
{
	stopped_vmm(NR_SMALL, true);
}

static bool test_never_busy(void)
{
	if (access("/sys/module/kvm/parameters/global_tdp", W_OK)) {
		ksft_print_msg("global_tdp can't be set\n");
		return false;
	}
	gtdp_check_exit(gtdp_start(NULL, never_vmm));
	return true;
}

static bool test_stopped(void (*vmm)(void))
{
	pid_t pid = gtdp_start(NULL, vmm);
	int status;

	while (waitpid(pid, &status, WUNTRACED) == pid && WIFSTOPPED(status))
		kill(pid, SIGCONT);

	TEST_ASSERT(WIFEXITED(status) && !WEXITSTATUS(status),
		    "The VMM ended with status %#x", status);
	return true;
}

static bool test_stopped_small(void)
{
	return test_stopped(small_stopped_vmm);
}

static bool test_stopped_large(void)
{
	return test_stopped(large_stopped_vmm);
}

/*
 * Memory arrives, while the VMM keeps asking for what is mapped already: that has
 * a pass of its own, each time, but not to the exclusion of the rest.
 */
static bool test_arriving_urgent(void)
{
	struct kvm_vcpu *vcpu;
	struct gtdp_mem mem;
	struct kvm_vm *vm;
	u64 nr_code;

	vm = gtdp_vm_create(KVM_GLOBAL_TDP_FOLLOW | KVM_GLOBAL_TDP_POPULATE, 1, &vcpu);
	nr_code = gtdp_code_size(vm) / PAGE_SIZE;
	gtdp_mem_alloc(&mem, GTDP_ANON, MEM_SIZE, 0);
	gtdp_add_slot(vm, GTDP_SLOT, 0, GTDP_GPA, &mem);
	gtdp_wait_mapped(vm, nr_code);
	usleep(SETTLE_USECS);

	gtdp_populate_async(vm, 0, 0);
	gtdp_stamp(mem.hva, NR_PAGES, HOST_TAG);
	__gtdp_wait_until((gtdp_populate_async(vm, 0, 0),
			   gtdp_nr_mapped(vm) == nr_code + NR_PAGES), 0);
	check_no_faults(vcpu, &mem);

	kvm_vm_free(vm);
	gtdp_mem_free(&mem);
	return true;
}

/*
 * The rest of a snapshot, say, that the VMM brings in slowly, here and there,
 * after vCPUs have begun to run.  A region is left alone for longer than it takes
 * to find out that there is nothing in it, while others gain all the time.
 */
static bool test_sparse(void)
{
	struct kvm_vcpu *vcpu;
	struct gtdp_mem mem;
	struct kvm_vm *vm;
	u64 i, nr, nr_code;
	int round;

	vm = create(&vcpu, &nr_code);
	gtdp_run(vcpu, GTDP_READ, GTDP_GPA, 0, 0);

	gtdp_mem_alloc(&mem, GTDP_ANON, SPARSE_SIZE, 0);
	for (i = 0; i < NR_SPARSE; i++)
		gtdp_stamp(mem.hva + i * SZ_2M, 1, HOST_TAG);
	gtdp_add_slot(vm, GTDP_SLOT, 0, GTDP_GPA, &mem);

	for (round = 1; round <= SPARSE_ROUNDS; round++) {
		for (i = 0; i < NR_SPARSE; i++) {
			/* No two in a row are neighbours. */
			nr = i * 27 % NR_SPARSE * GTDP_REGION_PAGES + round;
			gtdp_stamp(mem.hva + nr * PAGE_SIZE, 1, HOST_TAG);
			usleep(SPARSE_USECS);
		}
	}

	gtdp_wait_mapped(vm, nr_code + (1 + SPARSE_ROUNDS) * NR_SPARSE);

	kvm_vm_free(vm);
	gtdp_mem_free(&mem);
	return true;
}

enum comes_back {
	SOON,		/* after the follower has looked for it once, in vain */
	LATE,		/* when it has given up */
};

/*
 * The VMM discards all that there was, and the follower looks for it in vain.
 * When it comes back, slowly, it is mapped if no vCPU has run: as in the
 * destination of a postcopy migration, which is sent it again.  Beside a vCPU,
 * the same holds for some seconds; after that it has been taken away for good, as
 * by a balloon, and is left to faults, until there is another reason to scan.
 */
static bool test_discarded(bool has_run, enum comes_back when)
{
	const u64 nr_pages = SPARSE_SIZE / PAGE_SIZE;
	u64 i, nr, nr_code, before;
	struct gtdp_mem mem, other;
	struct kvm_vcpu *vcpu;
	struct kvm_vm *vm;
	int r;

	vm = create(&vcpu, &nr_code);
	/* When it maps what comes after that, the follower has noticed. */
	if (has_run)
		gtdp_run(vcpu, GTDP_READ, GTDP_GPA, 0, 0);
	gtdp_mem_alloc(&mem, GTDP_ANON, SPARSE_SIZE, 0);
	gtdp_stamp(mem.hva, nr_pages, HOST_TAG);
	gtdp_add_slot(vm, GTDP_SLOT, 0, GTDP_GPA, &mem);
	gtdp_wait_mapped(vm, nr_code + nr_pages);

	before = gtdp_nr_absent(vm);
	r = madvise(mem.hva, SPARSE_SIZE, MADV_DONTNEED);
	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("madvise()", r));
	TEST_ASSERT_EQ(gtdp_nr_mapped(vm), nr_code);
	gtdp_wait_until(gtdp_nr_absent(vm) >=
			before + (when == LATE ? LOOKS_ZAPPED : 1) * nr_pages);

	for (i = 0; i < NR_SPARSE; i++) {
		nr = i * 27 % NR_SPARSE * GTDP_REGION_PAGES;
		gtdp_stamp(mem.hva + nr * PAGE_SIZE, GTDP_REGION_PAGES, HOST_TAG + nr);
		if (!has_run)
			usleep(SPARSE_USECS);
	}

	gtdp_mem_alloc(&other, GTDP_ANON, PAGE_SIZE, 0);
	if (when == LATE) {
		usleep(SETTLE_USECS);
		TEST_ASSERT_EQ(gtdp_nr_mapped(vm), nr_code);
		gtdp_add_slot(vm, GTDP_SLOT + 1, 0, GTDP_GPA + SPARSE_SIZE, &other);
	}
	gtdp_wait_mapped(vm, nr_code + nr_pages);
	TEST_ASSERT_EQ(gtdp_run(vcpu, GTDP_CHECK, GTDP_GPA, nr_pages, HOST_TAG), 0);

	kvm_vm_free(vm);
	gtdp_mem_free(&other);
	gtdp_mem_free(&mem);
	return true;
}

static bool test_discarded_early(void)
{
	return test_discarded(false, SOON);
}

static bool test_discarded_soon(void)
{
	return test_discarded(true, SOON);
}

static bool test_discarded_late(void)
{
	return test_discarded(true, LATE);
}

/*
 * A balloon's pages, say, that the VMM maps anew amid huge ones (MAP_FIXED).  KVM
 * zaps all 2MiB around each, of which the guest never gave the others back: it finds
 * them mapped again.
 */
static bool test_mapped_anew(bool has_run)
{
	const u64 nr_new = 16, first_new = 100;
	struct kvm_vcpu *vcpu;
	u64 nr_code, i;
	struct gtdp_mem mem;
	struct kvm_vm *vm;
	void *hva, *map;

	gtdp_mem_alloc(&mem, GTDP_THP, MEM_SIZE, 0);
	gtdp_stamp(mem.hva, NR_PAGES, HOST_TAG);
	if (!gtdp_is_huge(mem.hva, MEM_SIZE)) {
		gtdp_mem_free(&mem);
		return false;
	}

	vm = create(&vcpu, &nr_code);
	gtdp_add_slot(vm, GTDP_SLOT, 0, GTDP_GPA, &mem);
	gtdp_wait_mapped(vm, nr_code + NR_PAGES);
	if (has_run)
		gtdp_run(vcpu, GTDP_CHECK, GTDP_GPA, NR_PAGES, HOST_TAG);

	for (i = first_new; i < NR_PAGES; i += GTDP_REGION_PAGES) {
		hva = mem.hva + i * PAGE_SIZE;
		map = mmap(hva, nr_new * PAGE_SIZE, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
		TEST_ASSERT(map == hva, __KVM_SYSCALL_ERROR("mmap()", -1));
	}
	gtdp_wait_mapped(vm, nr_code + NR_PAGES - NR_PAGES / GTDP_REGION_PAGES * nr_new);

	for (i = 0; i < NR_PAGES; i += GTDP_REGION_PAGES) {
		TEST_ASSERT_EQ(gtdp_run(vcpu, GTDP_CHECK, GTDP_GPA + i * PAGE_SIZE,
					first_new, HOST_TAG + i), 0);
		TEST_ASSERT_EQ(gtdp_run(vcpu, GTDP_CHECK,
					GTDP_GPA + (i + first_new + nr_new) * PAGE_SIZE,
					GTDP_REGION_PAGES - first_new - nr_new,
					HOST_TAG + i + first_new + nr_new), 0);
		TEST_ASSERT(gtdp_run(vcpu, GTDP_CHECK_ZERO,
				     GTDP_GPA + (i + first_new) * PAGE_SIZE, nr_new, 0) > 0,
			    "What is new is mapped already");
	}

	kvm_vm_free(vm);
	gtdp_mem_free(&mem);
	return true;
}

static bool test_mapped_anew_early(void)
{
	return gtdp_has_thp() && test_mapped_anew(false);
}

static bool test_mapped_anew_late(void)
{
	return gtdp_has_thp() && test_mapped_anew(true);
}

static const struct gtdp_test tests[] = {
	{ "present", test_present_anon },
	{ "present, transparent huge pages", test_present_thp },
	{ "present, hugetlb", test_present_hugetlb },
	{ "present, memfd", test_present_memfd },
	{ "arriving", test_arriving_anon },
	{ "arriving, transparent huge pages", test_arriving_thp },
	{ "arriving, memfd", test_arriving_memfd },
	{ "arriving, zero page", test_arriving_zero },
	{ "arriving, soon", test_arriving_soon },
	{ "arriving, beside what is urgent", test_arriving_urgent },
	{ "absent", test_absent },
	{ "parameter is never", test_never_early },
	{ "parameter is never, vCPU has run", test_never_late },
	{ "parameter is never, in a pass", test_never_busy },
	{ "asynchronous ioctl", test_async },
	{ "stopped VMM", test_stopped_small },
	{ "stopped VMM of a large VM", test_stopped_large },
	{ "arriving here and there, vCPU has run", test_sparse },
	{ "discarded, and arriving again", test_discarded_early },
	{ "discarded, and back, vCPU has run", test_discarded_soon },
	{ "discarded for good, vCPU has run", test_discarded_late },
	{ "mapped anew amid huge pages", test_mapped_anew_early },
	{ "mapped anew amid huge pages, vCPU has run", test_mapped_anew_late },
	{ "default follows the parameter", test_default },
};

int main(int argc, char *argv[])
{
	gtdp_require(KVM_GLOBAL_TDP_FOLLOW | KVM_GLOBAL_TDP_POPULATE);
	gtdp_run_some_tests(tests, ARRAY_SIZE(tests), argc > 1 ? argv[1] : NULL);
}
