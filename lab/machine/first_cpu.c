// SPDX-License-Identifier: GPL-2.0
/*
 * Shows why an emulated machine's first CPU must not run a guest while others run
 * at the same time.  In QEMU's TCG (7.2 to 11.1 at least), whatever loads the state of
 * the x87 FPU on any CPU, which is each context switch, clears a flag (IGNNE) of the
 * first CPU, without a lock or an atomic operation.  In the same word that CPU has
 * what VMRUN and #VMEXIT change: nested paging, and whether interrupts are taken
 * though IF is clear.  One of their changes is lost now and then: then the guest's
 * memory accesses are not translated by its NPT any more, or the host's are.
 *
 *	first_cpu CPU OTHER SECONDS
 *
 * runs a guest that does nothing but exit on one CPU, and loads the x87 state on another.
 * With CPU 0, the guest ends in a shutdown, or the machine dies, within seconds; with
 * CPUs 1 and 2, nothing happens.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/kvm.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <time.h>

#define PAGE	4096ul
#define SIZE	(16 * PAGE)

/* in $0x10,%al; jmp back to it: real mode, at the address 0. */
static const unsigned char code[] = { 0xe4, 0x10, 0xeb, 0xfc };

static void *must(void *pointer, const char *what)
{
	if (pointer == MAP_FAILED) {
		perror(what);
		exit(2);
	}
	return pointer;
}

static int call(int fd, unsigned long request, void *arg, const char *what)
{
	int r = ioctl(fd, request, arg);

	if (r < 0) {
		perror(what);
		exit(2);
	}
	return r;
}

static void pin(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (sched_setaffinity(0, sizeof(set), &set)) {
		perror("sched_setaffinity()");
		exit(2);
	}
}

static void *load_x87(void *arg)
{
	static char area[512] __attribute__((aligned(16)));

	pin(*(int *)arg);
	asm volatile("fxsave %0" : "=m"(area));
	for (;;)
		asm volatile("fxrstor %0" :: "m"(area));
	return NULL;
}

int main(int argc, char **argv)
{
	int cpu, other, kvm, vm, vcpu, size;
	struct kvm_userspace_memory_region region = { .memory_size = SIZE };
	struct kvm_regs regs = { .rflags = 2 };
	struct kvm_sregs sregs;
	struct kvm_run *run;
	unsigned long exits;
	pthread_t thread;
	time_t end;
	void *mem;

	if (argc != 4) {
		fprintf(stderr, "usage: %s CPU OTHER SECONDS\n", argv[0]);
		return 2;
	}
	cpu = atoi(argv[1]);
	other = atoi(argv[2]);

	kvm = open("/dev/kvm", O_RDWR);
	vm = call(kvm, KVM_CREATE_VM, NULL, "KVM_CREATE_VM");
	mem = must(mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0),
		   "mmap()");
	memcpy(mem, code, sizeof(code));
	region.userspace_addr = (unsigned long)mem;
	call(vm, KVM_SET_USER_MEMORY_REGION, &region, "KVM_SET_USER_MEMORY_REGION");
	vcpu = call(vm, KVM_CREATE_VCPU, NULL, "KVM_CREATE_VCPU");
	size = call(kvm, KVM_GET_VCPU_MMAP_SIZE, NULL, "KVM_GET_VCPU_MMAP_SIZE");
	run = must(mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, vcpu, 0), "mmap()");
	call(vcpu, KVM_GET_SREGS, &sregs, "KVM_GET_SREGS");
	sregs.cs.base = sregs.cs.selector = 0;
	call(vcpu, KVM_SET_SREGS, &sregs, "KVM_SET_SREGS");
	call(vcpu, KVM_SET_REGS, &regs, "KVM_SET_REGS");

	pin(cpu);
	pthread_create(&thread, NULL, load_x87, &other);
	end = time(NULL) + atoi(argv[3]);
	for (exits = 0; time(NULL) < end; exits++) {
		call(vcpu, KVM_RUN, NULL, "KVM_RUN");
		if (run->exit_reason != KVM_EXIT_IO) {
			printf("exit %lu, on CPU %d, is of reason %u, not by IN\n", exits, cpu,
			       run->exit_reason);
			return 1;
		}
	}
	printf("%lu exits on CPU %d, all by IN\n", exits, cpu);
	return 0;
}
