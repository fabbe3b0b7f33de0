/* SPDX-License-Identifier: GPL-2.0 */
#ifndef __KVM_X86_MMU_TDP_HOST_H
#define __KVM_X86_MMU_TDP_HOST_H

#include <linux/kvm_host.h>

#include "tdp_populate.h"

/*
 * The bits of a host PTE that decide whether, and how, its page may be mapped.
 * The fault path gets at pages by GUP, which refuses, or treats specially, all
 * but plain user pages; leave anything else to it.  pte_present() is not good
 * enough: it is true for PROT_NONE, whose pfn may be inverted against L1TF.
 * A protection key restricts the thread that touches the page.
 */
#define HOST_PTE_PLAIN		(_PAGE_PRESENT | _PAGE_USER)
#define HOST_PTE_CHECKED	(HOST_PTE_PLAIN | HOST_PTE_WRITABLE | _PAGE_SPECIAL | \
				 _PAGE_PWT | _PAGE_PCD | _PAGE_PAT | _PAGE_PKEY_MASK)

/*
 * Whoever maps a page writable must see to it that the host takes the page for
 * dirty, as what the guest writes is not told when the SPTE is zapped, and is lost
 * if the page is clean by then: reclaim drops it.  The fault path marks the page.
 * Don't do so to pages that nobody may ever write to, e.g. memory that was given
 * back by MADV_FREE would be written to swap then, and a file to its disk.  Map
 * those writable of which the host's PTE says that they are dirty: it is the PTE
 * that tells reclaim, and what makes it a clean one (writeback, MADV_FREE, KSM)
 * notifies, as does what takes it away.
 */
#define HOST_PTE_WRITABLE	(_PAGE_RW | _PAGE_DIRTY)

/* What one host page table, or huge page, maps from a given address on. */
struct host_mapping {
	const pte_t *ptep;	/* the first PTE, NULL if huge or nothing */
	u64 huge_pte;		/* if huge, the PTE of its first page here */
	unsigned int nr;	/* number of pages until its end */
	int level;		/* PG_LEVEL_4K unless huge */
};

static inline u64 host_pte(const struct host_mapping *m, unsigned int i)
{
	if (m->ptep)
		return native_pte_val(READ_ONCE(m->ptep[i]));

	return m->huge_pte ? m->huge_pte + ((u64)i << PAGE_SHIFT) : 0;
}

static inline bool is_host_pte_writable(u64 pte)
{
	return (pte & HOST_PTE_WRITABLE) == HOST_PTE_WRITABLE;
}

static inline bool is_host_pte_plain(u64 pte)
{
	return (pte & HOST_PTE_CHECKED & ~(u64)HOST_PTE_WRITABLE) == HOST_PTE_PLAIN;
}

static inline bool is_host_pte_skipped(const struct kvm_tdp_populate *p, u64 pte)
{
	return p->skip_clean && (pte & _PAGE_RW) && !is_host_pte_writable(pte);
}

static inline kvm_pfn_t host_pte_pfn(u64 pte)
{
	return (pte & PTE_PFN_MASK) >> PAGE_SHIFT;
}

struct host_mapping tdp_host_mapping(struct mm_struct *mm, unsigned long hva, unsigned int max);
bool is_host_pte_usable(const struct kvm_tdp_populate *p, u64 pte);
int tdp_host_find_vmas(struct kvm_tdp_populate *p, unsigned long start, unsigned long end);

/*
 * Check the kind of mapping behind [@first, @last).  Returns 1 if all of it is
 * backed by usable VMAs, 0 if not, -EAGAIN if that can't be told without
 * waiting for mmap_lock.
 *
 * To remove a VMA, the host must zap its range, even if it never was touched,
 * and that can't begin while mmu_lock is held.  It also increments
 * mmu_invalidate_seq, and so the VMAs that were found earlier are still there
 * if the sequence did not move.  A hole may become any kind of VMA without
 * that, hence the insistence on there being none.
 */
static inline int tdp_host_check_vma(struct kvm_tdp_populate *p, gfn_t first, gfn_t last)
{
	unsigned long start = __gfn_to_hva_memslot(p->slot, first);
	unsigned long end = start + ((last - first) << PAGE_SHIFT);

	lockdep_assert_held_read(&p->kvm->mmu_lock);

	if (start >= p->vma_start && end <= p->vma_end &&
	    p->vma_seq == p->kvm->mmu_invalidate_seq)
		return 1;

	return tdp_host_find_vmas(p, start, end);
}

#endif /* __KVM_X86_MMU_TDP_HOST_H */
