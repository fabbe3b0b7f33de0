// SPDX-License-Identifier: GPL-2.0
/*
 * Proves that KVM_PRE_FAULT_MEMORY does in VMs that have Global TDP what it does in
 * all others: after it the guest takes no fault, its range and its errors say how far
 * it got, and it maps nothing but that range.  And that what is present is mapped by
 * the page table, and what is absent is looked for once.
 */
#include <signal.h>
#include <sys/time.h>

#include "test_util.h"
#include "kvm_util.h"
#include "processor.h"
#include "global_tdp.h"
#include "global_tdp_layout.h"

#define MEM_SIZE	SZ_8M
#define NR_PAGES	(MEM_SIZE / PAGE_SIZE)

#define HOST_TAG	1
#define GUEST_TAG	1000000

#define SMM_SLOT	(BIT(16) | GTDP_SLOT)
#define SMM_GPA		0x2000000

struct env {
	struct kvm_vm *vm;
	struct kvm_vcpu *vcpu;
	struct gtdp_mem mem;
};

/* A VM with memory, all of which is present unless it is to be stamped later. */
static bool env_create(struct env *env, u64 features, enum gtdp_backing backing,
		       bool stamped)
{
	if (!gtdp_mem_alloc(&env->mem, backing, MEM_SIZE, 0))
		return false;

	if (stamped)
		gtdp_stamp(env->mem.hva, NR_PAGES, HOST_TAG);
	env->vm = gtdp_vm_create(features, 1, &env->vcpu);
	gtdp_prefault_code(env->vcpu);
	gtdp_add_slot(env->vm, GTDP_SLOT, 0, GTDP_GPA, &env->mem);
	return true;
}

static void env_destroy(struct env *env)
{
	kvm_vm_free(env->vm);
	gtdp_mem_free(&env->mem);
}

/* One call.  Returns the error, if any; the range is what is left. */
static int prefault(struct env *env, struct kvm_pre_fault_memory *range)
{
	const u64 end = range->gpa + range->size, before = range->size;
	int err;

	err = __vcpu_ioctl(env->vcpu, KVM_PRE_FAULT_MEMORY, range) ? errno : 0;
	TEST_ASSERT_EQ(range->gpa + range->size, end);
	TEST_ASSERT(!err == (range->size < before), "Error %d, %#llx of %#lx bytes are left",
		    err, range->size, before);
	return err;
}

static void check_no_faults(struct env *env)
{
	TEST_ASSERT_EQ(gtdp_run(env->vcpu, GTDP_CHECK, GTDP_GPA, NR_PAGES, HOST_TAG), 0);
	TEST_ASSERT_EQ(gtdp_run(env->vcpu, GTDP_STAMP, GTDP_GPA, NR_PAGES, GUEST_TAG), 0);
	gtdp_check(env->mem.hva, NR_PAGES, GUEST_TAG);
}

static bool test_present(enum gtdp_backing backing)
{
	struct env env;
	u64 nr;

	if (!env_create(&env, KVM_GLOBAL_TDP_POPULATE, backing, true))
		return false;
	if (backing == GTDP_THP && !gtdp_is_huge(env.mem.hva, MEM_SIZE)) {
		env_destroy(&env);
		return false;
	}

	nr = gtdp_nr_populated(env.vm);
	gtdp_prefault(env.vcpu, GTDP_GPA, MEM_SIZE);
	nr = gtdp_nr_populated(env.vm) - nr;
	TEST_ASSERT(nr == NR_PAGES, "%lu pages are mapped by the page table", nr);
	nr = gtdp_vm_stat(env.vm, "tdp_populated_2m");
	TEST_ASSERT_EQ(nr, backing == GTDP_THP ? MEM_SIZE / SZ_2M : 0);
	check_no_faults(&env);

	env_destroy(&env);
	return true;
}

static bool test_present_small(void)
{
	return test_present(GTDP_ANON);
}

static bool test_present_huge(void)
{
	return gtdp_has_thp() && test_present(GTDP_THP);
}

/* Every third page of the first half, and none of the rest. */
static bool is_present(u64 page)
{
	return page < NR_PAGES / 2 && !(page % 3);
}

/* What is absent is faulted, and that is what takes the time: it is looked for once. */
static bool test_absent(void)
{
	u64 i, populated, absent, nr_present = 0;
	struct env env;

	env_create(&env, KVM_GLOBAL_TDP_POPULATE, GTDP_MEMFD, false);
	for (i = 0; i < NR_PAGES; i++) {
		if (is_present(i)) {
			gtdp_stamp(env.mem.hva + i * PAGE_SIZE, 1, HOST_TAG + i);
			nr_present++;
		}
	}
	populated = gtdp_nr_populated(env.vm);
	absent = gtdp_nr_absent(env.vm);

	gtdp_prefault(env.vcpu, GTDP_GPA, MEM_SIZE);
	TEST_ASSERT_EQ(gtdp_nr_resident(env.mem.hva, MEM_SIZE), NR_PAGES);
	TEST_ASSERT_EQ(gtdp_nr_populated(env.vm) - populated, nr_present);
	absent = gtdp_nr_absent(env.vm) - absent;
	TEST_ASSERT(absent == NR_PAGES - nr_present, "%lu pages are found absent", absent);

	for (i = 0; i < NR_PAGES; i++) {
		if (!is_present(i))
			gtdp_stamp(env.mem.hva + i * PAGE_SIZE, 1, HOST_TAG + i);
	}
	if (gtdp_has_ad_bits())
		check_no_faults(&env);

	env_destroy(&env);
	return true;
}

/* Nothing is mapped but what is asked for, be it page by page. */
static bool test_range(void)
{
	const u64 first = GTDP_GPA + (GTDP_REGION_PAGES - 5) * PAGE_SIZE;
	struct env env;
	u64 nr, i;

	env_create(&env, KVM_GLOBAL_TDP_POPULATE, GTDP_ANON, true);

	nr = gtdp_nr_mapped(env.vm);
	for (i = 0; i < 10; i++) {
		gtdp_prefault(env.vcpu, first + i * PAGE_SIZE, PAGE_SIZE);
		TEST_ASSERT_EQ(gtdp_nr_mapped(env.vm) - nr, i + 1);
	}
	gtdp_prefault(env.vcpu, first - 3 * PAGE_SIZE, 20 * PAGE_SIZE);
	nr = gtdp_nr_mapped(env.vm) - nr;
	TEST_ASSERT(nr == 20, "Of 20 pages, %lu are mapped", nr);

	env_destroy(&env);
	return true;
}

/* The range says where an error was, and a call that begins there says which. */
static bool test_errors(void)
{
	const u64 bad = GTDP_REGION_PAGES + 100;
	struct kvm_pre_fault_memory range = { .gpa = GTDP_GPA, .size = MEM_SIZE + SZ_2M };
	struct env env;
	u64 nr;
	int i;

	env_create(&env, KVM_GLOBAL_TDP_POPULATE, GTDP_ANON, true);
	TEST_ASSERT(!mprotect(env.mem.hva + bad * PAGE_SIZE, PAGE_SIZE, PROT_NONE), "mprotect()");

	nr = gtdp_nr_mapped(env.vm);
	TEST_ASSERT_EQ(prefault(&env, &range), 0);
	TEST_ASSERT(range.gpa == GTDP_GPA + bad * PAGE_SIZE, "Got as far as %#llx", range.gpa);
	for (i = 0; i < 3; i++)
		TEST_ASSERT_EQ(prefault(&env, &range), EFAULT);

	TEST_ASSERT(!mprotect(env.mem.hva + bad * PAGE_SIZE, PAGE_SIZE, PROT_READ | PROT_WRITE),
		    "mprotect()");
	TEST_ASSERT_EQ(prefault(&env, &range), 0);
	TEST_ASSERT_EQ(range.gpa, GTDP_GPA + MEM_SIZE);
	TEST_ASSERT_EQ(gtdp_nr_mapped(env.vm) - nr, NR_PAGES);
	TEST_ASSERT_EQ(prefault(&env, &range), ENOENT);
	check_no_faults(&env);

	range = (struct kvm_pre_fault_memory) { .gpa = GTDP_GPA, .size = MEM_SIZE, .flags = 1 };
	TEST_ASSERT_EQ(prefault(&env, &range), EINVAL);

	env_destroy(&env);
	return true;
}

static void on_alarm(int sig)
{
}

/* Signals end a call early, and the next one goes on. */
static bool test_signals(void)
{
	const struct itimerval often = { { 0, 500 }, { 0, 500 } }, never = {};
	const struct sigaction action = { .sa_handler = on_alarm };
	struct kvm_pre_fault_memory range = { .gpa = GTDP_GPA, .size = MEM_SIZE };
	struct env env;
	int i, err;

	/* Half of it is present. */
	env_create(&env, KVM_GLOBAL_TDP_POPULATE, GTDP_ANON, false);
	for (i = 0; i < NR_PAGES; i += 2)
		gtdp_stamp(env.mem.hva + i * PAGE_SIZE, 1, HOST_TAG + i);

	sigaction(SIGALRM, &action, NULL);
	setitimer(ITIMER_REAL, &often, NULL);
	while (range.size) {
		err = prefault(&env, &range);
		TEST_ASSERT(!err || err == EINTR, "Error %d", err);
	}
	setitimer(ITIMER_REAL, &never, NULL);

	TEST_ASSERT_EQ(gtdp_nr_resident(env.mem.hva, MEM_SIZE), NR_PAGES);
	if (gtdp_has_ad_bits())
		TEST_ASSERT_EQ(gtdp_run(env.vcpu, GTDP_READ, GTDP_GPA, NR_PAGES, 0), 0);

	env_destroy(&env);
	return true;
}

/* What the host has writable, but not dirty, is mapped writable by a fault. */
static bool test_clean(void)
{
	struct env env;
	u64 i;

	if (!gtdp_has_ad_bits())
		return false;

	/* Holes of a memfd become clean pages of zeroes. */
	env_create(&env, KVM_GLOBAL_TDP_POPULATE, GTDP_MEMFD, false);
	for (i = 0; i < NR_PAGES; i++)
		READ_ONCE(*(u64 *)(env.mem.hva + i * PAGE_SIZE));

	gtdp_prefault(env.vcpu, GTDP_GPA, MEM_SIZE);
	TEST_ASSERT_EQ(gtdp_run(env.vcpu, GTDP_CHECK_ZERO, GTDP_GPA, NR_PAGES, 0), 0);
	i = gtdp_run(env.vcpu, GTDP_STAMP, GTDP_GPA, NR_PAGES, GUEST_TAG);
	TEST_ASSERT(!i, "%lu writes to clean pages faulted", i);
	gtdp_check(env.mem.hva, NR_PAGES, GUEST_TAG);

	env_destroy(&env);
	return true;
}

/* Of a logged slot, what is written is logged, and not what is mapped. */
static bool test_logged(void)
{
	static unsigned long log[NR_PAGES / 64];
	struct env env;
	u64 nr;
	int i;

	env_create(&env, KVM_GLOBAL_TDP_POPULATE, GTDP_ANON, true);
	gtdp_delete_slot(env.vm, GTDP_SLOT);
	gtdp_add_slot(env.vm, GTDP_SLOT, KVM_MEM_LOG_DIRTY_PAGES, GTDP_GPA, &env.mem);

	nr = gtdp_nr_populated(env.vm);
	gtdp_prefault(env.vcpu, GTDP_GPA, MEM_SIZE);
	TEST_ASSERT_EQ(gtdp_nr_populated(env.vm) - nr, NR_PAGES);
	kvm_vm_get_dirty_log(env.vm, GTDP_SLOT, log);
	for (i = 0; i < ARRAY_SIZE(log); i++)
		TEST_ASSERT(!log[i], "Word %d of the log is %#lx, nothing was written", i, log[i]);

	gtdp_run(env.vcpu, GTDP_STAMP, GTDP_GPA, NR_PAGES, GUEST_TAG);
	kvm_vm_get_dirty_log(env.vm, GTDP_SLOT, log);
	for (i = 0; i < ARRAY_SIZE(log); i++)
		TEST_ASSERT(!~log[i], "Word %d of the log is %#lx, all was written", i, log[i]);

	env_destroy(&env);
	return true;
}

/* A vCPU maps what it would use, in SMM what is in SMM's address space. */
static bool test_smm(void)
{
	struct kvm_pre_fault_memory range = { .gpa = SMM_GPA, .size = MEM_SIZE };
	struct gtdp_mem smm_mem;
	struct env env;
	u64 nr;

	if (!kvm_has_cap(KVM_CAP_X86_SMM))
		return false;

	env_create(&env, KVM_GLOBAL_TDP_POPULATE, GTDP_ANON, true);
	gtdp_mem_alloc(&smm_mem, GTDP_ANON, MEM_SIZE, 0);
	gtdp_stamp(smm_mem.hva, NR_PAGES, HOST_TAG);
	gtdp_add_slot(env.vm, SMM_SLOT, 0, SMM_GPA, &smm_mem);
	TEST_ASSERT_EQ(prefault(&env, &range), ENOENT);
	gtdp_prefault(env.vcpu, GTDP_GPA, MEM_SIZE);
	check_no_faults(&env);

	gtdp_enter_smm(env.vcpu);
	nr = gtdp_nr_populated(env.vm);
	TEST_ASSERT_EQ(prefault(&env, &range), 0);
	TEST_ASSERT_EQ(range.size, 0);
	TEST_ASSERT_EQ(gtdp_nr_populated(env.vm) - nr, NR_PAGES);

	env_destroy(&env);
	gtdp_mem_free(&smm_mem);
	return true;
}

/* A page that is in two slots is mapped in both, and gone from both. */
static bool test_two_slots(void)
{
	struct env env;
	u64 nr;

	env_create(&env, KVM_GLOBAL_TDP_POPULATE, GTDP_ANON, true);
	gtdp_add_slot(env.vm, GTDP_SLOT + 1, 0, GTDP_GPA + MEM_SIZE, &env.mem);

	nr = gtdp_nr_mapped(env.vm);
	gtdp_prefault(env.vcpu, GTDP_GPA, 2 * MEM_SIZE);
	TEST_ASSERT_EQ(gtdp_nr_mapped(env.vm) - nr, 2 * NR_PAGES);
	TEST_ASSERT_EQ(gtdp_run(env.vcpu, GTDP_CHECK, GTDP_GPA + MEM_SIZE, NR_PAGES, HOST_TAG), 0);
	check_no_faults(&env);

	TEST_ASSERT(!madvise(env.mem.hva, MEM_SIZE, MADV_DONTNEED), "madvise()");
	TEST_ASSERT_EQ(gtdp_nr_mapped(env.vm), nr);

	env_destroy(&env);
	return true;
}

/* All roots are zapped, and so the vCPU's is obsolete, while nothing runs. */
static bool test_obsolete(void)
{
	struct env env;

	/* From here on, each change is one.  It fails if it is "never". */
	if (!gtdp_set_param("nx_huge_pages", "off"))
		return false;

	env_create(&env, KVM_GLOBAL_TDP_POPULATE, GTDP_ANON, true);
	gtdp_prefault(env.vcpu, GTDP_GPA, MEM_SIZE);
	TEST_ASSERT(gtdp_set_param("nx_huge_pages", "force"), "nx_huge_pages");
	TEST_ASSERT_EQ(gtdp_nr_mapped(env.vm), 0);
	gtdp_prefault(env.vcpu, GTDP_GPA, MEM_SIZE);
	TEST_ASSERT_EQ(gtdp_nr_mapped(env.vm), NR_PAGES);
	gtdp_prefault_code(env.vcpu);
	check_no_faults(&env);

	gtdp_restore_params();
	env_destroy(&env);
	return true;
}

/* By faults, page by page, as without Global TDP. */
static void check_faulted(struct env *env)
{
	u64 nr = gtdp_nr_populated(env->vm);

	gtdp_prefault(env->vcpu, GTDP_GPA, MEM_SIZE);
	nr = gtdp_nr_populated(env->vm) - nr;
	TEST_ASSERT(!nr, "%lu pages are mapped by Global TDP", nr);
	if (gtdp_has_ad_bits())
		check_no_faults(env);
}

static bool test_never(void)
{
	struct env env;

	env_create(&env, KVM_GLOBAL_TDP_POPULATE, GTDP_ANON, true);
	TEST_ASSERT(gtdp_set_param("global_tdp", "never"), "global_tdp");
	check_faulted(&env);

	gtdp_restore_params();
	env_destroy(&env);
	return true;
}

static bool test_without(void)
{
	struct env env;

	env_create(&env, KVM_GLOBAL_TDP_FAULT_AROUND, GTDP_ANON, true);
	check_faulted(&env);

	env_destroy(&env);
	return true;
}

static const struct gtdp_test tests[] = {
	{ "present", test_present_small },
	{ "present, huge pages", test_present_huge },
	{ "absent", test_absent },
	{ "no more than the range", test_range },
	{ "errors", test_errors },
	{ "signals", test_signals },
	{ "clean pages", test_clean },
	{ "logged", test_logged },
	{ "SMM", test_smm },
	{ "two slots", test_two_slots },
	{ "obsolete root", test_obsolete },
	{ "never", test_never },
	{ "without KVM_POPULATE_MEMORY", test_without },
};

/* Takes part of the name of a test, to leave out all others. */
int main(int argc, char *argv[])
{
	gtdp_require(KVM_GLOBAL_TDP_POPULATE);
	TEST_REQUIRE(kvm_has_cap(KVM_CAP_PRE_FAULT_MEMORY));
	gtdp_run_some_tests(tests, ARRAY_SIZE(tests), argc > 1 ? argv[1] : NULL);
}
