// SPDX-License-Identifier: GPL-2.0
/*
 * Proves that memory that is a file's, and in the page cache, but that the VMM has not
 * touched, is mapped around the faults of a guest that uses what is mapped, or by
 * KVM_POPULATE_MEMORY, if asked to; that what the page cache does not hold is neither read
 * nor made; and that what userfaultfd or the VMM's own mapping guards stays alone.
 */
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <linux/userfaultfd.h>

#include "test_util.h"
#include "kvm_util.h"
#include "processor.h"
#include "global_tdp.h"

#define MEM_SIZE	SZ_8M
#define NR_PAGES	(MEM_SIZE / PAGE_SIZE)
#define NR_REGIONS	(MEM_SIZE / SZ_2M)

#define HOST_TAG	1
#define GUEST_TAG	1000000

/* How often the guest checks all of its memory beside a host that takes it away. */
#define NR_CHECKS	30

#define POPULATE	KVM_GLOBAL_TDP_POPULATE
#define AROUND		(KVM_GLOBAL_TDP_FAULT_AROUND | KVM_GLOBAL_TDP_PAGE_CACHE)

/* Faults in a region that is read page by page, at most: 0, 16, 32, 48, 128, and one more. */
#define NR_FAULTS	6

struct env {
	struct kvm_vm *vm;
	struct kvm_vcpu *vcpu;
	struct gtdp_mem mem;
};

static bool stop;

static off_t file_offset(const struct gtdp_mem *mem)
{
	return mem->hva - mem->map;
}

/* Have stamped pages in the page cache, by a mapping that is gone then. */
static void fill_cache(struct gtdp_mem *mem, u64 first, u64 nr, u64 step)
{
	void *map = mmap(NULL, mem->size, PROT_READ | PROT_WRITE, MAP_SHARED, mem->fd,
			 file_offset(mem));
	u64 i;

	TEST_ASSERT(map != MAP_FAILED, __KVM_SYSCALL_ERROR("mmap()", -1));
	for (i = first; i < first + nr; i += step)
		gtdp_stamp(map + i * PAGE_SIZE, 1, HOST_TAG + i);
	munmap(map, mem->size);

	/* Pages that are just being written are locked. */
	TEST_ASSERT(!fsync(mem->fd), "fsync()");
}

static void create_vm(struct env *env, u64 features, u64 gpa)
{
	env->vm = gtdp_vm_create(features, 1, &env->vcpu);
	if (features != GTDP_DEFAULT && features & POPULATE)
		gtdp_populate_code(env->vm);
	else
		gtdp_prefault_code(env->vcpu);
	gtdp_add_slot(env->vm, GTDP_SLOT, 0, gpa, &env->mem);
}

static bool create(struct env *env, u64 features, enum gtdp_backing backing,
		   u64 gpa, size_t offset)
{
	if (!gtdp_mem_alloc(&env->mem, backing, MEM_SIZE, offset))
		return false;

	create_vm(env, features, gpa);
	return true;
}

static void destroy(struct env *env)
{
	kvm_vm_free(env->vm);
	gtdp_mem_free(&env->mem);
}

/* Pages that the host has mapped, not only in the page cache. */
static u64 nr_touched(void *hva, u64 size)
{
	static u64 pfns[NR_PAGES];

	return gtdp_get_pfns(hva, size / PAGE_SIZE, pfns);
}

static struct kvm_populate_memory populate(struct kvm_vm *vm, u64 gpa, u64 size,
					   u32 flags)
{
	struct kvm_populate_memory sum, range = { .gpa = gpa, .size = size, .flags = flags };

	TEST_ASSERT_EQ(gtdp_populate_on(vm, &range, &sum), 0);
	return sum;
}

static struct kvm_populate_memory populate_cached(struct kvm_vm *vm)
{
	return populate(vm, GTDP_GPA, MEM_SIZE, KVM_POPULATE_PAGE_CACHE);
}

/* Whether all VMs have it. */
static bool is_default(void)
{
	return gtdp_enabled_by_default() && get_kvm_param_bool("global_tdp_page_cache");
}

/* The faults of a guest that reads all of a file in the page cache. */
static u64 count_faults(u64 features, enum gtdp_backing backing, u64 gpa,
			     size_t offset)
{
	bool cached = features == GTDP_DEFAULT ? is_default() :
						 features & KVM_GLOBAL_TDP_PAGE_CACHE;
	u64 faults, copied;
	struct env env;

	TEST_ASSERT(create(&env, features, backing, gpa, offset), "No such memory");
	fill_cache(&env.mem, 0, NR_PAGES, 1);
	faults = gtdp_run(env.vcpu, GTDP_CHECK, gpa, NR_PAGES, HOST_TAG);

	TEST_ASSERT_EQ(!!gtdp_vm_stat(env.vm, "tdp_page_cache"), cached && gtdp_has_ad_bits());

	/* What it writes is its own, or the file's: a fault copies a page, and maps the copy. */
	copied = gtdp_run(env.vcpu, GTDP_STAMP, gpa, NR_PAGES, GUEST_TAG);
	gtdp_check(env.mem.hva, NR_PAGES, GUEST_TAG);
	if (backing == GTDP_FILE_PRIVATE) {
		TEST_ASSERT(copied <= NR_PAGES, "%lu faults to write to pages", copied);
		TEST_ASSERT(!madvise(env.mem.hva, MEM_SIZE, MADV_DONTNEED), "madvise()");
		gtdp_run(env.vcpu, GTDP_CHECK, gpa, NR_PAGES, HOST_TAG);
	}

	destroy(&env);
	return faults;
}

static bool test_around(enum gtdp_backing backing)
{
	u64 faults;

	/* The host's own fault-around maps some, but less than a region. */
	faults = count_faults(KVM_GLOBAL_TDP_FAULT_AROUND, backing, GTDP_GPA, 0);
	TEST_ASSERT(faults > 2 * NR_FAULTS * NR_REGIONS, "All was mapped without being asked for");

	faults = count_faults(AROUND, backing, GTDP_GPA, 0);
	TEST_ASSERT(!gtdp_has_ad_bits() || faults <= NR_FAULTS * NR_REGIONS,
		    "%lu faults in %lu regions", faults, (unsigned long)NR_REGIONS);
	return true;
}

static bool test_around_memfd(void)
{
	return test_around(GTDP_MEMFD);
}

static bool test_around_private(void)
{
	return test_around(GTDP_FILE_PRIVATE);
}

static bool test_around_shared(void)
{
	return test_around(GTDP_FILE_SHARED);
}

/*
 * A region is in two of the host's page tables.  One that is not there is made by a fault
 * of its own.  The host aligns what it maps around faults by its own addresses.
 */
static bool test_misaligned(void)
{
	const u64 most = 3 * NR_FAULTS * (NR_REGIONS + 1);
	u64 faults[2];

	faults[0] = count_faults(AROUND, GTDP_MEMFD, GTDP_GPA, 3 * PAGE_SIZE);
	faults[1] = count_faults(AROUND, GTDP_FILE_PRIVATE, GTDP_GPA + 5 * PAGE_SIZE, PAGE_SIZE);
	TEST_ASSERT(!gtdp_has_ad_bits() || (faults[0] <= most && faults[1] <= most),
		    "%lu and %lu faults, not up to %lu", faults[0], faults[1], most);
	return true;
}

/* The faults of a guest that writes all pages, without a look at them before. */
static u64 count_write_faults(u64 features, enum gtdp_backing backing)
{
	u64 faults;
	struct env env;

	TEST_ASSERT(create(&env, features, backing, GTDP_GPA, 0), "No such memory");
	fill_cache(&env.mem, 0, NR_PAGES, 1);
	faults = gtdp_run(env.vcpu, GTDP_STAMP, GTDP_GPA, NR_PAGES, GUEST_TAG);
	gtdp_check(env.mem.hva, NR_PAGES, GUEST_TAG);
	TEST_ASSERT_EQ(!!gtdp_vm_stat(env.vm, "tdp_page_cache"),
		       backing == GTDP_MEMFD && gtdp_has_ad_bits());

	destroy(&env);
	return faults;
}

/* In a private mapping, pages that were mapped before would be zapped to be copied. */
static bool test_written_first(void)
{
	TEST_ASSERT_EQ(count_write_faults(0, GTDP_FILE_PRIVATE), NR_PAGES);
	TEST_ASSERT_EQ(count_write_faults(AROUND, GTDP_FILE_PRIVATE), NR_PAGES);
	/* With Global TDP off, too, to have been read first takes no second fault. */
	TEST_ASSERT_EQ(count_faults(0, GTDP_FILE_PRIVATE, GTDP_GPA, 0), NR_PAGES);
	TEST_ASSERT(!gtdp_has_ad_bits() || count_write_faults(AROUND, GTDP_MEMFD) <= NR_PAGES / 8,
		    "Shared memory was not mapped around writes");
	return true;
}

/*
 * With the parameter on, others may be faster than the vCPU, but not slower; nor the
 * cause of another fault, but if they map the very page at the very moment.
 */
static bool test_default(void)
{
	u64 faults = count_faults(GTDP_DEFAULT, GTDP_FILE_PRIVATE, GTDP_GPA, 0);

	TEST_ASSERT(is_default() && gtdp_has_ad_bits() ?
		    faults <= NR_FAULTS * NR_REGIONS + 1 : faults > 2 * NR_FAULTS * NR_REGIONS,
		    "%lu faults", faults);
	return true;
}

/* With global_tdp=always, a parameter decides.  VMMs that ask have it in any case. */
static bool test_parameter(void)
{
	if (!gtdp_set_param("global_tdp", "always") ||
	    !gtdp_set_param("global_tdp_page_cache", "N")) {
		gtdp_restore_params();
		return false;
	}
	test_default();
	TEST_ASSERT(count_faults(AROUND, GTDP_FILE_PRIVATE, GTDP_GPA, 0) <=
		    NR_FAULTS * NR_REGIONS || !gtdp_has_ad_bits(), "The parameter has a say");

	TEST_ASSERT(gtdp_set_param("global_tdp_page_cache", "Y"), "It can't be turned on");
	test_default();
	gtdp_restore_params();
	return true;
}

/* How much the host has mapped once a guest has read one of @step pages. */
static u64 nr_touched_by_steps(u64 features, u64 step)
{
	u64 nr, touched;
	struct env env;

	if (!create(&env, features, GTDP_FILE_PRIVATE, GTDP_GPA, 0))
		return 0;
	fill_cache(&env.mem, 0, NR_PAGES, 1);

	nr = gtdp_run_job(env.vcpu, (struct gtdp_job) {
		.op = GTDP_CHECK,
		.gpa = GTDP_GPA,
		.nr = NR_PAGES,
		.step = step,
		.tag = HOST_TAG,
	});
	TEST_ASSERT_EQ(nr, NR_PAGES / step);

	touched = nr_touched(env.mem.hva, MEM_SIZE);
	destroy(&env);
	return touched;
}

/*
 * A guest that uses a page here and there has no more mapped than the host maps around each
 * of them by itself, in whatever distance these pages are.
 */
static bool test_sparse(void)
{
	u64 step, most, touched;

	for (step = 32; step <= GTDP_REGION_PAGES; step *= 2) {
		most = nr_touched_by_steps(AROUND & ~KVM_GLOBAL_TDP_PAGE_CACHE, step);
		if (!most)
			return false;

		touched = nr_touched_by_steps(AROUND, step);
		TEST_ASSERT(touched <= most, "%lu pages are mapped for one of %lu, not %lu",
			    touched, step, most);
	}
	return true;
}

/* Have userfaultfd told of faults in some of the memory; -1, and says so, if it can't be. */
static int arm(const struct env *env, u64 offset, u64 len, u64 mode,
	       u64 features)
{
	struct uffdio_api api = { .api = UFFD_API, .features = features };
	struct uffdio_register reg = {
		.range = { .start = (u64)env->mem.hva + offset, .len = len },
		.mode = mode,
	};
	int uffd;

	uffd = syscall(__NR_userfaultfd, O_CLOEXEC | O_NONBLOCK);
	if (uffd >= 0 && !ioctl(uffd, UFFDIO_API, &api) && !ioctl(uffd, UFFDIO_REGISTER, &reg))
		return uffd;

	ksft_print_msg("no userfaultfd: %s\n", strerror(errno));
	close(uffd);
	return -1;
}

static void check_no_event(int uffd, const char *name)
{
	struct uffd_msg msg;

	TEST_ASSERT(read(uffd, &msg, sizeof(msg)) < 0 && errno == EAGAIN,
		    "%s: an event was raised", name);
}

static u64 file_blocks(struct gtdp_mem *mem)
{
	struct stat st;

	TEST_ASSERT(!fstat(mem->fd, &st), "fstat()");
	return st.st_blocks;
}

static bool test_populate(enum gtdp_backing backing)
{
	struct kvm_populate_memory sum;
	struct env env;

	if (!create(&env, POPULATE, backing, GTDP_GPA, 0))
		return false;
	fill_cache(&env.mem, 0, NR_PAGES, 1);

	TEST_ASSERT_EQ(gtdp_populate(env.vm, GTDP_GPA, MEM_SIZE).absent, MEM_SIZE);
	TEST_ASSERT_EQ(nr_touched(env.mem.hva, MEM_SIZE), 0);

	sum = populate_cached(env.vm);
	TEST_ASSERT_EQ(sum.mapped, MEM_SIZE);
	TEST_ASSERT_EQ(sum.absent, 0);
	TEST_ASSERT_EQ(gtdp_run(env.vcpu, GTDP_CHECK, GTDP_GPA, NR_PAGES, HOST_TAG), 0);

	destroy(&env);
	return true;
}

static bool test_populate_memfd(void)
{
	return test_populate(GTDP_MEMFD);
}

static bool test_populate_private(void)
{
	return test_populate(GTDP_FILE_PRIVATE);
}

/* Where the cache has holes, nothing is made; what comes later is mapped later. */
static bool test_holes(void)
{
	struct kvm_populate_memory sum;
	u64 blocks;
	struct env env;

	if (!create(&env, POPULATE, GTDP_MEMFD, GTDP_GPA, 0))
		return false;

	TEST_ASSERT_EQ(populate_cached(env.vm).absent, MEM_SIZE);
	TEST_ASSERT_EQ(file_blocks(&env.mem), 0);

	fill_cache(&env.mem, 1, NR_PAGES / 2, 2);
	blocks = file_blocks(&env.mem);
	sum = populate_cached(env.vm);
	TEST_ASSERT_EQ(sum.mapped, MEM_SIZE / 4);
	TEST_ASSERT_EQ(sum.absent, MEM_SIZE - MEM_SIZE / 4);
	TEST_ASSERT_EQ(file_blocks(&env.mem), blocks);

	fill_cache(&env.mem, NR_PAGES / 2, NR_PAGES / 2, 1);
	TEST_ASSERT_EQ(populate_cached(env.vm).mapped, MEM_SIZE - MEM_SIZE / 4);
	TEST_ASSERT_EQ(gtdp_run(env.vcpu, GTDP_CHECK, GTDP_GPA + MEM_SIZE / 2, NR_PAGES / 2,
				HOST_TAG + NR_PAGES / 2), 0);

	destroy(&env);
	return true;
}

/* What is in swap is in the file, but not in the page cache. */
static bool test_swapped(void)
{
	struct env env;

	if (!gtdp_has_zram_swap(2 * MEM_SIZE))
		return false;

	if (!create(&env, POPULATE, GTDP_MEMFD, GTDP_GPA, 0))
		return false;
	gtdp_stamp(env.mem.hva, NR_PAGES, HOST_TAG);
	gtdp_drain_lru();
	TEST_ASSERT(!madvise(env.mem.hva, MEM_SIZE, MADV_PAGEOUT), "madvise()");
	TEST_ASSERT_EQ(gtdp_nr_resident(env.mem.hva, MEM_SIZE), 0);

	TEST_ASSERT_EQ(populate_cached(env.vm).absent, MEM_SIZE);
	TEST_ASSERT_EQ(gtdp_nr_resident(env.mem.hva, MEM_SIZE), 0);
	gtdp_run(env.vcpu, GTDP_CHECK, GTDP_GPA, NR_PAGES, HOST_TAG);

	destroy(&env);
	return true;
}

/* Have all but so many bytes at its beginning read from the disk; false if there is none. */
static bool drop_cache(struct gtdp_mem *mem, size_t kept)
{
	int i;

	/* The host keeps pages that somebody just looks at. */
	for (i = 0; i < 20; i++) {
		gtdp_drain_lru();
		posix_fadvise(mem->fd, file_offset(mem) + kept, mem->size - kept,
			      POSIX_FADV_DONTNEED);
		if (!gtdp_nr_resident(mem->hva + kept, mem->size - kept))
			return true;
	}

	ksft_print_msg("no file system on a disk, see TMPDIR\n");
	return false;
}

/* What the host reads ahead is resident once it has been read. */
static u64 wait_resident(void *hva, size_t size)
{
	u64 before, resident = 0;

	do {
		before = resident;
		usleep(100000);
		resident = gtdp_nr_resident(hva, size);
	} while (resident != before);
	return resident;
}

/*
 * A page that the host has read ahead, and that has it read more as soon as it is touched, is
 * not touched for there to be a page table.
 */
static bool test_read_ahead(void)
{
	u64 resident, after;
	struct env env;
	char buf[SZ_16K];
	int i;

	if (!create(&env, POPULATE, GTDP_FILE_PRIVATE, GTDP_GPA, 0))
		return false;
	fill_cache(&env.mem, 0, NR_PAGES, 1);
	if (!drop_cache(&env.mem, 0)) {
		destroy(&env);
		return false;
	}

	/* With the second, the host reads ahead, and marks the first page of that. */
	for (i = 0; i < 2; i++)
		TEST_ASSERT_EQ(pread(env.mem.fd, buf, sizeof(buf),
				     file_offset(&env.mem) + i * sizeof(buf)), sizeof(buf));
	gtdp_drain_lru();
	posix_fadvise(env.mem.fd, file_offset(&env.mem), 2 * sizeof(buf), POSIX_FADV_DONTNEED);
	gtdp_wait_until(gtdp_nr_resident(env.mem.hva, MEM_SIZE));
	resident = wait_resident(env.mem.hva, MEM_SIZE);

	populate_cached(env.vm);
	after = wait_resident(env.mem.hva, MEM_SIZE);
	TEST_ASSERT(after == resident, "%lu pages were read, not %lu", after, resident);

	destroy(&env);
	return true;
}

static void touch(void *hva)
{
	READ_ONCE(*(u64 *)hva);
}

/*
 * The host stops to read around what faults of a file miss, if most do.  What it is made to
 * map, though nobody has touched it, does not have it go on.
 */
static bool test_read_around(void)
{
	const int nr_around = 100, nr_alone = 100, around = 64;
	void *hva, *last;
	struct env env;
	int i;

	if (!gtdp_mem_alloc(&env.mem, GTDP_FILE_PRIVATE, SZ_32M, 0))
		return false;
	create_vm(&env, POPULATE, GTDP_GPA);
	fill_cache(&env.mem, 0, SZ_32M / PAGE_SIZE, 1);
	if (!drop_cache(&env.mem, SZ_2M) ||
	    !gtdp_write_file("/sys/kernel/debug", "fault_around_bytes", "4096")) {
		destroy(&env);
		return false;
	}

	/* Without what is around them, so that none of these hits what another has read. */
	for (i = 0; i < nr_around; i++)
		touch(env.mem.hva + SZ_2M + i * around * PAGE_SIZE);
	hva = env.mem.hva + SZ_2M + i * around * PAGE_SIZE;
	for (i = 0; i < nr_alone; i++)
		touch(hva + i * PAGE_SIZE);
	gtdp_write_file("/sys/kernel/debug", "fault_around_bytes", "65536");
	TEST_ASSERT_EQ(gtdp_nr_resident(hva + nr_alone * PAGE_SIZE, around * PAGE_SIZE), 0);

	TEST_ASSERT_EQ(populate(env.vm, GTDP_GPA, SZ_2M, KVM_POPULATE_PAGE_CACHE).mapped, SZ_2M);
	last = env.mem.hva + SZ_32M - around * PAGE_SIZE;
	touch(last);
	TEST_ASSERT(gtdp_nr_resident(last - around * PAGE_SIZE, 2 * around * PAGE_SIZE) == 1,
		    "The host reads around misses");

	destroy(&env);
	return true;
}

/* The end of what is not to be mapped, in the midst of a region. */
#define GUARDED		(MEM_SIZE / 2 - SZ_1M)

/* Not to be mapped, for the given reason, by the call nor around the guest's faults. */
static void check_guarded(struct env *env, const char *why)
{
	const u64 first = GUARDED / PAGE_SIZE;
	struct kvm_populate_memory sum;

	fill_cache(&env->mem, 0, NR_PAGES, 1);
	gtdp_run(env->vcpu, GTDP_CHECK, GTDP_GPA + GUARDED, NR_PAGES - first, HOST_TAG + first);
	sum = populate_cached(env->vm);
	TEST_ASSERT(sum.absent == GUARDED, "%s: %llu bytes absent", why, sum.absent);
	TEST_ASSERT_EQ(nr_touched(env->mem.hva, GUARDED), 0);
}

static bool test_uffd(u64 mode, u64 features, const char *name)
{
	struct uffdio_range range = { .len = GUARDED };
	struct env env;
	int uffd;

	if (!create(&env, AROUND | POPULATE, GTDP_MEMFD, GTDP_GPA, 0))
		return false;

	range.start = (u64)env.mem.hva;
	uffd = arm(&env, 0, range.len, mode, features);
	if (uffd < 0) {
		destroy(&env);
		return false;
	}

	check_guarded(&env, name);
	check_no_event(uffd, name);

	/* The guest goes on when all is over. */
	TEST_ASSERT(!ioctl(uffd, UFFDIO_UNREGISTER, &range), "UFFDIO_UNREGISTER");
	close(uffd);
	gtdp_run(env.vcpu, GTDP_CHECK, GTDP_GPA, NR_PAGES, HOST_TAG);
	TEST_ASSERT_EQ(populate_cached(env.vm).absent, 0);

	destroy(&env);
	return true;
}

static bool test_uffd_missing(void)
{
	return test_uffd(UFFDIO_REGISTER_MODE_MISSING, 0, "missing");
}

static bool test_uffd_minor(void)
{
	return test_uffd(UFFDIO_REGISTER_MODE_MINOR, UFFD_FEATURE_MINOR_SHMEM, "minor");
}

static bool test_uffd_wp(void)
{
	return test_uffd(UFFDIO_REGISTER_MODE_WP, UFFD_FEATURE_WP_HUGETLBFS_SHMEM, "wp");
}

static bool test_no_access(void)
{
	struct env env;

	if (!create(&env, POPULATE, GTDP_MEMFD, GTDP_GPA, 0))
		return false;

	TEST_ASSERT(!mprotect(env.mem.hva, GUARDED, PROT_NONE), "mprotect()");
	check_guarded(&env, "PROT_NONE");
	TEST_ASSERT_EQ(gtdp_try(env.vcpu, GTDP_READ, GTDP_GPA, 1, 0), EFAULT);

	destroy(&env);
	return true;
}

/* Who locks what is touched, and no more, has no more locked. */
static bool test_lock_on_fault(void)
{
	struct env env;

	if (!create(&env, AROUND | POPULATE, GTDP_MEMFD, GTDP_GPA, 0))
		return false;

	TEST_ASSERT(!mlock2(env.mem.hva, GUARDED, MLOCK_ONFAULT), "mlock2()");
	check_guarded(&env, "locked on fault");

	destroy(&env);
	return true;
}

/* The same memory in two slots, of which one is but a part of it, and read-only. */
static bool test_two_slots(void)
{
	const u64 gpa = GTDP_GPA + SZ_64M + 3 * PAGE_SIZE, first = 5, nr = NR_PAGES - 7;
	struct kvm_populate_memory sum;
	struct gtdp_mem part;
	struct env env;

	if (!create(&env, POPULATE, GTDP_MEMFD, GTDP_GPA, 0))
		return false;
	fill_cache(&env.mem, 0, NR_PAGES, 1);

	part = env.mem;
	part.hva += first * PAGE_SIZE;
	part.size = nr * PAGE_SIZE;
	gtdp_add_slot(env.vm, GTDP_SLOT + 1, KVM_MEM_READONLY, gpa, &part);
	sum = populate(env.vm, gpa, part.size, KVM_POPULATE_PAGE_CACHE);
	TEST_ASSERT_EQ(sum.mapped, part.size);
	TEST_ASSERT_EQ(gtdp_run(env.vcpu, GTDP_CHECK, gpa, nr, HOST_TAG + first), 0);

	/* What the host has mapped for the one is present for the other. */
	gtdp_populate_full(env.vm, GTDP_GPA + first * PAGE_SIZE, part.size);
	TEST_ASSERT_EQ(populate_cached(env.vm).absent, 0);
	TEST_ASSERT_EQ(gtdp_run(env.vcpu, GTDP_CHECK, GTDP_GPA, NR_PAGES, HOST_TAG), 0);

	destroy(&env);
	return true;
}

/* SMM's address space has a root of its own, and nothing else gets anything. */
static bool test_smm(void)
{
	struct kvm_populate_memory sum, range = {
		.gpa = GTDP_GPA,
		.size = MEM_SIZE,
		.as_id = 1,
		.flags = KVM_POPULATE_PAGE_CACHE,
	};
	u64 mapped;
	struct env env;

	if (!kvm_has_cap(KVM_CAP_X86_SMM) || !create(&env, POPULATE, GTDP_MEMFD, GTDP_GPA, 0))
		return false;
	gtdp_add_slot(env.vm, 1 << 16 | GTDP_SLOT, 0, GTDP_GPA, &env.mem);
	fill_cache(&env.mem, 0, NR_PAGES, 1);

	mapped = gtdp_nr_mapped(env.vm);
	TEST_ASSERT_EQ(gtdp_populate_on(env.vm, &range, &sum), 0);
	TEST_ASSERT_EQ(sum.mapped, MEM_SIZE);
	TEST_ASSERT_EQ(gtdp_nr_mapped(env.vm), mapped + NR_PAGES);
	TEST_ASSERT_EQ(gtdp_run(env.vcpu, GTDP_CHECK, GTDP_GPA, NR_PAGES, HOST_TAG), NR_PAGES);

	destroy(&env);
	return true;
}

/* Half of the memory is not the file's at all. */
static bool test_unmapped(void)
{
	struct env env;

	if (!create(&env, POPULATE, GTDP_MEMFD, GTDP_GPA, 0))
		return false;

	TEST_ASSERT(!munmap(env.mem.hva, MEM_SIZE / 2), "munmap()");
	fill_cache(&env.mem, 0, NR_PAGES, 1);
	TEST_ASSERT_EQ(populate_cached(env.vm).absent, MEM_SIZE / 2);

	TEST_ASSERT(mmap(env.mem.hva, MEM_SIZE / 2, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == env.mem.hva,
		    "mmap()");
	TEST_ASSERT_EQ(populate_cached(env.vm).absent, MEM_SIZE / 2);
	TEST_ASSERT_EQ(nr_touched(env.mem.hva, MEM_SIZE / 2), 0);

	destroy(&env);
	return true;
}

/* What the file loses, the guest loses. */
static bool test_truncated(void)
{
	u64 mapped;
	struct env env;

	if (!create(&env, POPULATE, GTDP_FILE_PRIVATE, GTDP_GPA, 0))
		return false;

	fill_cache(&env.mem, 0, NR_PAGES, 1);
	mapped = gtdp_nr_mapped(env.vm);
	TEST_ASSERT_EQ(populate_cached(env.vm).mapped, MEM_SIZE);
	TEST_ASSERT_EQ(gtdp_nr_mapped(env.vm), mapped + NR_PAGES);

	TEST_ASSERT(!ftruncate(env.mem.fd, file_offset(&env.mem) + MEM_SIZE / 2), "ftruncate()");
	TEST_ASSERT_EQ(gtdp_nr_mapped(env.vm), mapped + NR_PAGES / 2);
	TEST_ASSERT_EQ(populate_cached(env.vm).absent, MEM_SIZE / 2);
	TEST_ASSERT_EQ(gtdp_try(env.vcpu, GTDP_READ, GTDP_GPA + MEM_SIZE / 2, 1, 0), EFAULT);

	destroy(&env);
	return true;
}

/*
 * The host takes away what is being mapped, some of it copies with the same content, and
 * has other use for that memory.
 */
static void *zap(void *arg)
{
	const struct env *env = arg;
	u64 region;
	void *hva, *junk;
	int i;

	for (i = 0; !READ_ONCE(stop); i++) {
		region = i % (env->mem.size / SZ_2M);
		hva = env->mem.hva + region * SZ_2M;

		gtdp_stamp(hva + SZ_1M, GTDP_REGION_PAGES / 2,
			   HOST_TAG + region * GTDP_REGION_PAGES + GTDP_REGION_PAGES / 2);
		TEST_ASSERT(!madvise(hva, SZ_2M, i % 2 ? MADV_DONTNEED : MADV_PAGEOUT),
			    "madvise()");
		TEST_ASSERT(!mprotect(hva, SZ_1M, PROT_READ), "mprotect()");
		TEST_ASSERT(!mprotect(hva, SZ_1M, PROT_READ | PROT_WRITE), "mprotect()");

		junk = mmap(NULL, SZ_2M, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
			    -1, 0);
		TEST_ASSERT(junk != MAP_FAILED, "mmap()");
		memset(junk, 0xff, SZ_2M);
		munmap(junk, SZ_2M);
	}
	return NULL;
}

static void *populate_again(void *arg)
{
	const struct env *env = arg;

	while (!READ_ONCE(stop))
		populate(env->vm, GTDP_GPA, env->mem.size, KVM_POPULATE_PAGE_CACHE);
	return NULL;
}

static bool test_zapped(void)
{
	pthread_t threads[2];
	struct env env;
	int i;

	if (!create(&env, AROUND | POPULATE, GTDP_FILE_PRIVATE, GTDP_GPA, 3 * PAGE_SIZE))
		return false;
	fill_cache(&env.mem, 0, NR_PAGES, 1);

	stop = false;
	pthread_create(&threads[0], NULL, zap, &env);
	pthread_create(&threads[1], NULL, populate_again, &env);
	for (i = 0; i < NR_CHECKS; i++)
		gtdp_run(env.vcpu, GTDP_CHECK, GTDP_GPA, NR_PAGES, HOST_TAG);
	WRITE_ONCE(stop, true);
	for (i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);

	gtdp_check(env.mem.hva, NR_PAGES, HOST_TAG);
	destroy(&env);
	return true;
}

/*
 * A write to a private mapping copies the page, which zaps it, but brings nothing around
 * it: fault-around does not look for more with each of them.  The follower does, rarely.
 */
static bool test_copied(void)
{
	const u64 nr = GTDP_REGION_PAGES / 2;
	u64 absent;
	struct env env;

	if (!create(&env, AROUND | POPULATE | KVM_GLOBAL_TDP_FOLLOW, GTDP_FILE_PRIVATE,
		    GTDP_GPA, 0))
		return false;
	fill_cache(&env.mem, 0, nr, 1);
	fill_cache(&env.mem, 2 * nr, NR_PAGES - 2 * nr, 1);
	gtdp_run(env.vcpu, GTDP_CHECK, GTDP_GPA, nr, HOST_TAG);
	gtdp_run(env.vcpu, GTDP_CHECK, GTDP_GPA + SZ_2M, NR_PAGES - 2 * nr,
		 HOST_TAG + 2 * nr);

	absent = gtdp_nr_absent(env.vm);
	gtdp_run(env.vcpu, GTDP_STAMP, GTDP_GPA, nr, GUEST_TAG);
	absent = gtdp_nr_absent(env.vm) - absent;
	TEST_ASSERT(absent < nr * nr / 4, "%lu scans beside %lu copies", absent / nr, nr);

	destroy(&env);
	return true;
}

static void *run_vcpu(void *vcpu)
{
	vcpu_run(vcpu);
	gtdp_finish_job(vcpu);
	return NULL;
}

static pthread_t start_job(struct env *env, enum gtdp_op op)
{
	pthread_t thread;

	gtdp_set_job(env->vcpu, (struct gtdp_job) {
		.op = op,
		.gpa = GTDP_GPA,
		.nr = 1,
		.step = 1,
	});
	pthread_create(&thread, NULL, run_vcpu, env->vcpu);
	return thread;
}

static void zap_other_page(struct env *env)
{
	void *hva = env->mem.hva + MEM_SIZE / 2;

	TEST_ASSERT(!madvise(hva, PAGE_SIZE, MADV_DONTNEED), "madvise()");
}

/* Returns the faults of an access beside which the host takes away another page. */
static u64 faults_beside_zap(enum gtdp_op op, bool *tested)
{
	static char source[PAGE_SIZE] __aligned(PAGE_SIZE);
	struct uffdio_copy copy = { .src = (u64)source, .len = PAGE_SIZE };
	pthread_t thread;
	u64 faults;
	struct uffd_msg msg;
	struct env env;
	int uffd;

	TEST_ASSERT(create(&env, POPULATE, GTDP_ANON, GTDP_GPA, 0), "No such memory");
	uffd = arm(&env, 0, PAGE_SIZE, UFFDIO_REGISTER_MODE_MISSING, 0);
	*tested = uffd >= 0;
	faults = gtdp_vcpu_stat(env.vcpu, "pf_taken");
	if (*tested) {
		thread = start_job(&env, op);
		gtdp_wait_until(read(uffd, &msg, sizeof(msg)) == sizeof(msg));
		zap_other_page(&env);
		copy.dst = (u64)env.mem.hva;
		TEST_ASSERT(!ioctl(uffd, UFFDIO_COPY, &copy), "UFFDIO_COPY");
		pthread_join(thread, NULL);
		close(uffd);
	}
	faults = gtdp_vcpu_stat(env.vcpu, "pf_taken") - faults;

	destroy(&env);
	return faults;
}

/* A write looks again for what its own copy has replaced; other accesses are left as they are. */
static bool test_looked_up_again(void)
{
	u64 reads, writes;
	bool tested;

	reads = faults_beside_zap(GTDP_READ, &tested);
	writes = faults_beside_zap(GTDP_WRITE, &tested);
	TEST_ASSERT(!tested || (reads == 2 && writes == 1), "%lu faults to read, %lu to write",
		    reads, writes);
	return tested;
}

#define HELD_SIZE	SZ_256M

static u64 nr_held;

/* Hold mmap_lock for write nearly all the time, to change a mapping of many pages. */
static void *hold_mmap_lock(void *arg)
{
	void *hva = mmap(NULL, HELD_SIZE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
			 -1, 0);

	TEST_ASSERT(hva != MAP_FAILED, "mmap()");
	madvise(hva, HELD_SIZE, MADV_NOHUGEPAGE);
	TEST_ASSERT(!madvise(hva, HELD_SIZE, MADV_POPULATE_READ), "madvise()");
	while (!READ_ONCE(stop)) {
		TEST_ASSERT(!mprotect(hva, HELD_SIZE, nr_held % 2 ? PROT_READ : PROT_NONE),
			    "mprotect()");
		WRITE_ONCE(nr_held, nr_held + 1);
	}
	munmap(hva, HELD_SIZE);
	return NULL;
}

static void read_touched(struct env *env, u64 page)
{
	gtdp_stamp(env->mem.hva + page * PAGE_SIZE, 1, HOST_TAG + page);
	gtdp_run(env->vcpu, GTDP_CHECK, GTDP_GPA + page * PAGE_SIZE, 1, HOST_TAG + page);
}

/* The guest's faults map what the page cache holds only if that takes no wait for mmap_lock. */
static bool test_not_waited_for(void)
{
	u64 page, held, waited = 0;
	pthread_t thread;
	struct env env;

	TEST_ASSERT(gtdp_mem_alloc(&env.mem, GTDP_MEMFD, SZ_32M, 0), "No such memory");
	create_vm(&env, AROUND, GTDP_GPA);
	fill_cache(&env.mem, 0, SZ_32M / PAGE_SIZE, 1);
	stop = false;
	pthread_create(&thread, NULL, hold_mmap_lock, NULL);

	for (page = 0; page < SZ_32M / PAGE_SIZE; page += GTDP_REGION_PAGES) {
		/* The third has more mapped around it, see gtdp_window_size(). */
		read_touched(&env, page);
		read_touched(&env, page + 17);
		gtdp_stamp(env.mem.hva + (page + 34) * PAGE_SIZE, 1, HOST_TAG + page + 34);
		held = READ_ONCE(nr_held);
		__gtdp_wait_until(READ_ONCE(nr_held) != held, 100);
		held = READ_ONCE(nr_held);
		gtdp_run(env.vcpu, GTDP_READ, GTDP_GPA + (page + 34) * PAGE_SIZE, 1, 0);
		waited += READ_ONCE(nr_held) != held;
	}
	WRITE_ONCE(stop, true);
	pthread_join(thread, NULL);
	ksft_print_msg("%lu of %d faults ended after mmap_lock was dropped\n", waited,
		       SZ_32M / SZ_2M);
	TEST_ASSERT(waited < SZ_32M / SZ_2M / 2, "Faults wait for mmap_lock");

	destroy(&env);
	return true;
}

/* Until a page that is touched and reclaimed all the time is so again. */
#define RECLAIM_USECS	5000

static void *reclaim(void *page)
{
	while (!READ_ONCE(stop)) {
		touch(page);
		TEST_ASSERT(!madvise(page, PAGE_SIZE, MADV_PAGEOUT), "madvise()");
	}
	return NULL;
}

/*
 * A page that is locked, as it is being reclaimed, keeps no others from being mapped, or
 * rarely: it may be locked just after a look at it.
 */
static bool test_locked(void)
{
	const int fixed = MAP_PRIVATE | MAP_FIXED;
	int i, nr_absent = 0;
	pthread_t thread;
	struct env env;
	void *page;

	if (!create(&env, POPULATE, GTDP_FILE_PRIVATE, GTDP_GPA, 0))
		return false;
	fill_cache(&env.mem, 0, NR_PAGES, 1);
	if (!drop_cache(&env.mem, MEM_SIZE - SZ_2M)) {
		destroy(&env);
		return false;
	}

	page = mmap(NULL, PAGE_SIZE, PROT_READ, MAP_SHARED, env.mem.fd, file_offset(&env.mem));
	TEST_ASSERT(page != MAP_FAILED, "mmap()");
	madvise(page, PAGE_SIZE, MADV_RANDOM);
	stop = false;
	pthread_create(&thread, NULL, reclaim, page);
	for (i = 0; i < NR_CHECKS; i++) {
		/* Without a page table of the host's. */
		TEST_ASSERT(mmap(env.mem.hva, MEM_SIZE, PROT_READ | PROT_WRITE, fixed, env.mem.fd,
				 file_offset(&env.mem)) == env.mem.hva, "mmap()");
		/* Reclaim has waited for mmap_lock. */
		usleep(RECLAIM_USECS);
		nr_absent += populate(env.vm, GTDP_GPA, SZ_2M, KVM_POPULATE_PAGE_CACHE).absent >
			     PAGE_SIZE;
	}
	WRITE_ONCE(stop, true);
	pthread_join(thread, NULL);

	TEST_ASSERT(2 * nr_absent < NR_CHECKS, "More than a locked page is absent %d times",
		    nr_absent);

	munmap(page, PAGE_SIZE);
	destroy(&env);
	return true;
}

/* Nobody holds on to a page, when all is over. */
static bool test_not_held(void)
{
	u64 pfns[NR_PAGES];
	struct env env;

	if (!create(&env, AROUND | POPULATE, GTDP_MEMFD, GTDP_GPA, 3 * PAGE_SIZE))
		return false;
	fill_cache(&env.mem, 0, NR_PAGES, 1);
	populate_cached(env.vm);
	TEST_ASSERT_EQ(gtdp_get_pfns(env.mem.hva, NR_PAGES, pfns), NR_PAGES);
	destroy(&env);
	TEST_ASSERT_EQ(gtdp_nr_held(pfns, NR_PAGES), 0);
	return true;
}

static bool test_errors(void)
{
	struct kvm_populate_memory range = {
		.gpa = GTDP_GPA,
		.size = MEM_SIZE,
		.flags = KVM_POPULATE_PAGE_CACHE | KVM_POPULATE_ASYNC,
	}, sum;
	struct env env;

	if (!create(&env, POPULATE, GTDP_MEMFD, GTDP_GPA, 0))
		return false;
	TEST_ASSERT_EQ(gtdp_populate_on(env.vm, &range, &sum), EINVAL);
	destroy(&env);

	if (!create(&env, GTDP_ALL & ~KVM_GLOBAL_TDP_POPULATE, GTDP_MEMFD, GTDP_GPA, 0))
		return false;
	fill_cache(&env.mem, 0, NR_PAGES, 1);
	range.flags = KVM_POPULATE_PAGE_CACHE;
	TEST_ASSERT_EQ(gtdp_populate_on(env.vm, &range, &sum), EOPNOTSUPP);
	TEST_ASSERT_EQ(range.size, MEM_SIZE);
	TEST_ASSERT_EQ(nr_touched(env.mem.hva, MEM_SIZE), 0);
	destroy(&env);
	return true;
}

static const struct gtdp_test tests[] = {
	{ "fault-around, memfd", test_around_memfd },
	{ "fault-around, private file", test_around_private },
	{ "fault-around, shared file", test_around_shared },
	{ "fault-around, misaligned", test_misaligned },
	{ "a page here and there", test_sparse },
	{ "written first", test_written_first },
	{ "copied", test_copied },
	{ "looked up again", test_looked_up_again },
	{ "mmap_lock is held", test_not_waited_for },
	{ "parameter", test_parameter },
	{ "default", test_default },
	{ "ioctl, memfd", test_populate_memfd },
	{ "ioctl, private file", test_populate_private },
	{ "holes", test_holes },
	{ "swapped", test_swapped },
	{ "read ahead", test_read_ahead },
	{ "read around", test_read_around },
	{ "locked", test_locked },
	{ "userfaultfd, missing", test_uffd_missing },
	{ "userfaultfd, minor", test_uffd_minor },
	{ "userfaultfd, wp", test_uffd_wp },
	{ "no access", test_no_access },
	{ "two slots", test_two_slots },
	{ "SMM", test_smm },
	{ "unmapped", test_unmapped },
	{ "truncated", test_truncated },
	{ "locked on fault", test_lock_on_fault },
	{ "beside zaps", test_zapped },
	{ "not held", test_not_held },
	{ "errors", test_errors },
};

/* Takes part of the name of a test, to leave out all others. */
int main(int argc, char *argv[])
{
	gtdp_require(KVM_GLOBAL_TDP_FAULT_AROUND | KVM_GLOBAL_TDP_POPULATE |
		     KVM_GLOBAL_TDP_PAGE_CACHE);
	gtdp_run_some_tests(tests, ARRAY_SIZE(tests), argc > 1 ? argv[1] : NULL);
}
