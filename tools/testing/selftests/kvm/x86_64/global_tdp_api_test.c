// SPDX-License-Identifier: GPL-2.0
/*
 * Proves the contract of Global TDP's interfaces: what the module's parameter
 * and KVM_CAP_GLOBAL_TDP turn on and off, every error of KVM_ENABLE_CAP and
 * KVM_POPULATE_MEMORY, and that a call that is refused changes nothing.
 */
#include <signal.h>
#include <string.h>
#include <sys/time.h>

#include "test_util.h"
#include "apic.h"
#include "kvm_util.h"
#include "processor.h"
#include "global_tdp.h"

#define MEM_SIZE	SZ_16M

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

static int enable(struct kvm_vm *vm, uint64_t features, uint32_t flags)
{
	struct kvm_enable_cap cap = {
		.cap = KVM_CAP_GLOBAL_TDP,
		.flags = flags,
		.args = { features },
	};

	return __vm_ioctl(vm, KVM_ENABLE_CAP, &cap) ? errno : 0;
}

/* All or nothing, depending on what there is to build upon. */
static void check_extension(void)
{
	struct kvm_vm *vm = vm_create_barebones();
	bool tdp = get_kvm_param_bool("tdp_mmu");

	if (host_cpu_is_amd)
		tdp &= get_kvm_amd_param_bool("npt");
	else if (host_cpu_is_intel)
		tdp &= get_kvm_intel_param_bool("ept");

	TEST_ASSERT_EQ(kvm_check_cap(KVM_CAP_GLOBAL_TDP), tdp ? GTDP_ALL : 0);
	TEST_ASSERT_EQ(vm_check_cap(vm, KVM_CAP_GLOBAL_TDP), tdp ? GTDP_ALL : 0);

	kvm_vm_free(vm);
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

static bool test_enable_cap(void)
{
	struct kvm_vm *vm = vm_create_barebones();
	uint64_t features;

	TEST_ASSERT_EQ(enable(vm, GTDP_ALL + 1, 0), EINVAL);
	TEST_ASSERT_EQ(enable(vm, BIT_ULL(63), 0), EINVAL);
	TEST_ASSERT_EQ(enable(vm, GTDP_ALL, 1), EINVAL);
	TEST_ASSERT_EQ(can_populate(vm), gtdp_enabled_by_default());

	/* Any combination can be chosen, and the last one counts. */
	for (features = GTDP_ALL; ; features--) {
		TEST_ASSERT_EQ(enable(vm, features, 0), 0);
		TEST_ASSERT_EQ(can_populate(vm), !!(features & KVM_GLOBAL_TDP_POPULATE));
		if (!features)
			break;
	}

	TEST_ASSERT_EQ(enable(vm, KVM_GLOBAL_TDP_POPULATE, 0), 0);
	TEST_ASSERT_EQ(enable(vm, GTDP_ALL + 1, 0), EINVAL);
	TEST_ASSERT_EQ(can_populate(vm), true);

	/* Too late.  What is wrong in any case is still said to be wrong. */
	__vm_vcpu_add(vm, 0);
	TEST_ASSERT_EQ(enable(vm, 0, 0), EBUSY);
	TEST_ASSERT_EQ(enable(vm, KVM_GLOBAL_TDP_POPULATE, 0), EBUSY);
	TEST_ASSERT_EQ(enable(vm, GTDP_ALL + 1, 0), EINVAL);
	TEST_ASSERT_EQ(enable(vm, GTDP_ALL, 1), EINVAL);
	TEST_ASSERT_EQ(can_populate(vm), true);

	kvm_vm_free(vm);
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
	uint64_t mapped = gtdp_nr_mapped(vm);

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
	REFUSED(size, -(uint64_t)PAGE_SIZE);
	REFUSED(gpa, -(uint64_t)PAGE_SIZE);
	REFUSED(flags, KVM_POPULATE_ASYNC << 1);
	REFUSED(flags, KVM_POPULATE_ASYNC | BIT(31));
	REFUSED(as_id, nr_as > 1 ? nr_as : 1);
	REFUSED(as_id, ~0);
	REFUSED(reserved[0], 1);
	REFUSED(reserved[1], BIT_ULL(63));

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
	uint64_t mapped;

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
			   uint64_t end, uint64_t mapped, uint64_t absent)
{
	uint64_t range_end = range.gpa + range.size;

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
	const uint64_t half = MEM_SIZE / 2, hole = GTDP_GPA + MEM_SIZE;
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

static void do_nothing(int sig)
{
}

/*
 * A call that is interrupted says how far it got, and goes on from there.  When
 * the signal arrives is open, so have it arrive at different times.
 */
static bool test_signal(void)
{
	struct sigaction action = { .sa_handler = do_nothing };
	struct itimerval timer = {};
	struct kvm_populate_memory range;
	struct kvm_vcpu *vcpu;
	uint64_t done, before;
	struct gtdp_mem mem;
	struct kvm_vm *vm;
	int i, err, hits = 0;

	vm = gtdp_vm_create(KVM_GLOBAL_TDP_POPULATE, 1, &vcpu);
	gtdp_mem_alloc(&mem, GTDP_ANON, MEM_SIZE, 0);
	gtdp_stamp(mem.hva, MEM_SIZE / PAGE_SIZE, 1);
	for (i = 0; i < NR_ALIASES; i++)
		gtdp_add_slot(vm, GTDP_SLOT + i, 0, GTDP_GPA + i * MEM_SIZE, &mem);

	sigaction(SIGALRM, &action, NULL);

	for (i = 0; i < 1000 && hits < 10; i++) {
		range = (struct kvm_populate_memory) {
			.gpa = GTDP_GPA,
			.size = NR_ALIASES * MEM_SIZE,
		};
		timer.it_value.tv_usec = 20 + i % 100 * 10;
		setitimer(ITIMER_REAL, &timer, NULL);

		for (done = 0, err = 1; err; done += range.mapped) {
			before = range.gpa;
			err = populate(vm, &range);
			TEST_ASSERT(!err || err == EINTR || err == EAGAIN,
				    "Unexpected error: %s", strerror(err));
			TEST_ASSERT_EQ(range.mapped, range.gpa - before);
			TEST_ASSERT_EQ(range.absent, 0);
			hits += err == EINTR;
		}
		TEST_ASSERT_EQ(done, NR_ALIASES * MEM_SIZE);
	}

	timer.it_value.tv_usec = 0;
	setitimer(ITIMER_REAL, &timer, NULL);

	kvm_vm_free(vm);
	gtdp_mem_free(&mem);

	if (!hits)
		ksft_print_msg("no signal arrived in time\n");
	return hits;
}

static const struct gtdp_test tests[] = {
	{ "private memory", test_private_memory },
	{ "default follows the parameter", test_default },
	{ "enable capability", test_enable_cap },
	{ "not enabled", test_not_enabled },
	{ "invalid arguments", test_invalid },
	{ "size zero", test_size_zero },
	{ "memslots and holes", test_holes },
	{ "address spaces", test_address_space },
	{ "signals", test_signal },
};

int main(void)
{
	TEST_REQUIRE(!access("/sys/module/kvm/parameters/global_tdp", R_OK));
	check_extension();

	gtdp_require(GTDP_ALL);
	gtdp_run_tests(tests, ARRAY_SIZE(tests));
}
