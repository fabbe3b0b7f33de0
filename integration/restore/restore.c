// SPDX-License-Identifier: GPL-2.0
/*
 * Restore a guest's memory from a snapshot file, as Firecracker and others do: a
 * private mapping of the file is the guest's memory.  The guest checks all of its
 * pages, then writes to one of eight.  How long does that take, how many stage-2
 * faults, and what helps?  Raw ioctls, nothing but <linux/kvm.h> of the series:
 *
 *	make selftests		# for the headers
 *	gcc -O2 -isystem build/headers/usr/include -o restore integration/restore/restore.c
 *	./restore [-m MIB] [-c] [-s] [-4] [-r RESETS | -k EVERY] FILE [WAY ...]
 *
 * If there is no FILE, a guest is run to make it: -m MIB of memory, 64 by default.
 * With -c, FILE is dropped from the page cache first.  With -s, the mapping is shared: what
 * the guest writes, which is what is there already, goes to the file, as of a vNVDIMM.  With
 * -4, the mapping has no huge pages.  With -r, the memory is then reset to the snapshot with
 * MADV_DONTNEED, and the guest is run again.  With -k, the guest takes one of EVERY pages only:
 * it checks them or, in another run, checks and then changes each.  What the kernel can't do
 * is left out.  The output is a JSON object for each run.
 */
#define _GNU_SOURCE
#include <sys/uio.h>

#include "vm.h"

#define WRITE_STEP	8

enum how { NOTHING, POPULATE, CACHED, PREFAULT, FOLLOW };

static const struct way {
	const char *name;
	uint64_t features;	/* of Global TDP; 0: it is turned off */
	int advice;		/* fill the host's page table first; 0: don't */
	enum how how;		/* fill the guest's */
} ways[] = {
	{ "plain" },
	{ "present+around",	PARAMETER },
	{ "around",		PARAMETERS },
	{ "populate",		KVM_GLOBAL_TDP_POPULATE, 0, POPULATE },
	{ "cached+populate",	KVM_GLOBAL_TDP_POPULATE | KVM_GLOBAL_TDP_PAGE_CACHE, 0, CACHED },
	{ "willneed+around",	PARAMETERS,
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

static int cold, shared, small, resets, every;

static uint64_t mapped(void)
{
	return statistic(vm_stats, "pages_4k") + 512 * statistic(vm_stats, "pages_2m");
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
	while (how == PREFAULT && fault.size)
		IOCTL(vcpu_fd, KVM_PRE_FAULT_MEMORY, &fault);
	while (how == FOLLOW && mapped() < pages) {
		if (!tries--)
			errx(1, "the follower mapped %lu of %lu pages only", mapped(), pages);
		usleep(1000);
	}
}

/* Of what a file is to be read ahead, one call reads no more than a request's worth. */
static void advise(char *mem, uint64_t size, int advice)
{
	uint64_t piece = advice == MADV_WILLNEED ? 128 << 10 : size;

	for (uint64_t at = 0; advice && at < size; at += piece)
		check(!madvise(mem + at, piece, advice), "madvise");
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
		advise(mem, pages * PAGE, way->advice);
		populate(way->how, pages);
		prepared = now();
		check_faults = run(guest_check, 0, pages, 1, STAMP);
		checked = now();
		write_faults = run(guest, 0, pages / WRITE_STEP, WRITE_STEP,
				   shared ? STAMP : ~STAMP);
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

/* A guest that wants some of its pages only: it reads them or, to @turn, writes as well. */
static void take_some(const struct way *way, int fd, uint64_t pages, int turn)
{
	uint64_t start, taken, faults;

	create(way->features);
	run(guest_nothing, 0, 1, 1, 0);
	start = now();
	set_memory(1, MEM_GPA, map_memory(pages * PAGE, MAP_PRIVATE, fd), pages * PAGE);
	faults = run(turn ? guest_turn : guest_check, 0, pages / every, every, STAMP);
	taken = now();
	printf("{\"way\": \"%s\", \"every\": %d, \"turn\": %d, \"pages\": %lu, "
	       "\"ns\": %lu, \"faults\": %lu, \"mapped\": %lu}\n",
	       way->name, every, turn, pages / every, taken - start, faults, mapped());
	exit(0);
}

/* Have a guest write what another one is to find. */
static void make_snapshot(int fd, uint64_t pages)
{
	check(!ftruncate(fd, pages * PAGE), "ftruncate");
	create(0);
	set_memory(1, MEM_GPA, map_memory(pages * PAGE, MAP_SHARED, fd), pages * PAGE);
	run(guest, 0, pages, 1, STAMP);
	exit(0);
}

/* Can the kernel do it, and is it asked for, by name or as one of all? */
static int wanted(const struct way *way, char **names)
{
	int named = !*names;
	uint64_t can = ioctl(kvm_fd, KVM_CHECK_EXTENSION, KVM_CAP_GLOBAL_TDP);
	int prefault = ioctl(kvm_fd, KVM_CHECK_EXTENSION, KVM_CAP_PRE_FAULT_MEMORY);

	for ( ; *names; names++)
		named |= !strcmp(*names, way->name);
	return named && (way->features & can) == way->features &&
	       (way->how != PREFAULT || prefault > 0);
}

int main(int argc, char **argv)
{
	int opt, fd, done = 0;
	uint64_t mib = 64;
	off_t size;

	while ((opt = getopt(argc, argv, "m:cs4r:k:")) != -1) {
		cold |= opt == 'c';
		shared |= opt == 's';
		small |= opt == '4';
		mib *= opt != '?';
		if (opt == 'm')
			mib = strtoul(optarg, NULL, 0);
		else if (opt == 'r')
			resets = atoi(optarg);
		else if (opt == 'k')
			every = atoi(optarg);
	}
	if (optind >= argc || !mib || mib > 1024 || resets < 0 || every < 0)
		errx(1, "usage: restore [-m MIB (1 to 1024)] [-c] [-s] [-4] [-r RESETS | -k EVERY] "
		     "FILE [WAY ...]");
	open_kvm();
	fd = open_snapshot(argv[optind], mib, &size);
	if (!size && in_child())
		make_snapshot(fd, mib << 8);
	for (const struct way *way = ways; way->name; way++) {
		if (!wanted(way, argv + optind + 1))
			continue;
		done++;
		for (int turn = 0; turn < 2 && every; turn++) {
			if (in_child())
				take_some(way, fd, mib << 8, turn);
		}
		if (!every && in_child())
			restore(way, fd, mib << 8);
	}
	return done ? 0 : (warnx("no such way, or none that this kernel can do"), 1);
}
