/* SPDX-License-Identifier: GPL-2.0 */
/*
 * A VM with one vCPU and no firmware, for programs that measure how a guest's memory comes
 * to be mapped from a file.  Raw ioctls, nothing but <linux/kvm.h> of the series.  A process
 * has one such VM, which ends with it.
 */
#ifndef RESTORE_VM_H
#define RESTORE_VM_H

#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <linux/kvm.h>

#define PAGE		4096ULL
#define MEM_GPA		(1ULL << 30)
#define STAMP		0x57000000U	/* plus the number of the page */
#define PORT_DONE	0x10
#define TRIES		10000
/* What kvm.global_tdp=1 gives, and what with kvm.global_tdp_page_cache=1. */
#define PARAMETER	(KVM_GLOBAL_TDP_FOLLOW | KVM_GLOBAL_TDP_FAULT_AROUND | \
			 KVM_GLOBAL_TDP_POPULATE)
#define PARAMETERS	(PARAMETER | KVM_GLOBAL_TDP_PAGE_CACHE)

/*
 * What the guest does, in 32 bits and without paging: %ecx times, store %ebx at %esi,
 * or check that it is there, or check it and store its inverse, then add %edi and %ebp to these.
 * Or nothing, for its own page to be mapped.
 */
extern const char guest[], guest_check[], guest_turn[], guest_nothing[], guest_end[];
asm(".pushsection .rodata\n.code32\nguest:\n"
    "1:	mov %ebx, (%esi)\n	add %edi, %esi\n	add %ebp, %ebx\n"
    "	dec %ecx\n	jnz 1b\n	out %al, $0x10\nguest_check:\n"
    "1:	cmp %ebx, (%esi)\n	jne 2f\n	add %edi, %esi\n	add %ebp, %ebx\n"
    "	dec %ecx\n	jnz 1b\n	out %al, $0x10\nguest_turn:\n"
    "1:	cmp %ebx, (%esi)\n	jne 2f\n	mov %ebx, %eax\n	not %eax\n"
    "	mov %eax, (%esi)\n	add %edi, %esi\n	add %ebp, %ebx\n"
    "	dec %ecx\n	jnz 1b\nguest_nothing:\n	out %al, $0x10\n"
    "2:	out %al, $0x11\nguest_end:\n.code64\n.popsection\n");

static int kvm_fd, vm_fd, vcpu_fd, vm_stats, vcpu_stats;
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

static inline uint64_t now(void)
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

/*
 * Let the guest go through @count pages from @first on, one of @step; returns the faults
 * that it took.
 */
static uint64_t run(const char *what, uint64_t first, uint64_t count, unsigned int step,
		    uint32_t stamp)
{
	uint64_t faults = statistic(vcpu_stats, "pf_taken");
	struct kvm_regs regs = {
		.rip = what - guest, .rflags = 2, .rsi = MEM_GPA + first * PAGE,
		.rbx = (uint32_t)(stamp + first), .rcx = count, .rdi = step * PAGE, .rbp = step,
	};

	IOCTL(vcpu_fd, KVM_SET_REGS, &regs);
	IOCTL(vcpu_fd, KVM_RUN, 0);
	IOCTL(vcpu_fd, KVM_GET_REGS, &regs);
	if (vcpu->exit_reason != KVM_EXIT_IO || vcpu->io.port != PORT_DONE)
		errx(1, "exit %u, page %llu is wrong; if the file is not of this program, remove it",
		     vcpu->exit_reason, (regs.rsi - MEM_GPA) / PAGE);
	return statistic(vcpu_stats, "pf_taken") - faults;
}

static void open_kvm(void)
{
	kvm_fd = open("/dev/kvm", O_RDWR);
	check(kvm_fd >= 0, "/dev/kvm (are KVM's modules loaded, and may you use it?)");
}

/* Each VM is one of a process, which ends with it. */
static inline int in_child(void)
{
	int status;

	fflush(stdout);
	if (!fork())
		return 1;
	check(wait(&status) > 0, "wait");
	if (status)
		exit(1);
	return 0;
}

/* A snapshot's file: its size is 0 if it is to be made, or as is wanted. */
static inline int open_snapshot(const char *path, uint64_t mib, off_t *size)
{
	int fd = open(path, O_RDWR | O_CREAT, 0600);

	check((*size = lseek(fd, 0, SEEK_END)) >= 0, path);
	if (*size && *size != (off_t)mib << 20)
		errx(1, "%s is not of %lu MiB: remove it, or use another -m", path, mib);
	return fd;
}

#endif
