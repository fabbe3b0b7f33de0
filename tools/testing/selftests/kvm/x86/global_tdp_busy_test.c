// SPDX-License-Identifier: GPL-2.0
/*
 * Proves what KVM_POPULATE_MEMORY does where something else is being done: memory
 * that the host is about to change, and a memslot that is about to go, are left
 * alone, with EAGAIN, from which the same call goes on later; roots that are being
 * zapped are not used; and threads that populate the same memory at the same time
 * don't keep each other from it.
 *
 * What is being done takes the kernel a while, in which it lets others run.  So
 * the thread that populates has priority on the only CPU of both, and gets there
 * in the midst of it.
 */
#include <pthread.h>
#include <sched.h>
#include <unistd.h>
#include <sys/mman.h>

#include <linux/mman.h>

#include "test_util.h"
#include "kvm_util.h"
#include "processor.h"
#include "global_tdp.h"

#define MEM_SIZE	SZ_64M
#define NR_PAGES	(MEM_SIZE / PAGE_SIZE)

/* Memory in front of it, in a memslot of its own, to which nothing happens. */
#define FRONT_SIZE	SZ_2M
#define FRONT_PAGES	(FRONT_SIZE / PAGE_SIZE)
#define MEM_SLOT	(GTDP_SLOT + 1)
#define MEM_GPA		(GTDP_GPA + FRONT_SIZE)

#define HOST_TAG	1

/* Between attempts to get into the midst, and how many there are to be. */
#define POLL_USECS	200
#define MAX_POLLS	30000
#define NR_HITS		10

#define NR_THREADS	4
#define ROUNDS		5
/* Of threads that are to meet: on a busy machine, most don't. */
#define MEETINGS	20

struct env {
	struct kvm_vm *vm;
	struct kvm_vcpu *vcpu;
	struct gtdp_mem front, mem;
	/* What is mapped of the front and the guest's code. */
	u64 nr_others;
	cpu_set_t cpus;
	bool stop;
	/* Huge pages are not executable, and whether that could be changed. */
	bool forced;
	bool toggled;
};

static void env_create(struct env *env)
{
	*env = (struct env) {};
	gtdp_mem_alloc(&env->front, GTDP_ANON, FRONT_SIZE, 0);
	gtdp_mem_alloc(&env->mem, GTDP_ANON, MEM_SIZE, 0);
	gtdp_stamp(env->front.hva, FRONT_PAGES, HOST_TAG);
	gtdp_stamp(env->mem.hva, NR_PAGES, HOST_TAG + FRONT_PAGES);

	env->vm = gtdp_vm_create(KVM_GLOBAL_TDP_POPULATE, 1, &env->vcpu);
	gtdp_populate_code(env->vm);
	gtdp_add_slot(env->vm, GTDP_SLOT, 0, GTDP_GPA, &env->front);
	gtdp_add_slot(env->vm, MEM_SLOT, 0, MEM_GPA, &env->mem);
	gtdp_populate_full(env->vm, GTDP_GPA, FRONT_SIZE);
	env->nr_others = gtdp_nr_mapped(env->vm);
}

static void env_destroy(struct env *env)
{
	kvm_vm_free(env->vm);
	gtdp_mem_free(&env->front);
	gtdp_mem_free(&env->mem);
}

/* From now on, another thread runs only while this one sleeps. */
static bool go_first(struct env *env)
{
	const struct sched_param param = { .sched_priority = 1 };
	cpu_set_t cpu;
	int r;

	sched_getaffinity(0, sizeof(env->cpus), &env->cpus);
	CPU_ZERO(&cpu);
	CPU_SET(sched_getcpu(), &cpu);
	r = sched_setaffinity(0, sizeof(cpu), &cpu);
	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("sched_setaffinity()", r));

	if (!sched_setscheduler(0, SCHED_FIFO | SCHED_RESET_ON_FORK, &param))
		return true;

	ksft_print_msg("no permission to go first\n");
	return false;
}

static void go_along(struct env *env)
{
	const struct sched_param param = {};

	sched_setscheduler(0, SCHED_OTHER, &param);
	sched_setaffinity(0, sizeof(env->cpus), &env->cpus);
}

static int populate(struct env *env, struct kvm_populate_memory *range)
{
	return __vm_ioctl(env->vm, KVM_POPULATE_MEMORY, range) ? errno : 0;
}

/* Takes all of the memory away, but that in front, time after time. */
static void *discarder(void *arg)
{
	struct env *env = arg;
	int r;

	while (!READ_ONCE(env->stop)) {
		r = madvise(env->mem.hva, MEM_SIZE, MADV_DONTNEED);
		TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("madvise()", r));
		r = madvise(env->mem.hva, MEM_SIZE, MADV_POPULATE_READ);
		TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("madvise()", r));
	}

	return NULL;
}

/* Returns whether the memory was just being taken away. */
static bool populate_in_midst(struct env *env)
{
	struct kvm_populate_memory range = {
		.gpa = GTDP_GPA,
		.size = FRONT_SIZE + PAGE_SIZE,
	};
	int err = populate(env, &range);

	if (!err) {
		TEST_ASSERT_EQ(range.mapped + range.absent, FRONT_SIZE + PAGE_SIZE);
		return false;
	}

	/* It has moved over what is as it was, and can go on. */
	TEST_ASSERT_EQ(err, EAGAIN);
	TEST_ASSERT_EQ(range.gpa, MEM_GPA);
	TEST_ASSERT_EQ(range.size, PAGE_SIZE);
	TEST_ASSERT_EQ(range.mapped, FRONT_SIZE);
	TEST_ASSERT_EQ(range.absent, 0);
	return true;
}

static bool test_changed(void)
{
	pthread_t thread;
	int i, hits = 0;
	struct env env;
	bool first;

	env_create(&env);
	first = go_first(&env);
	pthread_create(&thread, NULL, discarder, &env);
	for (i = 0; i < MAX_POLLS && hits < NR_HITS && first; i++) {
		usleep(POLL_USECS);
		hits += populate_in_midst(&env);
	}
	WRITE_ONCE(env.stop, true);
	pthread_join(thread, NULL);
	go_along(&env);
	TEST_ASSERT(!first || hits == NR_HITS, "Only %d hits in %d attempts", hits, i);

	/* All is mapped in the end, whatever it was that was in the way. */
	gtdp_stamp(env.mem.hva, NR_PAGES, HOST_TAG + FRONT_PAGES);
	gtdp_populate_full(env.vm, GTDP_GPA, FRONT_SIZE + MEM_SIZE);
	TEST_ASSERT_EQ(gtdp_run(env.vcpu, GTDP_CHECK, GTDP_GPA, FRONT_PAGES + NR_PAGES,
				HOST_TAG), 0);
	env_destroy(&env);
	return first;
}

static void *deleter(void *arg)
{
	struct env *env = arg;

	gtdp_delete_slot(env->vm, MEM_SLOT);
	return NULL;
}

/*
 * Populate as long as the memslot is there: first it is mapped, then it is about
 * to go, and then it has gone.  Returns how often it was about to.
 */
static int populate_until_gone(struct env *env)
{
	struct kvm_populate_memory range;
	int err = 0, hits = 0, polls = 0;

	do {
		TEST_ASSERT(polls++ < MAX_POLLS, "Still there, after EAGAIN %d times", hits);
		range = (struct kvm_populate_memory) { .gpa = MEM_GPA, .size = MEM_SIZE };
		err = populate(env, &range);
		TEST_ASSERT(err == EAGAIN || err == ENOENT || (!err && !hits),
			    "After EAGAIN %d times: %d", hits, err);
		if (err)
			TEST_ASSERT_EQ(range.mapped, 0);
		hits += err == EAGAIN;
		usleep(POLL_USECS);
	} while (err != ENOENT);

	return hits;
}

static bool test_deleted(void)
{
	int i, hits = 0;
	pthread_t thread;
	struct env env;
	bool first;

	env_create(&env);
	first = go_first(&env);
	for (i = 0; i < ROUNDS && first; i++) {
		gtdp_populate_full(env.vm, MEM_GPA, MEM_SIZE);
		pthread_create(&thread, NULL, deleter, &env);
		hits += populate_until_gone(&env);
		pthread_join(thread, NULL);
		TEST_ASSERT_EQ(gtdp_nr_mapped(env.vm), env.nr_others);
		gtdp_add_slot(env.vm, MEM_SLOT, 0, MEM_GPA, &env.mem);
	}
	go_along(&env);
	TEST_ASSERT(!first || hits, "Nobody met a memslot that was about to go");

	env_destroy(&env);
	return first;
}

/* Has KVM invalidate all roots, and zap them, which takes a while. */
static void *toggler(void *arg)
{
	struct env *env = arg;

	env->forced = !env->forced;
	env->toggled = gtdp_set_param("nx_huge_pages", env->forced ? "force" : "off");
	WRITE_ONCE(env->stop, true);
	return NULL;
}

/*
 * What is populated while all roots are being zapped gets into a new one, and is
 * still there when they have gone: it is all that is mapped then.  (The last call
 * may have come too early, or nothing been left to zap: then nothing is mapped.)
 */
static bool test_invalidated(void)
{
	const u64 size = FRONT_SIZE + MEM_SIZE;
	int i, hits = 0, polls;
	pthread_t thread;
	struct env env;
	u64 mapped;
	bool first;

	/* It may be on: from here on, each change is one.  It fails if it is "never". */
	if (!gtdp_set_param("nx_huge_pages", "off"))
		return false;

	env_create(&env);
	env.toggled = true;
	first = go_first(&env);
	for (i = 0; i < ROUNDS && first && env.toggled; i++) {
		gtdp_populate_full(env.vm, GTDP_GPA, size);
		WRITE_ONCE(env.stop, false);
		pthread_create(&thread, NULL, toggler, &env);
		for (polls = 0; polls < MAX_POLLS && !READ_ONCE(env.stop); polls++) {
			usleep(POLL_USECS);
			if (READ_ONCE(env.stop))
				break;
			gtdp_populate_full(env.vm, GTDP_GPA, FRONT_SIZE);
		}
		TEST_ASSERT(READ_ONCE(env.stop), "No end after %d calls", polls);
		pthread_join(thread, NULL);

		mapped = gtdp_nr_mapped(env.vm);
		TEST_ASSERT(!mapped || mapped == FRONT_PAGES,
			    "%lu pages are mapped, of %llu", mapped, FRONT_PAGES);
		hits += !!mapped;
		gtdp_populate_code(env.vm);
		gtdp_populate_full(env.vm, GTDP_GPA, size);
		TEST_ASSERT_EQ(gtdp_nr_mapped(env.vm), env.nr_others + NR_PAGES);
		TEST_ASSERT_EQ(gtdp_run(env.vcpu, GTDP_CHECK, GTDP_GPA,
					FRONT_PAGES + NR_PAGES, HOST_TAG), 0);
	}
	go_along(&env);
	gtdp_restore_params();
	TEST_ASSERT(!first || !env.toggled || hits, "Nobody met a root that was being zapped");

	env_destroy(&env);
	return first && env.toggled;
}

struct populator {
	pthread_t thread;
	struct env *env;
	pthread_barrier_t *barrier;
};

static void *populate_all(void *arg)
{
	struct populator *populator = arg;

	pthread_barrier_wait(populator->barrier);
	gtdp_populate_full(populator->env->vm, MEM_GPA, MEM_SIZE);
	return NULL;
}

/* Have what is mapped zapped, and leave the memory as it is. */
static void zap(struct env *env)
{
	int r = mprotect(env->mem.hva, MEM_SIZE, PROT_READ);

	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("mprotect()", r));
	r = mprotect(env->mem.hva, MEM_SIZE, PROT_READ | PROT_WRITE);
	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("mprotect()", r));
}

/* Each of them is told that all is mapped, which was done, and is counted, once. */
static bool test_same(void)
{
	struct populator populators[NR_THREADS];
	pthread_barrier_t barrier;
	u64 populated;
	struct env env;
	int i, round;

	env_create(&env);
	pthread_barrier_init(&barrier, NULL, NR_THREADS);
	for (round = 0; round < MEETINGS; round++) {
		populated = gtdp_nr_populated(env.vm);
		for (i = 0; i < NR_THREADS; i++) {
			populators[i].env = &env;
			populators[i].barrier = &barrier;
			pthread_create(&populators[i].thread, NULL, populate_all, &populators[i]);
		}
		for (i = 0; i < NR_THREADS; i++)
			pthread_join(populators[i].thread, NULL);
		TEST_ASSERT_EQ(gtdp_nr_mapped(env.vm), env.nr_others + NR_PAGES);
		TEST_ASSERT_EQ(gtdp_nr_populated(env.vm), populated + NR_PAGES);
		zap(&env);
	}

	pthread_barrier_destroy(&barrier);
	env_destroy(&env);
	return true;
}

static const struct gtdp_test tests[] = {
	{ "memory is just being changed", test_changed },
	{ "memslot is just being deleted", test_deleted },
	{ "memory is just being populated", test_same },
	{ "roots are just being zapped", test_invalidated },
};

/* Takes part of the name of a test, to leave out all others. */
int main(int argc, char *argv[])
{
	gtdp_require(KVM_GLOBAL_TDP_POPULATE);
	gtdp_run_some_tests(tests, ARRAY_SIZE(tests), argc > 1 ? argv[1] : NULL);
}
