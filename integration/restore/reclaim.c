// SPDX-License-Identifier: GPL-2.0
/*
 * Many VMs have the same snapshot file for their memory, each by a private mapping, and use
 * the same part of it.  Then their memory cgroup is told to give back a part of the file.
 * What does that take, how much of it comes, and what do the VMs pay afterwards?
 *
 *	gcc -O2 -isystem build/headers/usr/include -o reclaim integration/restore/reclaim.c
 *	./restore -m MIB FILE plain			# makes FILE
 *	./reclaim [-n VMS] [-m MIB] [-u USED] [-p PERCENT] [-r ROUNDS] [-g | -c] [-o] FILE
 *
 * With -g, the VMs have what kvm.global_tdp=1 gives, with -c the page cache, too, else nothing of
 * it.  They use the first USED pages of each 2 MiB, 51 by default.  PERCENT of the file, 50 by default, is asked for by
 * memory.reclaim, ROUNDS times; after each, the VMs use their part again.  With -o, they are in
 * another memory cgroup than the file.  Each VM is a process, and at rest while memory is
 * reclaimed.  The output is a JSON object that tells of page tables, and one a round.
 */
#define _GNU_SOURCE
#include <inttypes.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "vm.h"

#define CGROUP		"/sys/fs/cgroup/reclaim"
#define OTHERS		"/sys/fs/cgroup/reclaim-others"
#define REGION		512ULL		/* pages */
#define MOST_VMS	1000

struct used {
	uint64_t faults, ns;
};

static uint64_t features;
static int others;
static uint64_t pages, part = 51;
static int sockets[MOST_VMS];

static void write_file(const char *directory, const char *name, const char *text)
{
	char path[256];
	int fd;

	snprintf(path, sizeof(path), "%s/%s", directory, name);
	fd = open(path, O_WRONLY);
	check(fd >= 0, path);
	check(write(fd, text, strlen(text)) == (ssize_t)strlen(text) && !close(fd), path);
}

/* The number that follows @name in a file of lines, a name and a number each. */
static uint64_t read_number(const char *path, const char *name)
{
	size_t length = strlen(name);
	uint64_t value = ~0ULL;
	char line[256];
	FILE *file = fopen(path, "r");

	check(!!file, path);
	while (fgets(line, sizeof(line), file)) {
		if (!strncmp(line, name, length) && strchr(" :\t", line[length]))
			value = strtoull(line + length + 1, NULL, 10);
	}
	fclose(file);
	if (value == ~0ULL)
		errx(1, "%s has no %s", path, name);
	return value;
}

static uint64_t of_cgroup(const char *name)
{
	return read_number(CGROUP "/memory.stat", name);
}

static uint64_t meminfo(const char *name)
{
	return read_number("/proc/meminfo", name);
}

static void enter(const char *cgroup)
{
	check(!mkdir(cgroup, 0755) || errno == EEXIST, cgroup);
	write_file(cgroup, "cgroup.procs", "0");
}

static uint64_t cpu_time(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
	return ts.tv_sec * 1000000000ULL + ts.tv_nsec;
}

/* How many of the file's pages are in the page cache? */
static uint64_t cached(unsigned char *mem)
{
	static unsigned char in_core[1 << 18];
	uint64_t count = 0;

	check(!mincore(mem, pages * PAGE, in_core), "mincore");
	for (uint64_t i = 0; i < pages; i++)
		count += in_core[i] & 1;
	return count;
}

/* Have the guest use its part. */
static struct used use(void)
{
	struct used used = { .ns = now() };

	for (uint64_t i = 0; i < pages; i += REGION)
		used.faults += run(guest_check, i, part, 1, STAMP);
	used.ns = now() - used.ns;
	return used;
}

/* A VM: it is told when to use its memory, and tells what that took. */
static void be_vm(int fd, int ours)
{
	struct used used;
	char told;

	if (others)
		enter(OTHERS);
	create(features);
	set_memory(1, MEM_GPA, map(pages * PAGE, MAP_PRIVATE, fd), pages * PAGE);
	run(guest_nothing, 0, 1, 1, 0);
	while (read(ours, &told, 1) == 1) {
		used = use();
		check(write(ours, &used, sizeof(used)) == sizeof(used), "write");
	}
	exit(0);
}

static void start_vms(int count, int fd)
{
	int pair[2];

	for (int i = 0; i < count; i++) {
		check(!socketpair(AF_UNIX, SOCK_STREAM, 0, pair), "socketpair");
		if (!fork()) {
			close(pair[0]);
			while (i--)
				close(sockets[i]);
			be_vm(fd, pair[1]);
		}
		close(pair[1]);
		sockets[i] = pair[0];
	}
}

/* One VM after the other. */
static struct used use_all(int count)
{
	struct used used, sum = {};

	for (int i = 0; i < count; i++) {
		check(write(sockets[i], "", 1) == 1, "write");
		if (read(sockets[i], &used, sizeof(used)) != sizeof(used))
			errx(1, "VM %d has ended", i);
		sum.faults += used.faults;
		sum.ns += used.ns;
	}
	return sum;
}

static void end_vms(int count)
{
	for (int i = 0; i < count; i++)
		close(sockets[i]);
	while (wait(NULL) > 0)
		;
}

/* What has been asked for is a number of pages; returns 0, or the error. */
static int reclaim(uint64_t asked)
{
	int fd = open(CGROUP "/memory.reclaim", O_WRONLY), error = 0;
	char text[32];

	check(fd >= 0, CGROUP "/memory.reclaim");
	snprintf(text, sizeof(text), "%llu", asked * PAGE);
	if (write(fd, text, strlen(text)) < 0)
		error = errno;
	close(fd);
	return error;
}

static void play_round(int number, int vms, uint64_t asked, unsigned char *mem,
		       struct used first)
{
	uint64_t before = cached(mem), mapped = of_cgroup("file_mapped") / PAGE;
	uint64_t scanned = of_cgroup("pgscan"), stolen = of_cgroup("pgsteal");
	uint64_t wall = now(), cpu = cpu_time(), left;
	int error = reclaim(asked);
	struct used again;

	cpu = cpu_time() - cpu;
	wall = now() - wall;
	left = cached(mem);
	scanned = of_cgroup("pgscan") - scanned;
	stolen = of_cgroup("pgsteal") - stolen;
	again = use_all(vms);
	printf("{\"vms\": %d, \"global\": %d, \"others\": %d, \"used\": %" PRIu64 ", "
	       "\"round\": %d, \"pages\": %" PRIu64 ", \"cached\": %" PRIu64 ", "
	       "\"mapped\": %" PRIu64 ", \"asked\": %" PRIu64 ", "
	       "\"gone\": %" PRIu64 ", \"error\": %d, "
	       "\"scanned\": %" PRIu64 ", \"stolen\": %" PRIu64 ", "
	       "\"cpu_ns\": %" PRIu64 ", \"wall_ns\": %" PRIu64 ", "
	       "\"first_faults\": %" PRIu64 ", \"first_ns\": %" PRIu64 ", "
	       "\"again_faults\": %" PRIu64 ", \"again_ns\": %" PRIu64 ", "
	       "\"read_again\": %" PRIu64 "}\n",
	       vms, !!features, others, part, number, pages, before, mapped, asked, before - left,
	       error, scanned, stolen, cpu, wall, first.faults, first.ns, again.faults, again.ns,
	       cached(mem) - left);
}

/* The file, all of it, is in the page cache of the cgroup, and nobody has mapped it. */
static void read_in(int fd, unsigned char *mem)
{
	static char buf[1 << 16];
	ssize_t got;

	check(!fsync(fd) && !posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), "fadvise");
	if (cached(mem))
		errx(1, "the file stays in the page cache: is it on tmpfs, or in use?");
	check(!lseek(fd, 0, SEEK_SET), "lseek");
	while ((got = read(fd, buf, sizeof(buf))) > 0)
		;
	check(!got, "read");
}

int main(int argc, char **argv)
{
	uint64_t mib = 32, percent = 50, host, guest_tables;
	int opt, fd, vms = 100, rounds = 1;
	unsigned char *mem;
	struct used first;

	while ((opt = getopt(argc, argv, "n:m:u:p:r:gco")) != -1) {
		if (opt == 'g' || opt == 'c')
			features = opt == 'g' ? PARAMETER : PARAMETERS;
		others |= opt == 'o';
		mib *= opt != '?';
		if (opt == 'n')
			vms = atoi(optarg);
		else if (opt == 'm')
			mib = strtoul(optarg, NULL, 0);
		else if (opt == 'u')
			part = strtoul(optarg, NULL, 0);
		else if (opt == 'p')
			percent = strtoul(optarg, NULL, 0);
		else if (opt == 'r')
			rounds = atoi(optarg);
	}
	if (optind + 1 != argc || vms < 1 || vms > MOST_VMS || mib < 2 || mib > 1024 || mib % 2 ||
	    !part || part > REGION || percent > 100)
		errx(1, "usage: reclaim [-n VMS] [-m MIB (even, 2 to 1024)] [-u USED (1 to 512)] "
		     "[-p PERCENT] [-r ROUNDS] [-g | -c] [-o] FILE");
	pages = mib << 8;
	open_kvm();
	fd = open(argv[optind], O_RDWR);
	check(fd >= 0, argv[optind]);
	if (lseek(fd, 0, SEEK_END) != (off_t)(mib << 20))
		errx(1, "%s is not of %" PRIu64 " MiB", argv[optind], mib);
	enter(CGROUP);
	mem = map(pages * PAGE, MAP_SHARED, fd);
	read_in(fd, mem);
	host = meminfo("PageTables");
	guest_tables = meminfo("SecPageTables");
	start_vms(vms, fd);
	first = use_all(vms);
	printf("{\"vms\": %d, \"global\": %d, \"others\": %d, \"used\": %" PRIu64 ", "
	       "\"host_kib\": %" PRIu64 ", \"guest_kib\": %" PRIu64 ", \"cached\": %" PRIu64 "}\n",
	       vms, !!features, others, part, meminfo("PageTables") - host,
	       meminfo("SecPageTables") - guest_tables, cached(mem));
	for (int i = 1; i <= rounds; i++)
		play_round(i, vms, pages * percent / 100, mem, first);
	end_vms(vms);
	return 0;
}
