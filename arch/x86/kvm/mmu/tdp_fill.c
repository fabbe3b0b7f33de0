// SPDX-License-Identifier: GPL-2.0
/*
 * Fill one page table of 4KiB SPTEs from the host's, on behalf of tdp_populate.c.  SPTEs
 * are made by plain stores: in a new table, or aside, to be put into the holes of one that
 * is in use, by compare-exchange.
 *
 * All SPTEs of a memslot that are alike but for the pfn are made from one template.
 * Host PTEs that it fits, i.e. nearly all, take some instructions each; the others
 * are slow: they are collected with IRQs off, and dealt with afterwards.
 */
#include "mmu.h"
#include "page_track.h"
#include "spte.h"
#include "tdp_fill.h"

/* Make the template for PTEs like the given one, which is_host_pte_usable(). */
static void make_template(struct kvm_tdp_populate *p, struct kvm_mmu_page *root,
			  gfn_t gfn, u64 pte)
{
	const bool writable = is_populated_writable(p, pte);
	const bool rw = is_host_pte_writable(pte);
	kvm_pfn_t pfn = host_pte_pfn(pte);
	u64 spte;

	spte = make_populate_spte(p->kvm, root, p->slot, PG_LEVEL_4K, gfn, pfn, writable);
	p->template[rw] = spte ^ ((u64)pfn << PAGE_SHIFT);
	if (!writable || !kvm_page_track_write_tracking_enabled(p->kvm))
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
	 * Writes are tracked, so the template fits no page as it is.  Shadow pages can be
	 * neither created nor synchronized while mmu_lock is held for read.
	 */
	if (p->plain_pte[rw] == ~0ull &&
	    mmu_try_to_unsync_pages(p->kvm, p->slot, gfn, false, true))
		spte &= ~(PT_WRITABLE_MASK | shadow_mmu_writable_mask);

	return spte;
}

/* None of the checked bits is left if the template fits. */
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
 * which these are.  Returns the number of absent pages.  Inlined for runs of few pages.
 */
static __always_inline unsigned int
fill_from_host(struct kvm_tdp_populate *p, struct kvm_mmu_page *root, u64 *spt,
	       unsigned int i, unsigned int stop, gfn_t gfn, unsigned long *slow)
{
	unsigned long hva = __gfn_to_hva_memslot(p->slot, gfn);
	unsigned int nr_absent = 0, j, n;
	struct host_mapping m;

	guard(irqsave)();

	while (i < stop) {
		m = tdp_host_mapping(p->kvm->mm, hva, stop - i);

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
			if (m.ptep && try_template(p, root, gfn + j, spt[i + j]))
				j--;
			else
				__set_bit(i + j, slow);
		}

		i += m.nr;
		gfn += m.nr;
		hva += (unsigned long)m.nr << PAGE_SHIFT;
	}

	return nr_absent;
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
	unsigned int stop = first + (end - start), filled = 0, nr_absent = 0, nr = 0;

	for_each_wanted_run(p, i, run_end, first, stop) {
		memset64(spt + filled, SHADOW_NONPRESENT_VALUE, i - filled);
		nr_absent += fill_from_host(p, root, spt, i, run_end, start + i - first, slow);
		nr += run_end - i;
		filled = run_end;
	}
	memset64(spt + filled, SHADOW_NONPRESENT_VALUE, SPTE_ENT_PER_PAGE - filled);

	for_each_set_bit(i, slow, stop) {
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

/*
 * Fill the holes of @nr SPTEs of @sp from @gfn on, with SPTEs that are made aside.  Returns
 * how many are present then.
 */
static unsigned int fill_some_holes(struct kvm_tdp_populate *p, struct kvm_mmu_page *sp,
				    gfn_t gfn, unsigned int nr, unsigned int *installed)
{
	u64 *spt = sp->spt + gfn % SPTE_ENT_PER_PAGE, old_spte, spte;
	u64 sptes[BITS_PER_LONG] __uninitialized;
	unsigned int nr_absent = 0, i = 0;
	unsigned long slow = 0;

	while (i < nr && is_spte_complete(p->slot, READ_ONCE(spt[i])))
		i++;

	fill_from_host(p, sp, sptes, i, nr, gfn + i, &slow);

	for ( ; i < nr; i++) {
		old_spte = READ_ONCE(spt[i]);
		if (is_spte_complete(p->slot, old_spte))
			continue;
		if (is_shadow_present_pte(old_spte)) {
			tdp_restore_writable(p->slot, &spt[i], old_spte);
			continue;
		}

		spte = sptes[i];
		if (test_bit(i, &slow))
			spte = make_slow_spte(p, sp, gfn + i, spte);

		/* Again if a vCPU that found no memslot has put an MMIO SPTE there. */
		while (is_shadow_present_pte(spte) && !is_shadow_present_pte(old_spte) &&
		       !is_frozen_spte(old_spte)) {
			if (try_cmpxchg64(&spt[i], &old_spte, spte)) {
				old_spte = spte;
				(*installed)++;
			}
		}
		nr_absent += !is_shadow_present_pte(old_spte);
	}

	return nr - nr_absent;
}

/*
 * Fill the holes, as far as they are wanted, of a page table that is in use.  Everyone
 * who changes SPTEs with mmu_lock held for read does so by compare-exchange, and nobody
 * waits for a hole to stay one, so the only thing to respect is a frozen SPTE.
 * Stale MMIO SPTEs, left from before the memslot, are holes, too.
 */
unsigned int tdp_fill_holes(struct kvm_tdp_populate *p, struct kvm_mmu_page *sp,
			    gfn_t start, gfn_t end, unsigned int *installed)
{
	unsigned int stop = end - sp->gfn, i, run_end, nr = 0;

	for_each_wanted_run(p, i, run_end, start - sp->gfn, stop) {
		/* Take a long run in parts. */
		run_end = min(run_end, i + BITS_PER_LONG);
		nr += fill_some_holes(p, sp, sp->gfn + i, run_end - i, installed);
	}

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
