// SPDX-License-Identifier: GPL-2.0
/*
 * Restore a guest's memory from a snapshot file, as Firecracker and others do: a
 * private mapping of the file is the guest's memory.  The guest checks all of its
 * pages, then writes to one of eight.  How long does that take, how many stage-2
 * faults, and what helps?  Raw ioctls, nothing but <linux/kvm.h> of the series:
 *
 *	make selftests		# for the headers
 *	gcc -O2 -isystem build/headers/usr/include -o restore integration/restore/restore.c
 *	./restore [-m MIB] [-c] [-s] [-4] [-r RESETS] FILE [WAY]
 *
 * If there is no FILE, a guest is run to make it: -m MIB of memory, 64 by default.
 * With -c, FILE is dropped from the page cache first.  With -s, the mapping is shared: what
 * the guest writes, which is what is there already, goes to the file, as of a vNVDIMM.  With
 * -4, the mapping has no huge pages.  With -r, the memory is then reset to the snapshot with
 * MADV_DONTNEED, and the guest is run again.  What the kernel can't do is left out.  The
 * output is a JSON object for each run.
 */
#define _GNU_SOURCE
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <linux/kvm.h>

#define PAGE		4096ULL
#define MEM_GPA		(1ULL << 30)
#define STAMP		0x57000000U	/* plus the number of the page */
#define WRITE_STEP	8
#define PORT_DONE	0x10
#define TRIES		10000

enum how { NOTHING, POPULATE, CACHED, PREFAULT, FOLLOW };

static const struct way {
	const char *name;
	uint64_t features;	/* of Global TDP; 0: it is turned off */
	int advice;		/* fill the host's page table first; 0: don't */
	enum how how;		/* fill the guest's */
} ways[] = {
	{ "plain" },
	{ "present+around",	KVM_GLOBAL_TDP_FAULT_AROUND },
	{ "around",		KVM_GLOBAL_TDP_FAULT_AROUND | KVM_GLOBAL_TDP_PAGE_CACHE },
	{ "populate",		KVM_GLOBAL_TDP_POPULATE, 0, POPULATE },
	{ "cached+populate",	KVM_GLOBAL_TDP_POPULATE | KVM_GLOBAL_TDP_PAGE_CACHE, 0, CACHED },
	{ "willneed+around",	KVM_GLOBAL_TDP_FAULT_AROUND | KVM_GLOBAL_TDP_PAGE_CACHE,
				MADV_WILLNEED },
	{ "read",		0, MADV_POPULATE_READ },
	{ "read+prefault",	0, MADV_POPULATE_READ, PREFAULT },
	{ "read+around",	KVM_GLOBAL_TDP_FAULT_AROUND, MADV_POPULATE_READ },
	{ "read+follow",	KVM_GLOBAL_TDP_FOLLOW, MADV_POPULATE_READ, FOLLOW },
	{ "read+populate",	KVM_GLOBAL_TDP_POPULATE, MADV_POPULATE_READ, POPULATE },
	{ "copy",		0, MADV_POPULATE_WRITE },
	{ "copy+populate",	KVM_GLOBAL_TDP_POPULATE, MADV_POPULATE_WRITE, POPULATE },
	{ }
};

/*
 * What the guest does, in 32 bits and without paging: %ecx times, store %ebx at %esi,
 * or check that it is there, then add %edi and %ebp to these.
 */
extern const char guest[], guest_check[], guest_end[];
asm(".pushsection .rodata\n.code32\nguest:\n"
    "1:	mov %ebx, (%esi)\n	add %edi, %esi\n	add %ebp, %ebx\n"
    "	dec %ecx\n	jnz 1b\n	out %al, $0x10\nguest_check:\n"
    "1:	cmp %ebx, (%esi)\n	jne 2f\n	add %edi, %esi\n	add %ebp, %ebx\n"
    "	dec %ecx\n	jnz 1b\n	out %al, $0x10\n"
    "2:	out %al, $0x11\nguest_end:\n.code64\n.popsection\n");

static int kvm_fd, vm_fd, vcpu_fd, vm_stats, vcpu_stats;
static int cold, shared, small, resets;
static struct kvm_run *vcpu;

static void check(int ok, const char *what)
{
	if (!ok)
		err(1, "%s", what);
}

/*
 * What is interrupted, or asks to be called again, goes on, but not for ever: what is
 * in the way may be there to stay.
 */
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

static void *map(size_t size, int flags, int fd)
{
	void *mem = mmap(NULL, size, PROT_READ | PROT_WRITE, flags, fd, 0);

	check(mem != MAP_FAILED, "mmap");
	return mem;
}

static uint64_t now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000000000ULL + ts.tv_nsec;
}

static uint64_t statistic(int fd, const char *name)
{
	struct kvm_stats_header head;
	char buf[sizeof(struct kvm_stats_desc) + 256] = "";
	struct kvm_stats_desc *desc = (void *)buf;
	uint64_t value;

	if (pread(fd, &head, sizeof(head), 0) != sizeof(head) || head.name_size > 256)
		errx(1, "can't read KVM's statistics");
	for (uint32_t i = 0, size = sizeof(*desc) + head.name_size; i < head.num_desc; i++) {
		if (pread(fd, buf, size, head.desc_offset + i * size) == size &&
		    !strcmp(desc->name, name) &&
		    pread(fd, &value, 8, head.data_offset + desc->offset) == 8)
			return value;
	}
	errx(1, "KVM has no statistic %s", name);
}

static uint64_t mapped(void)
{
	return statistic(vm_stats, "pages_4k") + 512 * statistic(vm_stats, "pages_2m");
}

static void set_memory(int slot, uint64_t gpa, void *hva, uint64_t size)
{
	struct kvm_userspace_memory_region region = { slot, 0, gpa, size, (uintptr_t)hva };

	IOCTL(vm_fd, KVM_SET_USER_MEMORY_REGION, &region);
}

/*
 * Before memory is populated: some CPUs have page tables of four levels or five, and which
 * of them the VM will use follows from the CPUID of its first vCPU.
 */
static void set_cpuid(void)
{
	static struct {
		struct kvm_cpuid2 head;
		struct kvm_cpuid_entry2 entries[256];
	} cpuid = { .head.nent = 256 };

	IOCTL(kvm_fd, KVM_GET_SUPPORTED_CPUID, &cpuid);
	IOCTL(vcpu_fd, KVM_SET_CPUID2, &cpuid);
}

static void create(uint64_t features)
{
	static char code[PAGE] __attribute__((aligned(PAGE)));
	struct kvm_enable_cap cap = { .cap = KVM_CAP_GLOBAL_TDP, .args[0] = features };
	struct kvm_segment flat = { .limit = ~0U, .type = 3, .present = 1, .db = 1, .s = 1, .g = 1 };
	struct kvm_sregs sregs;

	vm_fd = IOCTL(kvm_fd, KVM_CREATE_VM, 0);
	IOCTL(vm_fd, KVM_SET_TSS_ADDR, 0xfffbd000);
	if (ioctl(kvm_fd, KVM_CHECK_EXTENSION, KVM_CAP_GLOBAL_TDP) > 0)
		IOCTL(vm_fd, KVM_ENABLE_CAP, &cap);
	memcpy(code, guest, guest_end - guest);
	set_memory(0, 0, code, PAGE);
	vcpu_fd = IOCTL(vm_fd, KVM_CREATE_VCPU, 0);
	set_cpuid();
	vcpu = map(IOCTL(kvm_fd, KVM_GET_VCPU_MMAP_SIZE, 0), MAP_SHARED, vcpu_fd);
	IOCTL(vcpu_fd, KVM_GET_SREGS, &sregs);
	sregs.cs = sregs.ds = sregs.es = sregs.fs = sregs.gs = sregs.ss = flat;
	sregs.cs.type = 11;
	sregs.cr0 = 0x11;
	IOCTL(vcpu_fd, KVM_SET_SREGS, &sregs);
	vm_stats = IOCTL(vm_fd, KVM_GET_STATS_FD, 0);
	vcpu_stats = IOCTL(vcpu_fd, KVM_GET_STATS_FD, 0);
}

/* Let the guest go through its pages; returns the faults that it took. */
static uint64_t run(const char *what, uint64_t pages, unsigned int step, uint32_t stamp)
{
	uint64_t faults = statistic(vcpu_stats, "pf_taken");
	struct kvm_regs regs = {
		.rip = what - guest, .rflags = 2, .rsi = MEM_GPA, .rbx = stamp,
		.rcx = pages / step, .rdi = step * PAGE, .rbp = step,
	};

	IOCTL(vcpu_fd, KVM_SET_REGS, &regs);
	IOCTL(vcpu_fd, KVM_RUN, 0);
	IOCTL(vcpu_fd, KVM_GET_REGS, &regs);
	if (vcpu->exit_reason != KVM_EXIT_IO || vcpu->io.port != PORT_DONE)
		errx(1, "exit %u, page %llu is wrong; if the file is not of this program, remove it",
		     vcpu->exit_reason, (regs.rsi - MEM_GPA) / PAGE);
	return statistic(vcpu_stats, "pf_taken") - faults;
}

static void *map_memory(size_t size, int flags, int fd)
{
	void *mem = map(size, flags, fd);

	check(!small || !madvise(mem, size, MADV_NOHUGEPAGE), "madvise");
	return mem;
}

static void populate(enum how how, uint64_t pages)
{
	struct kvm_populate_memory range = { .gpa = MEM_GPA, .size = pages * PAGE };
	struct kvm_pre_fault_memory fault = { .gpa = MEM_GPA, .size = pages * PAGE };
	int tries = 20000;

	if (how == CACHED)
		range.flags = KVM_POPULATE_PAGE_CACHE;
	if (how == POPULATE || how == CACHED)
		IOCTL(vm_fd, KVM_POPULATE_MEMORY, &range);
	else if (how == PREFAULT)
		IOCTL(vcpu_fd, KVM_PRE_FAULT_MEMORY, &fault);
	while (how == FOLLOW && mapped() < pages) {
		if (!tries--)
			errx(1, "the follower mapped %lu of %lu pages only", mapped(), pages);
		usleep(1000);
	}
}

static void restore(const struct way *way, int fd, uint64_t pages)
{
	uint64_t start, cpu, prepared, checked, written, check_faults, write_faults, zapped;
	struct iovec iov = { (char[1]){}, 1 };
	void *mem;

	if (cold) {
		check(!fsync(fd) && !posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), "fadvise");
		if (preadv2(fd, &iov, 1, 0, RWF_NOWAIT) == 1)
			errx(1, "-c: the file stays in the page cache; is it on tmpfs?");
	}
	/* Nothing is dirty, so that each way finds the same. */
	check(!shared || !fsync(fd), "fsync");
	create(way->features);
	start = now();
	cpu = clock();
	mem = map_memory(pages * PAGE, shared ? MAP_SHARED : MAP_PRIVATE, fd);
	set_memory(1, MEM_GPA, mem, pages * PAGE);
	for (int i = 0; i <= resets; i++) {
		check(!way->advice || !madvise(mem, pages * PAGE, way->advice), "madvise");
		populate(way->how, pages);
		prepared = now();
		check_faults = run(guest_check, pages, 1, STAMP);
		checked = now();
		write_faults = run(guest, pages, WRITE_STEP, shared ? STAMP : ~STAMP);
		written = now();
		cpu = clock() - cpu;
		zapped = mapped();
		check(!resets || !madvise(mem, pages * PAGE, MADV_DONTNEED), "madvise");
		zapped -= mapped();
		printf("{\"way\": \"%s\", \"pages\": %lu, \"prepare_ns\": %lu, "
		       "\"check_ns\": %lu, \"write_ns\": %lu, \"cpu_us\": %lu, "
		       "\"check_faults\": %lu, \"write_faults\": %lu, \"zapped\": %lu}\n",
		       way->name, pages, prepared - start, checked - prepared, written - checked,
		       cpu, check_faults, write_faults, zapped);
		start = now();
		cpu = clock();
	}
	exit(0);
}

/* Have a guest write what another one is to find. */
static void make_snapshot(int fd, uint64_t pages)
{
	check(!ftruncate(fd, pages * PAGE), "ftruncate");
	create(0);
	set_memory(1, MEM_GPA, map_memory(pages * PAGE, MAP_SHARED, fd), pages * PAGE);
	run(guest, pages, 1, STAMP);
	exit(0);
}

/* Can the kernel do it, and is it asked for? */
static int wanted(const struct way *way, const char *name)
{
	uint64_t can = ioctl(kvm_fd, KVM_CHECK_EXTENSION, KVM_CAP_GLOBAL_TDP);
	int prefault = ioctl(kvm_fd, KVM_CHECK_EXTENSION, KVM_CAP_PRE_FAULT_MEMORY);

	return (way->features & can) == way->features &&
	       (way->how != PREFAULT || prefault > 0) && (!name || !strcmp(name, way->name));
}

/* Each VM is one of a process, which ends with it. */
static int in_child(void)
{
	int status;

	if (!fork())
		return 1;
	check(wait(&status) > 0, "wait");
	if (status)
		exit(1);
	return 0;
}

int main(int argc, char **argv)
{
	int opt, fd, done = 0;
	uint64_t mib = 64;
	off_t size;

	while ((opt = getopt(argc, argv, "m:cs4r:")) != -1) {
		cold |= opt == 'c';
		shared |= opt == 's';
		small |= opt == '4';
		mib *= opt != '?';
		if (opt == 'm')
			mib = strtoul(optarg, NULL, 0);
		else if (opt == 'r')
			resets = atoi(optarg);
	}
	if (optind >= argc || !mib || mib > 1024 || resets < 0)
		errx(1, "usage: restore [-m MIB (1 to 1024)] [-c] [-s] [-4] [-r RESETS] FILE [WAY]");
	kvm_fd = open("/dev/kvm", O_RDWR);
	check(kvm_fd >= 0, "/dev/kvm (are KVM's modules loaded, and may you use it?)");
	fd = open(argv[optind], O_RDWR | O_CREAT, 0600);
	check((size = lseek(fd, 0, SEEK_END)) >= 0, argv[optind]);
	if (!size && in_child())
		make_snapshot(fd, mib << 8);
	else if (size && size != (off_t)mib << 20)
		errx(1, "%s is not of %lu MiB: remove it, or use another -m", argv[optind], mib);
	for (const struct way *way = ways; way->name; way++) {
		if (wanted(way, argv[optind + 1]) && ++done && in_child())
			restore(way, fd, mib << 8);
	}
	return done ? 0 : (warnx("no such way, or none that this kernel can do"), 1);
}
