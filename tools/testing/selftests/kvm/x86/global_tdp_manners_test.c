// SPDX-License-Identifier: GPL-2.0
/*
 * Proves that the threads that build a VM's page tables are as well-behaved as the
 * VMM's own: they stop for the freezer, of a cgroup or of a host that is suspended,
 * and go on afterwards; end if the VMM executes another program; don't mind if it
 * forks, whoever of the two ends first; and are limited by cpu.max, in which case
 * memslot updates don't wait for them to have a CPU again.  Also that memory which
 * was mapped ahead, and is never used, is reclaimed as fast as if it was not mapped.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sys/mman.h>

#include "test_util.h"
#include "kvm_util.h"
#include "processor.h"
#include "global_tdp.h"

#define FEATURES	(KVM_GLOBAL_TDP_FOLLOW | KVM_GLOBAL_TDP_POPULATE)

#define MEM_SIZE	SZ_32M
#define NR_PAGES	(MEM_SIZE / PAGE_SIZE)
/* Memslots of the same memory: enough for some time. */
#define NR_SLOTS	(SZ_4G / MEM_SIZE + 1)
/* And one that changes meanwhile, of other memory. */
#define SLOT_CHANGED	(GTDP_SLOT + NR_SLOTS)

#define HOST_TAG	1
#define ATTEMPTS	20

/* Little enough to meet the threads at work. */
#define POLL_USECS	50

/*
 * Pages mapped until all is frozen, in all attempts but the worst, in which the host may
 * have let one CPU stand for long: threads that finish their pass first map half of all
 * in each, forty times as much.
 */
#define MAX_LATE	(NR_SLOTS * NR_PAGES / 4)

/* Attempts in which the host may let the machine stand just as a thread leaves its CPU. */
#define MAX_BUSY	5

/* How long to see that nothing happens. */
#define STILL_USECS	500000

/* What it takes to leave a CPU, at most. */
#define FROZEN_NS	1000000

/* A CPU for 2ms of every 100ms, in us. */
#define CPU_MAX		"2000 100000"
#define NR_UPDATES	40

/* What is reclaimed of a VM's memory, and the share of pages, in %, that may be scanned for it. */
#define RECLAIM_SIZE	SZ_128M
#define RECLAIM_PAGES	(RECLAIM_SIZE / PAGE_SIZE)
#define RECLAIM		"64M"
#define RECLAIM_ATTEMPTS 10
#define RECLAIM_SHARE	125

#define LRU_GEN		"/sys/kernel/mm/lru_gen"

/* Of the executed program: the file of a VM that is not its own. */
#define EXECUTED	"executed"

static char *cgroup;

/* Of a VMM and its parent. */
static struct {
	bool ready;
	bool done;
} *shared;

struct env {
	struct kvm_vm *vm;
	struct gtdp_mem mem;
};

static void create_shared(void)
{
	shared = mmap(NULL, PAGE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
		      -1, 0);
	TEST_ASSERT(shared != MAP_FAILED, __KVM_SYSCALL_ERROR("mmap()", -1));
}

static void env_create(struct env *env)
{
	u64 i;

	gtdp_mem_alloc(&env->mem, GTDP_ANON, MEM_SIZE, 0);
	gtdp_stamp(env->mem.hva, NR_PAGES, HOST_TAG);
	env->vm = vm_create_barebones();
	vm_enable_cap(env->vm, KVM_CAP_GLOBAL_TDP, FEATURES);
	for (i = 0; i < NR_SLOTS; i++)
		gtdp_add_slot(env->vm, GTDP_SLOT + i, 0, GTDP_GPA + i * MEM_SIZE, &env->mem);

	/* That creates the threads. */
	gtdp_populate_async(env->vm, 0, 0);
}

static void env_free(struct env *env)
{
	kvm_vm_free(env->vm);
	gtdp_mem_free(&env->mem);
}

/* Have it all mapped anew, and return when some of it is. */
static void populate_some(struct env *env)
{
	int r = madvise(env->mem.hva, MEM_SIZE, MADV_DONTNEED);

	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("madvise()", r));
	gtdp_stamp(env->mem.hva, NR_PAGES, HOST_TAG);
	gtdp_populate_async(env->vm, GTDP_GPA, NR_SLOTS * MEM_SIZE);
	__gtdp_wait_until(gtdp_nr_mapped(env->vm), POLL_USECS);
}

static void wait_all(struct env *env)
{
	gtdp_wait_mapped(env->vm, NR_SLOTS * NR_PAGES);
}

/* The threads of a process have had a CPU for so long, in ns. */
static u64 cpu_time_of(pid_t pid)
{
	struct dirent *entry;
	char path[32];
	u64 sum = 0;
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%d/task", pid);
	dir = opendir(path);
	TEST_ASSERT(dir, "No %s", path);
	while ((entry = readdir(dir))) {
		if (entry->d_name[0] != '.')
			sum += gtdp_cpu_time(atoi(entry->d_name));
	}
	closedir(dir);
	return sum;
}

static void set_frozen(bool on)
{
	TEST_ASSERT(gtdp_write_file(cgroup, "cgroup.freeze", on ? "1" : "0"),
		    "Can't set cgroup.freeze");
	gtdp_wait_until(gtdp_cgroup_stat(cgroup, "cgroup.events", "frozen") == on);
}

/* Populates, again and again, until told that this is enough. */
static void busy_vmm(void)
{
	struct env env;

	env_create(&env);
	do {
		populate_some(&env);
		WRITE_ONCE(shared->ready, true);
		wait_all(&env);
	} while (!READ_ONCE(shared->done));

	env_free(&env);
	_exit(0);
}

static pid_t start_busy(void)
{
	pid_t pid;

	create_shared();
	pid = gtdp_start(cgroup, busy_vmm);
	gtdp_wait_until(gtdp_is_alive(pid) && READ_ONCE(shared->ready));
	return pid;
}

static bool test_freezer(void)
{
	u64 before, populated, late = 0, worst = 0;
	int i, nr_busy = 0;
	pid_t pid;

	cgroup = gtdp_cgroup_create(NULL, NULL);
	if (!cgroup)
		return false;

	pid = start_busy();
	for (i = 0; i < ATTEMPTS; i++) {
		before = gtdp_vm_stat_of(pid, "tdp_populated_4k");
		set_frozen(true);
		populated = gtdp_vm_stat_of(pid, "tdp_populated_4k");
		late += populated - before;
		worst = max(worst, populated - before);
		/* They say so before they have left their CPUs. */
		gtdp_wait_until((before = cpu_time_of(pid), usleep(5000),
				 cpu_time_of(pid) == before));
		usleep(STILL_USECS / ATTEMPTS);
		nr_busy += cpu_time_of(pid) - before >= FROZEN_NS;
		TEST_ASSERT_EQ(gtdp_vm_stat_of(pid, "tdp_populated_4k"), populated);
		set_frozen(false);
		/* At another moment each time. */
		usleep(10000 + i * 777);
	}
	late -= worst;
	TEST_ASSERT(late < MAX_LATE, "%lu pages were mapped before threads were frozen",
		    late);
	TEST_ASSERT(nr_busy <= MAX_BUSY, "%d of %d times, threads had a CPU while frozen",
		    nr_busy, ATTEMPTS);

	WRITE_ONCE(shared->done, true);
	gtdp_check_exit(pid);
	gtdp_cgroup_destroy(cgroup);
	return true;
}

/*
 * Suspend as far as all tasks are frozen, for a second; the kernel fails to if one
 * of them does not agree.
 */
#define POWER	"/sys/power"

static void end_pm_test(void)
{
	gtdp_write_file(POWER, "pm_test", "none");
}

static bool test_suspend(void)
{
	pid_t pid;
	int i;

	if (!gtdp_write_file(POWER, "pm_test", "freezer"))
		return false;
	atexit(end_pm_test);
	gtdp_write_file("/sys/module/suspend/parameters", "pm_test_delay", "1");

	cgroup = NULL;
	pid = start_busy();
	for (i = 0; i < 3; i++)
		TEST_ASSERT(gtdp_write_file(POWER, "state", "freeze"),
			    "Can't freeze all tasks: errno %d (%s)", errno, strerror(errno));

	WRITE_ONCE(shared->done, true);
	gtdp_check_exit(pid);
	end_pm_test();
	return true;
}

/* Executes this program with the VM's file open, its threads at work. */
static void executing_vmm(void)
{
	char fd[16];
	struct env env;

	env_create(&env);
	TEST_ASSERT(!fcntl(env.vm->fd, F_SETFD, 0), __KVM_SYSCALL_ERROR("fcntl()", -1));
	snprintf(fd, sizeof(fd), "%d", env.vm->fd);
	populate_some(&env);
	execl("/proc/self/exe", "global_tdp_manners_test", EXECUTED, fd, NULL);
	TEST_FAIL("execl(): %s", strerror(errno));
}

static void executed(int fd)
{
	struct kvm_populate_memory nothing = { .flags = KVM_POPULATE_ASYNC };
	pid_t tid;
	int r;

	/* As it ends them before it begins. */
	TEST_ASSERT_EQ(gtdp_kernel_threads(&tid, 1), 0);
	r = ioctl(fd, KVM_POPULATE_MEMORY, &nothing);
	TEST_ASSERT(r == -1 && errno == EIO, "ioctl() of another's VM: %d, errno %d", r, errno);
	close(fd);
	_exit(0);
}

static bool test_exec(void)
{
	int i;

	for (i = 0; i < ATTEMPTS; i++)
		gtdp_check_exit(gtdp_start(NULL, executing_vmm));
	return true;
}

/* A process of the VMM's, as for a device: it has the VM's files, and its memory. */
static pid_t fork_child(int *go)
{
	int fds[2];
	pid_t pid;
	char c;

	TEST_ASSERT(!pipe(fds), __KVM_SYSCALL_ERROR("pipe()", -1));
	pid = fork();
	TEST_ASSERT(pid >= 0, __KVM_SYSCALL_ERROR("fork()", pid));
	if (!pid) {
		close(fds[1]);
		/* Until told, or until there is nobody who could. */
		if (read(fds[0], &c, 1) < 0)
			_exit(1);
		_exit(0);
	}
	close(fds[0]);
	*go = fds[1];
	return pid;
}

/* The child ends first: the VM does not notice. */
static void forking_vmm(void)
{
	struct env env;
	pid_t child;
	int i, go;

	env_create(&env);
	for (i = 0; i < ATTEMPTS / 4; i++) {
		populate_some(&env);
		child = fork_child(&go);
		/* All of the memory is the child's, too, until it is written to. */
		wait_all(&env);
		close(go);
		gtdp_check_exit(child);
		wait_all(&env);
	}
	env_free(&env);
	_exit(0);
}

static bool test_fork(void)
{
	gtdp_check_exit(gtdp_start(NULL, forking_vmm));
	return true;
}

static int go_of_child, go_of_parent;

/* The VMM ends first, with its threads; the child has a VM without any. */
static void leaving_vmm(void)
{
	struct env env;
	pid_t child;
	char c;

	env_create(&env);
	populate_some(&env);
	child = fork();
	TEST_ASSERT(child >= 0, __KVM_SYSCALL_ERROR("fork()", child));
	if (!child) {
		/* Until its grandparent says so, or ends. */
		close(go_of_parent);
		_exit(read(go_of_child, &c, 1) < 0);
	}
	_exit(0);
}

static bool test_fork_left(void)
{
	int i, fds[2];
	pid_t pid;

	if (access("/sys/kernel/debug/kvm", F_OK))
		return false;

	for (i = 0; i < ATTEMPTS / 4; i++) {
		TEST_ASSERT(!pipe2(fds, O_CLOEXEC), __KVM_SYSCALL_ERROR("pipe2()", -1));
		go_of_child = fds[0];
		go_of_parent = fds[1];
		pid = gtdp_start(NULL, leaving_vmm);
		gtdp_check_exit(pid);
		TEST_ASSERT(gtdp_has_vm(pid), "The VM is gone, though the child has it open");
		TEST_ASSERT_EQ(write(fds[1], "", 1), 1);
		gtdp_wait_until(!gtdp_has_vm(pid));
		close(fds[0]);
		close(fds[1]);
	}
	return true;
}

static u64 nr_throttled(const char *dir)
{
	return gtdp_cgroup_stat(dir, "cpu.stat", "nr_throttled");
}

/* Of a quota of 2%, in CPU time: what is left for threads that are stopped a bit late. */
#define MAX_SHARE	10

/* All threads of KVM's are limited, those that change memslots are not. */
static void limited_vmm(void)
{
	char *limited, text[16];
	u64 before, during = 0, i, used;
	struct timespec start;
	struct gtdp_mem mem;
	struct env env;
	pid_t tids[8];
	int nr;

	env_create(&env);
	gtdp_mem_alloc(&mem, GTDP_ANON, MEM_SIZE, 0);
	limited = gtdp_cgroup_create(cgroup, NULL);
	TEST_ASSERT(limited, "Can't create a cgroup in %s", cgroup);
	TEST_ASSERT(gtdp_write_file(limited, "cgroup.type", "threaded") &&
		    gtdp_write_file(cgroup, "cgroup.subtree_control", "+cpu") &&
		    gtdp_write_file(limited, "cpu.max", CPU_MAX), "Can't set cpu.max");
	nr = gtdp_kernel_threads(tids, ARRAY_SIZE(tids));
	for (i = 0; i < nr; i++) {
		snprintf(text, sizeof(text), "%d", tids[i]);
		TEST_ASSERT(gtdp_write_file(limited, "cgroup.threads", text),
			    "Can't set cgroup.threads");
	}

	populate_some(&env);
	used = gtdp_cgroup_stat(limited, "cpu.stat", "usage_usec");
	clock_gettime(CLOCK_MONOTONIC, &start);
	for (i = 0; i < NR_UPDATES; i++) {
		/* Where CPUs are fast, that may be all there is to do. */
		if (gtdp_nr_mapped(env.vm) == NR_SLOTS * NR_PAGES)
			populate_some(&env);
		before = nr_throttled(limited);
		vm_set_user_memory_region(env.vm, SLOT_CHANGED, 0,
					  GTDP_GPA + NR_SLOTS * MEM_SIZE, MEM_SIZE, mem.hva);
		vm_set_user_memory_region(env.vm, SLOT_CHANGED, 0,
					  GTDP_GPA + NR_SLOTS * MEM_SIZE, 0, NULL);
		during += nr_throttled(limited) - before;
		usleep(20000);
	}
	pr_info("%lu memslots came and went, in %lu of %lu periods\n", i, during,
		nr_throttled(limited));
	used = gtdp_cgroup_stat(limited, "cpu.stat", "usage_usec") - used;
	TEST_ASSERT(nr_throttled(limited), "The threads were not limited");
	TEST_ASSERT(used * 1000 * 100 / MAX_SHARE < timespec_to_ns(timespec_elapsed(start)),
		    "%lu us of a CPU in %lu us", used,
		    timespec_to_ns(timespec_elapsed(start)) / 1000);
	TEST_ASSERT(during < i / 2, "%lu periods for %lu memslots", during, i);

	TEST_ASSERT(gtdp_write_file(limited, "cpu.max", "max"), "Can't set cpu.max");
	wait_all(&env);
	env_free(&env);
	gtdp_wait_until(!gtdp_kernel_threads(tids, ARRAY_SIZE(tids)));
	gtdp_cgroup_destroy(limited);
	_exit(0);
}

static bool test_cpu_max(void)
{
	pid_t pid;

	cgroup = gtdp_cgroup_create(NULL, "cpu");
	if (!cgroup)
		return false;

	pid = gtdp_start(cgroup, limited_vmm);
	gtdp_check_exit(pid);
	gtdp_cgroup_destroy(cgroup);
	return true;
}

static bool is_populated;

/* What the host had before, to have it again when the program ends. */
static char old_lru_gen[16];

static void restore_lru_gen(void)
{
	gtdp_write_file(LRU_GEN, "enabled", old_lru_gen);
}

static void reclaimed_vmm(void)
{
	struct gtdp_mem mem;
	struct kvm_vm *vm;

	gtdp_mem_alloc(&mem, GTDP_ANON, RECLAIM_SIZE, 0);
	gtdp_stamp(mem.hva, RECLAIM_PAGES, HOST_TAG);
	vm = vm_create_barebones();
	vm_enable_cap(vm, KVM_CAP_GLOBAL_TDP, KVM_GLOBAL_TDP_POPULATE);
	gtdp_add_slot(vm, GTDP_SLOT, 0, GTDP_GPA, &mem);
	if (is_populated)
		gtdp_populate_full(vm, GTDP_GPA, RECLAIM_SIZE);
	gtdp_drain_lru();
	WRITE_ONCE(shared->ready, true);

	gtdp_wait_until(READ_ONCE(shared->done));
	gtdp_check(mem.hva, RECLAIM_PAGES, HOST_TAG);
	kvm_vm_free(vm);
	gtdp_mem_free(&mem);
	_exit(0);
}

/* Returns how many pages were scanned to have half of a VM's memory back. */
static u64 nr_scanned(bool populated)
{
	u64 scanned, stolen;
	pid_t pid;
	int i;

	create_shared();
	is_populated = populated;
	cgroup = gtdp_cgroup_create(NULL, "memory");
	TEST_ASSERT(cgroup, "Can't create a cgroup");
	pid = gtdp_start(cgroup, reclaimed_vmm);
	gtdp_wait_until(gtdp_is_alive(pid) && READ_ONCE(shared->ready));

	scanned = gtdp_cgroup_stat(cgroup, "memory.stat", "pgscan");
	stolen = gtdp_cgroup_stat(cgroup, "memory.stat", "pgsteal");
	for (i = 0; !gtdp_write_file(cgroup, "memory.reclaim", RECLAIM); i++)
		TEST_ASSERT(i < RECLAIM_ATTEMPTS && errno == EAGAIN,
			    "Can't reclaim: errno %d (%s)", errno, strerror(errno));
	scanned = gtdp_cgroup_stat(cgroup, "memory.stat", "pgscan") - scanned;
	stolen = gtdp_cgroup_stat(cgroup, "memory.stat", "pgsteal") - stolen;
	pr_info("%s: %lu pages scanned, %lu reclaimed\n",
		populated ? "populated" : "not populated", scanned, stolen);
	TEST_ASSERT(stolen >= RECLAIM_PAGES / 4, "%lu pages are reclaimed", stolen);

	WRITE_ONCE(shared->done, true);
	gtdp_check_exit(pid);
	gtdp_cgroup_destroy(cgroup);
	return scanned;
}

/* With the LRU lists of @generations, or those of active and inactive pages. */
static bool test_reclaim(const char *generations)
{
	u64 scanned;
	FILE *file;

	/* Without swap, there is nothing to reclaim. */
	if (!gtdp_has_zram_swap(RECLAIM_SIZE))
		return false;

	file = fopen(LRU_GEN "/enabled", "r");
	if (!file)
		return false;
	TEST_ASSERT(fgets(old_lru_gen, sizeof(old_lru_gen), file),
		    "Can't read " LRU_GEN "/enabled");
	fclose(file);
	atexit(restore_lru_gen);
	TEST_ASSERT(gtdp_write_file(LRU_GEN, "enabled", generations), "Can't set " LRU_GEN);

	scanned = nr_scanned(false);
	TEST_ASSERT(nr_scanned(true) <= scanned * RECLAIM_SHARE / 100,
		    "What was mapped ahead takes more to be reclaimed");

	restore_lru_gen();
	return true;
}

static bool test_reclaim_generations(void)
{
	return test_reclaim("7");
}

static bool test_reclaim_lists(void)
{
	return test_reclaim("0");
}

static const struct gtdp_test tests[] = {
	{ "freezer", test_freezer },
	{ "suspend", test_suspend },
	{ "another program is executed", test_exec },
	{ "VMM forks", test_fork },
	{ "VMM forks, and ends first", test_fork_left },
	{ "cpu.max", test_cpu_max },
	{ "memory.reclaim", test_reclaim_lists },
	{ "memory.reclaim, MGLRU", test_reclaim_generations },
};

/* Takes part of the name of a test, to leave out all others. */
int main(int argc, char *argv[])
{
	if (argc == 3 && !strcmp(argv[1], EXECUTED))
		executed(atoi(argv[2]));

	gtdp_require(FEATURES);
	gtdp_run_some_tests(tests, ARRAY_SIZE(tests), argc > 1 ? argv[1] : NULL);
}
