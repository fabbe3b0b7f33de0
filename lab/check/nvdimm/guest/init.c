/*
 * The whole user space of a guest with an NVDIMM: read all of it, then write it, round after
 * round.
 *
 * Its last page is not written: there the host, whose memory it is, too, counts up when the
 * guest is to go on.  The first time, all other pages are read; then, each time, stamped, which
 * ends with a flush, and read back.  A word's stamp is its number and that of the round.
 *
 * The kernel's modules are in /modules, in the order in which they are to be loaded.
 */
#define _GNU_SOURCE
#include <inttypes.h>
#include <stdlib.h>

#include "guest.h"

#define NVDIMM		"/dev/pmem0"
#define CHUNK		(1l << 20)
#define ROUND_SHIFT	40
#define UP_SECONDS	60
#define POLL_NS		10000000

static uint64_t *buffer;
static off_t size;	/* without the last page */
static int fd;

static uint64_t stamp_of(off_t at, uint64_t round)
{
	return round << ROUND_SHIFT | at / 8;
}

static void fail(const char *what)
{
	printf("nvdimm: FAILED %s: %s\n", what, strerror(errno));
	for (;;)
		pause();
}

static void open_nvdimm(void)
{
	for (int i = 0; i < UP_SECONDS * 10; i++, pause_for(100000000)) {
		fd = open(NVDIMM, O_RDWR | O_DIRECT);
		if (fd >= 0)
			break;
	}
	if (fd < 0)
		fail("there is none");
	size = lseek(fd, 0, SEEK_END) - PAGE;
}

static void wait_for(uint64_t count)
{
	for (; ; pause_for(POLL_NS)) {
		if (pread(fd, buffer, PAGE, size) != PAGE)
			fail("read of the last page");
		if (buffer[0] >= count)
			return;
	}
}

static off_t length_at(off_t at)
{
	return size - at < CHUNK ? size - at : CHUNK;
}

static uint64_t mismatches(uint64_t round)
{
	uint64_t wrong = 0;

	for (off_t at = 0; at < size; at += CHUNK) {
		off_t length = length_at(at);

		if (pread(fd, buffer, length, at) != length)
			fail("read");
		for (off_t i = 0; i < length; i += 8)
			wrong += buffer[i / 8] != stamp_of(at + i, round);
	}
	return wrong;
}

static void stamp(uint64_t round)
{
	for (off_t at = 0; at < size; at += CHUNK) {
		off_t length = length_at(at);

		for (off_t i = 0; i < length; i += 8)
			buffer[i / 8] = stamp_of(at + i, round);
		if (pwrite(fd, buffer, length, at) != length)
			fail("write");
	}
	if (fsync(fd))
		fail("flush");
}

int main(void)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	mount_all();
	load_modules("nvdimm");
	buffer = aligned_alloc(PAGE, CHUNK);
	if (!buffer)
		fail("no memory");
	memset(buffer, 0, CHUNK);
	open_nvdimm();
	printf("nvdimm: up\n");
	for (uint64_t round = 0; ; round++) {
		wait_for(round + 1);
		if (round)
			stamp(round);
		printf("nvdimm: round %" PRIu64 " mismatches %" PRIu64 "\n",
		       round, mismatches(round));
	}
}
