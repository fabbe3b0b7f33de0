// SPDX-License-Identifier: GPL-2.0
/*
 * What Global TDP costs a large VM: one case per run of the program.
 *
 * Large memory need not be there: the same 128MiB are in as many memslots as it
 * takes, each of which has page tables of its own, or nothing of it is present.
 *
 * Made to be run in a machine that QEMU emulates with "-icount shift=0,sleep=off"
 * and one CPU, where a nanosecond is an instruction.  Who traces mmu_lock, with more
 * CPUs, too, can tell by the main thread's name what it is at.
 *
 * The output is one JSON object per line and case; other lines are for humans.
 */
#include <pthread.h>
#include <stdlib.h>
#include <time.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include "test_util.h"
#include "kvm_util.h"
#include "processor.h"
#include "global_tdp.h"

#define ALIAS_SIZE	SZ_128M
#define MAX_THREADS	8
#define NR_TIMES	3

#define POPULATE	KVM_GLOBAL_TDP_POPULATE
#define FOLLOW		KVM_GLOBAL_TDP_FOLLOW

static u64 size;
static int nr_threads = 1;
static enum gtdp_backing backing = GTDP_ANON;
static const char *backing_name = "4k";

static struct kvm_vm *vm;
static struct gtdp_mem mem;

static pthread_barrier_t ready;
static u64 times[MAX_THREADS];

/* The CPUs that the program may use. */
static cpu_set_t usable;

/*
 * Of the calling thread, so that no other's work counts, nor does sleep; but what
 * interrupts do meanwhile does.  The scheduler charges whoever preempts a thread from
 * the wakeup on, though that goes on in the kernel until the end of the next tick, or
 * of what it has a lock for: up to milliseconds.  So main() sees to it that no other
 * thread preempts.
 */
static u64 cpu_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
	return timespec_to_ns(ts);
}

/* A line of /proc/meminfo or of its like, in KiB, -1 if there is none. */
static long read_kib(const char *path, const char *name)
{
	long kib = -1, value;
	char line[128], *at;
	FILE *file;

	/* Have the statistics of all CPUs added up first, if allowed to. */
	file = fopen("/proc/sys/vm/stat_refresh", "r");
	if (file) {
		fread(line, 1, sizeof(line), file);
		fclose(file);
	}

	file = fopen(path, "r");
	while (file && fgets(line, sizeof(line), file)) {
		at = strstr(line, name);
		if (at && sscanf(at + strlen(name), ": %ld kB", &value) == 1)
			kib = value;
	}
	if (file)
		fclose(file);
	return kib;
}

static long read_meminfo(const char *name)
{
	return read_kib("/proc/meminfo", name);
}

static void set_phase(const char *name)
{
	prctl(PR_SET_NAME, name);
}

static void create_vm(u64 features)
{
	/* Without memory of its own, which the follower would have done, too. */
	vm = vm_create_barebones();
	vm_enable_cap(vm, KVM_CAP_GLOBAL_TDP, features);
}

static void alloc_aliases(void)
{
	gtdp_mem_alloc(&mem, backing, ALIAS_SIZE, 0);
	gtdp_stamp(mem.hva, ALIAS_SIZE / PAGE_SIZE, 1);
	TEST_ASSERT(backing != GTDP_THP || gtdp_is_huge(mem.hva, ALIAS_SIZE),
		    "Want huge pages");
}

static void add_aliases(void)
{
	u64 i;

	for (i = 0; i < size / ALIAS_SIZE; i++)
		gtdp_add_slot(vm, GTDP_SLOT + i, 0, i * ALIAS_SIZE, &mem);
}

/* Memory that takes addresses, and nothing else. */
static void alloc_sparse(void)
{
	mem.size = size;
	mem.map_size = size + SZ_2M;
	mem.map = mmap(NULL, mem.map_size, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	TEST_ASSERT(mem.map != MAP_FAILED, __KVM_SYSCALL_ERROR("mmap()", -1));
	mem.hva = (void *)align_up((u64)mem.map, SZ_2M);
}

/*
 * What the follower, which sleeps by now, takes for its next pass, which finds what
 * @mark has marked.  Those that follow, at least 10ms later, don't count.  By the
 * clock, i.e. with whoever preempts it; on one CPU it does not begin before this sleeps.
 */
static u64 time_pass(void (*mark)(void))
{
	u64 before, ns;

	mark();
	/* What the call itself took is in it by now. */
	before = vm_get_stat(vm, tdp_populate_time_ns);
	__gtdp_wait_until((ns = vm_get_stat(vm, tdp_populate_time_ns)) != before, 2000);
	return ns - before;
}

static void mark_all(void)
{
	gtdp_populate_async(vm, 0, size);
}

static void mark_one(void)
{
	gtdp_populate_async(vm, 0, SZ_2M);
}

/*
 * The first call creates the follower, which looks again, ever more rarely.  The first
 * look at a statistic allocates memory, which for the follower is memory that arrives.
 */
static void let_settle(void)
{
	vm_get_stat(vm, tdp_populate_time_ns);
	mark_one();
	usleep(3000000);
}

/*
 * How long a pass takes that looks at @size of absent memory, without the pauses that
 * it takes every 10ms, in one of which the figures are read.
 */
static u64 time_absent_pass(void)
{
	const u64 nr = size / PAGE_SIZE;
	u64 absent, ns;

	mark_all();
	ns = vm_get_stat(vm, tdp_populate_time_ns);
	absent = gtdp_nr_absent(vm);
	__gtdp_wait_until(gtdp_nr_absent(vm) - absent >= nr, 2000);
	/* There will be another. */
	set_phase("idle");
	usleep(50000);
	ns = vm_get_stat(vm, tdp_populate_time_ns) - ns;
	return ns * nr / (gtdp_nr_absent(vm) - absent);
}

static void *populate_thread(void *arg)
{
	u64 part = size / nr_threads;
	long i = (long)arg;
	cpu_set_t set;
	int cpu, n = i % CPU_COUNT(&usable);

	for (cpu = 0; n || !CPU_ISSET(cpu, &usable); cpu++)
		n -= !!CPU_ISSET(cpu, &usable);
	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	TEST_ASSERT(!sched_setaffinity(0, sizeof(set), &set), "Want a CPU for each thread");

	pthread_barrier_wait(&ready);
	times[i] = cpu_ns();
	gtdp_populate_full(vm, i * part, part);
	times[i] = cpu_ns() - times[i];
	return NULL;
}

/* Returns what all of them took. */
static u64 populate_by_threads(void)
{
	pthread_t threads[MAX_THREADS];
	u64 sum = 0;
	long i;

	pthread_barrier_init(&ready, NULL, nr_threads);
	for (i = 0; i < nr_threads; i++)
		pthread_create(&threads[i], NULL, populate_thread, (void *)i);
	for (i = 0; i < nr_threads; i++) {
		pthread_join(threads[i], NULL);
		sum += times[i];
	}
	pthread_barrier_destroy(&ready);
	return sum;
}

static void begin(const char *name)
{
	printf("{\"case\": \"%s\", \"backing\": \"%s\", \"gib\": %lu, \"threads\": %d",
	       name, backing_name, size / SZ_1G, nr_threads);
}

static void tell(const char *name, long value)
{
	printf(", \"%s\": %ld", name, value);
}

static void end(void)
{
	printf("}\n");
	fflush(stdout);
}

/* By threads of the VMM; and what it takes to look again, and to end the VM. */
static void run_vmm(void)
{
	u64 ns, again, ended, start;
	long tables;

	alloc_aliases();
	create_vm(POPULATE);
	add_aliases();

	tables = read_meminfo("SecPageTables");
	set_phase("populate");
	ns = populate_by_threads();
	set_phase("idle");
	tables = read_meminfo("SecPageTables") - tables;
	TEST_ASSERT_EQ(gtdp_nr_populated(vm), size / PAGE_SIZE);
	set_phase("again");
	again = populate_by_threads();
	set_phase("idle");
	start = cpu_ns();
	kvm_vm_free(vm);
	ended = cpu_ns() - start;

	begin("vmm");
	tell("ns", ns);
	tell("again_ns", again);
	tell("free_ns", ended);
	tell("table_kib", tables);
	end();
}

/*
 * By the follower, alone; a pass that finds everything done; and the threads' stacks.
 * The first pass of all is not timed, as it creates the root.
 */
static void run_follower(void)
{
	long stacks = read_meminfo("KernelStack"), threads;
	u64 ns, done;

	alloc_aliases();
	create_vm(POPULATE);
	add_aliases();
	let_settle();
	threads = gtdp_kernel_threads((pid_t[MAX_THREADS]) {}, MAX_THREADS);
	stacks = read_meminfo("KernelStack") - stacks;

	set_phase("populate");
	ns = time_pass(mark_all);
	set_phase("idle");
	TEST_ASSERT_EQ(gtdp_nr_populated(vm), size / PAGE_SIZE);
	usleep(1000000);
	done = time_pass(mark_one);
	kvm_vm_free(vm);

	begin("follower");
	tell("ns", ns);
	tell("done_ns", done);
	tell("kernel_threads", threads);
	tell("stack_kib", stacks);
	end();
}

/* The least of some times that it is measured: in one or the other there is a tick. */
static void keep_least(u64 *least, u64 start)
{
	*least = min(*least, cpu_ns() - start);
}

/*
 * Memory that is not there: a memslot's creation, a call, a pass, what the host takes
 * away while it is waited for, and the memslot's end.
 */
static void run_sparse(u64 features, const char *name)
{
	u64 create = -1, call = 0, pass = 0, zap = -1, delete = -1;
	long vmalloc = read_meminfo("VmallocUsed");
	u64 start;
	int i;

	alloc_sparse();
	create_vm(features);

	for (i = 0; i < NR_TIMES; i++) {
		start = cpu_ns();
		gtdp_add_slot(vm, GTDP_SLOT, 0, 0, &mem);
		keep_least(&create, start);

		start = cpu_ns();
		TEST_ASSERT(!madvise(mem.hva, size, MADV_DONTNEED), "madvise() failed");
		keep_least(&zap, start);

		start = cpu_ns();
		gtdp_delete_slot(vm, GTDP_SLOT);
		keep_least(&delete, start);
	}

	gtdp_add_slot(vm, GTDP_SLOT, 0, 0, &mem);
	vmalloc = read_meminfo("VmallocUsed") - vmalloc;

	if (features) {
		set_phase("call");
		start = cpu_ns();
		TEST_ASSERT_EQ(gtdp_populate(vm, 0, size).absent, size);
		call = cpu_ns() - start;
		set_phase("idle");

		let_settle();
		set_phase("pass");
		pass = time_absent_pass();
	}

	begin(name);
	tell("create_ns", create);
	tell("delete_ns", delete);
	tell("zap_ns", zap);
	tell("vmalloc_kib", vmalloc);
	tell("call_ns", call);
	tell("pass_ns", pass);
	end();
	kvm_vm_free(vm);
	munmap(mem.map, mem.map_size);
}

/*
 * The host takes all of it away at once, which everything is mapped of, by 2MiB.  Once
 * with a follower, to whom each region is marked, which is what differs.
 */
static void run_zap(u64 features, const char *name)
{
	u64 start, ns;

	alloc_aliases();
	create_vm(features);
	add_aliases();
	gtdp_populate_async(vm, 0, size);
	__gtdp_wait_until(gtdp_nr_populated(vm) == size / PAGE_SIZE, 4000);
	usleep(3000000);

	start = cpu_ns();
	TEST_ASSERT(!madvise(mem.hva, mem.size, MADV_DONTNEED), "madvise() failed");
	ns = cpu_ns() - start;

	begin(name);
	tell("ns", ns);
	end();
	kvm_vm_free(vm);
	gtdp_mem_free(&mem);
}

static void help(const char *name)
{
	printf("usage: %s [-h] [-g GiB] [-b 4k|thp] [-t threads] case\n"
	       "cases: vmm follower sparse plain_sparse zap unmarked_zap\n", name);
	exit(0);
}

int main(int argc, char *argv[])
{
	struct sched_param param = { .sched_priority = 1 };
	const char *name;
	int opt;

	size = SZ_1G;
	while ((opt = getopt(argc, argv, "hg:b:t:")) != -1) {
		switch (opt) {
		case 'g':
			size = atoi_positive("GiB", optarg) * (u64)SZ_1G;
			break;
		case 'b':
			backing_name = optarg;
			backing = strcmp(optarg, "thp") ? GTDP_ANON : GTDP_THP;
			break;
		case 't':
			nr_threads = atoi_positive("Number of threads", optarg);
			TEST_ASSERT(nr_threads <= MAX_THREADS, "At most %d threads", MAX_THREADS);
			break;
		default:
			help(argv[0]);
		}
	}
	if (optind != argc - 1)
		help(argv[0]);
	name = argv[optind];

	gtdp_require(POPULATE);
	sched_getaffinity(0, sizeof(usable), &usable);
	/* More threads than CPUs are to take turns. */
	TEST_ASSERT(nr_threads > 1 || !sched_setscheduler(0, SCHED_FIFO, &param),
		    __KVM_SYSCALL_ERROR("sched_setscheduler()", -1));

	if (!strcmp(name, "vmm"))
		run_vmm();
	else if (!strcmp(name, "follower"))
		run_follower();
	else if (!strcmp(name, "sparse"))
		run_sparse(POPULATE | FOLLOW, name);
	else if (!strcmp(name, "plain_sparse"))
		run_sparse(0, name);
	else if (!strcmp(name, "zap"))
		run_zap(POPULATE | FOLLOW, name);
	else if (!strcmp(name, "unmarked_zap"))
		run_zap(POPULATE, name);
	else
		help(argv[0]);
	return 0;
}
