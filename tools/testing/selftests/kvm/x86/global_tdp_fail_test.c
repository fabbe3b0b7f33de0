// SPDX-License-Identifier: GPL-2.0
/*
 * Proves that running out of memory is survived: each single allocation of the
 * calls that build page tables ahead is made to fail, in turn.  The call either
 * does without, or fails with ENOMEM and can be repeated as it is, and the guest
 * finds its memory intact.  Wants a kernel with fault injection, see
 * Documentation/fault-injection/fault-injection.rst.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "test_util.h"
#include "kvm_util.h"
#include "processor.h"
#include "global_tdp.h"

#define FAIL_NTH	"/proc/thread-self/fail-nth"
#define DEBUGFS		"/sys/kernel/debug/"

#define MEM_SIZE	(2 * SZ_2M)
#define NR_PAGES	(MEM_SIZE / PAGE_SIZE)
#define HOST_TAG	1
#define MAX_ATTEMPTS	1000

struct env {
	struct kvm_vm *vm;
	struct kvm_vcpu *vcpu;
	struct gtdp_mem mem;
	struct kvm_populate_memory range;
	u64 features;
	int vcpu_fd;
};

/* The calls that are to fail, and what is to be seen once they succeeded. */
struct call {
	void (*prepare)(struct env *env);
	int (*call)(struct env *env);
	void (*check)(struct env *env);
	/* Before the call may be repeated. */
	unsigned int rest_usecs;
};

static int fail_nth_fd;

static void set_fail_nth(int nth)
{
	char text[16];
	int len = snprintf(text, sizeof(text), "%d", nth);

	TEST_ASSERT(pwrite(fail_nth_fd, text, len, 0) == len, "write to " FAIL_NTH);
}

static int get_fail_nth(void)
{
	char text[16] = "";

	TEST_ASSERT(pread(fail_nth_fd, text, sizeof(text) - 1, 0) > 0,
		    "read from " FAIL_NTH);
	return atoi(text);
}

/* Spare no allocation for its flags, and don't log each failure with a trace. */
static void configure(const char *file, const char *value)
{
	int fd = open(file, O_WRONLY);

	__TEST_REQUIRE(fd >= 0, "No %s", file);
	TEST_ASSERT(write(fd, value, strlen(value)) == (ssize_t)strlen(value),
		    "write to %s", file);
	close(fd);
}

/*
 * Let allocation 1, 2, ... fail, in a new VM each, until there is none left to
 * fail.  Returns how often the call failed of it.
 */
static int fail_each(const struct call *c, enum gtdp_backing backing, u64 features)
{
	int nth, left, r, err, nr_failed = 0;

	for (nth = 1; ; nth++) {
		struct env env = { .features = features };

		if (!gtdp_mem_alloc(&env.mem, backing, MEM_SIZE, 0))
			return -1;
		gtdp_stamp(env.mem.hva, NR_PAGES, HOST_TAG);
		c->prepare(&env);

		set_fail_nth(nth);
		r = c->call(&env);
		err = errno;
		left = get_fail_nth();
		set_fail_nth(0);

		if (r) {
			TEST_ASSERT(!left, "Failed without a failed allocation, errno %d", err);
			TEST_ASSERT(r == -1 && err == ENOMEM,
				    "Allocation %d failed: returned %d, errno %d", nth, r, err);
			nr_failed++;

			usleep(c->rest_usecs);
			r = c->call(&env);
			TEST_ASSERT(!r, "Not to be repeated after allocation %d failed: errno %d",
				    nth, errno);
		}
		c->check(&env);

		kvm_vm_free(env.vm);
		gtdp_mem_free(&env.mem);
		if (left)
			break;
	}

	pr_info("%d allocations, %d of them fatal to the call\n", nth - 1, nr_failed);
	return nr_failed;
}

static bool run_call(const struct call *c, enum gtdp_backing backing, u64 features)
{
	int nr_failed = fail_each(c, backing, features);

	TEST_ASSERT(nr_failed, "No failed allocation was noticed");
	return nr_failed > 0;
}

static void check_memory(struct env *env)
{
	gtdp_run(env->vcpu, GTDP_CHECK, GTDP_GPA, NR_PAGES, HOST_TAG);
	gtdp_run(env->vcpu, GTDP_STAMP, GTDP_GPA, NR_PAGES, HOST_TAG + 1);
	gtdp_check(env->mem.hva, NR_PAGES, HOST_TAG + 1);
}

static void create_vm(struct env *env)
{
	env->vm = gtdp_vm_create(env->features, 1, &env->vcpu);
}

static void create_vm_and_slot(struct env *env)
{
	create_vm(env);
	gtdp_add_slot(env->vm, GTDP_SLOT, 0, GTDP_GPA, &env->mem);
}

static void create_vm_to_populate(struct env *env)
{
	create_vm_and_slot(env);
	env->range.gpa = GTDP_GPA;
	env->range.size = MEM_SIZE;
}

static void create_vm_to_log(struct env *env)
{
	create_vm_to_populate(env);
	gtdp_add_slot(env->vm, GTDP_SLOT, KVM_MEM_LOG_DIRTY_PAGES, GTDP_GPA, &env->mem);
}

/* Each call, failed or not, accounts for what it moved over, and no more. */
static int populate(struct env *env)
{
	struct kvm_populate_memory sum;
	int err = gtdp_populate_on(env->vm, &env->range, &sum);

	TEST_ASSERT_EQ(sum.absent, 0);
	errno = err;
	return err ? -1 : 0;
}

static void check_populated(struct env *env)
{
	TEST_ASSERT_EQ(env->range.size, 0);
	gtdp_populate_code(env->vm);
	TEST_ASSERT_EQ(gtdp_run(env->vcpu, GTDP_CHECK, GTDP_GPA, NR_PAGES, HOST_TAG), 0);
	check_memory(env);
}

static const struct call populate_call = {
	create_vm_to_populate, populate, check_populated
};

static const struct call populate_logged_call = {
	create_vm_to_log, populate, check_populated
};

static bool test_populate(void)
{
	return run_call(&populate_call, GTDP_ANON, KVM_GLOBAL_TDP_POPULATE);
}

static bool test_populate_thp(void)
{
	return run_call(&populate_call, GTDP_THP, KVM_GLOBAL_TDP_POPULATE);
}

static bool test_populate_logged(void)
{
	return run_call(&populate_logged_call, GTDP_ANON, KVM_GLOBAL_TDP_POPULATE);
}

static int add_slot(struct env *env)
{
	return __vm_set_user_memory_region(env->vm, GTDP_SLOT, 0, GTDP_GPA, MEM_SIZE,
					   env->mem.hva);
}

static bool test_memslot(void)
{
	const struct call c = { create_vm, add_slot, check_memory };

	return run_call(&c, GTDP_ANON, GTDP_ALL);
}

/* A vCPU's fault, of which fault-around, if it can't get memory, is no part. */
static void set_job(struct env *env)
{
	create_vm_and_slot(env);
	/* It has not run, so there is nothing in its caches of page tables. */
	gtdp_set_job(env->vcpu, (struct gtdp_job) {
		.op = GTDP_CHECK,
		.gpa = GTDP_GPA,
		.nr = NR_PAGES,
		.step = 1,
		.tag = HOST_TAG,
	});
}

static int run_vcpu(struct env *env)
{
	int r, attempts = 0;

	/* No call but this one is to fail, as one of _vcpu_run()'s would. */
	do {
		TEST_ASSERT(attempts++ < MAX_ATTEMPTS, "Only EINTR of KVM_RUN");
		r = __vcpu_run(env->vcpu);
	} while (r == -1 && errno == EINTR);

	return r;
}

static void finish_job(struct env *env)
{
	gtdp_finish_job(env->vcpu);
	check_memory(env);
}

static bool test_fault(void)
{
	const struct call c = { set_job, run_vcpu, finish_job };

	return run_call(&c, GTDP_ANON, KVM_GLOBAL_TDP_FAULT_AROUND);
}

/* With a memslot there already, which then needs a tracker. */
static void create_bare_vm_and_slot(struct env *env)
{
	env->vm = vm_create_barebones();
	TEST_ASSERT(!add_slot(env), "KVM_SET_USER_MEMORY_REGION");
}

static int enable(struct env *env)
{
	return __vm_enable_cap(env->vm, KVM_CAP_GLOBAL_TDP, env->features);
}

static void check_bare(struct env *env)
{
	__vm_vcpu_add(env->vm, 0);
	gtdp_wait_mapped(env->vm, NR_PAGES);
}

static bool test_enable(void)
{
	const struct call c = { create_bare_vm_and_slot, enable, check_bare };

	/* Then all of it is there with the VM, and nothing is left to allocate. */
	if (gtdp_enabled_by_default())
		return false;

	return run_call(&c, GTDP_ANON, GTDP_ALL);
}

/* Not the library's, of which each part would fail, too. */
static int create_vcpu(struct env *env)
{
	env->vcpu_fd = __vm_ioctl(env->vm, KVM_CREATE_VCPU, NULL);
	return min(env->vcpu_fd, 0);
}

static void enable_and_add_slot(struct env *env)
{
	create_bare_vm_and_slot(env);
	TEST_ASSERT(!enable(env), "KVM_ENABLE_CAP");
}

static void add_other_slot(void *arg)
{
	struct env *env = arg;

	gtdp_add_slot(env->vm, GTDP_SLOT + 1, 0, GTDP_GPA + MEM_SIZE, &env->mem);
	gtdp_delete_slot(env->vm, GTDP_SLOT + 1);
}

static u64 nr_unfollowed;

/* A vCPU without the follower, which is tried again at another time, is a success. */
static void check_followed(struct env *env)
{
	u64 failed = gtdp_vm_stat(env->vm, "tdp_thread_failed");

	__gtdp_wait_mapped(env->vm, NR_PAGES, failed ? add_other_slot : NULL, env);
	close(env->vcpu_fd);
	nr_unfollowed += failed;
}

static bool test_first_vcpu(void)
{
	const struct call c = { enable_and_add_slot, create_vcpu, check_followed };

	nr_unfollowed = 0;
	run_call(&c, GTDP_ANON, KVM_GLOBAL_TDP_FOLLOW);
	TEST_ASSERT(nr_unfollowed, "The follower's allocations have not failed");
	return true;
}

/*
 * The thread is there for the asking, and without it, it is said so.  It is tried
 * to be had once in 100ms.
 */
static int populate_async(struct env *env)
{
	struct kvm_populate_memory range = {
		.gpa = GTDP_GPA,
		.size = MEM_SIZE,
		.flags = KVM_POPULATE_ASYNC,
	};

	return __vm_ioctl(env->vm, KVM_POPULATE_MEMORY, &range);
}

static void check_mapped(struct env *env)
{
	gtdp_wait_mapped(env->vm, NR_PAGES);
}

static bool test_first_async(void)
{
	const struct call c = {
		enable_and_add_slot, populate_async, check_mapped, .rest_usecs = 200000,
	};

	return run_call(&c, GTDP_ANON, KVM_GLOBAL_TDP_POPULATE);
}

static const struct gtdp_test tests[] = {
	{ "populate 4K", test_populate },
	{ "populate 2M", test_populate_thp },
	{ "populate, dirty logging", test_populate_logged },
	{ "memslot", test_memslot },
	{ "vCPU's fault", test_fault },
	{ "enable", test_enable },
	{ "first vCPU", test_first_vcpu },
	{ "first asynchronous ioctl", test_first_async },
};

int main(void)
{
	gtdp_require(GTDP_ALL);

	fail_nth_fd = open(FAIL_NTH, O_RDWR);
	__TEST_REQUIRE(fail_nth_fd >= 0,
		       "No " FAIL_NTH ": wants CONFIG_FAULT_INJECTION");
	configure(DEBUGFS "failslab/ignore-gfp-wait", "N");
	configure(DEBUGFS "failslab/verbose", "0");
	configure(DEBUGFS "fail_page_alloc/ignore-gfp-wait", "N");
	configure(DEBUGFS "fail_page_alloc/min-order", "0");
	configure(DEBUGFS "fail_page_alloc/verbose", "0");

	gtdp_run_tests(tests, ARRAY_SIZE(tests));
}
