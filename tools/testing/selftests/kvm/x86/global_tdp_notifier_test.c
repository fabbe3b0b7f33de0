// SPDX-License-Identifier: GPL-2.0
/*
 * Proves that the host may do to populated memory what it likes.  For each way
 * to take memory away, or to change what or where it is, the guest then finds
 * exactly what the host's mapping holds, what the host gave up is free at once,
 * and what is present again is mapped again without a fault of a vCPU, by the
 * ioctl and by the follower.
 *
 * Everything happens one after the other, see global_tdp_churn_test for races.
 */
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <linux/falloc.h>
#include <linux/kernel-page-flags.h>
#include <linux/mman.h>

#include "test_util.h"
#include "kvm_util.h"
#include "processor.h"
#include "global_tdp.h"

#define MEM_SIZE	SZ_4M
#define NR_PAGES	(MEM_SIZE / PAGE_SIZE)
#define NR_REGIONS	(MEM_SIZE / SZ_2M)

/* First stamps of what is there at first, is put there then, and at last. */
#define OLD_TAG		1
#define NEW_TAG		1000000
#define LAST_TAG	2000000
#define GUEST_TAG	3000000

/* Pages that are moved one by one. */
#define NR_MOVED	4

#define KSM		"/sys/kernel/mm/ksm/"
#define KSM_SECONDS	100

/* Of what the host does not do while anybody happens to look at a page. */
#define MAX_TRIES	100

struct env {
	struct kvm_vm *vm;
	struct kvm_vcpu *vcpu;
	struct gtdp_mem mem;
	u64 pfns[NR_PAGES];
	u64 nr_code;
	/* Pages that reclaim has looked at, and kept. */
	u64 nr_kept;
	bool follow;
};

/* What the host's mapping holds after a change. */
enum after {
	GONE,		/* nothing, i.e. zeroes once it is touched */
	SWAPPED,	/* nothing, but the old content comes back */
	OLD,
	NEW,
};

struct change {
	const char *name;
	enum gtdp_backing backing;
	enum after after;
	/* The pages that were there should be free. */
	bool frees;
	/* Returns false if this can't be done here. */
	bool (*fn)(struct env *env);
};

/* By the ioctl, or by waiting for the follower. */
static void map_all(struct env *env)
{
	if (env->follow)
		gtdp_wait_mapped(env->vm, env->nr_code + NR_PAGES);
	else
		gtdp_populate_full(env->vm, GTDP_GPA, MEM_SIZE);
}

static bool env_create(struct env *env, enum gtdp_backing backing, bool follow)
{
	struct userspace_mem_region *code;
	int r;

	if (!gtdp_mem_alloc(&env->mem, backing, MEM_SIZE, 0))
		return false;
	gtdp_stamp(env->mem.hva, NR_PAGES, OLD_TAG);

	env->follow = follow;
	env->vm = gtdp_vm_create(follow ? KVM_GLOBAL_TDP_FOLLOW : KVM_GLOBAL_TDP_POPULATE,
				 1, &env->vcpu);
	env->nr_code = gtdp_code_size(env->vm) / PAGE_SIZE;

	/* The guest's code is not to be affected by what happens to the rest. */
	code = memslot2region(env->vm, 0);
	r = madvise(code->host_mem, code->region.memory_size, MADV_DONTFORK);
	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("madvise()", r));
	r = mlock(code->host_mem, code->region.memory_size);
	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("mlock()", r));

	if (follow)
		gtdp_wait_mapped(env->vm, env->nr_code);
	else
		gtdp_populate_code(env->vm);

	gtdp_add_slot(env->vm, GTDP_SLOT, 0, GTDP_GPA, &env->mem);
	map_all(env);
	return true;
}

static void env_destroy(struct env *env)
{
	kvm_vm_free(env->vm);
	gtdp_mem_free(&env->mem);
}

static u64 run(struct env *env, enum gtdp_op op, u64 tag)
{
	return gtdp_run(env->vcpu, op, GTDP_GPA, NR_PAGES, tag);
}

/* Run a vCPU that was refused until it is done with what it was about to do. */
static void finish(struct env *env)
{
	vcpu_run(env->vcpu);
	gtdp_finish_job(env->vcpu);
}

static void advise(void *hva, size_t size, int advice)
{
	int r = madvise(hva, size, advice);

	TEST_ASSERT(!r, "madvise(%d): %s", advice, strerror(errno));
}

static void map_new(void *hva)
{
	void *map = mmap(hva, MEM_SIZE, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);

	TEST_ASSERT(map == hva, __KVM_SYSCALL_ERROR("mmap()", -1));
	if (thp_configured())
		advise(hva, MEM_SIZE, MADV_NOHUGEPAGE);
}

static long read_number(const char *path)
{
	FILE *file = fopen(path, "r");
	long number = -1;

	if (file) {
		if (fscanf(file, "%ld", &number) != 1)
			number = -1;
		fclose(file);
	}
	return number;
}

static bool write_text(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY);
	bool done;

	if (fd < 0)
		return false;
	done = write(fd, text, strlen(text)) == strlen(text);
	close(fd);
	return done;
}

static bool dontneed(struct env *env)
{
	advise(env->mem.hva, MEM_SIZE, MADV_DONTNEED);
	return true;
}

/* The host passes over pages that somebody else is just looking at: insist. */
static void page_out_all(struct env *env)
{
	u64 pfns[NR_PAGES];
	int i;

	for (i = 0; i < MAX_TRIES; i++) {
		gtdp_drain_lru();
		advise(env->mem.hva, MEM_SIZE, MADV_PAGEOUT);
		if (!gtdp_get_pfns(env->mem.hva, NR_PAGES, pfns))
			return;
	}
	TEST_FAIL("Not all is paged out");
}

/*
 * Pages that are free to be reclaimed are, unless someone wrote to them, which
 * is said of pages with the dirty bit set in their SPTE, too.
 */
static bool free_and_reclaim(struct env *env)
{
	advise(env->mem.hva, MEM_SIZE, MADV_FREE);
	map_all(env);
	page_out_all(env);
	return true;
}

static bool punch_hole(struct env *env)
{
	struct stat st;
	int r;

	r = fallocate(env->mem.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
		      env->mem.map_size);
	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("fallocate()", r));
	r = fstat(env->mem.fd, &st);
	TEST_ASSERT(!r && !st.st_blocks, "%ld blocks are left", st.st_blocks);
	return true;
}

static bool remove_shmem(struct env *env)
{
	advise(env->mem.hva, MEM_SIZE, MADV_REMOVE);
	return true;
}

static bool unmap(struct env *env)
{
	int i, r;

	for (i = 0; i < 2; i++) {
		r = munmap(env->mem.hva, MEM_SIZE);
		TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("munmap()", r));
		TEST_ASSERT_EQ(gtdp_nr_mapped(env->vm), env->nr_code);
		if (!i)
			TEST_ASSERT_EQ(gtdp_try(env->vcpu, GTDP_READ, GTDP_GPA, 1, 0), EFAULT);

		/* Lets the vCPU read, which is why all goes away once more. */
		map_new(env->mem.hva);
		if (!i)
			finish(env);
	}

	return true;
}

/* The guest has what is at the address now, not what has moved on from there. */
static bool move_away(struct env *env)
{
	void *map, *to = mmap(NULL, MEM_SIZE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	TEST_ASSERT(to != MAP_FAILED, __KVM_SYSCALL_ERROR("mmap()", -1));
	map = mremap(env->mem.hva, MEM_SIZE, MEM_SIZE, MREMAP_MAYMOVE | MREMAP_FIXED, to);
	TEST_ASSERT(map == to, __KVM_SYSCALL_ERROR("mremap()", -1));

	map_new(env->mem.hva);
	gtdp_stamp(env->mem.hva, NR_PAGES, LAST_TAG);
	map_all(env);
	run(env, GTDP_CHECK, LAST_TAG);
	run(env, GTDP_STAMP, NEW_TAG);
	gtdp_check(to, NR_PAGES, OLD_TAG);
	munmap(to, MEM_SIZE);
	return true;
}

static bool move_here(struct env *env)
{
	struct gtdp_mem other;
	void *map;

	gtdp_mem_alloc(&other, GTDP_ANON, MEM_SIZE, 0);
	gtdp_stamp(other.hva, NR_PAGES, NEW_TAG);
	map = mremap(other.hva, MEM_SIZE, MEM_SIZE, MREMAP_MAYMOVE | MREMAP_FIXED,
		     env->mem.hva);
	TEST_ASSERT(map == env->mem.hva, __KVM_SYSCALL_ERROR("mremap()", -1));
	gtdp_mem_free(&other);
	return true;
}

/* What the guest writes is its own VMM's, and a child's pages remain. */
static bool fork_and_write(struct env *env)
{
	int go[2], status, r;
	pid_t pid;
	char c;

	r = pipe(go);
	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("pipe()", r));

	pid = fork();
	if (!pid) {
		close(go[1]);
		if (read(go[0], &c, 1))
			_exit(1);
		gtdp_check(env->mem.hva, NR_PAGES, OLD_TAG);
		_exit(0);
	}
	TEST_ASSERT(pid > 0, __KVM_SYSCALL_ERROR("fork()", pid));
	close(go[0]);

	map_all(env);
	TEST_ASSERT_EQ(run(env, GTDP_CHECK, OLD_TAG), 0);
	gtdp_run(env->vcpu, GTDP_STAMP, GTDP_GPA, NR_PAGES / 2, NEW_TAG);
	gtdp_check(env->mem.hva, NR_PAGES / 2, NEW_TAG);
	gtdp_stamp(env->mem.hva, NR_PAGES, NEW_TAG);

	close(go[1]);
	waitpid(pid, &status, 0);
	TEST_ASSERT(WIFEXITED(status) && !WEXITSTATUS(status),
		    "The child's pages have been written to");
	return true;
}

static bool protect(struct env *env)
{
	int r;

	r = mprotect(env->mem.hva, MEM_SIZE, PROT_NONE);
	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("mprotect()", r));
	TEST_ASSERT_EQ(gtdp_nr_mapped(env->vm), env->nr_code);
	if (!env->follow)
		TEST_ASSERT_EQ(gtdp_populate(env->vm, GTDP_GPA, MEM_SIZE).mapped, 0);
	TEST_ASSERT_EQ(gtdp_try(env->vcpu, GTDP_READ, GTDP_GPA, 1, 0), EFAULT);

	r = mprotect(env->mem.hva, MEM_SIZE, PROT_READ);
	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("mprotect()", r));
	finish(env);
	map_all(env);
	TEST_ASSERT_EQ(run(env, GTDP_CHECK, OLD_TAG), 0);
	TEST_ASSERT_EQ(gtdp_try(env->vcpu, GTDP_STAMP, GTDP_GPA, 1, NEW_TAG), EFAULT);
	gtdp_check(env->mem.hva, NR_PAGES, OLD_TAG);

	r = mprotect(env->mem.hva, MEM_SIZE, PROT_READ | PROT_WRITE);
	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("mprotect()", r));
	finish(env);
	gtdp_check(env->mem.hva, 1, NEW_TAG);
	gtdp_stamp(env->mem.hva, 1, OLD_TAG);
	return true;
}

static u64 nr_flagged(struct env *env, unsigned int flag)
{
	u64 i, nr, flagged = 0;

	nr = gtdp_get_pfns(env->mem.hva, NR_PAGES, env->pfns);
	TEST_ASSERT_EQ(nr, NR_PAGES);
	for (i = 0; i < NR_PAGES; i++)
		flagged += gtdp_page_flag(env->pfns[i], flag);
	return flagged;
}

/* Pages of the first half that are one with their like in the second half. */
static u64 nr_merged(struct env *env)
{
	u64 i, merged = 0;

	TEST_ASSERT_EQ(gtdp_get_pfns(env->mem.hva, NR_PAGES, env->pfns), NR_PAGES);
	for (i = 0; i < NR_PAGES / 2; i++)
		merged += env->pfns[i] == env->pfns[NR_PAGES / 2 + i];
	return merged;
}

/* KSM merges no page that has references besides those of its mappings. */
static bool merge_and_unmerge(struct env *env)
{
	const u64 half = NR_PAGES / 2;
	void *second = env->mem.hva + MEM_SIZE / 2;
	u64 merged = 0;
	int i;

	if (madvise(env->mem.hva, MEM_SIZE, MADV_MERGEABLE)) {
		ksft_print_msg("no KSM\n");
		return false;
	}
	memcpy(second, env->mem.hva, MEM_SIZE / 2);

	write_text(KSM "smart_scan", "0");
	write_text(KSM "sleep_millisecs", "1");
	write_text(KSM "pages_to_scan", "10000");
	write_text(KSM "run", "1");
	for (i = 0; i < KSM_SECONDS * 10 && merged < half; i++) {
		usleep(100000);
		merged = nr_merged(env);
	}
	write_text(KSM "run", "0");
	TEST_ASSERT_EQ(merged, half);

	map_all(env);
	TEST_ASSERT_EQ(gtdp_run(env->vcpu, GTDP_CHECK, GTDP_GPA, half, OLD_TAG), 0);
	TEST_ASSERT_EQ(gtdp_run(env->vcpu, GTDP_CHECK, GTDP_GPA + MEM_SIZE / 2, half, OLD_TAG), 0);
	gtdp_run(env->vcpu, GTDP_STAMP, GTDP_GPA, half / 2, NEW_TAG);
	gtdp_check(env->mem.hva, half / 2, NEW_TAG);
	gtdp_check(second, half, OLD_TAG);

	advise(env->mem.hva, MEM_SIZE, MADV_UNMERGEABLE);
	TEST_ASSERT_EQ(nr_merged(env), 0);
	map_all(env);
	gtdp_run(env->vcpu, GTDP_CHECK, GTDP_GPA, half / 2, NEW_TAG);
	gtdp_run(env->vcpu, GTDP_CHECK, GTDP_GPA + MEM_SIZE / 2, half, OLD_TAG);
	gtdp_stamp(env->mem.hva, NR_PAGES, NEW_TAG);
	return true;
}

static bool page_out(struct env *env)
{
	if (!gtdp_has_zram_swap(2 * MEM_SIZE))
		return false;

	page_out_all(env);
	return true;
}

/* Some of the memory has to go where a cgroup is at its limit. */
static bool reach_limit(struct env *env)
{
	char dir[] = "/tmp/global_tdp.XXXXXX", group[64], path[128], text[32];
	u64 left = NR_PAGES;

	if (!gtdp_has_zram_swap(2 * MEM_SIZE))
		return false;

	TEST_ASSERT(mkdtemp(dir), __KVM_SYSCALL_ERROR("mkdtemp()", -1));
	if (mount("none", dir, "cgroup2", 0, NULL)) {
		ksft_print_msg("no cgroups: %s\n", strerror(errno));
		rmdir(dir);
		return false;
	}

	snprintf(path, sizeof(path), "%s/cgroup.subtree_control", dir);
	write_text(path, "+memory");
	snprintf(group, sizeof(group), "%s/global_tdp", dir);
	mkdir(group, 0700);

	snprintf(path, sizeof(path), "%s/cgroup.procs", group);
	if (write_text(path, "0")) {
		/* Memory is charged to who touches it first: have it anew. */
		advise(env->mem.hva, MEM_SIZE, MADV_DONTNEED);
		gtdp_stamp(env->mem.hva, NR_PAGES, OLD_TAG);
		map_all(env);
		gtdp_drain_lru();

		snprintf(path, sizeof(path), "%s/memory.max", group);
		snprintf(text, sizeof(text), "%d", MEM_SIZE / 2);
		if (write_text(path, text))
			left = gtdp_get_pfns(env->mem.hva, NR_PAGES, env->pfns);
		write_text(path, "max");

		snprintf(path, sizeof(path), "%s/cgroup.procs", dir);
		write_text(path, "0");
	}
	env->nr_kept = left;
	if (left < NR_PAGES) {
		struct kvm_populate_memory sum;

		TEST_ASSERT(left <= NR_PAGES / 2, "%lu pages are above the limit", left);
		if (!env->follow) {
			sum = gtdp_populate(env->vm, GTDP_GPA, MEM_SIZE);
			TEST_ASSERT_EQ(sum.absent, (NR_PAGES - left) * PAGE_SIZE);
		}
		/*
		 * What the guest reads is swapped in clean.  If the follower was faster than the
		 * fault, it would map the page read-only.
		 */
		TEST_ASSERT(gtdp_set_param("global_tdp", "never"), "It can't be stopped");
		run(env, GTDP_CHECK, OLD_TAG);
		gtdp_restore_params();
	} else {
		ksft_print_msg("no memory cgroups\n");
	}

	rmdir(group);
	umount(dir);
	rmdir(dir);
	return left < NR_PAGES;
}

/* Does what takes that nobody else has a reference to the pages. */
static int try_advise(void *hva, size_t size, int advice)
{
	int i, r;

	for (i = 0; i < MAX_TRIES; i++) {
		gtdp_drain_lru();
		r = madvise(hva, size, advice);
		if (!r || (errno != EBUSY && errno != EAGAIN))
			break;
		usleep(10000);
	}
	return r;
}

static bool migrate(struct env *env)
{
	const u64 pages[NR_MOVED] = { 3, 100, GTDP_REGION_PAGES - 1, NR_PAGES - 1 };
	u64 moved[NR_PAGES];
	int i;

	for (i = 0; i < ARRAY_SIZE(pages); i++) {
		if (try_advise(env->mem.hva + pages[i] * PAGE_SIZE, PAGE_SIZE,
			       MADV_SOFT_OFFLINE)) {
			TEST_ASSERT(errno == EINVAL || errno == EPERM || errno == EOPNOTSUPP,
				    "Page %lu can't be moved: %s", pages[i], strerror(errno));
			ksft_print_msg("no page can be moved: %s\n", strerror(errno));
			return false;
		}
	}

	gtdp_get_pfns(env->mem.hva, NR_PAGES, moved);
	for (i = 0; i < ARRAY_SIZE(pages); i++)
		TEST_ASSERT(moved[pages[i]] != env->pfns[pages[i]], "Page %lu did not move",
			    pages[i]);
	return true;
}

/*
 * With the mitigation of L1TF, swap entries are too short to hold whether a page
 * was dirty while it is being migrated, see softleaf_is_migration_dirty(): it is
 * clean then, i.e. mapped read-only.  The mitigation can be off, which is not told.
 */
static bool is_clean_if_moved(void)
{
	char text[64] = "";
	FILE *file;

	file = fopen("/sys/devices/system/cpu/vulnerabilities/l1tf", "r");
	if (!file)
		return false;
	if (!fgets(text, sizeof(text), file))
		text[0] = '\0';
	fclose(file);
	return text[0] && strncmp(text, "Not affected", strlen("Not affected"));
}

static bool collapse(struct env *env)
{
	u64 populated = gtdp_vm_stat(env->vm, "tdp_populated_2m");
	int r;

	if (!gtdp_has_thp())
		return false;

	advise(env->mem.hva, MEM_SIZE, MADV_HUGEPAGE);
	r = try_advise(env->mem.hva, MEM_SIZE, MADV_COLLAPSE);
	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("madvise()", r));
	TEST_ASSERT_EQ(gtdp_huge_bytes(env->mem.hva), MEM_SIZE);

	map_all(env);
	if (!env->follow)
		TEST_ASSERT_EQ(gtdp_vm_stat(env->vm, "tdp_populated_2m"),
			       populated + NR_REGIONS);
	return true;
}

/* The pages themselves are split, which takes that nobody has a reference. */
static bool split_pages(struct env *env)
{
	u64 small = gtdp_vm_stat(env->vm, "pages_4k");
	char text[64];
	int i;

	if (!gtdp_is_huge(env->mem.hva, MEM_SIZE))
		return false;
	TEST_ASSERT_EQ(gtdp_vm_stat(env->vm, "pages_2m"), NR_REGIONS);

	/* khugepaged is not to undo it. */
	advise(env->mem.hva, MEM_SIZE, MADV_NOHUGEPAGE);
	snprintf(text, sizeof(text), "%d,%p,%p,0", getpid(), env->mem.hva,
		 env->mem.hva + MEM_SIZE);
	for (i = 0; i < MAX_TRIES && nr_flagged(env, KPF_THP); i++) {
		gtdp_drain_lru();
		if (!write_text("/sys/kernel/debug/split_huge_pages", text)) {
			ksft_print_msg("no debugfs to split huge pages by\n");
			return false;
		}
	}
	TEST_ASSERT_EQ(nr_flagged(env, KPF_THP), 0);

	map_all(env);
	TEST_ASSERT_EQ(gtdp_vm_stat(env->vm, "pages_4k"), small + NR_PAGES);
	TEST_ASSERT_EQ(run(env, GTDP_CHECK, OLD_TAG), 0);

	/* And back. */
	return collapse(env);
}

/* A smaller mapping of the same page. */
static bool split_mapping(struct env *env)
{
	void *hva = env->mem.hva + SZ_2M + 5 * PAGE_SIZE;
	int r;

	if (!gtdp_is_huge(env->mem.hva, MEM_SIZE))
		return false;

	/* khugepaged is not to undo it. */
	advise(env->mem.hva, MEM_SIZE, MADV_NOHUGEPAGE);
	r = mprotect(hva, PAGE_SIZE, PROT_READ);
	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("mprotect()", r));
	TEST_ASSERT_EQ(gtdp_huge_bytes(env->mem.hva), SZ_2M);
	map_all(env);
	TEST_ASSERT_EQ(run(env, GTDP_CHECK, OLD_TAG), 0);
	TEST_ASSERT_EQ(gtdp_vm_stat(env->vm, "pages_2m"), NR_REGIONS - 1);
	TEST_ASSERT_EQ(gtdp_try(env->vcpu, GTDP_STAMP, GTDP_GPA + (hva - env->mem.hva), 1,
				NEW_TAG), EFAULT);

	r = mprotect(hva, PAGE_SIZE, PROT_READ | PROT_WRITE);
	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("mprotect()", r));
	finish(env);
	gtdp_stamp(hva, 1, OLD_TAG + SZ_2M / PAGE_SIZE + 5);
	return true;
}

static long nr_free_hugetlb(void)
{
	return read_number("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
}

static bool dontneed_hugetlb(struct env *env)
{
	long unused = nr_free_hugetlb();

	advise(env->mem.hva, MEM_SIZE, MADV_DONTNEED);
	TEST_ASSERT_EQ(nr_free_hugetlb(), unused + NR_REGIONS);
	return true;
}

static bool unmap_hugetlb(struct env *env)
{
	long unused = nr_free_hugetlb();

	unmap(env);
	TEST_ASSERT_EQ(nr_free_hugetlb(), unused + NR_REGIONS);
	return true;
}

static const struct change changes[] = {
	{ "discard", GTDP_ANON, GONE, true, dontneed },
	{ "discard, huge pages", GTDP_THP, GONE, true, dontneed },
	{ "discard, hugetlb", GTDP_HUGETLB, GONE, false, dontneed_hugetlb },
	{ "free and reclaim", GTDP_ANON, GONE, true, free_and_reclaim },
	{ "punch a hole into a memfd", GTDP_MEMFD, GONE, true, punch_hole },
	{ "remove shared memory", GTDP_SHMEM, GONE, true, remove_shmem },
	{ "unmap", GTDP_ANON, GONE, true, unmap },
	{ "unmap hugetlb", GTDP_HUGETLB, GONE, false, unmap_hugetlb },
	{ "move away", GTDP_ANON, NEW, true, move_away },
	{ "move other memory here", GTDP_ANON, NEW, true, move_here },
	{ "fork", GTDP_ANON, NEW, true, fork_and_write },
	{ "protect", GTDP_ANON, OLD, false, protect },
	{ "merge and unmerge", GTDP_ANON, NEW, false, merge_and_unmerge },
	{ "swap out", GTDP_ANON, SWAPPED, true, page_out },
	{ "memory limit", GTDP_ANON, OLD, false, reach_limit },
	{ "move physically", GTDP_ANON, OLD, false, migrate },
	{ "collapse", GTDP_ANON, OLD, true, collapse },
	{ "split and collapse", GTDP_THP, OLD, false, split_pages },
	{ "split a mapping", GTDP_THP, OLD, false, split_mapping },
};

/* What was taken away is gone for KVM, too, and stays so until it is touched. */
static void check_gone(struct env *env, enum after after)
{
	struct kvm_populate_memory sum;
	u64 pfns[NR_PAGES];

	TEST_ASSERT_EQ(gtdp_nr_mapped(env->vm), env->nr_code);
	TEST_ASSERT_EQ(gtdp_get_pfns(env->mem.hva, NR_PAGES, pfns), 0);

	/* The follower is left alone with it: see what it does later. */
	if (env->follow)
		return;

	sum = gtdp_populate(env->vm, GTDP_GPA, MEM_SIZE);
	TEST_ASSERT_EQ(sum.mapped, 0);
	TEST_ASSERT_EQ(sum.absent, MEM_SIZE);
	TEST_ASSERT_EQ(gtdp_get_pfns(env->mem.hva, NR_PAGES, pfns), 0);

	TEST_ASSERT(run(env, after == GONE ? GTDP_CHECK_ZERO : GTDP_CHECK, OLD_TAG),
		    "The guest took no fault on what is not mapped");
}

static bool test_change(const struct change *change, bool follow)
{
	u64 repopulated, held, faults;
	struct env env;

	if (!env_create(&env, change->backing, follow))
		return false;

	TEST_ASSERT_EQ(run(&env, GTDP_CHECK, OLD_TAG), 0);
	TEST_ASSERT_EQ(gtdp_get_pfns(env.mem.hva, NR_PAGES, env.pfns), NR_PAGES);
	gtdp_drain_lru();
	repopulated = gtdp_vm_stat(env.vm, "tdp_repopulated");

	if (!change->fn(&env)) {
		env_destroy(&env);
		return false;
	}

	if (change->frees) {
		held = gtdp_nr_held(env.pfns, NR_PAGES);
		TEST_ASSERT(!held, "%lu pages are not free", held);
	}

	if (change->after == GONE || change->after == SWAPPED) {
		check_gone(&env, change->after);
	} else {
		map_all(&env);
		TEST_ASSERT_EQ(run(&env, GTDP_CHECK,
				   change->after == OLD ? OLD_TAG : NEW_TAG), 0);
	}

	/* All is back, and writable. */
	if (change->after == SWAPPED) {
		/* Reading it first would let the follower map it read-only. */
		advise(env.mem.hva, MEM_SIZE, MADV_POPULATE_WRITE);
		gtdp_check(env.mem.hva, NR_PAGES, OLD_TAG);
	}
	gtdp_stamp(env.mem.hva, NR_PAGES, LAST_TAG);

	/*
	 * What the huge zero page was mapped for is small pages now, and a fault
	 * while khugepaged collapses them is repeated until that is done: from
	 * here on it does not.  Huge pages remain.
	 */
	if (change->backing == GTDP_THP)
		advise(env.mem.hva, MEM_SIZE, MADV_NOHUGEPAGE);
	map_all(&env);
	TEST_ASSERT_EQ(run(&env, GTDP_CHECK, LAST_TAG), 0);
	faults = run(&env, GTDP_STAMP, GUEST_TAG);
	gtdp_check(env.mem.hva, NR_PAGES, GUEST_TAG);

	/*
	 * Without Accessed and Dirty bits, to age an SPTE takes all access from it: the next
	 * read is a fault, and gives access to read only, so the next write is one, too, as
	 * with Global TDP off.  KVM_POPULATE_MEMORY makes such SPTEs writable.
	 *
	 * hugetlb that was only read, what KSM has unmerged, and what is clean, is
	 * mapped read-only.  The host's write makes it writable, or dirty, in place,
	 * which no notifier tells of.
	 */
	if (change->fn == migrate && is_clean_if_moved())
		TEST_ASSERT(!faults || faults == NR_MOVED,
			    "%lu faults, of %d pages that were moved", faults, NR_MOVED);
	else if (change->fn == reach_limit && follow && !gtdp_has_ad_bits())
		TEST_ASSERT(faults <= env.nr_kept, "%lu faults, and %lu pages were kept",
			    faults, env.nr_kept);
	else if (change->fn != merge_and_unmerge &&
		 (follow || change->backing != GTDP_HUGETLB))
		TEST_ASSERT_EQ(faults, 0);

	if (follow)
		TEST_ASSERT(gtdp_vm_stat(env.vm, "tdp_repopulated") > repopulated,
			    "Nothing counted as repopulated");

	env_destroy(&env);
	return true;
}

/* Takes part of the name of a change, to leave out all others. */
int main(int argc, char *argv[])
{
	const char *part = argc > 1 ? argv[1] : NULL;
	int i, chosen = 0;

	gtdp_require(KVM_GLOBAL_TDP_FOLLOW | KVM_GLOBAL_TDP_POPULATE);

	for (i = 0; i < ARRAY_SIZE(changes); i++)
		chosen += gtdp_is_chosen(changes[i].name, part);
	TEST_ASSERT(chosen, "No change has '%s' in its name", part);

	ksft_print_header();
	ksft_set_plan(2 * chosen);

	for (i = 0; i < 2 * ARRAY_SIZE(changes); i++) {
		const struct change *change = &changes[i / 2];
		const char *how = i % 2 ? "follower" : "ioctl";

		if (!gtdp_is_chosen(change->name, part))
			continue;

		if (test_change(change, i % 2))
			ksft_test_result_pass("%s, %s\n", change->name, how);
		else
			ksft_test_result_skip("%s, %s\n", change->name, how);
	}

	ksft_finished();
}
