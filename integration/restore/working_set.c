// SPDX-License-Identifier: GPL-2.0
/*
 * Record which pages a guest needs at first, and have them mapped when it is restored the
 * next time.  A snapshot file, mapped privately, is the memory of one guest or more, each of
 * which reads the same part of it: of every other 2 MiB, six tenths, in runs of eight pages.
 * What does it take until they have done so, if nothing is prepared, or all of the file, or
 * what was recorded?
 *
 *	gcc -O2 -isystem build/headers/usr/include -o working_set integration/restore/working_set.c
 *	./working_set [-m MIB] [-c] [-n CLONES] FILE [WAY]
 *
 * If there is no FILE, a guest is run to make it: -m MIB of memory, 64 by default.  FILE.set
 * is recorded anew; integration/rust tells its format, and reads it.  With -c, FILE is dropped
 * from the page cache before each way.  With -n, that many guests are restored at once.  What
 * the kernel can't do is left out.  The output is a JSON object for each way, after one for the
 * record.
 */
#define _GNU_SOURCE
#include "vm.h"

#define RUN		8ULL		/* pages */
#define REGION		512ULL
#define MOST_CLONES	100
#define WORD		64ULL		/* pages that a word of a bitmap is for */

enum what { NOTHING, EVERYTHING, RECORDED };

static const struct way {
	const char *name;
	uint64_t features;	/* of Global TDP; 0: it is turned off */
	enum what prepared;
} ways[] = {
	{ "nothing, off" },
	{ "nothing", KVM_GLOBAL_TDP_FAULT_AROUND | KVM_GLOBAL_TDP_PAGE_CACHE },
	{ "everything", KVM_GLOBAL_TDP_POPULATE | KVM_GLOBAL_TDP_PAGE_CACHE, EVERYTHING },
	{ "recorded", KVM_GLOBAL_TDP_POPULATE | KVM_GLOBAL_TDP_PAGE_CACHE, RECORDED },
	{ }
};

/* What a guest took, in faults and, to prepare it, in the time of a CPU. */
struct took {
	uint64_t faults, prepare_ns;
};

static int cold, clones = 1;
static uint64_t pages;
static uint64_t *set;

static size_t set_size(void)
{
	return (pages + WORD - 1) / WORD * 8;
}

static uint64_t cpu_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
	return ts.tv_sec * 1000000000ULL + ts.tv_nsec;
}

/* The guest's own choice, which is the same each time. */
static int is_needed(uint64_t first)
{
	return first / REGION % 2 && first / RUN * 2654435761U % 1000 < 600;
}

static uint64_t use(void)
{
	uint64_t faults = 0;

	for (uint64_t i = 0; i < pages; i += RUN)
		faults += is_needed(i) ? run(guest_check, i, RUN, 1, STAMP) : 0;
	return faults;
}

/* The next pages, from @first on, that are in the set; returns how many. */
static uint64_t next_run(uint64_t *first)
{
	uint64_t end;

	while (*first < pages && !(set[*first / WORD] >> *first % WORD & 1))
		++*first;
	for (end = *first; end < pages && set[end / WORD] >> end % WORD & 1; end++)
		;
	return end - *first;
}

/* The file is read, all that is wanted at once, and waited for. */
static void read_ahead(char *mem)
{
	static const int advices[] = { MADV_WILLNEED, MADV_POPULATE_READ };
	uint64_t first, nr;

	for (int i = 0; i < 2; i++) {
		for (first = 0; (nr = next_run(&first)); first += nr)
			check(!madvise(mem + first * PAGE, nr * PAGE, advices[i]), "madvise");
	}
}

static void prepare(enum what what, char *mem)
{
	struct kvm_populate_memory range = {
		.gpa = MEM_GPA, .size = pages * PAGE, .flags = KVM_POPULATE_PAGE_CACHE,
	};

	if (what == NOTHING)
		return;
	/* That of the others is not to change. */
	if (what == EVERYTHING) {
		set = map((set_size() + PAGE - 1) & -PAGE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
		memset(set, 0xff, set_size());
	}
	if (cold)
		read_ahead(mem);
	if (what == RECORDED) {
		range.flags |= KVM_POPULATE_BITMAP;
		range.bitmap = (uintptr_t)set;
	}
	IOCTL(vm_fd, KVM_POPULATE_MEMORY, &range);
}

static char *restore(uint64_t features, int fd)
{
	char *mem;

	create(features);
	mem = map(pages * PAGE, MAP_PRIVATE, fd);
	check(!madvise(mem, pages * PAGE, MADV_NOHUGEPAGE), "madvise");
	set_memory(1, MEM_GPA, mem, pages * PAGE);
	return mem;
}

static uint64_t checksum(uint64_t sum, const void *data, size_t size)
{
	const unsigned char *byte = data;

	while (size--)
		sum = (sum ^ *byte++) * 0x100000001b3;
	return sum;
}

static void save(const char *path)
{
	const struct {
		char magic[8];
		uint32_t version, page_size, regions, periods;
		uint64_t gpa, size;
	} head = { "GTDPWSET", 1, PAGE, 1, 1, MEM_GPA, pages * PAGE };
	uint64_t sum = checksum(0xcbf29ce484222325, &head, sizeof(head));
	FILE *file = fopen(path, "w");

	sum = checksum(sum, set, set_size());
	check(file && fwrite(&head, sizeof(head), 1, file) == 1 &&
	      fwrite(set, set_size(), 1, file) == 1 && fwrite(&sum, sizeof(sum), 1, file) == 1 &&
	      !fclose(file), path);
}

/* A guest is restored, does what it does at first, and tells what that was. */
static void record(int fd, const char *path)
{
	struct kvm_harvest_accessed range = {
		.gpa = MEM_GPA, .size = pages * PAGE, .bitmap = (uintptr_t)set,
	};
	uint64_t faults, start;

	restore(KVM_GLOBAL_TDP_HARVEST | KVM_GLOBAL_TDP_FAULT_AROUND | KVM_GLOBAL_TDP_PAGE_CACHE,
		fd);
	faults = use();
	start = now();
	IOCTL(vm_fd, KVM_HARVEST_ACCESSED, &range);
	printf("{\"way\": \"record\", \"pages\": %lu, \"ns\": %lu, \"faults\": %lu}\n",
	       (uint64_t)(range.accessed / PAGE), now() - start, faults);
	save(path);
	exit(0);
}

static uint64_t meminfo(const char *name)
{
	uint64_t kib = 0;
	char line[256];
	FILE *file = fopen("/proc/sys/vm/stat_refresh", "r");

	/* Add up what CPUs have counted, if allowed to. */
	if (file) {
		check(!fgets(line, sizeof(line), file), "stat_refresh");
		fclose(file);
	}
	file = fopen("/proc/meminfo", "r");
	check(!!file, "/proc/meminfo");
	while (fgets(line, sizeof(line), file)) {
		if (!strncmp(line, name, strlen(name)))
			kib = strtoull(line + strlen(name), NULL, 10);
	}
	fclose(file);
	return kib;
}

/* Be one of the clones; it stays until it is told to go. */
static void be_clone(const struct way *way, int fd, int go, int told)
{
	struct took took = { };
	uint64_t start = cpu_ns();
	char *mem, byte;

	check(read(go, &byte, 1) == 1, "read");
	mem = restore(way->features, fd);
	prepare(way->prepared, mem);
	took.prepare_ns = cpu_ns() - start;
	took.faults = use();
	check(write(told, &took, sizeof(took)) == sizeof(took), "write");
	check(read(go, &byte, 1) == 1, "read");
	use();
	check(write(told, &took, sizeof(took)) == sizeof(took), "write");
	check(read(go, &byte, 1) >= 0, "read");
	exit(0);
}

/* All guests at once, up to the end of what they do next; returns the sums. */
static struct took let_go(const struct way *way, int go, int told)
{
	struct took took, sum = { };
	char bytes[MOST_CLONES] = "";

	check(write(go, bytes, clones) == clones, "write");
	for (int i = 0; i < clones; i++) {
		if (read(told, &took, sizeof(took)) != sizeof(took))
			errx(1, "%s: not all guests came to the end", way->name);
		sum.faults += took.faults;
		sum.prepare_ns += took.prepare_ns;
	}
	return sum;
}

static void measure(const struct way *way, int fd)
{
	uint64_t tables = meminfo("PageTables:"), stage2 = meminfo("SecPageTables:"), ns;
	int go[2], told[2], status;
	struct took took;

	if (cold)
		check(!fsync(fd) && !posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), "fadvise");
	check(!pipe(go) && !pipe(told), "pipe");
	for (int i = 0; i < clones; i++) {
		if (!fork()) {
			close(go[1]);
			be_clone(way, fd, go[0], told[1]);
		}
	}
	close(told[1]);
	ns = now();
	took = let_go(way, go[1], told[0]);
	ns = now() - ns;
	tables = meminfo("PageTables:") - tables;
	stage2 = meminfo("SecPageTables:") - stage2;
	printf("{\"way\": \"%s\", \"clones\": %d, \"ns\": %lu, \"prepare_ns\": %lu, "
	       "\"faults\": %lu, \"tables_kib\": %lu, \"stage2_kib\": %lu, ", way->name, clones,
	       ns, took.prepare_ns, took.faults, tables, stage2);
	ns = now();
	let_go(way, go[1], told[0]);
	printf("\"again_ns\": %lu}\n", now() - ns);
	close(go[1]);
	for (int i = 0; i < clones; i++)
		check(wait(&status) > 0 && !status, "a guest has failed");
	close(go[0]);
	close(told[0]);
}

static void make_snapshot(int fd)
{
	check(!ftruncate(fd, pages * PAGE), "ftruncate");
	create(0);
	set_memory(1, MEM_GPA, map(pages * PAGE, MAP_SHARED, fd), pages * PAGE);
	run(guest, 0, pages, 1, STAMP);
	exit(0);
}

/* Have all of the file in the page cache. */
static void warm_up(int fd)
{
	char *mem = map(pages * PAGE, MAP_SHARED, fd);

	check(!madvise(mem, pages * PAGE, MADV_POPULATE_READ), "madvise");
	munmap(mem, pages * PAGE);
}

int main(int argc, char **argv)
{
	uint64_t mib = 64, can;
	char path[4096];
	int opt, fd;
	off_t size;

	while ((opt = getopt(argc, argv, "m:cn:")) != -1) {
		cold |= opt == 'c';
		mib *= opt != '?';
		if (opt == 'm')
			mib = strtoul(optarg, NULL, 0);
		else if (opt == 'n')
			clones = atoi(optarg);
	}
	if (optind >= argc || !mib || mib > 1024 || clones < 1 || clones > MOST_CLONES)
		errx(1, "usage: working_set [-m MIB (1 to 1024)] [-c] [-n CLONES (1 to %d)] FILE [WAY]",
		     MOST_CLONES);
	pages = mib << 8;
	set = map((set_size() + PAGE - 1) & -PAGE, MAP_SHARED | MAP_ANONYMOUS, -1);
	open_kvm();
	fd = open_snapshot(argv[optind], mib, &size);
	if (!size && in_child())
		make_snapshot(fd);
	if (!cold)
		warm_up(fd);
	snprintf(path, sizeof(path), "%s.set", argv[optind]);
	can = ioctl(kvm_fd, KVM_CHECK_EXTENSION, KVM_CAP_GLOBAL_TDP);
	if (!(can & KVM_GLOBAL_TDP_HARVEST))
		warnx("this kernel can't tell what a guest accesses: no record");
	else if (in_child())
		record(fd, path);
	for (const struct way *way = ways; way->name; way++) {
		if ((way->features & can) == way->features &&
		    (way->prepared != RECORDED || can & KVM_GLOBAL_TDP_HARVEST) &&
		    (!argv[optind + 1] || !strcmp(argv[optind + 1], way->name))) {
			fflush(stdout);
			measure(way, fd);
		}
	}
	return 0;
}
