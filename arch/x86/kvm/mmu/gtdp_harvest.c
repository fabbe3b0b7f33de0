// SPDX-License-Identifier: GPL-2.0
/*
 * KVM_HARVEST_ACCESSED: which pages a guest has accessed.  CPUs set Accessed bits in the
 * TDP page tables anyway.  So a VMM that records what its guest needs first, to have that
 * mapped the next time, does not have to let the guest fault on each page.
 *
 * Test the bits, copy the result to userspace, and only then clear the bits that are set in
 * it.  If the copy fails, the bits are as they were.  An access between test and clear is not
 * lost: the result has its page.
 *
 * Nothing else is remembered: what the host has aged or zapped before is not found.
 */
#include "global_tdp.h"
#include "gtdp.h"
#include "spte.h"
#include "tdp_iter.h"
#include "tdp_mmu.h"

#include <linux/memory_hotplug.h>
#include <linux/page_idle.h>

struct gtdp_harvest {
	struct kvm *kvm;
	int as_id;
	gfn_t start;
	gfn_t end;
	/* Clear the Accessed bits of the pages in @accessed, instead of adding to these. */
	bool clear;
	/* Bit 0 is that of @start.  It is on the stack: 512 bytes. */
	DECLARE_BITMAP(accessed, GTDP_PAGES_PER_BATCH);
};

/* Idle page tracking and reclaim look for accesses, too, and won't find them in the SPTE. */
static void mark_young(kvm_pfn_t pfn)
{
	struct page *page = pfn_to_online_page(pfn);
	struct folio *folio;

	/* Device memory does not age, and its struct page may go. */
	if (!page || PageReserved(page))
		return;

	folio = page_folio(page);
	if (!folio_test_young(folio))
		folio_set_young(folio);
	if (folio_test_idle(folio))
		folio_clear_idle(folio);
}

/*
 * All of a huge page was accessed, a part of which may be harvested at a time: clear its bit
 * with its last page.  Clear it only if all of the part is in the result, as the huge page
 * may have been mapped after the test.
 */
static void harvest_spte(struct gtdp_harvest *h, u64 *sptep, u64 spte, gfn_t gfn, int level)
{
	const u64 mask = SPTE_MMU_PRESENT_MASK | shadow_accessed_mask;
	const gfn_t end = gfn + KVM_PAGES_PER_HPAGE(level);
	unsigned long first, stop;

	if ((spte & mask) != mask)
		return;

	first = max(gfn, h->start) - h->start;
	stop = min(end, h->end) - h->start;
	if (!h->clear) {
		bitmap_set(h->accessed, first, stop - first);
	} else if (end <= h->end && find_next_zero_bit(h->accessed, stop, first) == stop) {
		mark_young(spte_to_pfn(spte));
		while ((spte & mask) == mask &&
		       !try_cmpxchg64(sptep, &spte, spte & ~shadow_accessed_mask))
			;
	}
}

static void harvest_table(struct gtdp_harvest *h, u64 *spt, gfn_t gfn, gfn_t end)
{
	u64 *sptep;

	for ( ; gfn < end; gfn++) {
		sptep = spt + gfn % SPTE_ENT_PER_PAGE;
		harvest_spte(h, sptep, READ_ONCE(*sptep), gfn, PG_LEVEL_4K);
	}
}

static void harvest_root(struct gtdp_harvest *h, struct kvm_mmu_page *root)
{
	struct tdp_iter iter;

	for_each_tdp_pte_min_level(iter, h->kvm, root, PG_LEVEL_2M, h->start, h->end) {
		if (!is_shadow_present_pte(iter.old_spte))
			continue;

		if (is_last_spte(iter.old_spte, iter.level))
			harvest_spte(h, rcu_dereference(iter.sptep), iter.old_spte, iter.gfn,
				     iter.level);
		else if (iter.level == PG_LEVEL_2M)
			harvest_table(h, spte_to_child_sp(iter.old_spte)->spt,
				      max(iter.gfn, h->start), gtdp_region_end(iter.gfn, h->end));
	}
}

/*
 * RCU keeps page tables that are zapped meanwhile.  A page that a valid root maps stays
 * until mmu_lock is dropped, even if it is being invalidated: before the host frees it,
 * mmu_lock is acquired for write, by the zap itself or after it.  The pages of an invalid
 * root may not stay: the deletion of their memslot does not wait for readers after it has
 * zapped them.
 */
static void harvest_roots(struct gtdp_harvest *h)
{
	struct kvm_mmu_page *root;

	guard(read_lock)(&h->kvm->mmu_lock);
	guard(rcu)();

	list_for_each_entry_rcu(root, &h->kvm->arch.tdp_mmu_roots, link) {
		if (!root->role.invalid && kvm_mmu_page_as_id(root) == h->as_id)
			harvest_root(h, root);
	}
}

/* Harvest the first pages of @range, which moves forward. */
static int harvest_pages(struct kvm *kvm, struct kvm_harvest_accessed *range)
{
	const unsigned long nr = min_t(u64, range->size >> PAGE_SHIFT, GTDP_PAGES_PER_BATCH);
	const size_t bytes = DIV_ROUND_UP(nr, BITS_PER_U64) * sizeof(u64);
	struct gtdp_harvest h = {
		.kvm = kvm,
		.as_id = range->as_id,
		.start = gpa_to_gfn(range->gpa),
		.end = gpa_to_gfn(range->gpa) + nr,
	};

	if (!kvm_gtdp_has(kvm, KVM_GLOBAL_TDP_HARVEST))
		return -EOPNOTSUPP;

	harvest_roots(&h);
	if (copy_to_user(u64_to_user_ptr(range->bitmap), h.accessed, bytes))
		return -EFAULT;

	if (!bitmap_empty(h.accessed, nr)) {
		h.clear = true;
		harvest_roots(&h);
	}

	range->accessed += (u64)bitmap_weight(h.accessed, nr) << PAGE_SHIFT;
	range->bitmap += bytes;
	range->gpa += nr << PAGE_SHIFT;
	range->size -= nr << PAGE_SHIFT;
	return 0;
}

int kvm_vm_ioctl_harvest_accessed(struct kvm *kvm, void __user *argp)
{
	struct kvm_harvest_accessed __user *user_range = argp;
	struct kvm_harvest_accessed range;
	int r = 0;

	if (!kvm_gtdp_has(kvm, KVM_GLOBAL_TDP_HARVEST))
		return -EOPNOTSUPP;

	if (copy_from_user(&range, user_range, sizeof(range)))
		return -EFAULT;

	if (!gtdp_is_bitmap_aligned(range.gpa, range.bitmap) || !PAGE_ALIGNED(range.size) ||
	    range.gpa + range.size < range.gpa || range.flags ||
	    range.as_id >= kvm_arch_nr_memslot_as_ids(kvm) ||
	    memchr_inv(range.reserved, 0, sizeof(range.reserved)))
		return -EINVAL;

	/* Clear nothing if userspace can't be told how far the call has got. */
	range.accessed = 0;
	if (put_user(range.accessed, &user_range->accessed))
		return -EFAULT;

	/* Get on by one step at least, however many signals there are. */
	while (range.size && !r) {
		r = harvest_pages(kvm, &range);
		if (!r && range.size && signal_pending(current))
			r = -EINTR;
		cond_resched();
	}

	/* A CPU sets the bit of a page again only if the page is not in its TLB. */
	if (range.accessed)
		kvm_flush_remote_tlbs(kvm);

	if (copy_to_user(user_range, &range, sizeof(range)))
		return -EFAULT;

	return r;
}
