/*
 * What the models have in common: the host's pages, SPTEs and TLBs, mmu_lock, the
 * MMU notifier, and what faults begin with.  README.md has a table that says which
 * function of the kernel is where.
 *
 * Who includes this defines
 *   NGFN, NHVA	how many gfns there are, and host pages that they map
 *   HVA(gfn)	the host page that a gfn maps
 *   HUGE	1 if one SPTE may map both gfns, i.e. they are in one slot; otherwise
 *		each has a slot of its own
 * and may define the hooks on_begin(), on_zap(gfn), on_zapped(), on_flush(vcpu),
 * on_gone() and on_stop(), and MAY_STOP to have the invalidations end some time.
 *
 * A step is an atomic block, or else a statement: one access to what others see.  To
 * take a lock is in one step with what comes next, and to drop it may be in one with
 * what came before: what others do in between, they can as well do before, or after.
 */

#define NR_VCPUS	2

/*
 * What is in an SPTE or a TLB, or in the hands of someone who is about to make an
 * SPTE.  LIVE becomes GONE, everywhere at once, when the owner takes the page away;
 * what the host has there afterwards is another page.
 */
#define NONE	0
#define LIVE	1
#define GONE	2

bool pte[NHVA];			/* the host's: present or not */
byte spte[NGFN];
bool huge;			/* one SPTE maps both gfns */
byte populate_pfn[NGFN];	/* what the populator is about to map */

/*
 * A TLB remembers one entry, until it is flushed.  Entries don't depend on each
 * other, and so this may be any of those that a real TLB has.
 */
byte tlb[NR_VCPUS];
byte tlb_gfn[NR_VCPUS];

/* Of each vCPU's struct kvm_page_fault: gfn, pfn, and mmu_seq being outdated. */
byte fault_gfn[NR_VCPUS];
byte fault_pfn[NR_VCPUS];
bool seq_moved[NR_VCPUS];

/* mmu_invalidate_in_progress, and mmu_invalidate_range_* as a set of gfns. */
byte in_progress;
byte in_range;

/*
 * mmu_lock.  The kernel's lets readers wait for a writer that waits; this lets them
 * pass, which allows for more interleavings.
 */
byte readers;
bool writer;

inline read_lock()	{ !writer -> readers++ }
inline read_unlock()	{ readers-- }
inline write_lock()	{ !writer && !readers -> writer = true }
inline write_unlock()	{ writer = false }

#define BIT(n)	(1 << (n))

/* mmu_invalidate_retry_gfn() without the sequence, is_range_being_invalidated() */
#define being_invalidated(gfns)	(in_progress && (in_range & (gfns)))

/* kvm_flush_remote_tlbs() of one vCPU, be it in the guest or about to enter it. */
inline flush_tlb(vcpu)
{
	tlb[vcpu] = NONE;
	tlb_gfn[vcpu] = 0;
#ifdef on_flush
	on_flush(vcpu)
#endif
}

/*
 * The host.
 */

inline lose(page, gfn, hva)
{
	if
	:: page == LIVE && HVA(gfn) == hva -> page = GONE
	:: else
	fi
}

/* The owner of a page takes it away, and does with it what it likes. */
inline host_takes_away(hva)
{
	pte[hva] = false;
	lose(spte[0], 0, hva);
	lose(populate_pfn[0], 0, hva);
#if NGFN > 1
	lose(spte[1], 1, hva);
	lose(populate_pfn[1], 1, hva);
#endif
	lose(tlb[0], tlb_gfn[0], hva);
	lose(tlb[1], tlb_gfn[1], hva);
	lose(fault_pfn[0], fault_gfn[0], hva);
	lose(fault_pfn[1], fault_gfn[1], hva);
#ifdef on_gone
	on_gone()
#endif
}

/* Any thread of the VMM touches its memory at any time. */
active proctype vmm()
{
end:	do
	:: atomic { !pte[0] -> pte[0] = true }
#if NHVA > 1
	:: atomic { !pte[1] -> pte[1] = true }
#endif
	od
}

/*
 * The MMU notifier.  hvas is the range, as a set.
 */

#define to_zap(gfn)	(hvas & BIT(HVA(gfn)))

inline choose_range()
{
	if
	:: hvas = BIT(0)
#if NHVA > 1
	:: hvas = BIT(1)
	:: hvas = BIT(0) | BIT(1)
#endif
	fi
}

inline kvm_mmu_invalidate_begin()
{
	in_progress++;
	if :: to_zap(0) -> in_range = in_range | BIT(0) :: else fi;
#if NGFN > 1
	if :: to_zap(1) -> in_range = in_range | BIT(1) :: else fi
#endif
}

inline kvm_mmu_invalidate_end()
{
	seq_moved[0] = true;
	seq_moved[1] = true;
	in_progress--;
	/* That is left to the next begin, but nobody looks in between. */
	if :: !in_progress -> in_range = 0 :: else fi
}

inline unlock()
{
	if :: large -> read_unlock() :: else -> write_unlock() fi
}

inline flush_if_zapped()
{
	atomic { if :: flush -> flush_tlb(0) :: else fi };
	atomic { if :: flush -> flush_tlb(1); flush = false :: else fi }
}

/* Whether tdp_mmu_iter_cond_resched() is to yield is anybody's guess. */
inline need_resched()
{
	if :: yield = true :: skip fi
}

/*
 * mmu_lock may be dropped for a moment, but not before everything that was zapped
 * so far, in this slot or another, has been flushed.
 */
inline cond_resched()
{
	if
	:: yield ->
#ifndef NO_FLUSH_BEFORE_YIELD
		flush_if_zapped();
#endif
		atomic { unlock() }
	:: else
	fi
}

inline lock_if_yielded()
{
	if
	:: !yield
	:: yield && large && !writer -> read_lock()
	:: yield && !large && !writer && !readers -> write_lock()
	fi;
	yield = false
}

/* tdp_mmu_zap_leafs(), one SPTE; a huge one is zapped for any part of it. */
inline zap_gfn(gfn)
{
	if
	:: to_zap(gfn) && spte[gfn] != NONE ->
		flush = true;
		spte[gfn] = NONE;
#if HUGE
		if
		:: huge -> spte[1 - gfn] = NONE; huge = false
		:: else
		fi;
#endif
#ifdef on_zap
		on_zap(gfn);
#endif
		skip
	:: else
	fi
}

/* What a slot leaves to be flushed is carried on to the next one. */
inline next_slot()
{
#ifdef NO_CARRY
	flush_at_end = flush;
	flush = false;
#endif
	skip
}

/*
 * __kvm_handle_hva_range() with kvm_unmap_gfn_range(), slot by slot.  mmu_lock is
 * held, for read if the range is large, and dropped at the end.  To yield before
 * the first SPTE, or after the last, is to lock later, or to unlock earlier.
 */
inline zap_range()
{
#if NGFN > 1
	atomic {
		zap_gfn(0);
#if !HUGE
		next_slot();
#endif
		need_resched()
	};
	cond_resched();
	atomic {
		lock_if_yielded();
		zap_gfn(1);
#ifdef NO_CARRY
		flush = flush || flush_at_end
#endif
	};
#else
	atomic { zap_gfn(0) };
#endif

#ifdef on_zapped
	on_zapped();
#endif

#ifdef FLUSH_AFTER_UNLOCK
	atomic { unlock() };
	flush_if_zapped()
#else
	flush_if_zapped();
	atomic { unlock() }
#endif
}

/*
 * kvm_mmu_notifier_invalidate_range_start(), what the host does then, and _end(),
 * over and over again.  Large is a range of more than 512 pages.
 */
proctype invalidator()
{
	byte hvas;
	bool large, flush, yield;
#ifdef NO_CARRY
	bool flush_at_end;
#endif

	do
#ifdef MAY_STOP
	:: break
#endif
	::
#ifdef on_begin
	   on_begin();
#endif
	   if
	   :: /* Step 1 of kvm_mmu_invalidate_shared(). */
	      atomic {
		write_lock();
		choose_range();
		kvm_mmu_invalidate_begin();
		large = true;
		write_unlock()
	      };
	      /* Step 2, which zap_range() goes on with. */
	      atomic { read_lock() }
	   :: /* A small one is done with mmu_lock held for write, but for yields. */
	      atomic {
		write_lock();
		choose_range();
		kvm_mmu_invalidate_begin()
	      }
	   fi;

	   zap_range();

#ifndef NO_STEP3
	   if
	   :: /* Step 3, of which the TDP MMU has nothing to do but wait. */
	      atomic { large && !writer && !readers -> write_lock(); write_unlock() }
	   :: !large
	   fi;
#endif

	   /* The owner has been told that it is gone. */
	   atomic { if :: hvas & BIT(0) -> host_takes_away(0) :: else fi };
#if NHVA > 1
	   atomic { if :: hvas & BIT(1) -> host_takes_away(1) :: else fi };
#endif

	   atomic {
		write_lock();
		kvm_mmu_invalidate_end();
		write_unlock();
		hvas = 0;
		large = false
	   }
	od;
#ifdef on_stop
	on_stop()
#endif
}

/*
 * kvm_tdp_mmu_page_fault(), the first half.  On return, mmu_lock is held for read.
 * Goes to out_unlock to let the vCPU try again.
 */
#define gfn_of_fault	fault_gfn[me]

inline take_seq()
{
#ifndef SEQ_AFTER_PFN
	seq_moved[me] = false
#else
	skip
#endif
}

inline fault_in()
{
	/* kvm_faultin_pfn() */
	atomic { pte[HVA(gfn_of_fault)] = true; fault_pfn[me] = LIVE };
#ifdef SEQ_AFTER_PFN
	seq_moved[me] = false;
#endif
	/* is_page_fault_stale() */
	atomic {
		read_lock();
		if
#ifndef NO_RANGE_CHECK_IN_FAULT
		:: being_invalidated(BIT(gfn_of_fault)) -> goto out_unlock
#endif
#ifndef NO_SEQ_CHECK
		:: seq_moved[me] -> goto out_unlock
#endif
		:: else
		fi
	}
}

inline fault_out()
{
#ifndef FAULT_KEEPS_LOCK
	read_unlock();
#endif
	fault_pfn[me] = NONE;
	fault_gfn[me] = 0;
	seq_moved[me] = false
}
