// SPDX-License-Identifier: GPL-2.0
/*
 * Proves that a page of 1GiB of the host is one of the guest, too, when it is
 * populated, but for as long as it is logged; and that it is gone at once when the
 * host takes it away, or a part of it has a memory error.
 *
 * Wants a free huge page of that size: hugepagesz=1G hugepages=1 reserves one.
 */
#include <stdlib.h>
#include <sys/mman.h>

#include <linux/bitmap.h>

#include "test_util.h"
#include "kvm_util.h"
#include "processor.h"
#include "global_tdp.h"

#define MEM_SIZE	SZ_1G
#define NR_PAGES	(MEM_SIZE / PAGE_SIZE)

#define HOST_TAG	1
#define GUEST_TAG	1000000

struct env {
	struct kvm_vm *vm;
	struct kvm_vcpu *vcpu;
	struct gtdp_mem mem;
	u64 nr_code;
};

/* One page of each 2MiB will do. */
static u64 run(struct env *env, enum gtdp_op op, u64 tag)
{
	return gtdp_run_job(env->vcpu, (struct gtdp_job) {
		.op = op,
		.gpa = GTDP_GPA,
		.nr = NR_PAGES,
		.step = GTDP_REGION_PAGES,
		.tag = tag,
	});
}

static void stamp(struct env *env, u64 tag)
{
	u64 i;

	for (i = 0; i < NR_PAGES; i += GTDP_REGION_PAGES)
		gtdp_stamp(env->mem.hva + i * PAGE_SIZE, 1, tag + i);
}

static void check(struct env *env, u64 tag)
{
	u64 i;

	for (i = 0; i < NR_PAGES; i += GTDP_REGION_PAGES)
		gtdp_check(env->mem.hva + i * PAGE_SIZE, 1, tag + i);
}

/* It is mapped as one page, and all of it can be read, and then written. */
static void check_giant(struct env *env)
{
	TEST_ASSERT_EQ(gtdp_vm_stat(env->vm, "pages_1g"), 1);
	TEST_ASSERT_EQ(gtdp_vm_stat(env->vm, "pages_2m"), 0);
	TEST_ASSERT_EQ(gtdp_vm_stat(env->vm, "pages_4k"), env->nr_code);
	TEST_ASSERT_EQ(run(env, GTDP_CHECK, HOST_TAG), 0);
	TEST_ASSERT_EQ(run(env, GTDP_STAMP, GUEST_TAG), 0);
	check(env, GUEST_TAG);
}

/* Of a bitmap, it counts as the pages that were wanted. */
static void populate_some(struct env *env)
{
	u64 bitmap = BIT_ULL(3) | BIT_ULL(5);
	struct kvm_populate_memory sum, range = {
		.gpa = GTDP_GPA + SZ_4M,
		.size = SZ_256K,
		.flags = KVM_POPULATE_BITMAP,
		.bitmap = (uintptr_t)&bitmap,
	};

	TEST_ASSERT_EQ(gtdp_populate_on(env->vm, &range, &sum), 0);
	TEST_ASSERT_EQ(sum.mapped, 2 * PAGE_SIZE);
	TEST_ASSERT_EQ(sum.absent, 0);
}

/* A part of it will do to have all of it mapped. */
static void populate(struct env *env, u64 nr_populated)
{
	populate_some(env);
	populate_some(env);
	TEST_ASSERT_EQ(gtdp_vm_stat(env->vm, "tdp_populated_1g"), nr_populated);
	gtdp_populate_full(env->vm, GTDP_GPA + SZ_4M, PAGE_SIZE);
	TEST_ASSERT_EQ(gtdp_vm_stat(env->vm, "tdp_populated_1g"), nr_populated);
	gtdp_populate_full(env->vm, GTDP_GPA, MEM_SIZE);
	TEST_ASSERT_EQ(gtdp_vm_stat(env->vm, "tdp_populated_1g"), nr_populated);
}

static void set_logging(struct env *env, bool on)
{
	gtdp_add_slot(env->vm, GTDP_SLOT, on ? KVM_MEM_LOG_DIRTY_PAGES : 0, GTDP_GPA,
		      &env->mem);
}

/* Small pages; the log has what the guest wrote, and no more. */
static void check_logged(struct env *env)
{
	unsigned long *log = bitmap_zalloc(NR_PAGES);
	u64 i;

	gtdp_populate_full(env->vm, GTDP_GPA, MEM_SIZE);
	TEST_ASSERT_EQ(gtdp_vm_stat(env->vm, "pages_4k"), env->nr_code + NR_PAGES);
	TEST_ASSERT_EQ(gtdp_nr_mapped(env->vm), env->nr_code + NR_PAGES);
	TEST_ASSERT_EQ(run(env, GTDP_CHECK, GUEST_TAG), 0);
	run(env, GTDP_STAMP, HOST_TAG);

	kvm_vm_get_dirty_log(env->vm, GTDP_SLOT, log);
	for (i = 0; i < NR_PAGES; i++)
		TEST_ASSERT(test_bit(i, log) == !(i % GTDP_REGION_PAGES),
			    "Page %lu is %sin the log", i, test_bit(i, log) ? "" : "not ");
	free(log);
}

static void check_gone(struct env *env)
{
	struct kvm_populate_memory sum;

	TEST_ASSERT_EQ(gtdp_nr_mapped(env->vm), env->nr_code);
	sum = gtdp_populate(env->vm, GTDP_GPA, MEM_SIZE);
	TEST_ASSERT_EQ(sum.absent, MEM_SIZE);
	TEST_ASSERT_EQ(gtdp_nr_mapped(env->vm), env->nr_code);
}

int main(void)
{
	struct env env;
	int r;

	gtdp_require(KVM_GLOBAL_TDP_POPULATE);
	__TEST_REQUIRE(gtdp_mem_alloc(&env.mem, GTDP_HUGETLB_1G, MEM_SIZE, 0),
		       "needs a free huge page of 1GiB");

	env.vm = gtdp_vm_create(KVM_GLOBAL_TDP_POPULATE, 1, &env.vcpu);
	gtdp_populate_code(env.vm);
	env.nr_code = gtdp_nr_mapped(env.vm);
	stamp(&env, HOST_TAG);

	set_logging(&env, false);
	populate(&env, 1);
	check_giant(&env);

	set_logging(&env, true);
	check_logged(&env);
	set_logging(&env, false);
	check_giant(&env);

	r = madvise(env.mem.hva, MEM_SIZE, MADV_DONTNEED);
	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("madvise()", r));
	check_gone(&env);

	stamp(&env, HOST_TAG);
	populate(&env, 2);
	if (gtdp_poison(env.mem.hva + SZ_4M)) {
		check_gone(&env);
		gtdp_check_poisoned(env.vcpu, GTDP_GPA + SZ_2M, env.mem.hva + SZ_2M);
	}

	kvm_vm_free(env.vm);
	gtdp_mem_free(&env.mem);
	return 0;
}
