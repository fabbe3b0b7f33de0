/*
 * The whole user space of a guest with an assigned NVMe drive: round after round, have the
 * drive copy memory, and check every word of the copy.
 *
 * A round stamps one buffer, writes it to the drive, and reads it back into another; the
 * drive gets both by DMA (O_DIRECT).  A page that it found elsewhere than the CPUs do, or an
 * old one, is a mismatch, as the stamps are of the round.  The buffers change roles then.  In
 * every other round a graphics adapter's memory is mapped and unmapped all the time, which for
 * KVM is a memslot that comes and goes.  When the drive is gone, the CPU copies instead.
 *
 * Beside that, a thread checks and rewrites memory that no device uses.
 *
 * The kernel's modules are in /modules, in the order in which they are to be loaded.
 */
#define _GNU_SOURCE
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/mman.h>

#include "guest.h"

#define SIZE		(64ul << 20)	/* that goes through the drive in a round */
#define CHUNK		(1ul << 20)	/* of it at a time */
#define KEPT		(32ul << 20)	/* memory that no device uses */
#define KEPT_TURN	64		/* pages of it between two pauses */
#define PAUSE_NS	1000000
#define DRIVE		"/dev/nvme0n1"
#define DRIVE_SECONDS	60		/* for it to come up, or to be seen to be gone */
#define SHOWN		10		/* mismatches told in full, the rest are only counted */

static atomic_bool toggling;
static atomic_ulong toggles;
static atomic_ulong mismatches;

/* Differs for each word of each page in each round. */
static uint64_t stamp_of(uint64_t index, uint64_t round)
{
	uint64_t x = index + (round << 40);

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
	x = (x ^ x >> 27) * 0x94d049bb133111eb;
	return x ^ x >> 31;
}

static void stamp(uint64_t *words, uint64_t first, uint64_t count, uint64_t round)
{
	for (uint64_t i = 0; i < count; i++)
		words[i] = stamp_of(first + i, round);
}

static void check(const char *what, const uint64_t *words, uint64_t first, uint64_t count,
		  uint64_t round)
{
	for (uint64_t i = 0; i < count; i++) {
		uint64_t wanted = stamp_of(first + i, round);

		if (words[i] == wanted)
			continue;
		if (atomic_fetch_add(&mismatches, 1) < SHOWN)
			printf("stamps: MISMATCH %s word %" PRIu64 " round %" PRIu64
			       ": %016" PRIx64 ", not %016" PRIx64 "\n",
			       what, first + i, round, words[i], wanted);
	}
}

static char *memory(size_t size)
{
	void *mem = mmap(NULL, size, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

	if (mem == MAP_FAILED) {
		printf("drive: FAILED no memory\n");
		pause();
	}
	return mem;
}

static void *keep(void *arg)
{
	uint64_t *words = (uint64_t *)memory(KEPT);

	stamp(words, 0, KEPT / 8, 0);
	for (uint64_t round = 0; ; round++) {
		for (uint64_t page = 0; page < KEPT / PAGE; page++) {
			check("kept", words + page * WORDS, page * WORDS, WORDS, round);
			stamp(words + page * WORDS, page * WORDS, WORDS, round + 1);
			if (page % KEPT_TURN == 0)
				pause_for(PAUSE_NS);
		}
	}
	return arg;
}

static void *toggle(void *arg)
{
	int fd = open_adapter();
	uint16_t command;

	if (fd < 0 || pread(fd, &command, 2, PCI_COMMAND) != 2) {
		printf("drive: FAILED no graphics adapter\n");
		return arg;
	}
	for (;; pause_for(PAUSE_NS)) {
		if (!toggling)
			continue;
		if (toggle_memory(fd, &command))
			toggles++;
	}
}

static int open_drive(void)
{
	for (int i = 0; i < DRIVE_SECONDS * 10; i++) {
		int fd = open(DRIVE, O_RDWR | O_DIRECT);

		if (fd >= 0)
			return fd;
		pause_for(100000000);
	}
	printf("drive: FAILED there is none: %s\n", strerror(errno));
	return -1;
}

static bool is_gone(void)
{
	for (int i = 0; i < DRIVE_SECONDS * 10; i++) {
		if (access(DRIVE, F_OK))
			return true;
		pause_for(100000000);
	}
	return false;
}

/* Whether the drive did it. */
static bool by_drive(int fd, char *from, char *to)
{
	for (size_t at = 0; at < SIZE; at += CHUNK)
		if (pwrite(fd, from + at, CHUNK, at) != CHUNK)
			return false;
	for (size_t at = 0; at < SIZE; at += CHUNK)
		if (pread(fd, to + at, CHUNK, at) != CHUNK)
			return false;
	return true;
}

static void *run(void *arg)
{
	char *from = memory(SIZE), *to = memory(SIZE);
	int fd = open_drive();

	printf("drive: up\n");
	for (uint64_t round = 0; ; round++) {
		unsigned long before = toggles;
		char *other = from;

		toggling = round % 2;
		stamp((uint64_t *)from, 0, SIZE / 8, round);
		if (fd >= 0 && !by_drive(fd, from, to)) {
			const char *why = strerror(errno);

			printf("drive: %s, by %s\n", is_gone() ? "gone" : "FAILED", why);
			close(fd);
			fd = -1;
		}
		if (fd < 0)
			memcpy(to, from, SIZE);
		check(fd < 0 ? "copied" : "read", (uint64_t *)to, 0, SIZE / 8, round);
		toggling = false;
		printf("drive: round %" PRIu64 " by %s toggles %lu bytes %lu mismatches %lu\n",
		       round, fd < 0 ? "cpu" : "drive", toggles - before, SIZE, mismatches);
		from = to;
		to = other;
	}
	return arg;
}

int main(void)
{
	void *(*const jobs[])(void *) = { run, keep, toggle };
	pthread_t threads[3];

	setvbuf(stdout, NULL, _IOLBF, 0);
	mount_all();
	load_modules("drive");
	for (int i = 0; i < 3; i++)
		if (pthread_create(&threads[i], NULL, jobs[i], NULL))
			printf("drive: FAILED no thread\n");
	pause();
	return 1;
}
