// SPDX-License-Identifier: GPL-2.0
/*
 * How long a vCPU's faults take while the host does something to a lot of other
 * memory of the same VM: zaps it for an MMU notifier, ages it, clears its dirty
 * log or ends it, resets its dirty rings, deletes its memslot, or recovers NX huge
 * pages.
 *
 * A vCPU, on a CPU of its own, touches a fresh page now and then, and takes the
 * time in the guest, whereas the main thread does one of the above, once per
 * round.  With a single CPU, there is no vCPU that runs: that tells the time of
 * the storm alone.
 *
 * The main thread has the name "path:MiB" while it is at it, so that who traces
 * mmu_lock can tell.  -t measures population by threads in parallel instead,
 * for which each should have a CPU.  The output is one JSON object per line, path
 * and size; other lines are for humans.
 */
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <time.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include "test_util.h"
#include "kvm_util.h"
#include "processor.h"
#include "ucall_common.h"
#include "global_tdp.h"

/* What the vCPU faults on: absent pages, each of which it touches once. */
#define FRESH_SLOT	(GTDP_SLOT + 1)
#define FRESH_GPA	(GTDP_GPA + GTDP_WINDOW)
#define FRESH_SIZE	SZ_64M
#define FRESH_PAGES	(FRESH_SIZE / PAGE_SIZE)

/* Faults before the storm begins, and microseconds from one to the next. */
#define FAULTS_BEFORE	16
#define FAULT_PERIOD_US	250

/* The largest there is, and what of it is used: there is no exit for a full one. */
#define RING_ENTRIES	65536
#define RING_USED	(RING_ENTRIES / 2)

#define NX_PARAM	"/sys/module/kvm/parameters/nx_huge_pages"
#define LRU_GEN		"/sys/kernel/debug/lru_gen"

enum guest_op {
	GUEST_NOTHING,
	GUEST_EXECUTE,		/* the first bytes of each 2MiB */
	GUEST_WRITE,		/* to one page in so many bytes */
	GUEST_TOUCH,		/* fresh pages until told to stop */
};

/* The guest has a copy of its own, see guest_work(). */
static struct work {
	enum guest_op op;
	u64 size;
	u64 stride;
	u64 period;
	bool stop;
	u64 done;
	u64 latency[FRESH_PAGES];
} work;

struct path {
	const char *name;
	enum gtdp_backing backing;
	u64 features;
	u64 quirks_off;
	u32 ring_size;
	void (*prepare)(void);
	void (*storm)(void);
	void (*restore)(void);
	const char *needs;
};

static const struct path *path;
static u64 range_size, ring_used;
static bool has_gtdp, has_vcpu_cpu;

static struct kvm_vm *vm;
static struct kvm_vcpu *vcpu;
static struct gtdp_mem mem;

static u64 now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return timespec_to_ns(ts);
}

static void guest_touch(void)
{
	u64 i, start, now;

	for (i = 0; i < FRESH_PAGES && !READ_ONCE(work.stop); i++) {
		start = rdtsc();
		WRITE_ONCE(*(u64 *)(FRESH_GPA + i * PAGE_SIZE), i);
		now = rdtsc();

		work.latency[i] = now - start;
		WRITE_ONCE(work.done, i + 1);

		while (rdtsc() - start < work.period && !READ_ONCE(work.stop))
			;
	}
}

static void guest_main(void)
{
	u64 gva;

	for (;;) {
		if (work.op == GUEST_TOUCH) {
			guest_touch();
		} else if (work.op == GUEST_EXECUTE) {
			for (gva = GTDP_GPA; gva < GTDP_GPA + work.size; gva += SZ_2M)
				((void (*)(void))gva)();
		} else if (work.op == GUEST_WRITE) {
			for (gva = GTDP_GPA; gva < GTDP_GPA + work.size; gva += work.stride)
				WRITE_ONCE(*(u64 *)gva, gva);
		}
		GUEST_SYNC(0);
	}
}

static struct work *guest_work(void)
{
	return addr_gva2hva(vm, (gva_t)&work);
}

static void run_guest(enum guest_op op)
{
	struct work *w = guest_work();

	w->op = op;
	w->size = range_size;
	w->stride = path->ring_size ? max(range_size / RING_USED, (u64)PAGE_SIZE) :
				      PAGE_SIZE;
	vcpu_run(vcpu);
	gtdp_finish_job(vcpu);
}

static void write_file(const char *name, const char *value)
{
	FILE *file = fopen(name, "w");

	TEST_ASSERT(file && fputs(value, file) >= 0 && !fclose(file),
		    "Can't write '%s' to %s, run as root", value, name);
}

static void map_range(void)
{
	if (has_gtdp)
		gtdp_populate_full(vm, GTDP_GPA, range_size);
	else
		gtdp_prefault(vcpu, GTDP_GPA, range_size);
}

static void set_slot_flags(u32 flags)
{
	gtdp_add_slot(vm, GTDP_SLOT, flags, GTDP_GPA, &mem);
}

/* The paths */
static void storm_notifier(void)
{
	int r = madvise(mem.hva, range_size, MADV_DONTNEED);

	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("madvise()", r));
}

/* The multi-gen LRU's debug interface: + memcg node max_gen swap force_scan */
static void storm_age(void)
{
	unsigned long value, memcg = 0, node = 0, gen = 0;
	char line[512], path[256], own[256] = "/";
	bool found = false;
	FILE *file;

	file = fopen("/proc/self/cgroup", "r");
	while (file && fgets(line, sizeof(line), file))
		sscanf(line, "0::%255s", own);
	if (file)
		fclose(file);

	file = fopen(LRU_GEN, "r");
	TEST_ASSERT(file, "Can't read " LRU_GEN);
	while (fgets(line, sizeof(line), file)) {
		if (sscanf(line, "memcg %lu %255s", &value, path) == 2) {
			found = !strcmp(path, own);
			memcg = found ? value : memcg;
		} else if (found && sscanf(line, " node %lu", &value) == 1) {
			node = value;
		} else if (found && sscanf(line, " %lu", &value) == 1) {
			gen = value;
		}
	}
	fclose(file);

	snprintf(line, sizeof(line), "+ %lu %lu %lu 1 1", memcg, node, gen);
	write_file(LRU_GEN, line);
}

static void prepare_log(void)
{
	set_slot_flags(KVM_MEM_LOG_DIRTY_PAGES);
}

static void storm_clear_log(void)
{
	static unsigned long bitmap[SZ_1G / PAGE_SIZE / (8 * sizeof(long))];

	memset(bitmap, 0xff, sizeof(bitmap));
	kvm_vm_clear_dirty_log(vm, GTDP_SLOT, bitmap, 0, range_size / PAGE_SIZE);
}

/* Pages next to each other, or if there are too many for a ring, far apart. */
static void prepare_ring(void)
{
	static unsigned long log[SZ_1G / PAGE_SIZE / (8 * sizeof(long))];

	set_slot_flags(KVM_MEM_LOG_DIRTY_PAGES);
	run_guest(GUEST_WRITE);
	ring_used = gtdp_read_ring(vcpu, 0, log, range_size / PAGE_SIZE, true);
	TEST_ASSERT_EQ(ring_used, min(range_size / PAGE_SIZE, (u64)RING_USED));
}

static void storm_reset_ring(void)
{
	TEST_ASSERT_EQ(kvm_vm_reset_dirty_ring(vm), ring_used);
}

static void storm_log_off(void)
{
	set_slot_flags(0);
}

static void storm_delete(void)
{
	gtdp_delete_slot(vm, GTDP_SLOT);
}

/* Page tables that exist because the guest has executed from huge pages. */
static void prepare_nx(void)
{
	u64 i;

	for (i = 0; i < range_size; i += SZ_2M)
		*(u8 *)(mem.hva + i) = 0xc3;	/* ret */

	run_guest(GUEST_EXECUTE);
	map_range();
}

static void storm_nx(void)
{
	write_file(NX_PARAM "_recovery_ratio", "1");
	while (gtdp_vm_stat(vm, "nx_lpage_splits"))
		usleep(1000);
}

static void restore_nx(void)
{
	write_file(NX_PARAM "_recovery_ratio", "0");
}

#define POPULATE	KVM_GLOBAL_TDP_POPULATE
#define FOLLOW		KVM_GLOBAL_TDP_FOLLOW

static const struct path paths[] = {
	{ "notifier", GTDP_ANON, POPULATE, .storm = storm_notifier },
	{ "age", GTDP_ANON, POPULATE, .storm = storm_age, .needs = LRU_GEN },
	{ "clear_log", GTDP_ANON, POPULATE, .prepare = prepare_log,
	  .storm = storm_clear_log },
	{ "reset_ring", GTDP_ANON, POPULATE, .prepare = prepare_ring,
	  .storm = storm_reset_ring,
	  .ring_size = RING_ENTRIES * sizeof(struct kvm_dirty_gfn) },
	{ "delete", GTDP_ANON, POPULATE, .storm = storm_delete },
	{ "delete_one", GTDP_ANON, POPULATE, KVM_X86_QUIRK_SLOT_ZAP_ALL,
	  .storm = storm_delete },
	{ "nx", GTDP_THP, POPULATE, .prepare = prepare_nx, .storm = storm_nx,
	  .restore = restore_nx, .needs = NX_PARAM },
	{ "log_off", GTDP_THP, POPULATE | FOLLOW, .prepare = prepare_log,
	  .storm = storm_log_off },
};

/* The CPUs that the program may use. */
static cpu_set_t usable;

/* To the n-th of them. */
static void pin_to_cpu(int n)
{
	cpu_set_t set;
	int cpu, r;

	TEST_ASSERT(n < CPU_COUNT(&usable), "%d CPUs are not enough", CPU_COUNT(&usable));
	for (cpu = 0; n || !CPU_ISSET(cpu, &usable); cpu++)
		n -= !!CPU_ISSET(cpu, &usable);
	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	r = sched_setaffinity(0, sizeof(set), &set);
	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("sched_setaffinity()", r));
}

static void create_vm(struct gtdp_mem *fresh)
{
	u64 code_size;
	int r;

	vm = __vm_create(VM_SHAPE_DEFAULT, 1, sizeof(work) / PAGE_SIZE + 64);
	if (has_gtdp)
		vm_enable_cap(vm, KVM_CAP_GLOBAL_TDP, path->features);
	if (path->quirks_off)
		vm_enable_cap(vm, KVM_CAP_DISABLE_QUIRKS2, path->quirks_off);
	if (path->ring_size)
		vm_enable_dirty_ring(vm, path->ring_size);
	else
		vm_enable_cap(vm, KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2,
			      KVM_DIRTY_LOG_MANUAL_PROTECT_ENABLE |
			      KVM_DIRTY_LOG_INITIALLY_SET);

	virt_map_level(vm, GTDP_GPA, GTDP_GPA, range_size, PG_LEVEL_2M);
	virt_map_level(vm, FRESH_GPA, FRESH_GPA, FRESH_SIZE, PG_LEVEL_2M);
	vcpu = vm_vcpu_add(vm, 0, guest_main);

	code_size = gtdp_code_size(vm);
	r = madvise(memslot2region(vm, 0)->host_mem, code_size, MADV_POPULATE_WRITE);
	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("madvise()", r));
	gtdp_prefault(vcpu, 0, code_size);
	run_guest(GUEST_NOTHING);

	gtdp_mem_alloc(fresh, GTDP_ANON, FRESH_SIZE, 0);
	gtdp_add_slot(vm, FRESH_SLOT, 0, FRESH_GPA, fresh);
}

static void *vcpu_thread(void *arg)
{
	pin_to_cpu(1);
	run_guest(GUEST_TOUCH);
	return NULL;
}

/* Returns how long the storm took; adds to @samples what faults took, in ticks. */
static u64 run_round(u64 *samples, u64 *nr_samples, double ticks_per_ns)
{
	u64 start, ns, first = 0, last = 0;
	struct gtdp_mem fresh;
	pthread_t thread;
	struct work *w;
	char name[16];
	int r;

	gtdp_mem_alloc(&mem, path->backing, range_size, 0);
	r = madvise(mem.hva, range_size, MADV_POPULATE_WRITE);
	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("madvise()", r));

	create_vm(&fresh);
	set_slot_flags(0);
	if (path->prepare != prepare_nx)
		map_range();
	if (path->prepare)
		path->prepare();
	if (path->storm == storm_log_off) {
		/* As a migration has it: 4KiB SPTEs, used, for memory in huge pages. */
		storm_clear_log();
		map_range();
		run_guest(GUEST_WRITE);
	}

	w = guest_work();
	w->period = FAULT_PERIOD_US * 1000 * ticks_per_ns;
	if (has_vcpu_cpu) {
		pthread_create(&thread, NULL, vcpu_thread, NULL);
		while (READ_ONCE(w->done) < FAULTS_BEFORE)
			usleep(100);
		first = READ_ONCE(w->done);
	}

	snprintf(name, sizeof(name), "%s:%lu", path->name, range_size / SZ_1M);
	prctl(PR_SET_NAME, name);
	start = now_ns();
	path->storm();
	ns = now_ns() - start;
	prctl(PR_SET_NAME, "idle");

	if (has_vcpu_cpu) {
		last = READ_ONCE(w->done);
		WRITE_ONCE(w->stop, true);
		pthread_join(thread, NULL);
		/* With the one that was under way when the storm was over. */
		last = min(last + 1, w->done);
		memcpy(samples + *nr_samples, w->latency + first,
		       (last - first) * sizeof(*samples));
		*nr_samples += last - first;
	}

	if (path->restore)
		path->restore();
	kvm_vm_free(vm);
	gtdp_mem_free(&fresh);
	gtdp_mem_free(&mem);
	return ns;
}

static int compare(const void *a, const void *b)
{
	u64 x = *(const u64 *)a, y = *(const u64 *)b;

	return x < y ? -1 : x > y;
}

static double measure_ticks_per_ns(void)
{
	u64 tsc = rdtsc(), ns = now_ns();

	usleep(100000);
	return (double)(rdtsc() - tsc) / (now_ns() - ns);
}

static void run_path(int rounds, double ticks_per_ns)
{
	u64 *samples = calloc(rounds * FRESH_PAGES, sizeof(*samples));
	u64 nr = 0, ns, best = ~0ul;
	int i;

	TEST_ASSERT(samples, "Insufficient memory");

	for (i = 0; i < rounds; i++) {
		ns = run_round(samples, &nr, ticks_per_ns);
		best = min(best, ns);
	}

	qsort(samples, nr, sizeof(*samples), compare);

	printf("{\"path\": \"%s\", \"mib\": %lu, \"storm_ns\": %lu, \"faults\": %lu",
	       path->name, range_size / SZ_1M, best, nr);
	if (nr)
		printf(", \"p50_ns\": %.0f, \"p99_ns\": %.0f, \"max_ns\": %.0f",
		       samples[nr / 2] / ticks_per_ns, samples[nr * 99 / 100] / ticks_per_ns,
		       samples[nr - 1] / ticks_per_ns);
	printf("}\n");
	fflush(stdout);
	free(samples);
}

/*
 * Population by so many threads of the VMM.  The memory is in many memslots: each
 * has page tables of its own.
 */
#define NR_ALIASES	64
#define MAX_THREADS	8

static int nr_threads;
static u64 large_size;
static pthread_barrier_t ready;
static struct {
	u64 start;
	u64 end;
} times[MAX_THREADS];

static void *populate_thread(void *arg)
{
	u64 size = large_size / nr_threads;
	long i = (long)arg;

	pin_to_cpu(i);
	pthread_barrier_wait(&ready);

	times[i].start = now_ns();
	gtdp_populate_full(vm, GTDP_GPA + i * size, size);
	times[i].end = now_ns();
	return NULL;
}

static u64 populate_by_threads(void)
{
	u64 start = ~0ul, end = 0;
	pthread_t threads[MAX_THREADS];
	long i;

	pthread_barrier_init(&ready, NULL, nr_threads);
	for (i = 0; i < nr_threads; i++)
		pthread_create(&threads[i], NULL, populate_thread, (void *)i);
	for (i = 0; i < nr_threads; i++) {
		pthread_join(threads[i], NULL);
		start = min(start, times[i].start);
		end = max(end, times[i].end);
	}
	pthread_barrier_destroy(&ready);

	return end - start;
}

static void run_populate(int rounds)
{
	u64 best = ~0ul, ns;
	int i, j;

	gtdp_mem_alloc(&mem, GTDP_ANON, range_size, 0);
	gtdp_stamp(mem.hva, range_size / PAGE_SIZE, 1);
	large_size = NR_ALIASES * range_size;

	for (i = 0; i < rounds; i++) {
		/* Without memory of its own, which the follower would have done, too. */
		vm = vm_create_barebones();
		vm_enable_cap(vm, KVM_CAP_GLOBAL_TDP, KVM_GLOBAL_TDP_POPULATE);
		for (j = 0; j < NR_ALIASES; j++)
			gtdp_add_slot(vm, GTDP_SLOT + j, 0, GTDP_GPA + j * range_size, &mem);
		/* Is not run. */
		vcpu = __vm_vcpu_add(vm, 0);

		ns = populate_by_threads();
		best = min(best, ns);
		TEST_ASSERT_EQ(gtdp_nr_populated(vm), large_size / PAGE_SIZE);
		kvm_vm_free(vm);
	}

	gtdp_mem_free(&mem);

	printf("{\"threads\": %d, \"mib\": %lu, \"ns\": %lu}\n",
	       nr_threads, large_size / SZ_1M, best);
	fflush(stdout);
}

static void help(const char *name)
{
	int i;

	printf("usage: %s [-h] [-m MiB] [-r rounds] [-p path | -t threads]\n"
	       "-t populates memory by so many threads instead\npaths:", name);
	for (i = 0; i < ARRAY_SIZE(paths); i++)
		printf(" %s", paths[i].name);
	printf("\n");
	exit(0);
}

int main(int argc, char *argv[])
{
	const char *only = NULL;
	double ticks_per_ns;
	int i, opt, rounds = 3;

	range_size = SZ_16M;
	while ((opt = getopt(argc, argv, "hm:r:p:t:")) != -1) {
		switch (opt) {
		case 'm':
			range_size = atoi_positive("MiB", optarg) * (u64)SZ_1M;
			break;
		case 'r':
			rounds = atoi_positive("Number of rounds", optarg);
			break;
		case 'p':
			only = optarg;
			break;
		case 't':
			nr_threads = atoi_positive("Number of threads", optarg);
			TEST_ASSERT(nr_threads <= MAX_THREADS, "At most %d threads", MAX_THREADS);
			break;
		default:
			help(argv[0]);
		}
	}

	TEST_REQUIRE(kvm_has_cap(KVM_CAP_PRE_FAULT_MEMORY));
	sched_getaffinity(0, sizeof(usable), &usable);
	TEST_ASSERT(range_size <= GTDP_WINDOW && !(range_size % SZ_2M),
		    "Want an even number of MiB, at most %u", GTDP_WINDOW / SZ_1M);

	has_gtdp = kvm_check_cap(KVM_CAP_GLOBAL_TDP);
	if (nr_threads) {
		TEST_REQUIRE(has_gtdp);
		run_populate(rounds);
		return 0;
	}

	has_vcpu_cpu = CPU_COUNT(&usable) > 1;
	pin_to_cpu(0);
	ticks_per_ns = measure_ticks_per_ns();

	/* Leave it to storm_nx() when there is something to recover. */
	if (!access(NX_PARAM, W_OK)) {
		write_file(NX_PARAM "_recovery_ratio", "0");
		write_file(NX_PARAM "_recovery_period_ms", "1");
	}

	for (i = 0; i < ARRAY_SIZE(paths); i++) {
		path = &paths[i];
		if (only && strcmp(only, path->name))
			continue;
		if (path->needs && access(path->needs, W_OK)) {
			printf("# %s: skipped, no %s\n", path->name, path->needs);
			continue;
		}

		if (path->restore == restore_nx)
			write_file(NX_PARAM, "force");
		run_path(rounds, ticks_per_ns);
		if (path->restore == restore_nx)
			write_file(NX_PARAM, "off");
	}

	return 0;
}
