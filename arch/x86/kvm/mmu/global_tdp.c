// SPDX-License-Identifier: GPL-2.0
/*
 * Global TDP: build the page tables that all vCPUs of a VM share before the
 * vCPUs fault on them.  tdp_populate.c does the building; what is here decides
 * where and when it pays.
 *
 *   tracker:  a few bytes for each 2MiB region of a memslot say whether another
 *             look at it is worthwhile
 *   follower: a thread of the VM that looks, and sleeps if there is no gain
 *
 * See Documentation/virt/kvm/global_tdp.rst.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include "mmu.h"
#include "mmu_internal.h"
#include "mmutrace.h"
#include "global_tdp.h"
#include "tdp_populate.h"

#include <linux/call_once.h>
#include <linux/hash.h>
#include <linux/percpu_counter.h>
#include <linux/sched/rt.h>
#include <linux/sched/vhost_task.h>

static bool __read_mostly global_tdp;
module_param(global_tdp, bool, 0644);
MODULE_PARM_DESC(global_tdp, "Build the TDP page tables of new VMs ahead of their vCPUs' faults");

static unsigned int __read_mostly global_tdp_threads = 4;
module_param(global_tdp_threads, uint, 0644);
MODULE_PARM_DESC(global_tdp_threads, "Threads of a new VM, at most, that build its TDP page tables");

#define KVM_GTDP_FEATURES	(KVM_GLOBAL_TDP_FOLLOW | \
				 KVM_GLOBAL_TDP_FAULT_AROUND | \
				 KVM_GLOBAL_TDP_POPULATE)

/*
 * The pauses between passes, in jiffies: while they find much, and at the most, with
 * one in between.  10ms of a network's 10GiB/s are fifty regions, i.e. worth a pass,
 * and are what is left to faults if vCPUs run at once.  A quarter of a second is
 * not noticed in memory that arrives slowly, and makes four wake-ups a second of a
 * VM that waits for memory.  Half of either doubles the passes over what is absent.
 * A VM that waits without a change is looked at after a sixteenth of the time more
 * that it has waited, and at least every two seconds.
 */
#define GTDP_PAUSE_MIN		DIV_ROUND_UP(HZ, 100)
#define GTDP_PAUSE_MAX		(HZ / 4)
#define GTDP_PAUSE_FACTOR	5

/*
 * Likewise, beside vCPUs for which there is nothing to do but to try again, or to wait
 * for userfaultfd; and, at the most, while there is no memory for page tables.
 */
#define GTDP_PAUSE_WAIT		(2 * HZ)
#define GTDP_PAUSE_NOMEM	(4 * HZ)

/*
 * Regions that are looked at, or passed over, per SRCU read-side section.  Memslot
 * updates wait for its end, with slots_lock held, and there are many in the blackout
 * of a migration: 8 looks that map all of a region take some 100,000 instructions.
 */
#define GTDP_LOOKS_PER_BATCH	8
#define GTDP_REGIONS_PER_BATCH	4096
#define GTDP_BATCH_PAGES	(GTDP_REGIONS_PER_BATCH * KVM_PAGES_PER_HPAGE(PG_LEVEL_2M))

/*
 * A pass is shared with helpers if it has mapped so much more than a page a look,
 * 32MiB.  They take turns of so much memory, 64MiB.
 */
#define GTDP_PAGES_TO_SHARE	(16 * KVM_PAGES_PER_HPAGE(PG_LEVEL_2M))
#define GTDP_TURN_PAGES		(32 * KVM_PAGES_PER_HPAGE(PG_LEVEL_2M))

/* Helpers of a VM, each for so much of its memory, 4GiB, and at most. */
#define GTDP_HELPER_PAGES	(1ul << (32 - PAGE_SHIFT))
#define GTDP_MAX_HELPERS	7

/*
 * How often the wait for what was zapped beside vCPUs doubles: it is looked for
 * after 1, 3, 7 and 15 seconds, and then counts as taken away for good.  Less would
 * miss what comes back from a slow disk, more costs a look for each doubling.
 */
#define GTDP_BACKOFF_ZAPPED	4

/* log2 of the faults to skip after fault-around in vain, at most. */
#define GTDP_BACKOFF_FAULTS	5

/*
 * The time of a CPU, in ns, after which looks in vain have to be paid for, and by how
 * many times as long a rest.  With what is around them they have a 16th of a CPU, at
 * most, which is lost in the noise of a host.  Twice the time makes rests of almost half a
 * second, in which nothing is noticed; half of it makes passes that are cut more often,
 * and are no shorter.
 */
#define GTDP_VAIN_NS		(10 * NSEC_PER_MSEC)
#define GTDP_VAIN_RESTS		20

/* Attempts of KVM_POPULATE_MEMORY at a region that is just being changed. */
#define GTDP_RETRIES		8

/* Jiffies between attempts to create a thread, each of which costs a failing fork(). */
#define GTDP_THREAD_RETRY	HZ

/* What a look at a region may gain. */
enum gtdp_todo {
	GTDP_DONE,	/* nothing; must be zero */
	GTDP_NEW,	/* whatever there is; nobody has looked yet */
	GTDP_ABSENT,	/* memory that may arrive */
	GTDP_ZAPPED,	/* memory that may be back, or be a huge page now */
};

/*
 * What is known of a 2MiB region of a memslot.  All of these are hints: they
 * are read and written without a lock, and a lost update makes for a look too
 * late or too many.  Only a zap must not get lost; so the follower says "done"
 * before it looks and, if that turns out to be wrong, adds to it afterwards.
 */
struct kvm_gtdp_region {
	u8 todo;
	/* What was zapped beside vCPUs: when to look again, in seconds, see gtdp_wait(). */
	u8 due;
	/* And log2 of the seconds to wait after the next zap, or look in vain. */
	u8 backoff;
	/* Faults that skip fault-around, and log2 of them after one in vain. */
	u8 fault_wait;
	u8 fault_backoff;
};

/* What the follower does; gtdp_event() and gtdp_next() say what comes next. */
enum gtdp_state {
	/* Memory arrives, or did until recently: look at all that is not complete. */
	GTDP_ARRIVING,
	/* No vCPU has run: see whether more is resident. */
	GTDP_WATCHING,
	/* vCPUs run: look at what was zapped, if due, or is awaited. */
	GTDP_TRICKLING,
	/* Nothing will be due: wait for something to be marked. */
	GTDP_ASLEEP,
};

/* The follower's walk over the memslots, or a helper's share of it. */
struct gtdp_pass {
	struct kvm_tdp_populate p;
	int as_id;
	/* Where to go on. */
	gfn_t gfn;
	/* With helpers: the turn that has been taken last. */
	bool shared;
	s64 turn;
	/* Look at what is absent, too. */
	bool absent;
	/* Not at its end: to be continued where it is.  So is one without memory. */
	bool cut;
	/* More is resident, or was found where there was none before. */
	bool arrived;
	/* userfaultfd is to deliver some of what is absent. */
	bool awaited;
	/* Something that can't be done now must be tried again. */
	bool again;
	/* No memory for page tables, further looks gain nothing. */
	bool nomem;
	/* Seconds until the first of the regions that were zapped is due, or 0. */
	u8 wait;
	unsigned long looks;
	/* Of what is here, by the host's addresses, userfaultfd is to deliver nothing. */
	unsigned long not_awaited_start;
	unsigned long not_awaited_end;
	/* The time, in ns, and gain when it was last seen whether looks pay. */
	u64 slice_start;
	u64 slice_runtime;
	unsigned long slice_switches;
	unsigned long slice_looks;
	s64 slice_gain;
	/* The time of those that did not. */
	u64 vain_ns;
};

struct gtdp_helper {
	struct vhost_task *task;
	enum {
		GTDP_HELPER_IDLE,
		GTDP_HELPER_ASSIGNED,	/* has not begun, can be taken back */
		GTDP_HELPER_BUSY,
		GTDP_HELPER_DEAD,
	} state;
	/* The follower has assigned it a share of the pass. */
	bool assigned;
	struct gtdp_pass pass;
	struct completion done;
};

struct kvm_gtdp {
	struct kvm *kvm;
	/*
	 * KVM_GLOBAL_TDP_*, constant once there is a vCPU.  Read under SRCU by
	 * whoever maps something.
	 */
	u64 features;

	struct once follower_once;
	struct vhost_task *follower;
	/* The time, in jiffies, before which not to try again to create a thread. */
	unsigned long thread_retry;
	/* The first nr_helpers exist; it only grows as long as the VM lives. */
	unsigned int nr_helpers;
	struct gtdp_helper helpers[GTDP_MAX_HELPERS];
	/* The last turn that anyone has taken, of a pass that is shared. */
	atomic64_t turn;
	/* Something was marked since the follower's last pass. */
	bool marked;
	/* And someone is waiting for it: don't sleep any longer. */
	bool urgent;
	/* The VM is going away. */
	bool stop;

	/* A vCPU has run, i.e. vCPUs fault on what they need. */
	bool has_run;

	/* Where memory has arrived last, which is where more of it does, mostly. */
	gfn_t front;

	/* Private to the follower. */
	enum gtdp_state state;
	struct gtdp_pass pass;
	u64 resident;
	/* Jiffies between passes. */
	int pause;
	/*
	 * In jiffies: when to do something next; until when not to, unless it is urgent,
	 * as looks in vain are not paid for; and until when not to do anything.
	 */
	unsigned long next;
	unsigned long paid;
	unsigned long rested;
	/* The last pass was only over what is urgent. */
	bool was_urgent;
};

static bool gtdp_is_user_slot(const struct kvm_memory_slot *slot)
{
	return slot->id < KVM_USER_MEM_SLOTS;
}

static struct kvm_gtdp_region *gtdp_region(const struct kvm_memory_slot *slot, gfn_t gfn)
{
	return slot->arch.gtdp_regions +
	       gfn_to_index(gfn, slot->base_gfn, PG_LEVEL_2M);
}

static gfn_t gtdp_region_end(gfn_t gfn, gfn_t end)
{
	return min(end, gfn_round_for_level(gfn, PG_LEVEL_2M) +
			KVM_PAGES_PER_HPAGE(PG_LEVEL_2M));
}

static gfn_t gtdp_slot_end(const struct kvm_memory_slot *slot)
{
	return slot->base_gfn + slot->npages;
}

/*
 * Deadlines of regions are in seconds, which begin at the same time for all regions
 * of a VM, but not for all VMs.  So many jiffies of this one are over.
 */
static unsigned long gtdp_jiffies(const struct kvm_gtdp *gtdp)
{
	return jiffies + hash_ptr(gtdp, 16);
}

static u8 gtdp_now(const struct kvm_gtdp *gtdp)
{
	return gtdp_jiffies(gtdp) / HZ;
}

/* Jiffies until the given second from now begins. */
static long gtdp_until(const struct kvm_gtdp *gtdp, unsigned int seconds)
{
	return seconds * HZ - gtdp_jiffies(gtdp) % HZ;
}

/*
 * The seconds until the region is due, 0 if it is.  They wrap around after 256: what
 * is further away than it can be is over; what is late by almost that is later still.
 */
static u8 gtdp_wait(const struct kvm_gtdp_region *r, u8 now)
{
	u8 wait = READ_ONCE(r->due) - now;

	/* The second may have begun since @now was read. */
	return wait <= BIT(GTDP_BACKOFF_ZAPPED) + 1 ? wait : 0;
}

/* Wait for twice as long as before. */
static void gtdp_back_off(struct kvm_gtdp_region *r, u8 now)
{
	u8 n = READ_ONCE(r->backoff);

	WRITE_ONCE(r->due, now + BIT(n));
	WRITE_ONCE(r->backoff, min(n + 1, GTDP_BACKOFF_ZAPPED));
}

/*
 * Tracker
 */
static void gtdp_wake_follower(struct kvm_gtdp *gtdp, bool urgent)
{
	struct vhost_task *follower;

	/*
	 * If the follower has been told and has not begun its pass yet, that
	 * will find what has just been marked.  Pairs with gtdp_follow().
	 */
	smp_mb();
	if (READ_ONCE(gtdp->marked) && (!urgent || READ_ONCE(gtdp->urgent)))
		return;

	/*
	 * The follower looks at these after it has announced to sleep, and
	 * waking it up implies a barrier, so one of the two is noticed.
	 */
	if (urgent)
		WRITE_ONCE(gtdp->urgent, true);
	WRITE_ONCE(gtdp->marked, true);
	follower = READ_ONCE(gtdp->follower);
	if (follower)
		vhost_task_wake(follower);
}

static void gtdp_mark(struct kvm_gtdp *gtdp, const struct kvm_memory_slot *slot,
		      gfn_t start, gfn_t end, enum gtdp_todo todo)
{
	const u8 now = gtdp_now(gtdp);
	struct kvm_gtdp_region *r, *last;

	if (!slot->arch.gtdp_regions || start >= end)
		return;

	last = gtdp_region(slot, end - 1);
	for (r = gtdp_region(slot, start); r <= last; r++) {
		WRITE_ONCE(r->fault_wait, 0);

		/* What is looked for anyway remains so, however often it is zapped. */
		if (todo == GTDP_ZAPPED &&
		    (READ_ONCE(r->todo) == GTDP_NEW || READ_ONCE(r->todo) == GTDP_ZAPPED))
			continue;

		if (todo == GTDP_ZAPPED && READ_ONCE(gtdp->has_run)) {
			u8 calm = now - READ_ONCE(r->due);

			/* Memory in churn is left alone for longer and longer. */
			if (calm > 2 << READ_ONCE(r->backoff))
				WRITE_ONCE(r->backoff, 0);
			gtdp_back_off(r, now);
		} else {
			WRITE_ONCE(r->due, now);
			WRITE_ONCE(r->backoff, 0);
		}
		WRITE_ONCE(r->todo, todo);
	}
}

void __kvm_gtdp_zapped(struct kvm *kvm, const struct kvm_memory_slot *slot,
		       gfn_t start, gfn_t end)
{
	/* The SMM root is filled on request only. */
	if (!kvm_gtdp_has(kvm, KVM_GLOBAL_TDP_FOLLOW) || slot->as_id)
		return;

	gtdp_mark(kvm->arch.gtdp, slot, start, end, GTDP_ZAPPED);
	gtdp_wake_follower(kvm->arch.gtdp, false);
}

void __kvm_gtdp_zapped_range(struct kvm *kvm, gfn_t start, gfn_t end)
{
	struct kvm_memslots *slots = __kvm_memslots(kvm, 0);
	struct kvm_memslot_iter iter;

	kvm_for_each_memslot_in_gfn_range(&iter, slots, start, end)
		__kvm_gtdp_zapped(kvm, iter.slot, max(start, iter.slot->base_gfn),
				  min(end, gtdp_slot_end(iter.slot)));
}

int kvm_gtdp_alloc_slot(struct kvm *kvm, struct kvm_memory_slot *slot)
{
	unsigned long nr;

	if (!kvm->arch.gtdp || !gtdp_is_user_slot(slot))
		return 0;

	nr = gfn_to_index(gtdp_slot_end(slot) - 1, slot->base_gfn, PG_LEVEL_2M) + 1;
	slot->arch.gtdp_regions = __vcalloc(nr, sizeof(*slot->arch.gtdp_regions),
					    GFP_KERNEL_ACCOUNT);
	return slot->arch.gtdp_regions ? 0 : -ENOMEM;
}

void kvm_gtdp_free_slot(struct kvm_memory_slot *slot)
{
	vfree(slot->arch.gtdp_regions);
	slot->arch.gtdp_regions = NULL;
}

/*
 * Follower
 */

/*
 * Memory that userfaultfd is to deliver will arrive, however long it takes: the
 * VMM ends that by unregistering it.  One look at a VMA is enough.
 */
static bool gtdp_is_awaited(struct gtdp_pass *pass, gfn_t gfn)
{
	unsigned long hva = __gfn_to_hva_memslot(pass->p.slot, gfn);
	struct mm_struct *mm = pass->p.kvm->mm;
	struct vm_area_struct *vma;
	bool awaited;

	if (hva >= pass->not_awaited_start && hva < pass->not_awaited_end)
		return false;

	/* Ask again later. */
	if (!mmap_read_trylock(mm))
		return true;

	vma = vma_lookup(mm, hva);
	awaited = vma && (vma->vm_flags & (VM_UFFD_MISSING | VM_UFFD_MINOR));
	if (vma && !awaited) {
		pass->not_awaited_start = hva;
		pass->not_awaited_end = vma->vm_end;
	}
	mmap_read_unlock(mm);

	return awaited;
}

static void gtdp_look(struct gtdp_pass *pass, struct kvm_gtdp_region *r,
		      gfn_t start, gfn_t end, u8 now)
{
	u64 absent = pass->p.absent, installed = pass->p.installed;
	const bool has_run = pass->p.kvm->arch.gtdp->has_run;
	long ret;
	u8 todo;

	/*
	 * A zap that happens from now on marks the region again.  The store is
	 * ordered by the acquisition of mmu_lock, without which the host can
	 * not begin to zap.
	 */
	todo = xchg(&r->todo, GTDP_DONE);
	ret = kvm_tdp_populate(&pass->p, start, end);
	pass->looks++;

	absent = pass->p.absent - absent;
	installed = pass->p.installed - installed;

	if (todo == GTDP_ZAPPED)
		atomic64_add(installed, &pass->p.kvm->stat.tdp_repopulated);
	else if (installed)
		pass->arrived = true;
	if (todo != GTDP_ZAPPED && installed > 1 && !pass->as_id)
		WRITE_ONCE(pass->p.kvm->arch.gtdp->front, start);

	if (ret >= 0 && !absent)
		return;

	/* What is missing may come, or come back. */
	if (ret < 0) {
		/* Nothing is known of the region: it remains due. */
		pass->again = true;
		pass->nomem = ret == -ENOMEM;
		pass->cut = pass->nomem;
		if (todo == GTDP_ABSENT)
			todo = GTDP_NEW;
	} else if (todo == GTDP_ZAPPED && has_run &&
		   (installed || READ_ONCE(r->backoff) < GTDP_BACKOFF_ZAPPED)) {
		if (installed)
			WRITE_ONCE(r->backoff, 0);
		gtdp_back_off(r, now);
		pass->wait = min_not_zero(pass->wait, gtdp_wait(r, now));
	} else {
		/*
		 * It never was there or was taken away: for good or, before a vCPU
		 * has run, e.g. for postcopy to bring it in again.
		 */
		todo = GTDP_ABSENT;
		WRITE_ONCE(r->backoff, 0);
		if (!pass->awaited && has_run)
			pass->awaited = gtdp_is_awaited(pass, start);
	}

	/* Whoever has marked it meanwhile knows better. */
	cmpxchg(&r->todo, GTDP_DONE, todo);
}

/* Whether to look at a region now. */
static bool gtdp_is_worthwhile(struct gtdp_pass *pass, const struct kvm_gtdp_region *r, u8 now)
{
	u8 wait;

	switch (READ_ONCE(r->todo)) {
	case GTDP_NEW:
		return true;
	case GTDP_ABSENT:
		return pass->absent;
	case GTDP_ZAPPED:
		wait = gtdp_wait(r, now);
		pass->wait = min_not_zero(pass->wait, wait);
		return !wait;
	default:
		return false;
	}
}

/*
 * Take the turn that @gfn is in, unless someone else has.  All walk the memslots
 * in the same order, from the same place: a turn below the last that was taken
 * was taken, too, as whoever went past it either did so or found it taken.
 */
static bool gtdp_take_turn(struct gtdp_pass *pass, gfn_t gfn)
{
	s64 turn = gfn / GTDP_TURN_PAGES, last;
	atomic64_t *taken = &pass->p.kvm->arch.gtdp->turn;

	if (!pass->shared || pass->turn == turn)
		return true;

	last = atomic64_read(taken);
	do {
		if (last >= turn)
			return false;
	} while (!atomic64_try_cmpxchg(taken, &last, turn));

	pass->turn = turn;
	return true;
}

/*
 * Look at some regions from pass->gfn on.  SRCU is not held for long, as
 * memslot updates wait for it.  Returns false at the end of the address space.
 */
static bool gtdp_pass_batch(struct gtdp_pass *pass)
{
	int regions = GTDP_REGIONS_PER_BATCH, looks = GTDP_LOOKS_PER_BATCH;
	const gfn_t max_gfn = kvm_mmu_max_gfn() + 1;
	struct kvm *kvm = pass->p.kvm;
	struct kvm_memslot_iter iter;
	struct kvm_gtdp_region *r;
	gfn_t start, end;
	u8 now;

	guard(srcu)(&kvm->srcu);

	if (!kvm_gtdp_enabled(kvm))
		return false;

	now = gtdp_now(kvm->arch.gtdp);

	/* VMAs are known for as long as memslots can't go away. */
	pass->p.vma_end = 0;

	kvm_for_each_memslot_in_gfn_range(&iter, __kvm_memslots(kvm, pass->as_id),
					  pass->gfn, max_gfn) {
		pass->p.slot = iter.slot;
		if (!iter.slot->arch.gtdp_regions)
			continue;

		for (start = max(pass->gfn, iter.slot->base_gfn);
		     start < gtdp_slot_end(iter.slot); start = end) {
			pass->gfn = start;

			if (!regions-- || !looks)
				return true;

			if (!gtdp_take_turn(pass, start)) {
				end = ALIGN_DOWN(start, GTDP_TURN_PAGES) + GTDP_TURN_PAGES;
				continue;
			}

			end = gtdp_region_end(start, gtdp_slot_end(iter.slot));
			r = gtdp_region(iter.slot, start);
			if (!gtdp_is_worthwhile(pass, r, now))
				continue;

			gtdp_look(pass, r, start, end, now);
			if (pass->nomem)
				return false;
			looks--;
		}
		pass->gfn = start;
	}

	return false;
}

/* How many pages more than one each the looks of this slice have mapped. */
static s64 gtdp_gain(const struct gtdp_pass *pass)
{
	return pass->p.installed - pass->looks - pass->slice_gain;
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
	pass->slice_looks = pass->looks;
	pass->slice_gain = pass->p.installed - pass->looks;
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
	bool pays = gtdp_gain(pass) > 0;

	if (!pays)
		pass->vain_ns += gtdp_slice_ns(pass);
	gtdp_begin_slice(pass);
	return pays;
}

/*
 * Looks in vain have to be paid for after some time.  To pass over what needs none
 * takes long in terabytes only; and a pass that is to begin again has to get there.
 */
static bool gtdp_pass_on(struct gtdp_pass *pass)
{
	cond_resched();

	if (signal_pending(current) || READ_ONCE(pass->p.kvm->arch.gtdp->stop))
		pass->cut = true;
	else if (pass->looks != pass->slice_looks && gtdp_slice_ns(pass) >= GTDP_VAIN_NS)
		pass->cut = !gtdp_end_slice(pass);

	return !pass->cut;
}

/* Created by a vCPU's thread, it must not keep that from running. */
static void gtdp_drop_rt(void)
{
	if (rt_task(current))
		sched_set_normal(current, 0);
}

static bool gtdp_help(void *data)
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
	while (gtdp_pass_batch(&helper->pass) && gtdp_pass_on(&helper->pass))
		;
	gtdp_end_slice(&helper->pass);
	kvm_tdp_populate_end(&helper->pass.p);
	atomic64_add(ktime_get_ns() - start, &helper->pass.p.kvm->stat.tdp_populate_time_ns);

	WRITE_ONCE(helper->state, GTDP_HELPER_IDLE);
	complete(&helper->done);
	return true;
}

static void gtdp_helper_killed(void *data)
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
	pass->turn = pass->gfn / GTDP_TURN_PAGES;
	atomic64_set(&gtdp->turn, pass->turn);

	for (helper = gtdp->helpers; helper < last; helper++) {
		if (READ_ONCE(helper->state) != GTDP_HELPER_IDLE)
			continue;

		helper->pass = *pass;
		helper->pass.p = (struct kvm_tdp_populate) {
			.kvm = pass->p.kvm,
			.role = pass->p.role,
			.unasked = true,
		};
		helper->pass.looks = 0;
		helper->pass.vain_ns = 0;
		/* That is the follower's own. */
		helper->pass.turn = -1;

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
		 * Don't wait for one that doesn't get to run: all turns that
		 * nobody has taken by now were the follower's own.
		 */
		helper->assigned = false;
		if (cmpxchg(&helper->state, GTDP_HELPER_ASSIGNED,
			    GTDP_HELPER_IDLE) == GTDP_HELPER_ASSIGNED)
			continue;

		/* Being killed or stopped, they return soon. */
		wait_for_completion(&helper->done);
		pass->p.mapped += helper->pass.p.mapped;
		pass->p.installed += helper->pass.p.installed;
		pass->looks += helper->pass.looks;
		pass->vain_ns += helper->pass.vain_ns;
		pass->arrived |= helper->pass.arrived;
		pass->awaited |= helper->pass.awaited;
		pass->again |= helper->pass.again;
		pass->nomem |= helper->pass.nomem;
		pass->wait = min_not_zero(pass->wait, helper->pass.wait);

		/* All turns above are looked at again, and mostly are complete. */
		if (helper->pass.cut) {
			pass->cut = true;
			pass->gfn = min(pass->gfn, helper->pass.gfn);
		}
	}

	pass->shared = false;
}

/*
 * While looks in vain are being paid for, more may arrive where it did before: map
 * that before going on.
 */
static void gtdp_pass_front(struct kvm_gtdp *gtdp, struct gtdp_pass *pass)
{
	const gfn_t gfn = pass->gfn;

	pass->gfn = READ_ONCE(gtdp->front);
	while (gtdp_pass_batch(pass) && gtdp_end_slice(pass) && gtdp_pass_on(pass))
		;
	pass->gfn = gfn;
}

/* Begin, or go on with, a pass: to its end, or until it is cut. */
static void gtdp_pass(struct kvm_gtdp *gtdp, struct gtdp_pass *pass)
{
	bool was_cut = pass->cut;
	struct kvm *kvm = gtdp->kvm;

	pass->p.kvm = kvm;
	pass->p.unasked = true;
	pass->not_awaited_end = 0;
	pass->cut = false;
	pass->nomem = false;
	pass->vain_ns = 0;
	gtdp_begin_slice(pass);

	for (; pass->as_id < kvm_arch_nr_memslot_as_ids(kvm); pass->as_id++, pass->gfn = 0) {
		if (!kvm_mmu_get_vm_root_role(kvm, pass->as_id, &pass->p.role)) {
			pass->again = true;
			continue;
		}

		if (was_cut && !pass->as_id)
			gtdp_pass_front(gtdp, pass);
		if (pass->cut)
			break;

		while (gtdp_pass_batch(pass) && gtdp_pass_on(pass)) {
			if (!pass->shared && gtdp_gain(pass) >= (s64)GTDP_PAGES_TO_SHARE)
				gtdp_share(gtdp, pass);
		}
		gtdp_join(gtdp, pass);
		if (pass->cut)
			break;
	}

	gtdp_end_slice(pass);
	kvm_tdp_populate_end(&pass->p);
}

static bool gtdp_has_run(struct kvm *kvm)
{
	struct kvm_vcpu *vcpu;
	unsigned long i;

	kvm_for_each_vcpu(i, vcpu, kvm) {
		if (kvm_vcpu_has_run(vcpu))
			return true;
	}

	return false;
}

/*
 * Memory arrives without a notification.  What tells is that the VMM has more
 * pages, of any size, or page tables, which the zero page needs, than at the last
 * look, or less.
 */
static bool gtdp_more_resident(struct kvm_gtdp *gtdp)
{
	struct mm_struct *mm = gtdp->kvm->mm;
	u64 last = gtdp->resident;

	gtdp->resident = percpu_counter_sum(&mm->rss_stat[MM_FILEPAGES]) +
			 percpu_counter_sum(&mm->rss_stat[MM_ANONPAGES]) +
			 percpu_counter_sum(&mm->rss_stat[MM_SHMEMPAGES]) +
			 mm_pgtables_bytes(mm);
#ifdef CONFIG_HUGETLB_PAGE
	gtdp->resident += atomic_long_read(&mm->hugetlb_usage);
#endif
	return gtdp->resident != last;
}

static void gtdp_enter(struct kvm_gtdp *gtdp, enum gtdp_state state)
{
	if (gtdp->state == state)
		return;

	gtdp->state = state;
	gtdp->pause = GTDP_PAUSE_MIN;
}

/* Something was marked: make a pass earlier than planned. */
static void gtdp_event(struct kvm_gtdp *gtdp, bool urgent)
{
	long wait = GTDP_PAUSE_MIN;

	if (urgent || (!gtdp->has_run && gtdp->state != GTDP_ARRIVING)) {
		gtdp_enter(gtdp, GTDP_ARRIVING);
		gtdp->pause = GTDP_PAUSE_MIN;
	} else if (gtdp->state != GTDP_ARRIVING && !gtdp->pass.nomem) {
		/* What was zapped beside vCPUs is due, at the earliest, as a second begins. */
		gtdp_enter(gtdp, GTDP_TRICKLING);
		wait = gtdp_until(gtdp, 1);
	} else {
		return;
	}

	if (time_before(jiffies + wait, gtdp->next))
		gtdp->next = jiffies + wait;
}

/*
 * Begin a pass, if there is something to look for.  Once vCPUs run, they fault on
 * what they need, and the VMM allocates for other reasons, too: what counts then is
 * what passes find.
 */
static bool gtdp_begin(struct kvm_gtdp *gtdp)
{
	const struct gtdp_pass *last = &gtdp->pass;
	const bool again = last->again;
	const bool arrived = !gtdp->has_run && gtdp_more_resident(gtdp);

	if (arrived)
		gtdp_enter(gtdp, GTDP_ARRIVING);

	gtdp->pass = (struct gtdp_pass) {
		.arrived = arrived,
		.absent = gtdp->state == GTDP_ARRIVING ||
			  last->arrived || last->awaited,
	};
	return gtdp->state != GTDP_WATCHING || again;
}

/* After a pass: what comes next, see the diagram in global_tdp.rst, and in how long. */
static long gtdp_next(struct kvm_gtdp *gtdp)
{
	const struct gtdp_pass *pass = &gtdp->pass;
	const bool pays = pass->p.installed > pass->looks;
	const int pause = gtdp->pause;
	long wait = MAX_JIFFY_OFFSET;

	/* Later, it goes on where there was none. */
	if (pass->nomem) {
		gtdp->pause = min(pause * GTDP_PAUSE_FACTOR,
				  gtdp->has_run ? GTDP_PAUSE_NOMEM : GTDP_PAUSE_MAX);
		return gtdp->pause;
	}

	if (pass->cut)
		return 0;

	gtdp->pause = pays ? GTDP_PAUSE_MIN : min(pause * GTDP_PAUSE_FACTOR, GTDP_PAUSE_MAX);

	/* Beside vCPUs, pages here and there may well be the VMM's own. */
	if (pass->arrived && (!gtdp->has_run || pays || pass->awaited))
		gtdp_enter(gtdp, GTDP_ARRIVING);
	else if (gtdp->state == GTDP_ARRIVING && pause >= GTDP_PAUSE_MAX)
		gtdp_enter(gtdp, gtdp->has_run ? GTDP_TRICKLING : GTDP_WATCHING);

	switch (gtdp->state) {
	case GTDP_ARRIVING:
		return gtdp->pause;
	case GTDP_WATCHING:
		gtdp->pause = clamp(pause + pause / 16, GTDP_PAUSE_MAX, GTDP_PAUSE_WAIT);
		return gtdp->pause;
	default:
		if (pass->wait)
			wait = gtdp_until(gtdp, pass->wait);
		if (pass->again || pass->arrived || pass->awaited)
			wait = min(wait, GTDP_PAUSE_WAIT);
		if (wait == MAX_JIFFY_OFFSET)
			gtdp_enter(gtdp, GTDP_ASLEEP);
		return wait;
	}
}

/* Jiffies until there is something to do that is not urgent. */
static long gtdp_due(const struct kvm_gtdp *gtdp)
{
	return max_t(long, gtdp->next - jiffies, gtdp->paid - jiffies);
}

/*
 * Called in a loop by the thread, in TASK_INTERRUPTIBLE: until the state is
 * changed, wakeups are not lost.  Returns false to sleep until woken.
 *
 * What can't be done now, because a memslot is being changed, the role of the
 * root is not known or there is no memory, is tried again.
 */
static bool gtdp_follow(void *data)
{
	struct kvm *kvm = data;
	struct kvm_gtdp *gtdp = kvm->arch.gtdp;
	struct gtdp_pass *pass = &gtdp->pass, urgent_pass = {};
	bool urgent = READ_ONCE(gtdp->urgent);
	u64 start, ns;
	long wait;

	if (urgent || READ_ONCE(gtdp->marked))
		gtdp_event(gtdp, urgent);
	else if (gtdp->state == GTDP_ASLEEP)
		return false;

	wait = max_t(long, gtdp->rested - jiffies, urgent ? 0 : gtdp_due(gtdp));
	if (wait > 0) {
		schedule_timeout(wait);
		return true;
	}

	__set_current_state(TASK_RUNNING);
	gtdp_drop_rt();

	/*
	 * What is new does not wait for a pass over what is absent, which may take
	 * long.  If there is no end of it, they take turns.
	 */
	urgent = urgent && !(gtdp->was_urgent && gtdp_due(gtdp) <= 0);
	gtdp->was_urgent = urgent;
	if (urgent) {
		pass = &urgent_pass;
		WRITE_ONCE(gtdp->urgent, false);
	}

	/*
	 * At once and before the look at the regions, so that whoever marks one
	 * either is seen here or is left for the next pass; xchg() is a barrier,
	 * which pairs with that of gtdp_wake_follower().
	 */
	if (xchg(&gtdp->marked, false)) {
		gtdp_event(gtdp, urgent);
		/* It may be where a pass that was cut has been already. */
		gtdp->pass.again = true;
	}

	/* Whoever turns it on again wakes the follower after that. */
	if (!kvm_gtdp_enabled(kvm)) {
		WRITE_ONCE(gtdp->urgent, false);
		gtdp->pass = (struct gtdp_pass) {};
		gtdp_enter(gtdp, GTDP_ASLEEP);
		return true;
	}

	if (!gtdp->has_run && gtdp_has_run(kvm)) {
		WRITE_ONCE(gtdp->has_run, true);
		gtdp_event(gtdp, true);
	}

	start = ktime_get_ns();
	if (urgent || pass->cut || gtdp_begin(gtdp))
		gtdp_pass(gtdp, pass);
	ns = ktime_get_ns() - start;
	atomic64_add(ns, &kvm->stat.tdp_populate_time_ns);

	/*
	 * Take half of a CPU, mostly, and a small share of one to find out whether it
	 * pays, unless someone has asked for it, whatever is to be done next.
	 */
	gtdp->rested = jiffies + clamp_t(long, nsecs_to_jiffies(ns),
					 GTDP_PAUSE_MIN, GTDP_PAUSE_MAX);
	if (urgent && pass->cut && !pass->again)
		WRITE_ONCE(gtdp->urgent, true);
	if (!urgent) {
		gtdp->paid = jiffies + nsecs_to_jiffies(pass->vain_ns * GTDP_VAIN_RESTS);
		gtdp->next = jiffies + gtdp_next(gtdp);
	}

	if (pass->looks && (!pass->cut || pass->nomem))
		trace_kvm_tdp_follow(pass->looks, pass->p.mapped, pass->p.installed,
				     gtdp->state == GTDP_ASLEEP ? -1 : max(gtdp_due(gtdp), 0L));
	return true;
}

/* The VMM is being killed: its thread just ends. */
static void gtdp_follower_killed(void *data)
{
}

/*
 * Create a thread of the VM, which fails if a signal is pending.  VMMs may well
 * have a timer, so let signals wait, as whoever creates threads in userspace does.
 */
static struct vhost_task *gtdp_create_task(bool (*fn)(void *data),
					   void (*killed)(void *data),
					   void *data, const char *name)
{
	struct vhost_task *task;
	sigset_t blocked, old;

	siginitsetinv(&blocked, sigmask(SIGKILL));
	sigprocmask(SIG_SETMASK, &blocked, &old);

	task = vhost_task_create(fn, killed, data, name);
	if (!IS_ERR(task))
		vhost_task_start(task);

	sigprocmask(SIG_SETMASK, &old, NULL);
	return task;
}

static bool gtdp_may_create(struct kvm_gtdp *gtdp)
{
	return !time_before(jiffies, READ_ONCE(gtdp->thread_retry));
}

static void gtdp_thread_failed(struct kvm_gtdp *gtdp, struct vhost_task *task)
{
	/* Being killed, stopped or frozen is not what is to be counted. */
	if (task == ERR_PTR(-ERESTARTNOINTR))
		return;

	WRITE_ONCE(gtdp->thread_retry, jiffies + GTDP_THREAD_RETRY);
	atomic64_inc(&gtdp->kvm->stat.tdp_thread_failed);
}

/*
 * As many as the VM's memory is worth, and its caller, whose CPUs they may use, has
 * CPUs.  Called by the VMM; there may be memory only after there are vCPUs.  The
 * follower does without those that can't be created.
 */
static void gtdp_create_helpers(struct kvm_gtdp *gtdp)
{
	unsigned int nr = min3(READ_ONCE(global_tdp_threads),
			       cpumask_weight(current->cpus_ptr), GTDP_MAX_HELPERS + 1);
	unsigned int i;

	nr = min_t(u64, max(nr, 1) - 1, gtdp->kvm->nr_memslot_pages / GTDP_HELPER_PAGES);

	for (i = gtdp->nr_helpers; i < nr; i++) {
		struct gtdp_helper *helper = &gtdp->helpers[i];

		init_completion(&helper->done);
		helper->task = gtdp_create_task(gtdp_help, gtdp_helper_killed,
						helper, "kvm-gtdp-help");
		if (IS_ERR(helper->task)) {
			gtdp_thread_failed(gtdp, helper->task);
			return;
		}

		/* The follower may look at once; pairs with gtdp_share(). */
		smp_store_release(&gtdp->nr_helpers, i + 1);
		++gtdp->kvm->stat.tdp_threads;
	}
}

static int gtdp_create_follower(struct once *once)
{
	struct kvm_gtdp *gtdp = container_of(once, struct kvm_gtdp, follower_once);
	struct vhost_task *follower;

	/* Whoever waited for another attempt to fail need not make one, too. */
	if (!gtdp_may_create(gtdp))
		return -EAGAIN;

	gtdp->pause = GTDP_PAUSE_MIN;
	gtdp->next = jiffies;
	gtdp->paid = jiffies;
	gtdp->rested = jiffies;
	follower = gtdp_create_task(gtdp_follow, gtdp_follower_killed, gtdp->kvm,
				    "kvm-gtdp");
	if (follower == ERR_PTR(-ERESTARTNOINTR))
		return -EINTR;

	if (IS_ERR(follower)) {
		gtdp_thread_failed(gtdp, follower);
		pr_warn_once("no thread to build page tables with, vCPUs fault until there is one\n");
		return PTR_ERR(follower);
	}

	++gtdp->kvm->stat.tdp_threads;
	gtdp_create_helpers(gtdp);

	/*
	 * Make the task visible only once it is fully started, and wake it for
	 * what was marked before that.
	 */
	WRITE_ONCE(gtdp->follower, follower);
	vhost_task_wake(follower);
	return 0;
}

/*
 * The follower is a thread of the VMM, and so is charged, limited and killed
 * with it.  It is not created with the VM, but with the first vCPU, as VMMs may
 * well unshare namespaces or fork device processes in between, which must be
 * done while they are single-threaded.  If that fails, because of a limit, try
 * again whenever the VMM calls, but not all the time.
 */
void __kvm_gtdp_want_follower(struct kvm *kvm)
{
	struct kvm_gtdp *gtdp = kvm->arch.gtdp;

	if (!kvm->created_vcpus || !kvm_gtdp_has(kvm, KVM_GLOBAL_TDP_FOLLOW))
		return;

	if (READ_ONCE(gtdp->follower)) {
		/* It may be waiting for memory: that is over. */
		if (!READ_ONCE(gtdp->has_run) && gtdp_has_run(kvm))
			gtdp_wake_follower(gtdp, true);
	} else if (gtdp_may_create(gtdp)) {
		call_once(&gtdp->follower_once, gtdp_create_follower);
	}
}

void __kvm_gtdp_slot_changed(struct kvm *kvm, const struct kvm_memory_slot *slot,
			     enum kvm_mr_change change)
{
	if (!kvm_gtdp_has(kvm, KVM_GLOBAL_TDP_FOLLOW) ||
	    change == KVM_MR_DELETE || slot->as_id)
		return;

	/* Starting to log gains nothing, ending it may gain huge pages. */
	if (change == KVM_MR_FLAGS_ONLY && kvm_slot_dirty_track_enabled(slot))
		return;

	/* Slots are changed one at a time; the follower comes with its own. */
	if (!READ_ONCE(kvm->arch.gtdp->follower))
		__kvm_gtdp_want_follower(kvm);
	else if (gtdp_may_create(kvm->arch.gtdp))
		gtdp_create_helpers(kvm->arch.gtdp);

	gtdp_mark(kvm->arch.gtdp, slot, slot->base_gfn, gtdp_slot_end(slot), GTDP_NEW);
	gtdp_wake_follower(kvm->arch.gtdp, true);
}

/*
 * Fault-around
 */
void __kvm_gtdp_fault_around(struct kvm_vcpu *vcpu, struct kvm_page_fault *fault)
{
	const struct kvm_memory_slot *slot = fault->slot;
	struct kvm_tdp_populate p = {
		.kvm = vcpu->kvm,
		.slot = slot,
		.role = vcpu->arch.mmu->root_role,
	};
	struct kvm_gtdp_region *r;
	gfn_t start;
	u8 n;

	if (!kvm_gtdp_has(vcpu->kvm, KVM_GLOBAL_TDP_FAULT_AROUND) ||
	    !slot || !slot->arch.gtdp_regions ||
	    fault->prefetch || fault->goal_level != PG_LEVEL_4K)
		return;

	r = gtdp_region(slot, fault->gfn);
	n = READ_ONCE(r->fault_wait);
	if (n) {
		WRITE_ONCE(r->fault_wait, n - 1);
		return;
	}

	start = max(slot->base_gfn, gfn_round_for_level(fault->gfn, PG_LEVEL_2M));
	kvm_tdp_populate(&p, start, gtdp_region_end(start, gtdp_slot_end(slot)));
	kvm_tdp_populate_end(&p);

	/* A guest that allocates page by page has nothing to find, mostly. */
	n = p.installed ? 0 : min(READ_ONCE(r->fault_backoff) + 1, GTDP_BACKOFF_FAULTS);
	WRITE_ONCE(r->fault_backoff, n);
	WRITE_ONCE(r->fault_wait, BIT(n) - 1);

	atomic64_add(p.installed, &vcpu->kvm->stat.tdp_fault_around);
}

/*
 * KVM_POPULATE_MEMORY
 */
static int gtdp_populate(struct kvm *kvm, struct kvm_populate_memory *range)
{
	bool async = range->flags & KVM_POPULATE_ASYNC;
	gfn_t gfn = gpa_to_gfn(range->gpa);
	gfn_t end = gfn + (range->size >> PAGE_SHIFT);
	struct kvm_tdp_populate p = { .kvm = kvm };
	int retries = GTDP_RETRIES, r = 0;
	struct kvm_memory_slot *slot;
	u64 start = ktime_get_ns();
	gfn_t slot_end;
	int idx, looks;
	long n;

	/* Unknown until a vCPU has been given its CPUID. */
	if (!kvm_mmu_get_vm_root_role(kvm, range->as_id, &p.role) && !async)
		return -ENXIO;

	while (gfn < end && !r) {
		if (signal_pending(current)) {
			r = -EINTR;
			break;
		}
		cond_resched();

		idx = srcu_read_lock(&kvm->srcu);
		p.vma_end = 0;
		slot = __gfn_to_memslot(__kvm_memslots(kvm, range->as_id), gfn);
		if (!kvm_gtdp_has(kvm, KVM_GLOBAL_TDP_POPULATE)) {
			r = -EOPNOTSUPP;
		} else if (!slot || !gtdp_is_user_slot(slot)) {
			r = -ENOENT;
		} else if (async) {
			slot_end = min3(end, gtdp_slot_end(slot), gfn + GTDP_BATCH_PAGES);
			gtdp_mark(kvm->arch.gtdp, slot, gfn, slot_end, GTDP_NEW);
			gfn = slot_end;
		} else {
			p.slot = slot;
			slot_end = min(end, gtdp_slot_end(slot));
			for (looks = 0; gfn < slot_end && looks < GTDP_LOOKS_PER_BATCH; looks++) {
				n = kvm_tdp_populate(&p, gfn, slot_end);
				if (n < 0) {
					r = n;
					break;
				}
				gfn += n;
				retries = GTDP_RETRIES;
				if (need_resched())
					break;
			}
		}
		srcu_read_unlock(&kvm->srcu, idx);

		/* What is in the way is mostly gone at once, but don't wait. */
		if (r == -EAGAIN && retries--)
			r = 0;
	}

	kvm_tdp_populate_end(&p);
	atomic64_add(ktime_get_ns() - start, &kvm->stat.tdp_populate_time_ns);

	range->gpa = gfn_to_gpa(gfn);
	range->size = gfn_to_gpa(end - gfn);
	range->mapped = p.mapped << PAGE_SHIFT;
	range->absent = p.absent << PAGE_SHIFT;
	return r;
}

int kvm_vm_ioctl_populate_memory(struct kvm *kvm, void __user *argp)
{
	struct kvm_populate_memory range;
	int r;

	if (!kvm_gtdp_has(kvm, KVM_GLOBAL_TDP_POPULATE))
		return -EOPNOTSUPP;

	if (copy_from_user(&range, argp, sizeof(range)))
		return -EFAULT;

	if (!PAGE_ALIGNED(range.gpa) || !PAGE_ALIGNED(range.size) ||
	    range.gpa + range.size < range.gpa ||
	    range.flags & ~KVM_POPULATE_ASYNC ||
	    range.as_id >= kvm_arch_nr_memslot_as_ids(kvm) ||
	    range.reserved[0] || range.reserved[1])
		return -EINVAL;

	if (range.flags & KVM_POPULATE_ASYNC) {
		/* EAGAIN is what fork() says of limits, but it is no use to insist. */
		r = call_once(&kvm->arch.gtdp->follower_once, gtdp_create_follower);
		if (r)
			return r == -EINTR ? r : -ENOMEM;
	}

	r = gtdp_populate(kvm, &range);

	if (range.flags & KVM_POPULATE_ASYNC)
		gtdp_wake_follower(kvm->arch.gtdp, true);

	if (copy_to_user(argp, &range, sizeof(range)))
		return -EFAULT;

	return r;
}

/*
 * VM
 */
u64 kvm_gtdp_supported(struct kvm *kvm)
{
	if (!tdp_mmu_enabled)
		return 0;

	/* Private memory is not the host's to map. */
	if (kvm && (kvm->arch.vm_type != KVM_X86_DEFAULT_VM || kvm->arch.gtdp_forbidden))
		return 0;

	return KVM_GTDP_FEATURES;
}

bool __kvm_gtdp_has(struct kvm *kvm, u64 features)
{
	return READ_ONCE(kvm->arch.gtdp->features) & features;
}

static struct kvm_gtdp *gtdp_alloc(struct kvm *kvm)
{
	struct kvm_gtdp *gtdp = kzalloc(sizeof(*gtdp), GFP_KERNEL_ACCOUNT);

	if (gtdp) {
		once_init(&gtdp->follower_once);
		gtdp->kvm = kvm;
	}
	return gtdp;
}

int kvm_gtdp_init_vm(struct kvm *kvm)
{
	/* Read once, as it may be changed at any time: a VM has all of it or nothing. */
	if (!READ_ONCE(global_tdp) || !kvm_gtdp_supported(kvm))
		return 0;

	kvm->arch.gtdp = gtdp_alloc(kvm);
	if (!kvm->arch.gtdp)
		return -ENOMEM;

	kvm->arch.gtdp->features = KVM_GTDP_FEATURES;
	kvm->arch.shared_mmu_lock = true;
	return 0;
}

/* Give memslots that exist already what new ones get. */
static int gtdp_alloc_slots(struct kvm *kvm)
{
	struct kvm_memory_slot *slot;
	struct kvm_memslots *slots;
	int i, bkt, r;

	lockdep_assert_held(&kvm->slots_lock);

	guard(mutex)(&kvm->slots_arch_lock);

	for (i = 0; i < kvm_arch_nr_memslot_as_ids(kvm); i++) {
		slots = __kvm_memslots(kvm, i);
		kvm_for_each_memslot(slot, bkt, slots) {
			if (slot->arch.gtdp_regions)
				continue;

			r = kvm_gtdp_alloc_slot(kvm, slot);
			if (r)
				return r;
		}
	}

	return 0;
}

/* Forget what is marked, and have the follower look at what it would follow. */
static void gtdp_mark_anew(struct kvm *kvm, u64 features)
{
	struct kvm_memory_slot *slot;
	struct kvm_memslots *slots;
	int i, bkt;

	for (i = 0; i < kvm_arch_nr_memslot_as_ids(kvm); i++) {
		slots = __kvm_memslots(kvm, i);
		kvm_for_each_memslot(slot, bkt, slots)
			gtdp_mark(kvm->arch.gtdp, slot, slot->base_gfn, gtdp_slot_end(slot),
				  !i && (features & KVM_GLOBAL_TDP_FOLLOW) ? GTDP_NEW : GTDP_DONE);
	}
}

/*
 * Turn everything off and, as whoever maps or marks something does so under SRCU
 * after a look at the features, wait for it to be true.
 */
static void gtdp_turn_off(struct kvm *kvm)
{
	WRITE_ONCE(kvm->arch.gtdp->features, 0);
	synchronize_srcu_expedited(&kvm->srcu);
}

int kvm_gtdp_enable(struct kvm *kvm, u64 features)
{
	struct kvm_gtdp *gtdp;
	int r;

	guard(mutex)(&kvm->lock);

	if (features & ~kvm_gtdp_supported(kvm))
		return -EINVAL;

	if (kvm->created_vcpus)
		return -EBUSY;

	if (!features && !kvm->arch.gtdp)
		return 0;

	guard(mutex)(&kvm->slots_lock);

	if (!kvm->arch.gtdp) {
		gtdp = gtdp_alloc(kvm);
		if (!gtdp)
			return -ENOMEM;

		/*
		 * The hooks look at it without a lock, so publish it complete,
		 * and don't free it before the VM is destroyed.
		 */
		smp_store_release(&kvm->arch.gtdp, gtdp);

		/* Without a vCPU nothing is mapped, i.e. nobody has work to do. */
		WRITE_ONCE(kvm->arch.shared_mmu_lock, true);
	}

	gtdp = kvm->arch.gtdp;
	if (gtdp->features == features)
		return 0;

	r = gtdp_alloc_slots(kvm);
	if (r)
		return r;

	if (gtdp->features)
		gtdp_turn_off(kvm);
	gtdp_mark_anew(kvm, features);
	WRITE_ONCE(gtdp->features, features);
	if (features & KVM_GLOBAL_TDP_FOLLOW)
		gtdp_wake_follower(gtdp, true);
	return 0;
}

void kvm_gtdp_forbid(struct kvm *kvm)
{
	lockdep_assert_held(&kvm->lock);

	kvm->arch.gtdp_forbidden = true;
	if (kvm->arch.gtdp)
		gtdp_turn_off(kvm);
}
EXPORT_SYMBOL_GPL(kvm_gtdp_forbid);

void kvm_gtdp_pre_destroy_vm(struct kvm *kvm)
{
	struct kvm_gtdp *gtdp = kvm->arch.gtdp;
	struct vhost_task *follower;

	if (!gtdp)
		return;

	/*
	 * MMU notifiers, which are still to come, wake the follower with
	 * mmu_lock held: from here on they don't.
	 */
	write_lock(&kvm->mmu_lock);
	follower = gtdp->follower;
	WRITE_ONCE(gtdp->follower, NULL);
	write_unlock(&kvm->mmu_lock);

	WRITE_ONCE(gtdp->stop, true);
	if (follower)
		vhost_task_stop(follower);

	while (gtdp->nr_helpers)
		vhost_task_stop(gtdp->helpers[--gtdp->nr_helpers].task);
}

void kvm_gtdp_destroy_vm(struct kvm *kvm)
{
	/* Devices are destroyed later, and may zap what is not there anymore. */
	kfree(kvm->arch.gtdp);
	kvm->arch.gtdp = NULL;
}
