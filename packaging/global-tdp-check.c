// SPDX-License-Identifier: GPL-2.0
/*
 * What does a stage-2 fault cost on this host, and what could Global TDP gain?  Small VMs
 * of its own touch memory that the host has present, on any KVM with EPT or NPT; with
 * Global TDP, off beside on.  Nothing of the host is changed, and no other VM touched:
 *
 *	gcc -O2 -static -pthread -o global-tdp-check packaging/global-tdp-check.c
 *	./global-tdp-check [--json FILE]
 *
 * global-tdp-check.8 explains what it prints.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>
#include <linux/kvm.h>

/* Headers may be older than the kernel, and those of distributions lack Global TDP. */
#ifndef KVM_PRE_FAULT_MEMORY
#define KVM_CAP_PRE_FAULT_MEMORY 236
#define KVM_PRE_FAULT_MEMORY	_IOWR(KVMIO, 0xd5, struct kvm_pre_fault_memory)
struct kvm_pre_fault_memory {
	__u64 gpa;
	__u64 size;
	__u64 flags;
	__u64 padding[5];
};
#endif
#ifndef KVM_POPULATE_MEMORY
#define KVM_CAP_GLOBAL_TDP	0x67746470
#define KVM_GLOBAL_TDP_FOLLOW	(1ULL << 0)
#define KVM_GLOBAL_TDP_FAULT_AROUND	(1ULL << 1)
#define KVM_GLOBAL_TDP_POPULATE	(1ULL << 2)
#define KVM_GLOBAL_TDP_PAGE_CACHE	(1ULL << 3)
#define KVM_GLOBAL_TDP_HARVEST	(1ULL << 4)
#define KVM_POPULATE_MEMORY	_IOWR(KVMIO, 0xf8, struct kvm_populate_memory)
struct kvm_populate_memory {
	__u64 gpa;
	__u64 size;
	__u32 flags;
	__u32 as_id;
	__u64 mapped;
	__u64 absent;
	__u64 bitmap;
	__u64 reserved;
};
#endif

#ifndef VERSION
#define VERSION "unpackaged"
#endif
#define FORMAT		2	/* of the JSON */

#define NAME		"global-tdp-check"
#define MIB		(1ULL << 20)
#define PAGE		4096ULL
#define HUGE_PAGE	(2 * MIB)
#define PAGES_PER_GIB	(1ULL << 18)

/* Guests have 32 bits, without paging: what they have is below 4 GiB. */
#define CODE_GPA	0ULL
#define SAMPLES_GPA	(256 * MIB)
#define MEM_GPA		(1024 * MIB)
#define LEAST_MIB	16UL
#define MIB_STEP	16UL	/* an eighth is whole huge pages */
#define MOST_MIB	2048UL
#define DEFAULT_MIB	512UL
#define MIB_PER_VCPU	4UL
#define MOST_VCPUS	64UL
#define DEFAULT_VCPUS	4UL
#define MOST_REPS	99UL
#define DEFAULT_REPS	5UL
#define DEFAULT_GIB	64UL
#define MOST_GIB	65536UL

#define CHUNK		(16 * MIB)	/* that the host takes away at a time */
#define TRIES		10000
#define STILL_MS	10000		/* the follower has mapped nothing for so long */
#define PORT_DONE	0x10

/* By counted instructions a page, docs/costs.md: populating, and a vCPU's fault. */
static const double counted_share[] = { 22.2 / 3448, 1.9 / 6.5 };

/*
 * What the guest does at %esi, page by page, %ecx times.  guest_walk: add 1 to a word of
 * each; the time is from %ebp:%ebx to %edx:%eax.  guest_sample: write to %edi how long each
 * page takes, in 32 bits, and do something else for some microseconds after each.
 */
extern const char guest_walk[], guest_sample[], guest_end[];
__asm__(".pushsection .rodata\n.code32\nguest_walk:\n"
	"	lfence\n	rdtsc\n	mov %eax, %ebx\n	mov %edx, %ebp\n"
	"1:	incl (%esi)\n	add $4096, %esi\n	dec %ecx\n	jnz 1b\n"
	"	lfence\n	rdtsc\n	out %al, $0x10\nguest_sample:\n"
	"1:	lfence\n	rdtsc\n	mov %eax, %ebx\n	mov %edx, %ebp\n"
	"	lfence\n	incl (%esi)\n	lfence\n	rdtsc\n"
	"	sub %ebx, %eax\n	sbb %ebp, %edx\n	jz 2f\n	mov $-1, %eax\n"
	"2:	mov %eax, (%edi)\n	add $4, %edi\n	add $4096, %esi\n"
	"	mov $8192, %eax\n3:	dec %eax\n	jnz 3b\n"
	"	dec %ecx\n	jnz 1b\n	out %al, $0x10\nguest_end:\n.code64\n.popsection\n");

enum how { NOTHING, PREFAULT, POPULATE, FOLLOW };
#define ALWAYS		(~0ULL)		/* the features that kvm.global_tdp=1 turns on */

struct way {
	const char *name;
	const char *label;
	uint64_t features;	/* of Global TDP; 0: it is turned off */
	enum how how;		/* fill the VM's page tables before the vCPUs run */
	bool zaps;		/* of latencies: the host takes memory away meanwhile */
	bool idle;		/* no vCPU touches what is mapped */
};

static const struct way touches[] = {
	{ "touch", "first touch", 0, NOTHING, false, false },
	{ "prefault", "KVM_PRE_FAULT_MEMORY", 0, PREFAULT, false, false },
	{ "around", "fault-around", KVM_GLOBAL_TDP_FAULT_AROUND, NOTHING, false, false },
	{ "populate", "KVM_POPULATE_MEMORY", KVM_GLOBAL_TDP_POPULATE, POPULATE, false, false },
	{ "idle", "that, not touched", KVM_GLOBAL_TDP_POPULATE, POPULATE, false, true },
	{ "follow", "on, waited for", ALWAYS, FOLLOW, false, false },
};
static const struct way latencies[] = {
	{ "rest", "the host is at rest", 0, NOTHING, false, false },
	{ "off", "the host zaps", 0, NOTHING, true, false },
	{ "locking", "the host zaps, locking only", KVM_GLOBAL_TDP_POPULATE, NOTHING, true,
	  false },
	{ "on", "the host zaps, on", ALWAYS, FOLLOW, true, false },
};
#define NR_TOUCHES	(sizeof(touches) / sizeof(touches[0]))
#define NR_LATENCIES	(sizeof(latencies) / sizeof(latencies[0]))

static const struct { uint64_t bit; const char *name; } feature_names[] = {
	{ KVM_GLOBAL_TDP_FOLLOW, "follow" },
	{ KVM_GLOBAL_TDP_FAULT_AROUND, "fault-around" },
	{ KVM_GLOBAL_TDP_POPULATE, "populate" },
	{ KVM_GLOBAL_TDP_PAGE_CACHE, "page-cache" },
	{ KVM_GLOBAL_TDP_HARVEST, "harvest" },
};
#define NR_FEATURES	(sizeof(feature_names) / sizeof(feature_names[0]))

struct kind {
	const char *name, *label;
	uint64_t size;
	int advice;
};
static const struct kind kinds[] = {
	{ "4k", "4 KiB pages", PAGE, MADV_NOHUGEPAGE },
	{ "thp", "huge pages (THP)", HUGE_PAGE, MADV_HUGEPAGE },
};
#define NR_KINDS	(sizeof(kinds) / sizeof(kinds[0]))

/* A figure of all repetitions. */
struct figure {
	unsigned int n;
	double values[MOST_REPS];
};

enum { PREPARE, FIRST, SECOND, COST, CYCLES, FAULTS, END, NR_TOUCH_FIGURES };
static const char *const touch_figures[] = {
	"prepare_ns", "first_ns", "second_ns", "fault_ns", "fault_cycles", "faults", "end_ns",
};
enum { P50, P99, MAX, TAKEN, ZAPS, NR_LATENCY_FIGURES };
static const char *const latency_figures[] = { "p50_ns", "p99_ns", "max_ns", "faults", "zaps" };

struct result {
	const struct kind *kind;
	const struct way *way;
	unsigned long vcpus;
	struct figure figures[NR_TOUCH_FIGURES];
};

struct vcpu {
	struct vm *vm;
	int fd, stats;
	struct kvm_run *run;
	pthread_t thread;
	uint64_t page, pages;		/* its share of the memory */
	uint64_t prepare;		/* ns */
	uint64_t first, second;		/* TSC cycles */
	int64_t faults;			/* -1: unknown */
};

struct vm {
	const struct way *way;
	int fd, stats;
	unsigned long nr;		/* of vCPUs that are measured; one more maps */
	struct vcpu vcpus[MOST_VCPUS + 1];
	pthread_barrier_t barrier;
	atomic_ulong busy;		/* of those that are measured */
	uint64_t zaps;
};

static struct {
	char cpu[64], stage2[4], kernel[65], kvm[65], thp[16], parameter[8];
	bool hypervisor;
	unsigned long cpus, tsc_khz;
	int prefault;
	uint64_t features, always;	/* all, and those of kvm.global_tdp=1 */
} host;

static unsigned long mib, most_vcpus, reps = DEFAULT_REPS, gib = DEFAULT_GIB;
static int kvm_fd, json_fd = -1;
static size_t run_size;
static const char *json_name;
static volatile sig_atomic_t json_is_new, progress_shown;
static char *mem, *code;
static uint32_t *samples;
static uint64_t pages;

static struct result results[NR_KINDS * 8 * NR_TOUCHES], zapped[NR_KINDS * NR_LATENCIES];
static size_t nr_results, nr_zapped;
static int thp_percent = -1;

static void clear_progress(void)
{
	if (progress_shown && write(STDERR_FILENO, "\r\033[K", 4) < 0)
		return;
	progress_shown = 0;
}

/* From any thread: others may be in a guest. */
__attribute__((format(printf, 2, 3), noreturn))
static void die(int status, const char *format, ...)
{
	va_list args;

	clear_progress();
	fflush(stdout);
	if (json_is_new)
		unlink(json_name);
	va_start(args, format);
	fprintf(stderr, NAME ": ");
	vfprintf(stderr, format, args);
	fprintf(stderr, "\n");
	va_end(args);
	_exit(status);
}

static void check(bool ok, const char *what)
{
	if (!ok)
		die(1, "%s: %s", what, strerror(errno));
}

/* VMs and memory end with the process. */
static void interrupted(int signal_number)
{
	clear_progress();
	if (json_is_new)
		unlink(json_name);
	signal(signal_number, SIG_DFL);
	raise(signal_number);
}

__attribute__((format(printf, 1, 2)))
static void progress(const char *format, ...)
{
	char line[128];
	va_list args;

	if (!isatty(STDERR_FILENO))
		return;
	va_start(args, format);
	vsnprintf(line, sizeof(line), format, args);
	va_end(args);
	progress_shown = 1;
	fprintf(stderr, "\r%.79s\033[K", line);
}

/* What is interrupted, or asks to be called again, goes on, but not for ever. */
static int xioctl(int fd, unsigned long nr, unsigned long arg, const char *name)
{
	int tries = TRIES, r;

	do {
		r = ioctl(fd, nr, arg);
	} while (r < 0 && (errno == EINTR || errno == EAGAIN) && --tries);
	check(r >= 0, name);
	return r;
}
#define IOCTL(fd, nr, arg) xioctl(fd, nr, (unsigned long)(arg), #nr)

static uint64_t now(clockid_t clock)
{
	struct timespec ts;

	clock_gettime(clock, &ts);
	return ts.tv_sec * 1000000000ULL + ts.tv_nsec;
}

static double to_ns(double cycles)
{
	return cycles * 1e6 / host.tsc_khz;
}

/* The first word, or line, of a file; "" if there is none. */
static void read_line(const char *path, char *line, size_t size)
{
	FILE *file = fopen(path, "re");

	*line = 0;
	if (file && fgets(line, size, file))
		line[strcspn(line, "\n")] = 0;
	if (file)
		fclose(file);
}

static bool is_on(const char *path)
{
	char line[4];

	read_line(path, line, sizeof(line));
	return *line == 'Y' || *line == '1';
}

static unsigned long available_mib(void)
{
	FILE *file = fopen("/proc/meminfo", "re");
	unsigned long kib = 0;
	char line[128];

	while (file && fgets(line, sizeof(line), file) &&
	       sscanf(line, "MemAvailable: %lu", &kib) != 1)
		;
	if (file)
		fclose(file);
	return kib >> 10;
}

/* How much of the memory is in huge pages, in per cent. */
static int huge_percent(uint64_t size)
{
	uint64_t start, end, kib, sum = 0;
	FILE *file = fopen("/proc/self/smaps", "re");
	bool mine = false;
	char line[512];

	while (file && fgets(line, sizeof(line), file)) {
		if (sscanf(line, "%" SCNx64 "-%" SCNx64 " ", &start, &end) == 2)
			mine = start < (uintptr_t)mem + size && end > (uintptr_t)mem;
		else if (mine && sscanf(line, "AnonHugePages: %" SCNu64, &kib) == 1)
			sum += kib << 10;
	}
	if (file)
		fclose(file);
	return sum * 100 / size;
}

/* A counter of KVM's; -1 if this kernel has none of that name. */
static int64_t statistic(int fd, const char *name)
{
	struct kvm_stats_header head;
	char buf[sizeof(struct kvm_stats_desc) + 256] = "";
	struct kvm_stats_desc *desc = (void *)buf;
	int64_t value;

	if (fd < 0 || pread(fd, &head, sizeof(head), 0) != sizeof(head) || head.name_size > 256)
		return -1;
	for (uint32_t i = 0, size = sizeof(*desc) + head.name_size; i < head.num_desc; i++) {
		if (pread(fd, buf, size, head.desc_offset + i * size) == (ssize_t)size &&
		    !strcmp(desc->name, name) &&
		    pread(fd, &value, 8, head.data_offset + desc->offset) == 8)
			return value;
	}
	return -1;
}

static void set_memory(const struct vm *vm, int slot, uint64_t gpa, void *hva, uint64_t size)
{
	struct kvm_userspace_memory_region region = {
		.slot = slot, .guest_phys_addr = gpa, .memory_size = size,
		.userspace_addr = (uintptr_t)hva,
	};

	IOCTL(vm->fd, KVM_SET_USER_MEMORY_REGION, &region);
}

/* Before memory is populated: how many levels the VM's page tables have may follow from it. */
static void set_cpuid(int fd)
{
	static struct {
		struct kvm_cpuid2 head;
		struct kvm_cpuid_entry2 entries[256];
	} cpuid;

	if (!cpuid.head.nent) {
		cpuid.head.nent = 256;
		IOCTL(kvm_fd, KVM_GET_SUPPORTED_CPUID, &cpuid);
	}
	IOCTL(fd, KVM_SET_CPUID2, &cpuid);
}

static void create_vcpu(struct vm *vm, unsigned long number)
{
	struct kvm_segment flat = { .limit = ~0U, .type = 3, .present = 1, .db = 1, .s = 1, .g = 1 };
	struct vcpu *vcpu = &vm->vcpus[number];
	struct kvm_sregs sregs;

	vcpu->vm = vm;
	vcpu->fd = IOCTL(vm->fd, KVM_CREATE_VCPU, number);
	set_cpuid(vcpu->fd);
	vcpu->run = mmap(NULL, run_size, PROT_READ | PROT_WRITE, MAP_SHARED, vcpu->fd, 0);
	check(vcpu->run != MAP_FAILED, "mmap of a vCPU");
	IOCTL(vcpu->fd, KVM_GET_SREGS, &sregs);
	sregs.cs = sregs.ds = sregs.es = sregs.fs = sregs.gs = sregs.ss = flat;
	sregs.cs.type = 11;
	sregs.cr0 = 0x11;
	IOCTL(vcpu->fd, KVM_SET_SREGS, &sregs);
	vcpu->stats = ioctl(vcpu->fd, KVM_GET_STATS_FD, 0);
}

/* Let the guest go through some pages; returns the cycles that it took. */
static uint64_t run(struct vcpu *vcpu, const char *what, uint64_t gpa, uint64_t nr, uint64_t to)
{
	struct kvm_regs regs = {
		.rip = CODE_GPA + (what - guest_walk), .rflags = 2,
		.rsi = gpa, .rcx = nr, .rdi = to,
	};

	IOCTL(vcpu->fd, KVM_SET_REGS, &regs);
	IOCTL(vcpu->fd, KVM_RUN, 0);
	IOCTL(vcpu->fd, KVM_GET_REGS, &regs);
	if (vcpu->run->exit_reason != KVM_EXIT_IO || vcpu->run->io.port != PORT_DONE)
		die(1, "the guest ended at %#llx with exit %u instead of its end",
		    regs.rip, vcpu->run->exit_reason);
	return (regs.rdx << 32 | (uint32_t)regs.rax) - (regs.rbp << 32 | (uint32_t)regs.rbx);
}

static uint64_t wanted_features(const struct way *way)
{
	return way->features == ALWAYS ? host.always : way->features & host.features;
}

/* A VM with its own page tables, which has what is in `mem` from `page` on for each vCPU. */
static void create_vm(struct vm *vm, const struct way *way, unsigned long nr, unsigned long more,
		      uint64_t first_page)
{
	struct kvm_enable_cap cap = {
		.cap = KVM_CAP_GLOBAL_TDP, .args[0] = wanted_features(way),
	};
	uint64_t regions = (pages - first_page) / 512;

	memset(vm, 0, sizeof(*vm));
	vm->way = way;
	vm->nr = nr;
	vm->fd = IOCTL(kvm_fd, KVM_CREATE_VM, 0);
	IOCTL(vm->fd, KVM_SET_TSS_ADDR, 0xfffbd000);
	if (host.features)
		IOCTL(vm->fd, KVM_ENABLE_CAP, &cap);
	set_memory(vm, 0, CODE_GPA, code, PAGE);
	set_memory(vm, 1, SAMPLES_GPA, samples, HUGE_PAGE);
	set_memory(vm, 2, MEM_GPA, mem, pages * PAGE);
	vm->stats = ioctl(vm->fd, KVM_GET_STATS_FD, 0);
	for (unsigned long i = 0; i < nr + more; i++) {
		struct vcpu *vcpu = &vm->vcpus[i];

		create_vcpu(vm, i);
		if (i < nr) {
			vcpu->page = first_page + regions * i / nr * 512;
			vcpu->pages = first_page + regions * (i + 1) / nr * 512 - vcpu->page;
		}
		/* Of its code and of where it writes to, there are no faults later. */
		run(vcpu, guest_walk, SAMPLES_GPA, HUGE_PAGE / PAGE, 0);
	}
}

/* Returns the CPU time that the VM's end takes, in ns: waiting for others is not the VM's. */
static uint64_t destroy_vm(struct vm *vm)
{
	uint64_t start;

	for (struct vcpu *vcpu = vm->vcpus; vcpu->vm; vcpu++) {
		munmap(vcpu->run, run_size);
		if (vcpu->stats >= 0)
			close(vcpu->stats);
		close(vcpu->fd);
	}
	if (vm->stats >= 0)
		close(vm->stats);
	start = now(CLOCK_THREAD_CPUTIME_ID);
	close(vm->fd);
	return now(CLOCK_THREAD_CPUTIME_ID) - start;
}

/* The example of global_tdp.rst; KVM_PRE_FAULT_MEMORY goes on in the same way. */
static void fill(struct vcpu *vcpu, enum how how)
{
	uint64_t gpa = MEM_GPA + vcpu->page * PAGE, size = vcpu->pages * PAGE;
	struct kvm_populate_memory range = { .gpa = gpa, .size = size };
	struct kvm_pre_fault_memory fault = { .gpa = gpa, .size = size };

	while (how == POPULATE && range.size)
		IOCTL(vcpu->vm->fd, KVM_POPULATE_MEMORY, &range);
	while (how == PREFAULT && fault.size)
		IOCTL(vcpu->fd, KVM_PRE_FAULT_MEMORY, &fault);
}

/* The follower has mapped all of it, or, as is told by what is measured, maps no more. */
static void await_follower(const struct vm *vm)
{
	int64_t before = -1, mapped = 0;

	for (int still = 0; mapped < (int64_t)pages && still < STILL_MS; still++) {
		usleep(1000);
		mapped = statistic(vm->stats, "pages_4k") + 512 * statistic(vm->stats, "pages_2m") +
			 (512 << 9) * statistic(vm->stats, "pages_1g");
		if (mapped != before)
			still = 0;
		before = mapped;
	}
}

static void *touch(void *arg)
{
	struct vcpu *vcpu = arg;
	uint64_t gpa = MEM_GPA + vcpu->page * PAGE, start;
	int64_t before;

	pthread_barrier_wait(&vcpu->vm->barrier);
	start = now(CLOCK_MONOTONIC);
	fill(vcpu, vcpu->vm->way->how);
	vcpu->prepare = now(CLOCK_MONOTONIC) - start;
	if (vcpu->vm->way->idle)
		return NULL;
	before = statistic(vcpu->stats, "pf_taken");
	pthread_barrier_wait(&vcpu->vm->barrier);
	vcpu->first = run(vcpu, guest_walk, gpa, vcpu->pages, 0);
	vcpu->faults = before < 0 ? -1 : statistic(vcpu->stats, "pf_taken") - before;
	pthread_barrier_wait(&vcpu->vm->barrier);
	vcpu->second = run(vcpu, guest_walk, gpa, vcpu->pages, 0);
	return NULL;
}

static void start(struct vm *vm, void *(*what)(void *))
{
	for (unsigned long i = 0; i < vm->nr; i++) {
		errno = pthread_create(&vm->vcpus[i].thread, NULL, what, &vm->vcpus[i]);
		check(!errno, "a thread");
	}
}

static void join(struct vm *vm)
{
	for (unsigned long i = 0; i < vm->nr; i++)
		pthread_join(vm->vcpus[i].thread, NULL);
	pthread_barrier_destroy(&vm->barrier);
}

static void add(struct figure *figure, double value)
{
	figure->values[figure->n++] = value;
}

/* All memory, shared among the vCPUs, is touched twice in a new VM, unless that is idle. */
static void measure_touch(struct result *result)
{
	double prepare = 0, first = 0, second = 0, faults = 0, end;
	static struct vm vm;
	bool known = true;

	create_vm(&vm, result->way, result->vcpus, 0, 0);
	if (result->way->how == FOLLOW) {
		await_follower(&vm);
		prepare = statistic(vm.stats, "tdp_populate_time_ns");
	}
	pthread_barrier_init(&vm.barrier, NULL, vm.nr);
	start(&vm, touch);
	join(&vm);
	for (unsigned long i = 0; i < vm.nr; i++) {
		if (result->way->how == PREFAULT || result->way->how == POPULATE)
			prepare += vm.vcpus[i].prepare;
		first += vm.vcpus[i].first;
		second += vm.vcpus[i].second;
		faults += vm.vcpus[i].faults;
		known &= vm.vcpus[i].faults >= 0;
	}
	end = destroy_vm(&vm);
	add(&result->figures[END], end / pages);
	if (result->way->how != NOTHING)
		add(&result->figures[PREPARE], prepare / pages);
	if (result->way->idle)
		return;
	add(&result->figures[FIRST], to_ns(first) / pages);
	add(&result->figures[SECOND], to_ns(second) / pages);
	add(&result->figures[COST], to_ns(first - second) / pages);
	add(&result->figures[CYCLES], (first - second) / pages);
	if (known)
		add(&result->figures[FAULTS], faults);
}

static void *sample(void *arg)
{
	struct vcpu *vcpu = arg;
	uint64_t at = vcpu->page - pages / 2;
	int64_t before = statistic(vcpu->stats, "pf_taken");

	pthread_barrier_wait(&vcpu->vm->barrier);
	run(vcpu, guest_sample, MEM_GPA + vcpu->page * PAGE, vcpu->pages,
	    SAMPLES_GPA + at * sizeof(*samples));
	vcpu->faults = before < 0 ? -1 : statistic(vcpu->stats, "pf_taken") - before;
	vcpu->vm->busy--;
	return NULL;
}

static void write_pages(uint64_t offset, uint64_t size)
{
	for (uint64_t at = offset; at < offset + size; at += PAGE)
		*(volatile char *)(mem + at + 64) = 1;
}

/*
 * As long as vCPUs are busy with the second half of the memory, take away a part of the
 * first, bring it back, and have another vCPU map it again.
 */
static void zap(struct vm *vm)
{
	uint64_t half = pages / 2 * PAGE, offset = 0;
	uint64_t size = half / 4 < CHUNK ? half / 4 : CHUNK;

	do {
		check(!madvise(mem + offset, size, MADV_DONTNEED), "MADV_DONTNEED");
		write_pages(offset, size);
		run(&vm->vcpus[vm->nr], guest_walk, MEM_GPA + offset, size / PAGE, 0);
		vm->zaps++;
		offset += size;
		if (offset + size > half)
			offset = 0;
	} while (vm->busy);
}

static int compare_samples(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return (x > y) - (x < y);
}

/* The second half of the memory is touched by vCPUs, each touch timed by its guest. */
static void measure_latency(struct result *result)
{
	uint64_t half = pages / 2;
	static struct vm vm;
	double faults = 0;
	bool known = true;

	create_vm(&vm, result->way, result->vcpus, 1, half);
	run(&vm.vcpus[vm.nr], guest_walk, MEM_GPA, half, 0);
	if (result->way->how == FOLLOW && wanted_features(result->way) & KVM_GLOBAL_TDP_FOLLOW)
		await_follower(&vm);
	vm.busy = vm.nr;
	pthread_barrier_init(&vm.barrier, NULL, vm.nr + 1);
	start(&vm, sample);
	pthread_barrier_wait(&vm.barrier);
	if (result->way->zaps)
		zap(&vm);
	join(&vm);
	for (unsigned long i = 0; i < vm.nr; i++) {
		faults += vm.vcpus[i].faults;
		known &= vm.vcpus[i].faults >= 0;
	}
	destroy_vm(&vm);
	qsort(samples, half, sizeof(*samples), compare_samples);
	add(&result->figures[P50], to_ns(samples[half / 2]));
	add(&result->figures[P99], to_ns(samples[half - 1 - half / 100]));
	add(&result->figures[MAX], to_ns(samples[half - 1]));
	if (known)
		add(&result->figures[TAKEN], faults);
	add(&result->figures[ZAPS], vm.zaps);
}

static bool possible(const struct way *way)
{
	if (way->how == PREFAULT && !host.prefault)
		return false;
	return !way->features || wanted_features(way);
}

static struct result *new_result(struct result *result, const struct kind *kind,
				 const struct way *way, unsigned long vcpus)
{
	result->kind = kind;
	result->way = way;
	result->vcpus = vcpus;
	return result;
}

/* Ways take turns, so that what else the host does meanwhile is shared among them. */
static void measure_touches(const struct kind *kind, unsigned long vcpus)
{
	struct result *first = &results[nr_results];

	for (size_t i = 0; i < NR_TOUCHES; i++) {
		if (possible(&touches[i]))
			new_result(&results[nr_results++], kind, &touches[i], vcpus);
	}
	for (unsigned long rep = 0; rep < reps; rep++) {
		for (struct result *result = first; result < &results[nr_results]; result++) {
			progress("%s, vCPUs: %lu, round %lu of %lu: %s", kind->label, vcpus,
				 rep + 1, reps, result->way->label);
			measure_touch(result);
		}
	}
}

static void measure_latencies(const struct kind *kind)
{
	struct result *first = &zapped[nr_zapped];
	unsigned long vcpus = most_vcpus > 1 ? most_vcpus - 1 : 1;

	for (size_t i = 0; i < NR_LATENCIES; i++) {
		if (possible(&latencies[i]))
			new_result(&zapped[nr_zapped++], kind, &latencies[i], vcpus);
	}
	for (unsigned long rep = 0; rep < reps; rep++) {
		for (struct result *result = first; result < &zapped[nr_zapped]; result++) {
			progress("%s, latencies, round %lu of %lu: %s", kind->label, rep + 1,
				 reps, result->way->label);
			measure_latency(result);
		}
	}
}

/* Each page was touched twice in each VM, and by nobody else. */
static void verify(const struct result *first)
{
	uint32_t touched = 0;

	for (const struct result *result = first; result < &results[nr_results]; result++)
		touched += 2 * result->figures[FIRST].n;
	for (uint64_t page = 0; page < pages; page++) {
		if (*(uint32_t *)(mem + page * PAGE) != touched)
			die(1, "page %" PRIu64 " lacks what guests wrote: do not use this KVM, "
			    "and tell its makers", page);
	}
}

static void *map_aligned(uint64_t size, int advice)
{
	char *all = mmap(NULL, size + HUGE_PAGE, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	char *start = (char *)(((uintptr_t)all + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1));

	check(all != MAP_FAILED, "memory for guests");
	if (start > all)
		munmap(all, start - all);
	munmap(start + size, all + HUGE_PAGE - start);
	/* It fails in kernels without huge pages, which is as good. */
	madvise(start, size, advice);
	return start;
}

static void measure_kind(const struct kind *kind)
{
	const struct result *first = &results[nr_results];
	uint64_t size = mib * MIB;
	int percent;

	pages = size / PAGE;
	mem = map_aligned(size, kind->advice);
	progress("%s: %lu MiB", kind->label, mib);
	write_pages(0, size);
	percent = huge_percent(size);
	if (kind->size == HUGE_PAGE)
		thp_percent = percent;
	if (kind->size == PAGE || percent >= 90) {
		for (unsigned long vcpus = 1; ; vcpus *= 2) {
			if (vcpus > most_vcpus)
				vcpus = most_vcpus;
			measure_touches(kind, vcpus);
			if (vcpus == most_vcpus)
				break;
		}
		verify(first);
		if (host.cpus > 1)
			measure_latencies(kind);
	}
	munmap(mem, size);
}

static int compare_doubles(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

struct summary { bool known; double median, least, most; };

static struct summary summarize(const struct figure *figure)
{
	struct summary summary = { .known = figure->n };
	double sorted[MOST_REPS];
	unsigned int n = figure->n;

	if (!n)
		return summary;
	memcpy(sorted, figure->values, n * sizeof(*sorted));
	qsort(sorted, n, sizeof(*sorted), compare_doubles);
	summary.median = (sorted[(n - 1) / 2] + sorted[n / 2]) / 2;
	summary.least = sorted[0];
	summary.most = sorted[n - 1];
	return summary;
}

/* A cell of a table, of one of some static buffers. */
static const char *cell(const struct result *result, int number, int digits, bool range)
{
	struct summary summary = summarize(&result->figures[number]);
	static char cells[8][64];
	static unsigned int next;
	char *text = cells[next++ % 8];

	if (!summary.known)
		snprintf(text, 64, "-");
	else if (range)
		snprintf(text, 64, "%.*f (%.*f to %.*f)", digits, summary.median,
			 digits, summary.least, digits, summary.most);
	else
		snprintf(text, 64, "%.*f", digits, summary.median);
	return text;
}

static const char *label(const struct way *way)
{
	static char text[64];

	snprintf(text, sizeof(text), "%s%s", way->label,
		 host.features && !way->features ? ", off" : "");
	return text;
}

static void show_touches(const struct kind *kind)
{
	printf("\n%s, %lu MiB: ns of one CPU for 4 KiB, medians of %lu (least to most)\n",
	       kind->label, mib, reps);
	printf("  %-27s %5s %8s %8s %8s  %-27s %10s %8s %9s\n", "", "vCPUs", "prepare", "1st",
	       "2nd", "fault: 1st less 2nd", "TSC cycles", "faults", "VM's end");
	for (const struct result *result = results; result < &results[nr_results]; result++) {
		if (result->kind != kind)
			continue;
		printf("  %-27s %5lu %8s %8s %8s  %-27s %10s %8s %9s\n", label(result->way),
		       result->vcpus, cell(result, PREPARE, 1, false),
		       cell(result, FIRST, 1, false), cell(result, SECOND, 1, false),
		       cell(result, COST, 1, true), cell(result, CYCLES, 0, false),
		       cell(result, FAULTS, 0, false), cell(result, END, 1, false));
	}
}

static void show_latencies(const struct kind *kind)
{
	bool any = false;

	for (const struct result *result = zapped; result < &zapped[nr_zapped]; result++) {
		if (result->kind != kind)
			continue;
		if (!any)
			printf("\n%s, first touches of %lu MiB by %lu vCPU%s, each timed: us\n"
			       "  %-27s %-21s %-21s %-27s %8s %5s\n", kind->label, mib / 2,
			       result->vcpus, result->vcpus > 1 ? "s" : "", "", "p50", "p99",
			       "longest", "faults", "zaps");
		any = true;
		printf("  %-27s", label(result->way));
		for (int i = P50; i <= MAX; i++) {
			struct summary summary = summarize(&result->figures[i]);
			char text[64];

			snprintf(text, sizeof(text), "%.2f (%.2f to %.2f)", summary.median / 1000,
				 summary.least / 1000, summary.most / 1000);
			printf(" %-*s", i == MAX ? 27 : 21, text);
		}
		printf(" %8s %5s\n", cell(result, TAKEN, 0, false), cell(result, ZAPS, 0, false));
	}
}

static double median_of(const char *kind, const char *way, int figure)
{
	for (const struct result *result = results; result < &results[nr_results]; result++) {
		if (!strcmp(result->kind->name, kind) && !strcmp(result->way->name, way) &&
		    result->vcpus == 1)
			return summarize(&result->figures[figure]).median;
	}
	return 0;
}

struct estimate { double faults, prefault, tables, end, end_on; bool measured; };

/* For a guest of `gib` all of which is touched, in seconds. */
static struct estimate estimate(int number)
{
	double nr = (double)gib * PAGES_PER_GIB / 1e9;
	const char *kind = kinds[number].name;
	struct estimate found = {
		.faults = nr * median_of(kind, "touch", COST),
		.prefault = nr * median_of(kind, "prefault", PREPARE),
		.tables = nr * median_of(kind, "populate", PREPARE),
		.end = nr * median_of(kind, "touch", END),
		.end_on = nr * median_of(kind, "populate", END),
		.measured = host.features & KVM_GLOBAL_TDP_POPULATE,
	};

	/* Of few huge pages, the second touch may have taken longer. */
	if (found.faults < 0)
		found.faults = 0;

	if (!found.measured)
		found.tables = found.faults * counted_share[number];
	return found;
}

/*
 * The share of 4 KiB pages, in per cent, from which on Global TDP takes less CPU time than
 * faults.  It maps all pages, and takes those away again that were not touched, too; 0 if it
 * never takes less, or is not there to be measured.
 */
static int worth(void)
{
	double idle = median_of("4k", "idle", END);
	double saved = median_of("4k", "touch", COST) + median_of("4k", "touch", END) -
		       median_of("4k", "populate", END) + idle;
	double least = (median_of("4k", "populate", PREPARE) + idle) / saved;

	if (!(host.features & KVM_GLOBAL_TDP_POPULATE))
		return 0;
	return least > 0 && least < 1 ? (int)(least * 100) + 1 : 0;
}

static bool has_thp(void)
{
	return thp_percent >= 90;
}

/* A paragraph, in lines of at most 80 characters. */
__attribute__((format(printf, 1, 2)))
static void say(const char *format, ...)
{
	char text[1024], *word, *rest = text;
	size_t column = 0;
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	printf("\n");
	while ((word = strsep(&rest, " "))) {
		column += strlen(word) + 1;
		if (column > 81)
			column = strlen(word) + 1;
		printf("%s%s", word == text ? "" : column == strlen(word) + 1 ? "\n" : " ", word);
	}
	printf("\n");
}

static void show_lacks(void)
{
	if (!host.prefault)
		say("KVM_PRE_FAULT_MEMORY is missing in this kernel: Linux has it from 6.11 on.");
	if (!host.features)
		say("KVM_CAP_GLOBAL_TDP and KVM_POPULATE_MEMORY are missing: this KVM is without "
		    "Global TDP, the TDP MMU is off, or kvm.global_tdp is never.");
	if (!has_thp())
		say("Huge pages are unavailable: the host gave them to %d%% of the memory that asked "
		    "for them; transparent_hugepage/enabled is %s.", thp_percent,
		    *host.thp ? host.thp : "unknown");
	if (host.cpus < 2)
		say("Latencies are left out: they take two CPUs, as one zaps.");
	if (!strcmp(host.parameter, "always") || !strcmp(host.parameter, "Y"))
		say("kvm.global_tdp is on: VMs with it off take mmu_lock as those with it on, so the "
		    "latencies of the former are not those of a stock KVM.");
}

/* " and 0.12 s", of huge pages, if there are such. */
static const char *and_huge(double seconds)
{
	static char texts[4][48];
	static unsigned int next;
	char *text = texts[next++ % 4];

	snprintf(text, sizeof(texts[0]), has_thp() ? " and %.2f s" : "", seconds);
	return text;
}

static void show_estimate(void)
{
	struct estimate small = estimate(0), huge = estimate(1);
	char prefault[128] = "", how[256] = "measured here, by one thread.";

	if (host.prefault)
		snprintf(prefault, sizeof(prefault), "; KVM_PRE_FAULT_MEMORY would take %.2f s%s",
			 small.prefault, and_huge(huge.prefault));
	if (!small.measured)
		snprintf(how, sizeof(how), "not measured, and rather too little, as it is by the "
			 "instructions, of which it takes a %.0fth of a fault's. KVM with Global TDP "
			 "measures it.", 1 / counted_share[0]);
	say("A guest of %lu GiB pays %.2f s%s of vCPU time for stage-2 faults after a migration, if "
	    "the host has its memory in 4 KiB pages%s%s. Global TDP would build its tables in "
	    "%.2f s%s: %s", gib, small.faults, and_huge(huge.faults),
	    has_thp() ? " and in huge ones" : "", prefault, small.tables, and_huge(huge.tables), how);
	if (small.measured)
		say("The end of that guest takes %.2f s%s of CPU time, and %.2f s%s with Global TDP "
		    "off. For stock's, run this on the distribution's KVM.", small.end_on,
		    and_huge(huge.end_on), small.end, and_huge(huge.end));
	else
		say("The end of that guest takes %.2f s%s of CPU time.", small.end,
		    and_huge(huge.end));
	if (!json_name)
		say("--json FILE writes all figures to a file to send; nothing private is in it.");
}

/* One line, the last. */
static void show_verdict(void)
{
	double faults = estimate(1).faults;
	char huge[96] = "";

	if (!estimate(0).measured) {
		if (has_thp())
			snprintf(huge, sizeof(huge), " and %.2f s with huge ones", faults);
		printf("\nA guest of %lu GiB pays %.2f s for its faults with 4 KiB pages%s; which share "
		       "of them has to be touched for Global TDP to pay, only KVM with it can measure.\n",
		       gib, estimate(0).faults, huge);
		return;
	}
	if (has_thp())
		snprintf(huge, sizeof(huge), ": a guest of %lu GiB pays %.2f s for its faults there",
			 gib, faults);
	if (worth())
		printf("\nWorth it for VMs that touch more than %d%% of their memory in 4 KiB "
		       "pages; ", worth());
	else
		printf("\nNot worth it with 4 KiB pages, as measured here; ");
	printf("not worth it with huge pages%s.\n", huge);
}

/* Names of features, separated and quoted so. */
static void write_features(FILE *file, uint64_t features, const char *quote)
{
	const char *separator = "";

	for (size_t i = 0; i < NR_FEATURES; i++) {
		if (!(features & feature_names[i].bit))
			continue;
		fprintf(file, "%s%s%s%s", separator, quote, feature_names[i].name, quote);
		separator = ", ";
	}
}

static void show(void)
{
	clear_progress();
	printf("%s, %s%s, TSC of %lu kHz, Linux %s, KVM %s\n", host.cpu, host.stage2,
	       host.hypervisor ? " in a VM" : "", host.tsc_khz, host.kernel,
	       *host.kvm ? host.kvm : "of the kernel");
	if (host.features) {
		printf("Global TDP has ");
		write_features(stdout, host.features, "");
		printf(";\nkvm.global_tdp=1, which is measured as \"on\", is ");
		write_features(stdout, host.always, "");
		printf("\n");
	}
	for (size_t i = 0; i < NR_KINDS; i++) {
		if (kinds[i].size == PAGE || has_thp()) {
			show_touches(&kinds[i]);
			show_latencies(&kinds[i]);
		}
	}
	show_lacks();
	show_estimate();
	show_verdict();
}

static void write_string(FILE *file, const char *name, const char *value)
{
	fprintf(file, "\"%s\": \"", name);
	for (; *value; value++) {
		if (*value == '"' || *value == '\\')
			fputc('\\', file);
		if ((unsigned char)*value >= ' ' && (unsigned char)*value < 127)
			fputc(*value, file);
	}
	fprintf(file, "\"");
}

static void write_results(FILE *file, const struct result *list, size_t nr,
			  const char *const *names, int nr_names)
{
	for (const struct result *result = list; result < list + nr; result++) {
		fprintf(file, "%s\n  {\"pages\": \"%s\", \"way\": \"%s\", \"features\": [",
			result == list ? "" : ",", result->kind->name, result->way->name);
		write_features(file, wanted_features(result->way), "\"");
		fprintf(file, "], \"vcpus\": %lu", result->vcpus);
		for (int i = 0; i < nr_names; i++) {
			struct summary summary = summarize(&result->figures[i]);

			fprintf(file, ", \"%s\": ", names[i]);
			if (summary.known)
				fprintf(file, "{\"median\": %.3f, \"least\": %.3f, \"most\": %.3f}",
					summary.median, summary.least, summary.most);
			else
				fprintf(file, "null");
		}
		fprintf(file, "}");
	}
}

static void write_json(void)
{
	FILE *file;

	if (json_fd < 0)
		return;
	/* What is no regular file is not cut. */
	if (ftruncate(json_fd, 0) && errno != EINVAL)
		die(1, "%s: %s", json_name, strerror(errno));
	file = fdopen(json_fd, "w");
	check(file, json_name);
	fprintf(file, "{\"program\": \"" NAME "\", \"version\": \"" VERSION "\", \"format\": %d,\n"
		"\"machine\": {", FORMAT);
	write_string(file, "cpu", host.cpu);
	fprintf(file, ", ");
	write_string(file, "stage2", host.stage2);
	fprintf(file, ", \"hypervisor\": %s, ", host.hypervisor ? "true" : "false");
	write_string(file, "kernel", host.kernel);
	fprintf(file, ", ");
	write_string(file, "kvm", host.kvm);
	fprintf(file, ", \"page_sizes\": [%llu%s], \"thp_percent\": %d, ", PAGE,
		has_thp() ? ", 2097152" : "", thp_percent);
	write_string(file, "thp", host.thp);
	fprintf(file, ", \"tsc_khz\": %lu, \"cpus\": %lu},\n", host.tsc_khz, host.cpus);
	fprintf(file, "\"has\": {\"pre_fault_memory\": %s, \"global_tdp\": [",
		host.prefault ? "true" : "false");
	write_features(file, host.features, "\"");
	fprintf(file, "], \"always\": [");
	write_features(file, host.always, "\"");
	fprintf(file, "], ");
	write_string(file, "kvm.global_tdp", host.parameter);
	fprintf(file, "},\n\"options\": {\"mib\": %lu, \"vcpus\": %lu, \"repetitions\": %lu},\n",
		mib, most_vcpus, reps);
	fprintf(file, "\"estimates\": [");
	for (int i = 0; i <= has_thp(); i++) {
		struct estimate found = estimate(i);

		fprintf(file, "%s\n  {\"pages\": \"%s\", \"gib\": %lu, \"faults_s\": %.3f, "
			"\"prefault_s\": ", i ? "," : "", kinds[i].name, gib, found.faults);
		fprintf(file, host.prefault ? "%.3f" : "null", found.prefault);
		fprintf(file, ", \"tables_s\": %.3f, \"tables_measured\": %s, \"end_s\": %.3f, "
			"\"end_on_s\": ", found.tables, found.measured ? "true" : "false",
			found.end);
		fprintf(file, found.measured ? "%.3f}" : "null}", found.end_on);
	}
	fprintf(file, "],\n\"worth_above_percent\": ");
	fprintf(file, worth() ? "%d" : "null", worth());
	fprintf(file, ",\n\"touches\": [");
	write_results(file, results, nr_results, touch_figures, NR_TOUCH_FIGURES);
	fprintf(file, "],\n\"latencies\": [");
	write_results(file, zapped, nr_zapped, latency_figures, NR_LATENCY_FIGURES);
	fprintf(file, "]}\n");
	check(!fclose(file), json_name);
	json_is_new = 0;
}

/* Model of the CPU, and whether it is a VM's. */
static void read_cpu(void)
{
	FILE *file = fopen("/proc/cpuinfo", "re");
	char line[4096], *value;

	strcpy(host.cpu, "unknown CPU");
	while (file && fgets(line, sizeof(line), file) && *line != '\n') {
		line[strcspn(line, "\n")] = 0;
		value = strchr(line, ':');
		if (value && !strncmp(line, "model name", 10))
			snprintf(host.cpu, sizeof(host.cpu), "%.63s", value + 1 + (value[1] == ' '));
		else if (value && !strncmp(line, "flags", 5))
			host.hypervisor = strstr(value, " hypervisor");
	}
	if (file)
		fclose(file);
}

static void read_host(void)
{
	struct utsname names;
	char line[128] = "", *chosen;

	read_cpu();
	uname(&names);
	snprintf(host.kernel, sizeof(host.kernel), "%.64s", names.release);
	if (is_on("/sys/module/kvm_intel/parameters/ept"))
		strcpy(host.stage2, "EPT");
	else if (is_on("/sys/module/kvm_amd/parameters/npt"))
		strcpy(host.stage2, "NPT");
	else
		die(1, "KVM works without EPT and NPT here, so there are no stage-2 faults: "
		    "see kvm_intel.ept or kvm_amd.npt");
	read_line("/sys/module/kvm/version", host.kvm, sizeof(host.kvm));
	read_line("/sys/module/kvm/parameters/global_tdp", host.parameter, sizeof(host.parameter));
	read_line("/sys/kernel/mm/transparent_hugepage/enabled", line, sizeof(line));
	chosen = strchr(line, '[');
	if (chosen && strchr(chosen, ']'))
		snprintf(host.thp, sizeof(host.thp), "%.*s", (int)strcspn(chosen + 1, "]"), chosen + 1);
}

static void open_kvm(void)
{
	const char *hint = "";

	kvm_fd = open("/dev/kvm", O_RDWR | O_CLOEXEC);
	if (kvm_fd < 0 && (errno == ENOENT || errno == ENODEV || errno == ENXIO))
		hint = "; load kvm_intel or kvm_amd, or turn virtualisation on in the firmware";
	else if (kvm_fd < 0)
		hint = "; be root, or of the group that may open it";
	if (kvm_fd < 0)
		die(1, "/dev/kvm: %s%s", strerror(errno), hint);
	if (ioctl(kvm_fd, KVM_GET_API_VERSION, 0) != KVM_API_VERSION)
		die(1, "/dev/kvm is not one of Linux 2.6.22 or later");
}

/* What KVM can do, and the guest's clock. */
static void ask_kvm(void)
{
	int vm = IOCTL(kvm_fd, KVM_CREATE_VM, 0), vcpu = IOCTL(vm, KVM_CREATE_VCPU, 0);
	int features = ioctl(vm, KVM_CHECK_EXTENSION, KVM_CAP_GLOBAL_TDP);

	host.features = features > 0 ? features : 0;
	host.always = KVM_GLOBAL_TDP_FOLLOW | KVM_GLOBAL_TDP_FAULT_AROUND |
		      KVM_GLOBAL_TDP_POPULATE;
	if (is_on("/sys/module/kvm/parameters/global_tdp_page_cache"))
		host.always |= KVM_GLOBAL_TDP_PAGE_CACHE;
	host.always &= host.features;
	host.prefault = ioctl(vm, KVM_CHECK_EXTENSION, KVM_CAP_PRE_FAULT_MEMORY) > 0;
	host.tsc_khz = IOCTL(vcpu, KVM_GET_TSC_KHZ, 0);
	run_size = IOCTL(kvm_fd, KVM_GET_VCPU_MMAP_SIZE, 0);
	close(vcpu);
	close(vm);
	if (!host.tsc_khz)
		die(1, "KVM does not know how fast the TSC is");
	code = map_aligned(HUGE_PAGE, MADV_NOHUGEPAGE);
	memcpy(code, guest_walk, guest_end - guest_walk);
	samples = map_aligned(HUGE_PAGE, MADV_NOHUGEPAGE);
	memset(samples, 0, HUGE_PAGE);
}

static unsigned long number(int option, const char *what, unsigned long least, unsigned long most)
{
	unsigned long value;
	char *end;

	errno = 0;
	value = strtoul(optarg, &end, 10);
	if (errno || *optarg < '0' || *optarg > '9' || *end || value < least || value > most)
		die(2, "-%c %s: give a number of %s from %lu to %lu", option, optarg, what,
		    least, most);
	return value;
}

static void help(void)
{
	printf("usage: " NAME " [-m MIB] [-c VCPUS] [-r REPETITIONS] [-g GIB] [--json FILE]\n"
	       "Say what stage-2 faults cost on this host, and what Global TDP could gain.\n"
	       "  -m MIB          memory of its VMs, %lu to %lu (default %lu, or what a half of\n"
	       "                  the available memory allows)\n"
	       "  -c VCPUS        at most so many (default the CPUs it may use, at most %lu)\n"
	       "  -r REPETITIONS  of all measurements, 1 to %lu (default %lu)\n"
	       "  -g GIB          of the guest that the summary is about (default %lu)\n"
	       "  --json FILE     write all figures there, too; nothing private is in it\n"
	       "By default it takes three minutes and 600 MiB. The last line says what faults\n"
	       "cost and, on KVM with Global TDP, whether that is worth it.\n",
	       LEAST_MIB, MOST_MIB, DEFAULT_MIB, DEFAULT_VCPUS, MOST_REPS, DEFAULT_REPS,
	       DEFAULT_GIB);
	exit(0);
}

static void choose_sizes(void)
{
	unsigned long limit = available_mib() / 2;
	cpu_set_t set;

	/* More CPUs than a set of this size holds: then there are enough. */
	host.cpus = sched_getaffinity(0, sizeof(set), &set) ? MOST_VCPUS : CPU_COUNT(&set);
	if (!most_vcpus)
		most_vcpus = host.cpus < DEFAULT_VCPUS ? host.cpus : DEFAULT_VCPUS;
	if (most_vcpus > host.cpus)
		die(2, "-c %lu: this process may use %lu CPUs: give no more than that", most_vcpus,
		    host.cpus);
	if (!mib) {
		for (mib = DEFAULT_MIB; mib > limit && mib > LEAST_MIB; mib /= 2)
			;
		if (mib < most_vcpus * MIB_PER_VCPU && !(mib > limit))
			mib = (most_vcpus * MIB_PER_VCPU + MIB_STEP - 1) & -MIB_STEP;
		if (mib > limit)
			die(1, "%lu MiB of memory are available, and a half of it is not enough: "
			    "free some", 2 * limit);
	}
	if (mib > limit)
		die(2, "-m %lu: more than a half of the available memory: give no more than %lu",
		    mib, limit);
	if (mib < most_vcpus * MIB_PER_VCPU)
		die(2, "-m %lu: too little for %lu vCPUs: give %lu or more, or -c", mib, most_vcpus,
		    (most_vcpus * MIB_PER_VCPU + MIB_STEP - 1) & -MIB_STEP);
}

/* On a host's CPU; an emulated one takes longer. */
static void show_cost(void)
{
	unsigned long minutes = (3 * mib * reps + DEFAULT_MIB * DEFAULT_REPS - 1) /
				(DEFAULT_MIB * DEFAULT_REPS);

	printf("This takes %lu minute%s, %lu MiB of memory and %lu CPU%s; it changes nothing, and can "
	       "be interrupted.\n\n", minutes, minutes > 1 ? "s" : "", mib + mib / 8 + 24,
	       most_vcpus, most_vcpus > 1 ? "s" : "");
	fflush(stdout);
}

static void parse_options(int argc, char **argv)
{
	static const struct option options[] = {
		{ "json", required_argument, NULL, 'j' },
		{ "help", no_argument, NULL, 'h' },
		{ "version", no_argument, NULL, 'V' },
		{ NULL, 0, NULL, 0 },
	};
	int option;

	opterr = 0;
	while ((option = getopt_long(argc, argv, ":m:c:r:g:h", options, NULL)) != -1) {
		switch (option) {
		case 'm':
			mib = number('m', "MiB", LEAST_MIB, MOST_MIB) & -MIB_STEP;
			break;
		case 'c':
			most_vcpus = number('c', "vCPUs", 1, MOST_VCPUS);
			break;
		case 'r':
			reps = number('r', "repetitions", 1, MOST_REPS);
			break;
		case 'g':
			gib = number('g', "GiB", 1, MOST_GIB);
			break;
		case 'j':
			json_name = optarg;
			break;
		case 'h':
			help();
			break;
		case 'V':
			printf(NAME " " VERSION "\n");
			exit(0);
		case ':':
			die(2, "%s lacks its value: see --help", argv[optind - 1]);
		default:
			die(2, "%s is no option, or takes no value: see --help", argv[optind - 1]);
		}
	}
	if (optind < argc)
		die(2, "%s is no option: see --help", argv[optind]);
	choose_sizes();
}

/* At once: who has waited for figures is not to lose them. */
static void open_json(void)
{
	if (!json_name)
		return;
	json_fd = open(json_name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	json_is_new = json_fd >= 0;
	if (json_fd < 0 && errno == EEXIST)
		json_fd = open(json_name, O_WRONLY | O_CLOEXEC);
	if (json_fd < 0)
		die(2, "--json %s: %s: give a file that can be written", json_name, strerror(errno));
}

int main(int argc, char **argv)
{
	static const int signals[] = { SIGINT, SIGTERM, SIGHUP };

	parse_options(argc, argv);
	for (size_t i = 0; i < sizeof(signals) / sizeof(*signals); i++) {
		if (signal(signals[i], interrupted) == SIG_IGN)
			signal(signals[i], SIG_IGN);
	}
	open_kvm();
	read_host();
	ask_kvm();
	open_json();
	show_cost();
	for (size_t i = 0; i < NR_KINDS; i++)
		measure_kind(&kinds[i]);
	write_json();
	show();
	if (fflush(stdout))
		die(1, "the output: %s", strerror(errno));
	return 0;
}
