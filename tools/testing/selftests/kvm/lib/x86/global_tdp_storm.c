// SPDX-License-Identifier: GPL-2.0
/*
 * Whoever drops mmu_lock has flushed what it zapped.  If not, somebody else
 * finds nothing to zap, hence nothing to flush, and gives the page away while a
 * TLB still maps it.
 *
 * One thread has the host invalidate a range of many memslots, most of which has
 * page tables, but no pages: long to walk, without anything to flush.  Another
 * one takes away a single page of that range at a random time.  A vCPU has used
 * the page just before, and so a TLB may have it.  When the page is gone, KVM
 * must have flushed TLBs since, no matter who zapped it, and where the other
 * thread is.
 *
 * KVM's statistics tell: what a TLB has can be seen on few machines, as the host
 * interrupts the CPUs that may have the page in their own TLBs, and emulated
 * CPUs forget everything then.  Nobody else flushes this VM's TLBs, or hardly
 * ever: it has no follower, and its vCPU rests.
 */
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <time.h>

#include <linux/falloc.h>
#include <linux/mman.h>

#include "test_util.h"
#include "kvm_util.h"
#include "processor.h"
#include "global_tdp_storm.h"

#define STORM_SIZE	SZ_128M
#define STORM_PAGES	(STORM_SIZE / PAGE_SIZE)
#define STORM_WINDOW	SZ_512M

static struct {
	struct kvm_vm *vm;
	struct kvm_vcpu *vcpu;
	struct gtdp_areas areas;
	struct gtdp_layout layout;
	struct gtdp_mem mem;
	enum gtdp_backing backing;
	u64 tag;
	struct gtdp_storm_counts counts;
	int pagemap;

	/* The other thread, and what it is to do next. */
	pthread_t thread;
	sem_t go, done;
	void (*invalidate)(void);
	void *hva;
	size_t size;
	bool running, stop;
	/* How long that took last time, in ns. */
	u64 time;
} storm;

static u64 below(struct kvm_random_state *rng, u64 end)
{
	return kvm_random_u64(rng) % end;
}

static off_t file_offset(void *hva)
{
	return hva - storm.mem.map;
}

static void punch(void *hva, size_t size)
{
	int r = fallocate(storm.mem.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
			  file_offset(hva), size);

	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("fallocate()", r));
}

static void discard(void *hva, size_t size)
{
	int r = madvise(hva, size, MADV_DONTNEED);

	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("madvise()", r));
}

static void discard_all(void)
{
	discard(storm.hva, storm.size);
}

static void punch_all(void)
{
	punch(storm.hva, storm.size);
}

static void protect_all(void)
{
	int r = mprotect(storm.hva, storm.size, PROT_READ);

	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("mprotect()", r));
	r = mprotect(storm.hva, storm.size, PROT_READ | PROT_WRITE);
	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("mprotect()", r));
}

static void replace_all(void)
{
	void *map = mmap(storm.hva, storm.size, PROT_READ | PROT_WRITE,
			 MAP_SHARED | MAP_FIXED, storm.mem.fd, file_offset(storm.hva));

	TEST_ASSERT(map == storm.hva, __KVM_SYSCALL_ERROR("mmap()", -1));
}

/*
 * Of private memory, only this leaves the address space to others meanwhile;
 * pages of a file are taken without it.
 */
static void (* const private_ways[])(void) = { discard_all };
static void (* const file_ways[])(void) = { discard_all, punch_all, protect_all, replace_all };

static u64 now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * NSEC_PER_SEC + time.tv_nsec;
}

static void *invalidator(void *arg)
{
	u64 began;

	for (;;) {
		sem_wait(&storm.go);
		if (storm.stop)
			return NULL;

		began = now();
		WRITE_ONCE(storm.running, true);
		storm.invalidate();
		WRITE_ONCE(storm.running, false);
		storm.time = now() - began;
		sem_post(&storm.done);
	}
}

void gtdp_storm_init(void)
{
	/* Without a follower, which maps, zaps and flushes when it likes. */
	storm.vm = gtdp_vm_create(KVM_GLOBAL_TDP_FAULT_AROUND | KVM_GLOBAL_TDP_POPULATE,
				  1, &storm.vcpu);
	gtdp_areas_init(&storm.areas, storm.vm, STORM_WINDOW);
	storm.pagemap = open_path_or_exit("/proc/self/pagemap", O_RDONLY);
	sem_init(&storm.go, 0, 0);
	sem_init(&storm.done, 0, 0);
	pthread_create(&storm.thread, NULL, invalidator, NULL);
}

static void drop_layout(void)
{
	int i;

	for (i = 0; i < storm.layout.nr; i++)
		gtdp_piece_delete(storm.vm, &storm.layout.pieces[i]);
	if (storm.layout.nr)
		gtdp_mem_free(&storm.mem);
	storm.layout.nr = 0;
}

struct gtdp_storm_counts gtdp_storm_end(void)
{
	storm.stop = true;
	sem_post(&storm.go);
	pthread_join(storm.thread, NULL);
	drop_layout();
	kvm_vm_free(storm.vm);
	close(storm.pagemap);
	return storm.counts;
}

/* A page is read through one of these; return their number. */
static int find_usable(struct gtdp_piece *usable[])
{
	struct gtdp_piece *piece = storm.layout.pieces;
	int nr = 0;

	for (; piece < storm.layout.pieces + storm.layout.nr; piece++) {
		if (!piece->as_id && piece->nr_reached)
			usable[nr++] = piece;
	}

	return nr;
}

static void new_layout(struct kvm_random_state *rng)
{
	struct gtdp_piece *usable[GTDP_MAX_PIECES];
	int tries = 1000;
	u64 i;

	drop_layout();
	storm.backing = kvm_random_bool(rng) ? GTDP_ANON : GTDP_MEMFD;
	TEST_ASSERT(gtdp_mem_alloc(&storm.mem, storm.backing, STORM_SIZE, 0), "No memory");

	do {
		TEST_ASSERT(tries--, "No layout has two memslots to read from");
		gtdp_layout_choose(&storm.layout, &storm.areas, rng, STORM_PAGES);
	} while (storm.layout.nr < 2 || !find_usable(usable));
	storm.counts.layouts[storm.layout.kind]++;

	/* Page tables for all of it, but nothing in them. */
	for (i = 0; i < STORM_PAGES; i += GTDP_REGION_PAGES)
		gtdp_stamp(storm.mem.hva + i * PAGE_SIZE, 1, 0);
	for (i = 0; i < storm.layout.nr; i++) {
		gtdp_piece_set(storm.vm, &storm.layout.pieces[i], storm.mem.hva);
		gtdp_piece_populate(storm.vm, &storm.layout.pieces[i]);
	}
	discard(storm.mem.hva, STORM_SIZE);
	if (storm.backing == GTDP_MEMFD)
		punch(storm.mem.hva, STORM_SIZE);
}

static bool is_present(void *hva)
{
	u64 entry;

	TEST_ASSERT_EQ(pread(storm.pagemap, &entry, sizeof(entry),
			     (uintptr_t)hva / PAGE_SIZE * sizeof(entry)), sizeof(entry));
	return entry & BIT_ULL(63);
}

/* Returns false if the page may be still there. */
static bool take(struct kvm_random_state *rng, void *hva)
{
	if (storm.backing == GTDP_MEMFD) {
		punch(hva, PAGE_SIZE);
		return true;
	}

	if (below(rng, 4)) {
		discard(hva, PAGE_SIZE);
		return true;
	}

	madvise(hva, PAGE_SIZE, MADV_PAGEOUT);
	return !is_present(hva);
}

static u64 nr_flushes(void)
{
	return vm_get_stat(storm.vm, remote_tlb_flush_requests);
}

/* What the other thread is to do: with all of the memory, or a part that has the page. */
static void choose_invalidation(struct kvm_random_state *rng, u64 page)
{
	u64 first = below(rng, 2) * below(rng, page + 1), nr;

	nr = page + 1 - first + below(rng, STORM_PAGES - page);
	if (below(rng, 4))
		nr = STORM_PAGES - first;
	storm.hva = storm.mem.hva + first * PAGE_SIZE;
	storm.size = nr * PAGE_SIZE;
	storm.invalidate = storm.backing == GTDP_ANON ?
			   private_ways[below(rng, ARRAY_SIZE(private_ways))] :
			   file_ways[below(rng, ARRAY_SIZE(file_ways))];
}

/*
 * Near the end of a memslot, so that it is often the next memslot that is being
 * walked when the page is taken.
 */
static u64 choose_page(struct kvm_random_state *rng, struct gtdp_piece *piece)
{
	u64 from_end = below(rng, piece->nr_reached);

	if (below(rng, 4))
		from_end = below(rng, 1 + from_end / 64);
	return piece->nr_reached - 1 - from_end;
}

static void take_one(struct kvm_random_state *rng, struct gtdp_piece *piece)
{
	u64 page = choose_page(rng, piece), before, after;
	void *hva = storm.mem.hva + (piece->first + page) * PAGE_SIZE;
	bool gone, raced;

	gtdp_stamp(hva, 1, ++storm.tag);
	choose_invalidation(rng, piece->first + page);

	/*
	 * The vCPU uses the page after this, so that any flush before does not
	 * count: another one is needed for the page to be gone.
	 */
	before = nr_flushes();
	gtdp_run(storm.vcpu, GTDP_CHECK, piece->gva + page * PAGE_SIZE, 1, storm.tag);

	sem_post(&storm.go);
	usleep(below(rng, 1 + storm.time * 5 / 4 / 1000));
	gone = take(rng, hva);
	raced = READ_ONCE(storm.running);
	after = nr_flushes();
	storm.counts.pages++;
	storm.counts.raced += raced;
	TEST_ASSERT(!gone || after > before,
		    "Page %lu was taken away, but TLBs were not flushed%s (layout '%s', seed 0x%x)",
		    piece->first + page, raced ? ", while more is being invalidated" : "",
		    gtdp_layout_names[storm.layout.kind], kvm_random_seed);

	sem_wait(&storm.done);
}

void gtdp_storm(struct kvm_random_state *rng, int nr)
{
	struct gtdp_piece *usable[GTDP_MAX_PIECES];

	new_layout(rng);
	for (; nr; nr--)
		take_one(rng, usable[below(rng, find_usable(usable))]);
}
