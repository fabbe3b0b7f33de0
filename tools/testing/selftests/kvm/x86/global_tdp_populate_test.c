// SPDX-License-Identifier: GPL-2.0
/*
 * Proves what KVM_POPULATE_MEMORY promises: what the host has present is mapped
 * afterwards, i.e. the guest finds there what the host wrote without taking a
 * stage-2 fault, whatever the memory is made of.  What is absent stays absent,
 * nothing is mapped with more access than the host gives, and statistics tell
 * what was done.
 *
 * See global_tdp_dirty_test for memory that is logged.
 */
#include <pthread.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/vfs.h>

#include <linux/kernel-page-flags.h>
#include <linux/magic.h>

#include "test_util.h"
#include "kvm_util.h"
#include "processor.h"
#include "global_tdp.h"

#define MEM_SIZE	SZ_16M
#define NR_PAGES	(MEM_SIZE / PAGE_SIZE)
#define NR_VCPUS	4

/* Of what the host does not do while anybody happens to look at a page. */
#define MAX_TRIES	100

/* First stamps of what the host, and the guest, writes. */
#define HOST_TAG	1
#define GUEST_TAG	1000000

struct env {
	struct kvm_vm *vm;
	struct kvm_vcpu *vcpus[NR_VCPUS];
	struct kvm_vcpu *vcpu;
	struct gtdp_mem mem;
};

/* A VM with some memory, which is neither present nor in a memslot yet. */
static bool env_create(struct env *env, enum gtdp_backing backing, size_t offset)
{
	if (!gtdp_mem_alloc(&env->mem, backing, MEM_SIZE, offset))
		return false;

	env->vm = gtdp_vm_create(KVM_GLOBAL_TDP_POPULATE, NR_VCPUS, env->vcpus);
	env->vcpu = env->vcpus[0];
	gtdp_populate_code(env->vm);
	return true;
}

static void env_destroy(struct env *env)
{
	kvm_vm_free(env->vm);
	gtdp_mem_free(&env->mem);
}

/* Prove that the guest reads, and then writes, without an exit. */
static void check_no_faults(struct env *env, u64 gpa, void *hva, u64 nr)
{
	TEST_ASSERT_EQ(gtdp_run(env->vcpu, GTDP_CHECK, gpa, nr, HOST_TAG), 0);
	TEST_ASSERT_EQ(gtdp_run(env->vcpu, GTDP_STAMP, gpa, nr, GUEST_TAG), 0);
	gtdp_check(hva, nr, GUEST_TAG);
}

static bool is_huge(enum gtdp_backing backing)
{
	return backing == GTDP_HUGETLB || backing == GTDP_THP;
}

static bool test_backing(enum gtdp_backing backing)
{
	struct env env;
	u64 huge;

	if (!env_create(&env, backing, 0))
		return false;

	gtdp_stamp(env.mem.hva, NR_PAGES, HOST_TAG);
	if (backing == GTDP_THP && !gtdp_is_huge(env.mem.hva, MEM_SIZE)) {
		env_destroy(&env);
		return false;
	}
	gtdp_add_slot(env.vm, GTDP_SLOT, 0, GTDP_GPA, &env.mem);
	gtdp_populate_full(env.vm, GTDP_GPA, MEM_SIZE);

	/* The host's huge pages are the guest's. */
	huge = gtdp_huge_bytes(env.mem.hva);
	TEST_ASSERT_EQ(huge, is_huge(backing) ? MEM_SIZE : 0);
	TEST_ASSERT_EQ(gtdp_vm_stat(env.vm, "tdp_populated_2m"), huge / SZ_2M);

	/* Whether the file system wants to know of the first write is open. */
	if (backing == GTDP_FILE_SHARED) {
		TEST_ASSERT_EQ(gtdp_run(env.vcpu, GTDP_CHECK, GTDP_GPA, NR_PAGES, HOST_TAG), 0);
		gtdp_run(env.vcpu, GTDP_STAMP, GTDP_GPA, NR_PAGES, GUEST_TAG);
		gtdp_check(env.mem.hva, NR_PAGES, GUEST_TAG);
	} else {
		check_no_faults(&env, GTDP_GPA, env.mem.hva, NR_PAGES);
	}

	/* Once more changes nothing. */
	gtdp_populate_full(env.vm, GTDP_GPA, MEM_SIZE);
	TEST_ASSERT_EQ(gtdp_run(env.vcpu, GTDP_CHECK, GTDP_GPA, NR_PAGES, GUEST_TAG), 0);

	env_destroy(&env);
	return true;
}

static bool test_anon(void)
{
	return test_backing(GTDP_ANON);
}

static bool test_thp(void)
{
	return gtdp_has_thp() && test_backing(GTDP_THP);
}

static bool test_hugetlb(void)
{
	return test_backing(GTDP_HUGETLB);
}

static bool test_memfd(void)
{
	return test_backing(GTDP_MEMFD);
}

static bool test_file_private(void)
{
	return test_backing(GTDP_FILE_PRIVATE);
}

static bool test_file_shared(void)
{
	return test_backing(GTDP_FILE_SHARED);
}

/*
 * The counterpart, without which all others prove little: what is not populated
 * does take its faults.
 */
static bool test_control(void)
{
	struct env env;

	env_create(&env, GTDP_ANON, 0);
	gtdp_stamp(env.mem.hva, NR_PAGES, HOST_TAG);
	gtdp_add_slot(env.vm, GTDP_SLOT, 0, GTDP_GPA, &env.mem);
	TEST_ASSERT_EQ(gtdp_run(env.vcpu, GTDP_CHECK, GTDP_GPA, NR_PAGES, HOST_TAG), NR_PAGES);

	env_destroy(&env);
	return true;
}

/* What is not there is not mapped, and not brought in either. */
static bool test_nothing(enum gtdp_backing backing)
{
	struct kvm_populate_memory sum;
	struct env env;
	u64 nr;

	if (!env_create(&env, backing, 0))
		return false;

	gtdp_add_slot(env.vm, GTDP_SLOT, 0, GTDP_GPA, &env.mem);
	nr = gtdp_nr_mapped(env.vm);
	sum = gtdp_populate(env.vm, GTDP_GPA, MEM_SIZE);
	TEST_ASSERT_EQ(sum.mapped, 0);
	TEST_ASSERT_EQ(sum.absent, MEM_SIZE);
	TEST_ASSERT_EQ(gtdp_nr_mapped(env.vm), nr);
	TEST_ASSERT_EQ(gtdp_nr_absent(env.vm), NR_PAGES);
	TEST_ASSERT_EQ(gtdp_nr_resident(env.mem.hva, MEM_SIZE), 0);

	env_destroy(&env);
	return true;
}

/* The host has no page table for what is in the middle, of whatever level. */
static bool test_nothing_large(void)
{
	struct gtdp_mem mem = { .size = 3 * (size_t)SZ_1G };
	struct kvm_populate_memory sum;
	struct kvm_vcpu *vcpu;
	struct kvm_vm *vm;

	mem.hva = mmap(NULL, mem.size, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	TEST_ASSERT(mem.hva != MAP_FAILED, __KVM_SYSCALL_ERROR("mmap()", -1));
	vm = gtdp_vm_create(KVM_GLOBAL_TDP_POPULATE, 1, &vcpu);
	gtdp_add_slot(vm, GTDP_SLOT, 0, GTDP_GPA, &mem);

	sum = gtdp_populate(vm, GTDP_GPA, mem.size);
	TEST_ASSERT_EQ(sum.mapped, 0);
	TEST_ASSERT_EQ(sum.absent, mem.size);

	kvm_vm_free(vm);
	munmap(mem.hva, mem.size);
	return true;
}

static bool test_nothing_anon(void)
{
	return test_nothing(GTDP_ANON);
}

static bool test_nothing_thp(void)
{
	return gtdp_has_thp() && test_nothing(GTDP_THP);
}

static bool test_nothing_hugetlb(void)
{
	return test_nothing(GTDP_HUGETLB);
}

static bool test_nothing_memfd(void)
{
	return test_nothing(GTDP_MEMFD);
}

/* Every third page of most regions, but all of one, and nothing of others. */
static bool is_present(u64 page)
{
	switch (page / GTDP_REGION_PAGES) {
	case 1:
		return true;
	case 2:
	case 5:
		return false;
	default:
		return !(page % 3);
	}
}

static bool test_partial(enum gtdp_backing backing)
{
	u64 i, present = 0, from, to;
	struct kvm_populate_memory sum;
	struct env env;

	env_create(&env, backing, 0);
	for (i = 0; i < NR_PAGES; i++) {
		if (is_present(i)) {
			gtdp_stamp(env.mem.hva + i * PAGE_SIZE, 1, HOST_TAG + i);
			present++;
		}
	}
	TEST_ASSERT_EQ(gtdp_nr_resident(env.mem.hva, MEM_SIZE), present);

	gtdp_add_slot(env.vm, GTDP_SLOT, 0, GTDP_GPA, &env.mem);
	sum = gtdp_populate(env.vm, GTDP_GPA, MEM_SIZE);
	TEST_ASSERT_EQ(sum.mapped, present * PAGE_SIZE);
	TEST_ASSERT_EQ(sum.absent, MEM_SIZE - present * PAGE_SIZE);
	TEST_ASSERT_EQ(gtdp_nr_resident(env.mem.hva, MEM_SIZE), present);

	for (i = 0; i < NR_PAGES; i++) {
		if (is_present(i))
			TEST_ASSERT_EQ(gtdp_run(env.vcpu, GTDP_CHECK,
						GTDP_GPA + i * PAGE_SIZE, 1,
						HOST_TAG + i), 0);
		/* Jobs are costly, a sample of the regions will do. */
		if (i % GTDP_REGION_PAGES == 30)
			i += GTDP_REGION_PAGES - 60;
	}

	/* What arrives later goes into the holes. */
	for (from = NR_PAGES / 4; from < NR_PAGES / 2; from++)
		gtdp_stamp(env.mem.hva + from * PAGE_SIZE, 1, HOST_TAG + from);
	from = NR_PAGES / 4;
	to = NR_PAGES / 2;
	gtdp_populate_full(env.vm, GTDP_GPA + from * PAGE_SIZE, (to - from) * PAGE_SIZE);
	TEST_ASSERT_EQ(gtdp_run(env.vcpu, GTDP_CHECK, GTDP_GPA + from * PAGE_SIZE,
				to - from, HOST_TAG + from), 0);

	/* The rest comes the usual way. */
	gtdp_run(env.vcpu, GTDP_STAMP, GTDP_GPA, NR_PAGES, GUEST_TAG);
	gtdp_check(env.mem.hva, NR_PAGES, GUEST_TAG);

	env_destroy(&env);
	return true;
}

static bool test_partial_anon(void)
{
	return test_partial(GTDP_ANON);
}

static bool test_partial_memfd(void)
{
	return test_partial(GTDP_MEMFD);
}

/* In the page cache, but not in the host's page tables: not mapped, yet there. */
static bool test_page_cache(void)
{
	struct kvm_populate_memory sum;
	struct env env;
	int r;

	env_create(&env, GTDP_MEMFD, 0);
	gtdp_stamp(env.mem.hva, NR_PAGES, HOST_TAG);
	r = madvise(env.mem.hva, MEM_SIZE, MADV_DONTNEED);
	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("madvise()", r));

	gtdp_add_slot(env.vm, GTDP_SLOT, 0, GTDP_GPA, &env.mem);
	sum = gtdp_populate(env.vm, GTDP_GPA, MEM_SIZE);
	TEST_ASSERT_EQ(sum.mapped, 0);
	TEST_ASSERT_EQ(sum.absent, MEM_SIZE);
	TEST_ASSERT_EQ(gtdp_run(env.vcpu, GTDP_CHECK, GTDP_GPA, NR_PAGES, HOST_TAG), NR_PAGES);

	env_destroy(&env);
	return true;
}

/*
 * Neither the slot nor its memory starts or ends with a region, and they are
 * misaligned in different ways, so huge pages of the host can't be used as such.
 */
static bool test_odd(enum gtdp_backing backing)
{
	const u64 gpa = GTDP_GPA + 3 * PAGE_SIZE;
	const u64 nr = NR_PAGES - GTDP_REGION_PAGES + 7;
	struct kvm_populate_memory sum;
	struct env env;

	env_create(&env, backing, PAGE_SIZE);
	env.mem.size = nr * PAGE_SIZE;
	gtdp_stamp(env.mem.hva, nr, HOST_TAG);
	if (backing == GTDP_THP && !gtdp_is_huge(env.mem.hva, env.mem.size - SZ_2M)) {
		env_destroy(&env);
		return false;
	}
	gtdp_add_slot(env.vm, GTDP_SLOT, 0, gpa, &env.mem);

	/* A part in the middle counts as what was asked for, then the rest. */
	sum = gtdp_populate(env.vm, gpa + 5 * PAGE_SIZE, 700 * PAGE_SIZE);
	TEST_ASSERT_EQ(sum.mapped, 700 * PAGE_SIZE);
	TEST_ASSERT_EQ(gtdp_run(env.vcpu, GTDP_CHECK, gpa + 5 * PAGE_SIZE, 700,
				HOST_TAG + 5), 0);
	gtdp_populate_full(env.vm, gpa, env.mem.size);
	check_no_faults(&env, gpa, env.mem.hva, nr);

	env_destroy(&env);
	return true;
}

static bool test_odd_anon(void)
{
	return test_odd(GTDP_ANON);
}

static bool test_odd_thp(void)
{
	return gtdp_has_thp() && test_odd(GTDP_THP);
}

/* Expect the guest's write to page 0 to be refused with @err, or as MMIO. */
static void check_write_refused(struct env *env, int err)
{
	struct kvm_run *run = env->vcpu->run;
	int r;

	gtdp_set_job(env->vcpu, (struct gtdp_job) {
		.op = GTDP_STAMP,
		.gpa = GTDP_GPA,
		.nr = 1,
		.step = 1,
		.tag = GUEST_TAG,
	});
	r = _vcpu_run(env->vcpu);
	if (err) {
		TEST_ASSERT(r && errno == err, KVM_IOCTL_ERROR(KVM_RUN, r));
	} else {
		TEST_ASSERT_EQ(r, 0);
		TEST_ASSERT_KVM_EXIT_REASON(env->vcpu, KVM_EXIT_MMIO);
		TEST_ASSERT_EQ(run->mmio.is_write, 1);
		TEST_ASSERT_EQ(run->mmio.phys_addr & PAGE_MASK, GTDP_GPA);
	}

	gtdp_check(env->mem.hva, NR_PAGES, HOST_TAG);
}

static bool test_readonly_slot(void)
{
	struct env env;

	if (!kvm_check_cap(KVM_CAP_READONLY_MEM))
		return false;

	env_create(&env, GTDP_ANON, 0);
	gtdp_stamp(env.mem.hva, NR_PAGES, HOST_TAG);
	gtdp_add_slot(env.vm, GTDP_SLOT, KVM_MEM_READONLY, GTDP_GPA, &env.mem);
	gtdp_populate_full(env.vm, GTDP_GPA, MEM_SIZE);
	TEST_ASSERT_EQ(gtdp_run(env.vcpu, GTDP_CHECK, GTDP_GPA, NR_PAGES, HOST_TAG), 0);
	check_write_refused(&env, 0);

	env_destroy(&env);
	return true;
}

static bool test_readonly_host(void)
{
	struct env env;
	int r;

	env_create(&env, GTDP_ANON, 0);
	gtdp_stamp(env.mem.hva, NR_PAGES, HOST_TAG);
	gtdp_add_slot(env.vm, GTDP_SLOT, 0, GTDP_GPA, &env.mem);

	r = mprotect(env.mem.hva, MEM_SIZE, PROT_READ);
	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("mprotect()", r));
	gtdp_populate_full(env.vm, GTDP_GPA, MEM_SIZE);
	TEST_ASSERT_EQ(gtdp_run(env.vcpu, GTDP_CHECK, GTDP_GPA, NR_PAGES, HOST_TAG), 0);
	check_write_refused(&env, EFAULT);

	/* The vCPU tries again, and succeeds once it is allowed to. */
	r = mprotect(env.mem.hva, MEM_SIZE, PROT_READ | PROT_WRITE);
	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("mprotect()", r));
	vcpu_run(env.vcpu);
	gtdp_finish_job(env.vcpu);
	gtdp_check(env.mem.hva, 1, GUEST_TAG);
	gtdp_check(env.mem.hva + PAGE_SIZE, NR_PAGES - 1, HOST_TAG + 1);

	env_destroy(&env);
	return true;
}

/* Nothing is mapped that the host itself must not access. */
static bool test_no_access(void)
{
	struct kvm_populate_memory sum;
	struct env env;
	int r;

	env_create(&env, GTDP_ANON, 0);
	gtdp_stamp(env.mem.hva, NR_PAGES, HOST_TAG);
	gtdp_add_slot(env.vm, GTDP_SLOT, 0, GTDP_GPA, &env.mem);

	r = mprotect(env.mem.hva, MEM_SIZE / 2, PROT_NONE);
	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("mprotect()", r));
	sum = gtdp_populate(env.vm, GTDP_GPA, MEM_SIZE);
	TEST_ASSERT_EQ(sum.mapped, MEM_SIZE / 2);
	TEST_ASSERT_EQ(sum.absent, MEM_SIZE / 2);

	r = mprotect(env.mem.hva, MEM_SIZE / 2, PROT_READ | PROT_WRITE);
	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("mprotect()", r));
	gtdp_populate_full(env.vm, GTDP_GPA, MEM_SIZE);
	check_no_faults(&env, GTDP_GPA, env.mem.hva, NR_PAGES);

	env_destroy(&env);
	return true;
}

/*
 * The guest may read what the page cache has, but a write gets it a page of its
 * own.  The same goes for a page shared with a child process.
 */
static bool test_copy_on_write(void)
{
	struct env env;
	void *file;

	if (!env_create(&env, GTDP_FILE_PRIVATE, 0))
		return false;

	file = mmap(NULL, env.mem.map_size, PROT_READ | PROT_WRITE, MAP_SHARED, env.mem.fd, 0);
	TEST_ASSERT(file != MAP_FAILED, __KVM_SYSCALL_ERROR("mmap()", -1));
	file += env.mem.hva - env.mem.map;
	gtdp_stamp(file, NR_PAGES, HOST_TAG);
	gtdp_check(env.mem.hva, NR_PAGES, HOST_TAG);

	gtdp_add_slot(env.vm, GTDP_SLOT, 0, GTDP_GPA, &env.mem);
	gtdp_populate_full(env.vm, GTDP_GPA, MEM_SIZE);
	TEST_ASSERT_EQ(gtdp_run(env.vcpu, GTDP_CHECK, GTDP_GPA, NR_PAGES, HOST_TAG), 0);
	gtdp_run(env.vcpu, GTDP_STAMP, GTDP_GPA, NR_PAGES, GUEST_TAG);
	gtdp_check(env.mem.hva, NR_PAGES, GUEST_TAG);
	gtdp_check(file, NR_PAGES, HOST_TAG);

	env_destroy(&env);
	munmap(file - (env.mem.hva - env.mem.map), env.mem.map_size);
	return true;
}

static void check_zero(void *hva, u64 nr)
{
	u64 i;

	for (i = 0; i < nr; i++)
		TEST_ASSERT_EQ(READ_ONCE(*(u64 *)(hva + i * PAGE_SIZE)), 0);
}

/* Memory the host only ever read is the zero page, which stays zero. */
static bool test_zero_page(enum gtdp_backing backing)
{
	const u64 half = NR_PAGES / 2;
	struct env env;
	u64 pfn, faults;

	env_create(&env, backing, 0);
	check_zero(env.mem.hva, NR_PAGES);
	TEST_ASSERT_EQ(gtdp_get_pfns(env.mem.hva, 1, &pfn), 1);
	TEST_ASSERT(gtdp_page_flag(pfn, KPF_ZERO_PAGE), "There is a page of its own");
	if (backing == GTDP_THP && !gtdp_page_flag(pfn, KPF_THP)) {
		ksft_print_msg("no huge zero page\n");
		env_destroy(&env);
		return false;
	}

	gtdp_add_slot(env.vm, GTDP_SLOT, 0, GTDP_GPA, &env.mem);
	gtdp_populate_full(env.vm, GTDP_GPA, MEM_SIZE);
	TEST_ASSERT_EQ(gtdp_run(env.vcpu, GTDP_CHECK_ZERO, GTDP_GPA, NR_PAGES, 0), 0);
	faults = gtdp_run(env.vcpu, GTDP_STAMP, GTDP_GPA, half, GUEST_TAG);
	if (backing == GTDP_ANON)
		TEST_ASSERT_EQ(faults, half);
	gtdp_check(env.mem.hva, half, GUEST_TAG);
	check_zero(env.mem.hva + half * PAGE_SIZE, NR_PAGES - half);

	env_destroy(&env);
	return true;
}

static bool test_zero_page_small(void)
{
	return test_zero_page(GTDP_ANON);
}

static bool test_zero_page_huge(void)
{
	return gtdp_has_thp() && test_zero_page(GTDP_THP);
}

/* Memory that the kernel itself can't access must not become a guest's. */
static bool test_secretmem(void)
{
	struct kvm_populate_memory sum;
	struct env env;
	void *secret;
	int fd, r;

	fd = syscall(__NR_memfd_secret, 0);
	if (fd < 0)
		return false;
	r = ftruncate(fd, SZ_2M);
	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("ftruncate()", r));

	env_create(&env, GTDP_ANON, 0);
	secret = mmap(env.mem.hva, SZ_2M, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
	if (secret != MAP_FAILED) {
		memset(env.mem.hva, 1, MEM_SIZE);
		gtdp_add_slot(env.vm, GTDP_SLOT, 0, GTDP_GPA, &env.mem);
		sum = gtdp_populate(env.vm, GTDP_GPA, MEM_SIZE);
		TEST_ASSERT_EQ(sum.mapped, MEM_SIZE - SZ_2M);
		TEST_ASSERT_EQ(sum.absent, SZ_2M);
	}

	env_destroy(&env);
	close(fd);
	return secret != MAP_FAILED;
}

/* All vCPUs profit, and each has its own faults to count. */
static void *check_all(void *vcpu)
{
	TEST_ASSERT_EQ(gtdp_run(vcpu, GTDP_CHECK, GTDP_GPA, NR_PAGES, HOST_TAG), 0);
	return NULL;
}

static bool test_vcpus(void)
{
	pthread_t threads[NR_VCPUS];
	struct env env;
	int i;

	env_create(&env, GTDP_MEMFD, 0);
	gtdp_stamp(env.mem.hva, NR_PAGES, HOST_TAG);
	gtdp_add_slot(env.vm, GTDP_SLOT, 0, GTDP_GPA, &env.mem);
	gtdp_populate_full(env.vm, GTDP_GPA, MEM_SIZE);

	for (i = 0; i < NR_VCPUS; i++)
		pthread_create(&threads[i], NULL, check_all, env.vcpus[i]);
	for (i = 0; i < NR_VCPUS; i++)
		pthread_join(threads[i], NULL);

	env_destroy(&env);
	return true;
}

/* Memory is populated bit by bit while vCPUs work with what already is. */
static u64 pages_ready;

static void *check_ready(void *vcpu)
{
	u64 nr;

	do {
		nr = READ_ONCE(pages_ready);
		TEST_ASSERT_EQ(gtdp_run(vcpu, GTDP_CHECK, GTDP_GPA, nr, HOST_TAG), 0);
	} while (nr < NR_PAGES);
	return NULL;
}

static bool test_while_running(void)
{
	const u64 step = GTDP_REGION_PAGES / 2 + 3;
	pthread_t threads[2];
	struct env env;
	u64 i, nr;

	env_create(&env, GTDP_ANON, 0);
	gtdp_add_slot(env.vm, GTDP_SLOT, 0, GTDP_GPA, &env.mem);

	pages_ready = 0;
	for (i = 0; i < ARRAY_SIZE(threads); i++)
		pthread_create(&threads[i], NULL, check_ready, env.vcpus[i]);

	for (i = 0; i < NR_PAGES; i += nr) {
		nr = min_t(u64, step, NR_PAGES - i);
		gtdp_stamp(env.mem.hva + i * PAGE_SIZE, nr, HOST_TAG + i);
		gtdp_populate_full(env.vm, GTDP_GPA + i * PAGE_SIZE, nr * PAGE_SIZE);
		WRITE_ONCE(pages_ready, i + nr);
	}

	for (i = 0; i < ARRAY_SIZE(threads); i++)
		pthread_join(threads[i], NULL);

	env_destroy(&env);
	return true;
}

/*
 * Pages that the guest could have written, but did not, are not reported dirty
 * to the host, which would have to write them back or keep them.  KVM has to see
 * the first write to tell which is which: those that the guest wrote must not be
 * dropped.
 */
static bool test_clean(void)
{
	int kpageflags = open("/proc/kpageflags", O_RDONLY);
	int pagemap = open("/proc/self/pagemap", O_RDONLY);
	u64 i, entry, flags, faults, dirty = 0;
	struct env env;
	ssize_t r;

	if (kpageflags < 0 || pagemap < 0)
		return false;

	/* Holes of a memfd become clean pages of zeroes, mapped writable. */
	env_create(&env, GTDP_MEMFD, 0);
	check_zero(env.mem.hva, NR_PAGES);

	gtdp_add_slot(env.vm, GTDP_SLOT, 0, GTDP_GPA, &env.mem);
	gtdp_populate_full(env.vm, GTDP_GPA, MEM_SIZE);
	TEST_ASSERT_EQ(gtdp_run(env.vcpu, GTDP_READ, GTDP_GPA, NR_PAGES, 0), 0);
	faults = gtdp_run(env.vcpu, GTDP_WRITE, GTDP_GPA, NR_PAGES / 2, 0);
	gtdp_delete_slot(env.vm, GTDP_SLOT);

	for (i = 0; i < NR_PAGES; i++) {
		r = pread(pagemap, &entry, sizeof(entry),
			  ((unsigned long)env.mem.hva / PAGE_SIZE + i) * sizeof(entry));
		TEST_ASSERT_EQ(r, sizeof(entry));
		r = pread(kpageflags, &flags, sizeof(flags),
			  (entry & GENMASK_ULL(54, 0)) * sizeof(flags));
		TEST_ASSERT_EQ(r, sizeof(flags));

		if (i < NR_PAGES / 2)
			TEST_ASSERT(flags & BIT_ULL(KPF_DIRTY), "Page %lu was written", i);
		else
			dirty += !!(flags & BIT_ULL(KPF_DIRTY));
	}
	TEST_ASSERT_EQ(dirty, 0);
	TEST_ASSERT_EQ(faults, NR_PAGES / 2);

	env_destroy(&env);
	close(kpageflags);
	close(pagemap);
	return true;
}

/* Whether a file is of a file system that wants to know of the first write to a page. */
static bool is_on_disk(int fd)
{
	struct statfs fs;

	TEST_ASSERT(!fstatfs(fd, &fs), "fstatfs()");
	return fs.f_type == EXT4_SUPER_MAGIC || fs.f_type == XFS_SUPER_MAGIC ||
	       fs.f_type == BTRFS_SUPER_MAGIC;
}

/* Have what is dirty written, and all of it read again. */
static void *reread(int fd, off_t offset)
{
	void *hva = mmap(NULL, MEM_SIZE, PROT_READ, MAP_SHARED, fd, offset);
	unsigned char cached[NR_PAGES];
	int i;

	TEST_ASSERT(hva != MAP_FAILED, __KVM_SYSCALL_ERROR("mmap()", -1));
	TEST_ASSERT(!fsync(fd), "fsync()");

	for (i = 0; i < MAX_TRIES; i++) {
		gtdp_drain_lru();
		posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
		TEST_ASSERT(!mincore(hva, MEM_SIZE, cached), "mincore()");
		if (!memchr(cached, 1, NR_PAGES))
			return hva;
	}
	TEST_FAIL("The page cache keeps the file");
	return NULL;
}

/*
 * What the guest writes to a file gets to the disk.  The host writes what is dirty,
 * and may drop all else from the page cache: of what a guest writes to a clean
 * page without the host knowing, nothing is left.
 */
static bool test_clean_file(void)
{
	const u64 nr_first = NR_PAGES / 2, nr_second = NR_PAGES / 4;
	u64 first, second;
	struct env env;
	off_t offset;
	void *hva;
	int fd;

	if (!env_create(&env, GTDP_FILE_SHARED, 0))
		return false;

	if (!is_on_disk(env.mem.fd)) {
		ksft_print_msg("no file system on a disk, see TMPDIR\n");
		env_destroy(&env);
		return false;
	}

	gtdp_stamp(env.mem.hva, NR_PAGES, HOST_TAG);
	gtdp_add_slot(env.vm, GTDP_SLOT, 0, GTDP_GPA, &env.mem);

	/* Once written back, pages are clean, whoever has written to them. */
	TEST_ASSERT(!msync(env.mem.hva, MEM_SIZE, MS_SYNC), "msync()");
	gtdp_populate_full(env.vm, GTDP_GPA, MEM_SIZE);
	TEST_ASSERT_EQ(gtdp_run(env.vcpu, GTDP_CHECK, GTDP_GPA, NR_PAGES, HOST_TAG), 0);
	first = gtdp_run(env.vcpu, GTDP_STAMP, GTDP_GPA, nr_first, GUEST_TAG);

	TEST_ASSERT(!msync(env.mem.hva, MEM_SIZE, MS_SYNC), "msync()");
	gtdp_populate_full(env.vm, GTDP_GPA, MEM_SIZE);
	second = gtdp_run(env.vcpu, GTDP_STAMP, GTDP_GPA, nr_second, 2 * GUEST_TAG);

	fd = dup(env.mem.fd);
	offset = env.mem.hva - env.mem.map;
	env_destroy(&env);

	hva = reread(fd, offset);
	gtdp_check(hva, nr_second, 2 * GUEST_TAG);
	gtdp_check(hva + nr_second * PAGE_SIZE, nr_first - nr_second, GUEST_TAG + nr_second);
	gtdp_check(hva + nr_first * PAGE_SIZE, NR_PAGES - nr_first, HOST_TAG + nr_first);
	TEST_ASSERT_EQ(first, nr_first);
	TEST_ASSERT_EQ(second, nr_second);

	munmap(hva, MEM_SIZE);
	close(fd);
	return true;
}

/* The host passes over pages that somebody else is just looking at: insist. */
static void reclaim(void *hva, u64 nr)
{
	u64 pfns[NR_PAGES];
	int i, r;

	for (i = 0; i < MAX_TRIES; i++) {
		gtdp_drain_lru();
		r = madvise(hva, nr * PAGE_SIZE, MADV_PAGEOUT);
		TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("madvise()", r));
		if (!gtdp_get_pfns(hva, nr, pfns))
			return;
	}
	TEST_FAIL("%lu of %lu pages are kept", gtdp_get_pfns(hva, nr, pfns), nr);
}

/*
 * Pages that the host was told that it may free are free to go until somebody
 * writes to them, and that is nobody who just maps them.  Of the first half of
 * the memory, which is free to go, the guest writes to the first half.
 */
static bool test_freed(enum gtdp_backing backing)
{
	const u64 freed = NR_PAGES / 2, written = NR_PAGES / 4;
	u64 faults, per_fault = 1;
	struct env env;
	int r;

	env_create(&env, backing, 0);
	gtdp_stamp(env.mem.hva, NR_PAGES, HOST_TAG);
	if (backing == GTDP_THP) {
		if (!gtdp_is_huge(env.mem.hva, MEM_SIZE)) {
			env_destroy(&env);
			return false;
		}
		per_fault = GTDP_REGION_PAGES;
	}

	gtdp_add_slot(env.vm, GTDP_SLOT, 0, GTDP_GPA, &env.mem);
	gtdp_drain_lru();
	r = madvise(env.mem.hva, freed * PAGE_SIZE, MADV_FREE);
	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("madvise()", r));
	gtdp_populate_full(env.vm, GTDP_GPA, MEM_SIZE);

	/* None of that is a reason to fault when it is read, ... */
	TEST_ASSERT_EQ(gtdp_run(env.vcpu, GTDP_CHECK, GTDP_GPA, NR_PAGES, HOST_TAG), 0);
	/* ...or when it is written, if it is the host's to keep. */
	TEST_ASSERT_EQ(gtdp_run(env.vcpu, GTDP_STAMP, GTDP_GPA + freed * PAGE_SIZE,
				NR_PAGES - freed, GUEST_TAG + freed), 0);
	faults = gtdp_run(env.vcpu, GTDP_STAMP, GTDP_GPA, written, GUEST_TAG);

	reclaim(env.mem.hva + written * PAGE_SIZE, freed - written);
	check_zero(env.mem.hva + written * PAGE_SIZE, freed - written);

	r = madvise(env.mem.hva, MEM_SIZE, MADV_PAGEOUT);
	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("madvise()", r));
	gtdp_check(env.mem.hva, written, GUEST_TAG);
	gtdp_check(env.mem.hva + freed * PAGE_SIZE, NR_PAGES - freed, GUEST_TAG + freed);
	TEST_ASSERT_EQ(faults, written / per_fault);

	env_destroy(&env);
	return true;
}

static bool test_freed_small(void)
{
	return test_freed(GTDP_ANON);
}

static bool test_freed_huge(void)
{
	return gtdp_has_thp() && test_freed(GTDP_THP);
}

/* Half of the memory is there, in regions as well as in pages of a region. */
static void populate_half(struct env *env, u64 installed)
{
	const u64 small = gtdp_vm_stat(env->vm, "tdp_populated_4k");
	const u64 absent = gtdp_nr_absent(env->vm);
	const u64 ns = gtdp_vm_stat(env->vm, "tdp_populate_time_ns");
	struct kvm_populate_memory sum;
	struct timespec start;
	u64 took, told;

	clock_gettime(CLOCK_MONOTONIC, &start);
	sum = gtdp_populate(env->vm, GTDP_GPA, MEM_SIZE);
	took = timespec_to_ns(timespec_elapsed(start));
	TEST_ASSERT_EQ(sum.mapped, MEM_SIZE / 2);

	TEST_ASSERT_EQ(gtdp_vm_stat(env->vm, "tdp_populated_4k"), small + installed);
	TEST_ASSERT_EQ(gtdp_nr_absent(env->vm), absent + NR_PAGES / 2);
	told = gtdp_vm_stat(env->vm, "tdp_populate_time_ns") - ns;
	TEST_ASSERT(told && told <= took, "Took %lu ns, of which %lu are told", took, told);
}

/* What is mapped already is not counted again, what is absent, and the time, is. */
static bool test_statistics(void)
{
	const u64 half = NR_PAGES / 2;
	struct env env;
	u64 i;

	env_create(&env, GTDP_ANON, 0);
	gtdp_stamp(env.mem.hva, half / 2, HOST_TAG);
	for (i = half; i < NR_PAGES; i += 2)
		gtdp_stamp(env.mem.hva + i * PAGE_SIZE, 1, HOST_TAG + i);
	gtdp_add_slot(env.vm, GTDP_SLOT, 0, GTDP_GPA, &env.mem);

	populate_half(&env, half);
	populate_half(&env, 0);
	TEST_ASSERT_EQ(gtdp_vm_stat(env.vm, "tdp_populated_2m"), 0);
	TEST_ASSERT_EQ(gtdp_vm_stat(env.vm, "tdp_populated_1g"), 0);
	TEST_ASSERT_EQ(gtdp_vm_stat(env.vm, "tdp_fault_around"), 0);
	TEST_ASSERT_EQ(gtdp_vm_stat(env.vm, "tdp_repopulated"), 0);

	env_destroy(&env);
	return true;
}

#define TRACEPOINTS	"/sys/kernel/tracing/events/kvmmmu"

/* Page tables have 4 or 5 levels: there is nothing, not even for a tracepoint to read. */
static bool test_beyond(void)
{
	const u64 gpas[] = { 1ULL << 48, 1ULL << 57 };
	struct kvm_pre_fault_memory range;
	struct kvm_vcpu *vcpu;
	struct kvm_vm *vm;
	int i, r;

	gtdp_write_file(TRACEPOINTS, "enable", "1");
	vm = gtdp_vm_create(KVM_GLOBAL_TDP_POPULATE, 1, &vcpu);
	for (i = 0; i < ARRAY_SIZE(gpas); i++) {
		range = (struct kvm_pre_fault_memory) { .gpa = gpas[i], .size = PAGE_SIZE };
		r = __vcpu_ioctl(vcpu, KVM_PRE_FAULT_MEMORY, &range);
		TEST_ASSERT(r && errno == ENOENT, KVM_IOCTL_ERROR(KVM_PRE_FAULT_MEMORY, r));
	}

	gtdp_write_file(TRACEPOINTS, "enable", "0");
	kvm_vm_free(vm);
	return true;
}

static const struct gtdp_test tests[] = {
	{ "not populated", test_control },
	{ "anonymous memory", test_anon },
	{ "transparent huge pages", test_thp },
	{ "hugetlb", test_hugetlb },
	{ "memfd", test_memfd },
	{ "private file", test_file_private },
	{ "shared file", test_file_shared },
	{ "nothing present", test_nothing_anon },
	{ "nothing present, transparent huge pages", test_nothing_thp },
	{ "nothing present, hugetlb", test_nothing_hugetlb },
	{ "nothing present, memfd", test_nothing_memfd },
	{ "nothing present, gigabytes", test_nothing_large },
	{ "partly present", test_partial_anon },
	{ "partly present memfd", test_partial_memfd },
	{ "in the page cache only", test_page_cache },
	{ "misaligned", test_odd_anon },
	{ "misaligned huge pages", test_odd_thp },
	{ "read-only memslot", test_readonly_slot },
	{ "read-only memory", test_readonly_host },
	{ "no access", test_no_access },
	{ "copy on write", test_copy_on_write },
	{ "zero page", test_zero_page_small },
	{ "huge zero page", test_zero_page_huge },
	{ "secret memory", test_secretmem },
	{ "several vCPUs", test_vcpus },
	{ "while vCPUs run", test_while_running },
	{ "clean pages", test_clean },
	{ "clean pages of a file on a disk", test_clean_file },
	{ "freed pages", test_freed_small },
	{ "freed huge pages", test_freed_huge },
	{ "statistics", test_statistics },
	{ "prefaulted beyond what page tables reach", test_beyond },
};

/* Takes part of the name of a test, to leave out all others. */
int main(int argc, char *argv[])
{
	gtdp_require(KVM_GLOBAL_TDP_POPULATE);
	gtdp_run_some_tests(tests, ARRAY_SIZE(tests), argc > 1 ? argv[1] : NULL);
}
