// SPDX-License-Identifier: GPL-2.0
/*
 * Proves that what is mapped belongs to the VM, not to the vCPU that happens to
 * use it: the reset of a vCPU, its CPUID, SMM, and changes of other memslots
 * leave it alone.  And that the memslot's own end is the end of its mappings.
 */
#include <string.h>
#include <sys/mman.h>

#include "test_util.h"
#include "kvm_util.h"
#include "processor.h"
#include "apic.h"
#include "global_tdp.h"

#define MEM_SIZE	SZ_16M
#define NR_PAGES	(MEM_SIZE / PAGE_SIZE)

/* The populated memory, and another one that things happen to. */
#define OTHER_SLOT	(GTDP_SLOT + 1)
#define OTHER_GPA	(GTDP_GPA + SZ_64M)

#define HOST_TAG	1
#define OTHER_TAG	1000000

/* An I/O port other than that of the guest library's ucalls. */
#define PORT		0xe

#define SMRAM_SLOT	(BIT(16) | GTDP_SLOT)
#define SMRAM_GPA	0x1000000
#define SMRAM_SIZE	SZ_64K
/* The SMI handler's data, which must be in its reach of 4GiB. */
#define SMM_DATA_SLOT	(BIT(16) | OTHER_SLOT)
#define SMM_DATA_GPA	0x2000000

struct env {
	struct kvm_vm *vm;
	struct kvm_vcpu *vcpu;
	struct gtdp_mem mem;
	struct gtdp_mem other;
};

static u64 can_harvest(void)
{
	return kvm_check_cap(KVM_CAP_GLOBAL_TDP) & KVM_GLOBAL_TDP_HARVEST;
}

static void env_create(struct env *env)
{
	gtdp_mem_alloc(&env->mem, GTDP_ANON, MEM_SIZE, 0);
	gtdp_mem_alloc(&env->other, GTDP_ANON, MEM_SIZE, 0);
	gtdp_stamp(env->mem.hva, NR_PAGES, HOST_TAG);
	gtdp_stamp(env->other.hva, NR_PAGES, OTHER_TAG);

	env->vm = gtdp_vm_create(KVM_GLOBAL_TDP_POPULATE | can_harvest(), 1, &env->vcpu);
	gtdp_add_slot(env->vm, GTDP_SLOT, 0, GTDP_GPA, &env->mem);
	gtdp_populate_code(env->vm);
	gtdp_populate_full(env->vm, GTDP_GPA, MEM_SIZE);
}

static void env_destroy(struct env *env)
{
	kvm_vm_free(env->vm);
	gtdp_mem_free(&env->mem);
	gtdp_mem_free(&env->other);
}

static void check_no_faults(struct env *env)
{
	TEST_ASSERT_EQ(gtdp_run(env->vcpu, GTDP_CHECK, GTDP_GPA, NR_PAGES, HOST_TAG), 0);
	TEST_ASSERT_EQ(gtdp_run(env->vcpu, GTDP_STAMP, GTDP_GPA, NR_PAGES, HOST_TAG), 0);
}

/* CPUID before the first run is what every VMM sets, some more than once. */
static bool test_cpuid(void)
{
	struct env env;

	env_create(&env);
	vcpu_set_cpuid(env.vcpu);
	check_no_faults(&env);
	vcpu_set_cpuid(env.vcpu);
	check_no_faults(&env);

	env_destroy(&env);
	return true;
}

/*
 * Whether the guest's PAT is ignored is a matter of what maps a page: a VMM that
 * decides that late must not get some of each.
 */
static bool test_quirk(void)
{
	struct env env;

	if (!(kvm_check_cap(KVM_CAP_DISABLE_QUIRKS2) & KVM_X86_QUIRK_IGNORE_GUEST_PAT))
		return false;

	env_create(&env);
	vm_enable_cap(env.vm, KVM_CAP_DISABLE_QUIRKS2, KVM_X86_QUIRK_IGNORE_GUEST_PAT);
	TEST_ASSERT_EQ(gtdp_nr_mapped(env.vm), 0);
	gtdp_populate_code(env.vm);
	gtdp_populate_full(env.vm, GTDP_GPA, MEM_SIZE);
	check_no_faults(&env);

	env_destroy(&env);
	return true;
}

/* And what was mapped counts, not whether anything still may be mapped ahead. */
static bool test_quirk_disabled(void)
{
	struct kvm_populate_memory sum, range = { .gpa = GTDP_GPA, .size = MEM_SIZE };
	struct gtdp_mem mem;
	struct kvm_vm *vm;
	int r;

	if (!(kvm_check_cap(KVM_CAP_DISABLE_QUIRKS2) & KVM_X86_QUIRK_IGNORE_GUEST_PAT))
		return false;

	gtdp_mem_alloc(&mem, GTDP_ANON, MEM_SIZE, 0);
	gtdp_stamp(mem.hva, NR_PAGES, HOST_TAG);

	/* It can be disabled for as long as there is no vCPU. */
	vm = gtdp_vm_create_bare(1);
	vm_enable_cap(vm, KVM_CAP_GLOBAL_TDP, KVM_GLOBAL_TDP_POPULATE);
	gtdp_add_slot(vm, GTDP_SLOT, 0, GTDP_GPA, &mem);
	r = gtdp_populate_on(vm, &range, &sum);
	TEST_ASSERT(!r || r == ENXIO, "KVM_POPULATE_MEMORY: %s", strerror(r));
	vm_enable_cap(vm, KVM_CAP_GLOBAL_TDP, 0);
	TEST_ASSERT_EQ(gtdp_nr_mapped(vm), r ? 0 : NR_PAGES);

	vm_enable_cap(vm, KVM_CAP_DISABLE_QUIRKS2, KVM_X86_QUIRK_IGNORE_GUEST_PAT);
	TEST_ASSERT(!gtdp_nr_mapped(vm), "%lu pages are mapped as before", gtdp_nr_mapped(vm));

	kvm_vm_free(vm);
	gtdp_mem_free(&mem);
	return !r;
}

/* What a VMM does to reset a vCPU, and to load another state into it. */
static bool test_reset(void)
{
	struct kvm_sregs sregs, reset_sregs;
	struct kvm_regs regs, reset_regs;
	struct kvm_vcpu *pristine;
	struct kvm_vm *vm;
	struct env env;

	vm = vm_create_barebones();
	pristine = __vm_vcpu_add(vm, 0);
	vcpu_regs_get(pristine, &reset_regs);
	vcpu_sregs_get(pristine, &reset_sregs);
	kvm_vm_free(vm);

	env_create(&env);
	vcpu_regs_get(env.vcpu, &regs);
	vcpu_sregs_get(env.vcpu, &sregs);

	vcpu_regs_set(env.vcpu, &reset_regs);
	vcpu_sregs_set(env.vcpu, &reset_sregs);
	vcpu_regs_set(env.vcpu, &regs);
	vcpu_sregs_set(env.vcpu, &sregs);
	check_no_faults(&env);

	/* The vCPU's root is in use now.  Let it take one without paging. */
	vcpu_regs_get(env.vcpu, &regs);
	vcpu_sregs_get(env.vcpu, &sregs);
	vcpu_regs_set(env.vcpu, &reset_regs);
	vcpu_sregs_set(env.vcpu, &reset_sregs);
	vcpu_regs_set(env.vcpu, &regs);
	vcpu_sregs_set(env.vcpu, &sregs);
	check_no_faults(&env);

	env_destroy(&env);
	return true;
}

/* The guest runs without paging, as it does after a reset, and then with it. */
static bool test_real_mode(void)
{
	const u8 code[] = { 0xe6, PORT };	/* out %al, $PORT */
	struct kvm_sregs sregs, real_sregs;
	struct kvm_regs regs, real_regs;
	struct kvm_vcpu *pristine;
	gpa_t code_gpa;
	u64 faults;
	struct env env;
	struct kvm_vm *vm;

	vm = vm_create_barebones();
	pristine = __vm_vcpu_add(vm, 0);
	vcpu_regs_get(pristine, &real_regs);
	vcpu_sregs_get(pristine, &real_sregs);
	kvm_vm_free(vm);

	env_create(&env);
	check_no_faults(&env);

	code_gpa = vm_phy_page_alloc(env.vm, 0x8000, 0);
	memcpy(addr_gpa2hva(env.vm, code_gpa), code, sizeof(code));
	real_sregs.cs.base = code_gpa;
	real_sregs.cs.selector = code_gpa >> 4;
	real_regs.rip = 0;

	vcpu_regs_get(env.vcpu, &regs);
	vcpu_sregs_get(env.vcpu, &sregs);
	vcpu_regs_set(env.vcpu, &real_regs);
	vcpu_sregs_set(env.vcpu, &real_sregs);

	faults = gtdp_vcpu_stat(env.vcpu, "pf_taken");
	vcpu_run(env.vcpu);
	TEST_ASSERT_KVM_EXIT_REASON(env.vcpu, KVM_EXIT_IO);
	TEST_ASSERT_EQ(env.vcpu->run->io.port, PORT);
	vcpu_run_complete_io(env.vcpu);
	TEST_ASSERT_EQ(gtdp_vcpu_stat(env.vcpu, "pf_taken"), faults);

	vcpu_regs_set(env.vcpu, &regs);
	vcpu_sregs_set(env.vcpu, &sregs);
	check_no_faults(&env);

	env_destroy(&env);
	return true;
}

static bool test_other_slots(void)
{
	struct env env;

	env_create(&env);
	check_no_faults(&env);

	gtdp_add_slot(env.vm, OTHER_SLOT, 0, OTHER_GPA, &env.other);
	check_no_faults(&env);
	gtdp_populate_full(env.vm, OTHER_GPA, MEM_SIZE);
	TEST_ASSERT_EQ(gtdp_run(env.vcpu, GTDP_CHECK, OTHER_GPA, NR_PAGES, OTHER_TAG), 0);

	gtdp_add_slot(env.vm, OTHER_SLOT, KVM_MEM_LOG_DIRTY_PAGES, OTHER_GPA, &env.other);
	check_no_faults(&env);
	gtdp_add_slot(env.vm, OTHER_SLOT, 0, OTHER_GPA, &env.other);
	check_no_faults(&env);

	/* Moved, right behind the populated memory: in its page table's parent. */
	gtdp_add_slot(env.vm, OTHER_SLOT, 0, GTDP_GPA + MEM_SIZE, &env.other);
	check_no_faults(&env);
	gtdp_run(env.vcpu, GTDP_CHECK, GTDP_GPA + MEM_SIZE, NR_PAGES, OTHER_TAG);

	gtdp_delete_slot(env.vm, OTHER_SLOT);
	check_no_faults(&env);

	env_destroy(&env);
	return true;
}

/* Neighbours within one region of 2MiB, i.e. within one page table. */
static bool test_shared_region(void)
{
	const u64 odd = 5 * PAGE_SIZE;
	struct env env;

	env_create(&env);
	gtdp_delete_slot(env.vm, GTDP_SLOT);
	env.mem.size = MEM_SIZE - odd;
	gtdp_add_slot(env.vm, GTDP_SLOT, 0, GTDP_GPA, &env.mem);
	gtdp_add_slot(env.vm, OTHER_SLOT, 0, GTDP_GPA + MEM_SIZE - odd, &env.other);
	gtdp_populate_full(env.vm, GTDP_GPA, MEM_SIZE - odd + MEM_SIZE);
	TEST_ASSERT_EQ(gtdp_run(env.vcpu, GTDP_CHECK, GTDP_GPA, NR_PAGES - 5, HOST_TAG), 0);
	TEST_ASSERT_EQ(gtdp_run(env.vcpu, GTDP_CHECK, GTDP_GPA + MEM_SIZE - odd,
				NR_PAGES, OTHER_TAG), 0);

	gtdp_delete_slot(env.vm, OTHER_SLOT);
	TEST_ASSERT_EQ(gtdp_run(env.vcpu, GTDP_CHECK, GTDP_GPA, NR_PAGES - 5, HOST_TAG), 0);

	env_destroy(&env);
	return true;
}

static void check_is_mmio(struct env *env, u64 gpa)
{
	struct kvm_run *run = env->vcpu->run;

	gtdp_set_job(env->vcpu, (struct gtdp_job) {
		.op = GTDP_READ,
		.gpa = gpa,
		.nr = 1,
		.step = 1,
	});
	vcpu_run(env->vcpu);
	TEST_ASSERT_KVM_EXIT_REASON(env->vcpu, KVM_EXIT_MMIO);
	TEST_ASSERT_EQ(run->mmio.phys_addr, gpa);
	TEST_ASSERT_EQ(run->mmio.is_write, 0);

	/* Let it go on, whatever it reads. */
	vcpu_run(env->vcpu);
	gtdp_finish_job(env->vcpu);
}

static bool test_own_slot(void)
{
	struct env env;
	u64 i;

	env_create(&env);
	check_no_faults(&env);

	gtdp_delete_slot(env.vm, GTDP_SLOT);
	for (i = 0; i < NR_PAGES; i += GTDP_REGION_PAGES - 1)
		check_is_mmio(&env, GTDP_GPA + i * PAGE_SIZE);

	/* Other memory takes its place; what was MMIO is memory again. */
	gtdp_add_slot(env.vm, GTDP_SLOT, 0, GTDP_GPA, &env.other);
	gtdp_populate_full(env.vm, GTDP_GPA, MEM_SIZE);
	TEST_ASSERT_EQ(gtdp_run(env.vcpu, GTDP_CHECK, GTDP_GPA, NR_PAGES, OTHER_TAG), 0);

	/* Moved elsewhere, it is not there any more. */
	gtdp_add_slot(env.vm, GTDP_SLOT, 0, OTHER_GPA, &env.other);
	check_is_mmio(&env, GTDP_GPA);
	check_is_mmio(&env, GTDP_GPA + MEM_SIZE - PAGE_SIZE);
	gtdp_populate_full(env.vm, OTHER_GPA, MEM_SIZE);
	TEST_ASSERT_EQ(gtdp_run(env.vcpu, GTDP_CHECK, OTHER_GPA, NR_PAGES, OTHER_TAG), 0);

	env_destroy(&env);
	return true;
}

static void inject_smi(struct kvm_vcpu *vcpu)
{
	struct kvm_vcpu_events events;

	vcpu_events_get(vcpu, &events);
	events.smi.pending = 1;
	events.flags |= KVM_VCPUEVENT_VALID_SMM;
	vcpu_events_set(vcpu, &events);
}

/*
 * SMM has page tables of its own.  They can be populated and harvested, too, and
 * using them does not cost those of the VM.
 */
static bool test_smm(void)
{
	/* Reads a word of each page; runs in 16-bit mode with flat segments. */
	const u8 handler[] = {
		0x66, 0xbe, 0x00, 0x00, 0x00, SMM_DATA_GPA >> 24, /* mov $gpa, %esi */
		0x66, 0xb9, NR_PAGES & 0xff, NR_PAGES >> 8, 0, 0, /* mov $nr, %ecx */
		0x67, 0x66, 0x8b, 0x06,				/* 1: mov (%esi), %eax */
		0x66, 0x81, 0xc6, 0x00, 0x10, 0x00, 0x00,	/* add $4096, %esi */
		0x66, 0x49,					/* dec %ecx */
		0x75, 0xf1,					/* jnz 1b */
		0xe6, PORT,					/* out %al, $PORT */
		0x0f, 0xaa,					/* rsm */
	};
	struct kvm_populate_memory range = { .as_id = 1 };
	u64 bitmap[NR_PAGES / 64], faults;
	struct gtdp_mem smram;
	struct env env;

	if (!kvm_has_cap(KVM_CAP_X86_SMM))
		return false;

	env_create(&env);
	check_no_faults(&env);

	gtdp_mem_alloc(&smram, GTDP_ANON, SMRAM_SIZE, 0);
	memset(smram.hva, 0, SMRAM_SIZE);
	memcpy(smram.hva + 0x8000, handler, sizeof(handler));
	gtdp_add_slot(env.vm, SMRAM_SLOT, 0, SMRAM_GPA, &smram);
	gtdp_add_slot(env.vm, SMM_DATA_SLOT, 0, SMM_DATA_GPA, &env.other);
	vcpu_set_msr(env.vcpu, MSR_IA32_SMBASE, SMRAM_GPA);

	range.gpa = SMRAM_GPA;
	range.size = SMRAM_SIZE;
	vm_ioctl(env.vm, KVM_POPULATE_MEMORY, &range);
	TEST_ASSERT_EQ(range.mapped, SMRAM_SIZE);
	range.gpa = SMM_DATA_GPA;
	range.size = MEM_SIZE;
	vm_ioctl(env.vm, KVM_POPULATE_MEMORY, &range);
	TEST_ASSERT_EQ(range.mapped, MEM_SIZE);

	gtdp_set_job(env.vcpu, (struct gtdp_job) {
		.op = GTDP_CHECK,
		.gpa = GTDP_GPA,
		.nr = NR_PAGES,
		.step = 1,
		.tag = HOST_TAG,
	});
	inject_smi(env.vcpu);

	faults = gtdp_vcpu_stat(env.vcpu, "pf_taken");
	vcpu_run(env.vcpu);
	TEST_ASSERT_KVM_EXIT_REASON(env.vcpu, KVM_EXIT_IO);
	TEST_ASSERT_EQ(env.vcpu->run->io.port, PORT);
	TEST_ASSERT_EQ(gtdp_vcpu_stat(env.vcpu, "pf_taken"), faults);

	/* Back from SMM, and to the job. */
	vcpu_run(env.vcpu);
	gtdp_finish_job(env.vcpu);
	TEST_ASSERT_EQ(gtdp_vcpu_stat(env.vcpu, "pf_taken"), faults);

	if (can_harvest()) {
		TEST_ASSERT_EQ(gtdp_harvest(env.vm, 1, SMM_DATA_GPA, MEM_SIZE, bitmap), MEM_SIZE);
		TEST_ASSERT_EQ(gtdp_harvest(env.vm, 0, SMM_DATA_GPA, MEM_SIZE, bitmap), 0);
		TEST_ASSERT_EQ(gtdp_harvest(env.vm, 0, GTDP_GPA, MEM_SIZE, bitmap), MEM_SIZE);
		TEST_ASSERT_EQ(gtdp_harvest(env.vm, 1, GTDP_GPA, MEM_SIZE, bitmap), 0);
	}

	env_destroy(&env);
	gtdp_mem_free(&smram);
	return true;
}

/* Populate what there is at SMM_DATA_GPA. */
static void populate_data(struct env *env, u32 as_id)
{
	struct kvm_populate_memory range = {
		.gpa = SMM_DATA_GPA,
		.size = MEM_SIZE,
		.as_id = as_id,
	};

	vm_ioctl(env->vm, KVM_POPULATE_MEMORY, &range);
	TEST_ASSERT_EQ(range.mapped, MEM_SIZE);
}

/*
 * Have an SMI arrive before the guest checks its memory: its handler finds
 * SMM's memory at the same address, and writes to that only.
 */
static void check_smi(struct env *env, struct gtdp_mem *smram, u64 page,
		      u64 tag)
{
	/* Runs in 16-bit mode with flat segments. */
	const u8 handler[] = {
		0x66, 0xbe, 0x00, 0x00, 0x00, 0x00,		/* mov $gpa, %esi */
		0x67, 0x66, 0x8b, 0x06,				/* mov (%esi), %eax */
		0x66, 0xe7, PORT,				/* out %eax, $PORT */
		0x67, 0x66, 0x81, 0x46, 0x08, 1, 0, 0, 0,	/* addl $1, 8(%esi) */
		0x0f, 0xaa,					/* rsm */
	};
	u64 *smm = env->other.hva + page * PAGE_SIZE;
	u64 *normal = env->mem.hva + page * PAGE_SIZE;
	u32 gpa = SMM_DATA_GPA + page * PAGE_SIZE;
	u64 before[2], faults;
	struct kvm_run *run = env->vcpu->run;

	memcpy(smram->hva + 0x8000, handler, sizeof(handler));
	memcpy(smram->hva + 0x8002, &gpa, sizeof(gpa));
	before[0] = normal[1];
	before[1] = smm[1];

	gtdp_set_job(env->vcpu, (struct gtdp_job) {
		.op = GTDP_CHECK,
		.gpa = SMM_DATA_GPA,
		.nr = NR_PAGES,
		.step = 1,
		.tag = tag,
	});
	inject_smi(env->vcpu);

	faults = gtdp_vcpu_stat(env->vcpu, "pf_taken");
	vcpu_run(env->vcpu);
	TEST_ASSERT_KVM_EXIT_REASON(env->vcpu, KVM_EXIT_IO);
	TEST_ASSERT_EQ(run->io.port, PORT);
	TEST_ASSERT_EQ(*(u32 *)((void *)run + run->io.data_offset), (u32)smm[0]);

	vcpu_run(env->vcpu);
	gtdp_finish_job(env->vcpu);
	TEST_ASSERT_EQ(gtdp_vcpu_stat(env->vcpu, "pf_taken"), faults);
	TEST_ASSERT_EQ(normal[1], before[0]);
	TEST_ASSERT_EQ(smm[1], before[1] + 1);
}

static void discard(struct gtdp_mem *mem, u64 tag)
{
	int r = madvise(mem->hva, MEM_SIZE, MADV_DONTNEED);

	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("madvise()", r));
	gtdp_stamp(mem->hva, NR_PAGES, tag);
}

/* Memory of the VM, and of SMM, at the same address; none of it is populated. */
static bool smm_create(struct env *env, struct gtdp_mem *smram, enum gtdp_backing backing)
{
	struct kvm_populate_memory range = {
		.gpa = SMRAM_GPA,
		.size = SMRAM_SIZE,
		.as_id = 1,
	};

	if (!kvm_has_cap(KVM_CAP_X86_SMM))
		return false;

	env_create(env);
	if (backing != GTDP_ANON) {
		gtdp_mem_free(&env->other);
		gtdp_mem_alloc(&env->other, backing, MEM_SIZE, 0);
		gtdp_stamp(env->other.hva, NR_PAGES, OTHER_TAG);
	}

	gtdp_mem_alloc(smram, GTDP_ANON, SMRAM_SIZE, 0);
	memset(smram->hva, 0, SMRAM_SIZE);
	virt_map_level(env->vm, SMM_DATA_GPA, SMM_DATA_GPA, MEM_SIZE, PG_LEVEL_2M);
	gtdp_populate_code(env->vm);
	gtdp_add_slot(env->vm, SMRAM_SLOT, 0, SMRAM_GPA, smram);
	gtdp_add_slot(env->vm, SMM_DATA_SLOT, 0, SMM_DATA_GPA, &env->other);
	gtdp_add_slot(env->vm, OTHER_SLOT, 0, SMM_DATA_GPA, &env->mem);
	vcpu_set_msr(env->vcpu, MSR_IA32_SMBASE, SMRAM_GPA);
	vm_ioctl(env->vm, KVM_POPULATE_MEMORY, &range);
	return true;
}

static void smm_destroy(struct env *env, struct gtdp_mem *smram)
{
	env_destroy(env);
	gtdp_mem_free(smram);
}

/* The same address is other memory in SMM, and stays so. */
static bool test_smm_memory(void)
{
	struct gtdp_mem smram;
	struct env env;

	if (!smm_create(&env, &smram, GTDP_ANON))
		return false;

	populate_data(&env, 0);
	populate_data(&env, 1);
	check_smi(&env, &smram, 0, HOST_TAG);
	check_smi(&env, &smram, NR_PAGES - 1, HOST_TAG);

	/* Taken away from one, then from the other, and populated again. */
	discard(&env.other, 2 * OTHER_TAG);
	populate_data(&env, 1);
	check_smi(&env, &smram, 1, HOST_TAG);

	discard(&env.mem, 3 * OTHER_TAG);
	populate_data(&env, 0);
	check_smi(&env, &smram, NR_PAGES / 2, 3 * OTHER_TAG);

	smm_destroy(&env, &smram);
	return true;
}

/* Huge pages of SMM's are huge again, too, when they have just been logged. */
static bool test_smm_logged(void)
{
	u64 small, huge = MEM_SIZE / SZ_2M;
	struct gtdp_mem smram;
	struct env env;

	if (!gtdp_has_thp() || !smm_create(&env, &smram, GTDP_THP))
		return false;
	if (!gtdp_is_huge(env.other.hva, MEM_SIZE)) {
		smm_destroy(&env, &smram);
		return false;
	}

	populate_data(&env, 0);
	populate_data(&env, 1);
	TEST_ASSERT_EQ(gtdp_vm_stat(env.vm, "pages_2m"), huge);
	small = gtdp_vm_stat(env.vm, "pages_4k");

	gtdp_add_slot(env.vm, SMM_DATA_SLOT, KVM_MEM_LOG_DIRTY_PAGES, SMM_DATA_GPA, &env.other);
	populate_data(&env, 1);
	TEST_ASSERT_EQ(gtdp_vm_stat(env.vm, "pages_4k"), small + NR_PAGES);
	gtdp_add_slot(env.vm, SMM_DATA_SLOT, 0, SMM_DATA_GPA, &env.other);
	TEST_ASSERT_EQ(gtdp_vm_stat(env.vm, "pages_2m"), huge);
	TEST_ASSERT_EQ(gtdp_vm_stat(env.vm, "pages_4k"), small);

	/* They can be read and written as ever. */
	check_smi(&env, &smram, 0, HOST_TAG);
	check_smi(&env, &smram, NR_PAGES - 1, HOST_TAG);
	smm_destroy(&env, &smram);
	return true;
}

static const struct gtdp_test tests[] = {
	{ "CPUID", test_cpuid },
	{ "quirk disabled", test_quirk },
	{ "quirk disabled, Global TDP disabled", test_quirk_disabled },
	{ "reset", test_reset },
	{ "real mode", test_real_mode },
	{ "other memslots", test_other_slots },
	{ "memslots within a region", test_shared_region },
	{ "its own memslot", test_own_slot },
	{ "SMM", test_smm },
	{ "SMM's own memory", test_smm_memory },
	{ "SMM's memory after dirty logging", test_smm_logged },
};

/* Takes part of the name of a test, to leave out all others. */
int main(int argc, char *argv[])
{
	gtdp_require(KVM_GLOBAL_TDP_POPULATE);
	gtdp_run_some_tests(tests, ARRAY_SIZE(tests), argc > 1 ? argv[1] : NULL);
}
