// SPDX-License-Identifier: GPL-2.0
/*
 * Fill a TDP root from the host's page tables, ahead of the vCPUs' faults.
 *
 * A page is mapped if, and only if, the host has it mapped right now: nothing
 * is faulted in, waited for or pinned.  What makes that safe is the promise of
 * the MMU notifiers: before the host takes a present PTE away or lowers its
 * permissions, kvm_mmu_notifier_invalidate_range_start() acquires mmu_lock for
 * write and registers the range.  So for as long as mmu_lock is held for read,
 * outside the ranges that are registered at that time, a host PTE that is seen
 * present stays as it is, and an SPTE made from it is zapped when it changes.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include "mmu.h"
#include "mmu_internal.h"
#include "mmutrace.h"
#include "page_track.h"
#include "spte.h"
#include "tdp_iter.h"
#include "tdp_mmu.h"
#include "tdp_populate.h"

#include <linux/magic.h>
#include <linux/memcontrol.h>
#include <linux/mm.h>
#include <linux/pgtable.h>

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
static struct host_mapping host_mapping(struct kvm *kvm, unsigned long hva,
					unsigned int max)
{
	struct host_mapping m = { .level = PG_LEVEL_4K };
	pgd_t pgd;
	p4d_t p4d;
	pud_t pud;
	pmd_t pmd;

	lockdep_assert_irqs_disabled();

	/* Never reaches over the end of a PMD: the caller asks again. */
	m.nr = min_t(unsigned long, max, (PMD_SIZE - (hva & ~PMD_MASK)) >> PAGE_SHIFT);

	pgd = READ_ONCE(*pgd_offset(kvm->mm, hva));
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

static u64 host_pte(const struct host_mapping *m, unsigned int i)
{
	if (m->ptep)
		return native_pte_val(READ_ONCE(m->ptep[i]));

	return m->huge_pte ? m->huge_pte + ((u64)i << PAGE_SHIFT) : 0;
}

static bool is_host_pte_writable(u64 pte)
{
	return (pte & HOST_PTE_WRITABLE) == HOST_PTE_WRITABLE;
}

static bool is_host_pte_plain(u64 pte)
{
	return (pte & HOST_PTE_CHECKED & ~(u64)HOST_PTE_WRITABLE) == HOST_PTE_PLAIN;
}

static kvm_pfn_t host_pte_pfn(u64 pte)
{
	return (pte & PTE_PFN_MASK) >> PAGE_SHIFT;
}

/*
 * Whether the fault path, too, would map the page of a PTE.  Of what is special,
 * that is the zero page.
 */
static bool is_host_pte_usable(u64 pte)
{
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

/*
 * Check the kind of mapping behind [@start, @end).  Returns 1 if all of it is
 * backed by usable VMAs, 0 if not, -EAGAIN if that can't be told without
 * waiting for mmap_lock.
 *
 * To remove a VMA, the host must zap its range, even if it never was touched,
 * and that can't begin while mmu_lock is held.  It also increments
 * mmu_invalidate_seq, and so the VMAs that were found earlier are still there
 * if the sequence did not move.  A hole may become any kind of VMA without
 * that, hence the insistence on there being none.
 */
static int check_vma(struct kvm_tdp_populate *p, unsigned long start,
		     unsigned long end)
{
	struct mm_struct *mm = p->kvm->mm;
	unsigned long addr = start;
	struct vm_area_struct *vma;
	struct vma_iterator vmi;

	lockdep_assert_held_read(&p->kvm->mmu_lock);

	if (start >= p->vma_start && end <= p->vma_end &&
	    p->vma_seq == p->kvm->mmu_invalidate_seq)
		return 1;

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

static bool is_populated_writable(struct kvm_tdp_populate *p, u64 pte)
{
	return is_host_pte_writable(pte) && !(p->slot->flags & KVM_MEM_READONLY);
}

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
static noinline u64 make_one(struct kvm_tdp_populate *p, struct kvm_mmu_page *root,
			     gfn_t gfn, u64 pte)
{
	const bool rw = is_host_pte_writable(pte);
	u64 spte;

	if (!(pte & _PAGE_PRESENT) || !is_host_pte_usable(pte))
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
static noinline unsigned int make_plain(struct kvm_tdp_populate *p, u64 *spt,
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

/* Leave out PTEs for as long as they are absent, and return how many were. */
static noinline unsigned int make_absent(u64 *spt, const pte_t *ptep, unsigned long nr)
{
	unsigned long i;

	for (i = 0; i < nr; i++) {
		if (native_pte_val(READ_ONCE(ptep[i])) & _PAGE_PRESENT)
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

	if (p->template[rw] || !is_host_pte_plain(pte))
		return false;

	make_template(p, root, gfn, pte);
	return p->plain_pte[rw] == (pte & HOST_PTE_CHECKED);
}

/*
 * Take the PTEs of [@i, @stop).  Make SPTEs of those that the template fits while
 * at it, which is as quick as to copy them; leave others as they are, and note
 * which these are.  Returns the number of absent pages.
 */
static unsigned int take_plain(struct kvm_tdp_populate *p, struct kvm_mmu_page *root,
			       u64 *spt, unsigned int i, unsigned int stop,
			       gfn_t gfn, unsigned long *raw)
{
	unsigned long hva = __gfn_to_hva_memslot(p->slot, gfn), flags;
	unsigned int nr_absent = 0, j, n;
	struct host_mapping m;

	local_irq_save(flags);
	while (i < stop) {
		m = host_mapping(p->kvm, hva, stop - i);

		for (j = 0; j < m.nr; j++) {
			if (m.ptep) {
				n = make_absent(spt + i + j, m.ptep + j, m.nr - j);
				nr_absent += n;
				j += n;
				j += make_plain(p, spt + i + j, m.ptep + j, m.nr - j);
			}
			if (j == m.nr)
				break;

			spt[i + j] = host_pte(&m, j);
			if (m.ptep && try_template(p, root, gfn + j, spt[i + j]))
				j--;
			else
				__set_bit(i + j, raw);
		}

		i += m.nr;
		gfn += m.nr;
		hva += (unsigned long)m.nr << PAGE_SHIFT;
	}
	local_irq_restore(flags);

	return nr_absent;
}

/*
 * Fill [@start, @end) of a page table that no one else can see yet: plain
 * stores are enough, the compare-exchange that links it orders them.
 * Returns the number of pages that were present.
 */
static unsigned int fill_new_table(struct kvm_tdp_populate *p,
				   struct kvm_mmu_page *root, u64 *spt,
				   gfn_t start, gfn_t end)
{
	DECLARE_BITMAP(raw, SPTE_ENT_PER_PAGE) = {};
	unsigned int first = start & (SPTE_ENT_PER_PAGE - 1), i;
	unsigned int stop = first + (end - start), nr_absent;

	memset64(spt, SHADOW_NONPRESENT_VALUE, first);
	memset64(spt + stop, SHADOW_NONPRESENT_VALUE, SPTE_ENT_PER_PAGE - stop);

	nr_absent = take_plain(p, root, spt, first, stop, start, raw);

	for_each_set_bit(i, raw, SPTE_ENT_PER_PAGE) {
		spt[i] = make_one(p, root, start + i - first, spt[i]);
		nr_absent += !is_shadow_present_pte(spt[i]);
	}

	return end - start - nr_absent;
}

/*
 * When dirty logging ends, pages stay write-protected until a write to each of
 * them has faulted, and fast_page_fault() made it writable again.  Do so ahead,
 * by compare-exchange, too: logging can't begin anew while SRCU is held.
 */
#define SPTE_DONE	(SPTE_MMU_PRESENT_MASK | PT_WRITABLE_MASK)

static bool is_log_leftover(const struct kvm_memory_slot *slot, u64 spte)
{
	return !kvm_slot_dirty_track_enabled(slot) && is_mmu_writable_spte(spte) &&
	       !is_writable_pte(spte) && !is_access_track_spte(spte);
}

/* The first test is there for speed only: it tells for most. */
static bool is_done(const struct kvm_memory_slot *slot, u64 spte)
{
	return (spte & SPTE_DONE) == SPTE_DONE ||
	       (is_shadow_present_pte(spte) && !is_log_leftover(slot, spte));
}

static void make_writable_again(const struct kvm_memory_slot *slot, u64 *sptep,
				u64 old_spte)
{
	if (is_log_leftover(slot, old_spte))
		try_cmpxchg64(sptep, &old_spte, old_spte | PT_WRITABLE_MASK);
}

/* Pass by holes for as long as their PTEs are absent, return how many were. */
static noinline unsigned int pass_absent(const u64 *spt, const pte_t *ptep,
					 unsigned long nr)
{
	unsigned long i;

	for (i = 0; i < nr; i++) {
		if (READ_ONCE(spt[i]) != SHADOW_NONPRESENT_VALUE ||
		    native_pte_val(READ_ONCE(ptep[i])) & _PAGE_PRESENT)
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
			if (!is_done(p->slot, old_spte))
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
struct raw_ptes {
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
static unsigned int take_into_holes(struct kvm_tdp_populate *p, struct kvm_mmu_page *root,
				    u64 *spt, unsigned int i, unsigned int stop, gfn_t gfn,
				    struct raw_ptes *raw, unsigned int *nr_absent,
				    unsigned int *installed)
{
	unsigned long hva = __gfn_to_hva_memslot(p->slot, gfn), flags;
	struct host_mapping m;
	unsigned int j, n;
	u64 pte;

	raw->nr = 0;

	local_irq_save(flags);
	while (i < stop && raw->nr < ARRAY_SIZE(raw->ptes)) {
		m = host_mapping(p->kvm, hva, stop - i);

		for (j = 0; j < m.nr && raw->nr < ARRAY_SIZE(raw->ptes); j++) {
			if (m.ptep) {
				n = pass_absent(spt + i + j, m.ptep + j, m.nr - j);
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

			raw->ptes[raw->nr].index = i + j;
			raw->ptes[raw->nr++].pte = pte;
		}

		i += j;
		gfn += j;
		hva += (unsigned long)j << PAGE_SHIFT;
	}
	local_irq_restore(flags);

	return i;
}

/*
 * Fill the holes of a page table that is in use.  Everyone who changes SPTEs
 * with mmu_lock held for read does so by compare-exchange, and nobody waits
 * for a hole to stay one, so the only thing to respect is a frozen SPTE.
 * Stale MMIO SPTEs, left from before the memslot, are holes, too.
 */
static unsigned int fill_holes(struct kvm_tdp_populate *p,
			       struct kvm_mmu_page *root, u64 *spt,
			       gfn_t start, gfn_t end, unsigned int *installed)
{
	unsigned int first = start & (SPTE_ENT_PER_PAGE - 1);
	unsigned int stop = first + (end - start);
	unsigned int nr_absent = 0, i, j, n;
	struct raw_ptes raw;

	*installed = 0;

	for (i = first; i < stop; ) {
		i = take_into_holes(p, root, spt, i, stop, start + i - first, &raw,
				    &nr_absent, installed);

		for (j = 0; j < raw.nr; j++) {
			u64 old_spte, spte;

			n = raw.ptes[j].index;
			old_spte = READ_ONCE(spt[n]);
			if (is_shadow_present_pte(old_spte)) {
				make_writable_again(p->slot, &spt[n], old_spte);
				continue;
			}

			spte = make_one(p, root, start + n - first, raw.ptes[j].pte);
			if (is_shadow_present_pte(spte) && !is_frozen_spte(old_spte) &&
			    try_cmpxchg64(&spt[n], &old_spte, spte))
				(*installed)++;
			else
				nr_absent += !is_shadow_present_pte(old_spte);
		}
	}

	return end - start - nr_absent;
}

/* No page is missing, or write-protected without need. */
static bool is_table_full(const struct kvm_memory_slot *slot, const u64 *spt,
			  gfn_t start, gfn_t end)
{
	const u64 *sptep = spt + (start & (SPTE_ENT_PER_PAGE - 1));
	const u64 *last = sptep + (end - start);

	while (sptep < last) {
		if (!is_done(slot, READ_ONCE(*sptep++)))
			return false;
	}

	return true;
}

/*
 * Whether a new page table was asked for on the node of the first page that it maps.
 * If not, that is where to have it, the next ones, and those above that it takes:
 * memory of a node mostly comes in one piece.
 */
static bool is_for_node(struct kvm_tdp_populate *p, const struct kvm_mmu_page *sp,
			gfn_t start, gfn_t end)
{
	const u64 *sptep = sp->spt + (start & (SPTE_ENT_PER_PAGE - 1));
	const u64 *last = sptep + (end - start);
	int nid, asked;

	while (sptep < last && !is_shadow_present_pte(*sptep))
		sptep++;

	if (sptep == last || !pfn_valid(spte_to_pfn(*sptep)))
		return true;

	nid = pfn_to_nid(spte_to_pfn(*sptep));
	asked = p->node ? p->node - 1 : page_to_nid(virt_to_page(sp->spt));
	p->node = nid + 1;
	return nid == asked;
}

/* What came of a look at a region. */
enum look {
	/* Pages are mapped as far as the host has them, see region.mapped. */
	LOOK_DONE,
	/* They are to be found farther down, maybe just now. */
	LOOK_DEEPER,
	/* What is mapped is not all that can be, maybe. */
	LOOK_OPEN,
	/* Another thread was faster: look again. */
	LOOK_RACED,
	/* Needs a page table, see topup(). */
	LOOK_NO_TABLE,
	/* Is just being changed by a zap, or by the host. */
	LOOK_CHANGING,
};

/* A 2MiB region, or the part of it that is asked for, that is looked at. */
struct region {
	gfn_t start;
	gfn_t end;
	/* What the host has at its start. */
	struct host_mapping m;
	/* The level to map at; the range that is mapped by one SPTE of that. */
	int level;
	gfn_t first;
	gfn_t last;
	/* Pages in p->leaf_sp, which are right until mmu_lock is dropped. */
	unsigned int filled;
	/* The page table that maps it already. */
	struct kvm_mmu_page *child;
	/* What came of it: the level of the leaf SPTEs; pages, and the new ones. */
	int leaf_level;
	unsigned int mapped;
	unsigned int installed;
};

/* Returns false if the host is about to change the region. */
static bool look_at_host(struct kvm_tdp_populate *p, struct region *r)
{
	const struct kvm_memory_slot *slot = p->slot;
	unsigned long flags;

	local_irq_save(flags);
	r->m = host_mapping(p->kvm, __gfn_to_hva_memslot(slot, r->start),
			    r->end - r->start);
	local_irq_restore(flags);

	r->filled = 0;
	r->installed = 0;
	r->leaf_level = PG_LEVEL_4K;
	r->level = PG_LEVEL_4K;
	r->first = r->start;
	r->last = r->end;

	/* Dirty pages are logged, as ever, one by one. */
	if (r->m.level > PG_LEVEL_4K && !kvm_slot_dirty_track_enabled(slot) &&
	    is_host_pte_usable(r->m.huge_pte))
		r->level = kvm_mmu_max_slot_level(slot, r->start, r->m.level);

	if (r->level > PG_LEVEL_4K) {
		r->first = gfn_round_for_level(r->start, r->level);
		r->last = r->first + KVM_PAGES_PER_HPAGE(r->level);
	}

	return !is_gfn_range_being_invalidated(p->kvm, r->first, r->last);
}

/* Whether the host has anything to map, at least in parts, in the region. */
static bool host_has_any(struct kvm_tdp_populate *p, struct region *r)
{
	struct host_mapping m = r->m;
	unsigned long flags;

	if (m.ptep || m.huge_pte || m.nr == r->end - r->start)
		return m.ptep || m.huge_pte;

	/* The region is not congruent with the host's page tables. */
	local_irq_save(flags);
	m = host_mapping(p->kvm, __gfn_to_hva_memslot(p->slot, r->start + m.nr), 1);
	local_irq_restore(flags);

	return m.ptep || m.huge_pte;
}

/*
 * Install a huge leaf SPTE at the iterator's position.  It may replace a page
 * table, e.g. if the host collapsed small pages after they had been mapped; as
 * in the fault path, RCU keeps that alive until the flush is done.
 */
static enum look install_huge(struct kvm_tdp_populate *p, struct kvm_mmu_page *root,
			      struct tdp_iter *iter, struct region *r)
{
	bool writable = is_populated_writable(p, r->m.huge_pte);
	bool was_table = is_shadow_present_pte(iter->old_spte);
	kvm_pfn_t pfn = host_pte_pfn(r->m.huge_pte) & -KVM_PAGES_PER_HPAGE(iter->level);
	u64 spte;

	spte = make_populate_spte(p->kvm, root, p->slot, iter->level, iter->gfn,
				  pfn, writable);

	if (kvm_tdp_mmu_set_spte_atomic(p->kvm, iter, spte))
		return LOOK_RACED;

	if (was_table)
		kvm_flush_remote_tlbs_gfn(p->kvm, iter->gfn, iter->level);

	r->leaf_level = iter->level;
	r->installed = KVM_PAGES_PER_HPAGE(iter->level);
	r->mapped = r->end - r->start;
	return LOOK_DONE;
}

/* Link @sp, which is gone from the walk's spare pages if that succeeds. */
static bool link_sp(struct kvm_tdp_populate *p, struct tdp_iter *iter,
		    struct kvm_mmu_page **sp)
{
	tdp_mmu_init_child_sp(*sp, iter);
	if (tdp_mmu_link_sp(p->kvm, iter, *sp, true))
		return false;

	*sp = NULL;
	return true;
}

/* See whether what is mapped at the iterator's position is all that can be. */
static enum look look_at_spte(struct kvm_tdp_populate *p, struct tdp_iter *iter,
			      struct region *r)
{
	struct kvm_mmu_page *child;

	r->child = NULL;
	r->mapped = 0;

	if (is_frozen_spte(iter->old_spte))
		return LOOK_CHANGING;
	if (!is_shadow_present_pte(iter->old_spte))
		return LOOK_OPEN;

	if (is_large_pte(iter->old_spte)) {
		make_writable_again(p->slot, rcu_dereference(iter->sptep),
				    iter->old_spte);
		r->leaf_level = iter->level;
		r->mapped = r->end - r->start;
		return LOOK_DONE;
	}

	child = spte_to_child_sp(iter->old_spte);
	if (iter->level > PG_LEVEL_2M &&
	    (iter->level > r->level || child->nx_huge_page_disallowed))
		return LOOK_DEEPER;

	/* Nothing to fill?  That is quickly told. */
	if ((r->level == PG_LEVEL_4K || child->nx_huge_page_disallowed) &&
	    is_table_full(p->slot, child->spt, r->start, r->end)) {
		r->mapped = r->end - r->start;
		return LOOK_DONE;
	}

	r->child = child;
	return LOOK_OPEN;
}

static enum look fill_child(struct kvm_tdp_populate *p, struct kvm_mmu_page *root,
			    struct region *r)
{
	r->mapped = fill_holes(p, root, r->child->spt, r->start, r->end, &r->installed);
	if (r->installed)
		kvm_update_page_stats(p->kvm, PG_LEVEL_4K, r->installed);
	return LOOK_DONE;
}

/*
 * Fill the page table that is to be linked, unless that was done for an attempt in
 * vain.  If nothing is in there, that is all; if it is on the wrong node, it takes
 * another one.
 */
static enum look fill_leaf_sp(struct kvm_tdp_populate *p, struct kvm_mmu_page *root,
			      struct region *r)
{
	if (r->filled)
		return LOOK_OPEN;

	r->filled = fill_new_table(p, root, p->leaf_sp->spt, r->start, r->end);
	if (!r->filled)
		return LOOK_DONE;

	if (num_online_nodes() > 1 && !is_for_node(p, p->leaf_sp, r->start, r->end)) {
		p->want_leaf_sp = true;
		p->want_table_sp = p->table_sp;
		return LOOK_NO_TABLE;
	}

	return LOOK_OPEN;
}

/* Link a page table, or one above that it takes. */
static enum look build_table(struct kvm_tdp_populate *p, struct kvm_mmu_page *root,
			     struct tdp_iter *iter, struct region *r)
{
	enum look look;

	p->want_leaf_sp = r->level == PG_LEVEL_4K && !p->leaf_sp;
	p->want_table_sp = iter->level > PG_LEVEL_2M && !p->table_sp;
	if (p->want_leaf_sp || p->want_table_sp)
		return LOOK_NO_TABLE;

	if (r->level == PG_LEVEL_4K) {
		look = fill_leaf_sp(p, root, r);
		if (look != LOOK_OPEN)
			return look;
	}

	if (iter->level > PG_LEVEL_2M) {
		memset64(p->table_sp->spt, SHADOW_NONPRESENT_VALUE, SPTE_ENT_PER_PAGE);
		return link_sp(p, iter, &p->table_sp) ? LOOK_DEEPER : LOOK_RACED;
	}

	if (!link_sp(p, iter, &p->leaf_sp))
		return LOOK_RACED;

	p->want_leaf_sp = true;
	kvm_update_page_stats(p->kvm, PG_LEVEL_4K, r->filled);
	r->installed = r->filled;
	r->mapped = r->filled;
	return LOOK_DONE;
}

/*
 * Map what can be mapped of @r by changing the SPTE at the iterator's position
 * or, if that has a table of 4KiB SPTEs, in there.
 */
static enum look populate_spte(struct kvm_tdp_populate *p, struct kvm_mmu_page *root,
			       struct tdp_iter *iter, struct region *r)
{
	enum look look = look_at_spte(p, iter, r);
	int usable;

	if (look != LOOK_OPEN)
		return look;

	/* Don't build page tables above, or for, nothing; nor look at each hole. */
	if (!host_has_any(p, r))
		return LOOK_DONE;

	usable = check_vma(p, __gfn_to_hva_memslot(p->slot, r->first),
			   __gfn_to_hva_memslot(p->slot, r->last - 1) + PAGE_SIZE);
	if (usable <= 0)
		return usable ? LOOK_CHANGING : LOOK_DONE;

	/* Don't replace a table that the NX huge page mitigation made. */
	if (iter->level <= r->level && !(r->child && r->child->nx_huge_page_disallowed))
		return install_huge(p, root, iter, r);

	return r->child ? fill_child(p, root, r) : build_table(p, root, iter, r);
}

static void count_absent(struct kvm_tdp_populate *p, u64 nr)
{
	p->absent += nr;
	atomic64_add(nr, &p->kvm->stat.tdp_populate_absent);
}

/* Regions, other than new page tables, per acquisition of mmu_lock. */
#define LOOKS_PER_LOCK	16

/* These may change whenever mmu_lock is dropped. */
static void begin_range(struct kvm_tdp_populate *p)
{
	p->template[0] = 0;
	p->template[1] = 0;
	p->plain_pte[0] = ~0ull;
	p->plain_pte[1] = ~0ull;
	p->tracked = kvm_page_track_write_tracking_enabled(p->kvm);
}

static void count_region(struct kvm_tdp_populate *p, struct region *r)
{
	if (r->installed)
		atomic64_add(r->leaf_level > PG_LEVEL_4K ? 1 : r->installed,
			     &p->kvm->stat.tdp_populated[r->leaf_level - 1]);
	trace_kvm_tdp_populate(p->slot->as_id, r->start, r->leaf_level,
			       r->end - r->start, r->mapped, r->installed);

	p->mapped += r->mapped;
	p->installed += r->installed;
}

/*
 * Map what is present from @start on, until @end or until enough has been done
 * for one acquisition of mmu_lock, which is held for read, as is RCU.  Returns
 * the number of pages that were dealt with or, if there was none, why.
 */
static long populate_range(struct kvm_tdp_populate *p, struct kvm_mmu_page *root,
			   gfn_t start, gfn_t end)
{
	struct region r = { .start = INVALID_GPA };
	enum look look = LOOK_RACED;
	unsigned int looks = 0;
	struct tdp_iter iter;
	gfn_t gfn = start;
	u64 absent = 0;

	if (p->slot->flags & KVM_MEMSLOT_INVALID)
		return -EAGAIN;

	begin_range(p);

	for_each_tdp_pte_min_level(iter, p->kvm, root, PG_LEVEL_2M, start, end) {
		/* A table on the way down was zapped, and the walk went past it. */
		if (iter.gfn > gfn) {
			look = LOOK_RACED;
			break;
		}

		if (r.start != gfn) {
			r.start = gfn;
			r.end = min(end, gfn_round_for_level(gfn, PG_LEVEL_2M) +
					 KVM_PAGES_PER_HPAGE(PG_LEVEL_2M));
			if (!look_at_host(p, &r)) {
				look = LOOK_CHANGING;
				break;
			}
		}

		look = populate_spte(p, root, &iter, &r);
		if (look == LOOK_DEEPER)
			continue;
		if (look != LOOK_DONE)
			break;

		if (r.leaf_level > PG_LEVEL_2M) {
			r.end = min(end, iter.gfn + KVM_PAGES_PER_HPAGE(r.leaf_level));
			r.mapped = r.end - r.start;
		}

		count_region(p, &r);
		absent += r.end - r.start - r.mapped;
		gfn = r.end;

		/*
		 * The walk goes on behind the SPTE, i.e. passes by regions that
		 * are not reached by a table yet.
		 */
		if (iter.level > PG_LEVEL_2M)
			break;

		/* A table's worth of 4KiB pages is enough for a waiting writer. */
		if (++looks == LOOKS_PER_LOCK ||
		    (r.installed && r.leaf_level == PG_LEVEL_4K))
			break;
	}

	if (absent)
		count_absent(p, absent);

	if (gfn > start)
		return gfn - start;

	switch (look) {
	case LOOK_NO_TABLE:
		return -ENOBUFS;
	case LOOK_CHANGING:
		return -EAGAIN;
	default:
		return -EBUSY;
	}
}

/* The valid root with the wanted role, stable while mmu_lock is held. */
static struct kvm_mmu_page *find_root(struct kvm *kvm, union kvm_mmu_page_role role)
{
	struct kvm_mmu_page *root;

	lockdep_assert_held_read(&kvm->mmu_lock);

	/* The role of a root includes that it is valid. */
	list_for_each_entry_rcu(root, &kvm->arch.tdp_mmu_roots, link) {
		if (root->role.word == role.word)
			return root;
	}

	return NULL;
}

/*
 * Page tables are charged to the VM, but are a convenience: rather do without one
 * than have the VM's, or anybody's, memory reclaimed for it, let alone a process
 * killed.
 */
#define POPULATE_GFP	(GFP_NOWAIT | __GFP_ACCOUNT)

/*
 * What those that nobody has asked leave of a cgroup's memory.max to others, whose
 * next allocation would have a process killed: 16MiB, or a 128th of less than 2GiB.
 */
#define POPULATE_RESERVE	(SZ_16M >> PAGE_SHIFT)
#define POPULATE_RESERVE_SHIFT	7

static unsigned long unasked_limit(const struct page_counter *memory)
{
	unsigned long max = READ_ONCE(memory->max);

	max -= min(max >> POPULATE_RESERVE_SHIFT, POPULATE_RESERVE);
	return min(max, READ_ONCE(memory->high));
}

/*
 * Whoever is charged above memory.high, of its cgroup or of one above, is to reclaim,
 * and to wait.  Those that nobody has asked do neither, so they do without.
 */
static bool may_charge(const struct kvm_tdp_populate *p)
{
#ifdef CONFIG_MEMCG
	struct mem_cgroup *memcg;

	if (!p->unasked || !memcg_kmem_online())
		return true;

	guard(rcu)();

	for (memcg = mem_cgroup_from_task(current); memcg; memcg = parent_mem_cgroup(memcg)) {
		if (page_counter_read(&memcg->memory) > unasked_limit(&memcg->memory))
			return false;
	}
#endif
	return true;
}

/* Have a page table, on the wanted node if it has one, instead of @sp. */
static void replace_sp(struct kvm_tdp_populate *p, struct kvm_mmu_page **sp)
{
	struct kvm_mmu_page *new = NULL;

	if (may_charge(p))
		new = tdp_mmu_alloc_sp_for_split(POPULATE_GFP, p->node - 1);

	if (new && *sp)
		tdp_mmu_free_unused_sp(*sp);
	if (new)
		*sp = new;
}

/* Get the page tables that are wanted, with nothing locked. */
static int topup(struct kvm_tdp_populate *p)
{
	if (p->want_leaf_sp)
		replace_sp(p, &p->leaf_sp);
	if (p->want_table_sp)
		replace_sp(p, &p->table_sp);

	if ((p->want_leaf_sp && !p->leaf_sp) || (p->want_table_sp && !p->table_sp))
		return -ENOMEM;

	p->want_leaf_sp = false;
	p->want_table_sp = false;
	return 0;
}

/*
 * Map what the host has present from @start on, up to @end at the most.  The
 * range must be within p->slot.
 *
 * Returns the number of 4KiB pages that were dealt with, not less than those up
 * to the end of the 2MiB region that @start is in, or
 *   -EAGAIN the memslot or its mapping is just being changed, try later
 *   -ENOMEM no memory for page tables, or none that may be charged
 */
long kvm_tdp_populate(struct kvm_tdp_populate *p, gfn_t start, gfn_t end)
{
	const gfn_t nr_gfns = tdp_root_nr_gfns(p->role.level);
	struct kvm *kvm = p->kvm;
	struct kvm_mmu_page *root;
	bool needed = false;
	long r;

	lockdep_assert_held(&kvm->srcu);

	/* What no vCPU can reach is not there. */
	if (start >= nr_gfns) {
		count_absent(p, end - start);
		return end - start;
	}
	end = min(end, nr_gfns);

	do {
		/* If the previous region took a page table, so will this, mostly. */
		if (topup(p)) {
			if (needed)
				goto nomem;

			p->want_leaf_sp = false;
			p->want_table_sp = false;
		}

		/*
		 * A writer waits for one acquisition at most.  The root, which
		 * may have gone invalid meanwhile, is looked up for each.
		 */
		read_lock(&kvm->mmu_lock);
		rcu_read_lock();

		root = find_root(kvm, p->role);
		r = root ? populate_range(p, root, start, end) : -ENOENT;

		rcu_read_unlock();
		read_unlock(&kvm->mmu_lock);

		if (r == -ENOENT && (!may_charge(p) ||
				     kvm_tdp_mmu_create_root(kvm, p->role, POPULATE_GFP)))
			goto nomem;

		needed = r == -ENOBUFS;
	} while (r == -EBUSY || r == -ENOBUFS || r == -ENOENT);

	return r;

nomem:
	atomic64_inc(&kvm->stat.tdp_populate_nomem);
	return -ENOMEM;
}

void kvm_tdp_populate_end(struct kvm_tdp_populate *p)
{
	if (p->leaf_sp)
		tdp_mmu_free_unused_sp(p->leaf_sp);
	if (p->table_sp)
		tdp_mmu_free_unused_sp(p->table_sp);
	p->leaf_sp = NULL;
	p->table_sp = NULL;
}
