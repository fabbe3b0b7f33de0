// SPDX-License-Identifier: GPL-2.0
/*
 * Proves that what is behind a memslot may become another kind of mapping while
 * it is populated: at no time is memory mapped for the guest that the kernel
 * itself must not access (secretmem), or that is a device's, whatever was there
 * when population began.
 */
#include <fcntl.h>
#include <pthread.h>
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
 * populated: regions of their own, a page of each of which is there.
 */
#define PART_SIZE	SZ_64K
#define PART_PAGES	(PART_SIZE / PAGE_SIZE)
#define NR_REGIONS	8ul
#define REST_SIZE	(NR_REGIONS * SZ_2M)
#define MEM_SIZE	(REST_SIZE + PART_SIZE)

/* From one place of the memslot to the next, in each round. */
#define DISTANCE	SZ_32M

#define HOST_TAG	1
#define ROUNDS		16

/* The BIOS, of which any PC has one. */
#define BIOS_ADDRESS	0xf0000

struct env {
	struct kvm_vm *vm;
	struct kvm_vcpu *vcpu;
	struct gtdp_mem mem;
	uint64_t nr_code;
	uint64_t gpa;
	/* What is mapped in place of the end: a file, in the way it allows. */
	int fd;
	int prot;
	off_t offset;
	/* The populator is to make a call, which has not come to its end. */
	bool calling;
	bool stop;
};

/* Makes a call whenever it is told to. */
static void *populator(void *arg)
{
	struct kvm_populate_memory range;
	struct env *env = arg;
	int r;

	while (!READ_ONCE(env->stop)) {
		if (!READ_ONCE(env->calling)) {
			usleep(100);
			continue;
		}

		range = (struct kvm_populate_memory) { .gpa = env->gpa, .size = MEM_SIZE };
		r = __vm_ioctl(env->vm, KVM_POPULATE_MEMORY, &range);
		TEST_ASSERT(!r || errno == EAGAIN || errno == EINTR,
			    KVM_IOCTL_ERROR(KVM_POPULATE_MEMORY, r));
		WRITE_ONCE(env->calling, false);
	}

	return NULL;
}

static uint64_t nr_mapped(struct env *env)
{
	return gtdp_nr_mapped(env->vm) - env->nr_code;
}

/* All of it is one mapping of memory, which is present, and nothing is mapped of it. */
static void make_anonymous(struct env *env)
{
	void *map = mmap(env->mem.hva, MEM_SIZE, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	uint64_t i;

	TEST_ASSERT(map == env->mem.hva, __KVM_SYSCALL_ERROR("mmap()", -1));
	if (thp_configured())
		madvise(map, MEM_SIZE, MADV_NOHUGEPAGE);
	for (i = 0; i < NR_REGIONS; i++)
		gtdp_stamp(map + i * SZ_2M, 1, HOST_TAG);
	gtdp_stamp(map + REST_SIZE, PART_PAGES, HOST_TAG);

	/* Where there are no page tables yet: it takes some time to build them. */
	env->gpa += DISTANCE;
	gtdp_add_slot(env->vm, GTDP_SLOT, 0, env->gpa, &env->mem);
}

static bool make_special(struct env *env)
{
	void *part = env->mem.hva + REST_SIZE;

	return mmap(part, PART_SIZE, env->prot, MAP_SHARED | MAP_FIXED | MAP_POPULATE,
		    env->fd, env->offset) == part;
}

static void env_create(struct env *env)
{
	gtdp_mem_alloc(&env->mem, GTDP_ANON, MEM_SIZE, 0);
	env->vm = gtdp_vm_create(KVM_GLOBAL_TDP_POPULATE, 1, &env->vcpu);
	gtdp_populate_code(env->vm);
	env->nr_code = gtdp_nr_mapped(env->vm);
	env->gpa = GTDP_GPA;
	gtdp_add_slot(env->vm, GTDP_SLOT, 0, env->gpa, &env->mem);
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
	gtdp_populate(env->vm, env->gpa, MEM_SIZE);
	TEST_ASSERT_EQ(nr_mapped(env), NR_REGIONS + PART_PAGES);
	TEST_ASSERT_EQ(gtdp_run(env->vcpu, GTDP_CHECK, env->gpa + REST_SIZE, PART_PAGES,
				HOST_TAG), 0);
}

/*
 * The other kind takes the place of memory that is mapped, or that somebody is
 * just about to map: neither of them is mapped now.
 */
static bool test_kind(struct env *env)
{
	pthread_t thread;
	int i;

	env_create(env);
	if (!make_special(env)) {
		ksft_print_msg("can't be mapped: %s\n", strerror(errno));
		env_destroy(env);
		return false;
	}

	pthread_create(&thread, NULL, populator, env);
	for (i = 0; i < ROUNDS; i++) {
		make_anonymous(env);
		if (i % 4) {
			WRITE_ONCE(env->calling, true);
			gtdp_wait_until(nr_mapped(env));
		} else {
			check_anonymous(env);
		}

		TEST_ASSERT(make_special(env), __KVM_SYSCALL_ERROR("mmap()", -1));
		gtdp_wait_until(!READ_ONCE(env->calling));
		gtdp_populate(env->vm, env->gpa, MEM_SIZE);
		TEST_ASSERT_EQ(nr_mapped(env), NR_REGIONS);
	}
	WRITE_ONCE(env->stop, true);
	pthread_join(thread, NULL);

	env_destroy(env);
	return true;
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
