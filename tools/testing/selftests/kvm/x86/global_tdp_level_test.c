// SPDX-License-Identifier: GPL-2.0
/*
 * Proves that nothing is mapped ahead while it is not known how many levels the page
 * tables of vCPUs will have, as on CPUs with EPT of 5 levels before the first vCPU's
 * CPUID is set; that whoever asks for it is told so; and that all is mapped as soon
 * as that is known.
 */
#include <unistd.h>

#include "test_util.h"
#include "kvm_util.h"
#include "processor.h"
#include "global_tdp.h"

#define MEM_SIZE	SZ_4M
#define NR_PAGES	(MEM_SIZE / PAGE_SIZE)

#define HOST_TAG	1
#define GUEST_TAG	1000000

/* More than the follower sleeps between two passes. */
#define SETTLE_USECS	500000

int main(void)
{
	struct kvm_populate_memory range = { .gpa = GTDP_GPA, .size = MEM_SIZE };
	struct kvm_vcpu *vcpu;
	struct gtdp_mem mem;
	struct kvm_vm *vm;
	int r;

	gtdp_require(KVM_GLOBAL_TDP_FOLLOW | KVM_GLOBAL_TDP_POPULATE);

	gtdp_mem_alloc(&mem, GTDP_ANON, MEM_SIZE, 0);
	gtdp_stamp(mem.hva, NR_PAGES, HOST_TAG);
	vm = gtdp_vm_create_bare(1);
	vm_enable_cap(vm, KVM_CAP_GLOBAL_TDP,
		      KVM_GLOBAL_TDP_FOLLOW | KVM_GLOBAL_TDP_POPULATE);
	gtdp_add_slot(vm, GTDP_SLOT, 0, GTDP_GPA, &mem);

	r = __vm_ioctl(vm, KVM_POPULATE_MEMORY, &range);
	__TEST_REQUIRE(r, "needs EPT of 5 levels");
	TEST_ASSERT_EQ(errno, ENXIO);
	TEST_ASSERT_EQ(range.gpa, GTDP_GPA);
	TEST_ASSERT_EQ(range.size, MEM_SIZE);

	/* The follower, which waits for that, can be told already. */
	range.flags = KVM_POPULATE_ASYNC;
	vm_ioctl(vm, KVM_POPULATE_MEMORY, &range);
	usleep(SETTLE_USECS);
	TEST_ASSERT_EQ(gtdp_nr_mapped(vm), 0);

	gtdp_vm_add_vcpus(vm, 1, &vcpu);
	gtdp_wait_mapped(vm, gtdp_code_size(vm) / PAGE_SIZE + NR_PAGES);
	TEST_ASSERT_EQ(gtdp_run(vcpu, GTDP_CHECK, GTDP_GPA, NR_PAGES, HOST_TAG), 0);
	TEST_ASSERT_EQ(gtdp_run(vcpu, GTDP_STAMP, GTDP_GPA, NR_PAGES, GUEST_TAG), 0);
	gtdp_check(mem.hva, NR_PAGES, GUEST_TAG);

	gtdp_populate_full(vm, GTDP_GPA, MEM_SIZE);

	kvm_vm_free(vm);
	gtdp_mem_free(&mem);
	return 0;
}
