/*
 * The whole user space of the demo's guest: keep writing and checking stamped pages.
 *
 * Every CPU owns a share of the pages and walks it in a scattered order. The n-th write
 * goes to page n % pages, so what a page must hold follows from the number of writes
 * alone: a page that migration lost, mixed up or brought in an old state is a mismatch.
 *
 * With "toggle", the memory of a graphics adapter is mapped and unmapped as well, all the
 * time, which for KVM is a memslot that comes and goes.
 *
 * The kernel hands "stamp_mib=N" and "toggle=1" of its command line over in the environment.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <glob.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define PAGE		4096
#define WORDS		4	/* stamped words a page */
#define CHECKS		256	/* pages read a turn */
#define WRITES		2	/* pages written a turn: few enough for precopy to converge */
#define TURN_NS		4000000	/* pause between turns */
#define SCATTER		1000003	/* prime: visits every page once before it comes round */
#define TOGGLE_NS	1000000
#define TOGGLES		1000	/* is how many are told of at a time */
#define PCI_COMMAND	4
#define PCI_MEMORY	2	/* in it: answers to memory accesses */
#define VGA		"/sys/bus/pci/devices/*/boot_vga"
#define SHOWN		10	/* mismatches told in full, the rest are only counted */

struct worker {
	char		*base;
	uint64_t	pages;
	uint64_t	writes;
	uint64_t	passes;
	uint64_t	mismatches;
	int		cpu;
	pthread_t	thread;
};

static uint64_t page_of(const struct worker *w, uint64_t turn)
{
	return turn % w->pages * SCATTER % w->pages;
}

static volatile uint64_t *word_of(const struct worker *w, uint64_t page, int word)
{
	return (volatile uint64_t *)(w->base + page * PAGE + word * (PAGE / WORDS));
}

static uint64_t stamp_of(const struct worker *w, uint64_t page, int word, uint64_t generation)
{
	uint64_t x = (uint64_t)w->cpu << 56 ^ page << 28 ^ generation << 2 ^ word;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
	x = (x ^ x >> 27) * 0x94d049bb133111eb;
	return x ^ x >> 31;
}

static void write_next(struct worker *w)
{
	uint64_t page = page_of(w, w->writes);
	uint64_t generation = w->writes / w->pages;

	for (int word = 0; word < WORDS; word++)
		*word_of(w, page, word) = stamp_of(w, page, word, generation);
	w->writes++;
}

static void check(struct worker *w, uint64_t turn)
{
	uint64_t generation = (w->writes - turn - 1) / w->pages;
	uint64_t page = page_of(w, turn);

	for (int word = 0; word < WORDS; word++) {
		uint64_t wanted = stamp_of(w, page, word, generation);
		uint64_t found = *word_of(w, page, word);

		if (found == wanted)
			continue;
		if (w->mismatches++ < SHOWN)
			printf("stamps: MISMATCH cpu %d page %" PRIu64 " word %d generation %" PRIu64
			       ": %016" PRIx64 ", not %016" PRIx64 "\n",
			       w->cpu, page, word, generation, found, wanted);
	}
}

static void *work(void *arg)
{
	const struct timespec pause = { .tv_nsec = TURN_NS };
	struct worker *w = arg;
	cpu_set_t cpus;

	CPU_ZERO(&cpus);
	CPU_SET(w->cpu, &cpus);
	if (sched_setaffinity(0, sizeof(cpus), &cpus))
		printf("stamps: cpu %d cannot be chosen\n", w->cpu);

	while (w->writes < w->pages)
		write_next(w);
	printf("stamps: cpu %d ready pages %" PRIu64 "\n", w->cpu, w->pages);

	for (;;) {
		for (uint64_t turn = 0; turn < w->pages; turn++) {
			check(w, turn);
			if (turn % CHECKS)
				continue;
			for (int i = 0; i < WRITES; i++)
				write_next(w);
			nanosleep(&pause, NULL);
		}
		w->passes++;
		printf("stamps: cpu %d pass %" PRIu64 " pages %" PRIu64
		       " mismatches %" PRIu64 "\n",
		       w->cpu, w->passes, w->pages, w->mismatches);
	}
	return NULL;
}

/* Returns the configuration space of the graphics adapter, or -1. */
static int open_adapter(void)
{
	char path[256];
	glob_t found;
	int fd = -1;

	mkdir("/sys", 0755);
	mount("sysfs", "/sys", "sysfs", 0, NULL);
	if (!glob(VGA, 0, NULL, &found)) {
		snprintf(path, sizeof(path), "%.*sconfig",
			 (int)(strlen(found.gl_pathv[0]) - strlen("boot_vga")), found.gl_pathv[0]);
		fd = open(path, O_RDWR);
	}
	globfree(&found);
	return fd;
}

static void *toggle(void *arg)
{
	const struct timespec pause = { .tv_nsec = TOGGLE_NS };
	int fd = open_adapter();
	uint16_t command;

	if (fd < 0 || pread(fd, &command, 2, PCI_COMMAND) != 2) {
		printf("toggle: no graphics adapter\n");
		return arg;
	}
	for (uint64_t done = 1; ; done++) {
		command ^= PCI_MEMORY;
		if (pwrite(fd, &command, 2, PCI_COMMAND) != 2)
			printf("toggle: failed\n");
		if (!(done % TOGGLES))
			printf("toggle: %" PRIu64 "\n", done);
		nanosleep(&pause, NULL);
	}
}

int main(void)
{
	const char *text = getenv("stamp_mib");
	uint64_t size = (text ? strtoull(text, NULL, 0) : 64) << 20;
	static struct worker workers[CPU_SETSIZE];
	pthread_t toggler;
	cpu_set_t cpus;
	char *base;
	int count;

	setvbuf(stdout, NULL, _IOLBF, 0);
	sched_getaffinity(0, sizeof(cpus), &cpus);
	count = CPU_COUNT(&cpus);
	base = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (base == MAP_FAILED) {
		printf("stamps: no memory\n");
		return 1;
	}
	for (int i = 0; i < count; i++) {
		struct worker *w = &workers[i];

		w->cpu = i;
		w->pages = size / PAGE / count;
		w->base = base + i * w->pages * PAGE;
		if (pthread_create(&w->thread, NULL, work, w)) {
			printf("stamps: no thread for cpu %d\n", i);
			return 1;
		}
	}
	if (getenv("toggle") && pthread_create(&toggler, NULL, toggle, NULL))
		printf("toggle: no thread\n");
	pthread_join(workers[0].thread, NULL);
	return 1;
}
