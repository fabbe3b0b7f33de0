// SPDX-License-Identifier: GPL-2.0
/*
 * Proves that DAX memory, of files and of a device, is left to the vCPUs' faults,
 * which map small pages and huge ones as without Global TDP; that it is gone for the
 * guest when the host truncates, punches, shares, cleans, or loses it, and the blocks
 * get another owner; and that what the guest writes is in the file, and known to have
 * to be flushed.
 *
 * It overwrites a DAX device, fills a file system and notes bad blocks of its disk, so
 * it wants to be told which: GLOBAL_TDP_DAX has the paths, separated by a space, of
 * devices with an alignment of 2MiB, and of where file systems of /dev/pmem* are
 * mounted with dax=always.
 */
#include <fcntl.h>
#include <limits.h>
#include <mntent.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <linux/bitmap.h>
#include <linux/falloc.h>
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <linux/mman.h>

#include "test_util.h"
#include "kvm_util.h"
#include "processor.h"
#include "global_tdp.h"

#define MEM_SIZE	SZ_4M
#define NR_PAGES	(MEM_SIZE / PAGE_SIZE)
#define NR_HUGE		(MEM_SIZE / SZ_2M)

#define HOST_TAG	1
#define GUEST_TAG	1000000
#define OTHER_TAG	2000000

/* How often files exchange their blocks. */
#define ROUNDS		4

#define MAX_KINDS	8
#define PATHS		"GLOBAL_TDP_DAX"

/* Of the test that takes a kernel where no device has a live page map. */
#define NO_PAGE_MAP	"no page map"

/* Where there is DAX memory. */
struct kind {
	char name[16];
	/* The directory, or the device. */
	char path[128];
	/* The name of the disk below /sys/block, if any. */
	char disk[32];
	bool is_file;
};

static struct kind kinds[MAX_KINDS];
static int nr_kinds;

struct env {
	const struct kind *kind;
	struct kvm_vm *vm;
	/* Who touches a bad page does not get any further. */
	struct kvm_vcpu *vcpus[2], *vcpu;
	struct gtdp_mem mem;
	/* Where the memory begins in the file. */
	off_t offset;
	u64 nr_code;
	bool huge;
	pthread_t populator;
	bool done;
};

static int open_file(const struct kind *kind, const char *name)
{
	char path[PATH_MAX];
	int fd;

	if (!kind->is_file)
		return open_path_or_exit(kind->path, O_RDWR);

	snprintf(path, sizeof(path), "%s/global_tdp.%s", kind->path, name);
	fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
	TEST_ASSERT(fd >= 0, __KVM_SYSCALL_ERROR("open()", fd));
	unlink(path);
	return fd;
}

static void allocate(int fd, int mode, off_t offset, off_t size)
{
	int r = fallocate(fd, mode, offset, size);

	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("fallocate()", r));
}

/*
 * Huge pages take that the file's offset is congruent with the address; they are
 * what a file system then uses, if its blocks are so, too, and what devices have.
 */
static void map_file(struct env *env)
{
	struct gtdp_mem *mem = &env->mem;
	void *map;

	env->offset = env->huge ? 0 : PAGE_SIZE;
	mem->fd = open_file(env->kind, "memory");
	if (env->kind->is_file)
		allocate(mem->fd, 0, 0, MEM_SIZE + SZ_2M);

	mem->size = MEM_SIZE;
	mem->map_size = MEM_SIZE + SZ_2M;
	mem->map = mmap(NULL, mem->map_size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	TEST_ASSERT(mem->map != MAP_FAILED, __KVM_SYSCALL_ERROR("mmap()", -1));
	mem->hva = align_ptr_up(mem->map, SZ_2M);
	map = mmap(mem->hva, MEM_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
		   mem->fd, env->offset);
	TEST_ASSERT(map == mem->hva, __KVM_SYSCALL_ERROR("mmap()", -1));
}

static void env_create(struct env *env, const struct kind *kind, bool huge,
		       u64 features)
{
	*env = (struct env) { .kind = kind, .huge = huge };

	map_file(env);
	env->vm = gtdp_vm_create(features, ARRAY_SIZE(env->vcpus), env->vcpus);
	env->vcpu = env->vcpus[0];
	if (features)
		gtdp_populate_code(env->vm);
	else
		gtdp_prefault_code(env->vcpu);
	env->nr_code = gtdp_nr_mapped(env->vm);
}

static void add_slot(struct env *env, u32 flags)
{
	gtdp_add_slot(env->vm, GTDP_SLOT, flags, GTDP_GPA, &env->mem);
}

/* With all of the memory stamped, i.e. present and dirty. */
static void env_create_stamped(struct env *env, const struct kind *kind, bool huge)
{
	env_create(env, kind, huge, KVM_GLOBAL_TDP_POPULATE);
	gtdp_stamp(env->mem.hva, NR_PAGES, HOST_TAG);
	add_slot(env, 0);
}

static void env_destroy(struct env *env)
{
	kvm_vm_free(env->vm);
	gtdp_mem_free(&env->mem);
}

/* Of the memory, in 4KiB pages. */
static u64 nr_mapped(struct env *env)
{
	return gtdp_nr_mapped(env->vm) - env->nr_code;
}

static void check_absent(struct env *env, u64 first, u64 nr)
{
	struct kvm_populate_memory sum;

	sum = gtdp_populate(env->vm, GTDP_GPA + first * PAGE_SIZE, nr * PAGE_SIZE);
	TEST_ASSERT_EQ(sum.mapped, 0);
	TEST_ASSERT_EQ(sum.absent, nr * PAGE_SIZE);
}

static u64 run(struct env *env, enum gtdp_op op, u64 first, u64 nr,
		    u64 tag)
{
	return gtdp_run(env->vcpu, op, GTDP_GPA + first * PAGE_SIZE, nr, tag + first);
}

/* Have the guest read all, which is the only way to get it mapped. */
static void map_all(struct env *env, u64 tag)
{
	check_absent(env, 0, NR_PAGES);
	TEST_ASSERT_EQ(nr_mapped(env), 0);
	TEST_ASSERT(run(env, GTDP_CHECK, 0, NR_PAGES, tag), "The guest had no fault");
	TEST_ASSERT_EQ(nr_mapped(env), NR_PAGES);
}

static void sync_file(struct env *env)
{
	int r = fsync(env->mem.fd);

	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("fsync()", r));
}

/* That a file has what was stamped, as seen by who reads it. */
static void check_file(int fd, off_t offset, u64 tag)
{
	void *copy = malloc(MEM_SIZE);
	ssize_t r;

	TEST_ASSERT(copy, "Insufficient memory");
	r = pread(fd, copy, MEM_SIZE, offset);
	TEST_ASSERT_EQ(r, MEM_SIZE);
	gtdp_check(copy, NR_PAGES, tag);
	free(copy);
}

static void write_file(int fd, u64 tag)
{
	void *copy = aligned_alloc(PAGE_SIZE, MEM_SIZE);
	ssize_t r;

	TEST_ASSERT(copy, "Insufficient memory");
	gtdp_stamp(copy, NR_PAGES, tag);
	r = pwrite(fd, copy, MEM_SIZE, 0);
	TEST_ASSERT_EQ(r, MEM_SIZE);
	free(copy);
}

/* Pages are as large as those that a fault maps without Global TDP. */
static bool test_present(const struct kind *kind, bool huge)
{
	u64 nr_huge;
	struct env env;

	/* What a vCPU's faults make of it. */
	env_create(&env, kind, huge, 0);
	gtdp_stamp(env.mem.hva, NR_PAGES, HOST_TAG);
	add_slot(&env, 0);
	TEST_ASSERT(run(&env, GTDP_STAMP, 0, NR_PAGES, HOST_TAG), "The guest had no fault");
	nr_huge = gtdp_vm_stat(env.vm, "pages_2m");
	TEST_ASSERT_EQ(nr_huge, huge ? NR_HUGE : 0);
	env_destroy(&env);

	env_create_stamped(&env, kind, huge);
	map_all(&env, HOST_TAG);
	TEST_ASSERT_EQ(gtdp_vm_stat(env.vm, "pages_2m"), nr_huge);
	run(&env, GTDP_STAMP, 0, NR_PAGES, GUEST_TAG);
	gtdp_check(env.mem.hva, NR_PAGES, GUEST_TAG);
	if (kind->is_file) {
		sync_file(&env);
		check_file(env.mem.fd, env.offset, GUEST_TAG);
	}
	env_destroy(&env);
	return true;
}

/* What the host has not mapped is left alone, blocks of the file or not. */
static bool test_absent(const struct kind *kind, bool huge)
{
	struct env env;

	env_create(&env, kind, huge, KVM_GLOBAL_TDP_POPULATE);
	add_slot(&env, 0);
	check_absent(&env, 0, NR_PAGES);
	TEST_ASSERT(run(&env, GTDP_STAMP, 0, NR_PAGES, GUEST_TAG), "The guest had no fault");
	gtdp_check(env.mem.hva, NR_PAGES, GUEST_TAG);
	env_destroy(&env);
	return true;
}

static bool test_follower(const struct kind *kind, bool huge)
{
	struct env env;
	u64 absent;

	env_create(&env, kind, huge, GTDP_ALL);
	gtdp_stamp(env.mem.hva, NR_PAGES, HOST_TAG);
	absent = gtdp_vm_stat(env.vm, "tdp_populate_absent");
	add_slot(&env, 0);
	gtdp_wait_until(gtdp_vm_stat(env.vm, "tdp_populate_absent") >= absent + NR_PAGES);
	map_all(&env, HOST_TAG);
	env_destroy(&env);
	return true;
}

static bool test_logged(const struct kind *kind, bool huge)
{
	unsigned long *log = bitmap_zalloc(NR_PAGES);
	struct env env;
	u64 i;

	env_create(&env, kind, huge, KVM_GLOBAL_TDP_POPULATE);
	gtdp_stamp(env.mem.hva, NR_PAGES, HOST_TAG);
	add_slot(&env, KVM_MEM_LOG_DIRTY_PAGES);
	check_absent(&env, 0, NR_PAGES);

	run(&env, GTDP_STAMP, 0, NR_PAGES / 2, GUEST_TAG);
	TEST_ASSERT_EQ(gtdp_vm_stat(env.vm, "pages_2m"), 0);
	kvm_vm_get_dirty_log(env.vm, GTDP_SLOT, log);
	for (i = 0; i < NR_PAGES; i++)
		TEST_ASSERT(test_bit(i, log) == (i < NR_PAGES / 2), "Page %lu of the log", i);

	free(log);
	env_destroy(&env);
	return true;
}

/*
 * To flush what is dirty, the file system has its pages write-protected: that it
 * does for what it was told of by a fault, and nothing else.
 */
static bool test_cleaned(const struct kind *kind, bool huge)
{
	struct env env;
	int i;

	env_create_stamped(&env, kind, huge);
	map_all(&env, HOST_TAG);
	for (i = 0; i < 3; i++) {
		sync_file(&env);
		TEST_ASSERT_EQ(nr_mapped(&env), 0);

		/* Clean, and so not writable; if it were, the next round would not zap it. */
		map_all(&env, i ? GUEST_TAG + i : HOST_TAG);
		TEST_ASSERT(run(&env, GTDP_STAMP, 0, NR_PAGES, GUEST_TAG + i + 1),
			    "Writes without a fault");
		check_file(env.mem.fd, env.offset, GUEST_TAG + i + 1);
	}
	env_destroy(&env);
	return true;
}

static bool test_truncated(const struct kind *kind, bool huge)
{
	struct env env;

	env_create_stamped(&env, kind, huge);
	map_all(&env, HOST_TAG);
	TEST_ASSERT(!ftruncate(env.mem.fd, 0), "ftruncate() failed");
	TEST_ASSERT_EQ(nr_mapped(&env), 0);
	check_absent(&env, 0, NR_PAGES);
	TEST_ASSERT_EQ(gtdp_try(env.vcpu, GTDP_READ, GTDP_GPA, 1, 0), EFAULT);
	env_destroy(&env);
	return true;
}

static void *populate_thread(void *arg)
{
	struct env *env = arg;

	while (!READ_ONCE(env->done))
		gtdp_populate(env->vm, GTDP_GPA, MEM_SIZE);

	return NULL;
}

/* Leave less room in the file system than the memory takes. */
static int fill(const struct kind *kind)
{
	int fd = open_file(kind, "filler");
	struct statfs st;
	off_t left;

	TEST_ASSERT(!fstatfs(fd, &st), "fstatfs() failed");
	left = st.f_bavail * st.f_bsize;
	if (left > MEM_SIZE / 2)
		allocate(fd, 0, 0, left - MEM_SIZE / 2);
	sync();
	return fd;
}

/* While someone populates, the file loses its blocks, which another one gets. */
static bool test_punched(const struct kind *kind, bool huge)
{
	const int punch = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
	int filler, other, i;
	struct env env;

	env_create_stamped(&env, kind, huge);
	filler = fill(kind);
	pthread_create(&env.populator, NULL, populate_thread, &env);

	for (i = 0; i < ROUNDS; i++) {
		/* This unmaps what the guest has mapped of zeros. */
		gtdp_stamp(env.mem.hva, NR_PAGES, HOST_TAG + i);
		run(&env, GTDP_CHECK, 0, NR_PAGES, HOST_TAG + i);
		TEST_ASSERT_EQ(nr_mapped(&env), NR_PAGES);

		allocate(env.mem.fd, punch, env.offset, MEM_SIZE);
		sync_file(&env);
		other = open_file(kind, "other");
		write_file(other, OTHER_TAG);

		/* That maps zeros for reads. */
		run(&env, GTDP_CHECK_ZERO, 0, NR_PAGES, 0);
		check_file(other, 0, OTHER_TAG);
		TEST_ASSERT(!ftruncate(other, 0), "ftruncate() failed");
		fsync(other);
		close(other);
	}

	WRITE_ONCE(env.done, true);
	pthread_join(env.populator, NULL);
	close(filler);
	env_destroy(&env);
	return true;
}

/* Blocks that files share are copied before one of them is written to. */
static bool test_shared(const struct kind *kind, bool huge)
{
	struct env env;
	int clone, r;

	env_create_stamped(&env, kind, huge);
	map_all(&env, HOST_TAG);
	clone = open_file(kind, "clone");
	r = ioctl(clone, FICLONE, env.mem.fd);
	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("FICLONE", r));

	gtdp_populate(env.vm, GTDP_GPA, MEM_SIZE);
	run(&env, GTDP_CHECK, 0, NR_PAGES, HOST_TAG);
	gtdp_populate(env.vm, GTDP_GPA, MEM_SIZE);
	run(&env, GTDP_STAMP, 0, NR_PAGES, GUEST_TAG);
	check_file(clone, env.offset, HOST_TAG);
	check_file(env.mem.fd, env.offset, GUEST_TAG);
	close(clone);
	env_destroy(&env);
	return true;
}

/* The 512-byte sector of the disk that has the first byte of a page of the memory. */
static u64 sector_of(struct env *env, u64 page)
{
	struct {
		struct fiemap map;
		struct fiemap_extent extent;
	} found = {
		.map = {
			.fm_start = env->offset + page * PAGE_SIZE,
			.fm_length = PAGE_SIZE,
			.fm_extent_count = 1,
		},
	};
	struct fiemap_extent *extent = &found.map.fm_extents[0];
	int r = ioctl(env->mem.fd, FS_IOC_FIEMAP, &found);

	TEST_ASSERT(!r && found.map.fm_mapped_extents == 1, __KVM_SYSCALL_ERROR("FIEMAP", r));
	return (extent->fe_physical + found.map.fm_start - extent->fe_logical) / 512;
}

static bool note_media_error(struct env *env, u64 page)
{
	char dir[64], text[32];

	snprintf(dir, sizeof(dir), "/sys/block/%s", env->kind->disk);
	snprintf(text, sizeof(text), "%lu 8\n", sector_of(env, page));
	return gtdp_write_file(dir, "badblocks", text);
}

/*
 * A media error makes a page bad that is mapped, or is known before the page is: the
 * device then does not let it be mapped.
 */
static bool test_media_error(const struct kind *kind, bool huge)
{
	const u64 before = 33, after = GTDP_REGION_PAGES + 44;
	struct env env;
	u64 i;

	env_create(&env, kind, huge, KVM_GLOBAL_TDP_POPULATE);
	write_file(env.mem.fd, 0);
	sync_file(&env);
	if (!note_media_error(&env, before))
		goto skip;
	for (i = 0; i < NR_PAGES; i++) {
		if (i != before)
			READ_ONCE(*(char *)(env.mem.hva + i * PAGE_SIZE));
	}
	add_slot(&env, 0);
	check_absent(&env, 0, NR_PAGES);
	run(&env, GTDP_READ, 0, before, 0);
	run(&env, GTDP_READ, before + 1, NR_PAGES - before - 1, 0);
	TEST_ASSERT_EQ(nr_mapped(&env), NR_PAGES - 1);
	gtdp_check_poisoned(env.vcpus[1], GTDP_GPA + before * PAGE_SIZE,
			    env.mem.hva + before * PAGE_SIZE);

	/* Found by who reads it: the page is noted, and whoever has it mapped is told. */
	if (!note_media_error(&env, after) || !gtdp_poison(env.mem.hva + after * PAGE_SIZE))
		goto skip;
	TEST_ASSERT_EQ(nr_mapped(&env), NR_PAGES - 1 - (huge ? GTDP_REGION_PAGES : 1));
	gtdp_populate(env.vm, GTDP_GPA, MEM_SIZE);
	TEST_ASSERT_EQ(nr_mapped(&env), NR_PAGES - 1 - (huge ? GTDP_REGION_PAGES : 1));
	run(&env, GTDP_READ, GTDP_REGION_PAGES, after - GTDP_REGION_PAGES, 0);
	run(&env, GTDP_READ, after + 1, NR_PAGES - after - 1, 0);
	gtdp_check_poisoned(env.vcpu, GTDP_GPA + after * PAGE_SIZE,
			    env.mem.hva + after * PAGE_SIZE);
	env_destroy(&env);
	return true;
skip:
	env_destroy(&env);
	return false;
}

/*
 * A device that its driver loses is gone, and stays it.  Not tried beneath a file
 * system: the kernel dies in dax_disassociate_entry() as a file goes that had been
 * mapped, whoever mapped it.
 */
static bool test_unbound(const struct kind *kind, bool huge)
{
	static const char driver[] = "/sys/bus/dax/drivers/device_dax";
	const char *name = strrchr(kind->path, '/') + 1;
	struct env env;

	env_create_stamped(&env, kind, huge);
	map_all(&env, HOST_TAG);
	TEST_ASSERT(gtdp_write_file(driver, "unbind", name), "%s can't be unbound", name);
	TEST_ASSERT_EQ(nr_mapped(&env), 0);
	check_absent(&env, 0, NR_PAGES);
	TEST_ASSERT_EQ(gtdp_try(env.vcpu, GTDP_READ, GTDP_GPA, 1, 0), EFAULT);
	env_destroy(&env);
	TEST_ASSERT(gtdp_write_file(driver, "bind", name), "%s can't be bound", name);
	return true;
}

/*
 * As a device is being removed, GUP does not follow what still maps its pages.  Such a
 * moment is too short, and beneath a file system the kernel's last: it takes a probe.
 */
static bool test_no_page_map(const struct kind *kind, bool huge)
{
	struct env env;

	env_create_stamped(&env, kind, huge);
	check_absent(&env, 0, NR_PAGES);
	env_destroy(&env);
	return true;
}

/* Where a test makes sense. */
enum where {
	ANY,
	FILES,
	XFS_FILES,
	DEVICES,
	IF_ASKED_FOR,
};

static const struct dax_test {
	const char *name;
	bool (*fn)(const struct kind *kind, bool huge);
	enum where where;
} tests[] = {
	{ "present", test_present, ANY },
	{ "absent", test_absent, ANY },
	{ "follower", test_follower, ANY },
	{ "logged", test_logged, ANY },
	{ "cleaned", test_cleaned, FILES },
	{ "truncated", test_truncated, FILES },
	{ "punched", test_punched, FILES },
	{ "shared", test_shared, XFS_FILES },
	{ "media error", test_media_error, FILES },
	{ "unbound", test_unbound, DEVICES },
	{ NO_PAGE_MAP, test_no_page_map, IF_ASKED_FOR },
};

static bool makes_sense(const struct dax_test *test, const struct kind *kind, bool huge,
			const char *part)
{
	if (test->where == IF_ASKED_FOR)
		return part && !strcmp(part, test->name) && (huge || kind->is_file);

	/* Devices have huge pages only. */
	if (!kind->is_file)
		return huge && (test->where == ANY || test->where == DEVICES);

	return test->where == ANY || test->where == FILES ||
	       (test->where == XFS_FILES && !strcmp(kind->name, "xfs"));
}

/* Run the tests with @part in their names, or count them only. */
static int run_tests(const char *part, bool count)
{
	const struct dax_test *test;
	const struct kind *kind;
	int huge, nr = 0;
	char name[128];

	for (kind = kinds; kind < kinds + nr_kinds; kind++) {
		for (test = tests; test < tests + ARRAY_SIZE(tests); test++) {
			for (huge = 0; huge < 2; huge++) {
				snprintf(name, sizeof(name), "%.15s, %s: %.32s", kind->name,
					 huge ? "huge pages" : "small pages", test->name);
				if (!makes_sense(test, kind, huge, part) ||
				    !gtdp_is_chosen(name, part))
					continue;

				nr++;
				if (count)
					continue;
				if (test->fn(kind, huge))
					ksft_test_result_pass("%s\n", name);
				else
					ksft_test_result_skip("%s\n", name);
			}
		}
	}
	return nr;
}

static void add_file_system(struct kind *kind)
{
	FILE *mounts = setmntent("/proc/mounts", "r");
	struct mntent *entry;

	TEST_ASSERT(mounts, "No /proc/mounts");
	while ((entry = getmntent(mounts))) {
		if (strcmp(entry->mnt_dir, kind->path))
			continue;

		TEST_ASSERT(strstr(entry->mnt_opts, "dax=always"), "No DAX: %s", kind->path);
		snprintf(kind->name, sizeof(kind->name), "%s", entry->mnt_type);
		snprintf(kind->disk, sizeof(kind->disk), "%s", basename(entry->mnt_fsname));
	}
	endmntent(mounts);
	TEST_ASSERT(kind->name[0], "Not where a file system is mounted: %s", kind->path);
}

static void find_kinds(const char *paths)
{
	char *list = strdup(paths), *path, *next = list;
	struct kind *kind;
	struct stat st;

	while ((path = strsep(&next, " "))) {
		TEST_ASSERT(nr_kinds < MAX_KINDS, "More than %d kinds", MAX_KINDS);
		kind = &kinds[nr_kinds++];
		TEST_ASSERT(!stat(path, &st), "No %s", path);
		snprintf(kind->path, sizeof(kind->path), "%s", path);
		kind->is_file = S_ISDIR(st.st_mode);
		if (kind->is_file)
			add_file_system(kind);
		else
			snprintf(kind->name, sizeof(kind->name), "device");
	}
	free(list);
}

int main(int argc, char *argv[])
{
	const char *part = argc > 1 ? argv[1] : NULL, *paths = getenv(PATHS);
	int nr;

	gtdp_require(GTDP_ALL);
	__TEST_REQUIRE(paths, "needs DAX memory that may be overwritten in " PATHS);
	find_kinds(paths);

	nr = run_tests(part, true);
	TEST_ASSERT(nr, "No test has '%s' in its name", part);
	ksft_print_header();
	ksft_set_plan(nr);
	run_tests(part, false);
	ksft_finished();
}
