/* SPDX-License-Identifier: GPL-2.0 */
#ifndef __KVM_X86_MMU_TDP_POPULATE_H
#define __KVM_X86_MMU_TDP_POPULATE_H

#include <linux/kvm_host.h>

#include "mmu_internal.h"

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
	/* Nobody waits for it: leave memory to others, see may_charge(). */
	bool background;

	/* Results in 4KiB pages, added up over all calls. */
	u64 mapped;	/* mapped when scanned, whoever mapped it */
	u64 installed;	/* of those, mapped by this walk */
	u64 absent;	/* not mapped, because the host has nothing to map */

	/* Page tables not linked yet: one to be filled with leafs, one empty. */
	struct kvm_mmu_page *leaf_sp;
	struct kvm_mmu_page *table_sp;
	bool want_leaf_sp;
	bool want_table_sp;
	/* One more than the node that they were asked for, 0 for any. */
	int node;

	/* The range of VMAs found usable, as of kvm->mmu_invalidate_seq. */
	unsigned long vma_start;
	unsigned long vma_end;
	unsigned long vma_seq;

	/* 4KiB SPTEs less the pfn, by whether the PTE is writable; 0 if not yet made. */
	u64 template[2];
	/* What the bits of a host PTE that matter are if the template fits. */
	u64 plain_pte[2];
	/* Writable SPTEs are subject to mmu_try_to_unsync_pages(). */
	bool tracked;
};

long kvm_tdp_populate(struct kvm_tdp_populate *p, gfn_t start, gfn_t end);
void kvm_tdp_populate_end(struct kvm_tdp_populate *p);

#endif /* __KVM_X86_MMU_TDP_POPULATE_H */
