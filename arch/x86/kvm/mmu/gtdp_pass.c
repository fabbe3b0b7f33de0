// SPDX-License-Identifier: GPL-2.0
/*
 * Passes of Global TDP's follower over the memslots.
 */
#include "global_tdp.h"
#include "gtdp.h"

/*
 * Of a region that is not complete, or of which nothing is known if @err: what a
 * further scan may gain.  Whoever has marked it meanwhile knows better.
 */
static void gtdp_requeue_region(struct gtdp_pass *pass, u8 *r, u8 todo, int err)
{
	struct kvm_gtdp *gtdp = pass->p.kvm->arch.gtdp;

	if (err) {
		/* It remains due. */
		todo = clamp_t(u8, todo, GTDP_NEW, GTDP_ZAPPED);
		if (todo == GTDP_ZAPPED)
			gtdp_plan_look(gtdp, 0, HZ);
		pass->err = err;
	} else if (todo >= GTDP_ZAPPED && todo < GTDP_LAST_LOOK && READ_ONCE(gtdp->has_run)) {
		gtdp_plan_look(gtdp, todo - GTDP_ZAPPED + 1,
			       3 * HZ << 2 * (todo - GTDP_ZAPPED));
		todo++;
	} else {
		/*
		 * It never was there or was taken away: for good or, before a vCPU
		 * has run, e.g. for postcopy to bring it in again.
		 */
		todo = GTDP_ABSENT;
	}

	cmpxchg(r, GTDP_DONE, todo);
}

static void gtdp_scan_region(struct gtdp_pass *pass, u8 *r,
			     gfn_t start, gfn_t end)
{
	u64 absent = pass->p.absent, installed = pass->p.installed;
	long ret;
	u8 todo;

	lockdep_assert_held(&pass->p.kvm->srcu);

	/*
	 * A zap that happens from now on marks the region again.  The store is
	 * ordered by the acquisition of mmu_lock, without which the host can
	 * not begin to zap.
	 */
	todo = xchg(r, GTDP_DONE);
	ret = kvm_tdp_populate(&pass->p, start, end);
	pass->scans++;

	absent = pass->p.absent - absent;
	installed = pass->p.installed - installed;

	if (todo >= GTDP_ZAPPED)
		atomic64_add(installed, &pass->p.kvm->stat.tdp_repopulated);
	else if (installed)
		pass->arrived = true;

	/* What is missing may come, or come back. */
	if (ret < 0 || absent)
		gtdp_requeue_region(pass, r, todo, min(ret, 0L));
}

/*
 * Scan what is due of pass->p.slot, from pass->gfn on.  Returns false if @pages, or
 * memory, is used up before the end of the slot.
 */
static bool gtdp_scan_slot(struct gtdp_pass *pass, int *pages)
{
	const struct kvm_memory_slot *slot = pass->p.slot;
	u8 *r;
	gfn_t start, end;

	for (start = max(pass->gfn, slot->base_gfn); start < gtdp_slot_end(slot); start = end) {
		pass->gfn = start;

		if (*pages <= 0)
			return false;

		end = gtdp_region_end(start, gtdp_slot_end(slot));
		r = gtdp_region(slot, start);
		if (!(pass->todos & BIT(READ_ONCE(*r)))) {
			--*pages;
			continue;
		}

		gtdp_scan_region(pass, r, start, end);
		if (pass->err == -ENOMEM)
			return false;
		*pages -= KVM_PAGES_PER_HPAGE(PG_LEVEL_2M);
	}

	pass->gfn = start;
	return true;
}

/* Scan some regions from pass->gfn on.  Returns false if there is nothing left to scan. */
static bool gtdp_scan_batch(struct gtdp_pass *pass)
{
	int pages = GTDP_PAGES_PER_BATCH;
	struct kvm *kvm = pass->p.kvm;
	struct kvm_memslot_iter iter;

	guard(srcu)(&kvm->srcu);

	/* Regions that were not scanned stay due. */
	if (!kvm_gtdp_has(kvm, ~0ull) || signal_pending(current)) {
		pass->err = -EINTR;
		return false;
	}

	/* VMAs are known for as long as memslots can't go away. */
	pass->p.vma_end = 0;

	kvm_for_each_memslot_in_gfn_range(&iter, __kvm_memslots(kvm, pass->as_id),
					  pass->gfn, kvm_mmu_max_gfn() + 1) {
		pass->p.slot = iter.slot;
		if (!iter.slot->arch.gtdp_regions)
			continue;

		if (!gtdp_scan_slot(pass, &pages))
			return pass->err != -ENOMEM;
	}

	return false;
}

void gtdp_run_pass(struct kvm_gtdp *gtdp, struct gtdp_pass *pass)
{
	struct kvm *kvm = gtdp->kvm;

	pass->p.kvm = kvm;

	for (; pass->as_id < kvm_arch_nr_memslot_as_ids(kvm) && !gtdp_is_partial(pass);
	     pass->as_id++, pass->gfn = 0) {
		if (!kvm_mmu_get_vm_root_role(kvm, pass->as_id, &pass->p.role)) {
			pass->err = -EAGAIN;
			continue;
		}

		while (gtdp_scan_batch(pass)) {
			/*
			 * A thread that never returns to userspace must do what is done on the
			 * way there: to be stopped by cpu.max, among others, for which vCPUs
			 * would pay.  A pending signal ends the pass.
			 */
			xfer_to_guest_mode_handle_work();
		}
	}

	kvm_tdp_populate_end(&pass->p);
}
