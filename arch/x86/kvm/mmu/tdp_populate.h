/* SPDX-License-Identifier: GPL-2.0 */
#ifndef __KVM_X86_MMU_TDP_POPULATE_H
#define __KVM_X86_MMU_TDP_POPULATE_H

#include <linux/kvm_host.h>

#include "mmu_internal.h"

struct tdp_iter;

/*
 * State of a walk that maps what the host has present into one TDP root.  Zero
 * it, set the first fields, call kvm_tdp_populate() until the range is
 * dealt with and kvm_tdp_populate_end() when done.
 */
struct kvm_tdp_populate {
	struct kvm *kvm;
	/* Must stay valid, i.e. kvm->srcu is held since it was looked up. */
	const struct kvm_memory_slot *slot;
	/* The role of the root to fill; the root is made if there is none. */
	union kvm_mmu_page_role role;
	/*
	 * Leave pages that the host maps writable, but clean, to faults: these mark
	 * them dirty, and so can map them writable.
	 */
	bool skip_clean;
	/*
	 * The pages to map, by their place in their 2MiB region, which the range must
	 * not go beyond; all of the range if NULL.  A huge page is mapped as a whole.
	 */
	const unsigned long *wanted;

	/* Results in 4KiB pages, added up over all calls. */
	u64 mapped;	/* mapped when scanned, whoever mapped it */
	u64 installed;	/* of those, mapped by this walk */
	u64 absent;	/* not mapped, because the host has nothing to map */

	/* Page tables not linked yet, and how many it takes; leaf SPTEs go to the first. */
	struct kvm_mmu_page *sps[PT64_ROOT_MAX_LEVEL - 1];
	int nr_sps;
	int nr_wanted_sps;
	/* One more than the node that they were asked for, 0 for any. */
	int node;

	/* The range of VMAs found usable, as of kvm->mmu_invalidate_seq. */
	unsigned long vma_start;
	unsigned long vma_end;
	unsigned long vma_seq;

	/* 4KiB SPTEs less the pfn, by whether the PTE is writable; 0 if not yet made. */
	u64 template[2];
	/* What the bits of a host PTE that matter are if the template fits, or ~0. */
	u64 plain_pte[2];
};

/*
 * Where in its page table the next run of pages that are wanted begins, from @i on, and
 * ends; @stop if there is none up to there.
 */
static inline unsigned int tdp_next_run(const struct kvm_tdp_populate *p, unsigned int i,
					unsigned int stop, unsigned int *end)
{
	*end = stop;
	if (!p->wanted)
		return i;

	i = find_next_bit(p->wanted, stop, i);
	*end = find_next_zero_bit(p->wanted, stop, i);
	return i;
}

#define for_each_wanted_run(p, i, end, first, stop)			\
	for (i = tdp_next_run(p, first, stop, &end); i < stop;		\
	     i = tdp_next_run(p, end, stop, &end))

long kvm_tdp_populate(struct kvm_tdp_populate *p, gfn_t start, gfn_t end);
int kvm_tdp_populate_link(struct kvm_tdp_populate *p, struct tdp_iter *iter,
			  struct kvm_mmu_page *sp, gfn_t gfn);
void kvm_tdp_populate_end(struct kvm_tdp_populate *p);

#endif /* __KVM_X86_MMU_TDP_POPULATE_H */
