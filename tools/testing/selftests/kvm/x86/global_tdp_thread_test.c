// SPDX-License-Identifier: GPL-2.0
/*
 * Proves that a VM gets the thread that follows its memory, one, and not before its
 * first vCPU, however inconvenient the moment of its creation is: beside a timer's
 * signals, and when the number of threads is limited, in which case the VM works
 * without until there may be one.
 */
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <sys/mman.h>
#include <sys/time.h>

#include "test_util.h"
#include "kvm_util.h"
#include "processor.h"
#include "global_tdp.h"

#define MEM_SIZE	SZ_32M
#define NR_PAGES	(MEM_SIZE / PAGE_SIZE)

#define HOST_TAG	1
#define NR_VMS		20
#define MAX_EXTRA_VCPUS	64
#define TIMER_USECS	20

/* Of the VMM that is limited. */
static char *cgroup;

static int nr_alarms;

static void count_alarm(int sig)
{
	WRITE_ONCE(nr_alarms, nr_alarms + 1);
}

static void set_timer(unsigned int usecs)
{
	const struct itimerval timer = { .it_value.tv_usec = usecs };
	int r = setitimer(ITIMER_REAL, &timer, NULL);

	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("setitimer()", r));
}

/*
 * A VMM with a timer, of which a signal is pending when it matters: sooner or
 * later, as it depends on the machine how long it takes to create a vCPU.
 */
static bool test_timer(void)
{
	struct sigaction action = { .sa_handler = count_alarm, .sa_flags = SA_RESTART };
	struct kvm_vcpu *vcpu;
	/* Not all of it is written to. */
	sigset_t before = {}, after = {};
	struct gtdp_mem mem;
	struct kvm_vm *vm;
	int i, hits = 0;

	sigaction(SIGALRM, &action, NULL);
	gtdp_mem_alloc(&mem, GTDP_ANON, MEM_SIZE, 0);
	gtdp_stamp(mem.hva, NR_PAGES, HOST_TAG);

	for (i = 0; i < NR_VMS; i++) {
		vm = vm_create_barebones();
		vm_enable_cap(vm, KVM_CAP_GLOBAL_TDP, KVM_GLOBAL_TDP_FOLLOW);
		gtdp_add_slot(vm, GTDP_SLOT, 0, GTDP_GPA, &mem);
		sigprocmask(SIG_BLOCK, NULL, &before);

		WRITE_ONCE(nr_alarms, 0);
		set_timer((i + 1) * TIMER_USECS);
		vcpu = __vm_vcpu_add(vm, 0);
		set_timer(0);
		hits += !!READ_ONCE(nr_alarms);

		sigprocmask(SIG_BLOCK, NULL, &after);
		TEST_ASSERT(!memcmp(&before, &after, sizeof(before)),
			    "KVM_CREATE_VCPU changed which signals are blocked");

		vcpu_init_cpuid(vcpu, kvm_get_supported_cpuid());
		gtdp_wait_mapped(vm, NR_PAGES);
		kvm_vm_free(vm);
	}

	gtdp_mem_free(&mem);
	TEST_ASSERT(hits, "No signal arrived while a vCPU was created");
	return true;
}

static void limit_threads(const char *max)
{
	TEST_ASSERT(gtdp_write_file(cgroup, "pids.max", max), "Can't set pids.max");
}

/* KVM_RUN fails without the thread that recovers huge pages, if that is wanted. */
static bool run_wants_thread(void)
{
	char value[16] = "";
	FILE *file = fopen("/sys/module/kvm/parameters/nx_huge_pages", "r");

	TEST_ASSERT(file && fgets(value, sizeof(value), file), "No nx_huge_pages");
	fclose(file);
	return strncmp(value, "never", 5);
}

struct env {
	struct kvm_vm *vm;
	struct kvm_vcpu *vcpu;
	struct gtdp_mem mem, spare;
	struct timespec created;
	u32 nr_vcpus;
};

static u64 failures(struct env *env)
{
	return gtdp_vm_stat(env->vm, "tdp_thread_failed");
}

static void no_follower(struct env *env)
{
	pid_t tid;

	TEST_ASSERT_EQ(gtdp_kernel_threads(&tid, 1), 0);
	TEST_ASSERT_EQ(gtdp_nr_populated(env->vm), 0);
}

/* The VM is created, and its guest runs, but there is no thread to be had. */
static void env_create(struct env *env)
{
	clock_gettime(CLOCK_MONOTONIC, &env->created);
	env->nr_vcpus = 1;
	gtdp_mem_alloc(&env->mem, GTDP_ANON, MEM_SIZE, 0);
	gtdp_mem_alloc(&env->spare, GTDP_ANON, MEM_SIZE, 0);
	gtdp_stamp(env->mem.hva, NR_PAGES, HOST_TAG);

	limit_threads("1");
	env->vm = gtdp_vm_create(KVM_GLOBAL_TDP_FOLLOW, 1, &env->vcpu);
	gtdp_add_slot(env->vm, GTDP_SLOT, 0, GTDP_GPA, &env->mem);
	no_follower(env);

	/* What the VM can't do without comes first. */
	if (run_wants_thread())
		limit_threads("2");
	gtdp_run(env->vcpu, GTDP_CHECK, GTDP_GPA, NR_PAGES / 2, HOST_TAG);
	no_follower(env);
}

/* There may be a thread now, so after some @action there is one. */
static void env_finish(struct env *env, void (*action)(void *arg))
{
	pid_t tid;

	limit_threads("max");
	__gtdp_wait_mapped(env->vm, gtdp_code_size(env->vm) / PAGE_SIZE + NR_PAGES,
			   action, env);
	TEST_ASSERT_EQ(gtdp_kernel_threads(&tid, 1), 1);
	gtdp_run(env->vcpu, GTDP_CHECK, GTDP_GPA, NR_PAGES, HOST_TAG);
	TEST_ASSERT(failures(env), "No failure is counted");

	kvm_vm_free(env->vm);
	gtdp_mem_free(&env->mem);
	gtdp_mem_free(&env->spare);
	_exit(0);
}

/* Of memory that has nothing to be mapped. */
static void change_slots(void *arg)
{
	struct env *env = arg;

	gtdp_add_slot(env->vm, GTDP_SLOT + 1, 0, GTDP_GPA + MEM_SIZE, &env->spare);
	gtdp_delete_slot(env->vm, GTDP_SLOT + 1);
}

static void slots_vmm(void)
{
	struct env env;

	env_create(&env);
	env_finish(&env, change_slots);
}

static void run_vcpu(void *arg)
{
	struct env *env = arg;

	gtdp_run(env->vcpu, GTDP_READ, GTDP_GPA, 0, 0);
}

static u64 msecs_since(const struct timespec *begin)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (now.tv_sec - begin->tv_sec) * 1000 +
	       (now.tv_nsec - begin->tv_nsec) / 1000000;
}

static void run_vmm(void)
{
	struct env env;

	env_create(&env);
	env_finish(&env, run_vcpu);
}

/*
 * A guest that exits often does not pay for an attempt each time: the wait for the next one
 * doubles, from a second on, with half of that for clocks that differ.
 */
static void rate_vmm(void)
{
	u64 nr, max, msecs;
	struct env env;

	env_create(&env);
	while (msecs_since(&env.created) < 6000)
		run_vcpu(&env);
	nr = failures(&env);
	msecs = msecs_since(&env.created);
	for (max = 2; msecs >= 500 << max; max++)
		;
	TEST_ASSERT(nr && nr <= max, "%lu attempts in %lu ms", nr, msecs);

	env_finish(&env, run_vcpu);
}

static void add_vcpu(void *arg)
{
	struct env *env = arg;

	if (env->nr_vcpus > MAX_EXTRA_VCPUS)
		return;

	/* All of them are soon used up. */
	usleep(200000);
	__vm_vcpu_add(env->vm, env->nr_vcpus++);
}

static void vcpus_vmm(void)
{
	struct env env;

	env_create(&env);
	env_finish(&env, add_vcpu);
}

/* Returns whether the range was accepted; if not, nothing has happened. */
static bool populate_async(struct kvm_vm *vm)
{
	struct kvm_populate_memory range = {
		.gpa = GTDP_GPA,
		.size = MEM_SIZE,
		.flags = KVM_POPULATE_ASYNC,
	};
	int r = __vm_ioctl(vm, KVM_POPULATE_MEMORY, &range);

	TEST_ASSERT(!r || errno == ENOMEM, KVM_IOCTL_ERROR(KVM_POPULATE_MEMORY, r));
	TEST_ASSERT_EQ(range.gpa, r ? GTDP_GPA : GTDP_GPA + MEM_SIZE);
	TEST_ASSERT_EQ(range.size, r ? MEM_SIZE : 0);
	return !r;
}

/* Who asks for the thread is told that there is none, and may ask again. */
static void async_vmm(void)
{
	struct gtdp_mem mem;
	struct kvm_vm *vm;
	pid_t tid;

	gtdp_mem_alloc(&mem, GTDP_ANON, MEM_SIZE, 0);
	gtdp_stamp(mem.hva, NR_PAGES, HOST_TAG);

	vm = vm_create_barebones();
	vm_enable_cap(vm, KVM_CAP_GLOBAL_TDP, KVM_GLOBAL_TDP_POPULATE);
	gtdp_add_slot(vm, GTDP_SLOT, 0, GTDP_GPA, &mem);

	limit_threads("1");
	TEST_ASSERT(!populate_async(vm), "The range was accepted");
	TEST_ASSERT(!populate_async(vm), "The range was accepted");
	TEST_ASSERT_EQ(gtdp_kernel_threads(&tid, 1), 0);
	TEST_ASSERT_EQ(gtdp_nr_mapped(vm), 0);

	limit_threads("max");
	gtdp_wait_until(populate_async(vm));
	gtdp_wait_mapped(vm, NR_PAGES);
	TEST_ASSERT(gtdp_vm_stat(vm, "tdp_thread_failed"), "No failure is counted");

	kvm_vm_free(vm);
	gtdp_mem_free(&mem);
	_exit(0);
}

static int nr_kernel_threads(void)
{
	pid_t tids[8];

	return gtdp_kernel_threads(tids, ARRAY_SIZE(tids));
}

static bool test_limited(void (*vmm)(void))
{
	cgroup = gtdp_cgroup_create(NULL, "pids");
	if (!cgroup)
		return false;

	gtdp_check_exit(gtdp_start(cgroup, vmm));
	gtdp_cgroup_destroy(cgroup);
	return true;
}

static bool test_limit_slots(void)
{
	return test_limited(slots_vmm);
}

static bool test_limit_run(void)
{
	return test_limited(run_vmm);
}

static bool test_limit_rate(void)
{
	return test_limited(rate_vmm);
}

static bool test_limit_vcpus(void)
{
	return test_limited(vcpus_vmm);
}

static bool test_limit_async(void)
{
	return test_limited(async_vmm);
}

/*
 * Until there is a vCPU, the VMM is as single-threaded as it was, whatever memory
 * it adds: it may want to fork, or to leave namespaces.
 */
static bool test_first_vcpu(void)
{
	struct kvm_vcpu *vcpu;
	struct gtdp_mem mem;
	struct kvm_vm *vm;

	gtdp_wait_until(!nr_kernel_threads());
	gtdp_mem_alloc(&mem, GTDP_ANON, MEM_SIZE, 0);
	gtdp_stamp(mem.hva, NR_PAGES, HOST_TAG);

	vm = vm_create_barebones();
	vm_enable_cap(vm, KVM_CAP_GLOBAL_TDP, GTDP_ALL);
	gtdp_add_slot(vm, GTDP_SLOT, 0, GTDP_GPA, &mem);
	TEST_ASSERT_EQ(nr_kernel_threads(), 0);
	gtdp_delete_slot(vm, GTDP_SLOT);
	gtdp_add_slot(vm, GTDP_SLOT, 0, GTDP_GPA, &mem);
	TEST_ASSERT_EQ(nr_kernel_threads(), 0);
	TEST_ASSERT_EQ(gtdp_nr_mapped(vm), 0);

	vcpu = __vm_vcpu_add(vm, 0);
	TEST_ASSERT_EQ(nr_kernel_threads(), 1);
	vcpu_init_cpuid(vcpu, kvm_get_supported_cpuid());
	gtdp_wait_mapped(vm, NR_PAGES);

	kvm_vm_free(vm);
	gtdp_mem_free(&mem);
	return true;
}

/* The thread has the CPUs that the VMM's own thread has. */
static void check_cpus(pid_t tid)
{
	cpu_set_t own_cpus, its_cpus;

	TEST_ASSERT(!sched_getaffinity(0, sizeof(own_cpus), &own_cpus) &&
		    !sched_getaffinity(tid, sizeof(its_cpus), &its_cpus),
		    __KVM_SYSCALL_ERROR("sched_getaffinity()", -1));
	TEST_ASSERT(CPU_EQUAL(&own_cpus, &its_cpus), "It may run on %d CPUs, not on %d",
		    CPU_COUNT(&its_cpus), CPU_COUNT(&own_cpus));
}

static bool test_cpus(void)
{
	cpu_set_t all;
	struct gtdp_mem mem;
	struct kvm_vm *vm;
	cpu_set_t cpu;
	pid_t tid;
	int r;

	sched_getaffinity(0, sizeof(all), &all);
	if (CPU_COUNT(&all) < 2)
		return false;

	CPU_ZERO(&cpu);
	CPU_SET(sched_getcpu(), &cpu);
	r = sched_setaffinity(0, sizeof(cpu), &cpu);
	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("sched_setaffinity()", r));

	gtdp_mem_alloc(&mem, GTDP_ANON, MEM_SIZE, 0);
	gtdp_stamp(mem.hva, NR_PAGES, HOST_TAG);
	vm = vm_create_barebones();
	vm_enable_cap(vm, KVM_CAP_GLOBAL_TDP, KVM_GLOBAL_TDP_POPULATE);
	gtdp_add_slot(vm, GTDP_SLOT, 0, GTDP_GPA, &mem);
	gtdp_wait_until(!nr_kernel_threads());
	TEST_ASSERT(populate_async(vm), "There is no thread");
	TEST_ASSERT_EQ(gtdp_kernel_threads(&tid, 1), 1);

	/* Before, and after, it has had something to do. */
	check_cpus(tid);
	gtdp_wait_mapped(vm, NR_PAGES);
	check_cpus(tid);

	/* It can be moved later, as by taskset, and stays there when it has run again. */
	sched_setaffinity(0, sizeof(all), &all);
	CPU_XOR(&cpu, &all, &cpu);
	r = sched_setaffinity(tid, sizeof(cpu), &cpu);
	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("sched_setaffinity()", r));
	r = sched_setaffinity(0, sizeof(cpu), &cpu);
	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("sched_setaffinity()", r));
	r = madvise(mem.hva, MEM_SIZE, MADV_DONTNEED);
	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("madvise()", r));
	gtdp_stamp(mem.hva, NR_PAGES, HOST_TAG);
	TEST_ASSERT(populate_async(vm), "There is no thread");
	gtdp_wait_mapped(vm, NR_PAGES);
	check_cpus(tid);

	kvm_vm_free(vm);
	gtdp_mem_free(&mem);
	sched_setaffinity(0, sizeof(all), &all);
	return true;
}

static const struct gtdp_test tests[] = {
	{ "first vCPU", test_first_vcpu },
	{ "CPUs", test_cpus },
	{ "signals", test_timer },
	{ "thread limit, memslots", test_limit_slots },
	{ "thread limit, vCPU runs", test_limit_run },
	{ "thread limit, vCPU runs often", test_limit_rate },
	{ "thread limit, more vCPUs", test_limit_vcpus },
	{ "thread limit, asynchronous ioctl", test_limit_async },
};

/* Takes part of the name of a test, to leave out all others. */
int main(int argc, char *argv[])
{
	gtdp_require(KVM_GLOBAL_TDP_FOLLOW | KVM_GLOBAL_TDP_POPULATE);
	gtdp_run_some_tests(tests, ARRAY_SIZE(tests), argc > 1 ? argv[1] : NULL);
}
