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

/* The follower's shortest and longest sleep between passes, in jiffies. */
#define GTDP_SLEEP_MIN		max_t(long, HZ / 100, 1)
#define GTDP_SLEEP_MAX		max_t(long, HZ / 4, 1)

/* Regions that are looked at, or passed over, per SRCU read-side section. */
#define GTDP_LOOKS_PER_BATCH	16
#define GTDP_REGIONS_PER_BATCH	4096

/*
 * A pass is shared with helpers if, after a number of looks, it turns out to be
 * worthwhile.  They take turns of so much memory, 64MiB.
 */
#define GTDP_LOOKS_TO_SHARE	64
#define GTDP_TURN_PAGES		(32 * KVM_PAGES_PER_HPAGE(PG_LEVEL_2M))

/* Helpers of a VM, each for so much of its memory, 4GiB, and at most. */
#define GTDP_HELPER_PAGES	(1ul << (32 - PAGE_SHIFT))
#define GTDP_MAX_HELPERS	7

/* log2 of the passes, or faults, to skip after looks in vain, at most. */
#define GTDP_BACKOFF_NEW	3
#define GTDP_BACKOFF_ZAPPED	7
#define GTDP_BACKOFF_FAULTS	5

/* The inverse of the share of a CPU that looks in vain may take. */
#define GTDP_VAIN_SHARE		16

/* Passes that look at everything after memory has stopped to arrive. */
#define GTDP_SETTLE		2

/* Attempts of KVM_POPULATE_MEMORY at a region that is just being changed. */
#define GTDP_RETRIES		8

/* Jiffies between attempts to create the follower. */
#define GTDP_FOLLOWER_RETRY	max_t(long, HZ / 10, 1)

/* Jiffies between passes, at most, while there is no memory for page tables. */
#define GTDP_SLEEP_NOMEM	(4 * HZ)

/* What a look at a region may gain. */
enum gtdp_todo {
	GTDP_DONE,	/* nothing; must be zero */
	GTDP_NEW,	/* memory that is there, or may arrive */
	GTDP_ZAPPED,	/* memory that may be back, or be a huge page now */
	GTDP_GIVEN_UP,	/* nothing, unless memory turns out to arrive elsewhere */
};

/*
 * What is known of a 2MiB region of a memslot.  All of these are hints: they
 * are read and written without a lock, and a lost update makes for a look too
 * late or too many.  Only a zap must not get lost; so the follower says "done"
 * before it looks and, if that turns out to be wrong, adds to it afterwards.
 */
struct kvm_gtdp_region {
	u8 todo;
	/* Passes of the follower to skip; log2 of them after a look in vain. */
	u8 wait;
	u8 backoff;
	/* Likewise, faults that skip fault-around. */
	u8 fault_wait;
	u8 fault_backoff;
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
	/* Look at what has been told to wait for more memory, too. */
	bool settle;
	/* A vCPU has run, i.e. vCPUs fault on what they need. */
	bool has_run;
	/* Don't come back to what is looked at in vain. */
	bool last;
	/* Memory has arrived where there was none before. */
	bool arrived;
	/* Regions were given up. */
	bool given_up;
	/* Something that can't be done now must be tried again. */
	bool waiting;
	/* No memory for page tables, further looks gain nothing. */
	bool nomem;
	unsigned long looks;
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
	/* The time, in jiffies, before which not to try to create it again. */
	unsigned long follower_retry;
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

	/* Private to the follower. */
	u64 resident;
	unsigned long last_pass;
	/* Jiffies between passes, and the least that is affordable. */
	long sleep;
	long sleep_min;
	int settle;
	bool waiting;
	bool given_up;
	/* The last pass found no memory that had arrived. */
	bool vain;
	/* Jiffies to wait at least, for there to be memory. */
	long nomem_sleep;
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
 * Memslot updates wait for SRCU readers, with slots_lock held, and there are many
 * in the blackout of a migration: be brief if one may be waiting.
 */
static bool gtdp_must_be_brief(struct kvm *kvm)
{
	return mutex_is_locked(&kvm->slots_lock);
}

/* The next look is only worthwhile after twice as many others. */
static void gtdp_back_off(u8 *wait, u8 *backoff, u8 max)
{
	u8 n = min_t(u8, READ_ONCE(*backoff) + 1, max);

	WRITE_ONCE(*backoff, n);
	WRITE_ONCE(*wait, BIT(n) - 1);
}

static bool gtdp_must_wait(u8 *wait)
{
	u8 n = READ_ONCE(*wait);

	if (!n)
		return false;

	WRITE_ONCE(*wait, n - 1);
	return true;
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

static void gtdp_mark(const struct kvm_memory_slot *slot, gfn_t start, gfn_t end,
		      enum gtdp_todo todo)
{
	struct kvm_gtdp_region *r, *last;

	if (!slot->arch.gtdp_regions || start >= end)
		return;

	last = gtdp_region(slot, end - 1);
	for (r = gtdp_region(slot, start); r <= last; r++) {
		WRITE_ONCE(r->fault_wait, 0);

		/* What is awaited anyway remains so, however often it is zapped. */
		if (todo == GTDP_ZAPPED && READ_ONCE(r->todo) == GTDP_NEW)
			continue;

		if (todo == GTDP_ZAPPED) {
			/*
			 * Memory in churn is left alone for longer and longer;
			 * what is zapped page by page counts once.
			 */
			if (READ_ONCE(r->todo) != GTDP_ZAPPED)
				gtdp_back_off(&r->wait, &r->backoff, GTDP_BACKOFF_ZAPPED);
		} else {
			WRITE_ONCE(r->wait, 0);
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

	gtdp_mark(slot, start, end, GTDP_ZAPPED);
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
 * VMM ends that by unregistering it.
 */
static bool gtdp_is_awaited(struct gtdp_pass *pass, gfn_t gfn)
{
	struct mm_struct *mm = pass->p.kvm->mm;
	struct vm_area_struct *vma;
	bool awaited;

	/* Ask again later. */
	if (!mmap_read_trylock(mm))
		return true;

	vma = vma_lookup(mm, __gfn_to_hva_memslot(pass->p.slot, gfn));
	awaited = vma && (vma->vm_flags & (VM_UFFD_MISSING | VM_UFFD_MINOR));
	mmap_read_unlock(mm);

	return awaited;
}

static void gtdp_look(struct gtdp_pass *pass, struct kvm_gtdp_region *r,
		      gfn_t start, gfn_t end)
{
	u64 absent = pass->p.absent, installed = pass->p.installed;
	u8 todo = READ_ONCE(r->todo);
	long ret;

	/*
	 * A zap that happens from now on marks the region again.  The store is
	 * ordered by the acquisition of mmu_lock, without which the host can
	 * not begin to zap.
	 */
	WRITE_ONCE(r->todo, GTDP_DONE);
	ret = kvm_tdp_populate(&pass->p, start, end);
	pass->looks++;

	absent = pass->p.absent - absent;
	installed = pass->p.installed - installed;

	if (todo == GTDP_ZAPPED)
		atomic64_add(installed, &pass->p.kvm->stat.tdp_repopulated);

	if (ret >= 0 && !absent)
		return;

	/* What is missing may come, or come back. */
	if (ret < 0) {
		/* Nothing is known of the region. */
		pass->waiting = true;
		pass->nomem = ret == -ENOMEM;
	} else if (installed && todo == GTDP_NEW) {
		pass->arrived = true;
		WRITE_ONCE(r->backoff, 0);
	} else if (!installed) {
		/* What the host took away for good, e.g. before postcopy, is new. */
		if (todo == GTDP_ZAPPED && r->backoff == GTDP_BACKOFF_ZAPPED) {
			if (pass->has_run && !gtdp_is_awaited(pass, start))
				return;
			todo = GTDP_NEW;
		}

		if (todo == GTDP_NEW && pass->last) {
			if (gtdp_is_awaited(pass, start)) {
				pass->waiting = true;
			} else {
				todo = GTDP_GIVEN_UP;
				pass->given_up = true;
			}
		}
		gtdp_back_off(&r->wait, &r->backoff,
			      todo == GTDP_ZAPPED ? GTDP_BACKOFF_ZAPPED : GTDP_BACKOFF_NEW);
	}

	if (todo == GTDP_ZAPPED)
		pass->waiting = true;

	/* Whoever has marked it meanwhile knows better. */
	cmpxchg(&r->todo, GTDP_DONE, todo);
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
	bool zapped;
	u8 todo;

	guard(srcu)(&kvm->srcu);

	if (!kvm_gtdp_enabled(kvm))
		return false;

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
			todo = READ_ONCE(r->todo);
			if (todo == GTDP_DONE || todo == GTDP_GIVEN_UP)
				continue;

			zapped = todo == GTDP_ZAPPED;

			if (gtdp_must_wait(&r->wait) && (zapped || !pass->settle)) {
				/* No pass follows the last unless something waits. */
				pass->waiting |= zapped || pass->last;
				continue;
			}

			gtdp_look(pass, r, start, end);
			if (pass->nomem)
				return false;
			looks = gtdp_must_be_brief(kvm) ? 0 : looks - 1;
		}
		pass->gfn = start;
	}

	return false;
}

static bool gtdp_pass_on(struct gtdp_pass *pass)
{
	cond_resched();

	return !signal_pending(current) && !READ_ONCE(pass->p.kvm->arch.gtdp->stop);
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
	while (gtdp_pass_batch(&helper->pass) && gtdp_pass_on(&helper->pass))
		;
	kvm_tdp_populate_end(&helper->pass.p);
	atomic64_add(ktime_get_ns() - start, &helper->pass.p.kvm->stat.tdp_populate_time_ns);

	if (signal_pending(current))
		helper->pass.waiting = true;

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
		};
		helper->pass.looks = 0;
		helper->pass.arrived = false;
		helper->pass.given_up = false;
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
		pass->waiting |= helper->pass.waiting;
		pass->arrived |= helper->pass.arrived;
		pass->given_up |= helper->pass.given_up;
		pass->nomem |= helper->pass.nomem;
		pass->looks += helper->pass.looks;
	}

	pass->shared = false;
}

static void gtdp_pass(struct kvm *kvm, struct gtdp_pass *pass)
{
	struct kvm_gtdp *gtdp = kvm->arch.gtdp;

	pass->p.kvm = kvm;

	for (pass->as_id = 0;
	     pass->as_id < kvm_arch_nr_memslot_as_ids(kvm) && !pass->nomem; pass->as_id++) {
		if (!kvm_mmu_get_vm_root_role(kvm, pass->as_id, &pass->p.role)) {
			pass->waiting = true;
			continue;
		}

		pass->gfn = 0;
		while (gtdp_pass_batch(pass) && gtdp_pass_on(pass)) {
			if (!pass->shared && pass->looks >= GTDP_LOOKS_TO_SHARE &&
			    pass->p.installed > pass->looks)
				gtdp_share(gtdp, pass);
		}
		gtdp_join(gtdp, pass);
	}

	/* It may have been cut short. */
	if (signal_pending(current))
		pass->waiting = true;

	kvm_tdp_populate_end(&pass->p);
}

/* Memory does still arrive, after all: reconsider what the pass has given up. */
static void gtdp_resume(struct kvm *kvm)
{
	struct kvm_gtdp_region *r, *last;
	struct kvm_memory_slot *slot;
	struct kvm_memslots *slots;
	int i, bkt;

	guard(srcu)(&kvm->srcu);

	for (i = 0; i < kvm_arch_nr_memslot_as_ids(kvm); i++) {
		slots = __kvm_memslots(kvm, i);
		kvm_for_each_memslot(slot, bkt, slots) {
			if (!slot->arch.gtdp_regions)
				continue;

			last = gtdp_region(slot, gtdp_slot_end(slot) - 1);
			for (r = gtdp_region(slot, slot->base_gfn); r <= last; r++) {
				if (READ_ONCE(r->todo) == GTDP_GIVEN_UP)
					cmpxchg(&r->todo, GTDP_GIVEN_UP, GTDP_NEW);
			}
			cond_resched();
		}
	}
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

/* The pages of the VMM, of any size, that are present; changes as they arrive. */
static u64 gtdp_resident(struct mm_struct *mm)
{
	u64 pages = 0;

	pages += percpu_counter_sum(&mm->rss_stat[MM_FILEPAGES]);
	pages += percpu_counter_sum(&mm->rss_stat[MM_ANONPAGES]);
	pages += percpu_counter_sum(&mm->rss_stat[MM_SHMEMPAGES]);
#ifdef CONFIG_HUGETLB_PAGE
	pages += atomic_long_read(&mm->hugetlb_usage);
#endif
	return pages;
}

/*
 * Called in a loop by the thread, in TASK_INTERRUPTIBLE: until the state is
 * changed, wakeups are not lost.  Returns false to sleep until woken.
 *
 * Memory arrives without a notification.  What tells is that more, or less, is
 * resident than before; if so, look at what was not complete.  Once it stops,
 * look at everything twice again, for what had been told to wait.
 *
 * What can't be done now, because a memslot is being changed, the role of the
 * root is not known, there is no memory or a signal is pending, is waited for.
 */
static bool gtdp_follow(void *data)
{
	struct kvm *kvm = data;
	struct kvm_gtdp *gtdp = kvm->arch.gtdp;
	struct gtdp_pass pass = {};
	bool marked, arrived;
	u64 resident, start;
	long wait, least;

	if (READ_ONCE(gtdp->urgent)) {
		gtdp->sleep = gtdp->sleep_min;
		gtdp->nomem_sleep = 0;
	} else if (gtdp->sleep > GTDP_SLEEP_MAX && !READ_ONCE(gtdp->marked)) {
		return false;
	}

	wait = max(min(gtdp->sleep, GTDP_SLEEP_MAX), gtdp->nomem_sleep);
	wait += gtdp->last_pass - jiffies;
	if (wait > 0) {
		schedule_timeout(wait);
		return true;
	}

	__set_current_state(TASK_RUNNING);
	gtdp_drop_rt();

	WRITE_ONCE(gtdp->urgent, false);
	/*
	 * At once and before the look at the regions, so that whoever marks one
	 * either is seen here or is left for the next pass; xchg() is a barrier,
	 * which pairs with that of gtdp_wake_follower().
	 */
	marked = xchg(&gtdp->marked, false);

	/* Whoever turns it on again wakes the follower after that. */
	if (!kvm_gtdp_enabled(kvm)) {
		gtdp->sleep = GTDP_SLEEP_MAX + 1;
		return true;
	}

	resident = gtdp_resident(kvm->mm);
	arrived = resident != gtdp->resident;
	gtdp->resident = resident;
	if (arrived)
		gtdp->settle = GTDP_SETTLE;
	else if (gtdp->settle)
		gtdp->settle--;

	/*
	 * While vCPUs are running, they fault on what they need: stop if
	 * another pass, after ever longer sleeps, gains nothing.
	 */
	pass.has_run = gtdp_has_run(kvm);
	pass.last = pass.has_run && gtdp->sleep >= GTDP_SLEEP_MAX && gtdp->vain;
	pass.settle = pass.last ? !gtdp->waiting : !arrived && gtdp->settle;

	start = ktime_get_ns();
	if (marked || arrived || gtdp->settle || gtdp->waiting || pass.last)
		gtdp_pass(kvm, &pass);
	gtdp->given_up |= pass.given_up;
	if (pass.arrived && gtdp->given_up) {
		gtdp->given_up = false;
		gtdp_resume(kvm);
	}
	gtdp->waiting = pass.waiting;
	gtdp->vain = !pass.arrived;
	gtdp->nomem_sleep = !pass.nomem ? 0 :
			    clamp(2 * gtdp->nomem_sleep, GTDP_SLEEP_MAX, GTDP_SLEEP_NOMEM);
	gtdp->last_pass = jiffies;
	start = ktime_get_ns() - start;
	atomic64_add(start, &kvm->stat.tdp_populate_time_ns);

	/*
	 * Take at most half of a CPU while it pays, i.e. while a look maps more
	 * than a page, and a small share of it to find out whether it does.
	 */
	if (pass.p.installed > pass.looks) {
		least = nsecs_to_jiffies(start);
		gtdp->sleep = 0;
	} else {
		least = nsecs_to_jiffies(start * GTDP_VAIN_SHARE);
	}
	gtdp->sleep_min = clamp(least, GTDP_SLEEP_MIN, GTDP_SLEEP_MAX);
	if (gtdp->sleep <= GTDP_SLEEP_MAX)
		gtdp->sleep = max(2 * gtdp->sleep, gtdp->sleep_min);
	if (gtdp->sleep > GTDP_SLEEP_MAX &&
	    (!pass.last || pass.waiting || pass.arrived))
		gtdp->sleep = GTDP_SLEEP_MAX;

	if (pass.looks)
		trace_kvm_tdp_follow(pass.looks, pass.p.mapped, pass.p.installed,
				     gtdp->sleep > GTDP_SLEEP_MAX ? -1 : gtdp->sleep);
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

/*
 * As many as the VM's memory is worth, called by the VMM; there may be memory
 * only after there are vCPUs.  The follower does without those that can't be
 * created.
 */
static void gtdp_create_helpers(struct kvm_gtdp *gtdp)
{
	unsigned int nr = min3(READ_ONCE(global_tdp_threads), num_online_cpus(),
			       GTDP_MAX_HELPERS + 1);
	unsigned int i;

	nr = min_t(u64, max(nr, 1) - 1, gtdp->kvm->nr_memslot_pages / GTDP_HELPER_PAGES);

	for (i = gtdp->nr_helpers; i < nr; i++) {
		struct gtdp_helper *helper = &gtdp->helpers[i];

		init_completion(&helper->done);
		helper->task = gtdp_create_task(gtdp_help, gtdp_helper_killed,
						helper, "kvm-gtdp-help");
		if (IS_ERR(helper->task))
			return;

		/* The follower may look at once; pairs with gtdp_share(). */
		smp_store_release(&gtdp->nr_helpers, i + 1);
	}
}

static int gtdp_create_follower(struct once *once)
{
	struct kvm_gtdp *gtdp = container_of(once, struct kvm_gtdp, follower_once);
	struct vhost_task *follower;

	/* Whoever waited for another attempt to fail need not make one, too. */
	if (time_before(jiffies, READ_ONCE(gtdp->follower_retry)))
		return -EAGAIN;

	gtdp->sleep = GTDP_SLEEP_MIN;
	gtdp->sleep_min = GTDP_SLEEP_MIN;
	follower = gtdp_create_task(gtdp_follow, gtdp_follower_killed, gtdp->kvm,
				    "kvm-gtdp");
	/* Being killed, stopped or frozen is not what is to be counted. */
	if (follower == ERR_PTR(-ERESTARTNOINTR))
		return -EINTR;

	if (IS_ERR(follower)) {
		WRITE_ONCE(gtdp->follower_retry, jiffies + GTDP_FOLLOWER_RETRY);
		++gtdp->kvm->stat.tdp_follower_failed;
		pr_warn_once("no thread to build page tables with, vCPUs fault until there is one\n");
		return PTR_ERR(follower);
	}

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

	if (READ_ONCE(gtdp->follower) || !kvm->created_vcpus ||
	    !kvm_gtdp_has(kvm, KVM_GLOBAL_TDP_FOLLOW) ||
	    time_before(jiffies, READ_ONCE(gtdp->follower_retry)))
		return;

	call_once(&gtdp->follower_once, gtdp_create_follower);
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
	if (READ_ONCE(kvm->arch.gtdp->follower))
		gtdp_create_helpers(kvm->arch.gtdp);
	else
		__kvm_gtdp_want_follower(kvm);

	gtdp_mark(slot, slot->base_gfn, gtdp_slot_end(slot), GTDP_NEW);
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

	if (!kvm_gtdp_has(vcpu->kvm, KVM_GLOBAL_TDP_FAULT_AROUND) ||
	    !slot || !slot->arch.gtdp_regions ||
	    fault->prefetch || fault->goal_level != PG_LEVEL_4K)
		return;

	r = gtdp_region(slot, fault->gfn);
	if (gtdp_must_wait(&r->fault_wait))
		return;

	start = max(slot->base_gfn, gfn_round_for_level(fault->gfn, PG_LEVEL_2M));
	kvm_tdp_populate(&p, start, gtdp_region_end(start, gtdp_slot_end(slot)));
	kvm_tdp_populate_end(&p);

	/* A guest that allocates page by page has nothing to find, mostly. */
	if (p.installed)
		WRITE_ONCE(r->fault_backoff, 0);
	else
		gtdp_back_off(&r->fault_wait, &r->fault_backoff, GTDP_BACKOFF_FAULTS);

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
			slot_end = min(end, gtdp_slot_end(slot));
			gtdp_mark(slot, gfn, slot_end, GTDP_NEW);
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
				if (gtdp_must_be_brief(kvm) || need_resched())
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
			gtdp_mark(slot, slot->base_gfn, gtdp_slot_end(slot),
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
