/* SPDX-License-Identifier: GPL-2.0 */
#ifndef __KVM_X86_MMU_TDP_FILL_H
#define __KVM_X86_MMU_TDP_FILL_H

#include "tdp_host.h"

static inline bool is_populated_writable(struct kvm_tdp_populate *p, u64 pte)
{
	return is_host_pte_writable(pte) && !(p->slot->flags & KVM_MEM_READONLY);
}

/* These may change whenever mmu_lock is dropped. */
static inline void tdp_fill_begin(struct kvm_tdp_populate *p)
{
	p->template[0] = 0;
	p->template[1] = 0;
	p->plain_pte[0] = ~0ull;
	p->plain_pte[1] = ~0ull;
}

unsigned int tdp_fill_table(struct kvm_tdp_populate *p,
			    struct kvm_mmu_page *root, u64 *spt,
			    gfn_t start, gfn_t end);
void tdp_restore_writable(const struct kvm_memory_slot *slot, u64 *sptep,
			  u64 old_spte);
unsigned int tdp_fill_holes(struct kvm_tdp_populate *p, struct kvm_mmu_page *sp,
			    gfn_t start, gfn_t end, unsigned int *installed);
bool tdp_table_complete(const struct kvm_tdp_populate *p, const u64 *spt,
			gfn_t start, gfn_t end);

#endif /* __KVM_X86_MMU_TDP_FILL_H */
