// SPDX-License-Identifier: GPL-2.0
/*
 * Proves that userfaultfd and Global TDP get along, as they must in postcopy:
 * nothing that is done ahead of the vCPUs raises an event or waits for one; a
 * vCPU that touches what is missing raises one, for that page and no other; and
 * what is delivered is mapped by the follower without a fault of a vCPU.  Pages
 * that are write-protected remain so.  And KVM_PRE_FAULT_MEMORY, which does wait,
 * has an end though memslots are deleted, or roots zapped, meanwhile.
 */
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <sys/syscall.h>

#include <linux/kernel-page-flags.h>
#include <linux/userfaultfd.h>

#include "test_util.h"
#include "kvm_util.h"
#include "processor.h"
#include "global_tdp.h"

#define MEM_SIZE	SZ_4M
#define NR_PAGES	(MEM_SIZE / PAGE_SIZE)

#define HOST_TAG	1
#define GUEST_TAG	1000000

/* What the vCPU asks for first, while all else is missing. */
#define WANTED		(GTDP_REGION_PAGES + 77)

#define EVENT_MS	60000

/* A call that takes so much of a CPU, instead of some microseconds, has no end. */
#define NO_END_SECS	10

#define THP_DIR		"/sys/kernel/mm/transparent_hugepage"

/* Some of its passes with what is scanned for nothing. */
#define IDLE_SECONDS	3

struct env {
	struct kvm_vm *vm;
	struct kvm_vcpu *vcpu;
	struct gtdp_mem mem;
	/* A page that is never there, see have_looked(). */
	struct gtdp_mem missing;
	u64 nr_code;
	int uffd;
	/* The memory that pages are delivered from. */
	void *source;
	size_t source_size;
};

static bool open_uffd(struct env *env, u64 mode, u64 features)
{
	struct uffdio_api api = { .api = UFFD_API, .features = features };
	struct uffdio_register reg = {
		.range = { .start = (u64)env->mem.hva, .len = MEM_SIZE },
		.mode = mode,
	};

	env->uffd = syscall(__NR_userfaultfd, O_CLOEXEC | O_NONBLOCK);
	if (env->uffd < 0 || ioctl(env->uffd, UFFDIO_API, &api) ||
	    ioctl(env->uffd, UFFDIO_REGISTER, &reg)) {
		ksft_print_msg("no userfaultfd: %s\n", strerror(errno));
		close(env->uffd);
		return false;
	}
	return true;
}

static void add_slots(struct env *env)
{
	gtdp_add_slot(env->vm, GTDP_SLOT, 0, GTDP_GPA, &env->mem);
	gtdp_mem_alloc(&env->missing, GTDP_ANON, PAGE_SIZE, 0);
	gtdp_add_slot(env->vm, GTDP_SLOT + 1, 0, GTDP_GPA + MEM_SIZE, &env->missing);
}

static void create_vm(struct env *env, u64 features)
{
	env->vm = gtdp_vm_create(features, 1, &env->vcpu);
	env->nr_code = gtdp_code_size(env->vm) / PAGE_SIZE;
	gtdp_populate_code(env->vm);
	add_slots(env);
}

static void env_destroy(struct env *env)
{
	kvm_vm_free(env->vm);
	close(env->uffd);
	munmap(env->source, env->source_size);
	gtdp_mem_free(&env->mem);
	gtdp_mem_free(&env->missing);
}

static bool has_event(struct env *env, int timeout_ms)
{
	struct pollfd pollfd = { .fd = env->uffd, .events = POLLIN };

	return poll(&pollfd, 1, timeout_ms) == 1;
}

/*
 * Have the follower look at all memory, of which @nr_absent pages are missing,
 * and at a page behind it, which is missing as well: that tells that it has
 * looked.  Do it twice, as it may have been about to look at the latter.
 */
static void have_looked(struct env *env, u64 nr_absent)
{
	struct kvm_populate_memory range;
	u64 before;
	int i;

	for (i = 0; i < 2; i++) {
		range = (struct kvm_populate_memory) {
			.gpa = GTDP_GPA,
			.size = MEM_SIZE + PAGE_SIZE,
			.flags = KVM_POPULATE_ASYNC,
		};
		before = gtdp_nr_absent(env->vm);
		vm_ioctl(env->vm, KVM_POPULATE_MEMORY, &range);
		gtdp_wait_until(gtdp_nr_absent(env->vm) > before + nr_absent);
	}
}

/* Expect an event for @page and, until it is dealt with, no other. */
static void check_event(struct env *env, u64 page, u64 flags, u64 nr_absent)
{
	struct uffd_msg msg;
	ssize_t r;

	TEST_ASSERT(has_event(env, EVENT_MS), "Nobody asks for page %lu", page);
	r = read(env->uffd, &msg, sizeof(msg));
	TEST_ASSERT_EQ(r, sizeof(msg));
	TEST_ASSERT_EQ(msg.event, UFFD_EVENT_PAGEFAULT);
	TEST_ASSERT_EQ((msg.arg.pagefault.address - (u64)env->mem.hva) / PAGE_SIZE, page);
	TEST_ASSERT_EQ(msg.arg.pagefault.flags & (UFFD_PAGEFAULT_FLAG_WP |
						  UFFD_PAGEFAULT_FLAG_MINOR), flags);

	have_looked(env, nr_absent);
	TEST_ASSERT(!has_event(env, 0), "More than page %lu is asked for", page);
}

static void *run_vcpu(void *vcpu)
{
	vcpu_run(vcpu);
	gtdp_finish_job(vcpu);
	return NULL;
}

static pthread_t start_job(struct env *env, enum gtdp_op op, u64 page, u64 tag)
{
	pthread_t thread;

	gtdp_set_job(env->vcpu, (struct gtdp_job) {
		.op = op,
		.gpa = GTDP_GPA + page * PAGE_SIZE,
		.nr = 1,
		.step = 1,
		.tag = tag + page,
	});
	pthread_create(&thread, NULL, run_vcpu, env->vcpu);
	return thread;
}

typedef void (*deliver_fn)(struct env *env, u64 page, u64 nr);

static void deliver_copy(struct env *env, u64 page, u64 nr)
{
	struct uffdio_copy copy = {
		.dst = (u64)env->mem.hva + page * PAGE_SIZE,
		.src = (u64)env->source + page * PAGE_SIZE,
		.len = nr * PAGE_SIZE,
	};
	int r = ioctl(env->uffd, UFFDIO_COPY, &copy);

	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("UFFDIO_COPY", r));
}

static void deliver_continue(struct env *env, u64 page, u64 nr)
{
	struct uffdio_continue cont = {
		.range = {
			.start = (u64)env->mem.hva + page * PAGE_SIZE,
			.len = nr * PAGE_SIZE,
		},
	};
	int r = ioctl(env->uffd, UFFDIO_CONTINUE, &cont);

	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("UFFDIO_CONTINUE", r));
}

/* Nothing but the guest's code is mapped, and nobody is asked for more. */
static void check_untouched(struct env *env)
{
	struct kvm_populate_memory sum;

	have_looked(env, NR_PAGES);
	TEST_ASSERT(!has_event(env, 0), "The follower asked for a page");
	sum = gtdp_populate(env->vm, GTDP_GPA, MEM_SIZE);
	TEST_ASSERT_EQ(sum.mapped, 0);
	TEST_ASSERT_EQ(sum.absent, MEM_SIZE);
	TEST_ASSERT(!has_event(env, 0), "The ioctl asked for a page");
	TEST_ASSERT_EQ(gtdp_nr_mapped(env->vm), env->nr_code);
}

static void check_delivery(struct env *env, deliver_fn deliver, u64 flags)
{
	const u64 part = NR_PAGES / 4 + 3;
	struct kvm_populate_memory sum;
	u64 i, nr, end;
	pthread_t thread;

	create_vm(env, GTDP_ALL);
	check_untouched(env);

	/* The vCPU waits, for as long as it takes, nobody else does. */
	thread = start_job(env, GTDP_CHECK, WANTED, HOST_TAG);
	check_event(env, WANTED, flags, NR_PAGES);
	sum = gtdp_populate(env->vm, GTDP_GPA, MEM_SIZE);
	TEST_ASSERT_EQ(sum.absent, MEM_SIZE);
	deliver(env, WANTED, 1);
	pthread_join(thread, NULL);
	TEST_ASSERT(!has_event(env, 0), "Page %d is not enough", (int)WANTED);

	/* The rest arrives bit by bit, in the order of a migration. */
	for (i = 0; i < NR_PAGES; i += nr) {
		end = i <= WANTED ? WANTED : NR_PAGES;
		nr = min_t(u64, part, end - i);
		if (nr)
			deliver(env, i, nr);
		else
			nr = 1;
		gtdp_wait_mapped(env->vm, env->nr_code + i + nr);
	}

	TEST_ASSERT(!has_event(env, 0), "A page was asked for");
	TEST_ASSERT_EQ(gtdp_run(env->vcpu, GTDP_CHECK, GTDP_GPA, NR_PAGES, HOST_TAG), 0);
	TEST_ASSERT_EQ(gtdp_run(env->vcpu, GTDP_STAMP, GTDP_GPA, NR_PAGES, GUEST_TAG), 0);
	gtdp_check(env->mem.hva, NR_PAGES, GUEST_TAG);

	env_destroy(env);
}

/* All of the memory is missing, and there is where to take it from. */
static bool open_missing(struct env *env, enum gtdp_backing backing)
{
	*env = (struct env) { .source_size = MEM_SIZE };
	gtdp_mem_alloc(&env->mem, backing, MEM_SIZE, 0);
	if (!open_uffd(env, UFFDIO_REGISTER_MODE_MISSING,
		       backing == GTDP_ANON ? 0 : UFFD_FEATURE_MISSING_SHMEM))
		return false;

	env->source = mmap(NULL, MEM_SIZE, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	TEST_ASSERT(env->source != MAP_FAILED, __KVM_SYSCALL_ERROR("mmap()", -1));
	gtdp_stamp(env->source, NR_PAGES, HOST_TAG);
	return true;
}

static bool test_missing(enum gtdp_backing backing)
{
	struct env env;

	if (!open_missing(&env, backing))
		return false;

	check_delivery(&env, deliver_copy, 0);
	return true;
}

static bool test_missing_anon(void)
{
	return test_missing(GTDP_ANON);
}

static bool test_missing_memfd(void)
{
	return test_missing(GTDP_MEMFD);
}

/*
 * Once vCPUs run, the follower looks some times for pages that do not arrive, and then no
 * more.  If they arrive after all, each fault maps all of its region.
 */
static bool test_idle(void)
{
	u64 looked, faults;
	struct env env;

	if (!open_missing(&env, GTDP_ANON))
		return false;

	create_vm(&env, GTDP_ALL);
	gtdp_run(env.vcpu, GTDP_READ, GTDP_GPA, 0, 0);
	sleep(IDLE_SECONDS);

	looked = gtdp_vm_stat(env.vm, "tdp_populate_absent");
	sleep(IDLE_SECONDS);
	looked = gtdp_vm_stat(env.vm, "tdp_populate_absent") - looked;
	TEST_ASSERT(!looked, "Looked at %lu pages that do not arrive", looked);

	deliver_copy(&env, 0, NR_PAGES);
	faults = gtdp_run(env.vcpu, GTDP_CHECK, GTDP_GPA, NR_PAGES, HOST_TAG);
	TEST_ASSERT(faults <= NR_PAGES / GTDP_REGION_PAGES, "%lu faults", faults);

	env_destroy(&env);
	return true;
}

/*
 * All arrives, and the page of a fault is mapped, while the vCPU still waits: what is
 * around is mapped as after any other fault in a page table.  Of a read-only memslot,
 * what faults and what population makes of a page is the same.
 */
static bool test_mapped_meanwhile(void)
{
	const u64 nr = 16, first = WANTED - WANTED % nr;
	struct uffdio_copy copy = {
		.len = MEM_SIZE,
		.mode = UFFDIO_COPY_MODE_DONTWAKE,
	};
	struct uffdio_range range = { .len = MEM_SIZE };
	u64 spurious;
	pthread_t thread;
	struct env env;

	if (!open_missing(&env, GTDP_ANON))
		return false;

	create_vm(&env, KVM_GLOBAL_TDP_FAULT_AROUND | KVM_GLOBAL_TDP_POPULATE);
	gtdp_delete_slot(env.vm, GTDP_SLOT);
	gtdp_add_slot(env.vm, GTDP_SLOT, KVM_MEM_READONLY, GTDP_GPA, &env.mem);
	spurious = gtdp_vcpu_stat(env.vcpu, "pf_spurious");

	thread = start_job(&env, GTDP_CHECK, WANTED, HOST_TAG);
	TEST_ASSERT(has_event(&env, EVENT_MS), "Nobody asks for a page");

	copy.dst = (u64)env.mem.hva;
	copy.src = (u64)env.source;
	TEST_ASSERT(!ioctl(env.uffd, UFFDIO_COPY, &copy), "UFFDIO_COPY");
	gtdp_populate_full(env.vm, GTDP_GPA + WANTED * PAGE_SIZE, PAGE_SIZE);
	range.start = copy.dst;
	TEST_ASSERT(!ioctl(env.uffd, UFFDIO_WAKE, &range), "UFFDIO_WAKE");
	pthread_join(thread, NULL);

	TEST_ASSERT_EQ(gtdp_vcpu_stat(env.vcpu, "pf_spurious"), spurious + 1);
	TEST_ASSERT_EQ(gtdp_vm_stat(env.vm, "tdp_fault_around"), nr - 1);
	TEST_ASSERT_EQ(gtdp_run(env.vcpu, GTDP_CHECK, GTDP_GPA + first * PAGE_SIZE, nr,
				HOST_TAG + first), 0);

	env_destroy(&env);
	return true;
}

/* KVM_PRE_FAULT_MEMORY of one page, in a thread that is interrupted if it has no end. */
struct prefault {
	struct kvm_vcpu *vcpu;
	u64 gpa;
	pthread_t thread;
	int err;
};

static bool no_end;

static void on_no_end(int sig)
{
	WRITE_ONCE(no_end, true);
}

static void *prefault_page(void *arg)
{
	struct prefault *prefault = arg;
	struct kvm_pre_fault_memory range = { .gpa = prefault->gpa, .size = PAGE_SIZE };
	int r;

	do {
		r = __vcpu_ioctl(prefault->vcpu, KVM_PRE_FAULT_MEMORY, &range);
	} while (r && errno == EINTR && !READ_ONCE(no_end));

	prefault->err = r ? errno : 0;
	return NULL;
}

static void start_prefault(struct prefault *prefault)
{
	pthread_create(&prefault->thread, NULL, prefault_page, prefault);
}

static int finish_prefault(struct prefault *prefault)
{
	const struct sigaction action = { .sa_handler = on_no_end };
	struct timespec used;
	clockid_t clock;

	sigaction(SIGUSR1, &action, NULL);
	while (pthread_tryjoin_np(prefault->thread, NULL)) {
		if (!pthread_getcpuclockid(prefault->thread, &clock) &&
		    !clock_gettime(clock, &used) && used.tv_sec >= NO_END_SECS)
			pthread_kill(prefault->thread, SIGUSR1);
		usleep(1000);
	}

	return prefault->err;
}

static int prefault(struct prefault *prefault)
{
	start_prefault(prefault);
	return finish_prefault(prefault);
}

static void *delete_missing(void *arg)
{
	struct env *env = arg;

	gtdp_delete_slot(env->vm, GTDP_SLOT + 1);
	return NULL;
}

static bool is_going(struct env *env)
{
	struct kvm_populate_memory range = { .gpa = GTDP_GPA + MEM_SIZE, .size = PAGE_SIZE };

	return __vm_ioctl(env->vm, KVM_POPULATE_MEMORY, &range) && errno == EAGAIN;
}

/*
 * A memslot can't go as long as a vCPU waits for a page: KVM_PRE_FAULT_MEMORY says
 * that it is about to, instead of waiting for that as well.
 */
static bool test_prefault_deleted(void)
{
	struct prefault missing = { .gpa = GTDP_GPA + MEM_SIZE };
	pthread_t waiter, deleter;
	struct kvm_vcpu *vcpus[2];
	struct env env;

	if (!kvm_has_cap(KVM_CAP_PRE_FAULT_MEMORY) || !open_missing(&env, GTDP_ANON))
		return false;

	env.vm = gtdp_vm_create(KVM_GLOBAL_TDP_POPULATE, ARRAY_SIZE(vcpus), vcpus);
	env.vcpu = vcpus[0];
	missing.vcpu = vcpus[1];
	add_slots(&env);

	waiter = start_job(&env, GTDP_CHECK, WANTED, HOST_TAG);
	TEST_ASSERT(has_event(&env, EVENT_MS), "Nobody asks for a page");
	pthread_create(&deleter, NULL, delete_missing, &env);
	/* Time after time: of a region that is being changed, it is said once. */
	gtdp_wait_until(is_going(&env) && is_going(&env) && is_going(&env));
	TEST_ASSERT_EQ(prefault(&missing), EAGAIN);

	deliver_copy(&env, 0, NR_PAGES);
	pthread_join(waiter, NULL);
	pthread_join(deleter, NULL);
	TEST_ASSERT_EQ(prefault(&missing), ENOENT);

	env_destroy(&env);
	return true;
}

/*
 * KVM_PRE_FAULT_MEMORY gets on though all roots are zapped, and so obsolete, while it
 * waits for a page, or were before it was called and no vCPU has run since.
 */
static bool test_prefault_zapped(void)
{
	struct prefault wanted = { .gpa = GTDP_GPA + WANTED * PAGE_SIZE };
	struct env env;

	/* From here on, each change is one.  It fails if it is "never". */
	if (!kvm_has_cap(KVM_CAP_PRE_FAULT_MEMORY) || !open_missing(&env, GTDP_ANON) ||
	    !gtdp_set_param("nx_huge_pages", "off"))
		return false;

	create_vm(&env, KVM_GLOBAL_TDP_POPULATE);
	wanted.vcpu = env.vcpu;

	start_prefault(&wanted);
	TEST_ASSERT(has_event(&env, EVENT_MS), "Nobody asks for a page");
	TEST_ASSERT(gtdp_set_param("nx_huge_pages", "force"), "nx_huge_pages");
	deliver_copy(&env, 0, NR_PAGES);
	TEST_ASSERT_EQ(finish_prefault(&wanted), 0);
	TEST_ASSERT_EQ(gtdp_nr_mapped(env.vm), 1);

	TEST_ASSERT(gtdp_set_param("nx_huge_pages", "off"), "nx_huge_pages");
	TEST_ASSERT_EQ(gtdp_nr_mapped(env.vm), 0);
	TEST_ASSERT_EQ(prefault(&wanted), 0);
	TEST_ASSERT_EQ(gtdp_nr_mapped(env.vm), 1);

	/* That is where the vCPU finds it. */
	gtdp_populate_code(env.vm);
	TEST_ASSERT_EQ(gtdp_run(env.vcpu, GTDP_CHECK, wanted.gpa, 1, HOST_TAG + WANTED), 0);

	gtdp_restore_params();
	env_destroy(&env);
	return true;
}

static bool test_minor_pages(bool huge)
{
	struct env env = {};
	off_t offset;
	u64 pfn;

	gtdp_mem_alloc(&env.mem, GTDP_MEMFD, MEM_SIZE, 0);
	if (!open_uffd(&env, UFFDIO_REGISTER_MODE_MINOR, UFFD_FEATURE_MINOR_SHMEM))
		return false;

	offset = env.mem.hva - env.mem.map;
	env.source_size = MEM_SIZE;
	env.source = mmap(NULL, MEM_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, env.mem.fd,
			  offset);
	TEST_ASSERT(env.source != MAP_FAILED, __KVM_SYSCALL_ERROR("mmap()", -1));
	gtdp_stamp(env.source, NR_PAGES, HOST_TAG);
	gtdp_get_pfns(env.source + MEM_SIZE / 2, 1, &pfn);
	if (gtdp_page_flag(pfn, KPF_THP) != huge)
		return false;

	check_delivery(&env, deliver_continue, UFFD_PAGEFAULT_FLAG_MINOR);
	return true;
}

static bool test_minor(void)
{
	return test_minor_pages(false);
}

/* Nor are those of a huge page of which the VMM has handed over others. */
static bool test_minor_huge(void)
{
	char choices[128], *old;
	bool done;
	FILE *file;

	file = fopen(THP_DIR "/shmem_enabled", "r");
	if (!file)
		return false;
	old = fgets(choices, sizeof(choices), file) ? strchr(choices, '[') : NULL;
	fclose(file);

	/* Of a file, that counts which was chosen when it was created. */
	if (!old || !gtdp_write_file(THP_DIR, "shmem_enabled", "force"))
		return false;
	done = test_minor_pages(true);
	gtdp_write_file(THP_DIR, "shmem_enabled", strtok(old + 1, "]"));

	return done;
}

static void write_protect(struct env *env, u64 page, u64 nr, u64 mode)
{
	struct uffdio_writeprotect protect = {
		.range = {
			.start = (u64)env->mem.hva + page * PAGE_SIZE,
			.len = nr * PAGE_SIZE,
		},
		.mode = mode,
	};
	int r = ioctl(env->uffd, UFFDIO_WRITEPROTECT, &protect);

	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("UFFDIO_WRITEPROTECT", r));
}

/* A write of the guest is told of once, and happens when it is allowed to. */
static void check_write(struct env *env, u64 page)
{
	pthread_t thread = start_job(env, GTDP_STAMP, page, GUEST_TAG);

	check_event(env, page, UFFD_PAGEFAULT_FLAG_WP, 0);
	gtdp_check(env->mem.hva + page * PAGE_SIZE, 1, HOST_TAG + page);
	write_protect(env, page, 1, 0);
	pthread_join(thread, NULL);
	gtdp_check(env->mem.hva + page * PAGE_SIZE, 1, GUEST_TAG + page);

	gtdp_run(env->vcpu, GTDP_STAMP, GTDP_GPA + page * PAGE_SIZE, 1, HOST_TAG + page);
	TEST_ASSERT(!has_event(env, 0), "Page %lu is still protected", page);
}

/* Who takes a snapshot in the background wants to know of each page's first write. */
static bool test_write_protect(enum gtdp_backing backing, bool follow)
{
	const u64 pages[] = { 0, 5, WANTED, NR_PAGES - 1 };
	struct env env = {};
	int i, round;

	gtdp_mem_alloc(&env.mem, backing, MEM_SIZE, 0);
	gtdp_stamp(env.mem.hva, NR_PAGES, HOST_TAG);
	if (!open_uffd(&env, UFFDIO_REGISTER_MODE_WP,
		       UFFD_FEATURE_PAGEFAULT_FLAG_WP |
		       (backing == GTDP_MEMFD ? UFFD_FEATURE_WP_HUGETLBFS_SHMEM : 0)))
		return false;

	create_vm(&env, follow ? GTDP_ALL : KVM_GLOBAL_TDP_POPULATE);

	/* Protected after it was mapped writable, and once more after that. */
	for (round = 0; round < 2; round++) {
		if (follow)
			gtdp_wait_mapped(env.vm, env.nr_code + NR_PAGES);
		else
			gtdp_populate_full(env.vm, GTDP_GPA, MEM_SIZE);
		write_protect(&env, 0, NR_PAGES, UFFDIO_WRITEPROTECT_MODE_WP);

		/* Now it is mapped read-only: reading takes no fault. */
		if (follow)
			gtdp_wait_mapped(env.vm, env.nr_code + NR_PAGES);
		else
			gtdp_populate_full(env.vm, GTDP_GPA, MEM_SIZE);
		TEST_ASSERT_EQ(gtdp_run(env.vcpu, GTDP_CHECK, GTDP_GPA, NR_PAGES, HOST_TAG), 0);
		TEST_ASSERT(!has_event(&env, 0), "A write that nobody did");

		for (i = 0; i < ARRAY_SIZE(pages); i++)
			check_write(&env, pages[i]);
	}

	/* With the protection gone, all is writable again. */
	write_protect(&env, 0, NR_PAGES, 0);
	gtdp_run(env.vcpu, GTDP_STAMP, GTDP_GPA, NR_PAGES, GUEST_TAG);
	TEST_ASSERT(!has_event(&env, 0), "A page is still protected");
	gtdp_check(env.mem.hva, NR_PAGES, GUEST_TAG);

	env_destroy(&env);
	return true;
}

static bool test_write_protect_anon(void)
{
	return test_write_protect(GTDP_ANON, false);
}

static bool test_write_protect_memfd(void)
{
	return test_write_protect(GTDP_MEMFD, false);
}

static bool test_write_protect_follow(void)
{
	return test_write_protect(GTDP_ANON, true);
}

static const struct gtdp_test tests[] = {
	{ "missing", test_missing_anon },
	{ "missing, memfd", test_missing_memfd },
	{ "minor", test_minor },
	{ "minor, huge pages in the page cache", test_minor_huge },
	{ "missing, nobody delivers", test_idle },
	{ "missing, mapped while a vCPU waits", test_mapped_meanwhile },
	{ "missing, memslot is deleted meanwhile, prefault", test_prefault_deleted },
	{ "missing, roots are zapped meanwhile, prefault", test_prefault_zapped },
	{ "write-protected", test_write_protect_anon },
	{ "write-protected, memfd", test_write_protect_memfd },
	{ "write-protected, follower", test_write_protect_follow },
};

int main(void)
{
	gtdp_require(GTDP_ALL);
	gtdp_run_tests(tests, ARRAY_SIZE(tests));
}
