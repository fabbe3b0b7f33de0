// SPDX-License-Identifier: GPL-2.0
/*
 * What the page cache holds, on behalf of Global TDP: a file that is mapped may well be
 * in memory, but not in the host's page tables, e.g. a snapshot that a guest is restored
 * from.  Have the host map it, 2MiB at a time, without I/O, without copies and without a
 * fault for each few pages.
 *
 * That is what do_fault_around() does, by the same call.  It maps less at a time, as a
 * process may not touch what is around; for a guest, each page that is mapped saves an
 * exit, too.
 *
 * Nothing here touches the VM's page tables, and nothing that is found here is relied on:
 * what the host has mapped, and still has, is for kvm_tdp_populate() to see, under
 * mmu_lock.  Whoever takes it away in between costs a scan.
 */
#include "global_tdp.h"
#include "gtdp.h"
#include "spte.h"
#include "tdp_host.h"

#include <linux/folio_batch.h>
#include <linux/mm.h>
#include <linux/pagemap.h>
#include <linux/pkeys.h>
#include <linux/userfaultfd_k.h>

/*
 * Is it for the host to map pages that nobody has touched?  Not if userfaultfd is to be
 * told, where the guest's faults would fail, or where to be mapped is to be locked.
 *
 * Nor after a guest's write to a private mapping: it may go on to write, and pages that
 * are mapped before they are written to take a zap and a flush each, too.
 */
static bool gtdp_is_vma_cached(struct vm_area_struct *vma, const struct kvm_page_fault *fault)
{
	if (fault && fault->write && !(vma->vm_flags & VM_SHARED))
		return false;

	/* That has no page cache. */
	if (vma_is_dax(vma))
		return false;

	return vma->vm_ops && vma->vm_ops->map_pages && vma->vm_file &&
	       vma->vm_flags & VM_READ && !vma_pkey(vma) && !userfaultfd_armed(vma) &&
	       !(vma->vm_flags & (VM_IO | VM_PFNMAP | VM_MIXEDMAP | VM_LOCKONFAULT));
}

/* Whether the host has a page table for @hva; mmap_lock keeps the tables above it. */
static bool gtdp_has_host_table(struct mm_struct *mm, unsigned long hva)
{
	guard(irqsave)();

	return tdp_host_mapping(mm, hva, 1).ptep;
}

/* What a fault would map as it is: without I/O, and without asking for more. */
static bool gtdp_is_folio_ready(struct folio *folio)
{
	return folio_test_uptodate(folio) && !folio_test_readahead(folio) &&
	       !folio_test_locked(folio);
}

/*
 * Have the host map one page of those of [@start, @end) that are in the page cache, and
 * thereby make the page table for them all.  Reclaim leaves it there while it is held.
 * A hole that is punched between the lookup and get_user_pages() makes the latter read
 * the page or, for shmem, allocate it.
 */
static bool gtdp_map_one(struct vm_area_struct *vma, unsigned long start, unsigned long end)
{
	pgoff_t first = linear_page_index(vma, start), index = first;
	struct folio_batch fbatch;
	bool mapped = false;
	struct page *page;
	unsigned int i;

	folio_batch_init(&fbatch);
	filemap_get_folios(vma->vm_file->f_mapping, &index, linear_page_index(vma, end - 1),
			   &fbatch);
	for (i = 0; i < folio_batch_count(&fbatch); i++) {
		if (!gtdp_is_folio_ready(fbatch.folios[i]))
			continue;

		index = max(first, fbatch.folios[i]->index) - first;
		mapped = get_user_pages(start + (index << PAGE_SHIFT), 1, FOLL_NOWAIT,
					&page) == 1;
		if (mapped)
			put_page(page);
		break;
	}
	folio_batch_release(&fbatch);

	return mapped;
}

/*
 * Map what the page cache holds of [@start, @end), which is of one page table.  If that
 * does not exist, it is made for those who have asked: it may take reclaim.  Returns
 * false if there was nothing, for sure.
 */
static bool gtdp_map_cached(struct vm_area_struct *vma, unsigned long start,
			    unsigned long end, bool wanted)
{
	struct vm_fault vmf = {
		.vma = vma,
		.gfp_mask = mapping_gfp_mask(vma->vm_file->f_mapping),
		.address = start,
		.real_address = start,
		.pgoff = linear_page_index(vma, start),
	};
	struct file_ra_state *ra = &vma->vm_file->f_ra;
	const unsigned int mmap_miss = READ_ONCE(ra->mmap_miss);

	if (!gtdp_has_host_table(vma->vm_mm, start) &&
	    !(wanted && gtdp_map_one(vma, start, end)))
		return false;

	/* What becomes of the table is for the callee to see, under its lock. */
	vmf.pmd = pmd_off(vma->vm_mm, start);

	/* A page table at most: as much as do_fault_around() may be told to map. */
	rcu_read_lock();
	vma->vm_ops->map_pages(&vmf, vmf.pgoff, linear_page_index(vma, end - 1));
	rcu_read_unlock();

	/*
	 * map_pages() counts what it maps as hits, and hits keep read-around on.  The guest
	 * has not touched these pages: restore the count.
	 */
	WRITE_ONCE(ra->mmap_miss, mmap_miss);
	return true;
}

/* With mmap_lock held for read: what the page cache holds of [@hva, @hva_end). */
static bool gtdp_map_range(struct mm_struct *mm, unsigned long hva, unsigned long hva_end,
			   const struct kvm_page_fault *fault)
{
	struct vm_area_struct *vma;
	unsigned long next;
	bool r = false;

	for ( ; hva < hva_end; hva = next) {
		vma = find_vma_intersection(mm, hva, hva_end);
		if (!vma)
			break;

		hva = max(hva, vma->vm_start);
		next = min3(hva_end, vma->vm_end, (hva & PMD_MASK) + PMD_SIZE);
		if (gtdp_is_vma_cached(vma, fault))
			r |= gtdp_map_cached(vma, hva, next, !fault);
	}

	return r;
}

/*
 * Have the host map what the page cache holds of what is wanted of [@start, @end), which
 * is of one region.  Call it with the VM's mm, and without mmu_lock.
 *
 * Returns 1 if more may be present than before, 0 if not, and -EINTR if the thread is
 * being killed.  For a guest's @fault, don't wait for mmap_lock.
 */
int gtdp_map_page_cache(const struct kvm_tdp_populate *p, gfn_t start, gfn_t end,
			const struct kvm_page_fault *fault)
{
	unsigned int first = start % SPTE_ENT_PER_PAGE, i, run_end;
	struct mm_struct *mm = current->mm;
	unsigned long hva;
	int r = 0;

	if (fault && !mmap_read_trylock(mm))
		return 0;
	if (!fault && mmap_read_lock_killable(mm))
		return -EINTR;

	for_each_wanted_run(p, i, run_end, first, first + (end - start)) {
		hva = __gfn_to_hva_memslot(p->slot, start + i - first);
		r |= gtdp_map_range(mm, hva, hva + ((unsigned long)(run_end - i) << PAGE_SHIFT),
				    fault);
	}

	mmap_read_unlock(mm);
	return r;
}
