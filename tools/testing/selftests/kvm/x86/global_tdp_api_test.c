// SPDX-License-Identifier: GPL-2.0
/*
 * Proves the contract of Global TDP's interfaces: what the module's parameter
 * and KVM_CAP_GLOBAL_TDP turn on and off, every error of KVM_ENABLE_CAP and
 * KVM_POPULATE_MEMORY, and that a call that is refused changes nothing.
 */
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>

#include <linux/userfaultfd.h>

#include "test_util.h"
#include "apic.h"
#include "kvm_util.h"
#include "processor.h"
#include "global_tdp.h"

#define PARAMETERS	"/sys/module/kvm/parameters"
#define PARAMETER	PARAMETERS "/global_tdp"

#define MEM_SIZE	SZ_16M
#define NR_PAGES	(MEM_SIZE / PAGE_SIZE)

/*
 * Memslots of the same memory, for what is to take long enough that something
 * can happen meanwhile.
 */
#define NR_LARGE	64ul
#define LARGE_MEM_SIZE	SZ_64M
#define LARGE_PAGES	(NR_LARGE * LARGE_MEM_SIZE / PAGE_SIZE)

/* More than the follower ever sleeps between two passes. */
#define SLEEP_USECS	300000

/* Slots of address space 1, i.e. of SMM. */
#define SMM_SLOT	(BIT(16) | GTDP_SLOT)

static int populate(struct kvm_vm *vm, struct kvm_populate_memory *range)
{
	return __vm_ioctl(vm, KVM_POPULATE_MEMORY, range) ? errno : 0;
}

static bool can_populate(struct kvm_vm *vm)
{
	struct kvm_populate_memory range = {};
	int err = populate(vm, &range);

	TEST_ASSERT(!err || err == EOPNOTSUPP, "Unexpected error: %s", strerror(err));
	return !err;
}

static int enable(struct kvm_vm *vm, u64 features, u32 flags)
{
	struct kvm_enable_cap cap = {
		.cap = KVM_CAP_GLOBAL_TDP,
		.flags = flags,
		.args = { features },
	};

	return __vm_ioctl(vm, KVM_ENABLE_CAP, &cap) ? errno : 0;
}

/* Whether the host has been booted without PAT. */
static bool has_pat(void)
{
	char line[4096] = "";
	FILE *file = fopen("/proc/cmdline", "r");

	TEST_ASSERT(file && fgets(line, sizeof(line), file), "No /proc/cmdline");
	fclose(file);
	return !strstr(line, "nopat");
}

/* All or nothing, depending on what there is to build upon.  Returns which. */
static bool check_extension(void)
{
	struct kvm_populate_memory range = {};
	struct kvm_vm *vm = vm_create_barebones();
	bool tdp = get_kvm_param_bool("tdp_mmu");
	u64 features;

	if (host_cpu_is_amd)
		tdp &= get_kvm_amd_param_bool("npt");
	else if (host_cpu_is_intel)
		tdp &= get_kvm_intel_param_bool("ept");

	/* A guest's illegal addresses, and pages of which no PTE says that they are UC. */
	tdp &= !kvm_has_cap(KVM_CAP_SMALLER_MAXPHYADDR) && has_pat();

	/* AMD's CPUs always have Accessed bits. */
	features = !host_cpu_is_intel || get_kvm_intel_param_bool("eptad") ? GTDP_SUPPORTED :
									     GTDP_ALL;
	TEST_ASSERT_EQ(kvm_check_cap(KVM_CAP_GLOBAL_TDP), tdp ? features : 0);
	TEST_ASSERT_EQ(vm_check_cap(vm, KVM_CAP_GLOBAL_TDP), tdp ? features : 0);
	if (!tdp) {
		TEST_ASSERT_EQ(enable(vm, KVM_GLOBAL_TDP_POPULATE, 0), EINVAL);
		TEST_ASSERT_EQ(populate(vm, &range), EOPNOTSUPP);
	}

	kvm_vm_free(vm);
	return tdp;
}

/* Private memory is not the host's to map. */
static bool test_private_memory(void)
{
	struct kvm_populate_memory range = {};
	struct kvm_vm *vm;

	if (!(kvm_check_cap(KVM_CAP_VM_TYPES) & BIT(KVM_X86_SW_PROTECTED_VM)))
		return false;

	vm = vm_create_barebones_type(KVM_X86_SW_PROTECTED_VM);
	TEST_ASSERT_EQ(vm_check_cap(vm, KVM_CAP_GLOBAL_TDP), 0);
	TEST_ASSERT_EQ(enable(vm, KVM_GLOBAL_TDP_POPULATE, 0), EINVAL);
	TEST_ASSERT_EQ(populate(vm, &range), EOPNOTSUPP);
	kvm_vm_free(vm);
	return true;
}

static bool test_default(void)
{
	struct kvm_vm *vm = vm_create_barebones();

	TEST_ASSERT_EQ(can_populate(vm), gtdp_enabled_by_default());
	kvm_vm_free(vm);
	return true;
}

/* A VM has files of Global TDP's statistics with the first feature, from its creation or later. */
static bool test_stat_files(void)
{
	struct kvm_vm *vm;

	if (!gtdp_set_param("global_tdp", "0"))
		return false;
	vm = vm_create_barebones();
	TEST_ASSERT_EQ(gtdp_has_stat_file(getpid(), "pages_4k"), true);
	TEST_ASSERT_EQ(gtdp_has_stat_file(getpid(), "tdp_populated_4k"), false);
	vm_enable_cap(vm, KVM_CAP_GLOBAL_TDP, KVM_GLOBAL_TDP_POPULATE);
	TEST_ASSERT_EQ(gtdp_has_stat_file(getpid(), "tdp_populated_4k"), true);
	TEST_ASSERT_EQ(gtdp_has_stat_file(getpid(), "tdp_thread_failed"), true);
	TEST_ASSERT_EQ(gtdp_has_stat_file(getpid(), "max_mmu_rmap_size"), true);
	kvm_vm_free(vm);

	TEST_ASSERT(gtdp_set_param("global_tdp", "1"), "It can't be turned on");
	vm = vm_create_barebones();
	TEST_ASSERT_EQ(gtdp_has_stat_file(getpid(), "tdp_populated_4k"), true);
	kvm_vm_free(vm);
	gtdp_restore_params();
	return true;
}

/* It is written as a name or as a boolean, and read as a name. */
static bool test_spellings(void)
{
	const struct {
		const char *written, *read;
	} cases[] = {
		{ "always", "always" }, { "never", "never" }, { "ask", "ask" },
		{ "1", "always" }, { "0", "ask" }, { "Y", "always" }, { "N", "ask" },
		{ "never\n", "never" }, { "always\n", "always" }, { "ask\n", "ask" },
	};
	const char * const unknown[] = {
		"2", "-1", "y", "on", "sometimes", "ask never", "al", "nevr", "Never", "none",
	};
	int i;

	for (i = 0; i < ARRAY_SIZE(cases); i++) {
		if (!gtdp_set_param("global_tdp", cases[i].written))
			return false;
		TEST_ASSERT(gtdp_param_is("global_tdp", cases[i].read),
			    "'%s' is not read as '%s'", cases[i].written, cases[i].read);
	}

	for (i = 0; i < ARRAY_SIZE(unknown); i++) {
		TEST_ASSERT(!gtdp_write_file(PARAMETERS, "global_tdp", unknown[i]),
			    "'%s' was accepted", unknown[i]);
		TEST_ASSERT(gtdp_param_is("global_tdp", "ask"), "'%s' counts", unknown[i]);
	}
	gtdp_restore_params();
	return true;
}

/* The parameter is for VMs that are created later: those that exist keep what they have. */
static bool test_parameter(void)
{
	struct kvm_vm *with, *without;

	if (!gtdp_set_param("global_tdp", "1"))
		return false;
	with = vm_create_barebones();
	TEST_ASSERT(gtdp_set_param("global_tdp", "0"), "It can't be turned off");
	without = vm_create_barebones();
	TEST_ASSERT_EQ(can_populate(with), true);
	TEST_ASSERT_EQ(can_populate(without), false);

	TEST_ASSERT(gtdp_set_param("global_tdp", "1"), "It can't be turned on");
	TEST_ASSERT_EQ(can_populate(with), true);
	TEST_ASSERT_EQ(can_populate(without), false);
	gtdp_restore_params();

	kvm_vm_free(without);
	kvm_vm_free(with);
	return true;
}

static bool test_enable_cap(void)
{
	struct kvm_vm *vm = vm_create_barebones();
	u64 features;

	TEST_ASSERT_EQ(enable(vm, GTDP_SUPPORTED + 1, 0), EINVAL);
	TEST_ASSERT_EQ(enable(vm, BIT_ULL(63), 0), EINVAL);
	TEST_ASSERT_EQ(enable(vm, GTDP_ALL, 1), EINVAL);
	TEST_ASSERT_EQ(can_populate(vm), gtdp_enabled_by_default());

	/* Any combination can be chosen, and the last one counts. */
	for (features = kvm_check_cap(KVM_CAP_GLOBAL_TDP); ; features--) {
		TEST_ASSERT_EQ(enable(vm, features, 0), 0);
		TEST_ASSERT_EQ(can_populate(vm), !!(features & KVM_GLOBAL_TDP_POPULATE));
		if (!features)
			break;
	}

	TEST_ASSERT_EQ(enable(vm, KVM_GLOBAL_TDP_POPULATE, 0), 0);
	TEST_ASSERT_EQ(enable(vm, GTDP_SUPPORTED + 1, 0), EINVAL);
	TEST_ASSERT_EQ(can_populate(vm), true);

	/* Too late.  What is wrong in any case is still said to be wrong. */
	__vm_vcpu_add(vm, 0);
	TEST_ASSERT_EQ(enable(vm, 0, 0), EBUSY);
	TEST_ASSERT_EQ(enable(vm, KVM_GLOBAL_TDP_POPULATE, 0), EBUSY);
	TEST_ASSERT_EQ(enable(vm, GTDP_SUPPORTED + 1, 0), EINVAL);
	TEST_ASSERT_EQ(enable(vm, GTDP_ALL, 1), EINVAL);
	TEST_ASSERT_EQ(can_populate(vm), true);

	kvm_vm_free(vm);
	return true;
}

static void add_vcpu(struct kvm_vm *vm)
{
	vcpu_init_cpuid(__vm_vcpu_add(vm, 0), kvm_get_supported_cpuid());
}

static void populate_async(struct kvm_vm *vm, u64 gpa, u64 size)
{
	struct kvm_populate_memory range = {
		.gpa = gpa,
		.size = size,
		.flags = KVM_POPULATE_ASYNC,
	};

	TEST_ASSERT_EQ(populate(vm, &range), 0);
	TEST_ASSERT_EQ(range.gpa, gpa + size);
}

/* Neither at once nor handed over. */
static void check_off(struct kvm_vm *vm)
{
	struct kvm_populate_memory range = { .gpa = GTDP_GPA, .size = MEM_SIZE };

	TEST_ASSERT_EQ(populate(vm, &range), EOPNOTSUPP);
	range.flags = KVM_POPULATE_ASYNC;
	TEST_ASSERT_EQ(populate(vm, &range), EOPNOTSUPP);
	TEST_ASSERT_EQ(range.gpa, GTDP_GPA);
	TEST_ASSERT_EQ(range.size, MEM_SIZE);
}

/*
 * That something does not happen is shown by what happens meanwhile: a VM of the
 * same process that is followed.  Memory arrives, without a word about it, and
 * that VM's follower finds it, time after time.
 */
struct witness {
	struct kvm_vm *vm;
	struct gtdp_mem mem;
	u64 nr_present;
};

static void witness_create(struct witness *w)
{
	w->nr_present = 0;
	gtdp_mem_alloc(&w->mem, GTDP_ANON, MEM_SIZE, 0);

	w->vm = vm_create_barebones();
	TEST_ASSERT_EQ(enable(w->vm, GTDP_ALL, 0), 0);
	gtdp_add_slot(w->vm, GTDP_SLOT, 0, GTDP_GPA, &w->mem);
	populate_async(w->vm, GTDP_GPA, MEM_SIZE);
}

/* Three times: a region that had nothing when last looked at may have to wait. */
static void witness_follows(struct witness *w)
{
	int i;

	for (i = 0; i < 3; i++) {
		TEST_ASSERT(w->nr_present < NR_PAGES, "Nothing is left to arrive");
		usleep(SLEEP_USECS);
		gtdp_stamp(w->mem.hva + w->nr_present * PAGE_SIZE, GTDP_REGION_PAGES, 1);
		w->nr_present += GTDP_REGION_PAGES;
		gtdp_wait_mapped(w->vm, w->nr_present);
	}
}

static void witness_free(struct witness *w)
{
	kvm_vm_free(w->vm);
	gtdp_mem_free(&w->mem);
}

static struct kvm_vm *create_large(u64 features, struct gtdp_mem *mem)
{
	struct kvm_vm *vm = vm_create_barebones();
	u64 i;

	TEST_ASSERT_EQ(enable(vm, features, 0), 0);
	for (i = 0; i < NR_LARGE; i++)
		gtdp_add_slot(vm, GTDP_SLOT + i, 0, GTDP_GPA + i * LARGE_MEM_SIZE, mem);

	return vm;
}

/* All calls are refused. */
static void check_never(struct kvm_vm *vm)
{
	u64 bitmap[MEM_SIZE / PAGE_SIZE / 64] = {};
	struct kvm_harvest_accessed range = {
		.gpa = GTDP_GPA,
		.size = MEM_SIZE,
		.bitmap = (u64)bitmap,
	};
	struct kvm_vm *other = vm_create_barebones();
	int r;

	check_off(vm);
	r = __vm_ioctl(vm, KVM_HARVEST_ACCESSED, &range);
	TEST_ASSERT(r && errno == EOPNOTSUPP, "A harvest is not refused");
	TEST_ASSERT_EQ(range.size, MEM_SIZE);

	TEST_ASSERT_EQ(kvm_check_cap(KVM_CAP_GLOBAL_TDP), 0);
	TEST_ASSERT_EQ(vm_check_cap(vm, KVM_CAP_GLOBAL_TDP), 0);
	TEST_ASSERT_EQ(enable(other, KVM_GLOBAL_TDP_POPULATE, 0), EINVAL);
	TEST_ASSERT_EQ(enable(other, 0, 0), 0);
	kvm_vm_free(other);
}

/* With "never", VMs that exist get nothing more, and keep what is mapped.  Then they go on. */
static bool test_never(void)
{
	const u64 features = KVM_GLOBAL_TDP_POPULATE |
				  (kvm_check_cap(KVM_CAP_GLOBAL_TDP) & KVM_GLOBAL_TDP_HARVEST);
	const char * const back[] = { "ask", "always" };
	const u64 nr = NR_PAGES / 2;
	u64 bitmap[MEM_SIZE / PAGE_SIZE / 64], mapped;
	struct kvm_vcpu *vcpu;
	struct gtdp_mem mem;
	struct kvm_vm *vm;
	int i;

	gtdp_mem_alloc(&mem, GTDP_ANON, MEM_SIZE, 0);
	gtdp_stamp(mem.hva, NR_PAGES, 1);

	for (i = 0; i < ARRAY_SIZE(back); i++) {
		vm = gtdp_vm_create(features, 1, &vcpu);
		gtdp_populate_code(vm);
		gtdp_add_slot(vm, GTDP_SLOT, 0, GTDP_GPA, &mem);
		gtdp_populate_full(vm, GTDP_GPA, MEM_SIZE / 2);
		mapped = gtdp_nr_mapped(vm);

		if (!gtdp_set_param("global_tdp", "never"))
			return false;
		check_never(vm);
		gtdp_add_slot(vm, GTDP_SLOT + 1, 0, GTDP_GPA + MEM_SIZE, &mem);
		gtdp_delete_slot(vm, GTDP_SLOT + 1);
		TEST_ASSERT_EQ(gtdp_nr_mapped(vm), mapped);
		TEST_ASSERT_EQ(gtdp_run(vcpu, GTDP_CHECK, GTDP_GPA, nr, 1), 0);

		TEST_ASSERT(gtdp_set_param("global_tdp", back[i]), "It stays 'never'");
		TEST_ASSERT(vm_check_cap(vm, KVM_CAP_GLOBAL_TDP), "It is still refused");
		if (features & KVM_GLOBAL_TDP_HARVEST)
			TEST_ASSERT_EQ(gtdp_harvest(vm, 0, GTDP_GPA, MEM_SIZE, bitmap),
				       MEM_SIZE / 2);
		gtdp_populate_full(vm, GTDP_GPA, MEM_SIZE);
		TEST_ASSERT_EQ(gtdp_run(vcpu, GTDP_CHECK, GTDP_GPA, NR_PAGES, 1), 0);
		kvm_vm_free(vm);
	}

	gtdp_restore_params();
	gtdp_mem_free(&mem);
	return true;
}

/* The follower maps what was there before it was enabled, whatever was first. */
static bool test_enable_late(void)
{
	const u64 first[] = {
		GTDP_DEFAULT, 0, KVM_GLOBAL_TDP_POPULATE, GTDP_ALL,
	};
	struct gtdp_mem mem;
	struct kvm_vm *vm;
	int i;

	gtdp_mem_alloc(&mem, GTDP_ANON, MEM_SIZE, 0);
	gtdp_stamp(mem.hva, NR_PAGES, 1);

	for (i = 0; i < ARRAY_SIZE(first); i++) {
		vm = vm_create_barebones();
		if (first[i] != GTDP_DEFAULT)
			TEST_ASSERT_EQ(enable(vm, first[i], 0), 0);
		gtdp_add_slot(vm, GTDP_SLOT, 0, GTDP_GPA, &mem);

		if (first[i] == GTDP_ALL) {
			TEST_ASSERT_EQ(enable(vm, 0, 0), 0);
			check_off(vm);
		}
		TEST_ASSERT_EQ(enable(vm, GTDP_ALL, 0), 0);

		add_vcpu(vm);
		gtdp_wait_mapped(vm, NR_PAGES);
		kvm_vm_free(vm);
	}

	gtdp_mem_free(&mem);
	return true;
}

/* What the follower was told to follow before is only what it was told after. */
static bool test_enable_less(void)
{
	const u64 part = MEM_SIZE / 2;
	struct witness witness;
	struct gtdp_mem mem;
	struct kvm_vm *vm;

	gtdp_mem_alloc(&mem, GTDP_ANON, MEM_SIZE, 0);
	gtdp_stamp(mem.hva, NR_PAGES, 1);

	vm = vm_create_barebones();
	TEST_ASSERT_EQ(enable(vm, GTDP_ALL, 0), 0);
	gtdp_add_slot(vm, GTDP_SLOT, 0, GTDP_GPA, &mem);
	TEST_ASSERT_EQ(enable(vm, KVM_GLOBAL_TDP_POPULATE, 0), 0);

	populate_async(vm, GTDP_GPA + part / 2, part);
	witness_create(&witness);
	gtdp_wait_mapped(vm, part / PAGE_SIZE);
	witness_follows(&witness);
	TEST_ASSERT_EQ(gtdp_nr_mapped(vm), part / PAGE_SIZE);

	/* There is a follower already, which is told to follow again. */
	TEST_ASSERT_EQ(enable(vm, GTDP_ALL, 0), 0);
	add_vcpu(vm);
	gtdp_wait_mapped(vm, NR_PAGES);

	witness_free(&witness);
	kvm_vm_free(vm);
	gtdp_mem_free(&mem);
	return true;
}

/* What a follower has been handed is not its any more, and nothing comes back. */
static bool test_disable_async(void)
{
	struct witness witness;
	struct gtdp_mem mem;
	struct kvm_vm *vm;
	u64 nr;
	int r;

	gtdp_mem_alloc(&mem, GTDP_ANON, MEM_SIZE, 0);
	gtdp_stamp(mem.hva, NR_PAGES / 2, 1);

	vm = vm_create_barebones();
	TEST_ASSERT_EQ(enable(vm, GTDP_ALL, 0), 0);
	gtdp_add_slot(vm, GTDP_SLOT, 0, GTDP_GPA, &mem);
	populate_async(vm, GTDP_GPA, MEM_SIZE);
	witness_create(&witness);
	gtdp_wait_mapped(vm, NR_PAGES / 2);

	/* The other half it is still waiting for. */
	TEST_ASSERT_EQ(enable(vm, 0, 0), 0);
	nr = gtdp_nr_populated(vm);
	TEST_ASSERT_EQ(nr, NR_PAGES / 2);
	check_off(vm);

	gtdp_stamp(mem.hva, NR_PAGES, 1);
	witness_follows(&witness);
	TEST_ASSERT_EQ(gtdp_nr_populated(vm), nr);

	add_vcpu(vm);
	r = madvise(mem.hva, MEM_SIZE, MADV_DONTNEED);
	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("madvise()", r));
	gtdp_stamp(mem.hva, NR_PAGES, 1);
	gtdp_add_slot(vm, GTDP_SLOT + 1, 0, GTDP_GPA + MEM_SIZE, &mem);
	witness_follows(&witness);
	TEST_ASSERT_EQ(gtdp_nr_mapped(vm), 0);
	TEST_ASSERT_EQ(gtdp_nr_populated(vm), nr);

	witness_free(&witness);
	kvm_vm_free(vm);
	gtdp_mem_free(&mem);
	return true;
}

/* Once more, while the follower is at work. */
static bool test_disable_busy(void)
{
	struct witness witness;
	struct gtdp_mem mem;
	struct kvm_vm *vm;
	int i, hits = 0;
	u64 nr;

	gtdp_mem_alloc(&mem, GTDP_ANON, LARGE_MEM_SIZE, 0);
	gtdp_stamp(mem.hva, LARGE_MEM_SIZE / PAGE_SIZE, 1);

	/* It may be done sooner. */
	for (i = 0; i < 10 && !hits; i++) {
		vm = create_large(GTDP_ALL, &mem);
		populate_async(vm, GTDP_GPA, NR_LARGE * LARGE_MEM_SIZE);
		__gtdp_wait_until(gtdp_nr_populated(vm), 0);
		TEST_ASSERT_EQ(enable(vm, 0, 0), 0);
		nr = gtdp_nr_populated(vm);
		hits += nr < LARGE_PAGES;

		witness_create(&witness);
		witness_follows(&witness);
		TEST_ASSERT_EQ(gtdp_nr_populated(vm), nr);
		add_vcpu(vm);
		witness_follows(&witness);
		TEST_ASSERT_EQ(gtdp_nr_populated(vm), nr);

		witness_free(&witness);
		kvm_vm_free(vm);
	}

	gtdp_mem_free(&mem);
	TEST_ASSERT(hits, "The follower was always done before it was stopped");
	return true;
}

/* Populate until that is not supported any more. */
static void *populator(void *arg)
{
	struct kvm_populate_memory range;
	struct kvm_vm *vm = arg;
	int err;

	do {
		range = (struct kvm_populate_memory) {
			.gpa = GTDP_GPA,
			.size = NR_LARGE * LARGE_MEM_SIZE,
		};
		err = populate(vm, &range);
	} while (!err || err == EAGAIN);

	TEST_ASSERT(err == EOPNOTSUPP, "Unexpected error: %s", strerror(err));
	return NULL;
}

/*
 * Another thread that is in the midst of a call does not get any further, at once or,
 * if all of the host is to @stop, soon.
 */
static bool disable_populate(bool stop)
{
	pthread_t thread;
	struct gtdp_mem mem;
	struct kvm_vm *vm;
	int i, hits = 0;
	u64 nr;

	gtdp_mem_alloc(&mem, GTDP_ANON, LARGE_MEM_SIZE, 0);
	gtdp_stamp(mem.hva, LARGE_MEM_SIZE / PAGE_SIZE, 1);

	/* It may be done with its first call sooner. */
	for (i = 0; i < 10 && hits < 3; i++) {
		vm = create_large(KVM_GLOBAL_TDP_POPULATE, &mem);
		pthread_create(&thread, NULL, populator, vm);
		__gtdp_wait_until(gtdp_nr_populated(vm), 0);
		if (stop) {
			TEST_ASSERT(gtdp_set_param("global_tdp", "never"), "It can't be stopped");
			pthread_join(thread, NULL);
			hits += gtdp_nr_populated(vm) < LARGE_PAGES;
			gtdp_restore_params();
		} else {
			TEST_ASSERT_EQ(enable(vm, 0, 0), 0);
			nr = gtdp_nr_populated(vm);
			hits += nr < LARGE_PAGES;

			pthread_join(thread, NULL);
			TEST_ASSERT_EQ(gtdp_nr_populated(vm), nr);
		}
		kvm_vm_free(vm);
	}

	gtdp_mem_free(&mem);
	TEST_ASSERT(hits, "The call was always done before it was to be stopped");
	return true;
}

static bool test_disable_populate(void)
{
	return disable_populate(false);
}

static bool test_never_populate(void)
{
	if (access(PARAMETER, W_OK)) {
		ksft_print_msg("global_tdp can't be set\n");
		return false;
	}
	return disable_populate(true);
}

/* The last choice is what faults, and vCPUs that are created, go by. */
static bool test_disable_faults(void)
{
	const struct {
		u64 first, last, faults;
	} cases[] = {
		{ GTDP_ALL, 0, NR_PAGES },
		{ GTDP_DEFAULT, 0, NR_PAGES },
		{ 0, KVM_GLOBAL_TDP_FAULT_AROUND, MEM_SIZE / SZ_2M },
	};
	struct kvm_vcpu *vcpu;
	struct gtdp_mem mem;
	struct kvm_vm *vm;
	pid_t tids[8];
	int i;

	gtdp_mem_alloc(&mem, GTDP_ANON, MEM_SIZE, 0);
	gtdp_stamp(mem.hva, NR_PAGES, 1);

	/* Those of other VMs have been stopped, but may be about to exit yet. */
	gtdp_wait_until(!gtdp_kernel_threads(tids, ARRAY_SIZE(tids)));

	for (i = 0; i < ARRAY_SIZE(cases); i++) {
		vm = gtdp_vm_create_bare(1);
		if (cases[i].first != GTDP_DEFAULT)
			TEST_ASSERT_EQ(enable(vm, cases[i].first, 0), 0);
		gtdp_add_slot(vm, GTDP_SLOT, 0, GTDP_GPA, &mem);
		TEST_ASSERT_EQ(enable(vm, cases[i].last, 0), 0);

		gtdp_vm_add_vcpus(vm, 1, &vcpu);
		gtdp_prefault_code(vcpu);
		TEST_ASSERT_EQ(gtdp_run(vcpu, GTDP_CHECK, GTDP_GPA, NR_PAGES, 1),
			       cases[i].faults);
		TEST_ASSERT_EQ(gtdp_nr_populated(vm), NR_PAGES - cases[i].faults);
		TEST_ASSERT_EQ(gtdp_kernel_threads(tids, ARRAY_SIZE(tids)), 0);
		kvm_vm_free(vm);
	}

	gtdp_mem_free(&mem);
	return true;
}

/* The missing permission comes before anything that is wrong with the call. */
static bool test_not_enabled(void)
{
	struct kvm_populate_memory range = { .gpa = 1, .flags = ~0, .as_id = ~0 };
	struct kvm_vm *vm = vm_create_barebones();
	int r;

	TEST_ASSERT_EQ(enable(vm, GTDP_ALL & ~KVM_GLOBAL_TDP_POPULATE, 0), 0);
	TEST_ASSERT_EQ(populate(vm, &range), EOPNOTSUPP);

	r = ioctl(vm->fd, KVM_POPULATE_MEMORY, NULL);
	TEST_ASSERT(r && errno == EOPNOTSUPP, KVM_IOCTL_ERROR(KVM_POPULATE_MEMORY, r));

	kvm_vm_free(vm);
	return true;
}

static void refused(struct kvm_vm *vm, struct kvm_populate_memory range)
{
	struct kvm_populate_memory before;
	u64 mapped = gtdp_nr_mapped(vm);

	/* Results of earlier calls are ignored, and kept if there are none. */
	range.mapped = 1;
	range.absent = 2;
	before = range;

	TEST_ASSERT_EQ(populate(vm, &range), EINVAL);
	TEST_ASSERT(!memcmp(&range, &before, sizeof(range)),
		    "Refused, but changed to gpa %#llx size %#llx mapped %#llx absent %#llx",
		    range.gpa, range.size, range.mapped, range.absent);
	TEST_ASSERT_EQ(gtdp_nr_mapped(vm), mapped);
}

static bool test_invalid(void)
{
	struct kvm_populate_memory good = { .gpa = GTDP_GPA, .size = MEM_SIZE }, bad;
	int nr_as = kvm_check_cap(KVM_CAP_MULTI_ADDRESS_SPACE);
	struct kvm_vcpu *vcpu;
	struct gtdp_mem mem;
	struct kvm_vm *vm;
	int r;

	vm = gtdp_vm_create(KVM_GLOBAL_TDP_POPULATE, 1, &vcpu);
	gtdp_mem_alloc(&mem, GTDP_ANON, MEM_SIZE, 0);
	gtdp_stamp(mem.hva, MEM_SIZE / PAGE_SIZE, 1);
	gtdp_add_slot(vm, GTDP_SLOT, 0, GTDP_GPA, &mem);

#define REFUSED(field, value)		\
do {					\
	bad = good;			\
	bad.field = value;		\
	refused(vm, bad);		\
} while (0)

	REFUSED(gpa, GTDP_GPA + 1);
	REFUSED(gpa, GTDP_GPA + PAGE_SIZE / 2);
	REFUSED(size, 1);
	REFUSED(size, MEM_SIZE - 1);
	REFUSED(size, -(u64)PAGE_SIZE);
	REFUSED(gpa, -(u64)PAGE_SIZE);
	REFUSED(flags, KVM_POPULATE_BITMAP << 1);
	REFUSED(flags, KVM_POPULATE_ASYNC | KVM_POPULATE_PAGE_CACHE);
	REFUSED(flags, KVM_POPULATE_ASYNC | BIT(31));
	REFUSED(as_id, nr_as > 1 ? nr_as : 1);
	REFUSED(as_id, ~0);
	REFUSED(bitmap, 8);
	REFUSED(reserved, 1);
	REFUSED(reserved, BIT_ULL(63));

	/* Even if there was nothing to do. */
	good.size = 0;
	REFUSED(gpa, GTDP_GPA + 1);
	REFUSED(flags, BIT(31));

	r = ioctl(vm->fd, KVM_POPULATE_MEMORY, NULL);
	TEST_ASSERT(r && errno == EFAULT, KVM_IOCTL_ERROR(KVM_POPULATE_MEMORY, r));

	kvm_vm_free(vm);
	gtdp_mem_free(&mem);
	return true;
}

static bool test_size_zero(void)
{
	struct kvm_populate_memory range = { .mapped = 1, .absent = 2 };
	struct kvm_vcpu *vcpu;
	struct kvm_vm *vm;
	u64 mapped;

	vm = gtdp_vm_create(KVM_GLOBAL_TDP_POPULATE, 1, &vcpu);
	mapped = gtdp_nr_mapped(vm);

	TEST_ASSERT_EQ(populate(vm, &range), 0);
	TEST_ASSERT(!range.gpa && !range.size && !range.mapped && !range.absent,
		    "Nothing, but changed to gpa %#llx size %#llx mapped %#llx absent %#llx",
		    range.gpa, range.size, range.mapped, range.absent);

	/* Where nothing is wanted, there need not be a memslot either. */
	range.gpa = GTDP_GPA;
	TEST_ASSERT_EQ(populate(vm, &range), 0);
	TEST_ASSERT_EQ(range.gpa, GTDP_GPA);
	TEST_ASSERT_EQ(gtdp_nr_mapped(vm), mapped);

	kvm_vm_free(vm);
	return true;
}

/* Expect to get to @end, where there is no memslot. */
static void populate_until(struct kvm_vm *vm, struct kvm_populate_memory range,
			   u64 end, u64 mapped, u64 absent)
{
	u64 range_end = range.gpa + range.size;

	/* Both are results, whatever they are at first. */
	range.mapped = ~0ULL;
	range.absent = ~0ULL;

	TEST_ASSERT_EQ(populate(vm, &range), ENOENT);
	TEST_ASSERT_EQ(range.gpa, end);
	TEST_ASSERT_EQ(range.size, range_end - end);
	TEST_ASSERT_EQ(range.mapped, mapped);
	TEST_ASSERT_EQ(range.absent, absent);
}

static bool test_holes(void)
{
	const u64 half = MEM_SIZE / 2, hole = GTDP_GPA + MEM_SIZE;
	struct kvm_populate_memory range = { .gpa = GTDP_GPA };
	struct gtdp_mem first, second;
	struct kvm_vcpu *vcpu;
	struct kvm_vm *vm;

	vm = gtdp_vm_create(KVM_GLOBAL_TDP_POPULATE, 1, &vcpu);

	/* Two slots side by side, half of each present, and another further on. */
	gtdp_mem_alloc(&first, GTDP_ANON, MEM_SIZE, 0);
	gtdp_mem_alloc(&second, GTDP_ANON, half, 0);
	gtdp_stamp(first.hva, half / PAGE_SIZE, 1);
	gtdp_stamp(second.hva, half / PAGE_SIZE, 1);
	first.size = half;
	gtdp_add_slot(vm, GTDP_SLOT, 0, GTDP_GPA, &first);
	first.hva += half;
	gtdp_add_slot(vm, GTDP_SLOT + 1, 0, GTDP_GPA + half, &first);
	gtdp_add_slot(vm, GTDP_SLOT + 2, 0, hole + SZ_2M, &second);

	/* From one slot into the next, and to the end of that. */
	range.size = MEM_SIZE;
	TEST_ASSERT_EQ(populate(vm, &range), 0);
	TEST_ASSERT_EQ(range.gpa, GTDP_GPA + MEM_SIZE);
	TEST_ASSERT_EQ(range.size, 0);
	TEST_ASSERT_EQ(range.mapped, half);
	TEST_ASSERT_EQ(range.absent, half);

	/* Into the hole, at once and after some work, but not over it. */
	range.gpa = GTDP_GPA;
	range.size = MEM_SIZE + SZ_4M;
	populate_until(vm, range, hole, half, half);

	range.gpa = hole - PAGE_SIZE;
	range.size = PAGE_SIZE * 2;
	populate_until(vm, range, hole, 0, PAGE_SIZE);

	range.gpa = hole;
	range.size = SZ_2M + half;
	populate_until(vm, range, hole, 0, 0);

	range.gpa = hole + SZ_2M + half;
	range.size = PAGE_SIZE;
	populate_until(vm, range, hole + SZ_2M + half, 0, 0);

	/* Beyond what any guest can have. */
	range.gpa = BIT_ULL(62);
	range.size = SZ_2M;
	populate_until(vm, range, BIT_ULL(62), 0, 0);

	/* KVM's own memslots, if it has any, are none to others. */
	range.gpa = APIC_DEFAULT_GPA;
	range.size = PAGE_SIZE;
	populate_until(vm, range, APIC_DEFAULT_GPA, 0, 0);

	/* The follower is not handed what does not exist. */
	range.flags = KVM_POPULATE_ASYNC;
	range.gpa = hole;
	range.size = SZ_2M;
	populate_until(vm, range, hole, 0, 0);

	kvm_vm_free(vm);
	gtdp_mem_free(&first);
	gtdp_mem_free(&second);
	return true;
}

static bool test_address_space(void)
{
	struct kvm_populate_memory range = { .gpa = GTDP_GPA, .size = MEM_SIZE };
	struct kvm_vcpu *vcpu;
	struct gtdp_mem mem;
	struct kvm_vm *vm;

	if (kvm_check_cap(KVM_CAP_MULTI_ADDRESS_SPACE) < 2)
		return false;

	vm = gtdp_vm_create(KVM_GLOBAL_TDP_POPULATE, 1, &vcpu);
	gtdp_mem_alloc(&mem, GTDP_ANON, MEM_SIZE, 0);
	gtdp_stamp(mem.hva, MEM_SIZE / PAGE_SIZE, 1);

	range.as_id = 1;
	populate_until(vm, range, GTDP_GPA, 0, 0);

	gtdp_add_slot(vm, SMM_SLOT, 0, GTDP_GPA, &mem);
	TEST_ASSERT_EQ(populate(vm, &range), 0);
	TEST_ASSERT_EQ(range.mapped, MEM_SIZE);
	TEST_ASSERT_EQ(range.absent, 0);

	/* It is not there for those who are not in SMM. */
	range = (struct kvm_populate_memory) { .gpa = GTDP_GPA, .size = MEM_SIZE };
	populate_until(vm, range, GTDP_GPA, 0, 0);

	kvm_vm_free(vm);
	gtdp_mem_free(&mem);
	return true;
}

/* Memslots of the same memory, so that a call takes long enough for a signal. */
#define NR_ALIASES	32ul

/* When a signal may arrive in a call, in parts of the time that it takes. */
#define NR_MOMENTS	16
#define MAX_SIGNALS	1000
#define MAX_USECS	999999

static void do_nothing(int sig)
{
}

static void handle_signal(void)
{
	struct sigaction action = { .sa_handler = do_nothing };

	sigaction(SIGALRM, &action, NULL);
}

/* Who has the kernel wait for the structure of a call, and what it will be. */
struct server {
	int uffd;
	struct kvm_populate_memory *range;
	void *content;
	pthread_t caller;
	pthread_t thread;
};

/* Once the call waits for its structure, have a signal arrive, and then that. */
static void *serve(void *arg)
{
	struct server *server = arg;
	struct uffdio_copy copy = {
		.dst = (u64)server->range,
		.src = (u64)server->content,
		.len = PAGE_SIZE,
	};
	struct uffd_msg msg;
	int r;

	TEST_ASSERT_EQ(read(server->uffd, &msg, sizeof(msg)), sizeof(msg));
	TEST_ASSERT_EQ(msg.event, UFFD_EVENT_PAGEFAULT);

	r = pthread_kill(server->caller, SIGALRM);
	TEST_ASSERT(!r, "pthread_kill(): %s", strerror(r));
	r = ioctl(server->uffd, UFFDIO_COPY, &copy);
	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("UFFDIO_COPY", r));
	return NULL;
}

static bool start_server(struct server *server, const struct kvm_populate_memory *range)
{
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register reg = {
		.range.len = PAGE_SIZE,
		.mode = UFFDIO_REGISTER_MODE_MISSING,
	};

	server->caller = pthread_self();
	server->content = mmap(NULL, 2 * PAGE_SIZE, PROT_READ | PROT_WRITE,
			       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	TEST_ASSERT(server->content != MAP_FAILED, __KVM_SYSCALL_ERROR("mmap()", -1));
	memcpy(server->content, range, sizeof(*range));
	server->range = server->content + PAGE_SIZE;

	server->uffd = syscall(__NR_userfaultfd, O_CLOEXEC);
	reg.range.start = (u64)server->range;
	if (server->uffd < 0 || ioctl(server->uffd, UFFDIO_API, &api) ||
	    ioctl(server->uffd, UFFDIO_REGISTER, &reg)) {
		ksft_print_msg("no userfaultfd: %s\n", strerror(errno));
		return false;
	}

	pthread_create(&server->thread, NULL, serve, server);
	return true;
}

static void stop_server(struct server *server)
{
	pthread_join(server->thread, NULL);
	close(server->uffd);
	munmap(server->content, 2 * PAGE_SIZE);
}

/* A call with a signal pending does nothing, and can be repeated as it is. */
static bool interrupted_at_once(struct kvm_vm *vm, u32 flags)
{
	const struct kvm_populate_memory range = {
		.gpa = GTDP_GPA,
		.size = MEM_SIZE,
		.flags = flags,
		.mapped = 1,
		.absent = 2,
	};
	const u64 mapped = gtdp_nr_mapped(vm);
	struct server server;

	if (!start_server(&server, &range))
		return false;

	TEST_ASSERT_EQ(populate(vm, server.range), EINTR);
	TEST_ASSERT_EQ(server.range->gpa, GTDP_GPA);
	TEST_ASSERT_EQ(server.range->size, MEM_SIZE);
	TEST_ASSERT_EQ(server.range->mapped, 0);
	TEST_ASSERT_EQ(server.range->absent, 0);
	TEST_ASSERT_EQ(gtdp_nr_mapped(vm), mapped);

	TEST_ASSERT_EQ(populate(vm, server.range), 0);
	TEST_ASSERT_EQ(server.range->size, 0);
	TEST_ASSERT_EQ(server.range->mapped, flags & KVM_POPULATE_ASYNC ? 0 : MEM_SIZE);

	stop_server(&server);
	return true;
}

static bool test_signal_pending(void)
{
	const u32 flags[] = { 0, KVM_POPULATE_ASYNC };
	struct kvm_vcpu *vcpu;
	struct gtdp_mem mem;
	struct kvm_vm *vm;
	bool done = true;
	int i;

	handle_signal();
	gtdp_mem_alloc(&mem, GTDP_ANON, MEM_SIZE, 0);
	gtdp_stamp(mem.hva, NR_PAGES, 1);

	for (i = 0; i < ARRAY_SIZE(flags) && done; i++) {
		vm = gtdp_vm_create(KVM_GLOBAL_TDP_POPULATE, 1, &vcpu);
		gtdp_add_slot(vm, GTDP_SLOT, 0, GTDP_GPA, &mem);
		done = interrupted_at_once(vm, flags[i]);
		if (done)
			gtdp_wait_mapped(vm, NR_PAGES);
		kvm_vm_free(vm);
	}

	gtdp_mem_free(&mem);
	return done;
}

/*
 * Populate all aliases, with a signal after @usecs unless that is 0, and return
 * whether that was in the midst of a call: it says how far it got, and goes on
 * from there, with a word of the bitmap if there is one.
 */
static bool interrupted(struct kvm_vm *vm, u64 usecs, u64 *bitmap)
{
	const struct itimerval timer = { .it_value.tv_usec = usecs }, off = {};
	struct kvm_populate_memory range = {
		.gpa = GTDP_GPA,
		.size = NR_ALIASES * MEM_SIZE,
		.flags = bitmap ? KVM_POPULATE_BITMAP : 0,
		.bitmap = (u64)bitmap,
	};
	u64 done, before;
	bool hit = false;
	int err;

	setitimer(ITIMER_REAL, &timer, NULL);

	for (done = 0, err = 1; err; done += range.mapped) {
		before = range.gpa;
		err = populate(vm, &range);
		TEST_ASSERT(!err || err == EINTR || err == EAGAIN,
			    "Unexpected error: %s", strerror(err));
		TEST_ASSERT(bitmap || range.mapped == range.gpa - before,
			    "%#llx bytes mapped from %#lx to %#llx", range.mapped, before,
			    range.gpa);
		TEST_ASSERT(!bitmap || range.bitmap == (u64)bitmap +
						       (range.gpa - GTDP_GPA) / PAGE_SIZE / 8,
			    "At %#llx, the bitmap goes on with %#llx, it is at %p", range.gpa,
			    range.bitmap, bitmap);
		TEST_ASSERT_EQ(range.absent, 0);
		hit |= err == EINTR && range.gpa > before;
	}
	setitimer(ITIMER_REAL, &off, NULL);

	TEST_ASSERT(done == NR_ALIASES * MEM_SIZE || bitmap, "%#lx bytes mapped", done);
	return hit;
}

/* When the signal arrives is open, so have it arrive at different times. */
static bool test_signals(u64 *bitmap)
{
	struct timespec start;
	struct kvm_vcpu *vcpu;
	struct gtdp_mem mem;
	struct kvm_vm *vm;
	int i, hits = 0;
	u64 usecs;

	vm = gtdp_vm_create(KVM_GLOBAL_TDP_POPULATE, 1, &vcpu);
	gtdp_mem_alloc(&mem, GTDP_ANON, MEM_SIZE, 0);
	gtdp_stamp(mem.hva, MEM_SIZE / PAGE_SIZE, 1);
	for (i = 0; i < NR_ALIASES; i++)
		gtdp_add_slot(vm, GTDP_SLOT + i, 0, GTDP_GPA + i * MEM_SIZE, &mem);
	handle_signal();

	/* Have all of it mapped: the next calls take as long as each other. */
	interrupted(vm, 0, bitmap);
	clock_gettime(CLOCK_MONOTONIC, &start);
	interrupted(vm, 0, bitmap);
	usecs = timespec_to_ns(timespec_elapsed(start)) / 1000;

	for (i = 0; i < MAX_SIGNALS && hits < 10; i++)
		hits += interrupted(vm, min_t(u64, MAX_USECS,
					      1 + usecs * (i % NR_MOMENTS) / NR_MOMENTS),
				    bitmap);
	TEST_ASSERT(hits, "None of %d signals arrived in the midst of a call", i);

	kvm_vm_free(vm);
	gtdp_mem_free(&mem);
	return true;
}

static bool test_signal(void)
{
	return test_signals(NULL);
}

/* As many runs of pages as are dealt with at a time end within a word. */
static bool test_signal_bitmap(void)
{
	static u64 bitmap[NR_ALIASES * MEM_SIZE / PAGE_SIZE / 64];

	memset(bitmap, 0x55, sizeof(bitmap));
	return test_signals(bitmap);
}

static const struct gtdp_test tests[] = {
	{ "private memory", test_private_memory },
	{ "default follows the parameter", test_default },
	{ "parameter is read and written", test_spellings },
	{ "parameter changes", test_parameter },
	{ "parameter is never", test_never },
	{ "parameter is never, beside the ioctl", test_never_populate },
	{ "files of statistics", test_stat_files },
	{ "enable capability", test_enable_cap },
	{ "enable after a memslot", test_enable_late },
	{ "enable less, then more", test_enable_less },
	{ "disable what was handed over", test_disable_async },
	{ "disable beside the follower", test_disable_busy },
	{ "disable beside the ioctl", test_disable_populate },
	{ "disable faults", test_disable_faults },
	{ "not enabled", test_not_enabled },
	{ "invalid arguments", test_invalid },
	{ "size zero", test_size_zero },
	{ "memslots and holes", test_holes },
	{ "address spaces", test_address_space },
	{ "signal pending", test_signal_pending },
	{ "signals", test_signal },
	{ "signals, bitmap", test_signal_bitmap },
};

int main(void)
{
	TEST_REQUIRE(!access(PARAMETER, R_OK));
	if (!check_extension()) {
		ksft_print_header();
		ksft_set_plan(1);
		ksft_test_result_pass("refused\n");
		ksft_finished();
	}

	gtdp_run_tests(tests, ARRAY_SIZE(tests));
}
