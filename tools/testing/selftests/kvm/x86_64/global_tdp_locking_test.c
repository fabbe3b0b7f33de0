// SPDX-License-Identifier: GPL-2.0
/*
 * With Global TDP, the dirty log is cleared with mmu_lock held for read, i.e.
 * while vCPUs fault on the very same pages.  Whatever comes first, a page that
 * can be written without a fault must be in the log: a vCPU maps pages by
 * writing to them, the main thread clears the log of all of them again and
 * again meanwhile; then the vCPU writes to each page once more, with nobody
 * clearing anything, and each page must be in the log.
 *
 * Each of the two needs a CPU, or there is no race to be lost.
 */
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "test_util.h"
#include "kvm_util.h"
#include "processor.h"
#include "global_tdp.h"

#define NR_PAGES	128
#define ROUNDS		40

static struct gtdp_mem mem;
static struct kvm_vm *vm;
static struct kvm_vcpu *vcpu;
static bool done;

static unsigned long bitmap[NR_PAGES / (8 * sizeof(long))];

static void write_pages(void)
{
	gtdp_run(vcpu, GTDP_WRITE, GTDP_GPA, NR_PAGES, 0);
}

static void *vcpu_thread(void *arg)
{
	pthread_barrier_t *barrier = arg;
	int i;

	for (i = 0; i < ROUNDS; i++) {
		pthread_barrier_wait(barrier);
		write_pages();
		WRITE_ONCE(done, true);
		pthread_barrier_wait(barrier);
		write_pages();
		pthread_barrier_wait(barrier);
	}

	return NULL;
}

/* With SPTEs that the host has zapped, or with write-protected ones. */
static bool run(bool zap)
{
	pthread_barrier_t barrier;
	uint64_t cleared = 0;
	pthread_t thread;
	int i, r, round;

	vm = gtdp_vm_create(KVM_GLOBAL_TDP_POPULATE, 1, &vcpu);
	vm_enable_cap(vm, KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2,
		      KVM_DIRTY_LOG_MANUAL_PROTECT_ENABLE);
	gtdp_prefault_code(vcpu);
	gtdp_mem_alloc(&mem, GTDP_ANON, NR_PAGES * PAGE_SIZE, 0);
	gtdp_add_slot(vm, GTDP_SLOT, KVM_MEM_LOG_DIRTY_PAGES, GTDP_GPA, &mem);

	pthread_barrier_init(&barrier, NULL, 2);
	pthread_create(&thread, NULL, vcpu_thread, &barrier);

	for (round = 0; round < ROUNDS; round++) {
		if (zap) {
			r = madvise(mem.hva, mem.size, MADV_DONTNEED);
			TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("madvise()", r));
		}
		r = madvise(mem.hva, mem.size, MADV_POPULATE_WRITE);
		TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("madvise()", r));
		WRITE_ONCE(done, false);
		pthread_barrier_wait(&barrier);

		do {
			memset(bitmap, 0xff, sizeof(bitmap));
			kvm_vm_clear_dirty_log(vm, GTDP_SLOT, bitmap, 0, NR_PAGES);
			cleared++;
		} while (!READ_ONCE(done));

		/* Now the vCPU writes once more, and then waits. */
		pthread_barrier_wait(&barrier);
		pthread_barrier_wait(&barrier);

		memset(bitmap, 0, sizeof(bitmap));
		kvm_vm_get_dirty_log(vm, GTDP_SLOT, bitmap);
		for (i = 0; i < ARRAY_SIZE(bitmap); i++)
			TEST_ASSERT(!~bitmap[i], "Round %d: word %d of the log is %#lx",
				    round, i, bitmap[i]);
	}

	pthread_join(thread, NULL);
	pthread_barrier_destroy(&barrier);
	ksft_print_msg("the log was cleared %lu times in %d rounds\n", cleared, ROUNDS);

	kvm_vm_free(vm);
	gtdp_mem_free(&mem);
	return true;
}

static bool test_clear_vs_map(void)
{
	return run(true);
}

static bool test_clear_vs_write(void)
{
	return run(false);
}

static const struct gtdp_test tests[] = {
	{ "clearing the log while pages are mapped loses no write", test_clear_vs_map },
	{ "clearing the log while pages become writable loses no write", test_clear_vs_write },
};

int main(void)
{
	gtdp_require(KVM_GLOBAL_TDP_POPULATE);
	gtdp_run_tests(tests, ARRAY_SIZE(tests));
}
