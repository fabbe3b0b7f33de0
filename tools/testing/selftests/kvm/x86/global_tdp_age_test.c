// SPDX-License-Identifier: GPL-2.0
/*
 * Proves that the host can tell which pages a guest uses, while all of them are
 * populated again and again: what the guest reads is young, and what it leaves
 * alone grows old.
 *
 * KVM_HARVEST_ACCESSED clears the bits that tell it, and does not keep the host from
 * knowing.
 *
 * Who asks is DAMON, which has pages age, and looks later whether they are young.
 * It is told of two pieces of memory, of which the guest reads one.
 */
#include <pthread.h>
#include <unistd.h>

#include "test_util.h"
#include "kvm_util.h"
#include "processor.h"
#include "global_tdp.h"
#include "global_tdp_damon.h"

#define SCHEME		GTDP_DAMON_CONTEXT "/schemes/0"

#define MEM_SIZE	SZ_4M
#define NR_PAGES	(MEM_SIZE / PAGE_SIZE)
#define HALF_SIZE	(MEM_SIZE / 2)
#define HALF_PAGES	(NR_PAGES / 2)

#define HOST_TAG	1

/* DAMON looks at a page of each region that often, and tells of so many looks. */
#define SAMPLE_USECS	10000
#define AGGREGATE_USECS	100000
#define NR_AGGREGATES	3

/* So many of ten looks would not all be in the instant between an access and a harvest. */
#define NR_LOOKS_HARVESTED	7

struct env {
	struct kvm_vm *vm;
	struct kvm_vcpu *vcpu;
	struct gtdp_mem mem;
	bool stop;
};

static bool start_damon(struct env *env)
{
	const struct gtdp_damon_target targets[] = {
		{ env->mem.hva, HALF_SIZE },
		{ env->mem.hva + HALF_SIZE, HALF_SIZE },
	};

	if (!gtdp_damon_create(targets, ARRAY_SIZE(targets), SAMPLE_USECS, AGGREGATE_USECS))
		return false;

	/* Tell of all regions. */
	gtdp_damon_set(GTDP_DAMON_CONTEXT, "schemes/nr_schemes", 1);
	gtdp_damon_set_text(SCHEME, "action", "stat");
	gtdp_damon_set(SCHEME, "access_pattern/sz/max", UINT64_MAX);
	gtdp_damon_set(SCHEME, "access_pattern/nr_accesses/max", UINT32_MAX);
	gtdp_damon_set(SCHEME, "access_pattern/age/max", UINT32_MAX);
	gtdp_damon_start();
	return true;
}

static bool read_region(int region, const char *name, u64 *value)
{
	char path[160];
	FILE *file;
	bool found;

	snprintf(path, sizeof(path), SCHEME "/tried_regions/%d/%s", region, name);
	file = fopen(path, "r");
	found = file && fscanf(file, "%lu", value) == 1;
	if (file)
		fclose(file);
	return found;
}

/*
 * Ask at how many looks, at most, either half was young.  Returns false if there
 * is nothing to be told of one of them, as happens.
 */
static bool ask(struct env *env, u64 *used, u64 *unused)
{
	const u64 middle = (u64)env->mem.hva + HALF_SIZE;
	bool has_used = false, has_unused = false;
	u64 start, young;
	int i;

	*used = 0;
	*unused = 0;
	usleep(AGGREGATE_USECS);
	gtdp_damon_set_text(GTDP_DAMON "/0", "state", "update_schemes_tried_regions");

	for (i = 0; read_region(i, "start", &start); i++) {
		if (!read_region(i, "nr_accesses", &young))
			continue;
		if (start < middle) {
			has_used = true;
			*used = max(*used, young);
		} else {
			has_unused = true;
			*unused = max(*unused, young);
		}
	}

	return has_used && has_unused;
}

static void *reader(void *arg)
{
	struct env *env = arg;

	while (!READ_ONCE(env->stop))
		gtdp_run(env->vcpu, GTDP_CHECK, GTDP_GPA, HALF_PAGES, HOST_TAG);

	return NULL;
}

static void *populator(void *arg)
{
	struct env *env = arg;

	while (!READ_ONCE(env->stop)) {
		gtdp_populate_full(env->vm, GTDP_GPA, MEM_SIZE);
		usleep(1000);
	}

	return NULL;
}

/* Nothing is harvested but what was read. */
static void *harvester(void *arg)
{
	u64 bitmap[NR_PAGES / 64], i;
	struct env *env = arg;

	while (!READ_ONCE(env->stop)) {
		gtdp_run(env->vcpu, GTDP_CHECK, GTDP_GPA, HALF_PAGES, HOST_TAG);
		gtdp_harvest(env->vm, 0, GTDP_GPA, MEM_SIZE, bitmap);
		for (i = 0; i < NR_PAGES; i++)
			TEST_ASSERT(i < HALF_PAGES || !(bitmap[i / 64] >> i % 64 & 1),
				    "Page %lu of %lu that were read", i, HALF_PAGES);
		usleep(SAMPLE_USECS / 2);
	}

	return NULL;
}

static bool test_age(bool populate, bool harvest)
{
	pthread_t threads[2];
	u64 used, unused;
	struct env env = {};
	int i;

	gtdp_mem_alloc(&env.mem, GTDP_ANON, MEM_SIZE, 0);
	gtdp_stamp(env.mem.hva, NR_PAGES, HOST_TAG);
	/* Only pages that are on a list of the reclaim's are looked at. */
	gtdp_drain_lru();
	env.vm = gtdp_vm_create(KVM_GLOBAL_TDP_POPULATE | (harvest ? KVM_GLOBAL_TDP_HARVEST : 0),
				1, &env.vcpu);
	gtdp_populate_code(env.vm);
	gtdp_add_slot(env.vm, GTDP_SLOT, 0, GTDP_GPA, &env.mem);
	gtdp_populate_full(env.vm, GTDP_GPA, MEM_SIZE);
	if (!start_damon(&env)) {
		kvm_vm_free(env.vm);
		gtdp_mem_free(&env.mem);
		return false;
	}

	pthread_create(&threads[0], NULL, harvest ? harvester : reader, &env);
	if (populate)
		pthread_create(&threads[1], NULL, populator, &env);

	for (i = 0; i < NR_AGGREGATES; i++) {
		/* On a busy machine, the guest may not have been run meanwhile. */
		gtdp_wait_until(ask(&env, &used, &unused) &&
				used >= (harvest ? NR_LOOKS_HARVESTED : 1));
		/* All of it is young at first, for having been mapped. */
		if (!i)
			continue;

		ksft_print_msg("Used: young at %lu looks, unused: at %lu\n", used, unused);
		TEST_ASSERT(!unused, "What nobody uses was young at %lu looks", unused);
	}

	gtdp_damon_stop();
	WRITE_ONCE(env.stop, true);
	pthread_join(threads[0], NULL);
	if (populate)
		pthread_join(threads[1], NULL);
	kvm_vm_free(env.vm);
	gtdp_mem_free(&env.mem);
	return true;
}

static bool test_age_alone(void)
{
	return test_age(false, false);
}

static bool test_age_populated(void)
{
	return test_age(true, false);
}

static bool test_harvested(void)
{
	if (!(kvm_check_cap(KVM_CAP_GLOBAL_TDP) & KVM_GLOBAL_TDP_HARVEST))
		return false;

	return test_age(false, true);
}

static const struct gtdp_test tests[] = {
	{ "ageing", test_age_alone },
	{ "ageing while memory is populated", test_age_populated },
	{ "harvested, then aged", test_harvested },
};

int main(void)
{
	gtdp_require(KVM_GLOBAL_TDP_POPULATE);
	gtdp_run_tests(tests, ARRAY_SIZE(tests));
}
