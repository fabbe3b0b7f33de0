/*
 * No mark is lost: the follower does not sleep while a page that was zapped is back,
 * and not mapped.
 *
 * One page, one region of it; two invalidations that mark, the follower that scans,
 * and two vCPUs, whose faults may map the page, too.
 */

#define NGFN		1
#define NHVA		1
#define HVA(gfn)	0
#define HUGE		0
#define MAY_STOP

/*
 * kvm_gtdp_region::todo, whichever but GTDP_DONE; kvm_gtdp::marked; and whether the
 * follower goes to sleep in schedule(), i.e. is in TASK_INTERRUPTIBLE.
 */
bool todo = true;
bool marked = true;
bool interruptible;
bool asleep;
byte stopped;

/* gtdp_mark() and gtdp_wake_follower() */
inline gtdp_mark()
{
#ifdef NO_BARRIER
	/* The CPU loads the flag while the store is still on its way. */
	if
	:: marked -> todo = true
	:: else -> todo = true; marked = true; interruptible = false
	fi
#else
	todo = true;
	if
	:: marked
	:: else -> marked = true; interruptible = false	/* vhost_task_wake() */
	fi
#endif
}

#ifdef MARK_BEFORE_ZAP
#define on_begin()	gtdp_mark()
#else
#define on_zapped()	gtdp_mark()
#endif
#define on_stop()	stopped++

#include "mmu.pml"

proctype vcpu(byte me)
{
	do
	:: break
	:: atomic { spte[0] == NONE -> gfn_of_fault = 0; take_seq() };
	   fault_in();
	   atomic {
		if
		:: spte[0] == NONE -> spte[0] = fault_pfn[me]
		:: else
		fi;
out_unlock:	fault_out()
	   }
	od
}

/*
 * kvm_tdp_populate() of the region.  It may find that it must try again for reasons
 * of its own, too: a range near by is being invalidated, mmap_lock is not to be had.
 */
inline populate()
{
	atomic {
		read_lock();
		if
		:: !being_invalidated(BIT(0))
		:: again = true; read_unlock()
		fi
	};
	if
	:: again
	:: else ->
		atomic { populate_pfn[0] = (pte[0] -> LIVE : NONE) };
		atomic {
			if
			:: spte[0] == NONE -> spte[0] = populate_pfn[0]
			:: else
			fi;
			again = (spte[0] == NONE);
			populate_pfn[0] = NONE;
			read_unlock()
		}
	fi
}

/*
 * gtdp_scan_region().  What is absent, or just being changed, is scanned again, after a
 * while; that the follower gives up after some looks is left out.
 */
inline gtdp_scan_region()
{
#ifndef DONE_AFTER_SCAN
	todo = false;
#endif
	populate();
#ifdef DONE_AFTER_SCAN
	todo = false;
#endif
	if
	:: again ->
		again = false;
#ifndef NOT_ADDED_AGAIN
		todo = true;
#endif
#ifndef NOT_AWAITED
		waiting = true
#endif
	:: else
	fi
}

/* gtdp_follower_fn(), which vhost_task_fn() calls in TASK_INTERRUPTIBLE. */
active proctype follower()
{
	bool again, waiting;

	do
	::
#ifndef INTERRUPTIBLE_AFTER_LOOK
	   interruptible = true;
#endif
	   if
	   :: !marked && !waiting ->
		/* Nothing to do: schedule(). */
#ifdef INTERRUPTIBLE_AFTER_LOOK
		interruptible = true;
#endif
		asleep = true;
end:		atomic { !interruptible -> asleep = false }
	   :: else ->
		/* A pass. */
		atomic { interruptible = false; waiting = false };
#ifndef MARKED_CLEARED_AFTER_PASS
		marked = false;
#endif
		if
		:: todo -> gtdp_scan_region()
		:: else
		fi;
#ifdef MARKED_CLEARED_AFTER_PASS
		marked = false
#endif
	   fi
	od
}

/* When all is quiet, the page is there, and nobody will scan. */
active proctype judge()
{
end:	atomic {
		stopped == 2 && pte[0] && asleep && interruptible ->
		assert(spte[0] != NONE)
	}
}

init {
	atomic {
		run invalidator();
		run invalidator();
		run vcpu(0);
		run vcpu(1)
	}
}
