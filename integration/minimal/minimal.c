// SPDX-License-Identifier: GPL-2.0
/*
 * A snapshot file is a VM's memory: have KVM map what the page cache holds of it.  What is
 * between the lines of dashes is all that a VMM has to add.
 *
 *	gcc -o minimal integration/minimal/minimal.c
 *	./minimal FILE
 */
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <linux/kvm.h>

/* ---- */
#ifndef KVM_CAP_GLOBAL_TDP	/* The system's headers don't have it yet. */
#define KVM_CAP_GLOBAL_TDP		0x67746470
#define KVM_GLOBAL_TDP_POPULATE		(1ULL << 2)
#define KVM_GLOBAL_TDP_PAGE_CACHE	(1ULL << 3)
#define KVM_POPULATE_PAGE_CACHE		(1U << 1)
struct kvm_populate_memory {
	__u64 gpa, size;
	__u32 flags, as_id;
	__u64 mapped, absent, bitmap, reserved;
};

#define KVM_POPULATE_MEMORY		_IOWR(KVMIO, 0xf8, struct kvm_populate_memory)
#endif

/* Before the first vCPU.  Returns what of it the VM has: 0 where the kernel can't. */
static __u64 enable(int vm, __u64 wanted)
{
	int can = ioctl(vm, KVM_CHECK_EXTENSION, KVM_CAP_GLOBAL_TDP);
	struct kvm_enable_cap cap = { .cap = KVM_CAP_GLOBAL_TDP };

	cap.args[0] = can > 0 ? wanted & can : 0;
	return can > 0 && !ioctl(vm, KVM_ENABLE_CAP, &cap) ? cap.args[0] : 0;
}

/* Once memslots are set and the first vCPU has its CPUID.  What is left, its vCPUs fault on. */
static int populate(int vm, __u64 gpa, __u64 size, __u32 flags)
{
	struct kvm_populate_memory range = { .gpa = gpa, .size = size, .flags = flags };
	int attempts = 100;

	while (ioctl(vm, KVM_POPULATE_MEMORY, &range)) {
		if (errno != EINTR && errno != EAGAIN)
			return -errno;
		/* What is in the way may be there to stay. */
		if (range.size < size)
			attempts = 100;
		else if (!attempts--)
			return -errno;
		size = range.size;
	}
	return 0;
}

/* ---- */
static int create(__u64 *has, __u64 gpa, void *memory, __u64 size)
{
	struct kvm_userspace_memory_region slot = {
		.guest_phys_addr = gpa,
		.memory_size = size,
		.userspace_addr = (__u64)memory,
	};
	int kvm = open("/dev/kvm", O_RDWR), vm = ioctl(kvm, KVM_CREATE_VM, 0);

	if (kvm < 0 || vm < 0)
		err(1, "/dev/kvm");
	*has = enable(vm, KVM_GLOBAL_TDP_POPULATE | KVM_GLOBAL_TDP_PAGE_CACHE);
	if (ioctl(vm, KVM_SET_USER_MEMORY_REGION, &slot))
		err(1, "KVM_SET_USER_MEMORY_REGION");
	return vm;
}

int main(int argc, char **argv)
{
	int file = open(argc > 1 ? argv[1] : "", O_RDONLY), vm, r;
	__u64 has, gpa = 1 << 30;
	struct stat st;
	void *memory;

	if (file < 0 || fstat(file, &st))
		err(1, "usage: minimal FILE");
	memory = mmap(NULL, st.st_size, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
	if (memory == MAP_FAILED)
		err(1, "mmap");
	vm = create(&has, gpa, memory, st.st_size);
	if (!(has & KVM_GLOBAL_TDP_POPULATE)) {
		puts("populated: nothing, this kernel has no Global TDP");
		return 0;
	}
	r = populate(vm, gpa, st.st_size,
		     has & KVM_GLOBAL_TDP_PAGE_CACHE ? KVM_POPULATE_PAGE_CACHE : 0);
	printf("populated: %d\n", r);
	return !!r;
}
