// SPDX-License-Identifier: GPL-2.0
/*
 * Proves that page tables are on the node of the memory that they map, wherever the
 * threads run that build them; and tells where those are that vCPUs' faults build.
 */
#define _GNU_SOURCE
#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "test_util.h"
#include "kvm_util.h"
#include "processor.h"
#include "global_tdp.h"

#define NR_NODES	2
/* Pages, each in a GiB of its own. */
#define NR_UPPER	32
/* Of each node. */
#define NODE_SIZE	(128ul * SZ_1M)
#define NODE_PAGES	(NODE_SIZE / PAGE_SIZE)
#define PAGES_PER_TABLE	512
/* Memory of the nodes in turns of so much. */
#define TURN_SIZE	(2ul * SZ_2M)

/* Page tables, in percent, that are where they should be. */
#define LEAST_PERCENT	95

enum way { IOCTL, FOLLOWER, FAULTS };

static const char *const ways[] = {
	[IOCTL] = "ioctl",
	[FOLLOWER] = "follower",
	[FAULTS] = "faults",
};

/* All that KVM has of page tables on a node, in KiB. */
static long nr_tables_kib(int node)
{
	char path[64], line[256];
	long kib = -1;
	FILE *file;

	/* CPUs keep some of what they count to themselves. */
	TEST_ASSERT(gtdp_write_file("/proc/sys/vm", "stat_refresh", "1"), "No stat_refresh");

	snprintf(path, sizeof(path), "/sys/devices/system/node/node%d/meminfo", node);
	file = fopen(path, "r");
	TEST_ASSERT(file, "No %s", path);
	while (kib < 0 && fgets(line, sizeof(line), file))
		sscanf(line, "Node %*d SecPageTables: %ld kB", &kib);
	fclose(file);
	TEST_ASSERT(kib >= 0, "No SecPageTables of node %d", node);
	return kib;
}

/*
 * Run, and allocate, on a node, as if by numactl: on its last CPU, as the first of all
 * may be busy with other things.  That keeps automatic NUMA balancing away, too, which
 * takes pages from the host's page tables for a while.
 */
static void run_on(int node)
{
	unsigned long nodes = 1ul << node;
	char path[64], cpus[64];
	cpu_set_t set;
	FILE *file;
	long r;

	snprintf(path, sizeof(path), "/sys/devices/system/node/node%d/cpulist", node);
	file = fopen(path, "r");
	TEST_ASSERT(file && fgets(cpus, sizeof(cpus), file), "Can't read %s", path);
	fclose(file);

	CPU_ZERO(&set);
	CPU_SET(atoi(strrchr(cpus, '-') ? strrchr(cpus, '-') + 1 : cpus), &set);
	TEST_ASSERT(!sched_setaffinity(0, sizeof(set), &set), "No CPU of node %d", node);

	r = syscall(SYS_set_mempolicy, MPOL_BIND, &nodes, 8 * sizeof(nodes));
	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("set_mempolicy()", (int)r));
}

static void bind_to(void *hva, u64 size, int node)
{
	unsigned long nodes = 1ul << node;
	long r = syscall(SYS_mbind, hva, size, MPOL_BIND, &nodes, 8 * sizeof(nodes), 0);

	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("mbind()", (int)r));
}

/* The first half of it of node 0, the second of node 1; or parts in turns. */
static void alloc_on_nodes(struct gtdp_mem *mem, bool turns)
{
	const u64 size = turns ? TURN_SIZE : NODE_SIZE;
	u64 offset;

	gtdp_mem_alloc(mem, GTDP_ANON, NR_NODES * NODE_SIZE, 0);
	for (offset = 0; offset < NR_NODES * NODE_SIZE; offset += size)
		bind_to(mem->hva + offset, size, offset / size % NR_NODES);
	gtdp_stamp(mem->hva, NR_NODES * NODE_PAGES, 1);
}

/*
 * All threads run on node @runs, which is where they allocate.  The memory of node @node
 * is mapped, but for the follower, that of both.
 */
static void test_tables(enum way way, int runs, int node)
{
	const u64 nr_pages = way == FOLLOWER ? 2 * NODE_PAGES : NODE_PAGES;
	u64 features = way == FOLLOWER ? KVM_GLOBAL_TDP_FOLLOW : KVM_GLOBAL_TDP_POPULATE;
	long before[NR_NODES], kib[NR_NODES];
	struct kvm_populate_memory range = {
		.gpa = GTDP_GPA + node * NODE_SIZE,
		.size = NODE_SIZE,
	};
	u64 nr_code;
	struct kvm_vcpu *vcpu;
	struct gtdp_mem mem;
	struct kvm_vm *vm;
	int i, percent;

	run_on(runs);
	vm = gtdp_vm_create(way == FAULTS ? 0 : features, 1, &vcpu);
	nr_code = gtdp_code_size(vm) / PAGE_SIZE;
	if (way == FOLLOWER)
		gtdp_wait_mapped(vm, nr_code);
	else
		gtdp_run(vcpu, GTDP_READ, GTDP_GPA, 0, 0);
	alloc_on_nodes(&mem, false);

	for (i = 0; i < NR_NODES; i++)
		before[i] = nr_tables_kib(i);

	gtdp_add_slot(vm, GTDP_SLOT, 0, GTDP_GPA, &mem);
	if (way == FOLLOWER)
		gtdp_wait_mapped(vm, nr_code + nr_pages);
	else if (way == IOCTL)
		vm_ioctl(vm, KVM_POPULATE_MEMORY, &range);
	else
		gtdp_run(vcpu, GTDP_READ, range.gpa, NODE_PAGES, 0);

	for (i = 0; i < NR_NODES; i++)
		kib[i] = nr_tables_kib(i) - before[i];

	/* The follower maps both halves: as many tables are on each node. */
	TEST_ASSERT(kib[0] + kib[1] >= (long)(nr_pages / PAGES_PER_TABLE * 4),
		    "Only %ld KiB of tables for %lu pages", kib[0] + kib[1], nr_pages);
	if (way == FOLLOWER)
		percent = 200 * min(kib[0], kib[1]) / (kib[0] + kib[1]);
	else
		percent = 100 * kib[node] / (kib[0] + kib[1]);
	pr_info("%s on node %d, memory of node %s: %ld and %ld KiB\n", ways[way], runs,
		way == FOLLOWER ? "0 and 1" : node ? "1" : "0", kib[0], kib[1]);
	if (way != FAULTS)
		TEST_ASSERT(percent >= LEAST_PERCENT, "%d%% are on their node", percent);

	kvm_vm_free(vm);
	gtdp_mem_free(&mem);
}

/* In each call, memory of node 0 and then of node 1, a page table's worth each. */
static void test_mixed(int runs)
{
	struct kvm_populate_memory range;
	long kib[NR_NODES], nr = 0;
	struct kvm_vcpu *vcpu;
	struct gtdp_mem mem;
	struct kvm_vm *vm;
	u64 offset;
	int percent, i;

	run_on(runs);
	vm = gtdp_vm_create(KVM_GLOBAL_TDP_POPULATE, 1, &vcpu);
	gtdp_run(vcpu, GTDP_READ, GTDP_GPA, 0, 0);
	alloc_on_nodes(&mem, true);
	gtdp_add_slot(vm, GTDP_SLOT, 0, GTDP_GPA, &mem);

	for (i = 0; i < NR_NODES; i++)
		kib[i] = -nr_tables_kib(i);
	for (offset = TURN_SIZE - SZ_2M; offset < NR_NODES * NODE_SIZE;
	     offset += NR_NODES * TURN_SIZE) {
		range = (struct kvm_populate_memory) {
			.gpa = GTDP_GPA + offset,
			.size = 2 * SZ_2M,
		};
		vm_ioctl(vm, KVM_POPULATE_MEMORY, &range);
		nr += 2;
	}
	for (i = 0; i < NR_NODES; i++)
		kib[i] += nr_tables_kib(i);

	TEST_ASSERT(kib[0] + kib[1] >= 4 * nr, "Only %ld KiB of tables", kib[0] + kib[1]);
	percent = 200 * min(kib[0], kib[1]) / (kib[0] + kib[1]);
	pr_info("ioctl on node %d, mixed memory: %ld and %ld KiB\n", runs, kib[0], kib[1]);
	TEST_ASSERT(percent >= LEAST_PERCENT, "%d%% are on their node", percent);

	kvm_vm_free(vm);
	gtdp_mem_free(&mem);
}

/* A page in each GiB: half of the tables are those above the last level. */
static void test_upper(int runs, int node)
{
	struct kvm_populate_memory range = { .size = PAGE_SIZE };
	long before[NR_NODES], kib[NR_NODES];
	struct kvm_vcpu *vcpu;
	struct gtdp_mem mem;
	struct kvm_vm *vm;
	int i, percent;

	run_on(runs);
	vm = gtdp_vm_create(KVM_GLOBAL_TDP_POPULATE, 1, &vcpu);
	gtdp_run(vcpu, GTDP_READ, GTDP_GPA, 0, 0);
	gtdp_mem_alloc(&mem, GTDP_ANON, NR_UPPER * PAGE_SIZE, 0);
	bind_to(mem.hva, mem.size, node);
	gtdp_stamp(mem.hva, NR_UPPER, 1);

	for (i = 0; i < NR_NODES; i++)
		before[i] = nr_tables_kib(i);
	for (i = 0; i < NR_UPPER; i++) {
		range.gpa = GTDP_GPA + (u64)i * SZ_1G;
		range.size = PAGE_SIZE;
		vm_set_user_memory_region(vm, GTDP_SLOT + i, 0, range.gpa, PAGE_SIZE,
					  mem.hva + i * PAGE_SIZE);
		vm_ioctl(vm, KVM_POPULATE_MEMORY, &range);
	}
	for (i = 0; i < NR_NODES; i++)
		kib[i] = nr_tables_kib(i) - before[i];

	pr_info("ioctl on node %d, a page in each GiB, of node %d: %ld and %ld KiB\n", runs,
		node, kib[0], kib[1]);
	TEST_ASSERT(kib[0] + kib[1] >= NR_UPPER * 8, "Only %ld KiB of tables",
		    kib[0] + kib[1]);
	percent = 100 * kib[node] / (kib[0] + kib[1]);
	TEST_ASSERT(percent >= LEAST_PERCENT, "%d%% of what is sparse are on its node", percent);

	kvm_vm_free(vm);
	gtdp_mem_free(&mem);
}

int main(void)
{
	int runs, node;

	gtdp_require(KVM_GLOBAL_TDP_FOLLOW | KVM_GLOBAL_TDP_POPULATE);
	__TEST_REQUIRE(!access("/sys/devices/system/node/node1/meminfo", R_OK),
		       "needs two nodes");

	for (runs = 0; runs < NR_NODES; runs++) {
		for (node = 0; node < NR_NODES; node++) {
			test_tables(IOCTL, runs, node);
			test_tables(FAULTS, runs, node);
			test_upper(runs, node);
		}
		test_tables(FOLLOWER, runs, 0);
		test_mixed(runs);
	}

	return 0;
}
