// SPDX-License-Identifier: GPL-2.0
/*
 * Fill one page table of 4KiB SPTEs from the host's, on behalf of a walk of
 * tdp_populate.c's: a new one by plain stores, the holes of one that is in use by
 * compare-exchange.
 *
 * All SPTEs of a memslot that are alike but for the pfn are made from one template.
 * Host PTEs that it fits, i.e. nearly all, take some instructions each; the others
 * are slow: they are collected with IRQs off, and dealt with afterwards.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include "mmu.h"
#include "mmu_internal.h"
#include "spte.h"
#include "tdp_fill.h"

/*
 * Make the template for PTEs like the given one, which is_host_pte_usable().  All
 * but the pfn is the same for all pages of a memslot, for as long as mmu_lock is
 * held.
 */
static void make_template(struct kvm_tdp_populate *p, struct kvm_mmu_page *root,
			  gfn_t gfn, u64 pte)
{
	const bool writable = is_populated_writable(p, pte);
	const bool rw = is_host_pte_writable(pte);
	kvm_pfn_t pfn = host_pte_pfn(pte);
	u64 spte;

	spte = make_populate_spte(p->kvm, root, p->slot, PG_LEVEL_4K, gfn, pfn, writable);
	p->template[rw] = spte ^ ((u64)pfn << PAGE_SHIFT);
	if (!writable || !p->tracked)
		p->plain_pte[rw] = HOST_PTE_PLAIN |
				   (pte & HOST_PTE_WRITABLE);
}

/* The SPTE for a host PTE that the template does not fit as is. */
static noinline u64 make_slow_spte(struct kvm_tdp_populate *p, struct kvm_mmu_page *root,
				   gfn_t gfn, u64 pte)
{
	const bool rw = is_host_pte_writable(pte);
	u64 spte;

	if (!(pte & _PAGE_PRESENT) || !is_host_pte_usable(p, pte))
		return SHADOW_NONPRESENT_VALUE;

	if (!p->template[rw])
		make_template(p, root, gfn, pte);
	spte = p->template[rw] | (pte & PTE_PFN_MASK);

	/*
	 * Shadow pages can be neither created nor synchronized while mmu_lock
	 * is held for read.
	 */
	if (p->tracked && is_populated_writable(p, pte) &&
	    mmu_try_to_unsync_pages(p->kvm, p->slot, gfn, false, true))
		spte &= ~(PT_WRITABLE_MASK | shadow_mmu_writable_mask);

	return spte;
}

/* What is left of a PTE's checked bits, if the template fits, is nothing. */
static __always_inline u64 read_plain(const pte_t *ptep, u64 plain)
{
	return native_pte_val(READ_ONCE(*ptep)) ^ plain;
}

/*
 * Make SPTEs of PTEs for as long as they are plain, and as writable as the first
 * one, and return how many were.  This is where the time goes: six instructions
 * a page, plus the loop and the check, hence both are done for four at a time.
 */
static noinline unsigned int fill_plain(struct kvm_tdp_populate *p, u64 *spt,
					const pte_t *ptep, unsigned long nr)
{
	const bool rw = nr && is_host_pte_writable(native_pte_val(READ_ONCE(*ptep)));
	const u64 plain = p->plain_pte[rw], template = p->template[rw];
	const u64 pfn_mask = PTE_PFN_MASK, checked = HOST_PTE_CHECKED;
	unsigned long i;

	for (i = 0; i + 4 <= nr; i += 4) {
		u64 pte0 = read_plain(ptep + i, plain);
		u64 pte1 = read_plain(ptep + i + 1, plain);
		u64 pte2 = read_plain(ptep + i + 2, plain);
		u64 pte3 = read_plain(ptep + i + 3, plain);

		if (unlikely((pte0 | pte1 | pte2 | pte3) & checked))
			break;

		spt[i] = (pte0 & pfn_mask) | template;
		spt[i + 1] = (pte1 & pfn_mask) | template;
		spt[i + 2] = (pte2 & pfn_mask) | template;
		spt[i + 3] = (pte3 & pfn_mask) | template;
	}

	for ( ; i < nr; i++) {
		u64 pte = read_plain(ptep + i, plain);

		if (pte & checked)
			break;

		spt[i] = (pte & pfn_mask) | template;
	}

	return i;
}

static bool is_host_pte_present(const pte_t *ptep)
{
	return native_pte_val(READ_ONCE(*ptep)) & _PAGE_PRESENT;
}

/* Leave out PTEs for as long as they are absent, and return how many were. */
static noinline unsigned int fill_absent(u64 *spt, const pte_t *ptep, unsigned long nr)
{
	unsigned long i;

	for (i = 0; i < nr; i++) {
		if (is_host_pte_present(ptep + i))
			break;
		spt[i] = SHADOW_NONPRESENT_VALUE;
	}

	return i;
}

/*
 * Make the template for a plain PTE of which there is none.  If that fits, as it
 * does unless write tracking wants a closer look at each page, return true.
 */
static bool try_template(struct kvm_tdp_populate *p, struct kvm_mmu_page *root,
			 gfn_t gfn, u64 pte)
{
	const bool rw = is_host_pte_writable(pte);

	if (p->template[rw] || !is_host_pte_plain(pte) || is_host_pte_skipped(p, pte))
		return false;

	make_template(p, root, gfn, pte);
	return p->plain_pte[rw] == (pte & HOST_PTE_CHECKED);
}

/*
 * Take the PTEs of [@i, @stop).  Make SPTEs of those that the template fits while
 * at it, which is as quick as to copy them; leave others as they are, and note
 * which these are, and which is the first.  Returns the number of absent pages.
 */
static unsigned int fill_from_host(struct kvm_tdp_populate *p, struct kvm_mmu_page *root,
				   u64 *spt, unsigned int i, unsigned int stop,
				   gfn_t gfn, unsigned long *slow,
				   unsigned int *first_slow)
{
	unsigned long hva = __gfn_to_hva_memslot(p->slot, gfn), flags;
	unsigned int nr_absent = 0, j, n;
	struct host_mapping m;

	local_irq_save(flags);
	while (i < stop) {
		m = tdp_host_mapping(p->kvm, hva, stop - i);

		for (j = 0; j < m.nr; j++) {
			if (m.ptep) {
				if (!is_host_pte_present(m.ptep + j)) {
					n = fill_absent(spt + i + j, m.ptep + j, m.nr - j);
					nr_absent += n;
					j += n;
				}
				j += fill_plain(p, spt + i + j, m.ptep + j, m.nr - j);
			}
			if (j == m.nr)
				break;

			spt[i + j] = host_pte(&m, j);
			if (m.ptep && try_template(p, root, gfn + j, spt[i + j])) {
				j--;
			} else {
				__set_bit(i + j, slow);
				*first_slow = min(*first_slow, i + j);
			}
		}

		i += m.nr;
		gfn += m.nr;
		hva += (unsigned long)m.nr << PAGE_SHIFT;
	}
	local_irq_restore(flags);

	return nr_absent;
}

unsigned int __tdp_nr_wanted(const struct kvm_tdp_populate *p, gfn_t start, gfn_t end)
{
	unsigned int first = start & (SPTE_ENT_PER_PAGE - 1), i, run_end, nr = 0;

	for_each_wanted_run(p, i, run_end, first, first + (end - start))
		nr += run_end - i;

	return nr;
}

/*
 * Fill what is wanted of [@start, @end) of a page table that no one else can see
 * yet: plain stores are enough, the compare-exchange that links it orders them.
 * Returns the number of pages that were present.
 */
unsigned int tdp_fill_table(struct kvm_tdp_populate *p,
			    struct kvm_mmu_page *root, u64 *spt,
			    gfn_t start, gfn_t end)
{
	DECLARE_BITMAP(slow, SPTE_ENT_PER_PAGE) = {};
	unsigned int first = start & (SPTE_ENT_PER_PAGE - 1), i, run_end;
	unsigned int stop = first + (end - start), nr_absent = 0, nr = 0;
	unsigned int first_slow = stop, filled = 0;

	for_each_wanted_run(p, i, run_end, first, stop) {
		memset64(spt + filled, SHADOW_NONPRESENT_VALUE, i - filled);
		nr_absent += fill_from_host(p, root, spt, i, run_end, start + i - first,
					    slow, &first_slow);
		nr += run_end - i;
		filled = run_end;
	}
	memset64(spt + filled, SHADOW_NONPRESENT_VALUE, SPTE_ENT_PER_PAGE - filled);

	i = first_slow;
	for_each_set_bit_from(i, slow, stop) {
		spt[i] = make_slow_spte(p, root, start + i - first, spt[i]);
		nr_absent += !is_shadow_present_pte(spt[i]);
	}

	return nr - nr_absent;
}

/*
 * When dirty logging ends, pages stay write-protected until a write to each of
 * them has faulted, and fast_page_fault() made it writable again.  Do so ahead,
 * by compare-exchange, too: logging can't begin anew while SRCU is held.
 */
#define SPTE_COMPLETE	(SPTE_MMU_PRESENT_MASK | PT_WRITABLE_MASK)

static bool is_stale_wrprot(const struct kvm_memory_slot *slot, u64 spte)
{
	return !kvm_slot_dirty_track_enabled(slot) && is_mmu_writable_spte(spte) &&
	       !is_writable_pte(spte) && !is_access_track_spte(spte);
}

/* The first test is there for speed only: it tells for most. */
static bool is_spte_complete(const struct kvm_memory_slot *slot, u64 spte)
{
	return (spte & SPTE_COMPLETE) == SPTE_COMPLETE ||
	       (is_shadow_present_pte(spte) && !is_stale_wrprot(slot, spte));
}

void tdp_restore_writable(const struct kvm_memory_slot *slot, u64 *sptep,
			  u64 old_spte)
{
	if (is_stale_wrprot(slot, old_spte))
		try_cmpxchg64(sptep, &old_spte, old_spte | PT_WRITABLE_MASK);
}

/* Pass by holes for as long as their PTEs are absent, return how many were. */
static noinline unsigned int skip_absent(const u64 *spt, const pte_t *ptep,
					 unsigned long nr)
{
	unsigned long i;

	for (i = 0; i < nr; i++) {
		if (READ_ONCE(spt[i]) != SHADOW_NONPRESENT_VALUE || is_host_pte_present(ptep + i))
			break;
	}

	return i;
}

/*
 * Fill holes whose PTEs are plain, and as writable as the first one, up to the
 * first SPTE that is neither as it should be nor such a hole.  Returns the number
 * of SPTEs that were passed.
 */
static noinline unsigned int fill_plain_holes(struct kvm_tdp_populate *p, u64 *spt,
					      const pte_t *ptep, unsigned long nr,
					      unsigned int *installed)
{
	const bool rw = nr && is_host_pte_writable(native_pte_val(READ_ONCE(*ptep)));
	const u64 plain = p->plain_pte[rw], template = p->template[rw];
	const u64 pfn_mask = PTE_PFN_MASK, checked = HOST_PTE_CHECKED;
	unsigned long left, present = 0;

	for (left = nr; left; left--, spt++, ptep++) {
		u64 old_spte = READ_ONCE(*spt), pte;

		if (old_spte != SHADOW_NONPRESENT_VALUE) {
			if (!is_spte_complete(p->slot, old_spte))
				break;
			present++;
			continue;
		}

		pte = read_plain(ptep, plain);
		if (unlikely(pte & checked) ||
		    !try_cmpxchg64(spt, &old_spte, (pte & pfn_mask) | template))
			break;
	}

	*installed += nr - left - present;
	return nr - left;
}

/* PTEs that the template does not fit, taken in one go. */
struct slow_ptes {
	unsigned int nr;
	struct {
		unsigned int index;
		u64 pte;
	} ptes[32];
};

/*
 * Fill holes of [@i, @stop), as far as the template fits, and take the PTEs of
 * others until there is no more room for those.  Returns where that was.
 */
static unsigned int fill_holes_from_host(struct kvm_tdp_populate *p, struct kvm_mmu_page *root,
					 u64 *spt, unsigned int i, unsigned int stop, gfn_t gfn,
					 struct slow_ptes *slow, unsigned int *nr_absent,
					 unsigned int *installed)
{
	unsigned long hva = __gfn_to_hva_memslot(p->slot, gfn), flags;
	struct host_mapping m;
	unsigned int j, n;
	u64 pte;

	slow->nr = 0;

	local_irq_save(flags);
	while (i < stop && slow->nr < ARRAY_SIZE(slow->ptes)) {
		m = tdp_host_mapping(p->kvm, hva, stop - i);

		for (j = 0; j < m.nr && slow->nr < ARRAY_SIZE(slow->ptes); j++) {
			if (m.ptep) {
				n = skip_absent(spt + i + j, m.ptep + j, m.nr - j);
				*nr_absent += n;
				j += n;
				j += fill_plain_holes(p, spt + i + j, m.ptep + j,
						      m.nr - j, installed);
			}
			if (j == m.nr)
				break;

			pte = host_pte(&m, j);
			if (m.ptep && try_template(p, root, gfn + j, pte)) {
				j--;
				continue;
			}

			slow->ptes[slow->nr].index = i + j;
			slow->ptes[slow->nr++].pte = pte;
		}

		i += j;
		gfn += j;
		hva += (unsigned long)j << PAGE_SHIFT;
	}
	local_irq_restore(flags);

	return i;
}

/* Fill the holes of [@first, @stop), of which the first page is @start. */
static unsigned int fill_run_holes(struct kvm_tdp_populate *p, struct kvm_mmu_page *root,
				   u64 *spt, unsigned int first, unsigned int stop,
				   gfn_t start, unsigned int *installed)
{
	unsigned int nr_absent = 0, i, j, n;
	struct slow_ptes slow;

	for (i = first; i < stop; ) {
		i = fill_holes_from_host(p, root, spt, i, stop, start + i - first, &slow,
					 &nr_absent, installed);

		for (j = 0; j < slow.nr; j++) {
			u64 old_spte, spte;

			n = slow.ptes[j].index;
			old_spte = READ_ONCE(spt[n]);
			if (is_shadow_present_pte(old_spte)) {
				tdp_restore_writable(p->slot, &spt[n], old_spte);
				continue;
			}

			spte = make_slow_spte(p, root, start + n - first, slow.ptes[j].pte);
			if (is_shadow_present_pte(spte) && !is_frozen_spte(old_spte) &&
			    try_cmpxchg64(&spt[n], &old_spte, spte))
				(*installed)++;
			else
				nr_absent += !is_shadow_present_pte(old_spte);
		}
	}

	return stop - first - nr_absent;
}

/*
 * Fill the holes, as far as they are wanted, of a page table that is in use.  Everyone
 * who changes SPTEs with mmu_lock held for read does so by compare-exchange, and nobody
 * waits for a hole to stay one, so the only thing to respect is a frozen SPTE.
 * Stale MMIO SPTEs, left from before the memslot, are holes, too.
 */
unsigned int tdp_fill_holes(struct kvm_tdp_populate *p,
			    struct kvm_mmu_page *root, u64 *spt,
			    gfn_t start, gfn_t end, unsigned int *installed)
{
	unsigned int first = start & (SPTE_ENT_PER_PAGE - 1);
	unsigned int i, run_end, nr = 0;

	*installed = 0;

	for_each_wanted_run(p, i, run_end, first, first + (end - start))
		nr += fill_run_holes(p, root, spt, i, run_end, start + i - first, installed);

	return nr;
}

/* No page that is wanted is missing, or write-protected without need. */
bool tdp_table_complete(const struct kvm_tdp_populate *p, const u64 *spt,
			gfn_t start, gfn_t end)
{
	unsigned int first = start & (SPTE_ENT_PER_PAGE - 1), i, run_end;

	for_each_wanted_run(p, i, run_end, first, first + (end - start)) {
		for ( ; i < run_end; i++) {
			if (!is_spte_complete(p->slot, READ_ONCE(spt[i])))
				return false;
		}
	}

	return true;
}
