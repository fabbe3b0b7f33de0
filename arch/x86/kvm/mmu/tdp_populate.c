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
#define HOST_PTE_CHECKED	(HOST_PTE_PLAIN | _PAGE_RW | _PAGE_SPECIAL | _PAGE_DEVMAP | \
				 _PAGE_PWT | _PAGE_PCD | _PAGE_PAT | _PAGE_PKEY_MASK)

/* What one host page table, or huge page, maps from a given address on. */
struct host_mapping {
	const pte_t *ptep;	/* the first PTE, NULL if huge or nothing */
	u64 huge_pte;		/* if huge, the PTE of its first page here */
	unsigned int nr;	/* number of pages until its end */
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
 * the notifier has ended; see the rules at host_pfn_mapping_level().
 */
static struct host_mapping host_mapping(struct kvm *kvm, unsigned long hva,
					unsigned int max)
{
	struct host_mapping m = {};
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
		return m;
	}

	pmd = READ_ONCE(*pmd_offset(&pud, hva));
	if (!(pmd_val(pmd) & _PAGE_PRESENT))
		return m;

	if (pmd_leaf(pmd))
		m.huge_pte = huge_to_pte(pmd_val(pmd), hva & ~PMD_MASK);
	else
		m.ptep = pte_offset_kernel(&pmd, hva);
	return m;
}

static u64 host_pte(const struct host_mapping *m, unsigned int i)
{
	if (m->ptep)
		return native_pte_val(READ_ONCE(m->ptep[i]));

	return m->huge_pte ? m->huge_pte + ((u64)i << PAGE_SHIFT) : 0;
}

/* Whether the host has a page table or a huge page anywhere in the range. */
static bool host_has_any(struct kvm *kvm, unsigned long hva, unsigned int nr)
{
	struct host_mapping m;
	unsigned long flags;
	bool any = false;

	local_irq_save(flags);
	for ( ; nr && !any; nr -= m.nr, hva += (unsigned long)m.nr << PAGE_SHIFT) {
		m = host_mapping(kvm, hva, nr);
		any = m.ptep || m.huge_pte;
	}
	local_irq_restore(flags);

	return any;
}

/*
 * Some mappings can not be told from their PTEs.  secretmem has no predicate
 * that modules can call, but it has a file system of its own.
 */
static bool is_vma_usable(struct vm_area_struct *vma)
{
	if (vma->vm_flags & (VM_IO | VM_PFNMAP | VM_MIXEDMAP))
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
	VMA_ITERATOR(vmi, mm, start);
	unsigned long addr = start;
	struct vm_area_struct *vma;

	lockdep_assert_held_read(&p->kvm->mmu_lock);

	if (start >= p->vma_start && end <= p->vma_end &&
	    p->vma_seq == p->kvm->mmu_invalidate_seq)
		return 1;

	if (!mmap_read_trylock(mm))
		return -EAGAIN;

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

static bool is_range_being_invalidated(struct kvm *kvm, gfn_t start, gfn_t end)
{
	lockdep_assert_held_read(&kvm->mmu_lock);

	return kvm->mmu_invalidate_in_progress &&
	       start < kvm->mmu_invalidate_range_end &&
	       end > kvm->mmu_invalidate_range_start;
}

/* The SPTE for a host PTE that is not plain, or the first one of a region. */
static noinline u64 make_one(struct kvm_tdp_populate *p, struct kvm_mmu_page *root,
			     gfn_t gfn, u64 pte)
{
	bool writable = (pte & _PAGE_RW) && !(p->slot->flags & KVM_MEM_READONLY);
	kvm_pfn_t pfn = (pte & PTE_PFN_MASK) >> PAGE_SHIFT;
	u64 checked = pte & HOST_PTE_CHECKED & ~(u64)_PAGE_RW;
	u64 spte;

	if (!(pte & _PAGE_PRESENT))
		return SHADOW_NONPRESENT_VALUE;

	/* The zero page is special, too, but the fault path does map it. */
	if (checked != HOST_PTE_PLAIN &&
	    (checked != (HOST_PTE_PLAIN | _PAGE_SPECIAL) || !is_zero_pfn(pfn)))
		return SHADOW_NONPRESENT_VALUE;

	if (!p->template[writable]) {
		spte = make_populate_spte(p->kvm, root, p->slot, PG_LEVEL_4K,
					  gfn, pfn, writable);
		p->template[writable] = spte ^ ((u64)pfn << PAGE_SHIFT);
		if (writable && !p->tracked)
			p->plain_pte = HOST_PTE_PLAIN | _PAGE_RW;
	}
	spte = p->template[writable] | ((u64)pfn << PAGE_SHIFT);

	/*
	 * Shadow pages can be neither created nor synchronized while mmu_lock
	 * is held for read.
	 */
	if (writable && p->tracked &&
	    mmu_try_to_unsync_pages(p->kvm, p->slot, gfn, true, true))
		spte &= ~(PT_WRITABLE_MASK | shadow_mmu_writable_mask);

	return spte;
}

/*
 * Make SPTEs of PTEs for as long as they are plain, and return how many were.
 * This is where the time goes: seven instructions a page, plus the loop, which
 * hence is worth unrolling.
 */
static noinline unsigned int make_plain(struct kvm_tdp_populate *p, u64 *spt,
					const pte_t *ptep, unsigned long nr)
{
	const u64 plain = p->plain_pte, template = p->template[1];
	const u64 pfn_mask = PTE_PFN_MASK;
	unsigned long i = 0;
	u64 pte;

#define MAKE_PLAIN(_i)							\
	({								\
		pte = native_pte_val(READ_ONCE(ptep[_i])) ^ plain;	\
		if (unlikely(pte & HOST_PTE_CHECKED))			\
			return _i;					\
		spt[_i] = (pte & pfn_mask) | template;			\
	})

	for ( ; i + 4 <= nr; i += 4) {
		MAKE_PLAIN(i);
		MAKE_PLAIN(i + 1);
		MAKE_PLAIN(i + 2);
		MAKE_PLAIN(i + 3);
	}
	for ( ; i < nr; i++)
		MAKE_PLAIN(i);
#undef MAKE_PLAIN

	return nr;
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
	unsigned long hva = __gfn_to_hva_memslot(p->slot, start);
	unsigned int i = start & (SPTE_ENT_PER_PAGE - 1);
	unsigned int j, stop = i + (end - start);
	unsigned int nr_absent = 0;
	struct host_mapping m;
	unsigned long flags;
	gfn_t gfn = start;

	memset64(spt, SHADOW_NONPRESENT_VALUE, i);
	memset64(spt + stop, SHADOW_NONPRESENT_VALUE, SPTE_ENT_PER_PAGE - stop);

	local_irq_save(flags);
	while (i < stop) {
		m = host_mapping(p->kvm, hva, stop - i);

		for (j = 0; j < m.nr; j++) {
			if (m.ptep)
				j += make_plain(p, spt + i + j, m.ptep + j, m.nr - j);
			if (j == m.nr)
				break;

			spt[i + j] = make_one(p, root, gfn + j, host_pte(&m, j));
			nr_absent += !is_shadow_present_pte(spt[i + j]);
		}

		i += m.nr;
		gfn += m.nr;
		hva += (unsigned long)m.nr << PAGE_SHIFT;
	}
	local_irq_restore(flags);

	return end - start - nr_absent;
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
	unsigned long hva = __gfn_to_hva_memslot(p->slot, start);
	unsigned int i = start & (SPTE_ENT_PER_PAGE - 1);
	unsigned int stop = i + (end - start);
	unsigned int nr_absent = 0, j;
	struct host_mapping m;
	unsigned long flags;
	gfn_t gfn = start;

	*installed = 0;

	local_irq_save(flags);
	while (i < stop) {
		m = host_mapping(p->kvm, hva, stop - i);

		for (j = 0; j < m.nr; j++) {
			u64 old_spte = READ_ONCE(spt[i + j]);
			u64 pte, spte;

			if (is_shadow_present_pte(old_spte))
				continue;

			pte = host_pte(&m, j);
			if (likely(!((pte ^ p->plain_pte) & HOST_PTE_CHECKED)))
				spte = p->template[1] | (pte & PTE_PFN_MASK);
			else
				spte = make_one(p, root, gfn + j, pte);

			if (is_shadow_present_pte(spte) && !is_frozen_spte(old_spte) &&
			    try_cmpxchg64(&spt[i + j], &old_spte, spte))
				(*installed)++;
			else
				nr_absent += !is_shadow_present_pte(old_spte);
		}

		i += m.nr;
		gfn += m.nr;
		hva += (unsigned long)m.nr << PAGE_SHIFT;
	}
	local_irq_restore(flags);

	return end - start - nr_absent;
}

static bool is_table_full(const u64 *spt, gfn_t start, gfn_t end)
{
	const u64 *sptep = spt + (start & (SPTE_ENT_PER_PAGE - 1));
	const u64 *last = sptep + (end - start);

	while (sptep < last) {
		if (!is_shadow_present_pte(READ_ONCE(*sptep++)))
			return false;
	}

	return true;
}

/*
 * Install a huge leaf SPTE at the iterator's position.  It may replace a page
 * table, e.g. if the host collapsed small pages after they had been mapped; as
 * in the fault path, RCU keeps that alive until the flush is done.
 */
static int install_huge(struct kvm_tdp_populate *p, struct kvm_mmu_page *root,
			struct tdp_iter *iter)
{
	bool was_table = is_shadow_present_pte(iter->old_spte);
	struct host_mapping m;
	unsigned long flags;
	bool writable;
	u64 spte;

	local_irq_save(flags);
	m = host_mapping(p->kvm, __gfn_to_hva_memslot(p->slot, iter->gfn), 1);
	local_irq_restore(flags);

	if ((m.huge_pte & HOST_PTE_CHECKED & ~(u64)_PAGE_RW) != HOST_PTE_PLAIN)
		return 0;

	writable = (m.huge_pte & _PAGE_RW) && !(p->slot->flags & KVM_MEM_READONLY);
	spte = make_populate_spte(p->kvm, root, p->slot, iter->level, iter->gfn,
				  (m.huge_pte & PTE_PFN_MASK) >> PAGE_SHIFT, writable);

	if (tdp_mmu_set_spte_atomic(p->kvm, iter, spte))
		return -EBUSY;

	if (was_table)
		kvm_flush_remote_tlbs_gfn(p->kvm, iter->gfn, iter->level);

	return 1;
}

/* Link @sp, which is gone from the walk's spare pages if that succeeds. */
static int link_sp(struct kvm_tdp_populate *p, struct tdp_iter *iter,
		   struct kvm_mmu_page **sp)
{
	tdp_mmu_init_child_sp(*sp, iter);
	if (tdp_mmu_link_sp(p->kvm, iter, *sp, true))
		return -EBUSY;

	*sp = NULL;
	p->took_sp = true;
	return 0;
}

/*
 * Map what is present of [@start, @end), which is within a 2MiB region of the
 * slot, or all of the host's huge page around it.  Called, and returns, with
 * mmu_lock held for read and under RCU.  Returns 0 or
 *   -EBUSY   lost a race with another thread, look again
 *   -ENOBUFS needs a page table, see topup()
 *   -EAGAIN  is just being changed by the host, or by a zap
 */
static int populate_region(struct kvm_tdp_populate *p, struct kvm_mmu_page *root,
			   gfn_t start, gfn_t end)
{
	unsigned int nr = end - start, nr_mapped = 0, installed = 0;
	const struct kvm_memory_slot *slot = p->slot;
	int level, mapped_level = PG_LEVEL_4K, r;
	gfn_t first = start, last = end;
	struct kvm *kvm = p->kvm;
	struct tdp_iter iter;
	bool filled = false;

	if (slot->flags & KVM_MEMSLOT_INVALID)
		return -EAGAIN;

	level = kvm_slot_dirty_track_enabled(slot) ? PG_LEVEL_4K :
		kvm_mmu_max_mapping_level(kvm, slot, start, KVM_MAX_HUGEPAGE_LEVEL);
	if (level > PG_LEVEL_4K) {
		first = gfn_round_for_level(start, level);
		last = first + KVM_PAGES_PER_HPAGE(level);
	}

	if (is_range_being_invalidated(kvm, first, last))
		return -EAGAIN;

	/* These may change whenever mmu_lock is dropped. */
	p->template[0] = p->template[1] = 0;
	p->plain_pte = ~0ull;
	p->tracked = kvm_page_track_write_tracking_enabled(kvm);

	for_each_tdp_pte_min_level(iter, root, PG_LEVEL_2M, start, start + 1) {
		struct kvm_mmu_page *child = NULL;

		if (is_frozen_spte(iter.old_spte))
			return -EAGAIN;

		if (is_shadow_present_pte(iter.old_spte)) {
			if (is_large_pte(iter.old_spte)) {
				nr_mapped = nr;
				break;
			}

			child = spte_to_child_sp(iter.old_spte);
			if (iter.level > PG_LEVEL_2M &&
			    (iter.level > level || child->nx_huge_page_disallowed))
				continue;

			/* Nothing to fill?  That is quickly told. */
			if (level == PG_LEVEL_4K && is_table_full(child->spt, start, end)) {
				nr_mapped = nr;
				break;
			}
		}

		r = check_vma(p, __gfn_to_hva_memslot(slot, first),
			      __gfn_to_hva_memslot(slot, last - 1) + PAGE_SIZE);
		if (r < 0)
			return r;
		if (!r)
			break;

		/* Don't replace a table that the NX huge page mitigation made. */
		if (iter.level <= level && !(child && child->nx_huge_page_disallowed)) {
			r = install_huge(p, root, &iter);
			if (r < 0)
				return r;
			if (r) {
				mapped_level = iter.level;
				nr_mapped = nr;
				installed = KVM_PAGES_PER_HPAGE(iter.level);
			}
			break;
		}

		if (child) {
			nr_mapped = fill_holes(p, root, child->spt, start, end, &installed);
			if (installed)
				kvm_update_page_stats(kvm, PG_LEVEL_4K, installed);
			break;
		}

		/* Don't build page tables above, or for, nothing. */
		if (!filled && !host_has_any(kvm, __gfn_to_hva_memslot(slot, start), nr))
			break;

		if ((level == PG_LEVEL_4K && !p->leaf_sp) ||
		    (iter.level > PG_LEVEL_2M && !p->table_sp))
			return -ENOBUFS;

		/* What is filled in remains right until mmu_lock is dropped. */
		if (level == PG_LEVEL_4K && !filled) {
			installed = fill_new_table(p, root, p->leaf_sp->spt, start, end);
			if (!installed)
				break;
			filled = true;
		}

		if (iter.level > PG_LEVEL_2M) {
			memset64(p->table_sp->spt, SHADOW_NONPRESENT_VALUE, SPTE_ENT_PER_PAGE);
			r = link_sp(p, &iter, &p->table_sp);
			if (r)
				return r;
			continue;
		}

		r = link_sp(p, &iter, &p->leaf_sp);
		if (r)
			return r;

		kvm_update_page_stats(kvm, PG_LEVEL_4K, installed);
		nr_mapped = installed;
		break;
	}

	if (installed)
		atomic64_add(mapped_level > PG_LEVEL_4K ? 1 : installed,
			     &kvm->stat.tdp_populated[mapped_level - 1]);
	if (nr_mapped != nr)
		atomic64_add(nr - nr_mapped, &kvm->stat.tdp_populate_absent);

	p->mapped += nr_mapped;
	p->installed += installed;
	p->absent += nr - nr_mapped;
	trace_kvm_tdp_populate(slot->as_id, start, mapped_level, nr, nr_mapped, installed);
	return 0;
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

/* Get page tables, charged to the VM, while nothing is locked. */
static int topup(struct kvm_tdp_populate *p)
{
	if (!p->leaf_sp)
		p->leaf_sp = tdp_mmu_alloc_sp_for_split();
	if (!p->table_sp)
		p->table_sp = tdp_mmu_alloc_sp_for_split();

	return p->leaf_sp && p->table_sp ? 0 : -ENOMEM;
}

/*
 * Map what the host has present of [@start, @end), up to the end of the 2MiB
 * region that @start is in.  The range must be within p->slot.
 *
 * Returns the number of 4KiB pages that were dealt with, or
 *   -EAGAIN the memslot or its mapping is just being changed, try later
 *   -ENOMEM no memory for page tables
 */
long kvm_tdp_populate(struct kvm_tdp_populate *p, gfn_t start, gfn_t end)
{
	struct kvm *kvm = p->kvm;
	struct kvm_mmu_page *root;
	int r;

	lockdep_assert_held(&kvm->srcu);

	end = min(end, gfn_round_for_level(start, PG_LEVEL_2M) +
		       KVM_PAGES_PER_HPAGE(PG_LEVEL_2M));

	if (p->took_sp && topup(p))
		return -ENOMEM;
	p->took_sp = false;

	do {
		/*
		 * One region per acquisition: a writer never waits for longer,
		 * and the root, gone invalid meanwhile, is looked up anew.
		 */
		read_lock(&kvm->mmu_lock);
		rcu_read_lock();

		root = find_root(kvm, p->role);
		r = root ? populate_region(p, root, start, end) : -ENOENT;

		rcu_read_unlock();
		read_unlock(&kvm->mmu_lock);

		if (r == -ENOBUFS)
			r = topup(p) ?: -EBUSY;
		else if (r == -ENOENT)
			r = kvm_tdp_mmu_create_root(kvm, p->role) ?: -EBUSY;
	} while (r == -EBUSY);

	return r ?: end - start;
}

void kvm_tdp_populate_end(struct kvm_tdp_populate *p)
{
	if (p->leaf_sp)
		tdp_mmu_free_sp(p->leaf_sp);
	if (p->table_sp)
		tdp_mmu_free_sp(p->table_sp);
}
