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
#include "mmu.h"
#include "mmutrace.h"
#include "tdp_fill.h"
#include "tdp_iter.h"
#include "tdp_mmu.h"
#include "tdp_populate.h"

#include <linux/memcontrol.h>

/* The result of a region's scan.  An error ends the walk; that of the first is the walk's. */
enum scan_result {
	/* Pages are mapped as far as the host has them, see region.mapped. */
	SCAN_DONE,
	/* What is mapped is not all that can be, maybe. */
	SCAN_INCOMPLETE,
	/* A table below maps it.  The walk ends with this only if that was zapped since. */
	SCAN_DESCEND = -EINPROGRESS,
	/* Another thread was faster: scan again. */
	SCAN_RACED = -EBUSY,
	/* Needs a page table, see topup_sps(). */
	SCAN_NO_TABLE = -ENOBUFS,
	/* Is just being changed by a zap, or by the host. */
	SCAN_CHANGING = -EAGAIN,
};

/* How many pages of [@start, @end) are wanted. */
static u64 tdp_nr_wanted(const struct kvm_tdp_populate *p, gfn_t start, gfn_t end)
{
	unsigned int first = start & (SPTE_ENT_PER_PAGE - 1), i, run_end, nr = 0;

	if (!p->wanted)
		return end - start;

	for_each_wanted_run(p, i, run_end, first, first + (end - start))
		nr += run_end - i;

	return nr;
}

/* A 2MiB region, or the part of it that is asked for, that is scanned. */
struct region {
	gfn_t start;
	gfn_t end;
	/* The pages of it that are wanted. */
	unsigned int nr;
	/* What the host has at its start. */
	struct host_mapping m;
	/* The level to map at; the range that is mapped by one SPTE of that. */
	int level;
	gfn_t first;
	gfn_t last;
	/* Pages in p->sps[0], which are right until mmu_lock is dropped. */
	unsigned int filled;
	/* The page table that maps it already. */
	struct kvm_mmu_page *child;
	/* What came of it: the level of the leaf SPTEs; pages, and the new ones. */
	int leaf_level;
	unsigned int mapped;
	unsigned int installed;
};

static __always_inline struct host_mapping host_mapping(struct kvm_tdp_populate *p,
							gfn_t gfn, gfn_t end)
{
	guard(irqsave)();

	return tdp_host_mapping(p->kvm->mm, __gfn_to_hva_memslot(p->slot, gfn), end - gfn);
}

/* Returns false if the host is about to change the region. */
static bool scan_host(struct kvm_tdp_populate *p, struct region *r, gfn_t start, gfn_t end)
{
	*r = (struct region) {
		.start = start,
		.end = end,
		.nr = tdp_nr_wanted(p, start, end),
		.m = host_mapping(p, start, end),
		.level = PG_LEVEL_4K,
		.leaf_level = PG_LEVEL_4K,
	};

	/* Dirty pages are logged, as ever, one by one. */
	if (r->m.level > PG_LEVEL_4K && !kvm_slot_dirty_track_enabled(p->slot) &&
	    is_host_pte_usable(p, r->m.huge_pte))
		r->level = kvm_mmu_max_slot_level(p->slot, start, r->m.level);

	r->first = gfn_round_for_level(start, r->level);
	r->last = max(end, r->first + KVM_PAGES_PER_HPAGE(r->level));

	return !is_gfn_range_being_invalidated(p->kvm, r->first, r->last);
}

/* Whether the host has anything to map, at least in parts, in the region. */
static bool host_maps_any(struct kvm_tdp_populate *p, struct region *r)
{
	struct host_mapping m = r->m;

	/* The region may not be congruent with the host's page tables. */
	if (!m.ptep && !m.huge_pte && m.nr < r->end - r->start)
		m = host_mapping(p, r->start + m.nr, r->end);

	return m.ptep || m.huge_pte;
}

/*
 * Install a huge leaf SPTE at the iterator's position.  It may replace a page
 * table, e.g. if the host collapsed small pages after they had been mapped; as
 * in the fault path, RCU keeps that alive until the flush is done.
 */
static enum scan_result install_huge(struct kvm_tdp_populate *p, struct kvm_mmu_page *root,
				     struct tdp_iter *iter, struct region *r)
{
	bool writable = is_populated_writable(p, r->m.huge_pte);
	bool was_table = is_shadow_present_pte(iter->old_spte);
	kvm_pfn_t pfn = host_pte_pfn(r->m.huge_pte) & -KVM_PAGES_PER_HPAGE(iter->level);
	u64 spte;

	spte = make_populate_spte(p->kvm, root, p->slot, iter->level, iter->gfn,
				  pfn, writable);

	if (kvm_tdp_mmu_set_spte_atomic(p->kvm, iter, spte))
		return SCAN_RACED;

	if (was_table)
		kvm_flush_remote_tlbs_gfn(p->kvm, iter->gfn, iter->level);

	r->leaf_level = iter->level;
	r->installed = KVM_PAGES_PER_HPAGE(iter->level);
	r->mapped = r->nr;
	return SCAN_DONE;
}

/* See whether what is mapped at the iterator's position is all that can be. */
static enum scan_result scan_spte(struct kvm_tdp_populate *p, struct tdp_iter *iter,
				  struct region *r)
{
	struct kvm_mmu_page *child;

	if (is_frozen_spte(iter->old_spte))
		return SCAN_CHANGING;
	if (!is_shadow_present_pte(iter->old_spte))
		return SCAN_INCOMPLETE;

	if (is_large_pte(iter->old_spte)) {
		tdp_restore_writable(p->slot, rcu_dereference(iter->sptep),
				     iter->old_spte);
		r->leaf_level = iter->level;
		r->mapped = r->nr;
		return SCAN_DONE;
	}

	child = spte_to_child_sp(iter->old_spte);
	if (iter->level > PG_LEVEL_2M &&
	    (iter->level > r->level || child->nx_huge_page_disallowed))
		return SCAN_DESCEND;

	/* Nothing to fill?  That is quickly told. */
	if ((r->level == PG_LEVEL_4K || child->nx_huge_page_disallowed) &&
	    tdp_table_complete(p, child->spt, r->start, r->end)) {
		r->mapped = r->nr;
		return SCAN_DONE;
	}

	r->child = child;
	return SCAN_INCOMPLETE;
}

/*
 * Whether p->sps[0] was asked for on the node of the first page that it maps.  If not,
 * that is where to have it, the next ones, and those above that it takes: memory of a
 * node mostly comes in one piece.
 */
static bool node_matches(struct kvm_tdp_populate *p, const struct region *r)
{
	const u64 *spt = p->sps[0]->spt, *sptep = spt + (r->start & (SPTE_ENT_PER_PAGE - 1));
	int nid, wanted;

	while (!is_shadow_present_pte(*sptep))
		sptep++;

	if (!pfn_valid(spte_to_pfn(*sptep)))
		return true;

	nid = pfn_to_nid(spte_to_pfn(*sptep));
	wanted = p->node ? p->node - 1 : page_to_nid(virt_to_page(spt));
	p->node = nid + 1;
	return nid == wanted;
}

/*
 * Link a page table, or one above that it takes.  Fill it before one above is linked:
 * if nothing is in there, that is all; if it is on the wrong node, it takes others.
 */
static enum scan_result build_table(struct kvm_tdp_populate *p, struct kvm_mmu_page *root,
				    struct tdp_iter *iter, struct region *r)
{
	const bool upper = iter->level > PG_LEVEL_2M;
	struct kvm_mmu_page **sp;

	p->nr_wanted_sps = iter->level - r->level;
	if (p->nr_sps < p->nr_wanted_sps)
		return SCAN_NO_TABLE;

	if (r->level == PG_LEVEL_4K) {
		if (!r->filled)
			r->filled = tdp_fill_table(p, root, p->sps[0]->spt, r->start, r->end);
		if (!r->filled)
			return SCAN_DONE;

		if (num_online_nodes() > 1 && !node_matches(p, r)) {
			kvm_tdp_populate_end(p);
			return SCAN_NO_TABLE;
		}
	}

	sp = upper ? &p->sps[p->nr_sps - 1] : &p->sps[0];
	if (upper)
		memset64((*sp)->spt, SHADOW_NONPRESENT_VALUE, SPTE_ENT_PER_PAGE);

	tdp_mmu_init_child_sp(*sp, iter);
	if (tdp_mmu_link_sp(p->kvm, iter, *sp, true))
		return SCAN_RACED;
	*sp = p->sps[--p->nr_sps];

	if (upper) {
		p->nr_wanted_sps--;
		return SCAN_DESCEND;
	}

	r->installed = r->filled;
	r->mapped = r->filled;
	return SCAN_DONE;
}

/*
 * Map what can be mapped of the region at @gfn by the SPTE at the iterator's position, or in
 * its table.  The first time, see what the host has.
 */
static enum scan_result populate_region(struct kvm_tdp_populate *p, struct kvm_mmu_page *root,
					struct tdp_iter *iter, struct region *r,
					gfn_t gfn, gfn_t end)
{
	enum scan_result result;
	int usable;

	/* A table on the way down was zapped, and the walk went past it. */
	if (iter->gfn > gfn)
		return SCAN_RACED;

	end = min(end, gfn_round_for_level(gfn, PG_LEVEL_2M) + KVM_PAGES_PER_HPAGE(PG_LEVEL_2M));
	if (r->start != gfn && !scan_host(p, r, gfn, end))
		return SCAN_CHANGING;

	result = scan_spte(p, iter, r);
	if (result != SCAN_INCOMPLETE)
		return result;

	/* The host maps nothing here: don't allocate and link an empty page table. */
	if (!host_maps_any(p, r))
		return SCAN_DONE;

	usable = tdp_host_check_vma(p, r->first, r->last);
	if (usable <= 0)
		return usable ? SCAN_CHANGING : SCAN_DONE;

	/* Don't replace a table that the NX huge page mitigation made. */
	if (iter->level <= r->level && !(r->child && r->child->nx_huge_page_disallowed))
		return install_huge(p, root, iter, r);

	if (!r->child)
		return build_table(p, root, iter, r);

	r->mapped = tdp_fill_holes(p, r->child, r->start, r->end, &r->installed);
	return SCAN_DONE;
}

static void count_absent(struct kvm_tdp_populate *p, u64 nr)
{
	p->absent += nr;
	atomic64_add(nr, &p->kvm->stat.tdp_populate_absent);
}

/* Once a region is dealt with, of which a leaf SPTE above may have mapped more. */
static void finish_region(struct kvm_tdp_populate *p, struct tdp_iter *iter,
			  struct region *r, gfn_t end)
{
	if (r->leaf_level > PG_LEVEL_2M) {
		r->end = min(end, iter->gfn + KVM_PAGES_PER_HPAGE(r->leaf_level));
		r->nr = tdp_nr_wanted(p, r->start, r->end);
		r->mapped = r->nr;
	}

	/* What is huge has been counted as it was installed. */
	if (r->installed && r->leaf_level == PG_LEVEL_4K)
		kvm_update_page_stats(p->kvm, PG_LEVEL_4K, r->installed);
	if (r->installed)
		atomic64_add(r->leaf_level > PG_LEVEL_4K ? 1 : r->installed,
			     &p->kvm->stat.tdp_populated[r->leaf_level - 1]);
	trace_kvm_tdp_populate(p->slot->as_id, r->start, r->leaf_level,
			       r->nr, r->mapped, r->installed);

	p->mapped += r->mapped;
	p->installed += r->installed;
	if (r->mapped < r->nr)
		count_absent(p, r->nr - r->mapped);
}

/* Regions, other than new page tables, per acquisition of mmu_lock. */
#define SCANS_PER_LOCK	16

/*
 * Map what is present from @start on, until @end or until enough has been done
 * for one acquisition of mmu_lock, which is held for read, as is RCU.  Returns
 * the number of pages that were dealt with or, if there was none, why.
 */
static long populate_range(struct kvm_tdp_populate *p, struct kvm_mmu_page *root,
			   gfn_t start, gfn_t end)
{
	struct region r = { .start = INVALID_GPA };
	enum scan_result result = SCAN_RACED;
	unsigned int scans = 0;
	struct tdp_iter iter;
	gfn_t gfn = start;

	if (p->slot->flags & KVM_MEMSLOT_INVALID)
		return -EAGAIN;

	tdp_fill_begin(p);

	for_each_tdp_pte_min_level(iter, p->kvm, root, PG_LEVEL_2M, start, end) {
		result = populate_region(p, root, &iter, &r, gfn, end);
		if (result == SCAN_DESCEND)
			continue;
		if (result != SCAN_DONE)
			break;

		finish_region(p, &iter, &r, end);
		gfn = r.end;

		/*
		 * A table's worth of 4KiB pages is enough for a waiting writer.  Above 2MiB, the
		 * walk goes on behind the SPTE, past regions that no table reaches yet.
		 */
		if (iter.level > PG_LEVEL_2M || ++scans == SCANS_PER_LOCK ||
		    (r.installed && r.leaf_level == PG_LEVEL_4K))
			break;
	}

	return gfn > start ? gfn - start : result;
}

/*
 * Page tables are charged to the VM, but are a convenience: rather do without one
 * than have the VM's, or anybody's, memory reclaimed for it, let alone a process
 * killed.
 */
#define POPULATE_GFP	(GFP_NOWAIT | __GFP_ACCOUNT)

/*
 * A task that is charged above memory.high, of its cgroup or of one above, has to reclaim,
 * and to wait.  The follower, a user worker, does without a page table instead.
 */
static bool may_charge(void)
{
#ifdef CONFIG_MEMCG
	struct mem_cgroup *memcg;

	if (!(current->flags & PF_USER_WORKER) || !memcg_kmem_online())
		return true;

	guard(rcu)();

	for (memcg = mem_cgroup_from_task(current); memcg; memcg = parent_mem_cgroup(memcg)) {
		if (page_counter_read(&memcg->memory) > READ_ONCE(memcg->memory.high))
			return false;
	}
#endif
	return true;
}

/*
 * Get the page tables that are wanted, with nothing locked: if the previous region took
 * one, so will the next, mostly.
 */
static int topup_sps(struct kvm_tdp_populate *p)
{
	const int nr = p->nr_wanted_sps;
	struct kvm_mmu_page *sp;

	p->nr_wanted_sps = 0;
	while (p->nr_sps < nr) {
		sp = may_charge() ? tdp_mmu_alloc_sp_for_split(POPULATE_GFP, p->node - 1) : NULL;
		if (!sp)
			return -ENOMEM;
		p->sps[p->nr_sps++] = sp;
	}

	return 0;
}

/*
 * The root may have gone invalid since mmu_lock was dropped.  The role says whether a root is
 * valid.
 */
static long populate_under_lock(struct kvm_tdp_populate *p, gfn_t start, gfn_t end)
{
	struct kvm_mmu_page *root;

	guard(read_lock)(&p->kvm->mmu_lock);
	guard(rcu)();

	list_for_each_entry_rcu(root, &p->kvm->arch.tdp_mmu_roots, link) {
		if (root->role.word == p->role.word)
			return populate_range(p, root, start, end);
	}

	return -ENOENT;
}

/*
 * Map what the host has present from @start on, up to @end at the most.  The
 * range must be within p->slot.
 *
 * Returns the number of 4KiB pages that were dealt with, wanted or not, i.e. not less
 * than those up to the end of the 2MiB region that @start is in, or
 *   -EAGAIN the memslot or its mapping is just being changed, try later
 *   -ENOMEM no memory for page tables, or none that may be charged
 */
long kvm_tdp_populate(struct kvm_tdp_populate *p, gfn_t start, gfn_t end)
{
	const gfn_t nr_gfns = tdp_root_nr_gfns(p->role.level);
	long r = 0;

	lockdep_assert_held(&p->kvm->srcu);

	/* What no vCPU can reach is not there. */
	if (start >= nr_gfns) {
		count_absent(p, tdp_nr_wanted(p, start, end));
		return end - start;
	}
	end = min(end, nr_gfns);

	do {
		if (topup_sps(p) && r == SCAN_NO_TABLE)
			goto nomem;

		r = populate_under_lock(p, start, end);
		if (r == -ENOENT &&
		    (!may_charge() || kvm_tdp_mmu_create_root(p->kvm, p->role, POPULATE_GFP)))
			goto nomem;
	} while (r < 0 && r != SCAN_CHANGING);

	return r;

nomem:
	atomic64_inc(&p->kvm->stat.tdp_populate_nomem);
	return -ENOMEM;
}

/*
 * Link @sp, which is to map 4KiB pages, at the iterator's position, for a fault at @gfn,
 * which maps that page itself.  Fill it before, by plain stores, with what the host has
 * present of the others.  Call with mmu_lock held for read, under RCU.  Returns what
 * tdp_mmu_link_sp() does.
 */
int kvm_tdp_populate_link(struct kvm_tdp_populate *p, struct tdp_iter *iter,
			  struct kvm_mmu_page *sp, gfn_t gfn)
{
	const struct kvm_memory_slot *slot = p->slot;
	u64 *own = sp->spt + (gfn & (SPTE_ENT_PER_PAGE - 1));
	struct region r = {
		.start = max(slot->base_gfn, iter->gfn),
		.end = min(slot->base_gfn + slot->npages, iter->gfn + SPTE_ENT_PER_PAGE),
		.leaf_level = PG_LEVEL_4K,
	};
	int ret;

	if (is_gfn_range_being_invalidated(p->kvm, r.start, r.end) ||
	    tdp_host_check_vma(p, r.start, r.end) <= 0)
		return tdp_mmu_link_sp(p->kvm, iter, sp, true);

	tdp_fill_begin(p);
	r.installed = tdp_fill_table(p, sp, sp->spt, r.start, r.end);
	r.installed -= is_shadow_present_pte(*own);
	*own = SHADOW_NONPRESENT_VALUE;

	ret = tdp_mmu_link_sp(p->kvm, iter, sp, true);
	if (ret)
		return ret;

	r.nr = r.end - r.start;
	r.mapped = r.installed + 1;
	finish_region(p, iter, &r, r.end);
	return 0;
}

void kvm_tdp_populate_end(struct kvm_tdp_populate *p)
{
	while (p->nr_sps)
		tdp_mmu_free_unused_sp(p->sps[--p->nr_sps]);
}
