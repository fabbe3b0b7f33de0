// SPDX-License-Identifier: GPL-2.0
/*
 * Short-lived VMs, one after the other: each has a snapshot, which is in a memfd, for its
 * memory by a private mapping.  Its guest reads 40 pages and writes to ten others.  Then the
 * VM is closed.  What CPU time does such a life take, and how many faults?
 *
 *	gcc -O2 -isystem build/headers/usr/include -o lives integration/restore/lives.c
 *	./lives [-n VMS] [-m MIB] [-g]
 *
 * With -g, the VMs have what kvm.global_tdp=1 gives, else nothing of it.  The output is a
 * JSON object.
 */
#define _GNU_SOURCE
#include "vm.h"

#define READ		40
#define WRITTEN		10

static uint64_t cpu_time(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
	return ts.tv_sec * 1000000000ULL + ts.tv_nsec;
}

/* A life, from creation to end; returns the guest's faults. */
static uint64_t live(uint64_t features, int fd, uint64_t pages, uint64_t first)
{
	void *mem = map(pages * PAGE, MAP_PRIVATE, fd);
	uint64_t faults;

	create(features);
	set_memory(1, MEM_GPA, mem, pages * PAGE);
	faults = run(guest_check, first, READ, 1, STAMP);
	faults += run(guest_turn, first + READ, WRITTEN, 1, STAMP);

	check(!munmap(mem, pages * PAGE), "munmap");
	check(!munmap(vcpu, IOCTL(kvm_fd, KVM_GET_VCPU_MMAP_SIZE, 0)), "munmap");
	check(!close(vcpu_stats) && !close(vm_stats) && !close(vcpu_fd) && !close(vm_fd), "close");
	return faults;
}

int main(int argc, char *argv[])
{
	uint64_t mib = 32, vms = 200, features = 0, pages, start, faults = 0;
	uint32_t *mem;
	int opt, fd;

	while ((opt = getopt(argc, argv, "gm:n:")) != -1) {
		switch (opt) {
		case 'g':
			features = PARAMETER;
			break;
		case 'm':
			mib = strtoull(optarg, NULL, 10);
			break;
		case 'n':
			vms = strtoull(optarg, NULL, 10);
			break;
		default:
			errx(2, "usage: %s [-n VMS] [-m MIB] [-g]", argv[0]);
		}
	}
	if (!vms || !mib || mib > 2048)
		errx(2, "want at least a VM, and 1 to 2048 MiB");

	open_kvm();
	pages = (mib << 20) / PAGE;
	fd = memfd_create("snapshot", 0);
	check(fd >= 0 && !ftruncate(fd, mib << 20), "memfd_create");
	mem = map(mib << 20, MAP_SHARED, fd);
	for (uint64_t i = 0; i < pages; i++)
		mem[i * PAGE / sizeof(*mem)] = STAMP + i;

	/* The first one warms up what all share. */
	live(features, fd, pages, 0);
	start = cpu_time();
	for (uint64_t i = 0; i < vms; i++)
		faults += live(features, fd, pages, i * 7919 % (pages - READ - WRITTEN));

	printf("{\"vms\": %lu, \"mib\": %lu, \"ns\": %lu, \"faults\": %.1f}\n",
	       vms, mib, (cpu_time() - start) / vms, (double)faults / vms);
	return 0;
}
