// SPDX-License-Identifier: GPL-2.0
/*
 * Proves that nested guests don't notice that L1's memory is populated: L1 and
 * L2 see the same memory, L1 changes L2's page tables, the host zaps and logs,
 * and all of L1's memory is populated in between.
 *
 * With nested paging, KVM shadows L1's tables for L2, and so must notice L1's
 * writes to them: once populated, they must not be writable without further
 * ado.  Without, L2 has a TDP root of its own beside the one that is populated.
 */
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>
#include <sys/mman.h>

#include <linux/bitmap.h>

#include "test_util.h"
#include "kvm_util.h"
#include "processor.h"
#include "svm_util.h"
#include "vmx.h"
#include "global_tdp.h"

#define MEM_SIZE	SZ_16M
#define NR_PAGES	(MEM_SIZE / PAGE_SIZE)
#define REGION		GTDP_REGION_PAGES

/*
 * What L2 uses: one page that is mapped by a 4KiB entry of L1's nested page
 * tables, and one by a 2MiB entry.  L1 changes either to another page.
 */
#define L2_SMALL	GTDP_GPA
#define L2_LARGE	(GTDP_GPA + SZ_2M)

/* Pages of the memory that L1 maps in place of these, alternately. */
static const u64 small_pages[] = { 5, 700 };
static const u64 large_pages[] = { 3 * REGION, 4 * REGION };

/* L1's nested page tables, in the same memory. */
enum {
	NESTED_ROOT = 7 * REGION,
	NESTED_PDPT,
	NESTED_PD,
	NESTED_PT,
	NESTED_TOP,
	NESTED_END,
};

#define HOST_TAG	1
#define ROUNDS		4

/* VMs in which to try to meet a race that there is once in the life of a VM. */
#define RACES		5

/* Memory that a vCPU faults on meanwhile, of a memslot that is replaced. */
#define OTHER_SLOT	(GTDP_SLOT + 1)
#define OTHER_GPA	(GTDP_GPA + MEM_SIZE)
#define NR_OTHER	50
#define NR_CHANGES	50

/* Huge pages with code in them: all but those with the nested page tables. */
#define FIRST_CODE	(SZ_2M / PAGE_SIZE)
#define END_CODE	NESTED_ROOT
#define NR_CODE		((u64)((END_CODE - FIRST_CODE) / REGION))

/* Recover one page table of each list, and leave time to notice. */
#define NX_RATIO	"1000"
#define NX_PERIOD_MS	"1000"

/* Plenty of time for KVM to do so, however slow the machine. */
#define RECOVERY_SECS	60

/* NPT's Present, Writable and User are EPT's Read, Write and Execute. */
#define NESTED_TABLE	7ULL
#define NESTED_LARGE	BIT_ULL(7)
#define EPT_WB		(6ULL << 3)

/* What L1, or L2, is in KVM_RUN to be told, and what L2 has found. */
enum stage {
	IN_L1,
	IN_L2,
};

static struct {
	bool svm;
	bool nested_paging;
	u64 small_entry;
	u64 large_entry;
	u64 value;
	bool l1_executes;
	bool l2_executes;
} cmd;

static u64 seen_small, seen_large;

struct env {
	struct kvm_vm *vm;
	struct kvm_vcpu *vcpu;
	/* Runs the jobs of the library, if at all. */
	struct kvm_vcpu *other;
	struct gtdp_mem mem;
	bool nested_paging;
	u64 leaf_flags;
};

static u64 *l1_page(u64 page)
{
	return (void *)(GTDP_GPA + page * PAGE_SIZE);
}

static void execute(void)
{
	u64 page;

	for (page = FIRST_CODE; page < END_CODE; page += REGION)
		((void (*)(void))((void *)l1_page(page) + GTDP_CODE_OFFSET))();
}

static void l2_access(void)
{
	u64 *small = (void *)L2_SMALL, *large = (void *)L2_LARGE;

	WRITE_ONCE(seen_small, READ_ONCE(*small));
	WRITE_ONCE(seen_large, READ_ONCE(*large));
	WRITE_ONCE(small[1], READ_ONCE(cmd.value));
	WRITE_ONCE(large[1], READ_ONCE(cmd.value));

	if (READ_ONCE(cmd.l2_executes))
		execute();
}

static void l2_main(void)
{
	for (;;) {
		l2_access();
		GUEST_SYNC(IN_L2);
		l2_access();

		if (READ_ONCE(cmd.svm))
			vmmcall();
		else
			vmcall();
	}
}

static void l1_access(void)
{
	if (READ_ONCE(cmd.l1_executes))
		execute();

	if (!READ_ONCE(cmd.nested_paging))
		return;

	WRITE_ONCE(l1_page(NESTED_PT)[0], READ_ONCE(cmd.small_entry));
	WRITE_ONCE(l1_page(NESTED_PD)[1], READ_ONCE(cmd.large_entry));
}

static void l1_svm(struct svm_test_data *svm)
{
	struct vmcb *vmcb = svm->vmcb;

	generic_svm_setup(svm, l2_main);
	if (READ_ONCE(cmd.nested_paging)) {
		vmcb->control.misc_ctl |= SVM_MISC_ENABLE_NP;
		/* As many levels as L1's own page tables have. */
		vmcb->control.nested_cr3 = (u64)l1_page(get_cr4() & X86_CR4_LA57 ?
							NESTED_TOP : NESTED_ROOT);
	}

	for (;;) {
		GUEST_SYNC(IN_L1);
		l1_access();

		vmcb->control.tlb_ctl = TLB_CONTROL_FLUSH_ALL_ASID;
		run_guest(vmcb, svm->vmcb_gpa);
		GUEST_ASSERT_EQ(vmcb->control.exit_code, SVM_EXIT_VMMCALL);
		vmcb->save.rip += 3;
	}
}

static void invept_all(void)
{
	struct {
		u64 eptp;
		u64 reserved;
	} desc = {};

	asm volatile("invept %0, %1" : : "m"(desc), "r"(2ULL) : "cc", "memory");
}

static void l1_vmx(struct vmx_pages *vmx)
{
	bool launched = false;

	/* The library takes this for the root of a nested EPT. */
	vmx->eptp_gpa = READ_ONCE(cmd.nested_paging) ? (u64)l1_page(NESTED_ROOT) : 0;

	GUEST_ASSERT(prepare_for_vmx_operation(vmx));
	GUEST_ASSERT(load_vmcs(vmx));
	prepare_vmcs(vmx, l2_main);

	for (;;) {
		GUEST_SYNC(IN_L1);
		l1_access();
		if (READ_ONCE(cmd.nested_paging))
			invept_all();

		GUEST_ASSERT(!(launched ? vmresume() : vmlaunch()));
		launched = true;
		GUEST_ASSERT_EQ(vmreadz(VM_EXIT_REASON), EXIT_REASON_VMCALL);
		vmwrite(GUEST_RIP, vmreadz(GUEST_RIP) + vmreadz(VM_EXIT_INSTRUCTION_LEN));
	}
}

static void l1_main(void *data)
{
	if (READ_ONCE(cmd.svm))
		l1_svm(data);
	else
		l1_vmx(data);
}

static u64 *hva_of(struct env *env, u64 page)
{
	return env->mem.hva + page * PAGE_SIZE;
}

static u64 leaf_entry(struct env *env, u64 page)
{
	return (GTDP_GPA + page * PAGE_SIZE) | NESTED_TABLE | env->leaf_flags;
}

/* All of memory is L2's, too, at the same addresses, but for what L1 changes. */
static void make_nested_tables(struct env *env)
{
	const u64 gib = GTDP_GPA / SZ_1G;
	u64 i;

	for (i = NESTED_ROOT; i < NESTED_END; i++)
		memset(hva_of(env, i), 0, PAGE_SIZE);

	hva_of(env, NESTED_TOP)[0] = (u64)l1_page(NESTED_ROOT) | NESTED_TABLE;
	hva_of(env, NESTED_ROOT)[0] = (u64)l1_page(NESTED_PDPT) | NESTED_TABLE;
	for (i = 0; i < gib; i++)
		hva_of(env, NESTED_PDPT)[i] = i * SZ_1G | NESTED_TABLE | NESTED_LARGE |
					      env->leaf_flags;
	hva_of(env, NESTED_PDPT)[gib] = (u64)l1_page(NESTED_PD) | NESTED_TABLE;

	hva_of(env, NESTED_PD)[0] = (u64)l1_page(NESTED_PT) | NESTED_TABLE;
	for (i = 1; i < MEM_SIZE / SZ_2M; i++)
		hva_of(env, NESTED_PD)[i] = leaf_entry(env, i * REGION) | NESTED_LARGE;
	for (i = 0; i < REGION; i++)
		hva_of(env, NESTED_PT)[i] = leaf_entry(env, i);
}

static void sync_cmd(struct env *env, u64 round)
{
	typeof(cmd) *guest = addr_gva2hva(env->vm, (gva_t)&cmd);

	guest->svm = kvm_cpu_has(X86_FEATURE_SVM);
	guest->nested_paging = env->nested_paging;
	guest->small_entry = leaf_entry(env, small_pages[round % 2]);
	guest->large_entry = leaf_entry(env, large_pages[round % 2]) | NESTED_LARGE;
	guest->value = round + 1;
}

/* If @turned_off, the features are enabled, and then none is. */
static bool __env_create(struct env *env, bool nested_paging, enum gtdp_backing backing,
			 u64 features, bool turned_off)
{
	bool svm = kvm_cpu_has(X86_FEATURE_SVM);
	struct kvm_vcpu *vcpus[2];
	gva_t data;

	if (!svm && (!kvm_cpu_has(X86_FEATURE_VMX) || (nested_paging && !kvm_cpu_has_ept())))
		return false;
	if (svm && nested_paging && !kvm_cpu_has(X86_FEATURE_NPT))
		return false;
	if (backing == GTDP_THP && !gtdp_has_thp())
		return false;

	env->nested_paging = nested_paging;
	env->leaf_flags = svm ? 0 : EPT_WB;

	gtdp_mem_alloc(&env->mem, backing, MEM_SIZE, 0);
	gtdp_stamp(env->mem.hva, NR_PAGES, HOST_TAG);
	make_nested_tables(env);

	env->vm = gtdp_vm_create_bare(ARRAY_SIZE(vcpus));
	vm_enable_cap(env->vm, KVM_CAP_GLOBAL_TDP, features);
	if (turned_off)
		vm_enable_cap(env->vm, KVM_CAP_GLOBAL_TDP, 0);
	gtdp_vm_add_vcpus(env->vm, ARRAY_SIZE(vcpus), vcpus);
	env->vcpu = vcpus[0];
	env->other = vcpus[1];
	if (svm)
		vcpu_alloc_svm(env->vm, &data);
	else
		vcpu_alloc_vmx(env->vm, &data);
	vcpu_arch_set_entry_point(env->vcpu, l1_main);
	vcpu_args_set(env->vcpu, 1, data);

	gtdp_add_slot(env->vm, GTDP_SLOT, 0, GTDP_GPA, &env->mem);
	return true;
}

static bool env_create(struct env *env, bool nested_paging, enum gtdp_backing backing)
{
	return __env_create(env, nested_paging, backing,
			    KVM_GLOBAL_TDP_POPULATE | KVM_GLOBAL_TDP_FAULT_AROUND, false);
}

static void env_destroy(struct env *env)
{
	kvm_vm_free(env->vm);
	gtdp_mem_free(&env->mem);
}

static void populate(struct env *env)
{
	gtdp_populate_code(env->vm);
	gtdp_populate_full(env->vm, GTDP_GPA, MEM_SIZE);
}

/* Have the host zap what maps its memory, and leave the memory alone. */
static void zap(void *hva, size_t size)
{
	int r;

	r = mprotect(hva, size, PROT_READ);
	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("mprotect()", r));
	r = mprotect(hva, size, PROT_READ | PROT_WRITE);
	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("mprotect()", r));

	/* Have the host's PTEs writable, so that populated pages could be. */
	r = madvise(hva, size, MADV_POPULATE_WRITE);
	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("madvise()", r));
}

/* That is what L1 and L2 need to run, and L1's nested page tables. */
static void zap_all(struct env *env)
{
	struct userspace_mem_region *code = memslot2region(env->vm, 0);

	zap(code->host_mem, code->region.memory_size);
	zap(hva_of(env, NESTED_ROOT), (NESTED_END - NESTED_ROOT) * PAGE_SIZE);
}

static void run_until(struct env *env, enum stage stage)
{
	struct ucall uc;

	vcpu_run(env->vcpu);
	if (get_ucall(env->vcpu, &uc) == UCALL_ABORT)
		REPORT_GUEST_ASSERT(uc);
	TEST_ASSERT(uc.cmd == UCALL_SYNC && uc.args[1] == stage, "Not in L%d", stage + 1);
}

/* The pages that L2 uses in this round. */
static u64 small_page(struct env *env, u64 round)
{
	return env->nested_paging ? small_pages[round % 2] : 0;
}

static u64 large_page(struct env *env, u64 round)
{
	return env->nested_paging ? large_pages[round % 2] : REGION;
}

/* L2 has just found, and written, what is in these pages. */
static void check_l2(struct env *env, u64 round)
{
	u64 *small = hva_of(env, small_page(env, round));
	u64 *large = hva_of(env, large_page(env, round));
	u64 *seen;

	seen = addr_gva2hva(env->vm, (gva_t)&seen_small);
	TEST_ASSERT_EQ(*seen, small[0]);
	seen = addr_gva2hva(env->vm, (gva_t)&seen_large);
	TEST_ASSERT_EQ(*seen, large[0]);

	TEST_ASSERT_EQ(small[1], round + 1);
	TEST_ASSERT_EQ(large[1], round + 1);
}

static void restamp(struct env *env, u64 page, u64 tag)
{
	int r = madvise(hva_of(env, page), PAGE_SIZE, MADV_DONTNEED);

	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("madvise()", r));
	gtdp_stamp(hva_of(env, page), 1, tag);
}

/*
 * @zap_first has all of L1's tables populated anew while they are shadowed, and
 * before L1 writes to them.
 */
static bool test_l2(bool nested_paging, enum gtdp_backing backing, bool zap_first)
{
	u64 round, around;
	struct env env;

	if (!env_create(&env, nested_paging, backing))
		return false;

	populate(&env);
	sync_cmd(&env, 0);
	run_until(&env, IN_L1);

	for (round = 0; round < ROUNDS; round++) {
		sync_cmd(&env, round);
		if (zap_first)
			zap_all(&env);
		populate(&env);
		around = gtdp_vm_stat(env.vm, "tdp_fault_around");
		run_until(&env, IN_L2);
		check_l2(&env, round);

		/*
		 * L2 has page tables of its own, or shadow pages.  VMX does not tell which
		 * pages of the former it has written to: they must not be populated.
		 */
		TEST_ASSERT_EQ(gtdp_vm_stat(env.vm, "tdp_fault_around"), around);

		/* While the vCPU is in L2: new pages, and all else zapped. */
		restamp(&env, small_page(&env, round), 1000000 + round);
		restamp(&env, large_page(&env, round), 2000000 + round);
		if (round % 2)
			zap_all(&env);
		populate(&env);
		run_until(&env, IN_L1);
		check_l2(&env, round);
		populate(&env);
	}

	env_destroy(&env);
	return true;
}

/* Without nested paging, the pages of L2's root are harvested with those of L1's. */
static bool test_harvest(void)
{
	u64 bitmap[NR_PAGES / 64];
	struct env env;

	if (!(kvm_check_cap(KVM_CAP_GLOBAL_TDP) & KVM_GLOBAL_TDP_HARVEST) ||
	    !__env_create(&env, false, GTDP_ANON,
			  KVM_GLOBAL_TDP_POPULATE | KVM_GLOBAL_TDP_HARVEST, false))
		return false;

	populate(&env);
	sync_cmd(&env, 0);
	run_until(&env, IN_L1);
	run_until(&env, IN_L2);
	check_l2(&env, 0);
	gtdp_run(env.other, GTDP_READ, GTDP_GPA + 3 * PAGE_SIZE, 1, 0);

	TEST_ASSERT_EQ(gtdp_harvest(env.vm, 0, GTDP_GPA, MEM_SIZE, bitmap), 3 * PAGE_SIZE);
	TEST_ASSERT_EQ(bitmap[0], BIT_ULL(0) | BIT_ULL(3));
	TEST_ASSERT_EQ(bitmap[REGION / 64], 1);

	env_destroy(&env);
	return true;
}

static bool is_table(u64 page)
{
	return page >= NESTED_ROOT && page < NESTED_END;
}

/* The log tells of L2's writes, no matter that L1's memory is populated. */
static bool test_log(bool nested_paging, enum gtdp_backing backing)
{
	unsigned long *log = bitmap_zalloc(NR_PAGES);
	u64 round, i;
	struct env env;

	if (!env_create(&env, nested_paging, backing))
		return false;

	populate(&env);
	sync_cmd(&env, 0);
	run_until(&env, IN_L1);
	run_until(&env, IN_L2);
	run_until(&env, IN_L1);

	gtdp_add_slot(env.vm, GTDP_SLOT, KVM_MEM_LOG_DIRTY_PAGES, GTDP_GPA, &env.mem);
	for (round = 0; round < ROUNDS; round++) {
		sync_cmd(&env, round);
		if (round % 3)
			populate(&env);
		if (round % 2)
			run_until(&env, IN_L2);
		populate(&env);
		if (!(round % 2))
			run_until(&env, IN_L2);
		kvm_vm_get_dirty_log(env.vm, GTDP_SLOT, log);

		for (i = 0; i < NR_PAGES; i++) {
			/* Accessed and Dirty bits are written, too. */
			if (is_table(i))
				continue;
			TEST_ASSERT(test_bit(i, log) == (i == small_page(&env, round) ||
							 i == large_page(&env, round)),
				    "Page %lu is %sin the log of round %lu", i,
				    test_bit(i, log) ? "" : "not ", round);
		}

		/* Again, after the log was cleared, from within L2. */
		populate(&env);
		run_until(&env, IN_L1);
		kvm_vm_get_dirty_log(env.vm, GTDP_SLOT, log);
		TEST_ASSERT(test_bit(small_page(&env, round), log) &&
			    test_bit(large_page(&env, round), log),
			    "Not logged in round %lu", round);
		check_l2(&env, round);
	}

	free(log);
	env_destroy(&env);
	return true;
}

/*
 * L2 without nested paging has a root of its own, which nobody populates.  Huge
 * pages are huge again in there, too, when dirty logging has just ended.
 */
static bool test_log_ended(u64 features)
{
	const u64 nr_huge = MEM_SIZE / SZ_2M;
	u64 small, huge, faults, round;
	struct env env;

	if (!__env_create(&env, false, GTDP_THP, features, false))
		return false;

	populate(&env);
	sync_cmd(&env, 0);
	run_until(&env, IN_L1);
	for (round = 0; round < ROUNDS; round++) {
		sync_cmd(&env, round);
		run_until(&env, IN_L2);
		run_until(&env, IN_L1);
	}

	small = gtdp_vm_stat(env.vm, "pages_4k");
	huge = gtdp_vm_stat(env.vm, "pages_2m");
	if (huge <= nr_huge) {
		ksft_print_msg("no huge pages\n");
		env_destroy(&env);
		return false;
	}

	gtdp_add_slot(env.vm, GTDP_SLOT, KVM_MEM_LOG_DIRTY_PAGES, GTDP_GPA, &env.mem);
	populate(&env);
	run_until(&env, IN_L2);
	run_until(&env, IN_L1);
	TEST_ASSERT_EQ(gtdp_vm_stat(env.vm, "pages_2m"), 0);
	gtdp_add_slot(env.vm, GTDP_SLOT, 0, GTDP_GPA, &env.mem);
	TEST_ASSERT_EQ(gtdp_vm_stat(env.vm, "pages_2m"), huge);
	TEST_ASSERT_EQ(gtdp_vm_stat(env.vm, "pages_4k"), small);

	faults = gtdp_vcpu_stat(env.vcpu, "pf_taken");
	sync_cmd(&env, round);
	run_until(&env, IN_L2);
	check_l2(&env, round);
	run_until(&env, IN_L1);
	check_l2(&env, round);
	TEST_ASSERT_EQ(gtdp_vcpu_stat(env.vcpu, "pf_taken"), faults);

	env_destroy(&env);
	return true;
}

static bool in_l1, entering, written;

/* L1 has run in this thread, as KVM waits for RCU when a vCPU comes to another. */
static void *l2_thread(void *arg)
{
	run_until(arg, IN_L1);
	WRITE_ONCE(in_l1, true);

	__gtdp_wait_until((sched_yield(), READ_ONCE(entering)), 0);

	run_until(arg, IN_L2);
	return NULL;
}

/* Another vCPU of L1 faults on pages that nobody has mapped, one by one. */
static void *write_thread(void *arg)
{
	struct env *env = arg;

	gtdp_run(env->other, GTDP_STAMP, OTHER_GPA, NR_OTHER, HOST_TAG);
	WRITE_ONCE(written, true);
	return NULL;
}

/*
 * The first nested guest is entered while a vCPU's fault uses a memslot that has
 * just been replaced, with other flags, and so lacks what KVM allocates then to
 * shadow L1's tables.
 */
static bool test_first_l2(void)
{
	struct gtdp_mem other;
	pthread_t writer, l2;
	struct env env;
	int i, j;

	for (i = 0; i < RACES; i++) {
		if (!__env_create(&env, true, GTDP_ANON, KVM_GLOBAL_TDP_POPULATE, false))
			return false;
		sync_cmd(&env, 0);
		/* What L1 needs on its way to L2 takes no fault. */
		gtdp_populate_code(env.vm);
		gtdp_prefault(env.vcpu, (u64)l1_page(NESTED_ROOT), SZ_2M);
		gtdp_mem_alloc(&other, GTDP_ANON, NR_OTHER * PAGE_SIZE, 0);
		gtdp_add_slot(env.vm, OTHER_SLOT, 0, OTHER_GPA, &other);

		WRITE_ONCE(in_l1, false);
		WRITE_ONCE(entering, false);
		WRITE_ONCE(written, false);
		pthread_create(&l2, NULL, l2_thread, &env);
		gtdp_wait_until(READ_ONCE(in_l1));

		pthread_create(&writer, NULL, write_thread, &env);
		for (j = 0; j < NR_CHANGES && !READ_ONCE(written); j++) {
			gtdp_add_slot(env.vm, OTHER_SLOT, j % 2 ? 0 : KVM_MEM_LOG_DIRTY_PAGES,
				      OTHER_GPA, &other);
			WRITE_ONCE(entering, true);
		}
		WRITE_ONCE(entering, true);

		pthread_join(writer, NULL);
		pthread_join(l2, NULL);
		check_l2(&env, 0);

		/* And what L1 writes to its tables is noticed, as ever. */
		sync_cmd(&env, 1);
		run_until(&env, IN_L1);
		run_until(&env, IN_L2);
		check_l2(&env, 1);
		env_destroy(&env);
		gtdp_mem_free(&other);
	}

	return true;
}

static void l1_and_l2_execute(struct env *env, bool l1, bool l2)
{
	typeof(cmd) *guest = addr_gva2hva(env->vm, (gva_t)&cmd);

	guest->l1_executes = l1;
	guest->l2_executes = l2;
}

/* Have KVM recover huge pages, until at least @nr have been. */
static void recover_nx(struct env *env, u64 nr)
{
	u64 splits = gtdp_vm_stat(env->vm, "nx_lpage_splits"), left;
	struct timespec start;

	clock_gettime(CLOCK_MONOTONIC, &start);
	gtdp_set_param("nx_huge_pages_recovery_ratio", NX_RATIO);
	do {
		usleep(1000);
		left = gtdp_vm_stat(env->vm, "nx_lpage_splits");
	} while (left + nr > splits && timespec_elapsed(start).tv_sec < RECOVERY_SECS);
	TEST_ASSERT(left + nr <= splits, "%lu of %lu huge pages are left, %lu are to be recovered",
		    left, splits, nr);
	gtdp_set_param("nx_huge_pages_recovery_ratio", "0");
}

static bool nx_recovery(struct env *env)
{
	u64 page, splits;

	if (gtdp_huge_bytes(env->mem.hva) < MEM_SIZE) {
		ksft_print_msg("no huge pages\n");
		return false;
	}

	for (page = FIRST_CODE; page < END_CODE; page += REGION)
		gtdp_make_code(hva_of(env, page), 1);
	sync_cmd(env, 0);
	run_until(env, IN_L1);

	l1_and_l2_execute(env, true, true);
	run_until(env, IN_L2);
	TEST_ASSERT_EQ(gtdp_vm_stat(env->vm, "nx_lpage_splits"), 2 * NR_CODE);

	recover_nx(env, 2);

	/* L1's are split again, so that only L2's are missing. */
	l1_and_l2_execute(env, true, false);
	run_until(env, IN_L1);
	run_until(env, IN_L2);
	splits = gtdp_vm_stat(env->vm, "nx_lpage_splits");
	TEST_ASSERT(splits >= NR_CODE && splits < 2 * NR_CODE,
		    "%lu of %lu huge pages are split: none of L2's recovered", splits,
		    2 * NR_CODE);

	/* In the end, all are recovered. */
	gtdp_set_param("nx_huge_pages_recovery_period_ms", "1");
	recover_nx(env, splits);
	return true;
}

/*
 * Huge pages that L1 and L2 have executed from, and that are split for that, are
 * recovered some at a time.  However many L1's are, L2's get their turn: those of
 * L1, in page tables of the TDP MMU, have a list of their own.
 *
 * So they do in a VM that has been turned off again, which is a way to tell that
 * it is locked as it was before.
 */
static bool test_nx_recovery(bool turned_off)
{
	struct env env;
	bool done;

	if (!gtdp_set_param("nx_huge_pages", "force") ||
	    !gtdp_set_param("nx_huge_pages_recovery_ratio", "0") ||
	    !gtdp_set_param("nx_huge_pages_recovery_period_ms", NX_PERIOD_MS))
		return false;

	done = __env_create(&env, true, GTDP_THP, KVM_GLOBAL_TDP_POPULATE, turned_off);
	if (done) {
		done = nx_recovery(&env);
		env_destroy(&env);
	}

	gtdp_restore_params();
	return done;
}

static bool test_nx_recovery_on(void)
{
	return test_nx_recovery(false);
}

static bool test_nx_recovery_turned_off(void)
{
	return test_nx_recovery(true);
}

static bool test_nested_paging(void)
{
	return test_l2(true, GTDP_ANON, false);
}

static bool test_nested_paging_zapped(void)
{
	return test_l2(true, GTDP_ANON, true);
}

static bool test_nested_paging_thp(void)
{
	return test_l2(true, GTDP_THP, true);
}

static bool test_no_nested_paging(void)
{
	return test_l2(false, GTDP_ANON, true);
}

static bool test_no_nested_paging_thp(void)
{
	return test_l2(false, GTDP_THP, true);
}

static bool test_nested_paging_log(void)
{
	return test_log(true, GTDP_ANON);
}

static bool test_nested_paging_log_thp(void)
{
	return test_log(true, GTDP_THP);
}

static bool test_no_nested_paging_log(void)
{
	return test_log(false, GTDP_ANON);
}

static bool test_no_nested_paging_log_ended(void)
{
	return test_log_ended(KVM_GLOBAL_TDP_POPULATE);
}

static bool test_no_nested_paging_log_ended_follower(void)
{
	return test_log_ended(KVM_GLOBAL_TDP_POPULATE | KVM_GLOBAL_TDP_FOLLOW);
}

static const struct gtdp_test tests[] = {
	{ "nested paging", test_nested_paging },
	{ "nested paging, zapped", test_nested_paging_zapped },
	{ "nested paging, zapped, huge pages", test_nested_paging_thp },
	{ "no nested paging, zapped", test_no_nested_paging },
	{ "no nested paging, zapped, huge pages", test_no_nested_paging_thp },
	{ "harvested, no nested paging", test_harvest },
	{ "dirty log, nested paging", test_nested_paging_log },
	{ "dirty log, nested paging, huge pages", test_nested_paging_log_thp },
	{ "dirty log, no nested paging", test_no_nested_paging_log },
	{ "dirty log ended, no nested paging, huge pages", test_no_nested_paging_log_ended },
	{ "dirty log ended, no nested paging, huge pages, follower",
	  test_no_nested_paging_log_ended_follower },
	{ "first nested guest, memslot replaced under a fault", test_first_l2 },
	{ "NX recovery", test_nx_recovery_on },
	{ "NX recovery, turned off again", test_nx_recovery_turned_off },
};

/* Takes part of the name of a test, to leave out all others. */
int main(int argc, char *argv[])
{
	gtdp_require(GTDP_ALL);
	TEST_REQUIRE(kvm_cpu_has(X86_FEATURE_SVM) || kvm_cpu_has(X86_FEATURE_VMX));
	gtdp_run_some_tests(tests, ARRAY_SIZE(tests), argc > 1 ? argv[1] : NULL);
}
