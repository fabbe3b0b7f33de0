// SPDX-License-Identifier: GPL-2.0
/*
 * What holds mmu_lock for read only must still be right, and what holds it often
 * must let go of it.  So must, of memslots, who looks at much memory.
 */
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>

#include <linux/bitmap.h>

#include "test_util.h"
#include "kvm_util.h"
#include "processor.h"
#include "global_tdp.h"

#define NR_PAGES	128
#define ROUNDS		25

/* Pages that a call is to be mapping, for so long, when a vCPU writes to them. */
#define PREFAULTED	16
#define PREFAULT_USECS	2000

/* For more than is pushed in a round, beside what the kernel keeps for itself. */
#define RING_SIZE	(8192 * sizeof(struct kvm_dirty_gfn))

/*
 * What a call looks at, the ticks in the time that one takes, and the calls in
 * which it should tick more than once each, in most tries: the machine may be
 * busy otherwise.
 */
#define LOOKED_AT	GTDP_WINDOW
#define TICKS		8
#define CALLS		10
#define NR_TRIES	3
#define MAX_BRIEF_TRIES	20

static struct gtdp_mem mem;
static struct kvm_vm *vm;
static struct kvm_vcpu *vcpu;
static bool done;

static unsigned long bitmap[NR_PAGES / (8 * sizeof(long))];

/* If there is a ring instead of a log, and what of it has been harvested. */
static bool has_ring;
static u32 harvested;

/* How often the log has been cleared, or the ring reset, in all rounds. */
static u64 cleared;

/* Returns when all that was logged before the call is cleared. */
static void wait_for_clear(void)
{
	u64 before = READ_ONCE(cleared);

	/* The first of these may have begun before. */
	__gtdp_wait_until(READ_ONCE(cleared) >= before + 2, 100);
}

static void write_pages(u64 first, u64 nr)
{
	gtdp_run(vcpu, GTDP_WRITE, GTDP_GPA + first * PAGE_SIZE, nr, 0);
}

static void *vcpu_thread(void *arg)
{
	pthread_barrier_t *barrier = arg;
	int i;

	for (i = 0; i < ROUNDS; i++) {
		pthread_barrier_wait(barrier);
		write_pages(0, NR_PAGES / 2);
		/* Whoever is first, in any case the log is cleared of those. */
		wait_for_clear();
		write_pages(NR_PAGES / 2, NR_PAGES / 2);
		WRITE_ONCE(done, true);
		pthread_barrier_wait(barrier);
		write_pages(0, NR_PAGES);
		pthread_barrier_wait(barrier);
	}

	return NULL;
}

static void clear_log(void)
{
	u32 nr;

	if (has_ring) {
		nr = gtdp_read_ring(vcpu, harvested, bitmap, NR_PAGES, true);
		TEST_ASSERT_EQ(kvm_vm_reset_dirty_ring(vm), nr);
		harvested += nr;
	} else {
		memset(bitmap, 0xff, sizeof(bitmap));
		kvm_vm_clear_dirty_log(vm, GTDP_SLOT, bitmap, 0, NR_PAGES);
	}
	WRITE_ONCE(cleared, cleared + 1);
}

static void get_log(void)
{
	memset(bitmap, 0, sizeof(bitmap));
	if (has_ring)
		gtdp_read_ring(vcpu, harvested, bitmap, NR_PAGES, false);
	else
		kvm_vm_get_dirty_log(vm, GTDP_SLOT, bitmap);
}

/*
 * With Global TDP, the dirty log is cleared, and dirty rings are reset, with
 * mmu_lock held for read, i.e. while vCPUs fault on the very same pages.
 * Whatever comes first, a page that can be written without a fault must be in
 * the log: a vCPU maps pages by writing to them, the main thread clears the log
 * of all of them again and again meanwhile; then the vCPU writes to each page
 * once more, with nobody clearing anything, and each page must be in the log.
 *
 * The SPTEs are ones that the host has zapped, or write-protected ones.  Each
 * of the two threads needs a CPU, or there is no race to be lost.
 */
static bool run(bool zap, bool ring)
{
	pthread_barrier_t barrier;
	pthread_t thread;
	int i, r, round;

	cleared = 0;
	harvested = 0;
	has_ring = ring;

	vm = __gtdp_vm_create(KVM_GLOBAL_TDP_POPULATE, ring ? RING_SIZE : 0, 1, &vcpu);
	if (!has_ring)
		vm_enable_cap(vm, KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2,
			      KVM_DIRTY_LOG_MANUAL_PROTECT_ENABLE);
	gtdp_prefault_code(vcpu);
	gtdp_mem_alloc(&mem, GTDP_ANON, NR_PAGES * PAGE_SIZE, 0);
	gtdp_add_slot(vm, GTDP_SLOT, KVM_MEM_LOG_DIRTY_PAGES, GTDP_GPA, &mem);

	pthread_barrier_init(&barrier, NULL, 2);
	pthread_create(&thread, NULL, vcpu_thread, &barrier);

	for (round = 0; round < ROUNDS; round++) {
		if (zap) {
			r = madvise(mem.hva, mem.size, MADV_DONTNEED);
			TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("madvise()", r));
		}
		r = madvise(mem.hva, mem.size, MADV_POPULATE_WRITE);
		TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("madvise()", r));
		WRITE_ONCE(done, false);
		pthread_barrier_wait(&barrier);

		__gtdp_wait_until((clear_log(), READ_ONCE(done)), 0);

		get_log();
		for (i = 0; i < NR_PAGES / 2; i++)
			TEST_ASSERT(!test_bit(i, bitmap), "Round %d: page %d is in the log",
				    round, i);

		/* Now the vCPU writes once more, and then waits. */
		pthread_barrier_wait(&barrier);
		pthread_barrier_wait(&barrier);

		get_log();
		for (i = 0; i < ARRAY_SIZE(bitmap); i++)
			TEST_ASSERT(!~bitmap[i], "Round %d: word %d of the log is %#lx",
				    round, i, bitmap[i]);
	}

	pthread_join(thread, NULL);
	pthread_barrier_destroy(&barrier);
	ksft_print_msg("the log was cleared %lu times in %d rounds\n", cleared, ROUNDS);

	kvm_vm_free(vm);
	gtdp_mem_free(&mem);
	return true;
}

static bool test_clear_vs_map(void)
{
	return run(true, false);
}

static bool test_clear_vs_write(void)
{
	return run(false, false);
}

static bool test_reset_vs_map(void)
{
	return run(true, true);
}

static bool test_reset_vs_write(void)
{
	return run(false, true);
}

/*
 * Pages that are so far apart that each is reset, or cleared, by itself, beside a call that
 * maps other memory, and by how much that may take longer than alone, for other reasons.
 */
#define NR_APART	64
#define APART		64
#define BESIDE_SIZE	SZ_128M
#define BESIDE_NS	100000000
#define BESIDE_GPA	(GTDP_GPA + NR_APART * APART * PAGE_SIZE)

static u64 beside_gpa;

/* On any CPU but that of the thread that does not wait, if there is another. */
static void *populate_thread(void *arg)
{
	sched_setaffinity(0, sizeof(cpu_set_t), arg);
	gtdp_populate_full(vm, beside_gpa, BESIDE_SIZE);
	return NULL;
}

/*
 * Returns the CPU time that it takes to have all pages logged anew, one by one.  It includes
 * waiting for mmu_lock, which spins.
 */
static u64 time_clear(void)
{
	static unsigned long log[NR_APART * APART / BITS_PER_LONG];
	struct timespec start, end;
	u64 ns = 0;
	int i, nr;

	for (i = 0; i < NR_APART; i++) {
		write_pages(i * APART, 1);
		nr = has_ring ? gtdp_read_ring(vcpu, harvested, log, NR_APART * APART, true) : 1;
		memset(log, 0xff, sizeof(log));

		clock_gettime(CLOCK_THREAD_CPUTIME_ID, &start);
		if (has_ring)
			TEST_ASSERT_EQ(kvm_vm_reset_dirty_ring(vm), nr);
		else
			kvm_vm_clear_dirty_log(vm, GTDP_SLOT, log, i * APART, APART);
		clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
		ns += timespec_to_ns(timespec_sub(end, start));
		harvested += nr;
	}
	return ns;
}

/* Who holds mmu_lock for read, too, is not waited for, however slow. */
static bool run_beside(bool ring)
{
	u64 before, alone, beside = UINT64_MAX;
	cpu_set_t cpus, cpu, others;
	struct gtdp_mem other;
	pthread_t thread;
	int i;

	sched_getaffinity(0, sizeof(cpus), &cpus);
	CPU_ZERO(&cpu);
	CPU_SET(sched_getcpu(), &cpu);
	CPU_XOR(&others, &cpus, &cpu);
	sched_setaffinity(0, sizeof(cpu), &cpu);

	harvested = 0;
	has_ring = ring;
	vm = __gtdp_vm_create(KVM_GLOBAL_TDP_POPULATE, ring ? RING_SIZE : 0, 1, &vcpu);
	if (!has_ring)
		vm_enable_cap(vm, KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2,
			      KVM_DIRTY_LOG_MANUAL_PROTECT_ENABLE);
	gtdp_prefault_code(vcpu);
	gtdp_mem_alloc(&mem, GTDP_ANON, NR_APART * APART * PAGE_SIZE, 0);
	gtdp_add_slot(vm, GTDP_SLOT, KVM_MEM_LOG_DIRTY_PAGES, GTDP_GPA, &mem);
	gtdp_mem_alloc(&other, GTDP_ANON, BESIDE_SIZE, 0);
	TEST_ASSERT(!madvise(other.hva, BESIDE_SIZE, MADV_POPULATE_READ), "madvise()");

	time_clear();
	alone = time_clear();
	for (i = 0; i < NR_TRIES && beside > 10 * alone + BESIDE_NS; i++) {
		/* Where there are no page tables yet. */
		beside_gpa = BESIDE_GPA + i * BESIDE_SIZE;
		gtdp_add_slot(vm, GTDP_SLOT + 1, 0, beside_gpa, &other);
		before = gtdp_nr_populated(vm);
		pthread_create(&thread, NULL, populate_thread, &others);
		gtdp_wait_until(gtdp_nr_populated(vm) > before);
		beside = time_clear();
		pthread_join(thread, NULL);
		gtdp_delete_slot(vm, GTDP_SLOT + 1);
	}
	ksft_print_msg("%lu us alone, %lu us beside a call\n", alone / 1000, beside / 1000);
	TEST_ASSERT(beside <= 10 * alone + BESIDE_NS, "%s waits for a call that populates",
		    ring ? "Resetting a ring" : "Clearing the log");

	sched_setaffinity(0, sizeof(cpus), &cpus);
	kvm_vm_free(vm);
	gtdp_mem_free(&other);
	gtdp_mem_free(&mem);
	return true;
}

static bool test_reset_beside(void)
{
	return run_beside(true);
}

static bool test_clear_beside(void)
{
	return run_beside(false);
}

static u64 prefaulted_gpa;

static void *prefault_thread(void *arg)
{
	gtdp_prefault(arg, prefaulted_gpa, PAGE_SIZE);
	return NULL;
}

/*
 * Who takes the log for the last time has stopped the vCPUs that run, but need not
 * wait for KVM_PRE_FAULT_MEMORY: what a vCPU has written to a page is logged, though
 * that call is just mapping the same page.
 */
static bool test_prefault(void)
{
	struct kvm_vcpu *vcpus[2];
	pthread_t thread;
	int i, r;

	has_ring = false;
	vm = gtdp_vm_create(KVM_GLOBAL_TDP_POPULATE, 2, vcpus);
	vcpu = vcpus[0];
	vm_enable_cap(vm, KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2,
		      KVM_DIRTY_LOG_MANUAL_PROTECT_ENABLE);
	gtdp_prefault_code(vcpu);
	gtdp_mem_alloc(&mem, GTDP_ANON, NR_PAGES * PAGE_SIZE, 0);
	r = madvise(mem.hva, mem.size, MADV_POPULATE_WRITE);
	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("madvise()", r));
	gtdp_add_slot(vm, GTDP_SLOT, KVM_MEM_LOG_DIRTY_PAGES, GTDP_GPA, &mem);

	/* There is a page table from here on. */
	write_pages(0, 1);
	gtdp_prefault(vcpus[1], GTDP_GPA, PAGE_SIZE);

	for (i = 1; i < PREFAULTED; i++) {
		prefaulted_gpa = GTDP_GPA + i * PAGE_SIZE;
		pthread_create(&thread, NULL, prefault_thread, vcpus[1]);
		usleep(PREFAULT_USECS);
		write_pages(i, 1);
		get_log();
		TEST_ASSERT(test_bit(i, bitmap),
			    "Page %d, written beside a prefault, is not in the log", i);
		pthread_join(thread, NULL);
	}

	kvm_vm_free(vm);
	gtdp_mem_free(&mem);
	return true;
}

/* Memory that costs nothing, all of which is there, for calls that look at much. */
static void create_large(void)
{
	static void *hva;
	int r;

	if (!hva) {
		hva = mmap(NULL, LOOKED_AT, PROT_READ,
			   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		TEST_ASSERT(hva != MAP_FAILED, __KVM_SYSCALL_ERROR("mmap()", -1));
		madvise(hva, LOOKED_AT, MADV_NOHUGEPAGE);
		r = madvise(hva, LOOKED_AT, MADV_POPULATE_READ);
		TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("madvise()", r));
	}

	mem = (struct gtdp_mem) { .hva = hva, .size = LOOKED_AT };
	vm = gtdp_vm_create(KVM_GLOBAL_TDP_POPULATE, 1, &vcpu);
	gtdp_add_slot(vm, GTDP_SLOT, 0, GTDP_GPA, &mem);
}

static bool calling;
static u64 tick_usecs, ticks;

static void *ticker_thread(void *arg)
{
	while (!READ_ONCE(done)) {
		usleep(READ_ONCE(tick_usecs));
		if (READ_ONCE(calling))
			WRITE_ONCE(ticks, ticks + 1);
	}

	return NULL;
}

static u64 look_at_all(void)
{
	struct timespec start;

	clock_gettime(CLOCK_MONOTONIC, &start);
	gtdp_populate_full(vm, GTDP_GPA, LOOKED_AT);
	return timespec_to_ns(timespec_elapsed(start));
}

/*
 * A thread that goes first, on the same CPU, runs while a call looks at much,
 * not just as soon as the call is done.
 */
static bool test_yield(void)
{
	const struct sched_param param = { .sched_priority = 1 };
	cpu_set_t cpus, cpu;
	pthread_t ticker;
	int i, tries, yielded = 0;
	u64 ns;
	bool first;

	create_large();
	look_at_all();

	sched_getaffinity(0, sizeof(cpus), &cpus);
	CPU_ZERO(&cpu);
	CPU_SET(sched_getcpu(), &cpu);
	sched_setaffinity(0, sizeof(cpu), &cpu);

	WRITE_ONCE(done, false);
	tick_usecs = 1000;
	pthread_create(&ticker, NULL, ticker_thread, NULL);
	first = !pthread_setschedparam(ticker, SCHED_FIFO, &param);

	for (tries = 0; tries < NR_TRIES && first; tries++) {
		ns = min(look_at_all(), look_at_all());
		WRITE_ONCE(tick_usecs, ns / TICKS / 1000);
		WRITE_ONCE(ticks, 0);
		for (i = 0; i < CALLS; i++) {
			WRITE_ONCE(calling, true);
			look_at_all();
			WRITE_ONCE(calling, false);
		}
		ksft_print_msg("%lu ticks of %lu us in %d calls\n", ticks, tick_usecs, CALLS);
		yielded += 2 * ticks > 3 * CALLS;
	}

	WRITE_ONCE(done, true);
	pthread_join(ticker, NULL);
	sched_setaffinity(0, sizeof(cpus), &cpus);
	kvm_vm_free(vm);

	if (!first) {
		ksft_print_msg("no permission to go first\n");
		return false;
	}

	TEST_ASSERT(2 * yielded > NR_TRIES, "The thread got to run in %d of %d tries",
		    yielded, NR_TRIES);
	return true;
}

static void *look_thread(void *arg)
{
	look_at_all();
	return NULL;
}

/*
 * Who changes memslots waits for a few regions that a call looks at, not for all of
 * them.  How many these are is a matter of who gets a CPU: once is enough, as that
 * never happens if the call has to come to its end.
 */
static bool test_brief(void)
{
	u64 start, before, during = 0, left = 0;
	struct gtdp_mem spare;
	pthread_t thread;
	int tries;

	gtdp_mem_alloc(&spare, GTDP_ANON, SZ_2M, 0);
	create_large();
	for (tries = 0; tries < MAX_BRIEF_TRIES && during >= left / 2; tries++) {
		start = gtdp_nr_populated(vm);
		pthread_create(&thread, NULL, look_thread, NULL);
		__gtdp_wait_until(gtdp_nr_populated(vm) > start, 0);

		before = gtdp_nr_populated(vm);
		gtdp_add_slot(vm, GTDP_SLOT + 1, 0, GTDP_GPA + LOOKED_AT, &spare);
		during = gtdp_nr_populated(vm) - before;
		left = start + LOOKED_AT / PAGE_SIZE - before;
		ksft_print_msg("a memslot was created while %lu of %lu pages were populated\n",
			       during, left);

		pthread_join(thread, NULL);
		gtdp_delete_slot(vm, GTDP_SLOT + 1);
		gtdp_delete_slot(vm, GTDP_SLOT);
		gtdp_add_slot(vm, GTDP_SLOT, 0, GTDP_GPA, &mem);
	}
	TEST_ASSERT(during < left / 2, "A memslot waited while %lu of %lu pages were populated",
		    during, left);

	kvm_vm_free(vm);
	gtdp_mem_free(&spare);
	return true;
}

static const struct gtdp_test tests[] = {
	{ "clearing the log while pages are mapped loses no write", test_clear_vs_map },
	{ "clearing the log while pages become writable loses no write", test_clear_vs_write },
	{ "resetting a ring while pages are mapped loses no write", test_reset_vs_map },
	{ "resetting a ring while pages become writable loses no write", test_reset_vs_write },
	{ "clearing the log does not wait for populating", test_clear_beside },
	{ "resetting a ring does not wait for populating", test_reset_beside },
	{ "what is written beside a prefault is logged", test_prefault },
	{ "looking at much memory lets others run", test_yield },
	{ "looking at much memory lets others change memslots", test_brief },
};

/* Takes part of the name of a test, to leave out all others. */
int main(int argc, char *argv[])
{
	gtdp_require(KVM_GLOBAL_TDP_POPULATE);
	gtdp_run_some_tests(tests, ARRAY_SIZE(tests), argc > 1 ? argv[1] : NULL);
}
