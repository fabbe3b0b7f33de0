// SPDX-License-Identifier: GPL-2.0
/*
 * Proves that what no vCPU can reach is not mapped.  A memslot may lie beyond
 * what a root of four levels translates, i.e. at 2^48 and above, if the host's
 * physical addresses are wide enough.  A walk that takes such a GFN for one of
 * the root's ends up at the GFN modulo 2^48, in the tables of other memory.
 *
 * Wants a CPU with more than 48 bits of physical address, and without 5-level
 * paging: if need be, by the kernel parameter no5lvl.
 */
#include <string.h>
#include <sys/mman.h>

#include <linux/kernel-page-flags.h>

#include "test_util.h"
#include "kvm_util.h"
#include "processor.h"
#include "global_tdp.h"

#define MEM_SIZE	SZ_4M
#define NR_PAGES	(MEM_SIZE / PAGE_SIZE)

/* Where the reach of a root of four levels ends. */
#define LIMIT		BIT_ULL(48)

/* In reach, and its like that is not. */
#define NEAR_SLOT	GTDP_SLOT
#define NEAR_GPA	GTDP_GPA
#define FAR_SLOT	(GTDP_SLOT + 1)
#define FAR_GPA		(LIMIT + NEAR_GPA)

#define NEXT_SLOT	(GTDP_SLOT + 2)
#define NEXT_GPA	(NEAR_GPA + SZ_64M)

#define AS_ID(n)	((n) << 16)

#define NEAR_TAG	1
#define FAR_TAG		1000000
#define GUEST_TAG	2000000

struct env {
	struct kvm_vm *vm;
	struct kvm_vcpu *vcpu;
	struct gtdp_mem near;
	struct gtdp_mem far;
	u64 nr_code;
};

static bool is_huge(struct gtdp_mem *mem)
{
	u64 pfns[NR_PAGES], i;

	TEST_ASSERT_EQ(gtdp_get_pfns(mem->hva, NR_PAGES, pfns), NR_PAGES);
	for (i = 0; i < NR_PAGES; i += GTDP_REGION_PAGES) {
		if (!gtdp_page_flag(pfns[i], KPF_THP))
			return false;
	}
	return true;
}

static bool alloc_stamped(struct gtdp_mem *mem, enum gtdp_backing backing, u64 tag)
{
	gtdp_mem_alloc(mem, backing, MEM_SIZE, 0);
	gtdp_stamp(mem->hva, NR_PAGES, tag);
	return backing != GTDP_THP || is_huge(mem);
}

/* There is memory of both kinds, but no memslot of it yet. */
static bool env_create(struct env *env, u64 features, enum gtdp_backing near,
		       enum gtdp_backing far)
{
	if (!alloc_stamped(&env->near, near, NEAR_TAG) ||
	    !alloc_stamped(&env->far, far, FAR_TAG)) {
		ksft_print_msg("no huge pages\n");
		return false;
	}

	env->vm = gtdp_vm_create(features, 1, &env->vcpu);
	env->nr_code = gtdp_code_size(env->vm) / PAGE_SIZE;
	if (features == KVM_GLOBAL_TDP_POPULATE)
		gtdp_populate_code(env->vm);
	return true;
}

static void env_destroy(struct env *env)
{
	kvm_vm_free(env->vm);
	gtdp_mem_free(&env->near);
	gtdp_mem_free(&env->far);
}

static u64 run(struct env *env, enum gtdp_op op, u64 tag)
{
	return gtdp_run(env->vcpu, op, NEAR_GPA, NR_PAGES, tag);
}

/* The guest finds, and writes to, the memory that is in reach. */
static void check_near(struct env *env)
{
	run(env, GTDP_CHECK, NEAR_TAG);
	run(env, GTDP_STAMP, GUEST_TAG);
	gtdp_check(env->near.hva, NR_PAGES, GUEST_TAG);
	gtdp_check(env->far.hva, NR_PAGES, FAR_TAG);
}

static void __check_absent(struct env *env, u64 gpa, u32 as_id, u32 flags)
{
	struct kvm_populate_memory range = {
		.gpa = gpa,
		.size = MEM_SIZE,
		.as_id = as_id,
		.flags = flags,
	};
	u64 mapped = gtdp_nr_mapped(env->vm);

	vm_ioctl(env->vm, KVM_POPULATE_MEMORY, &range);
	TEST_ASSERT_EQ(range.size, 0);
	TEST_ASSERT_EQ(range.gpa, gpa + MEM_SIZE);
	TEST_ASSERT_EQ(range.mapped, 0);
	TEST_ASSERT_EQ(range.absent, MEM_SIZE);
	TEST_ASSERT_EQ(gtdp_nr_mapped(env->vm), mapped);
}

static void check_absent(struct env *env, u64 gpa, u32 as_id)
{
	__check_absent(env, gpa, as_id, 0);
}

/* Just behind the limit, elsewhere, and the last memory that there can be. */
static bool test_absent(enum gtdp_backing backing)
{
	const u64 gpas[] = {
		LIMIT,
		FAR_GPA,
		2 * LIMIT,
		3 * LIMIT + SZ_2M + 5 * PAGE_SIZE,
		BIT_ULL(kvm_cpu_property(X86_PROPERTY_MAX_PHY_ADDR)) - MEM_SIZE,
	};
	struct env env;
	int i;

	if (!env_create(&env, KVM_GLOBAL_TDP_POPULATE, GTDP_ANON, backing))
		return false;

	for (i = 0; i < ARRAY_SIZE(gpas); i++) {
		gtdp_add_slot(env.vm, FAR_SLOT, 0, gpas[i], &env.far);
		check_absent(&env, gpas[i], 0);
		gtdp_delete_slot(env.vm, FAR_SLOT);
	}

	env_destroy(&env);
	return true;
}

static bool test_absent_small(void)
{
	return test_absent(GTDP_ANON);
}

static bool test_absent_huge(void)
{
	return test_absent(GTDP_THP);
}

static bool test_absent_smm(void)
{
	struct env env;

	if (!kvm_has_cap(KVM_CAP_X86_SMM) ||
	    !env_create(&env, KVM_GLOBAL_TDP_POPULATE, GTDP_ANON, GTDP_ANON))
		return false;

	gtdp_add_slot(env.vm, AS_ID(1) | FAR_SLOT, 0, FAR_GPA, &env.far);
	check_absent(&env, FAR_GPA, 1);

	env_destroy(&env);
	return true;
}

/* What no vCPU can reach is not mapped on the host, either. */
static bool test_absent_cached(void)
{
	u64 pfns[NR_PAGES];
	struct env env;

	if (!env_create(&env, KVM_GLOBAL_TDP_POPULATE, GTDP_ANON, GTDP_MEMFD))
		return false;

	TEST_ASSERT(!madvise(env.far.hva, MEM_SIZE, MADV_DONTNEED), "madvise()");
	gtdp_add_slot(env.vm, FAR_SLOT, 0, FAR_GPA, &env.far);
	__check_absent(&env, FAR_GPA, 0, KVM_POPULATE_PAGE_CACHE);
	TEST_ASSERT_EQ(gtdp_get_pfns(env.far.hva, NR_PAGES, pfns), 0);

	env_destroy(&env);
	return true;
}

/* What is out of reach was not accessed, and takes nothing from what is in reach. */
static bool test_harvest(void)
{
	u64 bitmap[NR_PAGES / 64], i;
	struct kvm_populate_memory sum, range = {
		.gpa = FAR_GPA,
		.size = MEM_SIZE,
		.flags = KVM_POPULATE_BITMAP,
		.bitmap = (uintptr_t)bitmap,
	};
	struct env env;

	if (!(kvm_check_cap(KVM_CAP_GLOBAL_TDP) & KVM_GLOBAL_TDP_HARVEST))
		return false;

	if (!env_create(&env, KVM_GLOBAL_TDP_POPULATE | KVM_GLOBAL_TDP_HARVEST, GTDP_ANON,
			GTDP_ANON))
		return false;

	gtdp_add_slot(env.vm, NEAR_SLOT, 0, NEAR_GPA, &env.near);
	gtdp_add_slot(env.vm, FAR_SLOT, 0, FAR_GPA, &env.far);
	gtdp_populate_full(env.vm, NEAR_GPA, MEM_SIZE);
	run(&env, GTDP_CHECK, NEAR_TAG);
	TEST_ASSERT_EQ(gtdp_harvest(env.vm, 0, FAR_GPA, MEM_SIZE, bitmap), 0);
	TEST_ASSERT_EQ(gtdp_harvest(env.vm, 0, NEAR_GPA, MEM_SIZE, bitmap), MEM_SIZE);
	for (i = 0; i < NR_PAGES; i++)
		TEST_ASSERT(bitmap[i / 64] >> i % 64 & 1, "Page %lu", (unsigned long)i);

	/* To be populated there is what is wanted only, and absent. */
	bitmap[0] = 1;
	TEST_ASSERT_EQ(gtdp_populate_on(env.vm, &range, &sum), 0);
	TEST_ASSERT_EQ(sum.mapped, 0);
	TEST_ASSERT_EQ(sum.absent, MEM_SIZE - 63 * PAGE_SIZE);

	env_destroy(&env);
	return true;
}

/* One memslot is in reach with its first half only. */
static bool test_across(enum gtdp_backing backing)
{
	const u64 gpa = LIMIT - MEM_SIZE / 2;
	struct kvm_populate_memory sum;
	u64 mapped;
	struct env env;

	if (!env_create(&env, KVM_GLOBAL_TDP_POPULATE, GTDP_ANON, backing))
		return false;

	mapped = gtdp_nr_mapped(env.vm);
	gtdp_add_slot(env.vm, FAR_SLOT, 0, gpa, &env.far);
	sum = gtdp_populate(env.vm, gpa, MEM_SIZE);
	TEST_ASSERT_EQ(sum.mapped, MEM_SIZE / 2);
	TEST_ASSERT_EQ(sum.absent, MEM_SIZE / 2);
	TEST_ASSERT_EQ(gtdp_nr_mapped(env.vm), mapped + NR_PAGES / 2);

	env_destroy(&env);
	return true;
}

static bool test_across_small(void)
{
	return test_across(GTDP_ANON);
}

static bool test_across_huge(void)
{
	return test_across(GTDP_THP);
}

/* Populate what is out of reach before the guest gets at what is in reach. */
static bool test_first(void)
{
	struct env env;

	if (!env_create(&env, KVM_GLOBAL_TDP_POPULATE, GTDP_ANON, GTDP_ANON))
		return false;

	gtdp_add_slot(env.vm, FAR_SLOT, 0, FAR_GPA, &env.far);
	gtdp_add_slot(env.vm, NEAR_SLOT, 0, NEAR_GPA, &env.near);
	gtdp_populate(env.vm, FAR_GPA, MEM_SIZE);
	check_near(&env);

	env_destroy(&env);
	return true;
}

/* Huge pages that are out of reach replace no page table that is in reach. */
static bool test_replaced(void)
{
	struct env env;

	if (!env_create(&env, KVM_GLOBAL_TDP_POPULATE, GTDP_ANON, GTDP_THP))
		return false;

	gtdp_add_slot(env.vm, NEAR_SLOT, 0, NEAR_GPA, &env.near);
	gtdp_add_slot(env.vm, FAR_SLOT, 0, FAR_GPA, &env.far);
	gtdp_populate_full(env.vm, NEAR_GPA, MEM_SIZE);
	gtdp_populate(env.vm, FAR_GPA, MEM_SIZE);
	check_near(&env);

	env_destroy(&env);
	return true;
}

/* With what else there is to fault pages in, and without any Global TDP. */
static bool test_prefault(enum gtdp_backing backing)
{
	struct kvm_pre_fault_memory range = { .gpa = FAR_GPA, .size = MEM_SIZE };
	struct env env;
	int r;

	if (!kvm_has_cap(KVM_CAP_PRE_FAULT_MEMORY) ||
	    !env_create(&env, 0, GTDP_ANON, backing))
		return false;

	gtdp_add_slot(env.vm, FAR_SLOT, 0, FAR_GPA, &env.far);
	gtdp_add_slot(env.vm, NEAR_SLOT, 0, NEAR_GPA, &env.near);

	r = __vcpu_ioctl(env.vcpu, KVM_PRE_FAULT_MEMORY, &range);
	TEST_ASSERT(r && errno == ENOENT, "KVM_PRE_FAULT_MEMORY: %d, errno: %d (%s)", r,
		    errno, strerror(errno));
	TEST_ASSERT_EQ(range.gpa, FAR_GPA);
	TEST_ASSERT_EQ(gtdp_nr_mapped(env.vm), 0);
	check_near(&env);

	env_destroy(&env);
	return true;
}

static bool test_prefault_small(void)
{
	return test_prefault(GTDP_ANON);
}

static bool test_prefault_huge(void)
{
	return test_prefault(GTDP_THP);
}

/*
 * The follower has come by once it has mapped what was added last, and is asked
 * to look at what is out of reach by way of the ioctl, too.
 */
static bool test_follower(u64 features)
{
	struct kvm_populate_memory range = {
		.gpa = FAR_GPA,
		.size = MEM_SIZE,
		.flags = KVM_POPULATE_ASYNC,
	};
	struct gtdp_mem next;
	struct env env;

	if (!env_create(&env, features, GTDP_ANON, GTDP_ANON))
		return false;

	alloc_stamped(&next, GTDP_ANON, NEAR_TAG);
	gtdp_add_slot(env.vm, FAR_SLOT, 0, FAR_GPA, &env.far);
	gtdp_wait_mapped(env.vm, env.nr_code);
	vm_ioctl(env.vm, KVM_POPULATE_MEMORY, &range);
	gtdp_add_slot(env.vm, NEXT_SLOT, 0, NEXT_GPA, &next);
	gtdp_wait_mapped(env.vm, env.nr_code + NR_PAGES);

	/* Whatever it counts, it is not to be found where the guest looks. */
	gtdp_add_slot(env.vm, NEAR_SLOT, 0, NEAR_GPA, &env.near);
	check_near(&env);
	gtdp_run(env.vcpu, GTDP_CHECK, NEXT_GPA, NR_PAGES, NEAR_TAG);
	TEST_ASSERT_EQ(gtdp_nr_mapped(env.vm), env.nr_code + 2 * NR_PAGES);

	env_destroy(&env);
	gtdp_mem_free(&next);
	return true;
}

static bool test_follower_asked_for(void)
{
	return test_follower(GTDP_ALL);
}

static bool test_follower_by_default(void)
{
	if (!gtdp_enabled_by_default()) {
		ksft_print_msg("kvm.global_tdp is off\n");
		return false;
	}

	return test_follower(GTDP_DEFAULT);
}

/* All of it is mapped, and as it should be. */
static void check_no_faults(struct env *env)
{
	TEST_ASSERT_EQ(run(env, GTDP_CHECK, NEAR_TAG), 0);
	TEST_ASSERT_EQ(run(env, GTDP_STAMP, NEAR_TAG), 0);
}

static bool changed_create(struct env *env)
{
	if (!env_create(env, KVM_GLOBAL_TDP_POPULATE, GTDP_ANON, GTDP_ANON))
		return false;

	gtdp_add_slot(env->vm, NEAR_SLOT, 0, NEAR_GPA, &env->near);
	gtdp_add_slot(env->vm, FAR_SLOT, 0, FAR_GPA, &env->far);
	gtdp_populate_full(env->vm, NEAR_GPA, MEM_SIZE);
	check_no_faults(env);
	return true;
}

/* What the host does to memory that is out of reach is not done to other. */
static bool test_zapped(void)
{
	struct env env;
	int r;

	if (!changed_create(&env))
		return false;

	r = madvise(env.far.hva, MEM_SIZE, MADV_DONTNEED);
	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("madvise()", r));
	check_no_faults(&env);

	env_destroy(&env);
	return true;
}

static bool test_logged(void)
{
	struct env env;

	if (!changed_create(&env))
		return false;

	gtdp_add_slot(env.vm, FAR_SLOT, KVM_MEM_LOG_DIRTY_PAGES, FAR_GPA, &env.far);
	check_no_faults(&env);
	gtdp_add_slot(env.vm, FAR_SLOT, 0, FAR_GPA, &env.far);
	check_no_faults(&env);

	env_destroy(&env);
	return true;
}

static bool test_deleted(void)
{
	struct env env;

	if (!changed_create(&env))
		return false;

	gtdp_delete_slot(env.vm, FAR_SLOT);
	check_no_faults(&env);

	env_destroy(&env);
	return true;
}

/*
 * Two huge pages, one of them read-only, for what would be one SPTE: that a
 * vCPU's write changes which of them it maps is where KVM gives up.
 */
static bool test_written(void)
{
	struct env env;

	if (!env_create(&env, KVM_GLOBAL_TDP_POPULATE, GTDP_THP, GTDP_THP))
		return false;

	gtdp_add_slot(env.vm, NEAR_SLOT, 0, NEAR_GPA, &env.near);
	gtdp_add_slot(env.vm, FAR_SLOT, KVM_MEM_READONLY, FAR_GPA, &env.far);
	gtdp_populate(env.vm, FAR_GPA, MEM_SIZE);
	run(&env, GTDP_STAMP, GUEST_TAG);
	gtdp_check(env.near.hva, NR_PAGES, GUEST_TAG);
	gtdp_check(env.far.hva, NR_PAGES, FAR_TAG);

	env_destroy(&env);
	return true;
}

static const struct gtdp_test tests[] = {
	{ "populated, small pages", test_absent_small },
	{ "populated, huge pages", test_absent_huge },
	{ "populated, SMM", test_absent_smm },
	{ "populated, page cache", test_absent_cached },
	{ "harvested", test_harvest },
	{ "populated across the limit, small pages", test_across_small },
	{ "populated across the limit, huge pages", test_across_huge },
	{ "populated first", test_first },
	{ "tables replaced", test_replaced },
	{ "prefaulted, small pages", test_prefault_small },
	{ "prefaulted, huge pages", test_prefault_huge },
	{ "follower", test_follower_asked_for },
	{ "follower, by default", test_follower_by_default },
	{ "zapped", test_zapped },
	{ "logged", test_logged },
	{ "deleted", test_deleted },
	{ "written", test_written },
};

/* KVM tells guests what it can map if that is less than what the CPU can address. */
static bool is_reach_limited(void)
{
	return kvm_cpu_property(X86_PROPERTY_MAX_PHY_ADDR) > 48 &&
	       kvm_cpu_property(X86_PROPERTY_GUEST_MAX_PHY_ADDR) == 48;
}

/* Takes part of the name of a test, to leave out all others. */
int main(int argc, char *argv[])
{
	gtdp_require(GTDP_ALL);
	__TEST_REQUIRE(is_reach_limited(),
		       "needs more than 48 bits of physical address, and 4-level TDP");
	gtdp_run_some_tests(tests, ARRAY_SIZE(tests), argc > 1 ? argv[1] : NULL);
}
