// SPDX-License-Identifier: GPL-2.0
/*
 * Proves that a vCPU that faults on a page finds the present rest of the 2MiB
 * region mapped as well: a guest that touches N present pages takes N / 512
 * faults instead of N, and nothing is allocated for pages that are absent.  Where
 * a page table exists, what is around is mapped, and more if the guest uses that.
 */
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include "test_util.h"
#include "kvm_util.h"
#include "processor.h"
#include "global_tdp.h"

#define MEM_SIZE	SZ_32M
#define NR_PAGES	(MEM_SIZE / PAGE_SIZE)
#define NR_REGIONS	(MEM_SIZE / SZ_2M)

#define HOST_TAG	1
#define GUEST_TAG	1000000

/* For which another thread has been discarding a page when the vCPU faults. */
#define DISCARD_USECS	2000

static struct kvm_vm *create(u64 features, struct kvm_vcpu **vcpu)
{
	struct kvm_vm *vm = gtdp_vm_create(features, 1, vcpu);

	gtdp_prefault_code(*vcpu);
	return vm;
}

/* Returns the number of faults, first of reading, then of writing, all pages. */
static u64 count_faults(u64 features, enum gtdp_backing backing,
			     u64 gpa, size_t offset, u32 flags)
{
	u64 faults, around, times, ns, least, took, nr = NR_PAGES;
	struct timespec began;
	struct kvm_vcpu *vcpu;
	struct gtdp_mem mem;
	struct kvm_vm *vm;

	vm = create(features, &vcpu);
	gtdp_mem_alloc(&mem, backing, MEM_SIZE, offset);
	gtdp_stamp(mem.hva, nr, HOST_TAG);
	gtdp_add_slot(vm, GTDP_SLOT, flags, gpa, &mem);

	around = gtdp_vm_stat(vm, "tdp_fault_around");
	clock_gettime(CLOCK_MONOTONIC, &began);
	faults = gtdp_run(vcpu, GTDP_CHECK, gpa, nr, HOST_TAG);
	took = timespec_to_ns(timespec_elapsed(began));
	ns = gtdp_vm_stat(vm, "tdp_fault_around_time_ns");
	times = gtdp_vm_hist(vm, "tdp_fault_around_hist", &least);
	around = gtdp_vm_stat(vm, "tdp_fault_around") - around;
	if (features == KVM_GLOBAL_TDP_FAULT_AROUND) {
		TEST_ASSERT_EQ(around, nr - faults);
		TEST_ASSERT_EQ(times, faults);
		TEST_ASSERT(ns && ns < took, "%lu ns of %lu are of fault-around", ns, took);
		TEST_ASSERT(ns >= least && ns < 2 * least, "A histogram of %lu to %lu ns has %lu",
			    least, 2 * least, ns);
	} else if (!features) {
		TEST_ASSERT_EQ(around, 0);
	}

	if (!flags)
		TEST_ASSERT_EQ(gtdp_run(vcpu, GTDP_STAMP, gpa, nr, GUEST_TAG), 0);
	else
		gtdp_run(vcpu, GTDP_STAMP, gpa, nr, GUEST_TAG);
	gtdp_check(mem.hva, nr, GUEST_TAG);

	kvm_vm_free(vm);
	gtdp_mem_free(&mem);
	return faults;
}

static bool test_off(void)
{
	TEST_ASSERT_EQ(count_faults(0, GTDP_ANON, GTDP_GPA, 0, 0), NR_PAGES);
	return true;
}

static bool test_on(void)
{
	TEST_ASSERT_EQ(count_faults(KVM_GLOBAL_TDP_FAULT_AROUND, GTDP_ANON,
				    GTDP_GPA, 0, 0), NR_REGIONS);
	return true;
}

static bool test_memfd(void)
{
	TEST_ASSERT_EQ(count_faults(KVM_GLOBAL_TDP_FAULT_AROUND, GTDP_MEMFD,
				    GTDP_GPA, 0, 0), NR_REGIONS);
	return true;
}

/* Regions are those of the guest; the slot has one more of them, in part. */
static bool test_misaligned(void)
{
	TEST_ASSERT_EQ(count_faults(KVM_GLOBAL_TDP_FAULT_AROUND, GTDP_ANON,
				    GTDP_GPA + 3 * PAGE_SIZE, PAGE_SIZE, 0),
		       NR_REGIONS + 1);
	return true;
}

static bool test_logged(void)
{
	TEST_ASSERT_EQ(count_faults(KVM_GLOBAL_TDP_FAULT_AROUND, GTDP_ANON, GTDP_GPA,
				    0, KVM_MEM_LOG_DIRTY_PAGES), NR_REGIONS);
	return true;
}

/* With the parameter on, others may be faster than the vCPU, but not slower. */
static bool test_default(void)
{
	u64 faults = count_faults(GTDP_DEFAULT, GTDP_ANON, GTDP_GPA, 0, 0);

	if (gtdp_enabled_by_default())
		TEST_ASSERT(faults <= NR_REGIONS, "%lu faults", faults);
	else
		TEST_ASSERT_EQ(faults, NR_PAGES);
	return true;
}

/* With global_tdp=never, there is a fault a page, in a VM that has it, too. */
static bool test_never(void)
{
	const u64 nr = NR_PAGES / 2;
	struct kvm_vcpu *vcpu;
	struct gtdp_mem mem;
	struct kvm_vm *vm;
	u64 faults;

	vm = create(KVM_GLOBAL_TDP_FAULT_AROUND, &vcpu);
	gtdp_mem_alloc(&mem, GTDP_ANON, MEM_SIZE, 0);
	gtdp_stamp(mem.hva, NR_PAGES, HOST_TAG);
	gtdp_add_slot(vm, GTDP_SLOT, 0, GTDP_GPA, &mem);

	if (!gtdp_set_param("global_tdp", "never")) {
		kvm_vm_free(vm);
		gtdp_mem_free(&mem);
		return false;
	}
	faults = gtdp_run(vcpu, GTDP_CHECK, GTDP_GPA, nr, HOST_TAG);
	TEST_ASSERT(faults == nr, "With 'never', %lu faults map %lu pages", faults, nr);
	TEST_ASSERT_EQ(gtdp_vm_stat(vm, "tdp_fault_around"), 0);

	TEST_ASSERT(gtdp_set_param("global_tdp", "ask"), "It stays 'never'");
	TEST_ASSERT_EQ(gtdp_run(vcpu, GTDP_CHECK, GTDP_GPA + MEM_SIZE / 2, nr, HOST_TAG + nr),
		       NR_REGIONS / 2);
	gtdp_restore_params();

	kvm_vm_free(vm);
	gtdp_mem_free(&mem);
	return true;
}

/* Half of the pages are present, and it stays at that until they are touched. */
static bool test_absent(void)
{
	u64 i, absent, faults = 0;
	struct kvm_vcpu *vcpu;
	struct gtdp_mem mem;
	struct kvm_vm *vm;

	vm = create(KVM_GLOBAL_TDP_FAULT_AROUND, &vcpu);
	gtdp_mem_alloc(&mem, GTDP_ANON, MEM_SIZE, 0);
	for (i = 0; i < NR_PAGES; i += 2)
		gtdp_stamp(mem.hva + i * PAGE_SIZE, 1, HOST_TAG + i);
	gtdp_add_slot(vm, GTDP_SLOT, 0, GTDP_GPA, &mem);

	faults = gtdp_run_job(vcpu, (struct gtdp_job) {
		.op = GTDP_CHECK,
		.gpa = GTDP_GPA,
		.nr = NR_PAGES,
		.step = 2,
		.tag = HOST_TAG,
	});
	TEST_ASSERT_EQ(faults, NR_REGIONS);
	TEST_ASSERT_EQ(gtdp_nr_resident(mem.hva, MEM_SIZE), NR_PAGES / 2);

	/* The absent ones fault one by one: there is nothing around to map, nor a scan for it. */
	absent = gtdp_nr_absent(vm);
	TEST_ASSERT_EQ(gtdp_run(vcpu, GTDP_STAMP, GTDP_GPA, NR_PAGES, GUEST_TAG),
		       NR_PAGES / 2);
	TEST_ASSERT(gtdp_nr_absent(vm) == absent, "Faults have scanned %lu absent pages",
		    gtdp_nr_absent(vm) - absent);
	gtdp_check(mem.hva, NR_PAGES, GUEST_TAG);

	kvm_vm_free(vm);
	gtdp_mem_free(&mem);
	return true;
}

/*
 * Memory arrives after the guest has touched the first page, i.e. has a page table: faults
 * map 16 pages each, or four times as much as was used.
 */
static bool test_late(void)
{
	struct kvm_vcpu *vcpu;
	struct gtdp_mem mem;
	struct kvm_vm *vm;

	vm = create(KVM_GLOBAL_TDP_FAULT_AROUND, &vcpu);
	gtdp_mem_alloc(&mem, GTDP_ANON, SZ_2M, 0);
	gtdp_stamp(mem.hva, 1, HOST_TAG);
	gtdp_add_slot(vm, GTDP_SLOT, 0, GTDP_GPA, &mem);
	TEST_ASSERT_EQ(gtdp_run(vcpu, GTDP_CHECK, GTDP_GPA, 1, HOST_TAG), 1);

	/* With the pages 1, 16, 32, 48 and 128, or each sixteenth. */
	gtdp_stamp(mem.hva, GTDP_REGION_PAGES, HOST_TAG);
	TEST_ASSERT_EQ(gtdp_run(vcpu, GTDP_CHECK, GTDP_GPA, GTDP_REGION_PAGES, HOST_TAG),
		       gtdp_has_ad_bits() ? 5 : GTDP_REGION_PAGES / 16);

	kvm_vm_free(vm);
	gtdp_mem_free(&mem);
	return true;
}

static void *discard_page(void *hva)
{
	TEST_ASSERT(!madvise(hva, PAGE_SIZE, MADV_DONTNEED), "madvise()");
	return NULL;
}

/* A page that the host is just taking away is not in the page table that a fault links. */
static bool test_discarded(void)
{
	struct kvm_vcpu *vcpu;
	struct gtdp_mem mem;
	struct kvm_vm *vm;
	pthread_t thread;
	u64 i;

	vm = create(KVM_GLOBAL_TDP_FAULT_AROUND, &vcpu);
	gtdp_mem_alloc(&mem, GTDP_ANON, MEM_SIZE, 0);
	gtdp_stamp(mem.hva, NR_PAGES, HOST_TAG);
	gtdp_add_slot(vm, GTDP_SLOT, 0, GTDP_GPA, &mem);

	for (i = 0; i < NR_PAGES; i += GTDP_REGION_PAGES) {
		pthread_create(&thread, NULL, discard_page, mem.hva + (i + 1) * PAGE_SIZE);
		usleep(DISCARD_USECS);
		gtdp_run(vcpu, GTDP_CHECK, GTDP_GPA + i * PAGE_SIZE, 1, HOST_TAG + i);
		pthread_join(thread, NULL);
		gtdp_run(vcpu, GTDP_CHECK_ZERO, GTDP_GPA + (i + 1) * PAGE_SIZE, 1, 0);
	}

	kvm_vm_free(vm);
	gtdp_mem_free(&mem);
	return true;
}

static const struct gtdp_test tests[] = {
	{ "off", test_off },
	{ "on", test_on },
	{ "memfd", test_memfd },
	{ "misaligned", test_misaligned },
	{ "dirty logging", test_logged },
	{ "default follows the parameter", test_default },
	{ "parameter is never", test_never },
	{ "absent pages", test_absent },
	{ "late pages", test_late },
	{ "a page that is being discarded", test_discarded },
};

int main(void)
{
	gtdp_require(KVM_GLOBAL_TDP_FAULT_AROUND);
	gtdp_run_tests(tests, ARRAY_SIZE(tests));
}
