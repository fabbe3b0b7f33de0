// SPDX-License-Identifier: GPL-2.0
/*
 * Proves that what is behind a memslot may become another kind of mapping while
 * it is populated: at no time is memory mapped for the guest that the kernel
 * itself must not access (secretmem), or that is a device's, whatever was there
 * when population began.
 */
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "test_util.h"
#include "kvm_util.h"
#include "processor.h"
#include "global_tdp.h"

/*
 * Memory of which the end becomes another kind of mapping while the rest is being
 * populated.  The rest is regions with a page in each, of which all but the first
 * are mapped before: to look at one of them, which is nearly all holes, takes a
 * while and gains nothing, so a call has a long way from the first region, whose
 * page tells that it has looked at the mapping, to the end.  No more regions than
 * it looks at without looking for the memslot, and the mapping, anew.
 */
#define PART_SIZE	((u64)PAGE_SIZE)
#define PART_PAGES	(PART_SIZE / PAGE_SIZE)
#define NR_REGIONS	200ul
#define REST_SIZE	(NR_REGIONS * SZ_2M)
#define MEM_SIZE	(REST_SIZE + PART_SIZE)

#define HOST_TAG	1

/*
 * Attempts, and calls that are to be met in their midst: how many are depends on
 * how long a look takes, and on how soon another CPU notices that they have begun.
 */
#define MIN_TRIES	20
#define MIN_HITS	1

/* Of those that the test may use: for the calls, and for what happens meanwhile. */
#define CALLING_CPU	0
#define CHANGING_CPU	1

/* The BIOS, of which any PC has one. */
#define BIOS_ADDRESS	0xf0000

struct env {
	struct kvm_vm *vm;
	struct kvm_vcpu *vcpu;
	struct gtdp_mem mem;
	u64 nr_code;
	/* What is mapped in place of the end: a file, in the way it allows. */
	int fd;
	int prot;
	off_t offset;
	/* The populator is to make a call, which has not come to its end. */
	bool calling;
	bool stop;
	cpu_set_t cpus;
};

/* As a call on the same CPU would come to a good place to be interrupted at. */
static void pin(struct env *env, int which)
{
	cpu_set_t cpu;
	int i, r;

	for (i = 0; which || !CPU_ISSET(i, &env->cpus); i++)
		which -= !!CPU_ISSET(i, &env->cpus);
	CPU_ZERO(&cpu);
	CPU_SET(i, &cpu);
	r = sched_setaffinity(0, sizeof(cpu), &cpu);
	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("sched_setaffinity()", r));
}

/* Makes a call whenever it is told to. */
static void *populator(void *arg)
{
	struct kvm_populate_memory range;
	struct env *env = arg;
	int r;

	pin(env, CALLING_CPU);
	while (!READ_ONCE(env->stop)) {
		if (!READ_ONCE(env->calling)) {
			usleep(100);
			continue;
		}

		range = (struct kvm_populate_memory) { .gpa = GTDP_GPA, .size = MEM_SIZE };
		r = __vm_ioctl(env->vm, KVM_POPULATE_MEMORY, &range);
		TEST_ASSERT(!r || errno == EAGAIN || errno == EINTR,
			    KVM_IOCTL_ERROR(KVM_POPULATE_MEMORY, r));
		WRITE_ONCE(env->calling, false);
	}

	return NULL;
}

static u64 nr_mapped(struct env *env)
{
	return gtdp_nr_mapped(env->vm) - env->nr_code;
}

static void map_anonymous(void *hva, u64 size)
{
	void *map = mmap(hva, size, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);

	TEST_ASSERT(map == hva, __KVM_SYSCALL_ERROR("mmap()", -1));
	if (thp_configured())
		madvise(hva, size, MADV_NOHUGEPAGE);
}

/*
 * All of it is one mapping of memory, with a page in each region, of which all are
 * mapped but that in the first region.  There is none at the end: to take it away,
 * one would have to wait for the CPU that is to be met in the midst of a call.
 */
static void make_anonymous(struct env *env)
{
	u64 i;

	map_anonymous(env->mem.hva, MEM_SIZE);
	for (i = 0; i < NR_REGIONS; i++)
		gtdp_stamp(env->mem.hva + i * SZ_2M, 1, HOST_TAG);

	gtdp_populate(env->vm, GTDP_GPA + SZ_2M, REST_SIZE - SZ_2M);
	TEST_ASSERT_EQ(nr_mapped(env), NR_REGIONS - 1);
}

/* The same again, where only the end is another kind: it joins what is before it. */
static void make_end_anonymous(struct env *env)
{
	int r;

	map_anonymous(env->mem.hva + REST_SIZE, PART_SIZE);

	r = madvise(env->mem.hva, PAGE_SIZE, MADV_DONTNEED);
	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("madvise()", r));
	gtdp_stamp(env->mem.hva, 1, HOST_TAG);
	TEST_ASSERT_EQ(nr_mapped(env), NR_REGIONS - 1);
}

static bool make_special(struct env *env)
{
	void *part = env->mem.hva + REST_SIZE;
	int i;

	if (mmap(part, PART_SIZE, env->prot, MAP_SHARED | MAP_FIXED, env->fd,
		 env->offset) != part)
		return false;

	/* It has to be present, which MAP_POPULATE does not do with secretmem. */
	for (i = 0; i < PART_PAGES; i++)
		READ_ONCE(*(char *)(part + i * PAGE_SIZE));
	return true;
}

static void env_create(struct env *env)
{
	gtdp_mem_alloc(&env->mem, GTDP_ANON, MEM_SIZE, 0);
	env->vm = gtdp_vm_create(KVM_GLOBAL_TDP_POPULATE, 1, &env->vcpu);
	gtdp_populate_code(env->vm);
	env->nr_code = gtdp_nr_mapped(env->vm);
	gtdp_add_slot(env->vm, GTDP_SLOT, 0, GTDP_GPA, &env->mem);
}

static void env_destroy(struct env *env)
{
	kvm_vm_free(env->vm);
	gtdp_mem_free(&env->mem);
	close(env->fd);
}

/* An ordinary mapping, having been another one, is mapped as ever. */
static void check_anonymous(struct env *env)
{
	gtdp_stamp(env->mem.hva + REST_SIZE, PART_PAGES, HOST_TAG);
	gtdp_populate(env->vm, GTDP_GPA, MEM_SIZE);
	TEST_ASSERT_EQ(nr_mapped(env), NR_REGIONS + PART_PAGES);
	TEST_ASSERT_EQ(gtdp_run(env->vcpu, GTDP_CHECK, GTDP_GPA + REST_SIZE, PART_PAGES,
				HOST_TAG), 0);
}

/* The end is not mapped, whether a call says so or what is counted. */
static void check_special(struct env *env)
{
	gtdp_populate(env->vm, GTDP_GPA, MEM_SIZE);
	TEST_ASSERT_EQ(nr_mapped(env), NR_REGIONS);
}

/* Have a call made, and wait for it to map the first region. */
static void start_call(struct env *env)
{
	u64 before = vm_get_stat(env->vm, pages_4k);

	/*
	 * Look at no file meanwhile, as others of these tests do: mappings would be
	 * changed, which the call does not wait for.  It may end without the region.
	 */
	WRITE_ONCE(env->calling, true);
	__gtdp_wait_until(vm_get_stat(env->vm, pages_4k) != before ||
			  !READ_ONCE(env->calling), 0);
}

/* Returns whether the end has become special in the midst of a call. */
static bool change_in_midst(struct env *env)
{
	bool hit;

	make_end_anonymous(env);
	start_call(env);
	TEST_ASSERT(make_special(env), __KVM_SYSCALL_ERROR("mmap()", -1));
	hit = READ_ONCE(env->calling);

	gtdp_wait_until(!READ_ONCE(env->calling));
	check_special(env);
	return hit;
}

static void change_while_called(struct env *env)
{
	time_t end = time(NULL) + GTDP_WAIT_SECONDS;
	pthread_t thread;
	int i, hits = 0;

	pthread_create(&thread, NULL, populator, env);
	pin(env, CHANGING_CPU);
	for (i = 0; i < MIN_TRIES || (hits < MIN_HITS && time(NULL) < end); i++)
		hits += change_in_midst(env);
	WRITE_ONCE(env->stop, true);
	pthread_join(thread, NULL);
	sched_setaffinity(0, sizeof(env->cpus), &env->cpus);

	ksft_print_msg("%d of %d calls were met in their midst\n", hits, i);
	TEST_ASSERT(hits >= MIN_HITS, "Only %d of %d calls", hits, i);
}

/*
 * The other kind takes the place of memory that is mapped, or that somebody is
 * just about to map: neither of them is mapped now.
 */
static bool test_kind(struct env *env)
{
	bool has_cpu;

	sched_getaffinity(0, sizeof(env->cpus), &env->cpus);
	has_cpu = CPU_COUNT(&env->cpus) > 1;
	env_create(env);
	if (!make_special(env)) {
		ksft_print_msg("can't be mapped: %s\n", strerror(errno));
		env_destroy(env);
		return false;
	}

	make_anonymous(env);
	check_anonymous(env);
	TEST_ASSERT(make_special(env), __KVM_SYSCALL_ERROR("mmap()", -1));
	check_special(env);

	if (has_cpu)
		change_while_called(env);
	else
		ksft_print_msg("no CPU for a call in the midst of which to change it\n");

	env_destroy(env);
	return has_cpu;
}

static bool test_secret(void)
{
	struct env env = {
		.fd = syscall(__NR_memfd_secret, 0),
		.prot = PROT_READ | PROT_WRITE,
	};
	int r;

	if (env.fd < 0) {
		ksft_print_msg("no secretmem: %s\n", strerror(errno));
		return false;
	}
	r = ftruncate(env.fd, PART_SIZE);
	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("ftruncate()", r));

	return test_kind(&env);
}

static bool test_device(void)
{
	struct env env = {
		.fd = open("/dev/mem", O_RDONLY),
		.prot = PROT_READ,
		.offset = BIOS_ADDRESS,
	};

	if (env.fd < 0) {
		ksft_print_msg("no /dev/mem: %s\n", strerror(errno));
		return false;
	}

	return test_kind(&env);
}

static const struct gtdp_test tests[] = {
	{ "memory becomes secret", test_secret },
	{ "memory becomes a device's", test_device },
};

int main(void)
{
	gtdp_require(KVM_GLOBAL_TDP_POPULATE);
	gtdp_run_tests(tests, ARRAY_SIZE(tests));
}
