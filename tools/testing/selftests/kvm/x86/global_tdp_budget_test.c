// SPDX-License-Identifier: GPL-2.0
/*
 * Proves what a VM's follower costs its host at most, as Documentation promises:
 * how often it wakes up, and for how long it has a CPU.  All VMs are watched
 * during the same minute, a second at a time.  What is counted is the follower's
 * own, per time that has passed, so it does not matter how busy the host is.
 */
#include <time.h>
#include <unistd.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "test_util.h"
#include "kvm_util.h"
#include "processor.h"
#include "global_tdp.h"

#define SECONDS		60
/* All that comes of a zap is within so many seconds. */
#define ZAP_SECONDS	17
#define ZAP_WAKEUPS	6
/* The share of a CPU that wasted scans have, over any so many seconds. */
#define VAIN_SECONDS	10
#define VAIN_SHARE	16
/* And how often they wake up each second, as they rest for 250ms and more. */
#define VAIN_WAKEUPS	6

#define MEM_SIZE	SZ_32M
#define NR_PAGES	(MEM_SIZE / PAGE_SIZE)

/* Memory of which a page is taken each second, and regions in it that are touched. */
#define BALLOON_SIZE	(16ul * SZ_1G)
#define NR_BALLOONS	64ul

/*
 * Memslots of the same memory, 4GiB of it: a pass, and the pause after it, are shorter than
 * VAIN_SECONDS on an emulated CPU.  On a fast one, that of 250ms is the longer pause.
 */
#define NR_VAIN		(4ul * SZ_1G / MEM_SIZE)
#define VAIN_STEP	64
/* Memslots that come meanwhile, and the part of a pass that each waits for at most. */
#define NR_NEW		8
#define NEW_SHARE	4

/* Memory that arrives, so many pages of a region at a time. */
#define NR_STEPS	20
#define ARRIVING_PAGES	128
#define ARRIVING_SIZE	(SECONDS * NR_STEPS * (u64)SZ_2M)
/* The share of a CPU to map it. */
#define ARRIVING_SHARE	2

/* For so long a VM has waited for memory, until it wakes up so often each second. */
#define WAITING_SECONDS	30
#define WAITING_WAKEUPS	1

/*
 * Memory that takes long to pass over, none of which is there, and the seconds in which
 * it has been looked for, as wasted scans are throttled.
 */
#define LARGE_SIZE	(256ul * SZ_1G)
#define LARGE_SECONDS	45

#define NR_IDLE		200

/* Seconds without a wake-up before which a follower does not count as asleep. */
#define QUIET_SECONDS	17
#define QUIET_ATTEMPTS	60

#define MAX_THREADS	8

struct subject {
	struct kvm_vm *vm;
	struct kvm_vcpu *vcpu;
	struct gtdp_mem mem;
	/* The VM's threads of KVM. */
	pid_t tids[MAX_THREADS];
	int nr_tids;
	/* As each second ends; the first is when the minute begins. */
	u64 wakeups[SECONDS + 1];
	u64 cpu_ns[SECONDS + 1];
};

/* When that was, by the clock. */
static u64 clock_ns[SECONDS + 1];

static struct subject rest, zapped, balloon, vain, arriving, large, idle[NR_IDLE];

static struct subject *const watched[] = {
	&rest, &zapped, &balloon, &vain, &arriving, &large,
};

static u64 nr_wakeups(const struct subject *s)
{
	u64 nr = 0;
	int i;

	for (i = 0; i < s->nr_tids; i++)
		nr += gtdp_nr_sleeps(s->tids[i]);
	return nr;
}

static u64 cpu_ns(const struct subject *s)
{
	u64 ns = 0;
	int i;

	for (i = 0; i < s->nr_tids; i++)
		ns += gtdp_cpu_time(s->tids[i]);
	return ns;
}

static u64 now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * NSEC_PER_SEC + now.tv_nsec;
}

/* Those that came since the last call; the kernel lists them in that order. */
static void claim_threads(struct subject *s)
{
	static pid_t tids[NR_IDLE + 4 * MAX_THREADS];
	static int nr_before;
	int i, nr;

	nr = gtdp_kernel_threads(tids, ARRAY_SIZE(tids));
	TEST_ASSERT(nr > nr_before && nr <= nr_before + MAX_THREADS,
		    "%d threads for a VM", nr - nr_before);
	for (i = nr_before; i < nr; i++)
		s->tids[s->nr_tids++] = tids[i];
	nr_before = nr;
}

static void create(struct subject *s)
{
	s->vm = gtdp_vm_create(KVM_GLOBAL_TDP_FOLLOW | KVM_GLOBAL_TDP_POPULATE, 1, &s->vcpu);
}

static void run(struct subject *s)
{
	gtdp_run(s->vcpu, GTDP_READ, GTDP_GPA, 0, 0);
	claim_threads(s);
}

static void discard(struct subject *s, u64 page)
{
	int r = madvise(s->mem.hva + page * PAGE_SIZE, PAGE_SIZE, MADV_DONTNEED);

	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("madvise()", r));
}

/* VMs with a vCPU that has run, whose memory is there, and mapped. */
static void create_present(struct subject *s)
{
	create(s);
	gtdp_mem_alloc(&s->mem, GTDP_ANON, MEM_SIZE, 0);
	gtdp_stamp(s->mem.hva, NR_PAGES, 1);
	gtdp_add_slot(s->vm, GTDP_SLOT, 0, GTDP_GPA, &s->mem);
	gtdp_wait_mapped(s->vm, gtdp_code_size(s->vm) / PAGE_SIZE + NR_PAGES);
	run(s);
}

static u64 balloon_page(u64 second)
{
	const u64 stride = BALLOON_SIZE / NR_BALLOONS / PAGE_SIZE;

	return second * 27 % NR_BALLOONS * stride + second % GTDP_REGION_PAGES;
}

static void create_slot(struct subject *s, u64 size)
{
	create(s);
	s->mem.size = size;
	s->mem.hva = mmap(NULL, size, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	TEST_ASSERT(s->mem.hva != MAP_FAILED, __KVM_SYSCALL_ERROR("mmap()", -1));
	madvise(s->mem.hva, size, MADV_NOHUGEPAGE);
	gtdp_add_slot(s->vm, GTDP_SLOT, 0, GTDP_GPA, &s->mem);
}

static void create_balloon(struct subject *s)
{
	u64 i;

	create_slot(s, BALLOON_SIZE);
	for (i = 0; i < NR_BALLOONS; i++)
		gtdp_stamp(s->mem.hva + i * (BALLOON_SIZE / NR_BALLOONS),
			   GTDP_REGION_PAGES, 1);
	gtdp_wait_mapped(s->vm, gtdp_code_size(s->vm) / PAGE_SIZE +
				NR_BALLOONS * GTDP_REGION_PAGES);
	run(s);
}

/* Of its memslots: those that come later are below the others. */
static u64 vain_gpa(u64 i)
{
	return GTDP_GPA + i * MEM_SIZE;
}

/*
 * A VM that waits for memory, half of which is there in each region.  What arrives is
 * another's, see watch().
 */
static void create_vain(struct subject *s)
{
	u64 i, nr_code;

	create(s);
	nr_code = gtdp_code_size(s->vm) / PAGE_SIZE;
	gtdp_mem_alloc(&s->mem, GTDP_ANON, MEM_SIZE, 0);
	for (i = 0; i < NR_PAGES; i += 2)
		gtdp_stamp(s->mem.hva + i * PAGE_SIZE, 1, 1);
	/* Not all at once: it takes long where there are no other CPUs to do it. */
	for (i = 0; i < NR_VAIN; i++) {
		gtdp_add_slot(s->vm, GTDP_SLOT + i, 0, vain_gpa(NR_NEW + i), &s->mem);
		if (!((i + 1) % VAIN_STEP))
			gtdp_wait_mapped(s->vm, nr_code + (i + 1) * NR_PAGES / 2);
	}
	claim_threads(s);
}

static void create_idle(struct subject *s)
{
	create(s);
	run(s);
}

/*
 * A VM whose vCPU has never run, as of a VMM that was started to be resumed later.
 * It is a process of its own, as others have memory that arrives.
 */
static void waiting_vmm(void)
{
	static struct subject s;
	u64 nr, ns;
	int i;

	/* Nothing is to arrive later, be it this program. */
	TEST_ASSERT(!mlockall(MCL_CURRENT), __KVM_SYSCALL_ERROR("mlockall()", -1));
	create_slot(&s, MEM_SIZE);
	claim_threads(&s);
	for (i = 0; i < 2; i++) {
		nr = nr_wakeups(&s);
		ns = now_ns();
		sleep(WAITING_SECONDS);
		nr = nr_wakeups(&s) - nr;
		ns = now_ns() - ns;
	}
	pr_info("waiting: %lu wake-ups in %lu ms\n", nr, ns / 1000000);
	TEST_ASSERT(nr && nr * NSEC_PER_SEC <= WAITING_WAKEUPS * ns,
		    "%lu wake-ups while a VM waits", nr);
	_exit(0);
}

/* A VM of which a pass takes long. */
static void create_large(struct subject *s)
{
	create_slot(s, LARGE_SIZE);
	run(s);
}

/* Of all that are to be asleep. */
static u64 sum_of_wakeups(void)
{
	u64 nr = nr_wakeups(&rest) + nr_wakeups(&zapped) + nr_wakeups(&balloon) +
		      nr_wakeups(&large);
	int i;

	for (i = 0; i < NR_IDLE; i++)
		nr += nr_wakeups(&idle[i]);
	return nr;
}

static void wait_until_asleep(void)
{
	u64 nr = sum_of_wakeups(), before;
	int quiet = 0, i;

	for (i = 0; quiet < QUIET_SECONDS; i++) {
		TEST_ASSERT(i < QUIET_ATTEMPTS, "The followers don't go to sleep");
		sleep(1);
		before = nr;
		nr = sum_of_wakeups();
		quiet = nr == before ? quiet + 1 : 0;
	}
}

/* Each VM has several files. */
static void allow_files(void)
{
	struct rlimit limit;

	TEST_ASSERT(!getrlimit(RLIMIT_NOFILE, &limit), "getrlimit()");
	limit.rlim_cur = limit.rlim_max;
	TEST_ASSERT(!setrlimit(RLIMIT_NOFILE, &limit), "setrlimit()");
}

static u64 during(const u64 *counts, int first, int last)
{
	return counts[last] - counts[first];
}

/* A minute, in each second of which something happens. */
static void watch(void)
{
	u64 next = now_ns(), i, t;
	struct timespec until;

	for (t = 0; ; t++) {
		clock_ns[t] = now_ns();
		for (i = 0; i < ARRAY_SIZE(watched); i++) {
			watched[i]->wakeups[t] = nr_wakeups(watched[i]);
			watched[i]->cpu_ns[t] = cpu_ns(watched[i]);
		}
		if (t == SECONDS)
			break;

		if (!t) {
			discard(&zapped, NR_PAGES / 2);
			/* As a new memslot is, behind all that is to be passed over. */
			gtdp_populate_async(large.vm, GTDP_GPA + LARGE_SIZE - SZ_2M,
					    PAGE_SIZE);
		}
		discard(&balloon, balloon_page(t));
		for (i = 0; i < NR_STEPS; i++) {
			gtdp_stamp(arriving.mem.hva + (t * NR_STEPS + i) * SZ_2M,
				   ARRIVING_PAGES, 1);
			next += NSEC_PER_SEC / NR_STEPS;
			until.tv_sec = next / NSEC_PER_SEC;
			until.tv_nsec = next % NSEC_PER_SEC;
			clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
		}
	}
}

/* The first sample that is so many seconds later than that of @first. */
static int later(int first, int seconds)
{
	int last = first;

	while (last < SECONDS && during(clock_ns, first, last) < seconds * NSEC_PER_SEC)
		last++;
	return last;
}

/*
 * What is new is mapped at once, however much else is scanned for nothing.
 */
static void check_new(struct subject *s)
{
	const u64 nr_mapped = gtdp_nr_mapped(s->vm), before = gtdp_nr_absent(s->vm);
	u64 i, absent;

	for (i = 0; i < NR_NEW; i++) {
		gtdp_add_slot(s->vm, GTDP_SLOT + NR_VAIN + i, 0,
			      vain_gpa(NR_NEW - 1 - i), &s->mem);
		gtdp_wait_mapped(s->vm, nr_mapped + (i + 1) * NR_PAGES / 2);
	}

	absent = gtdp_nr_absent(s->vm) - before;
	pr_info("%d new memslots: %lu pages in vain\n", NR_NEW, absent);
	TEST_ASSERT(absent <= NR_NEW * NR_VAIN * NR_PAGES / 2 / NEW_SHARE,
		    "%lu pages in vain for what is new", absent);
}

/*
 * The largest share of a CPU of any so many seconds, in millionths, but for the busiest
 * of them if there are more: what a host takes from the CPU of an emulated machine
 * counts as the thread's that had it.
 */
static u64 max_share(const struct subject *s, int seconds)
{
	u64 share = 0, ns, clock, most;
	int t, i, end, busiest;

	for (t = 0; (end = later(t, seconds)) < SECONDS; t++) {
		ns = during(s->cpu_ns, t, end);
		clock = during(clock_ns, t, end);
		for (i = busiest = t, most = 0; i < end; i++) {
			if (during(s->cpu_ns, i, i + 1) > most) {
				most = during(s->cpu_ns, i, i + 1);
				busiest = i;
			}
		}
		if (seconds > 1) {
			ns -= most;
			clock -= during(clock_ns, busiest, busiest + 1);
		}
		share = max(share, ns * 1000000 / clock);
	}

	return share;
}

int main(void)
{
	u64 i, t, nr, ns, absent, nr_code, sleeping = 0, sleeping_ns = 0, idle_ns = 0;
	pid_t waiting_pid;
	int ended, large_ended;

	gtdp_require(KVM_GLOBAL_TDP_FOLLOW | KVM_GLOBAL_TDP_POPULATE);
	allow_files();

	waiting_pid = gtdp_start(NULL, waiting_vmm);

	create_vain(&vain);
	create_slot(&arriving, ARRIVING_SIZE);
	claim_threads(&arriving);
	nr_code = gtdp_code_size(arriving.vm) / PAGE_SIZE;
	create_present(&rest);
	create_present(&zapped);
	create_balloon(&balloon);
	create_large(&large);
	for (i = 0; i < NR_IDLE; i++)
		create_idle(&idle[i]);

	wait_until_asleep();
	for (i = 0; i < NR_IDLE; i++) {
		sleeping += nr_wakeups(&idle[i]);
		sleeping_ns += cpu_ns(&idle[i]);
	}
	absent = gtdp_nr_absent(vain.vm);
	watch();
	absent = gtdp_nr_absent(vain.vm) - absent;
	for (i = 0, nr = 0; i < NR_IDLE; i++) {
		nr += nr_wakeups(&idle[i]);
		idle_ns += cpu_ns(&idle[i]);
	}

	gtdp_wait_mapped(arriving.vm, nr_code + SECONDS * NR_STEPS * ARRIVING_PAGES);

	ended = later(0, ZAP_SECONDS);
	large_ended = later(0, LARGE_SECONDS);
	ns = during(clock_ns, 0, SECONDS);

	pr_info("%lu ms\n", ns / 1000000);
	pr_info("at rest: %lu wake-ups\n", during(rest.wakeups, 0, SECONDS));
	pr_info("a zap: %lu wake-ups in %d s, %lu later\n", during(zapped.wakeups, 0, ended),
		ZAP_SECONDS, during(zapped.wakeups, ended, SECONDS));
	pr_info("a page a second: %lu wake-ups, %lu us\n", during(balloon.wakeups, 0, SECONDS),
		during(balloon.cpu_ns, 0, SECONDS) / 1000);
	pr_info("in vain: %lu ppm of a CPU in any %d s, %lu us, %lu wake-ups, %lu pages\n",
		max_share(&vain, VAIN_SECONDS), VAIN_SECONDS,
		during(vain.cpu_ns, 0, SECONDS) / 1000, during(vain.wakeups, 0, SECONDS), absent);
	pr_info("arriving: %lu ppm of a CPU in any second, %lu us, %lu wake-ups\n",
		max_share(&arriving, 1), during(arriving.cpu_ns, 0, SECONDS) / 1000,
		during(arriving.wakeups, 0, SECONDS));
	pr_info("%d idle VMs: %lu wake-ups\n", NR_IDLE, nr - sleeping);
	pr_info("anew in %lu GiB: %lu wake-ups in %d s, %lu later, %lu us\n",
		LARGE_SIZE / SZ_1G, during(large.wakeups, 0, large_ended), LARGE_SECONDS,
		during(large.wakeups, large_ended, SECONDS),
		during(large.cpu_ns, 0, SECONDS) / 1000);
	for (t = 0; t < SECONDS; t++)
		pr_debug("%lu: zap %lu, balloon %lu, in vain %lu us\n", t,
			 during(zapped.wakeups, t, t + 1), during(balloon.wakeups, t, t + 1),
			 during(vain.cpu_ns, t, t + 1) / 1000);

	TEST_ASSERT_EQ(during(rest.wakeups, 0, SECONDS), 0);
	TEST_ASSERT_EQ(nr - sleeping, 0);
	/* One that never sleeps is never woken up. */
	TEST_ASSERT_EQ(during(rest.cpu_ns, 0, SECONDS), 0);
	TEST_ASSERT_EQ(idle_ns - sleeping_ns, 0);

	nr = during(zapped.wakeups, 0, ended);
	TEST_ASSERT(nr && nr <= ZAP_WAKEUPS, "%lu wake-ups for a zap", nr);
	TEST_ASSERT_EQ(during(zapped.wakeups, ended, SECONDS), 0);
	/* What is new has an end. */
	TEST_ASSERT(during(large.wakeups, 0, large_ended), "Nobody looks at what is new");
	TEST_ASSERT_EQ(during(large.wakeups, large_ended, SECONDS), 0);
	gtdp_check_exit(waiting_pid);

	nr = during(balloon.wakeups, 0, SECONDS);
	/* That of the last page before may have been late. */
	TEST_ASSERT(nr && nr * NSEC_PER_SEC <= 2 * (ns + NSEC_PER_SEC),
		    "%lu wake-ups for %d pages", nr, SECONDS);
	nr = during(balloon.cpu_ns, 0, SECONDS);
	TEST_ASSERT(nr <= ns / 100, "%lu ns for %d pages", nr, SECONDS);

	TEST_ASSERT(absent, "Nothing is looked at in vain");
	nr = max_share(&vain, VAIN_SECONDS);
	TEST_ASSERT(nr && nr <= 1000000 / VAIN_SHARE, "%lu ppm in vain", nr);
	nr = during(vain.wakeups, 0, SECONDS);
	TEST_ASSERT(nr * NSEC_PER_SEC <= VAIN_WAKEUPS * ns, "%lu wake-ups in vain", nr);
	nr = max_share(&arriving, VAIN_SECONDS);
	TEST_ASSERT(nr && nr <= 1000000 / ARRIVING_SHARE, "%lu ppm for what arrives", nr);

	check_new(&vain);

	return 0;
}
