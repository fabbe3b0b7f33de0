// SPDX-License-Identifier: GPL-2.0
/*
 * Passes of Global TDP over the memslots: the follower's, and its helpers' share of
 * them.
 */
#include "global_tdp.h"
#include "gtdp.h"

#include <linux/sched/rt.h>
#include <linux/sched/vhost_task.h>

/*
 * A pass is shared with helpers if it has mapped so much more than a page a scan,
 * 32MiB. They claim strides of so much memory, 64MiB.
 */
#define GTDP_PAGES_TO_SHARE	(16 * KVM_PAGES_PER_HPAGE(PG_LEVEL_2M))
#define GTDP_STRIDE_PAGES		(32 * KVM_PAGES_PER_HPAGE(PG_LEVEL_2M))

/*
 * Memory that userfaultfd is to deliver will arrive, however long it takes: the
 * VMM ends that by unregistering it.  One check of a VMA is enough.
 */
static bool gtdp_is_uffd_pending(struct gtdp_pass *pass, gfn_t gfn)
{
	unsigned long hva = __gfn_to_hva_memslot(pass->p.slot, gfn);
	struct mm_struct *mm = pass->p.kvm->mm;
	struct vm_area_struct *vma;
	bool uffd_pending;

	if (hva >= pass->no_uffd_start && hva < pass->no_uffd_end)
		return false;

	/* Ask again later. */
	if (!mmap_read_trylock(mm))
		return true;

	vma = vma_lookup(mm, hva);
	uffd_pending = vma && (vma->vm_flags & (VM_UFFD_MISSING | VM_UFFD_MINOR));
	if (vma && !uffd_pending) {
		pass->no_uffd_start = hva;
		pass->no_uffd_end = vma->vm_end;
	}
	mmap_read_unlock(mm);

	return uffd_pending;
}

/*
 * Of a region that is not complete, or of which nothing is known if @err: what a
 * further scan may gain.  Whoever has marked it meanwhile knows better.
 */
static void gtdp_requeue_region(struct gtdp_pass *pass, struct kvm_gtdp_region *r, gfn_t start,
				enum gtdp_todo todo, u64 installed, long err, u8 now)
{
	const bool has_run = pass->p.kvm->arch.gtdp->has_run;

	if (err) {
		/* It remains due. */
		pass->retry = true;
		pass->nomem = err == -ENOMEM;
		pass->partial = pass->nomem;
		if (todo == GTDP_ABSENT)
			todo = GTDP_NEW;
	} else if (todo == GTDP_ZAPPED && has_run &&
		   (installed || READ_ONCE(r->backoff) < GTDP_BACKOFF_ZAPPED)) {
		if (installed)
			WRITE_ONCE(r->backoff, 0);
		gtdp_back_off(r, now);
		pass->due_in = min_not_zero(pass->due_in, gtdp_due_in(r, now));
	} else {
		/*
		 * It never was there or was taken away: for good or, before a vCPU
		 * has run, e.g. for postcopy to bring it in again.
		 */
		todo = GTDP_ABSENT;
		WRITE_ONCE(r->backoff, 0);
		if (!pass->uffd_pending && has_run)
			pass->uffd_pending = gtdp_is_uffd_pending(pass, start);
	}

	cmpxchg(&r->todo, GTDP_DONE, todo);
}

static void gtdp_scan_region(struct gtdp_pass *pass, struct kvm_gtdp_region *r,
			     gfn_t start, gfn_t end, u8 now)
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
	todo = xchg(&r->todo, GTDP_DONE);
	ret = kvm_tdp_populate(&pass->p, start, end);
	pass->scans++;

	absent = pass->p.absent - absent;
	installed = pass->p.installed - installed;

	if (todo == GTDP_ZAPPED)
		atomic64_add(installed, &pass->p.kvm->stat.tdp_repopulated);
	else if (installed)
		pass->arrived = true;
	if (todo != GTDP_ZAPPED && installed > 1 && !pass->as_id)
		WRITE_ONCE(pass->p.kvm->arch.gtdp->front, start);

	/* What is missing may come, or come back. */
	if (ret < 0 || absent)
		gtdp_requeue_region(pass, r, start, todo, installed, min(ret, 0L), now);
}

/* Whether to scan a region now. */
static bool gtdp_is_region_due(struct gtdp_pass *pass, const struct kvm_gtdp_region *r, u8 now)
{
	u8 wait;

	switch (READ_ONCE(r->todo)) {
	case GTDP_NEW:
		return true;
	case GTDP_ABSENT:
		return pass->absent;
	case GTDP_ZAPPED:
		wait = gtdp_due_in(r, now);
		pass->due_in = min_not_zero(pass->due_in, wait);
		return !wait;
	default:
		return false;
	}
}

/*
 * Claim the stride that @gfn is in, unless someone else has.  All walk the
 * memslots in the same order, from the same place: a stride below the last that
 * was claimed was claimed, too, as whoever went past it either did so or found
 * it claimed.
 */
static bool gtdp_claim_stride(struct gtdp_pass *pass, gfn_t gfn)
{
	s64 stride = gfn / GTDP_STRIDE_PAGES, last;
	atomic64_t *claimed = &pass->p.kvm->arch.gtdp->stride;

	if (!pass->shared || pass->stride == stride)
		return true;

	last = atomic64_read(claimed);
	do {
		if (last >= stride)
			return false;
	} while (!atomic64_try_cmpxchg(claimed, &last, stride));

	pass->stride = stride;
	return true;
}

/* What is left to do for one SRCU read-side section. */
struct gtdp_batch {
	int regions;
	int scans;
	u8 now;
};

/*
 * Scan what is due of pass->p.slot, from pass->gfn on.  Returns false if the batch, or
 * memory, is used up before the end of the slot.
 */
static bool gtdp_scan_slot(struct gtdp_pass *pass, struct gtdp_batch *batch)
{
	const struct kvm_memory_slot *slot = pass->p.slot;
	struct kvm_gtdp_region *r;
	gfn_t start, end;

	for (start = max(pass->gfn, slot->base_gfn); start < gtdp_slot_end(slot); start = end) {
		pass->gfn = start;

		if (!batch->regions-- || !batch->scans)
			return false;

		if (!gtdp_claim_stride(pass, start)) {
			end = ALIGN_DOWN(start, GTDP_STRIDE_PAGES) + GTDP_STRIDE_PAGES;
			continue;
		}

		end = gtdp_region_end(start, gtdp_slot_end(slot));
		r = gtdp_region(slot, start);
		if (!gtdp_is_region_due(pass, r, batch->now))
			continue;

		gtdp_scan_region(pass, r, start, end, batch->now);
		if (pass->nomem)
			return false;
		batch->scans--;
	}

	pass->gfn = start;
	return true;
}

/*
 * Scan some regions from pass->gfn on.  SRCU is not held for long, as
 * memslot updates wait for it.  Returns false at the end of the address space.
 */
static bool gtdp_scan_batch(struct gtdp_pass *pass)
{
	struct gtdp_batch batch = {
		.regions = GTDP_REGIONS_PER_BATCH,
		.scans = GTDP_SCANS_PER_BATCH,
	};
	const gfn_t max_gfn = kvm_mmu_max_gfn() + 1;
	struct kvm *kvm = pass->p.kvm;
	struct kvm_memslot_iter iter;

	guard(srcu)(&kvm->srcu);

	if (!kvm_gtdp_enabled(kvm))
		return false;

	batch.now = gtdp_now(kvm->arch.gtdp);

	/* VMAs are known for as long as memslots can't go away. */
	pass->p.vma_end = 0;

	kvm_for_each_memslot_in_gfn_range(&iter, __kvm_memslots(kvm, pass->as_id),
					  pass->gfn, max_gfn) {
		pass->p.slot = iter.slot;
		if (!iter.slot->arch.gtdp_regions)
			continue;

		if (!gtdp_scan_slot(pass, &batch))
			return !pass->nomem;
	}

	return false;
}

/* How many pages more than one each the scans of this slice have mapped. */
static s64 gtdp_gain(const struct gtdp_pass *pass)
{
	return pass->p.installed - pass->scans - pass->slice_gain;
}

static unsigned long gtdp_switches(void)
{
	return current->nvcsw + current->nivcsw;
}

static void gtdp_begin_slice(struct gtdp_pass *pass)
{
	pass->slice_start = ktime_get_ns();
	pass->slice_runtime = current->se.sum_exec_runtime;
	pass->slice_switches = gtdp_switches();
	pass->slice_scans = pass->scans;
	pass->slice_gain = pass->p.installed - pass->scans;
}

/*
 * How long the thread has had a CPU: all of the time, or what was counted as it went
 * and maybe up to a tick more.
 */
static u64 gtdp_slice_ns(const struct gtdp_pass *pass)
{
	u64 ns = ktime_get_ns() - pass->slice_start;

	if (pass->slice_switches == gtdp_switches())
		return ns;

	return min(ns, current->se.sum_exec_runtime - pass->slice_runtime + TICK_NSEC);
}

static bool gtdp_end_slice(struct gtdp_pass *pass)
{
	bool productive = gtdp_gain(pass) > 0;

	if (!productive)
		pass->wasted_ns += gtdp_slice_ns(pass);
	gtdp_begin_slice(pass);
	return productive;
}

/*
 * Wasted scans are throttled after some time.  To skip what needs none
 * takes long in terabytes only; and a pass that is to begin again has to get there.
 */
static bool gtdp_may_continue(struct gtdp_pass *pass)
{
	/*
	 * A thread that never returns to userspace must do what is done on the way
	 * there: to be stopped by cpu.max, among others, for which vCPUs would pay.
	 */
	if (xfer_to_guest_mode_handle_work() || READ_ONCE(pass->p.kvm->arch.gtdp->stop)) {
		pass->partial = true;
	} else if (gtdp_slice_ns(pass) >= GTDP_SLICE_NS) {
		bool scanned = pass->scans != pass->slice_scans;

		pass->partial = !gtdp_end_slice(pass) && scanned;
	}

	return !pass->partial;
}

/* Created by a vCPU's thread, it must not keep that from running. */
void gtdp_drop_rt(void)
{
	if (rt_task(current))
		sched_set_normal(current, 0);
}

bool gtdp_helper_fn(void *data)
{
	struct gtdp_helper *helper = data;
	u64 start;

	/* The pass was written before, see gtdp_share(), or is taken back. */
	if (cmpxchg(&helper->state, GTDP_HELPER_ASSIGNED,
		    GTDP_HELPER_BUSY) != GTDP_HELPER_ASSIGNED)
		return false;

	__set_current_state(TASK_RUNNING);
	gtdp_drop_rt();

	start = ktime_get_ns();
	gtdp_begin_slice(&helper->pass);
	while (gtdp_scan_batch(&helper->pass) && gtdp_may_continue(&helper->pass))
		;
	gtdp_end_slice(&helper->pass);
	kvm_tdp_populate_end(&helper->pass.p);
	atomic64_add(ktime_get_ns() - start, &helper->pass.p.kvm->stat.tdp_populate_time_ns);

	WRITE_ONCE(helper->state, GTDP_HELPER_IDLE);
	complete(&helper->done);
	return true;
}

void gtdp_helper_killed(void *data)
{
	struct gtdp_helper *helper = data;

	if (xchg(&helper->state, GTDP_HELPER_DEAD) == GTDP_HELPER_ASSIGNED)
		complete(&helper->done);
}

/* Share what is left of @pass, which is the follower's, with the helpers. */
static void gtdp_share(struct kvm_gtdp *gtdp, struct gtdp_pass *pass)
{
	struct gtdp_helper *helper, *last;

	/* So many are complete, see gtdp_create_helpers(). */
	last = gtdp->helpers + smp_load_acquire(&gtdp->nr_helpers);

	pass->shared = true;
	pass->stride = pass->gfn / GTDP_STRIDE_PAGES;
	atomic64_set(&gtdp->stride, pass->stride);

	for (helper = gtdp->helpers; helper < last; helper++) {
		if (READ_ONCE(helper->state) != GTDP_HELPER_IDLE)
			continue;

		helper->pass = *pass;
		helper->pass.p = (struct kvm_tdp_populate) {
			.kvm = pass->p.kvm,
			.role = pass->p.role,
			.background = true,
		};
		helper->pass.scans = 0;
		helper->pass.wasted_ns = 0;
		/* That is the follower's own. */
		helper->pass.stride = -1;

		if (cmpxchg(&helper->state, GTDP_HELPER_IDLE,
			    GTDP_HELPER_ASSIGNED) != GTDP_HELPER_IDLE)
			continue;

		helper->assigned = true;
		vhost_task_wake(helper->task);
	}
}

static void gtdp_join(struct kvm_gtdp *gtdp, struct gtdp_pass *pass)
{
	struct gtdp_helper *helper;

	for (helper = gtdp->helpers; helper < gtdp->helpers + ARRAY_SIZE(gtdp->helpers); helper++) {
		if (!helper->assigned)
			continue;

		/*
		 * Don't wait for one that doesn't get to run: all strides that
		 * nobody has claimed by now were the follower's own.
		 */
		helper->assigned = false;
		if (cmpxchg(&helper->state, GTDP_HELPER_ASSIGNED,
			    GTDP_HELPER_IDLE) == GTDP_HELPER_ASSIGNED)
			continue;

		/* Being killed or stopped, they return soon. */
		wait_for_completion(&helper->done);
		pass->p.mapped += helper->pass.p.mapped;
		pass->p.installed += helper->pass.p.installed;
		pass->scans += helper->pass.scans;
		pass->wasted_ns += helper->pass.wasted_ns;
		pass->arrived |= helper->pass.arrived;
		pass->uffd_pending |= helper->pass.uffd_pending;
		pass->retry |= helper->pass.retry;
		pass->nomem |= helper->pass.nomem;
		pass->due_in = min_not_zero(pass->due_in, helper->pass.due_in);

		/* All strides above are scanned again, and mostly are complete. */
		if (helper->pass.partial) {
			pass->partial = true;
			pass->gfn = min(pass->gfn, helper->pass.gfn);
		}
	}

	pass->shared = false;
}

/*
 * While a pass is throttled, more may arrive where it did before: map
 * that before going on.
 */
static void gtdp_scan_front(struct kvm_gtdp *gtdp, struct gtdp_pass *pass)
{
	const gfn_t gfn = pass->gfn;

	pass->gfn = READ_ONCE(gtdp->front);
	while (gtdp_scan_batch(pass) && gtdp_end_slice(pass) && gtdp_may_continue(pass))
		;
	pass->gfn = gfn;
}

/* Begin, or go on with, a pass: to its end, or until it is cut short. */
void gtdp_run_pass(struct kvm_gtdp *gtdp, struct gtdp_pass *pass)
{
	bool was_partial = pass->partial;
	struct kvm *kvm = gtdp->kvm;

	pass->p.kvm = kvm;
	pass->p.background = true;
	pass->no_uffd_end = 0;
	pass->partial = false;
	pass->nomem = false;
	pass->wasted_ns = 0;
	gtdp_begin_slice(pass);

	for (; pass->as_id < kvm_arch_nr_memslot_as_ids(kvm); pass->as_id++, pass->gfn = 0) {
		if (!kvm_mmu_get_vm_root_role(kvm, pass->as_id, &pass->p.role)) {
			pass->retry = true;
			continue;
		}

		if (was_partial && !pass->as_id)
			gtdp_scan_front(gtdp, pass);
		if (pass->partial)
			break;

		while (gtdp_scan_batch(pass) && gtdp_may_continue(pass)) {
			if (!pass->shared && gtdp_gain(pass) >= (s64)GTDP_PAGES_TO_SHARE)
				gtdp_share(gtdp, pass);
		}
		gtdp_join(gtdp, pass);
		if (pass->partial)
			break;
	}

	gtdp_end_slice(pass);
	kvm_tdp_populate_end(&pass->p);
}
