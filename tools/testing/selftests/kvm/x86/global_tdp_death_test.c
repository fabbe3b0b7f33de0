// SPDX-License-Identifier: GPL-2.0
/*
 * Proves that page tables are the VM's to pay for, and that it can die at any
 * time: a VM at the limit of its memory cgroup lives on without the page tables
 * it can't have, and of one that is killed, or whose files are closed, while it
 * is being populated, nothing is left.
 */
#include <errno.h>
#include <getopt.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>
#include <sys/mman.h>
#include <sys/sysinfo.h>
#include <sys/wait.h>

#include "test_util.h"
#include "kvm_util.h"
#include "processor.h"
#include "global_tdp.h"

/* One page of each 2MiB is present, so that most memory is page tables. */
#define MEM_SIZE	GTDP_WINDOW
#define NR_TABLES	(MEM_SIZE / SZ_2M)

/* What the VM may use beyond what it has; more than is charged in advance. */
#define LEEWAY		SZ_1M
#define FILLER_SIZE	SZ_256M

#define HOST_TAG	1
#define NR_KILLS	6
#define NR_CLOSES	4
#define NR_POPULATORS	2

/* How long to see that nothing happens: some passes. */
#define HIGH_SECONDS	4

static char *cgroup;
static int pipe_fds[2];

/* How many VMMs were closed before: each is closed at another time. */
static int nr_closed;

struct env {
	struct kvm_vm *vm;
	struct kvm_vcpu *vcpu;
	struct gtdp_mem mem;
};

/* What the cgroup pays for, of one kind. */
static u64 charged(const char *kind)
{
	return gtdp_cgroup_stat(cgroup, "memory.stat", kind);
}

static bool create_cgroup(void)
{
	cgroup = gtdp_cgroup_create(NULL, "memory");
	if (!cgroup)
		return false;

	/* What is swapped out makes room; there need not be swap, though. */
	gtdp_write_file(cgroup, "memory.swap.max", "0");
	return true;
}

static void set_limit(u64 limit)
{
	char text[32] = "max";

	if (limit)
		snprintf(text, sizeof(text), "%lu", limit);
	TEST_ASSERT(gtdp_write_file(cgroup, "memory.max", text), "Can't set memory.max");
}

static void env_create(struct env *env, u64 features)
{
	u64 i;

	gtdp_mem_alloc(&env->mem, GTDP_ANON, MEM_SIZE, 0);
	for (i = 0; i < NR_TABLES; i++)
		gtdp_stamp(env->mem.hva + i * SZ_2M, 1, HOST_TAG + i * GTDP_REGION_PAGES);

	env->vm = gtdp_vm_create(features, 1, &env->vcpu);
	gtdp_add_slot(env->vm, GTDP_SLOT, 0, GTDP_GPA, &env->mem);
}

/* The guest finds the first @nr of the pages that are there, without a fault. */
static void check_pages(struct env *env, u64 nr)
{
	TEST_ASSERT_EQ(gtdp_run_job(env->vcpu, (struct gtdp_job) {
		.op = GTDP_CHECK,
		.gpa = GTDP_GPA,
		.nr = nr * GTDP_REGION_PAGES,
		.step = GTDP_REGION_PAGES,
		.tag = HOST_TAG,
	}), 0);
}

/*
 * At the limit, whatever the VMM itself needs would have it killed, and be it
 * the code of this program, or a file that is opened.
 */
static int prepare_for_limit(struct env *env)
{
	char path[128];
	int fd, r;

	r = mlockall(MCL_CURRENT);
	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("mlockall()", r));

	env_create(env, KVM_GLOBAL_TDP_POPULATE);
	gtdp_populate_code(env->vm);
	gtdp_run(env->vcpu, GTDP_READ, GTDP_GPA, 0, 0);

	snprintf(path, sizeof(path), "%s/memory.max", cgroup);
	fd = open(path, O_WRONLY);
	TEST_ASSERT(fd >= 0, __KVM_SYSCALL_ERROR("open()", fd));
	return fd;
}

static void limited_vmm(void)
{
	struct kvm_populate_memory range = { .gpa = GTDP_GPA, .size = MEM_SIZE };
	struct gtdp_job job = {
		.op = GTDP_CHECK,
		.gpa = GTDP_GPA,
		.step = GTDP_REGION_PAGES,
		.tag = HOST_TAG,
	};
	struct kvm_populate_memory sum;
	u64 before, faults;
	struct env env;
	int fd, err;

	fd = prepare_for_limit(&env);
	before = charged("sec_pagetables");
	faults = gtdp_vcpu_stat(env.vcpu, "pf_taken");
	set_limit(gtdp_read_number(cgroup, "memory.current") + LEEWAY);

	err = gtdp_populate_on(env.vm, &range, &sum);

	/* It lives on, with what it has. */
	job.nr = sum.mapped / PAGE_SIZE * GTDP_REGION_PAGES;
	gtdp_set_job(env.vcpu, job);
	vcpu_run(env.vcpu);
	gtdp_finish_job(env.vcpu);

	TEST_ASSERT_EQ(write(fd, "max", 3), 3);
	TEST_ASSERT(err == ENOMEM, "errno: %d (%s)", err, strerror(err));
	TEST_ASSERT_EQ(sum.mapped / PAGE_SIZE, (range.gpa - GTDP_GPA) / SZ_2M);
	TEST_ASSERT(sum.mapped && sum.mapped < NR_TABLES * PAGE_SIZE,
		    "%llu bytes are mapped", sum.mapped);
	TEST_ASSERT_EQ(gtdp_vcpu_stat(env.vcpu, "pf_taken"), faults);

	/* Given what it needs, population goes on where it was. */
	gtdp_populate(env.vm, range.gpa, range.size);
	check_pages(&env, NR_TABLES);
	/* Figures of a cgroup may be two seconds old. */
	gtdp_wait_until(charged("sec_pagetables") >= before + NR_TABLES * PAGE_SIZE);

	kvm_vm_free(env.vm);
	gtdp_mem_free(&env.mem);
	_exit(0);
}

/*
 * The follower, too, stops, and goes on once there may be more: if it is told to
 * or, @alone, without that.
 */
static void limited_follower(bool alone)
{
	struct env env;
	char go;

	prepare_for_limit(&env);
	set_limit(gtdp_read_number(cgroup, "memory.current") + LEEWAY);
	gtdp_populate_async(env.vm, GTDP_GPA, MEM_SIZE);

	TEST_ASSERT_EQ(read(pipe_fds[0], &go, 1), 1);

	if (!alone)
		gtdp_populate_async(env.vm, GTDP_GPA, MEM_SIZE);
	gtdp_wait_mapped(env.vm, gtdp_code_size(env.vm) / PAGE_SIZE + NR_TABLES);
	check_pages(&env, NR_TABLES);

	kvm_vm_free(env.vm);
	gtdp_mem_free(&env.mem);
	_exit(0);
}

/* How a VMM that is at its limit is told what to do, without any memory. */
enum {
	PREPARING,
	READY,
	POPULATE,
	POPULATED,
	FINISH,
};

static struct {
	int step;
	int err;
	bool unknown;
	u64 mapped;
} *shared;

static void set_step(int step)
{
	__atomic_store_n(&shared->step, step, __ATOMIC_RELEASE);
}

static void create_shared(void)
{
	shared = mmap(NULL, PAGE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
		      -1, 0);
	TEST_ASSERT(shared != MAP_FAILED, __KVM_SYSCALL_ERROR("mmap()", -1));
	set_step(PREPARING);
}

static bool is_step(int step)
{
	return __atomic_load_n(&shared->step, __ATOMIC_ACQUIRE) == step;
}

static void wait_to(int step)
{
	gtdp_wait_until(is_step(step));
}

/* Unlike the VMM, its parent may find itself waiting for nobody. */
static void wait_for(pid_t pid, int step)
{
	gtdp_wait_until(gtdp_is_alive(pid) && is_step(step));
}

static int populate_until_error(struct kvm_vm *vm, struct kvm_populate_memory *range)
{
	struct kvm_populate_memory sum;
	int err = gtdp_populate_on(vm, range, &sum);

	shared->mapped += sum.mapped / PAGE_SIZE;
	return err;
}

/* Has memory that could make room for page tables, if it were swapped out. */
static void swappable_vmm(void)
{
	struct kvm_populate_memory range = { .gpa = GTDP_GPA, .size = MEM_SIZE };
	struct env env;

	prepare_for_limit(&env);
	gtdp_drain_lru();
	set_step(READY);

	wait_to(POPULATE);
	shared->err = populate_until_error(env.vm, &range);
	set_step(POPULATED);

	wait_to(FINISH);
	gtdp_populate(env.vm, GTDP_GPA, MEM_SIZE);
	check_pages(&env, NR_TABLES);
	_exit(0);
}

/*
 * Has a second VM, without a vCPU, that needs a root.  What was charged to the
 * cgroup in advance is used up once the first VM has failed to get a page.
 */
static void rootless_vmm(void)
{
	struct kvm_populate_memory range = { .gpa = GTDP_GPA, .size = MEM_SIZE };
	struct kvm_vm *rootless;
	cpu_set_t cpu;
	struct env env;
	int r;

	/* As each CPU has its own. */
	CPU_ZERO(&cpu);
	CPU_SET(sched_getcpu(), &cpu);
	r = sched_setaffinity(0, sizeof(cpu), &cpu);
	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("sched_setaffinity()", r));

	prepare_for_limit(&env);
	rootless = vm_create_barebones();
	vm_enable_cap(rootless, KVM_CAP_GLOBAL_TDP, KVM_GLOBAL_TDP_POPULATE);
	gtdp_add_slot(rootless, GTDP_SLOT, 0, GTDP_GPA, &env.mem);
	set_step(READY);

	wait_to(POPULATE);
	shared->err = populate_until_error(env.vm, &range);
	if (shared->err == ENOMEM) {
		range.gpa = GTDP_GPA;
		range.size = MEM_SIZE;
		r = __vm_ioctl(rootless, KVM_POPULATE_MEMORY, &range);
		shared->err = r ? errno : 0;
		/* Which root it is to be may depend on a vCPU. */
		shared->unknown = shared->err && shared->err != ENOMEM;
	}
	set_step(POPULATED);

	wait_to(FINISH);
	if (!shared->unknown) {
		gtdp_populate(rootless, GTDP_GPA, MEM_SIZE);
		TEST_ASSERT_EQ(gtdp_nr_mapped(rootless), NR_TABLES);
	}
	_exit(0);
}

/* Has its follower populate, which may take a while. */
static void unasked_vmm(void)
{
	struct gtdp_mem filler;
	struct env env;

	prepare_for_limit(&env);
	/* What is left to others grows with the cgroup, up to some size. */
	gtdp_mem_alloc(&filler, GTDP_ANON, FILLER_SIZE, 0);
	gtdp_stamp(filler.hva, FILLER_SIZE / PAGE_SIZE, HOST_TAG);
	set_step(READY);

	wait_to(POPULATE);
	gtdp_populate_async(env.vm, GTDP_GPA, MEM_SIZE);
	set_step(POPULATED);

	wait_to(FINISH);
	TEST_ASSERT(gtdp_vm_stat(env.vm, "tdp_populate_nomem"),
		    "Nobody is told that memory is lacking");
	gtdp_wait_mapped(env.vm, gtdp_code_size(env.vm) / PAGE_SIZE + NR_TABLES);
	check_pages(&env, NR_TABLES);
	_exit(0);
}

static void told_follower(void)
{
	limited_follower(false);
}

static void lone_follower(void)
{
	limited_follower(true);
}

/* Nobody counts the users of a KVM that is no module. */
static u64 module_users(void)
{
	const char *module = kvm_cpu_has(X86_FEATURE_SVM) ? "/sys/module/kvm_amd" :
							    "/sys/module/kvm_intel";
	char path[64];

	snprintf(path, sizeof(path), "%s/refcnt", module);
	return access(path, F_OK) ? 0 : gtdp_read_number(module, "refcnt");
}

/*
 * Wait for what is freed with a delay; something that is left for good fails the
 * test.  Threads have a stack, tables of memslots are allocated by vmalloc().
 */
static void wait_for_nothing(pid_t pid, u64 users)
{
	const char * const kinds[] = {
		"anon", "kernel_stack", "pagetables", "sec_pagetables", "vmalloc",
	};
	const u64 leeway = (2 + 2 * get_nprocs()) * PAGE_SIZE;
	int i;

	gtdp_wait_until(!gtdp_has_vm(pid) && module_users() == users);

	for (i = 0; i < ARRAY_SIZE(kinds); i++)
		gtdp_wait_until(!charged(kinds[i]));

	/*
	 * Page tables that were never linked are nothing but pages, unlike what
	 * the slab caches may keep, whose pages are charged ahead on each CPU.
	 */
	gtdp_wait_until(charged("kernel") <= charged("slab") + leeway);
}

static bool test_vmm(void (*vmm)(void))
{
	u64 users = module_users();
	pid_t pid;

	if (!create_cgroup())
		return false;

	pid = gtdp_start(cgroup, vmm);
	gtdp_check_exit(pid);
	wait_for_nothing(pid, users);
	gtdp_cgroup_destroy(cgroup);
	return true;
}

static bool test_limit(void)
{
	return test_vmm(limited_vmm);
}

/* All events but "max", which any charge that is refused counts as, reclaim or not. */
static void read_events(char *text, size_t size)
{
	char path[128], *max, *end;
	ssize_t r;
	int fd;

	snprintf(path, sizeof(path), "%s/memory.events", cgroup);
	fd = open_path_or_exit(path, O_RDONLY);
	r = read(fd, text, size - 1);
	TEST_ASSERT(r > 0, __KVM_SYSCALL_ERROR("read()", r));
	text[r] = '\0';
	close(fd);

	max = strstr(text, "\nmax ");
	end = max ? strchr(max + 1, '\n') : NULL;
	TEST_ASSERT(end, "No event max in %s", path);
	memmove(max, end, strlen(end) + 1);
}

/*
 * At the limit, population gives up, rather than to make room for what nobody
 * needs: at the expense of the VM's memory, or of the VMM.
 */
static bool test_limit_untouched(void (*vmm)(void), bool swap)
{
	u64 users = module_users(), swapped;
	char before[256], after[256];
	bool unknown;
	pid_t pid;

	if (!create_cgroup())
		return false;
	if (swap)
		TEST_ASSERT(gtdp_write_file(cgroup, "memory.swap.max", "max"),
			    "Can't set memory.swap.max");

	create_shared();
	pid = gtdp_start(cgroup, vmm);
	wait_for(pid, READY);
	set_limit(gtdp_read_number(cgroup, "memory.current"));
	swapped = swap ? gtdp_read_number(cgroup, "memory.swap.current") : 0;
	read_events(before, sizeof(before));

	set_step(POPULATE);
	wait_for(pid, POPULATED);

	read_events(after, sizeof(after));
	if (swap)
		TEST_ASSERT_EQ(gtdp_read_number(cgroup, "memory.swap.current"), swapped);
	TEST_ASSERT(!strcmp(before, after), "Events of memory before:\n%safter:\n%s",
		    before, after);
	unknown = shared->unknown;
	TEST_ASSERT(unknown || shared->err == ENOMEM, "errno: %d (%s)", shared->err,
		    strerror(shared->err));
	TEST_ASSERT(shared->mapped < NR_TABLES, "All is mapped");

	/* Given what it needs, it is all there. */
	set_limit(0);
	set_step(FINISH);
	gtdp_check_exit(pid);
	wait_for_nothing(pid, users);
	gtdp_cgroup_destroy(cgroup);
	munmap(shared, PAGE_SIZE);
	return !unknown;
}

static u64 free_swap(void)
{
	FILE *file = fopen("/proc/meminfo", "r");
	u64 kib = 0;
	char line[128];

	TEST_ASSERT(file, "No /proc/meminfo");
	while (!kib && fgets(line, sizeof(line), file))
		sscanf(line, "SwapFree: %lu", &kib);
	fclose(file);
	return kib * SZ_1K;
}

static bool test_limit_swap(void)
{
	if (free_swap() < 2 * NR_TABLES * PAGE_SIZE) {
		ksft_print_msg("no swap space\n");
		return false;
	}

	return test_limit_untouched(swappable_vmm, true);
}

static bool test_limit_root(void)
{
	return test_limit_untouched(rootless_vmm, false);
}

static bool test_limit_async(void (*vmm)(void))
{
	u64 users = module_users(), tables = 0, last;
	int i, changes = 0;
	pid_t pid;

	if (!create_cgroup())
		return false;
	TEST_ASSERT(!pipe(pipe_fds), __KVM_SYSCALL_ERROR("pipe()", -1));

	/* The follower makes progress, and then it does not any more. */
	pid = gtdp_start(cgroup, vmm);
	gtdp_wait_until(gtdp_is_alive(pid) && charged("sec_pagetables") >= LEEWAY / 2);
	for (i = 0; i < 10; i++) {
		last = tables;
		usleep(100000);
		tables = charged("sec_pagetables");
		if (tables != last) {
			i = 0;
			changes++;
		}
		/* A table at least, each time. */
		TEST_ASSERT(changes <= NR_TABLES, "Page tables come and go: %lu bytes", tables);
		TEST_ASSERT(gtdp_is_alive(pid), "The VMM has ended");
	}
	TEST_ASSERT(tables < NR_TABLES * PAGE_SIZE, "%lu bytes of page tables", tables);

	/*
	 * Its longest sleep is 250ms, so what it wants to give up, after a
	 * wasted scan or some, it will have by then.
	 */
	if (vmm == lone_follower)
		sleep(2);

	set_limit(0);
	TEST_ASSERT_EQ(write(pipe_fds[1], "", 1), 1);
	gtdp_check_exit(pid);
	wait_for_nothing(pid, users);

	close(pipe_fds[0]);
	close(pipe_fds[1]);
	gtdp_cgroup_destroy(cgroup);
	return true;
}

static bool test_limit_told(void)
{
	return test_limit_async(told_follower);
}

static bool test_limit_lone(void)
{
	return test_limit_async(lone_follower);
}

/* Populate, over and over, until the VM is not there any more. */
static void *populator(void *arg)
{
	int fd = (int)(long)arg, r;

	do {
		struct kvm_populate_memory range = { .gpa = GTDP_GPA, .size = MEM_SIZE };

		r = ioctl(fd, KVM_POPULATE_MEMORY, &range);
	} while (!r || errno == EAGAIN || errno == EINTR);

	TEST_ASSERT(errno == EBADF, KVM_IOCTL_ERROR(KVM_POPULATE_MEMORY, r));
	return NULL;
}

static void *zapper(void *arg)
{
	struct gtdp_mem *mem = arg;
	u64 i;

	for (;;) {
		madvise(mem->hva, MEM_SIZE, MADV_DONTNEED);
		for (i = 0; i < NR_TABLES; i++)
			gtdp_stamp(mem->hva + i * SZ_2M, 1, HOST_TAG);
	}

	return NULL;
}

static void busy_vmm(void)
{
	pthread_t thread;
	struct env env;
	long i;

	env_create(&env, GTDP_ALL);
	gtdp_populate_async(env.vm, GTDP_GPA, MEM_SIZE);

	for (i = 0; i < NR_POPULATORS; i++)
		pthread_create(&thread, NULL, populator, (void *)(long)env.vm->fd);
	pthread_create(&thread, NULL, zapper, &env.mem);

	for (;;)
		gtdp_run_job(env.vcpu, (struct gtdp_job) {
			.op = GTDP_WRITE,
			.gpa = GTDP_GPA,
			.nr = NR_TABLES * GTDP_REGION_PAGES,
			.step = GTDP_REGION_PAGES,
		});
}

static void kill_vmm(pid_t pid)
{
	int status;

	kill(pid, SIGKILL);
	TEST_ASSERT_EQ(waitpid(pid, &status, 0), pid);
	TEST_ASSERT(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL,
		    "The VMM ended with status %#x", status);
}

/* At any time: while the VM is created, as well as while it is populated. */
static bool test_kill(void)
{
	struct kvm_random_state rng = new_kvm_random_state(kvm_random_seed);
	u64 users = module_users();
	int i, hits = 0;
	pid_t pid;

	if (!create_cgroup())
		return false;

	for (i = 0; i < NR_KILLS; i++) {
		pid = gtdp_start(cgroup, busy_vmm);

		/* Most of them once there is something to be left behind. */
		if (i % 3)
			gtdp_wait_until(gtdp_is_alive(pid) &&
					charged("sec_pagetables") >= SZ_64K);
		usleep(kvm_random_u32(&rng) % 100000);

		hits += !!charged("sec_pagetables");
		kill_vmm(pid);
		wait_for_nothing(pid, users);
	}
	TEST_ASSERT(hits, "No VM had page tables");

	gtdp_cgroup_destroy(cgroup);
	return true;
}

static void close_vm(struct env *env)
{
	size_t size = __kvm_ioctl(env->vm->kvm_fd, KVM_GET_VCPU_MMAP_SIZE, NULL);
	int r = munmap(env->vcpu->run, size);

	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("munmap()", r));
	close(env->vcpu->stats.fd);
	close(env->vcpu->fd);
	close(env->vm->stats.fd);
	close(env->vm->fd);
}

/*
 * Wait, while this process is still there.  Threads have been stopped, but may be
 * about to exit yet.
 */
static void wait_for_no_vm(void)
{
	pid_t tids[2];

	gtdp_wait_until(!gtdp_has_vm(getpid()) && !charged("sec_pagetables") &&
			!gtdp_kernel_threads(tids, ARRAY_SIZE(tids)));
}

/* Close all that keeps the VM, while it is populated by threads. */
static void closing_vmm(void)
{
	struct kvm_random_state rng = new_kvm_random_state(kvm_random_seed + 1 + nr_closed);
	pthread_t threads[NR_POPULATORS];
	pid_t follower;
	struct env env;
	long i;

	env_create(&env, GTDP_ALL);
	gtdp_run(env.vcpu, GTDP_READ, GTDP_GPA, 1, 0);
	for (i = 0; i < NR_POPULATORS; i++)
		pthread_create(&threads[i], NULL, populator, (void *)(long)env.vm->fd);
	gtdp_populate_async(env.vm, GTDP_GPA, MEM_SIZE);

	usleep(kvm_random_u32(&rng) % 30000);
	TEST_ASSERT_EQ(gtdp_kernel_threads(&follower, 1), 1);

	close_vm(&env);
	for (i = 0; i < NR_POPULATORS; i++)
		pthread_join(threads[i], NULL);

	/* The memory is still there. */
	wait_for_no_vm();
	for (i = 0; i < NR_TABLES; i++)
		gtdp_check(env.mem.hva + i * SZ_2M, 1, HOST_TAG + i * GTDP_REGION_PAGES);
	_exit(0);
}

static bool test_closing(void (*vmm)(void))
{
	for (nr_closed = 0; nr_closed < NR_CLOSES; nr_closed++) {
		if (!test_vmm(vmm))
			return false;
	}
	return true;
}

static bool test_close(void)
{
	return test_closing(closing_vmm);
}

static u64 half(u64 current)
{
	return current / 2;
}

/* The follower has no page tables if the cgroup is above what @limit says. */
static bool test_unasked(const char *limit, u64 (*value)(u64 current))
{
	u64 users = module_users(), before;
	char *parent, text[32];
	pid_t pid;

	/* As libvirt has it: the limit is that of a scope, the threads are farther down. */
	parent = gtdp_cgroup_create(NULL, "memory");
	if (!parent)
		return false;
	cgroup = gtdp_cgroup_create(parent, "memory");
	TEST_ASSERT(cgroup, "Can't create a cgroup in %s", parent);
	gtdp_write_file(cgroup, "memory.swap.max", "0");

	create_shared();
	pid = gtdp_start(cgroup, unasked_vmm);
	wait_for(pid, READY);

	/* Figures of a cgroup may be two seconds old. */
	sleep(HIGH_SECONDS);
	before = charged("sec_pagetables");
	snprintf(text, sizeof(text), "%lu", value(gtdp_read_number(cgroup, "memory.current")));
	TEST_ASSERT(gtdp_write_file(parent, limit, text), "Can't set %s", limit);
	set_step(POPULATE);
	wait_for(pid, POPULATED);
	sleep(HIGH_SECONDS);
	TEST_ASSERT_EQ(charged("sec_pagetables"), before);

	TEST_ASSERT(gtdp_write_file(parent, limit, "max"), "Can't set %s", limit);
	set_step(FINISH);
	gtdp_check_exit(pid);
	wait_for_nothing(pid, users);
	gtdp_cgroup_destroy(cgroup);
	gtdp_cgroup_destroy(parent);
	return true;
}

/*
 * It does not go to sleep for memory.high, as others do who are charged for something,
 * but would have them reclaim.
 */
static bool test_high(void)
{
	return test_unasked("memory.high", half);
}

/* A byte for each 2MiB at least, of a slot that is large, and of which nothing is present. */
static void tracked_vmm(void)
{
	const u64 size = 64ul * SZ_1G;
	struct kvm_vm *vm;
	u64 before;
	void *hva;

	/* The VM is to have none of it at first. */
	TEST_ASSERT(gtdp_set_param("global_tdp", "0"), "It can't be turned off");
	vm = vm_create_barebones();
	gtdp_restore_params();

	hva = mmap(NULL, size, PROT_READ | PROT_WRITE,
		   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	TEST_ASSERT(hva != MAP_FAILED, __KVM_SYSCALL_ERROR("mmap()", -1));
	vm_set_user_memory_region(vm, GTDP_SLOT, 0, GTDP_GPA, size, hva);

	/* Figures of a cgroup may be two seconds old. */
	sleep(HIGH_SECONDS);
	before = charged("vmalloc");
	vm_enable_cap(vm, KVM_CAP_GLOBAL_TDP, KVM_GLOBAL_TDP_FOLLOW);
	gtdp_wait_until(charged("vmalloc") >= before + size / SZ_2M);

	kvm_vm_free(vm);
	munmap(hva, size);
	_exit(0);
}

static bool test_tracker(void)
{
	return test_vmm(tracked_vmm);
}

static const struct gtdp_test tests[] = {
	{ "memory cgroup at its limit", test_limit },
	{ "memory cgroup at its limit, asynchronous", test_limit_told },
	{ "memory cgroup at its limit, given more later", test_limit_lone },
	{ "memory cgroup at its limit, memory could be swapped out", test_limit_swap },
	{ "memory cgroup at its limit, no root yet", test_limit_root },
	{ "memory cgroup above memory.high", test_high },
	{ "memory cgroup, tracker", test_tracker },
	{ "files closed", test_close },
	{ "killed", test_kill },
};

/* Takes part of the name of a test, to leave out all others. */
int main(int argc, char *argv[])
{
	int opt;

	while ((opt = getopt(argc, argv, "hs:")) != -1) {
		switch (opt) {
		case 's':
			kvm_random_seed = strtoul(optarg, NULL, 0);
			break;
		default:
			printf("usage: %s [-s seed] [part of a name]\n", argv[0]);
			exit(opt == 'h' ? 0 : 1);
		}
	}

	gtdp_require(GTDP_ALL);
	ksft_print_msg("seed %#x\n", kvm_random_seed);
	gtdp_run_some_tests(tests, ARRAY_SIZE(tests), optind < argc ? argv[optind] : NULL);
}
