// SPDX-License-Identifier: GPL-2.0
/*
 * Proves that population and the mitigation of iTLB multihit (nx_huge_pages) get
 * along: a VM that is populated and followed finds all of its memory mapped again
 * when the parameter changes, with huge pages that can be executed or that can't;
 * what had to be split for the guest to execute from it stays split until it is
 * recovered, and is huge again when it is populated then.  SMM's memory is as logged as
 * its own memslots are.
 */
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>

#include "test_util.h"
#include "kvm_util.h"
#include "processor.h"
#include "global_tdp.h"
#include "global_tdp_layout.h"

#define MEM_SIZE	SZ_16M
#define NR_PAGES	(MEM_SIZE / PAGE_SIZE)
#define NR_REGIONS	(MEM_SIZE / SZ_2M)

#define HOST_TAG	1
#define ROUNDS		20

/* Of each deletion, how much is left when a recovery begins, how long the rest takes. */
#define DELETIONS	20
#define LAST_PAGES(i)	((2 + (i) % 4) * GTDP_REGION_PAGES)
#define REST_USECS(i)	(2000 * (1 + (i) / 4))

/* Recover all at a time, and often. */
#define RATIO		"1"
#define PERIOD_MS	"10"

struct env {
	struct kvm_vm *vm;
	struct kvm_vcpu *vcpu;
	struct gtdp_mem mem;
	u64 nr_code;
	/* How often the guest has executed all of it, and the faults it took. */
	u64 executed;
	u64 faults;
	bool stop;
};

static bool env_create(struct env *env, u64 features)
{
	*env = (struct env) {};
	gtdp_mem_alloc(&env->mem, GTDP_THP, MEM_SIZE, 0);
	gtdp_stamp(env->mem.hva, NR_PAGES, HOST_TAG);
	gtdp_make_code(env->mem.hva, NR_PAGES);
	if (!gtdp_is_huge(env->mem.hva, MEM_SIZE)) {
		gtdp_mem_free(&env->mem);
		return false;
	}

	env->vm = gtdp_vm_create(features, 1, &env->vcpu);
	env->nr_code = gtdp_code_size(env->vm) / PAGE_SIZE;
	gtdp_add_slot(env->vm, GTDP_SLOT, 0, GTDP_GPA, &env->mem);
	return true;
}

static void env_destroy(struct env *env)
{
	kvm_vm_free(env->vm);
	gtdp_mem_free(&env->mem);
}

static u64 nr_huge(struct env *env)
{
	return gtdp_vm_stat(env->vm, "pages_2m");
}

static u64 nr_split(struct env *env)
{
	return gtdp_vm_stat(env->vm, "nx_lpage_splits");
}

static u64 run(struct env *env, enum gtdp_op op)
{
	return gtdp_run(env->vcpu, op, GTDP_GPA, NR_PAGES, HOST_TAG);
}

/* By the follower, or by the ioctl, and by huge pages. */
static void check_mapped(struct env *env, bool follow)
{
	if (follow) {
		gtdp_wait_mapped(env->vm, env->nr_code + NR_PAGES);
		gtdp_wait_until(nr_huge(env) == NR_REGIONS);
	} else {
		gtdp_populate_code(env->vm);
		gtdp_populate_full(env->vm, GTDP_GPA, MEM_SIZE);
	}
	TEST_ASSERT_EQ(nr_huge(env), NR_REGIONS);
	TEST_ASSERT_EQ(run(env, GTDP_CHECK), 0);
}

/* One page of each region: all of them are mapped by small pages from then on. */
static void split_all(struct env *env)
{
	u64 faults = gtdp_run_job(env->vcpu, (struct gtdp_job) {
		.op = GTDP_EXEC,
		.gpa = GTDP_GPA,
		.nr = NR_PAGES,
		.step = GTDP_REGION_PAGES,
	});

	TEST_ASSERT_EQ(faults, NR_REGIONS);
	TEST_ASSERT_EQ(nr_split(env), NR_REGIONS);
	TEST_ASSERT_EQ(nr_huge(env), 0);
}

/* Populated, they are still split, and nothing of them takes a fault. */
static void check_split(struct env *env, bool follow)
{
	if (follow)
		gtdp_wait_mapped(env->vm, env->nr_code + NR_PAGES);
	else
		gtdp_populate_full(env->vm, GTDP_GPA, MEM_SIZE);

	TEST_ASSERT_EQ(nr_huge(env), 0);
	TEST_ASSERT_EQ(nr_split(env), NR_REGIONS);
	TEST_ASSERT_EQ(run(env, GTDP_CHECK), 0);
	TEST_ASSERT_EQ(run(env, GTDP_EXEC), 0);
}

/* Zap memory, all of which remains as it is. */
static void zap(void *hva, size_t size)
{
	int r = mprotect(hva, size, PROT_READ);

	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("mprotect()", r));
	r = mprotect(hva, size, PROT_READ | PROT_WRITE);
	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("mprotect()", r));
}

static void recover(struct env *env)
{
	gtdp_set_param("nx_huge_pages_recovery_ratio", RATIO);
	gtdp_wait_until(!nr_split(env));
	gtdp_set_param("nx_huge_pages_recovery_ratio", "0");
}

static bool test_toggled(bool follow)
{
	struct env env;

	if (!gtdp_set_param("nx_huge_pages", "off") ||
	    !gtdp_set_param("nx_huge_pages_recovery_ratio", "0") ||
	    !gtdp_set_param("nx_huge_pages_recovery_period_ms", PERIOD_MS))
		return false;
	if (!env_create(&env, follow ? GTDP_ALL : KVM_GLOBAL_TDP_POPULATE))
		return false;

	check_mapped(&env, follow);
	TEST_ASSERT_EQ(run(&env, GTDP_EXEC), 0);

	/* All is zapped, and comes back. */
	gtdp_set_param("nx_huge_pages", "force");
	check_mapped(&env, follow);

	split_all(&env);
	check_split(&env, follow);

	/* Whether all of it was mapped before, or has holes that are filled now. */
	if (!follow) {
		zap(env.mem.hva, MEM_SIZE);
		split_all(&env);
		check_split(&env, follow);
	}

	/* Recovered, they are left to who wants them: a vCPU, or a call. */
	recover(&env);
	check_mapped(&env, false);
	split_all(&env);

	gtdp_set_param("nx_huge_pages", "off");
	check_mapped(&env, follow);
	TEST_ASSERT_EQ(run(&env, GTDP_EXEC), 0);
	TEST_ASSERT_EQ(nr_split(&env), 0);

	env_destroy(&env);
	gtdp_restore_params();
	return true;
}

static bool test_toggled_ioctl(void)
{
	return test_toggled(false);
}

static bool test_toggled_follower(void)
{
	return test_toggled(true);
}

/*
 * What is logged would only be mapped by small pages again, so it stays as it is; but
 * nothing counts it as split any more.  It is huge again without the log.
 */
static bool test_logged(void)
{
	struct env env;

	if (!gtdp_set_param("nx_huge_pages", "force") ||
	    !gtdp_set_param("nx_huge_pages_recovery_ratio", "0") ||
	    !gtdp_set_param("nx_huge_pages_recovery_period_ms", PERIOD_MS) ||
	    !env_create(&env, KVM_GLOBAL_TDP_POPULATE))
		return false;

	check_mapped(&env, false);
	split_all(&env);
	check_split(&env, false);

	gtdp_add_slot(env.vm, GTDP_SLOT, KVM_MEM_LOG_DIRTY_PAGES, GTDP_GPA, &env.mem);
	recover(&env);
	TEST_ASSERT_EQ(run(&env, GTDP_EXEC), 0);
	TEST_ASSERT_EQ(run(&env, GTDP_CHECK), 0);

	gtdp_add_slot(env.vm, GTDP_SLOT, 0, GTDP_GPA, &env.mem);
	check_mapped(&env, false);
	split_all(&env);

	env_destroy(&env);
	gtdp_restore_params();
	return true;
}

/*
 * What is split in SMM is left as it is if SMM's own memslot is logged, and recovered if only
 * the other one at the same address is.
 */
static bool test_smm(void)
{
	const u32 slot = 1 << 16 | GTDP_SLOT;
	struct env env;

	if (!kvm_has_cap(KVM_CAP_X86_SMM) ||
	    !gtdp_set_param("nx_huge_pages", "force") ||
	    !gtdp_set_param("nx_huge_pages_recovery_ratio", "0") ||
	    !gtdp_set_param("nx_huge_pages_recovery_period_ms", PERIOD_MS) ||
	    !env_create(&env, KVM_GLOBAL_TDP_POPULATE))
		return false;

	vm_set_user_memory_region(env.vm, 1 << 16, 0, 0, gtdp_code_size(env.vm),
				  addr_gpa2hva(env.vm, 0));
	gtdp_add_slot(env.vm, slot, 0, GTDP_GPA, &env.mem);
	gtdp_enter_smm(env.vcpu);

	run(&env, GTDP_EXEC);
	TEST_ASSERT_EQ(nr_split(&env), NR_REGIONS);
	gtdp_add_slot(env.vm, slot, KVM_MEM_LOG_DIRTY_PAGES, GTDP_GPA, &env.mem);
	recover(&env);
	TEST_ASSERT_EQ(run(&env, GTDP_EXEC), 0);

	gtdp_add_slot(env.vm, slot, 0, GTDP_GPA, &env.mem);
	run(&env, GTDP_EXEC);
	TEST_ASSERT_EQ(nr_split(&env), NR_REGIONS);
	gtdp_add_slot(env.vm, GTDP_SLOT, KVM_MEM_LOG_DIRTY_PAGES, GTDP_GPA, &env.mem);
	recover(&env);
	run(&env, GTDP_READ);
	TEST_ASSERT_EQ(nr_huge(&env), NR_REGIONS);

	env_destroy(&env);
	gtdp_restore_params();
	return true;
}

/* The guest splits huge pages, by executing them, as soon as they are recovered. */
static void *executor(void *arg)
{
	struct env *env = arg;

	while (!READ_ONCE(env->stop)) {
		env->faults += run(env, GTDP_EXEC);
		run(env, GTDP_CHECK);
		WRITE_ONCE(env->executed, env->executed + 1);
	}

	return NULL;
}

static void *populator(void *arg)
{
	struct kvm_populate_memory range;
	struct env *env = arg;
	int r;

	while (!READ_ONCE(env->stop)) {
		range = (struct kvm_populate_memory) { .gpa = GTDP_GPA, .size = MEM_SIZE };
		r = __vm_ioctl(env->vm, KVM_POPULATE_MEMORY, &range);
		TEST_ASSERT(!r || errno == EAGAIN || errno == EINTR,
			    KVM_IOCTL_ERROR(KVM_POPULATE_MEMORY, r));
		usleep(1000);
	}

	return NULL;
}

/*
 * Pages are split, recovered, populated and zapped, all at the same time.  In the
 * end nobody has lost count of what is split: it is recovered, and huge again.
 */
static bool test_raced(void)
{
	pthread_t threads[2];
	u64 executed;
	struct env env;
	int i;

	if (!gtdp_set_param("nx_huge_pages", "force") ||
	    !gtdp_set_param("nx_huge_pages_recovery_ratio", RATIO) ||
	    !gtdp_set_param("nx_huge_pages_recovery_period_ms", PERIOD_MS) ||
	    !env_create(&env, GTDP_ALL))
		return false;

	pthread_create(&threads[0], NULL, executor, &env);
	pthread_create(&threads[1], NULL, populator, &env);
	for (i = 0; i < ROUNDS; i++) {
		executed = READ_ONCE(env.executed);
		zap(env.mem.hva + SZ_2M, MEM_SIZE / 2);
		if (i % 4 == 3)
			gtdp_set_param("nx_huge_pages", i % 8 == 3 ? "off" : "force");
		gtdp_wait_until(READ_ONCE(env.executed) > executed);
	}
	WRITE_ONCE(env.stop, true);
	for (i = 0; i < ARRAY_SIZE(threads); i++)
		pthread_join(threads[i], NULL);
	TEST_ASSERT(env.faults > NR_REGIONS, "Only %lu faults", env.faults);

	gtdp_set_param("nx_huge_pages", "force");
	gtdp_wait_until(!nr_split(&env));
	check_mapped(&env, false);

	env_destroy(&env);
	gtdp_restore_params();
	return true;
}

static void *deleter(void *arg)
{
	gtdp_delete_slot(arg, GTDP_SLOT + 1);
	return NULL;
}

/*
 * Delete a memslot, and with it all that is mapped; have a page table of it
 * recovered when the rest is nearly zapped; take its memory away when it is gone.
 * Returns how many pages are counted as mapped then: all of it, if it is in use, or
 * the last few of others that are being zapped.
 */
static u64 nr_left_behind(struct kvm_vm *vm, struct kvm_vcpu *vcpu,
			       struct gtdp_mem *memory, struct gtdp_mem *code, int i)
{
	const u64 gpa = GTDP_GPA + memory->size;
	cpu_set_t cpus, cpu;
	pthread_t thread;
	u64 left;
	int r;

	gtdp_stamp(code->hva, GTDP_REGION_PAGES, HOST_TAG);
	gtdp_make_code(code->hva, GTDP_REGION_PAGES);
	gtdp_add_slot(vm, GTDP_SLOT + 1, 0, gpa, code);
	gtdp_run(vcpu, GTDP_READ, GTDP_GPA, memory->size / PAGE_SIZE, 0);
	gtdp_run(vcpu, GTDP_EXEC, gpa, GTDP_REGION_PAGES, HOST_TAG);
	TEST_ASSERT_EQ(gtdp_vm_stat(vm, "nx_lpage_splits"), 1);

	/* Leave another CPU to the recovery. */
	sched_getaffinity(0, sizeof(cpus), &cpus);
	CPU_ZERO(&cpu);
	CPU_SET(sched_getcpu(), &cpu);
	sched_setaffinity(0, sizeof(cpu), &cpu);

	pthread_create(&thread, NULL, deleter, vm);
	__gtdp_wait_until(gtdp_vm_stat(vm, "pages_4k") < LAST_PAGES(i), 100);
	gtdp_set_param("nx_huge_pages_recovery_ratio", RATIO);
	__gtdp_wait_until(gtdp_vm_stat(vm, "pages_4k") <= GTDP_REGION_PAGES, 100);
	usleep(REST_USECS(i));
	r = madvise(code->hva, code->size, MADV_DONTNEED);
	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("madvise()", r));
	left = gtdp_vm_stat(vm, "pages_4k");

	pthread_join(thread, NULL);
	sched_setaffinity(0, sizeof(cpus), &cpus);
	gtdp_set_param("nx_huge_pages_recovery_ratio", "0");
	return left;
}

/*
 * When a memslot is gone, nobody tells KVM that the host takes its memory away.  So
 * whatever has to do with its pages is done by then, also if somebody else than who
 * deletes the memslot has found them.
 */
static bool test_deleted(void)
{
	struct gtdp_mem memory, code;
	struct kvm_vcpu *vcpu;
	struct kvm_vm *vm;
	u64 left;
	int i;

	if (!gtdp_set_param("nx_huge_pages", "force") ||
	    !gtdp_set_param("shared_mmu_lock", "Y") ||
	    !gtdp_set_param("nx_huge_pages_recovery_ratio", "0") ||
	    !gtdp_set_param("nx_huge_pages_recovery_period_ms", "1"))
		return false;

	gtdp_mem_alloc(&memory, GTDP_ANON, MEM_SIZE, 0);
	gtdp_mem_alloc(&code, GTDP_THP, SZ_2M, 0);
	gtdp_stamp(code.hva, GTDP_REGION_PAGES, HOST_TAG);
	if (!gtdp_is_huge(code.hva, code.size))
		return false;

	vm = gtdp_vm_create(0, 1, &vcpu);
	gtdp_add_slot(vm, GTDP_SLOT, 0, GTDP_GPA, &memory);

	for (i = 0; i < DELETIONS; i++) {
		left = nr_left_behind(vm, vcpu, &memory, &code, i);
		TEST_ASSERT(left < GTDP_REGION_PAGES, "%lu pages in use after their memslot",
			    left);
	}

	kvm_vm_free(vm);
	gtdp_mem_free(&memory);
	gtdp_mem_free(&code);
	gtdp_restore_params();
	return true;
}

static const struct gtdp_test tests[] = {
	{ "toggled, split, recovered", test_toggled_ioctl },
	{ "toggled, split, recovered, follower", test_toggled_follower },
	{ "split, logged, recovered", test_logged },
	{ "split in SMM, logged there or elsewhere", test_smm },
	{ "raced against zaps", test_raced },
	{ "recovered as its memslot is deleted", test_deleted },
};

/* Takes part of the name of a test, to leave out all others. */
int main(int argc, char *argv[])
{
	gtdp_require(GTDP_ALL);
	gtdp_run_some_tests(tests, ARRAY_SIZE(tests), argc > 1 ? argv[1] : NULL);
}
