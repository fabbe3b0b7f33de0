// SPDX-License-Identifier: GPL-2.0
/*
 * Tells what many small VMs that are at rest cost their host, each a process of its
 * own, as VMMs are: memory, threads, wake-ups and time of a CPU while nothing happens.
 * All have vCPUs that have run, and memory that is there and has been used.  Whether
 * they have Global TDP is up to the parameter of kvm.ko.
 *
 * Prints a line for each figure: its name and its value.
 */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "test_util.h"
#include "kvm_util.h"
#include "processor.h"
#include "global_tdp.h"

#define MEM_SIZE	SZ_8M
#define NR_PAGES	(MEM_SIZE / PAGE_SIZE)
#define MAX_VMS		1000
#define MAX_THREADS	8

/* Until threads that have something left to do are done with it. */
#define SETTLE_SECONDS	20

struct vm_stats {
	bool ready;
	u64 threads;
	u64 sleeps;
	u64 cpu_ns;
};

static struct {
	struct vm_stats vms[MAX_VMS];
} *shared;

static int nr;

/* Of the VM's threads of KVM, since they were created. */
static void tell(struct vm_stats *stats)
{
	pid_t tids[MAX_THREADS];
	int i;

	stats->threads = gtdp_kernel_threads(tids, ARRAY_SIZE(tids));
	stats->sleeps = 0;
	stats->cpu_ns = 0;
	for (i = 0; i < stats->threads; i++) {
		stats->sleeps += gtdp_nr_sleeps(tids[i]);
		stats->cpu_ns += gtdp_cpu_time(tids[i]);
	}
}

static void vmm(void)
{
	struct vm_stats *stats = &shared->vms[nr];
	struct kvm_vcpu *vcpu;
	sigset_t waiting = {};
	struct gtdp_mem mem;
	struct kvm_vm *vm;

	vm = gtdp_vm_create_bare(1);
	gtdp_vm_add_vcpus(vm, 1, &vcpu);
	gtdp_mem_alloc(&mem, GTDP_ANON, MEM_SIZE, 0);
	gtdp_stamp(mem.hva, NR_PAGES, 1);
	gtdp_add_slot(vm, GTDP_SLOT, 0, GTDP_GPA, &mem);
	gtdp_run(vcpu, GTDP_CHECK, GTDP_GPA, NR_PAGES, 1);

	/* It is told when by its parent, by a signal, so as to do nothing meanwhile. */
	sigprocmask(SIG_BLOCK, NULL, &waiting);
	sigdelset(&waiting, SIGUSR1);
	while (true) {
		WRITE_ONCE(stats->ready, true);
		sigsuspend(&waiting);
		tell(stats);
	}
}

static void on_signal(int sig)
{
}

/* Of the whole host, in KiB. */
static void print_memory(const char *when)
{
	static const char * const names[] = {
		"MemAvailable", "KernelStack", "PageTables", "SecPageTables", "Slab",
		"VmallocUsed", "Percpu",
	};
	char line[128], name[64];
	unsigned long kib;
	FILE *file;
	int i;

	file = fopen("/proc/meminfo", "r");
	TEST_ASSERT(file, "No /proc/meminfo");
	while (fgets(line, sizeof(line), file)) {
		if (sscanf(line, "%63[^:]: %lu", name, &kib) != 2)
			continue;
		for (i = 0; i < ARRAY_SIZE(names); i++) {
			if (!strcmp(name, names[i]))
				printf("%s_%s %lu\n", when, name, kib);
		}
	}
	fclose(file);
}

/* What all VMs' threads have done until now. */
static struct vm_stats ask(const pid_t *pids, int nr_vms)
{
	struct vm_stats sum = {}, *stats;
	int i;

	for (i = 0; i < nr_vms; i++) {
		stats = &shared->vms[i];
		WRITE_ONCE(stats->ready, false);
		kill(pids[i], SIGUSR1);
		gtdp_wait_until(gtdp_is_alive(pids[i]) && READ_ONCE(stats->ready));
		sum.threads += stats->threads;
		sum.sleeps += stats->sleeps;
		sum.cpu_ns += stats->cpu_ns;
	}
	return sum;
}

int main(int argc, char *argv[])
{
	struct sigaction action = { .sa_handler = on_signal };
	int nr_vms = argc > 1 ? atoi_positive("Number of VMs", argv[1]) : 200;
	int seconds = argc > 2 ? atoi_positive("Seconds", argv[2]) : 600;
	struct vm_stats before, after;
	pid_t pids[MAX_VMS];
	sigset_t blocked;

	TEST_ASSERT(nr_vms <= MAX_VMS, "At most %d VMs", MAX_VMS);
	sigaction(SIGUSR1, &action, NULL);
	sigemptyset(&blocked);
	sigaddset(&blocked, SIGUSR1);
	sigprocmask(SIG_BLOCK, &blocked, NULL);
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE,
		      MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	TEST_ASSERT(shared != MAP_FAILED, __KVM_SYSCALL_ERROR("mmap()", -1));

	print_memory("before");
	for (nr = 0; nr < nr_vms; nr++) {
		pids[nr] = gtdp_start(NULL, vmm);
		gtdp_wait_until(gtdp_is_alive(pids[nr]) && READ_ONCE(shared->vms[nr].ready));
	}
	sleep(SETTLE_SECONDS);
	print_memory("after");

	before = ask(pids, nr_vms);
	sleep(seconds);
	after = ask(pids, nr_vms);
	printf("vms %d\n", nr_vms);
	printf("seconds %d\n", seconds);
	printf("threads %lu\n", after.threads);
	printf("wakeups %lu\n", after.sleeps - before.sleeps);
	printf("cpu_us %lu\n", (after.cpu_ns - before.cpu_ns) / 1000);

	for (nr = 0; nr < nr_vms; nr++) {
		kill(pids[nr], SIGKILL);
		waitpid(pids[nr], NULL, 0);
	}
	return 0;
}
