// SPDX-License-Identifier: GPL-2.0
/*
 * Follower of Global TDP: see "Following" in Documentation/virt/kvm/global_tdp.rst.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include "global_tdp.h"
#include "gtdp.h"
#include "mmutrace.h"

#include <linux/percpu_counter.h>
#include <linux/sched/rt.h>
#include <linux/sched/vhost_task.h>

/*
 * Jiffies between passes: after one that found much, and at the most.  The pause grows after
 * each pass that found little.  In 10ms, a network of 10GiB/s fills fifty regions.  That many
 * are worth a pass, and are left to faults if vCPUs run at once.
 */
#define GTDP_PAUSE_MIN		DIV_ROUND_UP(HZ, 100)
#define GTDP_PAUSE_MAX		(2 * HZ)
#define GTDP_PAUSE_FACTOR	4

/* After a fork() that fails, which pids.events counts, the wait doubles: to about an hour. */
#define GTDP_BACKOFF_THREAD	12

/* A pass that maps next to nothing is followed by a pause so many times as long. */
#define GTDP_THROTTLE_FACTOR	20

/* Has the VMM more or fewer pages, of any size, or page tables?  The zero page needs these. */
static bool gtdp_resident_changed(struct kvm_gtdp *gtdp)
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

/* Memory arrives, or did until recently. */
static bool gtdp_is_arriving(const struct kvm_gtdp *gtdp)
{
	return gtdp->pause < GTDP_PAUSE_MAX;
}

/* Something was marked: make a pass earlier than planned. */
static void gtdp_expedite_pass(struct kvm_gtdp *gtdp, int marked)
{
	long wait = HZ;

	gtdp_plan_look(gtdp, 0, HZ);

	/* There is a pass soon, or no memory. */
	if (marked == GTDP_MARKED && (gtdp_is_arriving(gtdp) || gtdp->pass.err == -ENOMEM))
		return;

	/* What was zapped beside vCPUs is due in a second, at the earliest. */
	if (marked != GTDP_MARKED || !READ_ONCE(gtdp->has_run))
		wait = gtdp->pause = GTDP_PAUSE_MIN;

	if (time_before(jiffies + wait, gtdp->next))
		gtdp->next = jiffies + wait;
}

/*
 * What to scan.  Of looks at what was zapped, all are due before a vCPU has run, later those
 * of the next 250ms as well, which then need no wake-up of their own.
 */
static u8 gtdp_begin_todos(struct kvm_gtdp *gtdp)
{
	const struct gtdp_pass *last = &gtdp->pass;
	u8 todos = BIT(GTDP_NEW) | (gtdp_is_partial(last) ? last->todos : 0);
	int i;

	if (gtdp_is_arriving(gtdp) || last->arrived)
		todos |= BIT(GTDP_ABSENT);

	for (i = 0; i < GTDP_LOOKS; i++) {
		if (READ_ONCE(gtdp->has_run) &&
		    (!gtdp->due[i] || time_before(jiffies + HZ / 4, gtdp->due[i])))
			continue;
		todos |= BIT(GTDP_ZAPPED + i);
		gtdp->due[i] = 0;
	}
	return todos;
}

/* Whether to make a pass.  Once vCPUs run, the VMM allocates for other reasons, too. */
static bool gtdp_begin_pass(struct kvm_gtdp *gtdp)
{
	const bool has_run = READ_ONCE(gtdp->has_run), retry = gtdp->pass.err;
	const bool arrived = !has_run && gtdp_resident_changed(gtdp);

	if (arrived && !gtdp_is_arriving(gtdp))
		gtdp->pause = GTDP_PAUSE_MIN;

	gtdp->pass = (struct gtdp_pass) {
		.arrived = arrived,
		.todos = gtdp_begin_todos(gtdp),
	};
	return has_run || retry || gtdp_is_arriving(gtdp);
}

/* Have the scans mapped more than a page each? */
static bool gtdp_is_productive(const struct gtdp_pass *pass)
{
	return pass->p.installed > pass->scans;
}

/* After a pass: in how long to make the next one, see global_tdp.rst. */
static long gtdp_next_delay(struct kvm_gtdp *gtdp)
{
	const struct gtdp_pass *pass = &gtdp->pass;
	long wait = MAX_JIFFY_OFFSET;
	int i;

	if (pass->err == -EINTR)
		return 0;

	gtdp->pause = min(gtdp->pause * GTDP_PAUSE_FACTOR, GTDP_PAUSE_MAX);
	/* Beside vCPUs, pages here and there may well be the VMM's own. */
	if (pass->arrived && gtdp_is_productive(pass))
		gtdp->pause = GTDP_PAUSE_MIN;

	if (gtdp_is_arriving(gtdp) || !READ_ONCE(gtdp->has_run) || pass->err || pass->arrived)
		wait = gtdp->pause;

	for (i = 0; i < GTDP_LOOKS; i++) {
		if (gtdp->due[i])
			wait = clamp_t(long, gtdp->due[i] - jiffies, 0, wait);
	}
	return wait;
}

/* Jiffies until there is something to do that is not urgent. */
static long gtdp_pass_delay(const struct kvm_gtdp *gtdp)
{
	return max_t(long, gtdp->next - jiffies, gtdp->throttled_until - jiffies);
}

static void gtdp_trace_pass(const struct kvm_gtdp *gtdp, const struct gtdp_pass *pass)
{
	const long delay = gtdp_pass_delay(gtdp);

	if (pass->scans && pass->err != -EINTR)
		trace_kvm_tdp_follow(pass->scans, pass->p.mapped, pass->p.installed,
				     delay > MAX_JIFFY_OFFSET / 2 ? -1 : max(delay, 0L));
}

/* A pass over what is new. */
static void gtdp_urgent_pass(struct kvm_gtdp *gtdp)
{
	struct gtdp_pass pass = { .todos = BIT(GTDP_NEW) };

	gtdp_run_pass(gtdp, &pass);
	gtdp_trace_pass(gtdp, &pass);
	if (pass.err == -EINTR)
		atomic_or(GTDP_URGENT, &gtdp->marked);
}

/* A pass over all that is due, and when to make the next one. */
static void gtdp_regular_pass(struct kvm_gtdp *gtdp)
{
	const struct gtdp_timer timer = gtdp_timer();

	if (gtdp_begin_pass(gtdp))
		gtdp_run_pass(gtdp, &gtdp->pass);

	gtdp->throttled_until = jiffies;
	if (!gtdp_is_productive(&gtdp->pass))
		gtdp->throttled_until += nsecs_to_jiffies(gtdp_timer_ns(&timer) *
							  GTDP_THROTTLE_FACTOR);
	gtdp->next = jiffies + gtdp_next_delay(gtdp);
	gtdp_trace_pass(gtdp, &gtdp->pass);
}

static void gtdp_work(struct kvm_gtdp *gtdp)
{
	const struct gtdp_timer timer = gtdp_timer();
	int marked;
	u64 ns;

	/*
	 * At once and before the regions are scanned, so that whoever marks one
	 * either is seen here or is left for the next pass; atomic_xchg() is a
	 * barrier, which pairs with that of gtdp_wake_follower().
	 */
	marked = atomic_xchg(&gtdp->marked, 0);
	if (marked)
		gtdp_expedite_pass(gtdp, marked);

	/* Whoever turns it on again wakes the follower after that. */
	if (!READ_ONCE(gtdp->kvm->arch.gtdp_features)) {
		gtdp->pass = (struct gtdp_pass) {};
		gtdp->pause = GTDP_PAUSE_MAX;
		gtdp->next = jiffies + MAX_JIFFY_OFFSET;
		return;
	}

	/* The vCPU may need first what has just arrived. */
	if (marked == GTDP_RUNS)
		gtdp->throttled_until = jiffies;

	/* What is new does not wait for what is absent, of which there may be much. */
	if (marked >= GTDP_URGENT)
		gtdp_urgent_pass(gtdp);
	if (gtdp_pass_delay(gtdp) <= 0)
		gtdp_regular_pass(gtdp);

	/* Take half of a CPU, mostly, whatever is to be done next. */
	ns = gtdp_timer_ns(&timer);
	atomic64_add(ns, &gtdp->kvm->stat.tdp_populate_time_ns);
	gtdp->idle_until = jiffies + clamp_t(long, nsecs_to_jiffies(ns), GTDP_PAUSE_MIN, HZ / 4);
}

/*
 * Called in a loop by the thread, in TASK_INTERRUPTIBLE: until the state is
 * changed, wakeups are not lost.  Returns false to sleep until woken.
 */
static bool gtdp_follower_fn(void *data)
{
	struct kvm_gtdp *gtdp = data;
	const int marked = atomic_read(&gtdp->marked);
	long wait;

	/* Stopped: keep the state.  gtdp_set_mode() wakes the follower. */
	if (kvm_gtdp_is_stopped())
		return false;

	if (marked)
		gtdp_expedite_pass(gtdp, marked);

	wait = max_t(long, gtdp->idle_until - jiffies,
		     marked >= GTDP_URGENT ? 0 : gtdp_pass_delay(gtdp));
	if (wait > 0) {
		schedule_timeout(wait);
		return true;
	}

	__set_current_state(TASK_RUNNING);

	/* Created by a vCPU's thread, it must not keep that from running. */
	if (rt_task(current))
		sched_set_normal(current, 0);

	/* See gtdp_run_pass(); whoever called sees to signals. */
	if (xfer_to_guest_mode_handle_work())
		return true;

	gtdp_work(gtdp);
	return true;
}

/* The VMM is being killed: its thread just ends. */
static void gtdp_follower_killed(void *data)
{
}

/*
 * Creating a thread of the VM fails if a signal is pending.  VMMs may well have a
 * timer: block signals meanwhile, as pthread_create() does.
 */
static struct vhost_task *gtdp_create_task(struct kvm_gtdp *gtdp)
{
	struct vhost_task *task;
	sigset_t blocked, old;

	siginitsetinv(&blocked, sigmask(SIGKILL));
	sigprocmask(SIG_SETMASK, &blocked, &old);

	task = vhost_task_create(gtdp_follower_fn, gtdp_follower_killed, gtdp, "kvm-gtdp");
	if (!IS_ERR(task))
		vhost_task_start(task);

	sigprocmask(SIG_SETMASK, &old, NULL);
	return task;
}

static bool gtdp_may_create(struct kvm_gtdp *gtdp)
{
	return !time_before(jiffies, READ_ONCE(gtdp->thread_retry));
}

static int gtdp_create_follower(struct once *once)
{
	struct kvm_gtdp *gtdp = container_of(once, struct kvm_gtdp, follower_once);
	struct vhost_task *follower;
	s64 failed;

	/* Whoever waited for another attempt to fail need not make one, too. */
	if (!gtdp_may_create(gtdp))
		return -EAGAIN;

	gtdp->pause = GTDP_PAUSE_MAX;
	gtdp->next = jiffies + MAX_JIFFY_OFFSET;
	follower = gtdp_create_task(gtdp);
	/* Being killed, stopped or frozen is not what is to be counted. */
	if (follower == ERR_PTR(-ERESTARTNOINTR))
		return -EINTR;

	if (IS_ERR(follower)) {
		failed = atomic64_fetch_inc(&gtdp->kvm->stat.tdp_thread_failed);
		WRITE_ONCE(gtdp->thread_retry,
			   jiffies + (HZ << min(failed, GTDP_BACKOFF_THREAD)));
		pr_warn_once("no thread to build page tables with, vCPUs fault until there is one\n");
		return PTR_ERR(follower);
	}

	/*
	 * Make the task visible only once it is fully started, and wake it for
	 * what was marked before that.
	 */
	WRITE_ONCE(gtdp->follower, follower);
	vhost_task_wake(follower);
	return 0;
}

/* Whoever uses it may have it created. */
int gtdp_start_follower(struct kvm_gtdp *gtdp)
{
	return call_once(&gtdp->follower_once, gtdp_create_follower);
}

/*
 * A thread of the VMM, it is not created with the VM, but with the first vCPU, as VMMs
 * may well unshare namespaces or fork device processes in between, which must be done
 * while they are single-threaded.
 */
void kvm_gtdp_want_follower(struct kvm *kvm)
{
	struct kvm_gtdp *gtdp = kvm->arch.gtdp;

	if (!READ_ONCE(gtdp->follower) && kvm->created_vcpus &&
	    kvm_gtdp_has(kvm, KVM_GLOBAL_TDP_FOLLOW) && gtdp_may_create(gtdp))
		gtdp_start_follower(gtdp);
}

void kvm_gtdp_vcpu_runs(struct kvm_vcpu *vcpu)
{
	struct kvm_gtdp *gtdp = vcpu->kvm->arch.gtdp;

	/* Don't wake a follower that was created before all was turned off. */
	if (!READ_ONCE(vcpu->kvm->arch.gtdp_features))
		return;

	kvm_gtdp_want_follower(vcpu->kvm);

	/* The follower may be waiting for memory to arrive: that is over. */
	if (!READ_ONCE(gtdp->has_run) && vcpu->wants_to_run) {
		WRITE_ONCE(gtdp->has_run, true);
		gtdp_wake_follower(gtdp, GTDP_RUNS);
	}
}

void kvm_gtdp_slot_changed(struct kvm *kvm, const struct kvm_memory_slot *slot,
			   enum kvm_mr_change change)
{
	if (!gtdp_follows(kvm) || change == KVM_MR_DELETE || slot->as_id)
		return;

	/* Starting to log gains nothing, ending it may gain huge pages. */
	if (change == KVM_MR_FLAGS_ONLY && kvm_slot_dirty_track_enabled(slot))
		return;

	kvm_gtdp_want_follower(kvm);
	gtdp_mark(kvm->arch.gtdp, slot, slot->base_gfn, gtdp_slot_end(slot), GTDP_NEW);
	gtdp_wake_follower(kvm->arch.gtdp, GTDP_URGENT);
}

void kvm_gtdp_stop(struct kvm_gtdp *gtdp)
{
	/*
	 * MMU notifiers, which are still to come, wake the follower with
	 * mmu_lock held: from here on they don't.  And its pass ends early.
	 */
	write_lock(&gtdp->kvm->mmu_lock);
	WRITE_ONCE(gtdp->kvm->arch.gtdp_features, 0);
	write_unlock(&gtdp->kvm->mmu_lock);

	if (gtdp->follower)
		vhost_task_stop(gtdp->follower);
}
