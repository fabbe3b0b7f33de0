// SPDX-License-Identifier: GPL-2.0
/*
 * Tracker of Global TDP: a byte for each 2MiB region of a memslot says whether
 * it is due for a scan.
 */
#include "global_tdp.h"
#include "gtdp.h"

#include <linux/sched/vhost_task.h>

void gtdp_kick_follower(struct kvm_gtdp *gtdp)
{
	struct vhost_task *follower = READ_ONCE(gtdp->follower);

	if (follower)
		vhost_task_wake(follower);
}

void gtdp_wake_follower(struct kvm_gtdp *gtdp, int marked)
{
	/*
	 * If the follower has been told and has not begun its pass yet, that
	 * will find what has just been marked.  Pairs with gtdp_work().
	 */
	smp_mb();
	if (atomic_read(&gtdp->marked) >= marked)
		return;

	/*
	 * The follower reads it after it has announced to sleep, and
	 * waking it up implies a barrier, so one of the two is noticed.
	 */
	atomic_or(marked, &gtdp->marked);
	gtdp_kick_follower(gtdp);
}

void gtdp_mark(struct kvm_gtdp *gtdp, const struct kvm_memory_slot *slot,
	       gfn_t start, gfn_t end, enum gtdp_todo todo)
{
	u8 *r, *last, old;

	if (!slot->arch.gtdp_regions || start >= end)
		return;

	last = gtdp_region(slot, end - 1);
	for (r = gtdp_region(slot, start); r <= last; r++) {
		/* What has more than one look to come keeps them, however often it is zapped. */
		old = READ_ONCE(*r);
		if (todo == GTDP_ZAPPED && old >= GTDP_NEW && old < GTDP_LAST_LOOK)
			continue;

		WRITE_ONCE(*r, todo);
	}
}

void kvm_gtdp_zapped(struct kvm *kvm, const struct kvm_memory_slot *slot,
		     gfn_t start, gfn_t end)
{
	/* The SMM root is filled on request only, guest_memfd never. */
	if (!gtdp_follows(kvm) || slot->as_id ||
	    !slot->arch.gtdp_regions)
		return;

	gtdp_mark(kvm->arch.gtdp, slot, start, end, GTDP_ZAPPED);
	gtdp_wake_follower(kvm->arch.gtdp, GTDP_MARKED);
}

void kvm_gtdp_zapped_range(struct kvm *kvm, gfn_t start, gfn_t end)
{
	struct kvm_memslot_iter iter;

	kvm_for_each_memslot_in_gfn_range(&iter, __kvm_memslots(kvm, 0), start, end)
		kvm_gtdp_zapped(kvm, iter.slot, max(start, iter.slot->base_gfn),
				min(end, gtdp_slot_end(iter.slot)));
}

int kvm_gtdp_alloc_slot(struct kvm *kvm, struct kvm_memory_slot *slot)
{
	unsigned long nr;

	if (!gtdp_is_user_slot(slot))
		return 0;

	nr = gfn_to_index(gtdp_slot_end(slot) - 1, slot->base_gfn, PG_LEVEL_2M) + 1;
	slot->arch.gtdp_regions = __vcalloc(nr, sizeof(*slot->arch.gtdp_regions),
					    GFP_KERNEL_ACCOUNT);
	return slot->arch.gtdp_regions ? 0 : -ENOMEM;
}
