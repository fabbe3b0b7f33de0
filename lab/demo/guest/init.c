/*
 * The whole user space of the demo's guest: keep writing and checking stamped pages.
 *
 * Every CPU owns a share of the pages, in two parts: a few pages that are written to all the
 * time, several times in a round of precopy, and the others, now and then. In each part, the
 * n-th write goes to page n % pages, in a scattered order, so what a page must hold follows
 * from the number of writes alone: a page that migration lost, mixed up or brought in an old
 * state is a mismatch. A page is checked before it is written to, too; so none gets away.
 * A check is of a few words of the page, others in each pass; of some pages, others in each
 * pass, it is of all.
 *
 * With "toggle", the memory of a graphics adapter is mapped and unmapped as well, all the
 * time, which for KVM is a memslot that comes and goes.
 *
 * The kernel hands "stamp_mib=N" and "toggle=1" of its command line over in the environment.
 */
#define _GNU_SOURCE
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "guest.h"

#define STEP		128	/* every so manieth word is checked */
#define WHOLE		32	/* every so manieth page is checked wholly */
#define CHECKS		256	/* pages read a turn */
#define WRITES		4	/* pages of each part written a turn: precopy must converge */
#define HOT		128	/* one page of so many is of the part that is written often */
#define TURN_NS		4000000	/* pause between turns */
#define SCATTER		1000003	/* prime: visits every page once before it comes round */
#define TOGGLE_NS	1000000
#define TOGGLES		1000	/* is how many are told of at a time */
#define SHOWN		10	/* mismatches told in full, the rest are only counted */

struct part {
	char		*base;
	uint64_t	pages;
	uint64_t	writes;
};

struct worker {
	struct part	hot, cold;
	uint64_t	passes;
	uint64_t	mismatches;
	int		cpu;
	pthread_t	thread;
};

/* Of the n-th turn over a part. */
static uint64_t page_of(const struct part *part, uint64_t turn)
{
	return turn % part->pages * SCATTER % part->pages;
}

static volatile uint64_t *words_of(const struct part *part, uint64_t page)
{
	return (volatile uint64_t *)(part->base + page * PAGE);
}

/* What the first word of a page holds; the others count on from there. */
static uint64_t stamp_of(const uint64_t *words, uint64_t generation)
{
	uint64_t x = (uintptr_t)words << 20 ^ generation;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
	x = (x ^ x >> 27) * 0x94d049bb133111eb;
	return x ^ x >> 31;
}

static void check(struct worker *w, struct part *part, uint64_t page, uint64_t generation,
		  bool whole)
{
	volatile uint64_t *words = words_of(part, page);
	uint64_t stamp = stamp_of((uint64_t *)words, generation);
	int step = whole ? 1 : STEP;

	for (int i = whole ? 0 : w->passes % STEP; i < WORDS; i += step) {
		uint64_t found = words[i];

		if (found == stamp + i)
			continue;
		if (w->mismatches++ < SHOWN)
			printf("stamps: MISMATCH cpu %d page %" PRIu64 " word %d generation %" PRIu64
			       ": %016" PRIx64 ", not %016" PRIx64 "\n",
			       w->cpu, page, i, generation, found, stamp + i);
	}
}

static void write_next(struct worker *w, struct part *part)
{
	uint64_t page = page_of(part, part->writes);
	uint64_t generation = part->writes / part->pages;
	volatile uint64_t *words = words_of(part, page);
	uint64_t stamp = stamp_of((uint64_t *)words, generation);

	if (generation)
		check(w, part, page, generation - 1, false);
	for (int i = 0; i < WORDS; i++)
		words[i] = stamp + i;
	part->writes++;
}

/* Check the page of this turn: it was written to in the last turn over the part that got there. */
static void check_turn(struct worker *w, struct part *part, uint64_t turn)
{
	uint64_t generation = (part->writes - turn - 1) / part->pages;
	bool whole = turn % WHOLE == w->passes % WHOLE;

	check(w, part, page_of(part, turn), generation, whole);
}

static void pause_and_write(struct worker *w)
{
	for (int i = 0; i < WRITES; i++) {
		write_next(w, &w->hot);
		write_next(w, &w->cold);
	}
	pause_for(TURN_NS);
}

static void *work(void *arg)
{
	struct worker *w = arg;
	uint64_t pages = w->hot.pages + w->cold.pages;
	cpu_set_t cpus;

	CPU_ZERO(&cpus);
	CPU_SET(w->cpu, &cpus);
	if (sched_setaffinity(0, sizeof(cpus), &cpus))
		printf("stamps: cpu %d cannot be chosen\n", w->cpu);

	while (w->hot.writes < w->hot.pages)
		write_next(w, &w->hot);
	while (w->cold.writes < w->cold.pages)
		write_next(w, &w->cold);
	printf("stamps: cpu %d ready pages %" PRIu64 "\n", w->cpu, pages);

	for (;;) {
		for (uint64_t turn = 0; turn < w->cold.pages; turn++) {
			check_turn(w, &w->cold, turn);
			if (turn < w->hot.pages)
				check_turn(w, &w->hot, turn);
			if (turn % CHECKS == 0)
				pause_and_write(w);
		}
		w->passes++;
		printf("stamps: cpu %d pass %" PRIu64 " pages %" PRIu64
		       " mismatches %" PRIu64 "\n",
		       w->cpu, w->passes, pages, w->mismatches);
	}
	return NULL;
}

static void *toggle(void *arg)
{
	int fd = open_adapter();
	uint16_t command;

	if (fd < 0 || pread(fd, &command, 2, PCI_COMMAND) != 2) {
		printf("toggle: no graphics adapter\n");
		return arg;
	}
	for (uint64_t done = 1; ; done++) {
		if (!toggle_memory(fd, &command))
			printf("toggle: failed\n");
		if (!(done % TOGGLES))
			printf("toggle: %" PRIu64 "\n", done);
		pause_for(TOGGLE_NS);
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
	mount_all();
	sched_getaffinity(0, sizeof(cpus), &cpus);
	count = CPU_COUNT(&cpus);
	base = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (base == MAP_FAILED) {
		printf("stamps: no memory\n");
		return 1;
	}
	for (int i = 0; i < count; i++) {
		uint64_t pages = size / PAGE / count;
		struct worker *w = &workers[i];

		w->cpu = i;
		w->hot.pages = pages / HOT;
		w->hot.base = base + i * pages * PAGE;
		w->cold.pages = pages - w->hot.pages;
		w->cold.base = w->hot.base + w->hot.pages * PAGE;
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
