// SPDX-License-Identifier: GPL-2.0
/*
 * Proves that a page with a memory error is never mapped ahead of the vCPUs, whether
 * the error is there before the page is populated, or comes meanwhile or afterwards;
 * that all others are; and that who touches the page, and nobody else, is told, as
 * without Global TDP.  Also that pages which the host moves because of errors that
 * could be corrected stay the guest's while they are populated.
 *
 * See global_tdp_giant_test for a page of 1GiB.
 */
#include <pthread.h>
#include <sys/mman.h>

#include <linux/mman.h>

#include "test_util.h"
#include "kvm_util.h"
#include "processor.h"
#include "global_tdp.h"

#define MEM_SIZE	SZ_8M
#define NR_PAGES	(MEM_SIZE / PAGE_SIZE)

/* The bad pages, one in each 2MiB but the last, at different places. */
#define NR_BAD		(MEM_SIZE / SZ_2M - 1)
#define BAD_PAGE(i)	(33 + (i) * (GTDP_REGION_PAGES + 100))

/* How often the host takes memory away before each that goes bad, or moves, and after. */
#define NR_TOGGLES	3
#define MAX_TRIES	100

#define HOST_TAG	1

struct env {
	struct kvm_vm *vm;
	struct kvm_vcpu *vcpu;
	/* Who touches a bad page does not get any further: one for each. */
	struct kvm_vcpu *vcpus[1 + NR_BAD];
	struct gtdp_mem mem;
	u64 features;
	pthread_t populator;
	bool done;
};

enum when {
	BEFORE,
	DURING,
	AFTER,
};

static bool env_create(struct env *env, enum gtdp_backing backing, u64 features)
{
	*env = (struct env) { .features = features };

	if (!gtdp_mem_alloc(&env->mem, backing, MEM_SIZE, 0))
		return false;

	gtdp_stamp(env->mem.hva, NR_PAGES, HOST_TAG);
	if (backing == GTDP_THP && !gtdp_is_huge(env->mem.hva, MEM_SIZE)) {
		gtdp_mem_free(&env->mem);
		return false;
	}

	env->vm = gtdp_vm_create(features, ARRAY_SIZE(env->vcpus), env->vcpus);
	env->vcpu = env->vcpus[0];
	if (features)
		gtdp_populate_code(env->vm);
	gtdp_add_slot(env->vm, GTDP_SLOT, 0, GTDP_GPA, &env->mem);
	return true;
}

static void env_destroy(struct env *env)
{
	kvm_vm_free(env->vm);
	gtdp_mem_free(&env->mem);
}

/* Populate, or without Global TDP, have the vCPU fault it all in. */
static void map_all(struct env *env)
{
	if (env->features)
		gtdp_populate_full(env->vm, GTDP_GPA, MEM_SIZE);
	else
		gtdp_run(env->vcpu, GTDP_CHECK, GTDP_GPA, NR_PAGES, HOST_TAG);
}

static void *populate_thread(void *arg)
{
	struct env *env = arg;

	while (!READ_ONCE(env->done))
		gtdp_populate(env->vm, GTDP_GPA, MEM_SIZE);

	return NULL;
}

static void start_populator(struct env *env)
{
	pthread_create(&env->populator, NULL, populate_thread, env);
}

static void stop_populator(struct env *env)
{
	WRITE_ONCE(env->done, true);
	pthread_join(env->populator, NULL);
}

/* Give the populator something to map, and leave it when it is at that. */
static void toggle(struct env *env)
{
	u64 nr;
	int i, r;

	for (i = 0; i < NR_TOGGLES; i++) {
		nr = gtdp_nr_populated(env->vm);
		r = mprotect(env->mem.hva, MEM_SIZE, PROT_NONE);
		TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("mprotect()", r));
		r = mprotect(env->mem.hva, MEM_SIZE, PROT_READ | PROT_WRITE);
		TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("mprotect()", r));
		__gtdp_wait_until(gtdp_nr_populated(env->vm) > nr, 0);
	}
}

/* All but [@bad, @bad + @nr_bad) of the 2MiB that page is in. */
static void check_others(struct env *env, u64 bad, u64 nr_bad)
{
	u64 start = bad / GTDP_REGION_PAGES * GTDP_REGION_PAGES;
	u64 end = start + GTDP_REGION_PAGES;
	u64 faults;

	faults = gtdp_run(env->vcpu, GTDP_CHECK, GTDP_GPA + start * PAGE_SIZE, bad - start,
			  HOST_TAG + start);
	bad += nr_bad;
	faults += gtdp_run(env->vcpu, GTDP_CHECK, GTDP_GPA + bad * PAGE_SIZE, end - bad,
			   HOST_TAG + bad);
	if (env->features)
		TEST_ASSERT_EQ(faults, 0);
}

static bool test_poison(enum gtdp_backing backing, enum when when, u64 features)
{
	/* A huge page of hugetlbfs is bad as a whole. */
	const u64 nr_bad = backing == GTDP_HUGETLB ? GTDP_REGION_PAGES : 1;
	struct kvm_populate_memory sum;
	struct env env;
	u64 page;
	bool done;
	int i;

	if (!env_create(&env, backing, features))
		return false;

	if (when == AFTER)
		map_all(&env);
	if (when == DURING)
		start_populator(&env);

	for (i = 0, done = true; i < NR_BAD && done; i++) {
		if (when == DURING)
			toggle(&env);
		done = gtdp_poison(env.mem.hva + BAD_PAGE(i) * PAGE_SIZE);
		if (when == DURING)
			toggle(&env);
	}

	if (when == DURING)
		stop_populator(&env);
	if (!done)
		goto out;

	if (features) {
		sum = gtdp_populate(env.vm, GTDP_GPA, MEM_SIZE);
		TEST_ASSERT_EQ(sum.absent, NR_BAD * nr_bad * PAGE_SIZE);
		TEST_ASSERT_EQ(sum.mapped, MEM_SIZE - NR_BAD * nr_bad * PAGE_SIZE);
	}

	/* The last 2MiB have none. */
	check_others(&env, NR_PAGES - GTDP_REGION_PAGES, 0);
	for (i = 0; i < NR_BAD; i++) {
		page = BAD_PAGE(i);
		check_others(&env, nr_bad == 1 ? page : i * GTDP_REGION_PAGES, nr_bad);
		gtdp_check_poisoned(env.vcpus[1 + i], GTDP_GPA + page * PAGE_SIZE,
				    env.mem.hva + page * PAGE_SIZE);
	}
out:
	env_destroy(&env);
	return done;
}

#define TEST_POISON(name, backing, when)					\
static bool test_##name(void)							\
{										\
	return test_poison(backing, when, KVM_GLOBAL_TDP_POPULATE);		\
}

TEST_POISON(anon_before, GTDP_ANON, BEFORE)
TEST_POISON(anon_during, GTDP_ANON, DURING)
TEST_POISON(anon_after, GTDP_ANON, AFTER)
TEST_POISON(thp_before, GTDP_THP, BEFORE)
TEST_POISON(thp_during, GTDP_THP, DURING)
TEST_POISON(thp_after, GTDP_THP, AFTER)
TEST_POISON(hugetlb_before, GTDP_HUGETLB, BEFORE)
TEST_POISON(hugetlb_during, GTDP_HUGETLB, DURING)
TEST_POISON(hugetlb_after, GTDP_HUGETLB, AFTER)
TEST_POISON(memfd_before, GTDP_MEMFD, BEFORE)
TEST_POISON(memfd_during, GTDP_MEMFD, DURING)
TEST_POISON(memfd_after, GTDP_MEMFD, AFTER)

static bool test_without(void)
{
	return test_poison(GTDP_ANON, AFTER, 0);
}

static bool test_thp_without(void)
{
	return test_poison(GTDP_THP, AFTER, 0);
}

static bool test_hugetlb_without(void)
{
	return test_poison(GTDP_HUGETLB, AFTER, 0);
}

/* The host moves what is on a page that had errors, and uses it no more. */
static bool test_moved(enum gtdp_backing backing)
{
	u64 pfn, moved, page;
	int i, tries, r = 0;
	struct env env;

	if (!env_create(&env, backing, KVM_GLOBAL_TDP_POPULATE))
		return false;

	start_populator(&env);
	for (i = 0; i < NR_BAD && !r; i++) {
		page = BAD_PAGE(i);
		gtdp_get_pfns(env.mem.hva + page * PAGE_SIZE, 1, &pfn);
		toggle(&env);
		/* It takes that nobody else happens to have a reference. */
		for (tries = 0; tries < MAX_TRIES; tries++) {
			gtdp_drain_lru();
			r = madvise(env.mem.hva + page * PAGE_SIZE, PAGE_SIZE, MADV_SOFT_OFFLINE);
			if (!r || (errno != EBUSY && errno != EAGAIN))
				break;
			usleep(1000);
		}
		if (r) {
			TEST_ASSERT(errno == EINVAL || errno == EPERM || errno == EOPNOTSUPP,
				    "Page %lu can't be moved: %s", page, strerror(errno));
			ksft_print_msg("no page can be moved: %s\n", strerror(errno));
			break;
		}
		gtdp_get_pfns(env.mem.hva + page * PAGE_SIZE, 1, &moved);
		TEST_ASSERT(moved != pfn, "Page %lu did not move", page);
		toggle(&env);
	}
	stop_populator(&env);

	if (!r) {
		map_all(&env);
		TEST_ASSERT_EQ(gtdp_run(env.vcpu, GTDP_CHECK, GTDP_GPA, NR_PAGES, HOST_TAG), 0);
	}

	env_destroy(&env);
	return !r;
}

static bool test_moved_anon(void)
{
	return test_moved(GTDP_ANON);
}

static bool test_moved_thp(void)
{
	return test_moved(GTDP_THP);
}

static bool test_moved_memfd(void)
{
	return test_moved(GTDP_MEMFD);
}

static const struct gtdp_test tests[] = {
	{ "bad before: small pages", test_anon_before },
	{ "bad before: huge pages", test_thp_before },
	{ "bad before: hugetlb", test_hugetlb_before },
	{ "bad before: memfd", test_memfd_before },
	{ "bad meanwhile: small pages", test_anon_during },
	{ "bad meanwhile: huge pages", test_thp_during },
	{ "bad meanwhile: hugetlb", test_hugetlb_during },
	{ "bad meanwhile: memfd", test_memfd_during },
	{ "bad afterwards: small pages", test_anon_after },
	{ "bad afterwards: huge pages", test_thp_after },
	{ "bad afterwards: hugetlb", test_hugetlb_after },
	{ "bad afterwards: memfd", test_memfd_after },
	{ "bad without Global TDP: small pages", test_without },
	{ "bad without Global TDP: huge pages", test_thp_without },
	{ "bad without Global TDP: hugetlb", test_hugetlb_without },
	{ "moved meanwhile: small pages", test_moved_anon },
	{ "moved meanwhile: huge pages", test_moved_thp },
	{ "moved meanwhile: memfd", test_moved_memfd },
};

int main(void)
{
	gtdp_require(KVM_GLOBAL_TDP_POPULATE);
	gtdp_run_tests(tests, ARRAY_SIZE(tests));
}
