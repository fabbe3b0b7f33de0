// SPDX-License-Identifier: GPL-2.0
/*
 * Fault-around of Global TDP: what a vCPU's fault maps besides its own page.
 *
 * The fault that links a page table fills it before, with all that the host has present
 * of the table's 2MiB.  Later faults map the aligned 16 pages around them, and more if
 * the guest uses most of what is mapped.  The page table is all the state: SPTEs are
 * populated with Accessed clear, so the bit says that the guest has used the page.
 */
#include "global_tdp.h"
#include "gtdp.h"
#include "spte.h"
#include "tdp_host.h"
#include "tdp_mmu.h"

/* The pages that the host maps around a fault of its own, by default. */
#define GTDP_AROUND	16

struct gtdp_window {
	gfn_t start;
	gfn_t end;
};

/* The aligned @nr pages around @gfn, as far as they are in the slot. */
static struct gtdp_window gtdp_window(const struct kvm_memory_slot *slot, gfn_t gfn,
				      unsigned int nr)
{
	return (struct gtdp_window) {
		.start = max(slot->base_gfn, round_down(gfn, nr)),
		.end = min(gtdp_slot_end(slot), round_down(gfn, nr) + nr),
	};
}

static bool gtdp_is_mapped(const u64 *spt, gfn_t gfn)
{
	return is_shadow_present_pte(READ_ONCE(spt[gfn % SPTE_ENT_PER_PAGE]));
}

/*
 * Look at one SPTE of GTDP_AROUND and one more, so that strides of powers of two meet few.
 * If the guest has used most of those that are mapped, map four times as many pages as it
 * has used.  Next to nothing is left to map in a table of which all of these are mapped.
 */
static unsigned int gtdp_window_size(const u64 *spt)
{
	unsigned int i, nr = 0, mapped = 0, used = 0;
	u64 spte;

	if (!kvm_ad_enabled)
		return GTDP_AROUND;

	for (i = 0; i < SPTE_ENT_PER_PAGE; i += GTDP_AROUND + 1) {
		spte = READ_ONCE(spt[i]);
		nr++;
		if (is_shadow_present_pte(spte)) {
			mapped++;
			used += !!(spte & shadow_accessed_mask);
		}
	}

	if (used < 3 || used * 2 < mapped || mapped == nr)
		return GTDP_AROUND;

	return min(4 * GTDP_AROUND * rounddown_pow_of_two(used), SPTE_ENT_PER_PAGE);
}

/*
 * Whether the host has something present in @w that is not mapped.  A guest that allocates
 * page by page pays for this look with each fault: take no lock.  The host can't free its
 * page tables while IRQs are disabled.  The result is a hint, as kvm_tdp_populate() looks
 * again, under mmu_lock.
 */
static bool gtdp_host_has_more(const struct kvm_tdp_populate *p, const u64 *spt,
			       struct gtdp_window w)
{
	struct host_mapping m;
	unsigned int i;

	guard(irqsave)();

	m = tdp_host_mapping(p->kvm->mm, __gfn_to_hva_memslot(p->slot, w.start), w.end - w.start);
	for (i = 0; i < m.nr; i++) {
		if (!gtdp_is_mapped(spt, w.start + i) && host_pte(&m, i) & _PAGE_PRESENT)
			return true;
	}
	return false;
}

/*
 * Find what to map around a fault in a table that exists: nothing if @present, and the
 * host has no more present around it.  RCU keeps the table; its SPTEs may change.
 */
static struct gtdp_window gtdp_find_window(struct kvm_vcpu *vcpu, struct kvm_tdp_populate *p,
					   gfn_t gfn, bool present)
{
	struct gtdp_window w = gtdp_window(p->slot, gfn, GTDP_AROUND), none = {};
	u64 *sptep, spte, *spt;

	guard(rcu)();

	/* The table may be gone again, or replaced by a huge page. */
	sptep = kvm_tdp_mmu_fast_pf_get_last_sptep(vcpu, gfn, &spte);
	if (!sptep || sptep_to_sp(sptep)->role.level > PG_LEVEL_4K)
		return none;

	spt = sptep_to_sp(sptep)->spt;
	if (present && !gtdp_host_has_more(p, spt, w))
		return none;

	w = gtdp_window(p->slot, gfn, gtdp_window_size(spt));

	/* Leave out what is mapped at the ends, e.g. what has been read of a file so far. */
	while (w.start < gfn && gtdp_is_mapped(spt, w.start))
		w.start++;
	while (w.end > gfn + 1 && gtdp_is_mapped(spt, w.end - 1))
		w.end--;
	return w;
}

/* Whether, and with what, to map more than the fault's own page. */
static bool gtdp_begin_fault_around(struct kvm_vcpu *vcpu, const struct kvm_page_fault *fault,
				    struct kvm_tdp_populate *p)
{
	*p = (struct kvm_tdp_populate) {
		.kvm = vcpu->kvm,
		.slot = fault->slot,
		.role = vcpu->arch.mmu->root_role,
	};

	/* The root of a nested guest without paging of its own is rare. */
	return p->slot && gtdp_is_user_slot(p->slot) && !fault->prefetch &&
	       fault->goal_level == PG_LEVEL_4K && !p->role.guest_mode;
}

static void gtdp_account(const struct kvm_tdp_populate *p, const struct gtdp_timer *timer)
{
	struct kvm_vm_stat *stat = &p->kvm->stat;
	u64 ns = gtdp_timer_ns(timer);

	atomic64_add(p->installed, &stat->tdp_fault_around);
	atomic64_add(ns, &stat->tdp_fault_around_time_ns);
	atomic64_inc(&stat->tdp_fault_around_hist[min_t(int, fls64(ns),
							TDP_FAULT_AROUND_HIST_COUNT - 1)]);
}

int kvm_gtdp_link_sp(struct kvm_vcpu *vcpu, struct kvm_page_fault *fault,
		     struct tdp_iter *iter, struct kvm_mmu_page *sp)
{
	const struct gtdp_timer timer = gtdp_timer();
	struct kvm_tdp_populate p;
	int r;

	if (!gtdp_begin_fault_around(vcpu, fault, &p))
		return tdp_mmu_link_sp(vcpu->kvm, iter, sp, true);

	r = kvm_tdp_populate_link(&p, iter, sp, fault->gfn);
	fault->filled = p.installed;
	gtdp_account(&p, &timer);
	return r;
}

void kvm_gtdp_fault_around(struct kvm_vcpu *vcpu, struct kvm_page_fault *fault, int r)
{
	struct kvm_tdp_populate p;
	struct gtdp_timer timer;
	struct gtdp_window w;
	bool cached = false;

	/* Someone else, e.g. the follower, may have been faster with the page itself. */
	if (r != RET_PF_FIXED && r != RET_PF_SPURIOUS)
		return;

	if (!kvm_gtdp_has(vcpu->kvm, KVM_GLOBAL_TDP_FAULT_AROUND) || fault->filled ||
	    !gtdp_begin_fault_around(vcpu, fault, &p))
		return;

	if (kvm_gtdp_has(vcpu->kvm, KVM_GLOBAL_TDP_PAGE_CACHE)) {
		w = gtdp_find_window(vcpu, &p, fault->gfn, false);
		if (w.end - w.start > GTDP_AROUND) {
			timer = gtdp_timer();
			cached = gtdp_map_page_cache(&p, w.start, w.end, fault);
		}
	}

	if (!cached) {
		w = gtdp_find_window(vcpu, &p, fault->gfn, true);
		if (w.start == w.end)
			return;
		timer = gtdp_timer();
	}

	kvm_tdp_populate(&p, w.start, w.end);
	kvm_tdp_populate_end(&p);

	gtdp_account(&p, &timer);
	if (cached)
		atomic64_add(p.installed, &vcpu->kvm->stat.tdp_page_cache);
}
