// SPDX-License-Identifier: GPL-2.0
/*
 * What the tests of Global TDP share, see global_tdp.h.
 */
#include <dirent.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <asm/barrier.h>
#include <linux/bitmap.h>
#include <linux/kernel-page-flags.h>
#include <linux/mempolicy.h>
#include <linux/mman.h>

#include "test_util.h"
#include "kvm_util.h"
#include "processor.h"
#include "ucall_common.h"
#include "global_tdp.h"

#define MAX_VCPUS	8

/* Of calls that have to be repeated, without getting any further. */
#define MAX_ATTEMPTS	100000

#define RET		0xc3

#define CGROUPS		"/sys/fs/cgroup"
#define HUGEPAGES	"/sys/kernel/mm/hugepages/hugepages"
#define PARAMS		"/sys/module/kvm/parameters"
#define MAX_PARAMS	4

/* What the parameters that were set had been before, in that order. */
static struct {
	const char *name;
	char value[16];
} params[MAX_PARAMS];
static int nr_params;

/* One mailbox per vCPU, in the guest's copy of the variable. */
static struct gtdp_job jobs[MAX_VCPUS];

/* Whoever keeps a call from getting further may not be running now. */
static void give_way(int attempts)
{
	if (attempts > 100)
		usleep(100);
}

static u64 stamp_of(u64 tag)
{
	return tag * 0x9e3779b97f4a7c15ULL;
}

/* Pages have the stamp in their first and last word. */
static u64 *page_end(u64 *page)
{
	return page + PAGE_SIZE / sizeof(*page) - 1;
}

static bool is_stamped(u64 *page, u64 tag)
{
	return READ_ONCE(*page) == stamp_of(tag) &&
	       READ_ONCE(*page_end(page)) == stamp_of(tag);
}

static void stamp(u64 *page, u64 tag)
{
	WRITE_ONCE(*page, stamp_of(tag));
	WRITE_ONCE(*page_end(page), stamp_of(tag));
}

static void guest_do_job(const struct gtdp_job *job)
{
	u64 i, nr = job->nr, step = job->step;
	u64 *page;

	/* A loop per operation, as some are measured. */
#define for_each_page()							\
	for (i = 0, page = (void *)job->gpa; i < nr;			\
	     i += step, page += step * (PAGE_SIZE / sizeof(*page)))

	switch (job->op) {
	case GTDP_READ:
		for_each_page()
			READ_ONCE(*page);
		break;
	case GTDP_WRITE:
		for_each_page()
			WRITE_ONCE(page[1], i);
		break;
	case GTDP_CHECK:
		for_each_page()
			__GUEST_ASSERT(is_stamped(page, job->tag + i),
				       "page %lu at %p: %#lx, %#lx, wanted %#lx", i,
				       page, *page, *page_end(page), stamp_of(job->tag + i));
		break;
	case GTDP_STAMP:
		for_each_page()
			stamp(page, job->tag + i);
		break;
	case GTDP_CHECK_ZERO:
		for_each_page()
			__GUEST_ASSERT(!READ_ONCE(*page) && !READ_ONCE(*page_end(page)),
				       "page %lu at %p: %#lx, %#lx, wanted 0", i,
				       page, *page, *page_end(page));
		break;
	case GTDP_EXEC:
		for_each_page()
			((void (*)(void))((void *)page + GTDP_CODE_OFFSET))();
		break;
	}
}

static void guest_main(u64 id)
{
	for (;;) {
		guest_do_job(&jobs[id]);
		GUEST_SYNC(0);
	}
}

void gtdp_require(u64 features)
{
	TEST_REQUIRE((kvm_check_cap(KVM_CAP_GLOBAL_TDP) & features) == features);
}

bool gtdp_enabled_by_default(void)
{
	return gtdp_param_is("global_tdp", "always");
}

bool gtdp_is_chosen(const char *name, const char *part)
{
	return !part || strstr(name, part);
}

void gtdp_run_some_tests(const struct gtdp_test *tests, int nr, const char *part)
{
	int i, chosen = 0;

	for (i = 0; i < nr; i++)
		chosen += gtdp_is_chosen(tests[i].name, part);
	TEST_ASSERT(chosen, "No test has '%s' in its name", part);

	ksft_print_header();
	ksft_set_plan(chosen);

	for (i = 0; i < nr; i++) {
		if (!gtdp_is_chosen(tests[i].name, part))
			continue;

		if (tests[i].fn())
			ksft_test_result_pass("%s\n", tests[i].name);
		else
			ksft_test_result_skip("%s\n", tests[i].name);
	}

	ksft_finished();
}

void gtdp_run_tests(const struct gtdp_test *tests, int nr)
{
	gtdp_run_some_tests(tests, nr, NULL);
}

/* A VM for up to @nr_vcpus vCPUs, none of which there is yet. */
struct kvm_vm *gtdp_vm_create_bare(int nr_vcpus)
{
	TEST_ASSERT(nr_vcpus <= MAX_VCPUS, "Too many vCPUs");

	return __vm_create(VM_SHAPE_DEFAULT, nr_vcpus, 0);
}

/*
 * All of slot 0 is made resident, so that the guest's code, stacks and page
 * tables can be mapped beforehand and don't add faults to those of its job.
 */
void gtdp_vm_add_vcpus(struct kvm_vm *vm, int nr_vcpus, struct kvm_vcpu *vcpus[])
{
	struct userspace_mem_region *code = memslot2region(vm, 0);
	int i, r;

	virt_map_level(vm, GTDP_GPA, GTDP_GPA, GTDP_WINDOW, PG_LEVEL_2M);

	r = madvise(code->host_mem, code->region.memory_size, MADV_POPULATE_WRITE);
	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("madvise()", r));

	for (i = 0; i < nr_vcpus; i++) {
		vcpus[i] = vm_vcpu_add(vm, i, guest_main);
		vcpu_args_set(vcpus[i], 1, (u64)i);
	}
}

struct kvm_vm *__gtdp_vm_create(u64 features, u32 ring_size,
				int nr_vcpus, struct kvm_vcpu *vcpus[])
{
	struct kvm_vm *vm = gtdp_vm_create_bare(nr_vcpus);

	if (features != GTDP_DEFAULT)
		vm_enable_cap(vm, KVM_CAP_GLOBAL_TDP, features);
	if (ring_size)
		vm_enable_dirty_ring(vm, ring_size);

	gtdp_vm_add_vcpus(vm, nr_vcpus, vcpus);
	return vm;
}

struct kvm_vm *gtdp_vm_create(u64 features, int nr_vcpus,
			      struct kvm_vcpu *vcpus[])
{
	return __gtdp_vm_create(features, 0, nr_vcpus, vcpus);
}

u64 gtdp_code_size(struct kvm_vm *vm)
{
	return memslot2region(vm, 0)->region.memory_size;
}

void gtdp_populate_code(struct kvm_vm *vm)
{
	gtdp_populate_full(vm, 0, gtdp_code_size(vm));
}

void gtdp_prefault(struct kvm_vcpu *vcpu, u64 gpa, u64 size)
{
	struct kvm_pre_fault_memory range = { .gpa = gpa, .size = size };
	int r, attempts = 0;
	u64 before;

	do {
		before = range.gpa;
		r = __vcpu_ioctl(vcpu, KVM_PRE_FAULT_MEMORY, &range);
		TEST_ASSERT(!r || errno == EINTR || errno == EAGAIN,
			    KVM_IOCTL_ERROR(KVM_PRE_FAULT_MEMORY, r));
		attempts = range.gpa == before ? attempts + 1 : 0;
		TEST_ASSERT(attempts < MAX_ATTEMPTS, "Got no further than %#llx in %d calls",
			    range.gpa, attempts);
		give_way(attempts);
	} while (r || range.size);
}

/* As gtdp_populate_code(), but without any part of Global TDP. */
void gtdp_prefault_code(struct kvm_vcpu *vcpu)
{
	gtdp_prefault(vcpu, 0, gtdp_code_size(vcpu->vm));

	/* Without A/D bits the first access to a prefaulted page faults. */
	gtdp_run(vcpu, GTDP_READ, GTDP_GPA, 0, 0);
}

/* An unlinked file of a file system that can map it, the disk's if possible. */
static int open_file(size_t size)
{
	const char * const dirs[] = { getenv("TMPDIR"), ".", "/var/tmp", "/tmp" };
	char path[PATH_MAX];
	void *map;
	int fd, i;

	for (i = 0; i < ARRAY_SIZE(dirs); i++) {
		if (!dirs[i])
			continue;

		snprintf(path, sizeof(path), "%s/global_tdp.XXXXXX", dirs[i]);
		fd = mkstemp(path);
		if (fd < 0)
			continue;
		unlink(path);

		if (!ftruncate(fd, size)) {
			map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
			if (map != MAP_FAILED) {
				munmap(map, size);
				return fd;
			}
		}
		close(fd);
	}

	return -1;
}

static int open_backing(enum gtdp_backing backing, size_t size)
{
	switch (backing) {
	case GTDP_MEMFD:
		return kvm_memfd_alloc(size, false);
	case GTDP_FILE_PRIVATE:
	case GTDP_FILE_SHARED:
		return open_file(size);
	default:
		return -1;
	}
}

static bool is_hugetlb(enum gtdp_backing backing)
{
	return backing == GTDP_HUGETLB || backing == GTDP_HUGETLB_1G;
}

static size_t hugetlb_size(enum gtdp_backing backing)
{
	return backing == GTDP_HUGETLB_1G ? SZ_1G : SZ_2M;
}

static bool read_pool(size_t size, const char *name, unsigned int *nr)
{
	char path[128];
	FILE *file;
	bool found;

	snprintf(path, sizeof(path), HUGEPAGES "-%zukB/%s", size / SZ_1K, name);
	file = fopen(path, "r");
	found = file && fscanf(file, "%u", nr) == 1;
	if (file)
		fclose(file);
	return found;
}

static bool write_pool(size_t size, unsigned int nr)
{
	char dir[64], text[16];

	snprintf(dir, sizeof(dir), HUGEPAGES "-%zukB", size / SZ_1K);
	snprintf(text, sizeof(text), "%u", nr);
	return gtdp_write_file(dir, "nr_hugepages", text);
}

/*
 * Let there be @nr free huge pages.  Not of 1GiB: that may well take longer than the
 * kernel's watchdog allows for, as pages are zeroed in one go.
 */
static bool reserve_hugetlb(size_t size, unsigned int nr)
{
	unsigned int total, unused;

	if (!read_pool(size, "free_hugepages", &unused))
		return false;
	if (unused >= nr)
		return true;

	return size < SZ_1G && read_pool(size, "nr_hugepages", &total) &&
	       write_pool(size, total + nr - unused) &&
	       read_pool(size, "free_hugepages", &unused) && unused >= nr;
}

/*
 * Map memory of the given kind, nothing of which is present yet.  Its address
 * is @offset bytes after a multiple of 2MiB.
 */
bool gtdp_mem_alloc(struct gtdp_mem *mem, enum gtdp_backing backing,
		    size_t size, size_t offset)
{
	bool is_file = backing == GTDP_MEMFD || backing == GTDP_FILE_PRIVATE ||
		       backing == GTDP_FILE_SHARED;
	int flags, advice, r;

	flags = backing == GTDP_SHMEM || backing == GTDP_MEMFD ||
		backing == GTDP_FILE_SHARED ? MAP_SHARED : MAP_PRIVATE;
	if (!is_file)
		flags |= MAP_ANONYMOUS;

	*mem = (struct gtdp_mem) {
		.size = size,
		.map_size = align_up(size + offset, SZ_2M) + SZ_2M,
		.fd = -1,
	};

	if (is_hugetlb(backing)) {
		TEST_ASSERT(!(offset % SZ_2M), "hugetlb can't be misaligned");
		mem->map_size = align_up(size, hugetlb_size(backing));
		flags |= MAP_HUGETLB;
		flags |= backing == GTDP_HUGETLB_1G ? MAP_HUGE_1GB : MAP_HUGE_2MB;
		if (!reserve_hugetlb(hugetlb_size(backing),
				     mem->map_size / hugetlb_size(backing)))
			return false;
	}

	if (is_file) {
		mem->fd = open_backing(backing, mem->map_size);
		if (mem->fd < 0)
			return false;
	}

	mem->map = mmap(NULL, mem->map_size, PROT_READ | PROT_WRITE, flags,
			mem->fd, 0);
	TEST_ASSERT(mem->map != MAP_FAILED, __KVM_SYSCALL_ERROR("mmap()", -1));

	mem->hva = align_ptr_up(mem->map, SZ_2M) + offset % SZ_2M;

	if (!is_hugetlb(backing) && thp_configured()) {
		advice = backing == GTDP_THP ? MADV_HUGEPAGE : MADV_NOHUGEPAGE;
		r = madvise(mem->map, mem->map_size, advice);
		TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("madvise()", r));
	}

	return true;
}

void gtdp_mem_free(struct gtdp_mem *mem)
{
	munmap(mem->map, mem->map_size);
	if (mem->fd >= 0)
		close(mem->fd);
}

void gtdp_add_slot(struct kvm_vm *vm, u32 slot, u32 flags,
		   u64 gpa, struct gtdp_mem *mem)
{
	vm_set_user_memory_region(vm, slot, flags, gpa, mem->size, mem->hva);
}

void gtdp_delete_slot(struct kvm_vm *vm, u32 slot)
{
	vm_set_user_memory_region(vm, slot, 0, 0, 0, NULL);
}

void gtdp_stamp(void *hva, u64 nr, u64 tag)
{
	u64 i;

	for (i = 0; i < nr; i++)
		stamp(hva + i * PAGE_SIZE, tag + i);
}

/* Let the pages be called by the guest, which does nothing. */
void gtdp_make_code(void *hva, u64 nr)
{
	u64 i;

	for (i = 0; i < nr; i++)
		*(u8 *)(hva + i * PAGE_SIZE + GTDP_CODE_OFFSET) = RET;
}

void gtdp_check(void *hva, u64 nr, u64 tag)
{
	u64 *page, i;

	for (i = 0; i < nr; i++) {
		page = hva + i * PAGE_SIZE;
		TEST_ASSERT(is_stamped(page, tag + i),
			    "page %lu at %p: %#lx, %#lx, wanted %#lx", i, page,
			    *page, *page_end(page), stamp_of(tag + i));
	}
}

/* The number of pages that the host has, mapped or in the page cache. */
u64 gtdp_nr_resident(void *hva, size_t size)
{
	u64 i, nr = size / PAGE_SIZE, resident = 0;
	unsigned char *vec = malloc(nr);
	int r;

	TEST_ASSERT(vec, "Insufficient memory");
	r = mincore(hva, size, vec);
	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("mincore()", r));

	for (i = 0; i < nr; i++)
		resident += vec[i] & 1;

	free(vec);
	return resident;
}

/* How much of the mapping around @hva the host has as huge pages. */
u64 gtdp_huge_bytes(void *hva)
{
	unsigned long start, end, kib, bytes = 0;
	bool found = false;
	char line[512];
	FILE *file;

	file = fopen("/proc/self/smaps", "r");
	TEST_ASSERT(file, "No /proc/self/smaps");

	while (fgets(line, sizeof(line), file)) {
		if (sscanf(line, "%lx-%lx ", &start, &end) == 2)
			found = (unsigned long)hva >= start && (unsigned long)hva < end;
		else if (found && (sscanf(line, "AnonHugePages: %lu kB", &kib) == 1 ||
				   sscanf(line, "ShmemPmdMapped: %lu kB", &kib) == 1 ||
				   sscanf(line, "Private_Hugetlb: %lu kB", &kib) == 1))
			bytes += kib * SZ_1K;
	}

	fclose(file);
	return bytes;
}

bool gtdp_has_thp(void)
{
	if (thp_configured())
		return true;

	ksft_print_msg("no transparent huge pages\n");
	return false;
}

/* Whether SPTEs of VMs that are not nested have Accessed and Dirty bits. */
bool gtdp_has_ad_bits(void)
{
	return !host_cpu_is_intel || get_kvm_intel_param_bool("eptad");
}

/* Whether there are huge pages where they were asked for: the host may have none. */
bool gtdp_is_huge(void *hva, u64 bytes)
{
	u64 huge = gtdp_huge_bytes(hva);

	if (huge >= bytes)
		return true;

	ksft_print_msg("%lu bytes of huge pages, not %lu\n", huge, bytes);
	return false;
}

static u64 read_entry(int fd, u64 index)
{
	u64 entry;
	ssize_t r;

	r = pread(fd, &entry, sizeof(entry), index * sizeof(entry));
	TEST_ASSERT_EQ(r, sizeof(entry));
	return entry;
}

/*
 * Look up the physical pages that the host has mapped, 0 where there is none,
 * and return their number.
 */
u64 gtdp_get_pfns(void *hva, u64 nr, u64 *pfns)
{
	int fd = open_path_or_exit("/proc/self/pagemap", O_RDONLY);
	u64 i, entry, present = 0;

	for (i = 0; i < nr; i++) {
		entry = read_entry(fd, (uintptr_t)hva / PAGE_SIZE + i);
		pfns[i] = entry & BIT_ULL(63) ? entry & GENMASK_ULL(54, 0) : 0;
		present += !!pfns[i];
	}

	close(fd);
	return present;
}

/* @flag is one of KPF_*. */
bool gtdp_page_flag(u64 pfn, unsigned int flag)
{
	int fd = open_path_or_exit("/proc/kpageflags", O_RDONLY);
	u64 flags = read_entry(fd, pfn);

	close(fd);
	return flags & BIT_ULL(flag);
}

/*
 * Have the kernel empty its batches of pages that are on the way to a list: it
 * holds a reference for each.  Asking for a page to be moved does that, to
 * where it is already, too.
 */
void gtdp_drain_lru(void)
{
	int node = 0, status;
	void *page = &node;

	if (!syscall(__NR_move_pages, 0, 1, &page, &node, &status, MPOL_MF_MOVE))
		return;

	/*
	 * Without NUMA there is no such call.  To collapse nothing does it, too.
	 * A mapping without any memory is refused before: touch its last page,
	 * which is not in what is to be collapsed.
	 */
	page = mmap(NULL, 2 * SZ_2M, PROT_READ | PROT_WRITE,
		    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	TEST_ASSERT(page != MAP_FAILED, __KVM_SYSCALL_ERROR("mmap()", -1));
	*(char *)(page + 2 * SZ_2M - 1) = 1;
	madvise((void *)align_up((uintptr_t)page, SZ_2M), SZ_2M, MADV_COLLAPSE);
	munmap(page, 2 * SZ_2M);
}

/*
 * The number of @pfns, once the host's mapping of them is gone, that are not
 * free.  A page of memory that nobody maps anymore, but that someone still has
 * a reference to, remains on a list of the reclaim's.
 */
u64 gtdp_nr_held(const u64 *pfns, u64 nr)
{
	const u64 mask = BIT_ULL(KPF_LRU) | BIT_ULL(KPF_SWAPBACKED);
	int counts = open_path_or_exit("/proc/kpagecount", O_RDONLY);
	int flags = open_path_or_exit("/proc/kpageflags", O_RDONLY);
	u64 i, held;
	int tries = 100;

	/* Who just looks at a page has a reference for a moment: let that pass. */
	do {
		gtdp_drain_lru();
		for (i = held = 0; i < nr; i++)
			held += !read_entry(counts, pfns[i]) &&
				(read_entry(flags, pfns[i]) & mask) == mask;
	} while (held && --tries && !usleep(10000));

	close(counts);
	close(flags);
	return held;
}

/*
 * Repeat a call for as long as it is to be repeated.  Returns 0, or the error that
 * it came back with else, and in @sum what the calls have mapped, or not.
 */
int gtdp_populate_on(struct kvm_vm *vm, struct kvm_populate_memory *range,
		     struct kvm_populate_memory *sum)
{
	const u64 end = range->gpa + range->size;
	int r, err, attempts = 0;
	u64 before;

	*sum = (struct kvm_populate_memory) {};

	do {
		before = range->gpa;
		r = __vm_ioctl(vm, KVM_POPULATE_MEMORY, range);
		err = r ? errno : 0;
		if (!(range->flags & KVM_POPULATE_BITMAP))
			TEST_ASSERT_EQ(range->mapped + range->absent, range->gpa - before);
		TEST_ASSERT_EQ(range->gpa + range->size, end);

		sum->mapped += range->mapped;
		sum->absent += range->absent;
		attempts = range->gpa == before ? attempts + 1 : 0;
		TEST_ASSERT(attempts < MAX_ATTEMPTS, "Got no further than %#llx in %d calls: %s",
			    range->gpa, attempts, strerror(err));
		give_way(attempts);
	} while (err == EINTR || err == EAGAIN);

	return err;
}

/*
 * Take, into @bitmap, which pages the guest has accessed.  Returns their bytes.  It is
 * interrupted if the thread is being frozen, as a test may have it.
 */
u64 gtdp_harvest(struct kvm_vm *vm, u32 as_id, u64 gpa, u64 size, u64 *bitmap)
{
	struct kvm_harvest_accessed range = {
		.gpa = gpa,
		.size = size,
		.as_id = as_id,
		.bitmap = (uintptr_t)bitmap,
	};
	u64 accessed = 0;
	int r;

	do {
		r = __vm_ioctl(vm, KVM_HARVEST_ACCESSED, &range);
		accessed += range.accessed;
	} while (r && errno == EINTR);

	TEST_ASSERT(!r, KVM_IOCTL_ERROR(KVM_HARVEST_ACCESSED, r));
	TEST_ASSERT_EQ(range.gpa, gpa + size);
	TEST_ASSERT_EQ(range.size, 0);
	return accessed;
}

/* Returns the sums of what the calls that were necessary had mapped, or not. */
struct kvm_populate_memory gtdp_populate(struct kvm_vm *vm, u64 gpa,
					 u64 size)
{
	struct kvm_populate_memory range = { .gpa = gpa, .size = size }, sum;
	int err = gtdp_populate_on(vm, &range, &sum);

	TEST_ASSERT(!err, "KVM_POPULATE_MEMORY at %#llx: %s", range.gpa, strerror(err));
	TEST_ASSERT_EQ(range.size, 0);
	return sum;
}

/* Populate what is known to be present. */
/* Leave it to the follower, which is created if there is none yet. */
void gtdp_populate_async(struct kvm_vm *vm, u64 gpa, u64 size)
{
	struct kvm_populate_memory range = {
		.gpa = gpa,
		.size = size,
		.flags = KVM_POPULATE_ASYNC,
	};
	int r;

	/* It is interrupted if the thread is being frozen, as a test may have it. */
	do {
		r = __vm_ioctl(vm, KVM_POPULATE_MEMORY, &range);
	} while (r && errno == EINTR);

	TEST_ASSERT(!r, KVM_IOCTL_ERROR(KVM_POPULATE_MEMORY, r));
}

void gtdp_populate_full(struct kvm_vm *vm, u64 gpa, u64 size)
{
	struct kvm_populate_memory sum = gtdp_populate(vm, gpa, size);

	TEST_ASSERT_EQ(sum.mapped, size);
	TEST_ASSERT_EQ(sum.absent, 0);
}

/*
 * The statistic.  Of a histogram, how many values it has, and the least that their sum may be;
 * that is below twice as much.
 */
static u64 read_stat(int fd, const char *name, u64 *least)
{
	struct kvm_stats_desc *descs, *desc;
	struct kvm_stats_header header;
	u64 data[32], sum = 0;
	bool found = false;
	int i, j;

	read_stats_header(fd, &header);
	descs = read_stats_descriptors(fd, &header);

	for (i = 0; i < header.num_desc && !found; i++) {
		desc = get_stats_descriptor(descs, i, &header);
		found = !strcmp(desc->name, name);
		if (!found)
			continue;

		TEST_ASSERT(desc->size <= ARRAY_SIZE(data), "'%s' is too large", name);
		read_stat_data(fd, &header, desc, data, desc->size);
		for (j = 0; j < desc->size; j++) {
			sum += data[j];
			if (least && j)
				*least += data[j] << (j - 1);
		}
	}
	TEST_ASSERT(found, "No statistic '%s'", name);

	free(descs);
	close(fd);
	return sum;
}

u32 gtdp_read_ring(struct kvm_vcpu *vcpu, u32 first, unsigned long *log,
			u64 nr_pages, bool harvest)
{
	struct kvm_dirty_gfn *ring = vcpu_map_dirty_ring(vcpu), *entry;
	const u32 size = vcpu->vm->dirty_ring_size / sizeof(*ring);
	u32 nr;

	for (nr = 0; ; nr++) {
		entry = &ring[(first + nr) % size];
		/* What is in the entry was written before its flag... */
		if (smp_load_acquire(&entry->flags) != KVM_DIRTY_GFN_F_DIRTY)
			return nr;

		TEST_ASSERT_EQ(entry->slot, GTDP_SLOT);
		TEST_ASSERT(entry->offset < nr_pages, "No page %llu", entry->offset);
		TEST_ASSERT(nr < size, "The ring has no end");
		__set_bit(entry->offset, log);
		if (!harvest)
			continue;

		/* ...and is read before KVM may use it again. */
		smp_store_release(&entry->flags, KVM_DIRTY_GFN_F_RESET);
	}
}

u64 gtdp_vm_stat(struct kvm_vm *vm, const char *name)
{
	return read_stat(vm_get_stats_fd(vm), name, NULL);
}

u64 gtdp_vm_hist(struct kvm_vm *vm, const char *name, u64 *least)
{
	*least = 0;
	return read_stat(vm_get_stats_fd(vm), name, least);
}

u64 gtdp_vcpu_stat(struct kvm_vcpu *vcpu, const char *name)
{
	return read_stat(vcpu_get_stats_fd(vcpu), name, NULL);
}

static u64 sum_of_stats(struct kvm_vm *vm, const char *small,
			     const char *large, const char *huge)
{
	u64 nr;

	/* Small ones first: a page that becomes part of a huge one is not missed. */
	nr = gtdp_vm_stat(vm, small);
	nr += gtdp_vm_stat(vm, large) * GTDP_REGION_PAGES;
	nr += gtdp_vm_stat(vm, huge) * GTDP_REGION_PAGES * GTDP_REGION_PAGES;
	return nr;
}

/* KVM's threads in this process, which build page tables: at most @max of them. */
int gtdp_kernel_threads(pid_t *tids, int max)
{
	DIR *tasks = opendir("/proc/self/task");
	char path[64], comm[16];
	struct dirent *task;
	FILE *file;
	int nr = 0;

	TEST_ASSERT(tasks, "Can't open /proc/self/task");

	while ((task = readdir(tasks))) {
		snprintf(path, sizeof(path), "/proc/self/task/%.16s/comm", task->d_name);
		file = fopen(path, "r");
		if (!file)
			continue;

		if (fgets(comm, sizeof(comm), file) && !strncmp(comm, "kvm-gtdp", 8)) {
			TEST_ASSERT(nr < max, "More than %d threads of KVM", max);
			tids[nr++] = atoi(task->d_name);
		}
		fclose(file);
	}
	closedir(tasks);

	return nr;
}

/* How often a thread has gone to sleep, i.e. was woken up again but for the last. */
u64 gtdp_nr_sleeps(pid_t tid)
{
	char path[64], line[256];
	u64 nr = 0;
	FILE *file;
	int r = 0;

	snprintf(path, sizeof(path), "/proc/self/task/%d/status", tid);
	file = fopen(path, "r");
	TEST_ASSERT(file, "No %s", path);
	while (r != 1 && fgets(line, sizeof(line), file))
		r = sscanf(line, "voluntary_ctxt_switches: %lu", &nr);
	TEST_ASSERT_EQ(r, 1);
	fclose(file);
	return nr;
}

/* Whether a thread waits for something else than a CPU; not if it is gone. */
bool gtdp_is_asleep(pid_t tid)
{
	char path[64], line[256], *state = NULL;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/self/task/%d/stat", tid);
	file = fopen(path, "r");
	if (!file)
		return false;

	if (fgets(line, sizeof(line), file))
		state = strrchr(line, ')');
	fclose(file);
	return state && !strncmp(state, ") S", 3);
}

/* The number that a file begins with. */
u64 gtdp_read_number(const char *dir, const char *name)
{
	char path[PATH_MAX];
	u64 value;
	FILE *file;
	int r;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	file = fopen(path, "r");
	TEST_ASSERT(file, "No %s", path);
	r = fscanf(file, "%lu", &value);
	TEST_ASSERT_EQ(r, 1);
	fclose(file);
	return value;
}

#define DEBUGFS_KVM	"/sys/kernel/debug/kvm"

/* Where debugfs tells about a VM that the process has created; false if there is none. */
static bool find_vm(pid_t pid, char *path, size_t size)
{
	char prefix[16];
	struct dirent *entry;
	bool found = false;
	DIR *dir;

	snprintf(prefix, sizeof(prefix), "%d-", pid);
	dir = opendir(DEBUGFS_KVM);
	TEST_ASSERT(dir, "No " DEBUGFS_KVM);
	while (!found && (entry = readdir(dir))) {
		found = !strncmp(entry->d_name, prefix, strlen(prefix));
		if (found)
			snprintf(path, size, DEBUGFS_KVM "/%s", entry->d_name);
	}
	closedir(dir);
	return found;
}

/* Whether a VM that the process has created, which may be gone by now, exists. */
bool gtdp_has_vm(pid_t pid)
{
	char path[PATH_MAX];

	return find_vm(pid, path, sizeof(path));
}

/* A statistic of a VM of another process. */
u64 gtdp_vm_stat_of(pid_t pid, const char *name)
{
	char path[PATH_MAX];

	TEST_ASSERT(find_vm(pid, path, sizeof(path)), "There is no VM of %d", pid);
	return gtdp_read_number(path, name);
}

/* Whether debugfs has a file for a statistic of the VM of a process. */
bool gtdp_has_stat_file(pid_t pid, const char *name)
{
	char path[PATH_MAX], file[PATH_MAX + NAME_MAX];

	TEST_ASSERT(find_vm(pid, path, sizeof(path)), "There is no VM of %d", pid);
	snprintf(file, sizeof(file), "%s/%s", path, name);
	return !access(file, F_OK);
}

/* The time that a thread has run for, in ns. */
u64 gtdp_cpu_time(pid_t tid)
{
	char dir[32];

	snprintf(dir, sizeof(dir), "/proc/%d", tid);
	return gtdp_read_number(dir, "schedstat");
}

/* What is mapped right now, whoever mapped it, in 4KiB pages. */
u64 gtdp_nr_mapped(struct kvm_vm *vm)
{
	return sum_of_stats(vm, "pages_4k", "pages_2m", "pages_1g");
}

/* What has been mapped ahead of faults since the VM was created. */
u64 gtdp_nr_populated(struct kvm_vm *vm)
{
	return sum_of_stats(vm, "tdp_populated_4k", "tdp_populated_2m",
			    "tdp_populated_1g");
}

/*
 * What has been looked at and was not to be mapped, in 4KiB pages, each time that
 * it was.  Where nothing arrives, that tells that the follower has looked.
 */
u64 gtdp_nr_absent(struct kvm_vm *vm)
{
	return gtdp_vm_stat(vm, "tdp_populate_absent");
}

/*
 * Wait until the follower has mapped @nr pages.  Until then @action, if there is
 * one, is done over and over, for what is tried again on such an occasion only.
 */
void __gtdp_wait_mapped(struct kvm_vm *vm, u64 nr, void (*action)(void *arg),
			void *arg)
{
	time_t end = time(NULL) + GTDP_WAIT_SECONDS;

	while (gtdp_nr_mapped(vm) < nr) {
		TEST_ASSERT(time(NULL) < end, "%lu of %lu pages mapped in %d s",
			    gtdp_nr_mapped(vm), nr, GTDP_WAIT_SECONDS);
		if (action)
			action(arg);
		usleep(10000);
	}
}

void gtdp_wait_mapped(struct kvm_vm *vm, u64 nr)
{
	__gtdp_wait_mapped(vm, nr, NULL, NULL);
}

/*
 * Wait until the follower has mapped @nr pages, in a process with one VM.  Fail if it was
 * asleep at more than @msecs looks, which are 1ms or more apart.  It is not asleep while it
 * runs or waits for a CPU; and where it is woken up late, so is the thread that looks.
 * Hence a busy host makes the test slow, but not fail.
 */
void gtdp_wait_mapped_in(struct kvm_vm *vm, u64 nr, int msecs)
{
	time_t end = time(NULL) + GTDP_WAIT_SECONDS;
	int asleep = 0;
	u64 mapped;
	pid_t tids[8];

	while ((mapped = gtdp_nr_mapped(vm)) < nr) {
		/* The follower of an earlier VM may not have exited yet. */
		if (gtdp_kernel_threads(tids, ARRAY_SIZE(tids)) == 1)
			asleep += gtdp_is_asleep(tids[0]);

		TEST_ASSERT(asleep <= msecs && time(NULL) < end,
			    "%lu of %lu pages mapped when the follower had slept %d ms", mapped, nr,
			    asleep);
		usleep(1000);
	}
}

void gtdp_set_job(struct kvm_vcpu *vcpu, struct gtdp_job job)
{
	struct gtdp_job *mailbox = addr_gva2hva(vcpu->vm, (gva_t)jobs);

	mailbox[vcpu->id] = job;
}

/* Check that the vCPU, back from KVM_RUN, has done what it had been told to. */
void gtdp_finish_job(struct kvm_vcpu *vcpu)
{
	struct ucall uc;

	switch (get_ucall(vcpu, &uc)) {
	case UCALL_SYNC:
		break;
	case UCALL_ABORT:
		REPORT_GUEST_ASSERT(uc);
	default:
		vcpu_dump(stderr, vcpu, 0);
		TEST_FAIL("Unexpected exit: %s",
			  exit_reason_str(vcpu->run->exit_reason));
	}
}

/* Returns the number of stage-2 faults that the vCPU has taken. */
u64 gtdp_run_job(struct kvm_vcpu *vcpu, struct gtdp_job job)
{
	u64 faults = gtdp_vcpu_stat(vcpu, "pf_taken");

	gtdp_set_job(vcpu, job);
	vcpu_run(vcpu);
	gtdp_finish_job(vcpu);

	return gtdp_vcpu_stat(vcpu, "pf_taken") - faults;
}

u64 gtdp_run(struct kvm_vcpu *vcpu, enum gtdp_op op, u64 gpa,
		  u64 nr, u64 tag)
{
	return gtdp_run_job(vcpu, (struct gtdp_job) {
		.op = op,
		.gpa = gpa,
		.nr = nr,
		.step = 1,
		.tag = tag,
	});
}

/* Returns 0, or the error that KVM_RUN came back with instead. */
int gtdp_try(struct kvm_vcpu *vcpu, enum gtdp_op op, u64 gpa, u64 nr,
	     u64 tag)
{
	gtdp_set_job(vcpu, (struct gtdp_job) {
		.op = op,
		.gpa = gpa,
		.nr = nr,
		.step = 1,
		.tag = tag,
	});
	/* Not _vcpu_run(), which does not come back with EINTR. */
	if (__vcpu_run(vcpu))
		return errno;

	gtdp_finish_job(vcpu);
	return 0;
}

static void *sigbus_addr;
static int sigbus_code;
static int nr_sigbus;

static void sigbus(int signal, siginfo_t *info, void *context)
{
	sigbus_addr = info->si_addr;
	sigbus_code = info->si_code;
	nr_sigbus++;
}

static const struct sigaction sigbus_action = {
	.sa_sigaction = sigbus,
	.sa_flags = SA_SIGINFO,
};

bool gtdp_poison(void *hva)
{
	struct sigaction before;
	int r;

	/* Who injects an error may be told of it. */
	sigaction(SIGBUS, &sigbus_action, &before);

	/*
	 * Busy is a page that is poisoned and unmapped while the LRU has a
	 * reference, as it may if KVM, zapping it, says that it was accessed.
	 */
	gtdp_drain_lru();
	r = madvise(hva, PAGE_SIZE, MADV_HWPOISON);
	if (r && errno == EBUSY)
		r = 0;
	if (r) {
		TEST_ASSERT(errno == EINVAL || errno == EPERM, "Page can't be poisoned: %s",
			    strerror(errno));
		ksft_print_msg("no page can be poisoned: %s\n", strerror(errno));
	}

	sigaction(SIGBUS, &before, NULL);
	return !r;
}

void gtdp_check_poisoned(struct kvm_vcpu *vcpu, u64 gpa, void *hva)
{
	struct sigaction before;

	nr_sigbus = 0;
	sigaction(SIGBUS, &sigbus_action, &before);
	TEST_ASSERT_EQ(gtdp_try(vcpu, GTDP_READ, gpa, 1, 0), EINTR);
	sigaction(SIGBUS, &before, NULL);

	TEST_ASSERT_EQ(nr_sigbus, 1);
	TEST_ASSERT_EQ(sigbus_code, BUS_MCEERR_AR);
	TEST_ASSERT(sigbus_addr == hva, "Told of %p, not of %p", sigbus_addr, hva);
}

bool gtdp_write_file(const char *dir, const char *name, const char *text)
{
	char path[PATH_MAX];
	ssize_t r;
	int fd;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	fd = open(path, O_WRONLY);
	if (fd < 0)
		return false;

	r = write(fd, text, strlen(text));
	close(fd);
	return r == strlen(text);
}

void gtdp_restore_params(void)
{
	while (nr_params) {
		nr_params--;
		gtdp_write_file(PARAMS, params[nr_params].name, params[nr_params].value);
	}
}

static bool read_param(const char *name, char *value, int size)
{
	char path[PATH_MAX];
	FILE *file;
	bool found;

	snprintf(path, sizeof(path), PARAMS "/%s", name);
	file = fopen(path, "r");
	if (!file)
		return false;
	found = fgets(value, size, file);
	fclose(file);
	return found;
}

bool gtdp_param_is(const char *name, const char *value)
{
	char is[16];

	TEST_ASSERT(read_param(name, is, sizeof(is)), "%s can't be read", name);
	is[strcspn(is, "\n")] = '\0';
	return !strcmp(is, value);
}

static bool save_param(const char *name)
{
	static bool registered;
	int i;

	for (i = 0; i < nr_params; i++) {
		if (!strcmp(params[i].name, name))
			return true;
	}
	TEST_ASSERT(nr_params < MAX_PARAMS, "Too many parameters");

	if (!read_param(name, params[nr_params].value, sizeof(params[nr_params].value)))
		return false;
	params[nr_params++].name = name;

	/* For when an assertion fails, too. */
	if (!registered)
		atexit(gtdp_restore_params);
	registered = true;
	return true;
}

bool gtdp_set_param(const char *name, const char *value)
{
	if (save_param(name) && gtdp_write_file(PARAMS, name, value))
		return true;

	ksft_print_msg("%s can't be set\n", name);
	return false;
}

/*
 * Create a cgroup, in the root if @parent is NULL, with "memory" or "pids" as its
 * @controller, or none if that is NULL.  Returns the path of its directory, or
 * NULL if there is no such cgroup to be had.
 */
char *gtdp_cgroup_create(const char *parent, const char *controller)
{
	char name[32], *path = malloc(PATH_MAX);

	TEST_ASSERT(path, "Insufficient memory");
	if (!parent)
		parent = CGROUPS;
	if (controller) {
		snprintf(name, sizeof(name), "+%s", controller);
		gtdp_write_file(parent, "cgroup.subtree_control", name);
	}

	snprintf(path, PATH_MAX, "%s/global_tdp.%d", parent, getpid());
	if (mkdir(path, 0755))
		goto free;
	if (!controller)
		return path;

	snprintf(name, sizeof(name), "%s.max", controller);
	if (gtdp_write_file(path, name, "max"))
		return path;

	rmdir(path);
free:
	free(path);
	return NULL;
}

/* Other than a disk, zram is done with a page at once. */
bool gtdp_has_zram_swap(u64 bytes)
{
	FILE *file = fopen("/proc/swaps", "r");
	unsigned long size, used;
	char line[256];
	bool found = false;

	while (file && fgets(line, sizeof(line), file)) {
		if (sscanf(line, "/dev/zram%*d %*s %lu %lu", &size, &used) == 2)
			found |= (size - used) * SZ_1K >= bytes;
	}
	if (file)
		fclose(file);
	if (!found)
		ksft_print_msg("no swap space on zram\n");
	return found;
}

/* A value of a file that has a line for each, e.g. memory.stat. */
u64 gtdp_cgroup_stat(const char *path, const char *name, const char *key)
{
	char file_path[PATH_MAX], word[64];
	bool found = false;
	u64 value;
	FILE *file;

	snprintf(file_path, sizeof(file_path), "%s/%s", path, name);
	file = fopen(file_path, "r");
	TEST_ASSERT(file, "No %s", file_path);
	while (!found && fscanf(file, "%63s %lu", word, &value) == 2)
		found = !strcmp(word, key);
	TEST_ASSERT(found, "No '%s' in %s", key, file_path);
	fclose(file);
	return value;
}

void gtdp_cgroup_destroy(char *path)
{
	TEST_ASSERT(!rmdir(path), __KVM_SYSCALL_ERROR("rmdir()", -1));
	free(path);
}

/*
 * Start @vmm as a process of its own, in @cgroup unless that is NULL.  It ends
 * itself, by _exit(): what this process has yet to print is not printed twice.
 */
pid_t gtdp_start(const char *cgroup, void (*vmm)(void))
{
	pid_t parent = getpid(), pid = fork();

	if (pid)
		return pid;

	/* Not to outlive a test that has failed. */
	if (prctl(PR_SET_PDEATHSIG, SIGKILL) || getppid() != parent)
		_exit(1);

	TEST_ASSERT(!cgroup || gtdp_write_file(cgroup, "cgroup.procs", "0"),
		    "Can't enter %s", cgroup);
	vmm();
	_exit(1);
}

/* Fails if it is not: who waits for it to do something would wait in vain. */
bool gtdp_is_alive(pid_t pid)
{
	int status;
	pid_t r = waitpid(pid, &status, WNOHANG);

	TEST_ASSERT(!r, "The VMM ended with status %#x", status);
	return true;
}

void gtdp_check_exit(pid_t pid)
{
	int status;

	TEST_ASSERT_EQ(waitpid(pid, &status, 0), pid);
	TEST_ASSERT(WIFEXITED(status) && !WEXITSTATUS(status),
		    "The VMM ended with status %#x", status);
}
