/* SPDX-License-Identifier: GPL-2.0 */
#ifndef __KVM_X86_MMU_GTDP_H
#define __KVM_X86_MMU_GTDP_H

/*
 * What the files of Global TDP share; the rest of KVM sees global_tdp.h.
 */
#include <linux/call_once.h>
#include <linux/kvm_host.h>
#include <linux/sched/clock.h>

#include "mmu.h"
#include "mmu_internal.h"
#include "tdp_populate.h"

struct vhost_task;

/*
 * Pages per SRCU read-side section; a region that is skipped or marked counts as one.  Memslot
 * updates wait for its end, with slots_lock held, and there are many in the blackout
 * of a migration: 8 scans that map all of a region take some 100,000 instructions.
 */
#define GTDP_PAGES_PER_BATCH	4096

/* Looks at what was zapped beside vCPUs: fewer would miss what comes from a slow disk. */
#define GTDP_LOOKS		3

/*
 * What a scan of a 2MiB region of a memslot may gain, a byte each.  It is a hint, which is
 * read and written without a lock.  A lost update makes for a scan too late or too many.
 * Only a zap must not get lost.  So the follower stores "done" before it scans, and adds to
 * that afterwards.  gtdp_mark() relies on the order.
 */
enum gtdp_todo {
	GTDP_DONE,	/* nothing; must be zero */
	GTDP_ABSENT,	/* memory that may arrive */
	GTDP_NEW,	/* whatever there is; nobody has scanned it yet */
	/* Memory that may be back, or be a huge page now; plus the looks that it has had. */
	GTDP_ZAPPED,
	GTDP_LAST_LOOK = GTDP_ZAPPED + GTDP_LOOKS - 1,
};

#define GTDP_MARKED		1	/* Something was marked. */
#define GTDP_URGENT		3	/* And someone is waiting for it: don't sleep any longer. */
#define GTDP_RUNS		7	/* And now a vCPU runs, for the first time. */

/* The follower's walk over the memslots. */
struct gtdp_pass {
	struct kvm_tdp_populate p;
	int as_id;
	/* Where to go on. */
	gfn_t gfn;
	/* What to scan: a bit for each enum gtdp_todo. */
	u8 todos;
	/* More is resident, or was found where there was none before. */
	bool arrived;
	unsigned long scans;
	/*
	 * -EAGAIN: something that can't be done now must be tried again.
	 * -EINTR or, without memory for page tables, -ENOMEM: it ended early.
	 */
	int err;
};

/* What was due stays due. */
static inline bool gtdp_is_partial(const struct gtdp_pass *pass)
{
	return pass->err && pass->err != -EAGAIN;
}

struct kvm_gtdp {
	struct kvm *kvm;

	struct once follower_once;
	struct vhost_task *follower;
	/* In jiffies: when to try again to create the follower, at the earliest. */
	unsigned long thread_retry;
	/* Since the follower's last pass: 0, or GTDP_MARKED and above. */
	atomic_t marked;

	/* A vCPU has run, i.e. vCPUs fault on what they need. */
	bool has_run;

	/* Private to the follower. */
	struct gtdp_pass pass;
	u64 resident;
	/* In jiffies: when what was zapped is due, by the looks that it has had, or 0. */
	unsigned long due[GTDP_LOOKS];
	/* Jiffies between passes; the most once memory has ceased to arrive. */
	int pause;
	/*
	 * In jiffies: when the next regular pass is planned; until when these are throttled;
	 * and until when there is no pass, as the last one took so long.
	 */
	unsigned long next;
	unsigned long throttled_until;
	unsigned long idle_until;
};

/* The tracker records zaps then, too.  Otherwise a later pass would miss them. */
static inline bool gtdp_follows(const struct kvm *kvm)
{
	return READ_ONCE(kvm->arch.gtdp_features) & KVM_GLOBAL_TDP_FOLLOW;
}

/* What faults map of a slot with a guest_memfd need not be what is at its hva. */
static inline bool gtdp_is_user_slot(const struct kvm_memory_slot *slot)
{
	return slot->id < KVM_USER_MEM_SLOTS && !kvm_slot_has_gmem(slot);
}

struct gtdp_timer {
	u64 start;
	u64 runtime;
	unsigned long switches;
};

static inline struct gtdp_timer gtdp_timer(void)
{
	return (struct gtdp_timer) {
		.start = local_clock(),
		.runtime = current->se.sum_exec_runtime,
		.switches = current->nvcsw + current->nivcsw,
	};
}

/*
 * For how long the thread has had a CPU since: all of the time or, if it was switched
 * meanwhile, what the scheduler has counted, and up to a tick more.
 */
static inline u64 gtdp_timer_ns(const struct gtdp_timer *t)
{
	u64 ns = local_clock() - t->start;

	if (current->nvcsw + current->nivcsw == t->switches)
		return ns;
	return min(ns, current->se.sum_exec_runtime - t->runtime + TICK_NSEC);
}

static inline u8 *gtdp_region(const struct kvm_memory_slot *slot, gfn_t gfn)
{
	return slot->arch.gtdp_regions +
	       gfn_to_index(gfn, slot->base_gfn, PG_LEVEL_2M);
}

static inline gfn_t gtdp_region_end(gfn_t gfn, gfn_t end)
{
	return min(end, gfn_round_for_level(gfn, PG_LEVEL_2M) +
			KVM_PAGES_PER_HPAGE(PG_LEVEL_2M));
}

static inline gfn_t gtdp_slot_end(const struct kvm_memory_slot *slot)
{
	return slot->base_gfn + slot->npages;
}

/* Bitmaps of userspace have a bit a page, in words that begin at a multiple of 256KiB. */
#define BITS_PER_U64	64

static inline bool gtdp_is_bitmap_aligned(u64 gpa, u64 bitmap)
{
	return IS_ALIGNED(gpa, BITS_PER_U64 * PAGE_SIZE) && IS_ALIGNED(bitmap, sizeof(u64));
}

/* Have what was zapped, and has had so many looks, looked for in @wait jiffies. */
static inline void gtdp_plan_look(struct kvm_gtdp *gtdp, unsigned int looks, long wait)
{
	if (!gtdp->due[looks])
		gtdp->due[looks] = (jiffies + wait) ?: 1;
}

/* Page cache */
int gtdp_map_page_cache(const struct kvm_tdp_populate *p, gfn_t start, gfn_t end,
			const struct kvm_page_fault *fault);

/* Tracker */
void gtdp_mark(struct kvm_gtdp *gtdp, const struct kvm_memory_slot *slot,
	       gfn_t start, gfn_t end, enum gtdp_todo todo);
void gtdp_wake_follower(struct kvm_gtdp *gtdp, int marked);
void gtdp_kick_follower(struct kvm_gtdp *gtdp);

/* Passes */
void gtdp_run_pass(struct kvm_gtdp *gtdp, struct gtdp_pass *pass);

/* Follower */
int gtdp_start_follower(struct kvm_gtdp *gtdp);

#endif /* __KVM_X86_MMU_GTDP_H */
