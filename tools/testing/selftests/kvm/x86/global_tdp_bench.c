// SPDX-License-Identifier: GPL-2.0
/*
 * What it costs to map a page of present memory: by faults, with
 * KVM_PRE_FAULT_MEMORY, and with the parts of Global TDP, side by side.  And what
 * it costs to zap a page that was mapped by a fault, when it is discarded or the
 * VM ends.
 *
 * Made to be run in a machine that QEMU emulates with "-icount shift=0,sleep=off"
 * and one CPU, where a nanosecond is an instruction.  Note that there an exit to
 * KVM and back counts as two instructions, which flatters faults a lot.
 *
 * The output is one JSON object per line and case; other lines are for humans.
 * A case is run several times, each in a new VM, and the best counts.  All is
 * done by one thread, as a vCPU that moves to another one waits for RCU.
 */
#include <limits.h>
#include <time.h>
#include <sys/mman.h>

#include "test_util.h"
#include "kvm_util.h"
#include "processor.h"
#include "global_tdp.h"

struct result {
	u64 raw_ns;
	u64 own_ns;	/* of that, the guest's own work */
	u64 faults;
	long pgtable_kib;
};

struct bench_case {
	const char *name;
	u64 features;
	/* Map the memory beforehand, not measured; and do so measured. */
	void (*prepare)(struct kvm_vcpu *vcpu);
	void (*map)(struct kvm_vcpu *vcpu);
	/* Let the guest read a word of each page, measured. */
	bool touch;
	/* Measure the end of the VM, less that of one in which nothing is mapped. */
	bool end;
};

static u64 mem_size = SZ_64M;
static void *mem_hva;
/* The one case to run, NULL for all. */
static const char *only;

static u64 read_ns(clockid_t clock)
{
	struct timespec ts;

	clock_gettime(clock, &ts);
	return timespec_to_ns(ts);
}

static u64 now_ns(void)
{
	return read_ns(CLOCK_MONOTONIC);
}

/* Have the statistics of all CPUs added up first, if allowed to. */
static long read_pgtable_kib(void)
{
	char line[128];
	long kib = -1;
	FILE *file;

	file = fopen("/proc/sys/vm/stat_refresh", "r");
	if (file) {
		fread(line, 1, sizeof(line), file);
		fclose(file);
	}

	file = fopen("/proc/meminfo", "r");
	while (file && fgets(line, sizeof(line), file))
		sscanf(line, "SecPageTables: %ld kB", &kib);
	if (file)
		fclose(file);
	return kib;
}

static void prefault(struct kvm_vcpu *vcpu)
{
	gtdp_prefault(vcpu, GTDP_GPA, mem_size);
}

static void populate(struct kvm_vcpu *vcpu)
{
	gtdp_populate_full(vcpu->vm, GTDP_GPA, mem_size);
}

static u64 *alloc_bitmap(void)
{
	u64 *bitmap = calloc(mem_size / PAGE_SIZE / 64, sizeof(*bitmap));

	TEST_ASSERT(bitmap, "calloc()");
	return bitmap;
}

/* Half of the pages, in runs of eight. */
static void populate_runs(struct kvm_vcpu *vcpu)
{
	struct kvm_populate_memory sum, range = {
		.gpa = GTDP_GPA,
		.size = mem_size,
		.flags = KVM_POPULATE_BITMAP,
	};
	u64 *bitmap = alloc_bitmap();

	for (int i = 0; i < mem_size / PAGE_SIZE / 64; i++)
		bitmap[i] = 0x00ff00ff00ff00ff;
	range.bitmap = (uintptr_t)bitmap;
	TEST_ASSERT_EQ(gtdp_populate_on(vcpu->vm, &range, &sum), 0);
	TEST_ASSERT_EQ(sum.mapped, mem_size / 2);
	free(bitmap);
}

static void access_all(struct kvm_vcpu *vcpu)
{
	populate(vcpu);
	gtdp_run(vcpu, GTDP_READ, GTDP_GPA, mem_size / PAGE_SIZE, 0);
}

/* Bring back what was discarded. */
static void stamp(struct kvm_vcpu *vcpu)
{
	gtdp_stamp(mem_hva, mem_size / PAGE_SIZE, 1);
}

static void stamp_populate(struct kvm_vcpu *vcpu)
{
	stamp(vcpu);
	populate(vcpu);
}

/* By faults. */
static void touch(struct kvm_vcpu *vcpu)
{
	stamp(vcpu);
	gtdp_run(vcpu, GTDP_READ, GTDP_GPA, mem_size / PAGE_SIZE, 0);
}

static void discard(struct kvm_vcpu *vcpu)
{
	TEST_ASSERT(!madvise(mem_hva, mem_size, MADV_DONTNEED), "madvise()");
}

static void harvest(struct kvm_vcpu *vcpu)
{
	u64 *bitmap = alloc_bitmap();

	gtdp_harvest(vcpu->vm, 0, GTDP_GPA, mem_size, bitmap);
	free(bitmap);
}

#define HARVEST	(KVM_GLOBAL_TDP_POPULATE | KVM_GLOBAL_TDP_HARVEST)

static const struct bench_case cases[] = {
	{ "touch", 0, NULL, NULL, true },
	{ "prefault", 0, NULL, prefault, false },
	{ "prefault_touch", 0, NULL, prefault, true },
	{ "prefault_populate", KVM_GLOBAL_TDP_POPULATE, NULL, prefault, false },
	{ "fault_around", KVM_GLOBAL_TDP_FAULT_AROUND, NULL, NULL, true },
	{ "populate", KVM_GLOBAL_TDP_POPULATE, NULL, populate, false },
	{ "populate_touch", KVM_GLOBAL_TDP_POPULATE, NULL, populate, true },
	{ "populate_again", KVM_GLOBAL_TDP_POPULATE, populate, populate, false },
	{ "populate_runs", KVM_GLOBAL_TDP_POPULATE, NULL, populate_runs, false },
	{ "harvest_all", HARVEST, access_all, harvest, false },
	{ "harvest_none", HARVEST, populate, harvest, false },
	{ "end", 0, touch, NULL, false, true },
	{ "end_populated", KVM_GLOBAL_TDP_POPULATE, stamp_populate, NULL, false, true },
	{ "discard", 0, touch, discard, false },
	{ "discard_unmapped", 0, stamp, discard, false },
	{ "discard_populated", KVM_GLOBAL_TDP_POPULATE, stamp_populate, discard, false },
};

static struct kvm_vm *create(const struct bench_case *c, struct gtdp_mem *mem, bool has_gtdp,
			     struct kvm_vcpu **vcpu)
{
	struct kvm_vm *vm = gtdp_vm_create(has_gtdp ? c->features : GTDP_DEFAULT, 1, vcpu);

	gtdp_prefault_code(*vcpu);
	gtdp_add_slot(vm, GTDP_SLOT, 0, GTDP_GPA, mem);
	return vm;
}

/* It waits for others, so count the time of a CPU. */
static u64 end(struct kvm_vm *vm)
{
	u64 start = read_ns(CLOCK_PROCESS_CPUTIME_ID);

	kvm_vm_free(vm);
	return read_ns(CLOCK_PROCESS_CPUTIME_ID) - start;
}

static struct result run_once(const struct bench_case *c, struct gtdp_mem *mem, bool has_gtdp)
{
	struct gtdp_job job = {
		.op = GTDP_READ,
		.gpa = GTDP_GPA,
		.nr = c->touch ? mem_size / PAGE_SIZE : 0,
		.step = 1,
	};
	struct result result = {};
	struct kvm_vcpu *vcpu;
	struct kvm_vm *vm;
	u64 start;

	vm = create(c, mem, has_gtdp, &vcpu);
	if (c->prepare)
		c->prepare(vcpu);

	if (c->end) {
		result.raw_ns = end(vm);
		result.own_ns = end(create(c, mem, has_gtdp, &vcpu));
		return result;
	}

	result.faults = gtdp_vcpu_stat(vcpu, "pf_taken");
	result.pgtable_kib = read_pgtable_kib();
	gtdp_set_job(vcpu, job);

	start = now_ns();
	if (c->map)
		c->map(vcpu);
	if (c->touch)
		vcpu_run(vcpu);
	result.raw_ns = now_ns() - start;

	result.pgtable_kib = read_pgtable_kib() - result.pgtable_kib;
	result.faults = gtdp_vcpu_stat(vcpu, "pf_taken") - result.faults;

	/* Once more, with all mapped: that is the guest's own work. */
	if (c->touch) {
		gtdp_finish_job(vcpu);
		start = now_ns();
		vcpu_run(vcpu);
		result.own_ns = now_ns() - start;
		gtdp_finish_job(vcpu);
	}

	kvm_vm_free(vm);
	return result;
}

static void run_case(const struct bench_case *c, const char *backing,
		     struct gtdp_mem *mem, bool has_gtdp, int repeats)
{
	struct result best = { .raw_ns = ULONG_MAX }, result;
	double pages = mem_size / PAGE_SIZE;
	u64 own_ns = ULONG_MAX;
	int i;

	/*
	 * The first run warms up what all share.  An interrupt makes either part longer: take
	 * the best of each, as the best difference would be one with an interrupt in the
	 * part that is taken away.
	 */
	for (i = 0; i <= repeats; i++) {
		result = run_once(c, mem, has_gtdp);
		if (!i)
			continue;
		own_ns = min(own_ns, result.own_ns);
		if (result.raw_ns < best.raw_ns)
			best = result;
	}

	printf("{\"case\": \"%s\", \"backing\": \"%s\", \"pages\": %.0f, ",
	       c->name, backing, pages);
	printf("\"ns_per_page\": %.2f, \"raw_ns_per_page\": %.2f, ",
	       (best.raw_ns - min(best.raw_ns, own_ns)) / pages, best.raw_ns / pages);
	printf("\"faults\": %lu, \"pgtable_kib\": %ld}\n", best.faults, best.pgtable_kib);
}

static void run_backing(enum gtdp_backing backing, const char *name,
			bool has_gtdp, int repeats)
{
	struct gtdp_mem mem;
	int i;

	gtdp_mem_alloc(&mem, backing, mem_size, 0);
	mem_hva = mem.hva;
	gtdp_stamp(mem_hva, mem_size / PAGE_SIZE, 1);
	if (backing == GTDP_THP && gtdp_huge_bytes(mem.hva) < mem_size)
		printf("# only %lu MiB of thp are huge pages\n",
		       gtdp_huge_bytes(mem.hva) / SZ_1M);

	for (i = 0; i < ARRAY_SIZE(cases); i++) {
		if (only && strcmp(cases[i].name, only))
			continue;
		if ((kvm_check_cap(KVM_CAP_GLOBAL_TDP) & cases[i].features) == cases[i].features)
			run_case(&cases[i], name, &mem, has_gtdp, repeats);
	}

	gtdp_mem_free(&mem);
}

static void help(const char *name)
{
	printf("usage: %s [-h] [-c case] [-m MiB] [-r repeats]\n", name);
	exit(0);
}

int main(int argc, char *argv[])
{
	int opt, repeats = 3;
	bool has_gtdp;

	while ((opt = getopt(argc, argv, "c:hm:r:")) != -1) {
		switch (opt) {
		case 'c':
			only = optarg;
			break;
		case 'm':
			mem_size = atoi_positive("MiB", optarg) * (u64)SZ_1M;
			break;
		case 'r':
			repeats = atoi_positive("Number of repeats", optarg);
			break;
		default:
			help(argv[0]);
		}
	}

	TEST_REQUIRE(kvm_has_cap(KVM_CAP_PRE_FAULT_MEMORY));
	TEST_ASSERT(mem_size <= GTDP_WINDOW && !(mem_size % SZ_2M),
		    "Want an even number of MiB, at most %u", GTDP_WINDOW / SZ_1M);

	has_gtdp = kvm_check_cap(KVM_CAP_GLOBAL_TDP);
	printf("# %lu MiB, best of %d, Global TDP %savailable\n",
	       mem_size / SZ_1M, repeats, has_gtdp ? "" : "not ");

	run_backing(GTDP_ANON, "4k", has_gtdp, repeats);
	if (thp_configured())
		run_backing(GTDP_THP, "thp", has_gtdp, repeats);
	return 0;
}
