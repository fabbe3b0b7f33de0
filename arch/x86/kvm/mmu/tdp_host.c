// SPDX-License-Identifier: GPL-2.0
/* What the host has mapped: its page tables, and VMAs; see tdp_populate.c. */
#include "mmu.h"
#include "tdp_host.h"

#include <linux/magic.h>

/*
 * Make a huge entry look like the PTE of a page in it.  The PAT bit of a huge
 * entry is elsewhere, and bit 7 says that it is huge: swap one for the other.
 */
static u64 huge_to_pte(u64 entry, u64 offset)
{
	u64 pat = entry & _PAGE_PAT_LARGE;

	entry &= ~(u64)(_PAGE_PAT_LARGE | _PAGE_PSE);
	return (entry | (pat ? _PAGE_PAT : 0)) + (offset & PAGE_MASK);
}

/*
 * Look up what the host maps at @hva, at most @max pages.  Call with IRQs off,
 * and use the result before enabling them, as the host frees page tables after
 * the notifier has ended; see the rules at host_pfn_mapping_level().  PTEs are
 * good for longer, until mmu_lock is dropped: take them, and deal with those that
 * take some time, e.g. to look for shadow pages, with IRQs on.
 */
struct host_mapping tdp_host_mapping(struct mm_struct *mm, unsigned long hva, unsigned int max)
{
	struct host_mapping m = { .level = PG_LEVEL_4K };
	pgd_t pgd;
	p4d_t p4d;
	pud_t pud;
	pmd_t pmd;

	lockdep_assert_irqs_disabled();

	/* Never reaches over the end of a PMD: the caller asks again. */
	m.nr = min_t(unsigned long, max, (PMD_SIZE - (hva & ~PMD_MASK)) >> PAGE_SHIFT);

	pgd = READ_ONCE(*pgd_offset(mm, hva));
	if (pgd_none(pgd))
		return m;

	p4d = READ_ONCE(*p4d_offset(&pgd, hva));
	if (p4d_none(p4d) || !p4d_present(p4d))
		return m;

	pud = READ_ONCE(*pud_offset(&p4d, hva));
	if (!(pud_val(pud) & _PAGE_PRESENT))
		return m;

	if (pud_leaf(pud)) {
		m.huge_pte = huge_to_pte(pud_val(pud), hva & ~PUD_MASK);
		m.level = PG_LEVEL_1G;
		return m;
	}

	pmd = READ_ONCE(*pmd_offset(&pud, hva));
	if (!(pmd_val(pmd) & _PAGE_PRESENT))
		return m;

	if (pmd_leaf(pmd)) {
		/* What is special in a VMA that is_vma_usable() is the huge zero page. */
		m.huge_pte = huge_to_pte(pmd_val(pmd) & ~_PAGE_SPECIAL, hva & ~PMD_MASK);
		m.level = PG_LEVEL_2M;
		return m;
	}

	m.ptep = pte_offset_kernel(&pmd, hva);
	return m;
}

/*
 * Whether the fault path, too, would map the page of a PTE.  Of what is special,
 * that is the zero page.
 */
bool is_host_pte_usable(const struct kvm_tdp_populate *p, u64 pte)
{
	if (is_host_pte_skipped(p, pte))
		return false;

	return is_host_pte_plain(pte) ||
	       (is_host_pte_plain(pte & ~(u64)_PAGE_SPECIAL) &&
		is_zero_pfn(host_pte_pfn(pte)));
}

/*
 * Some mappings can not be told from their PTEs.  secretmem has no predicate
 * that modules can call, but it has a file system of its own.
 *
 * DAX maps pages of a device: PTEs tell neither that, nor whether the device's
 * memory may be cached, and may outlive the device.
 */
static bool is_vma_usable(struct vm_area_struct *vma)
{
	if (vma->vm_flags & (VM_IO | VM_PFNMAP | VM_MIXEDMAP))
		return false;

	if (vma_is_dax(vma))
		return false;

	return !vma->vm_file ||
	       file_inode(vma->vm_file)->i_sb->s_magic != SECRETMEM_MAGIC;
}

/* The slow part of tdp_host_check_vma(): ask, and remember what is found. */
int tdp_host_find_vmas(struct kvm_tdp_populate *p, unsigned long start, unsigned long end)
{
	struct mm_struct *mm = p->kvm->mm;
	unsigned long addr = start;
	struct vm_area_struct *vma;
	struct vma_iterator vmi;

	if (!mmap_read_trylock(mm))
		return -EAGAIN;

	vma_iter_init(&vmi, mm, start);
	for_each_vma_range(vmi, vma, end) {
		if (vma->vm_start > addr || !is_vma_usable(vma))
			break;
		addr = vma->vm_end;
	}

	mmap_read_unlock(mm);

	if (addr < end)
		return 0;

	p->vma_start = start;
	p->vma_end = addr;
	p->vma_seq = p->kvm->mmu_invalidate_seq;
	return 1;
}
