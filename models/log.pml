/*
 * No dirty bit is lost: what a vCPU has written after its page was copied, the
 * next look at the dirty log shows.  Nor does any of this bring back a page that
 * is gone.
 *
 * One page of a slot that is being logged by write protection; two vCPUs that write
 * to it, population, two invalidations, and a VMM that harvests the log again and
 * again and at last, when the vCPUs are stopped, once more.
 */

#define NGFN		1
#define NHVA		1
#define HVA(gfn)	0
#define HUGE		0
#define MAY_STOP

/* PT_WRITABLE_MASK.  All SPTEs are MMU-writable. */
bool spte_w;
bool tlb_w[2];

/* The bit in the slot's dirty_bitmap. */
bool dirty;

/* The page is not what the VMM has copied. */
bool newer;

/* The VMM wants the vCPUs stopped; so many are. */
bool stop;
byte stopped;

#ifdef WRPROT_BY_STORE
byte old_spte;
#define on_gone()	lose(old_spte, 0, 0)
#endif
#define on_zap(gfn)	spte_w = false
#define on_flush(vcpu)	tlb_w[vcpu] = false

#include "mmu.pml"

proctype vcpu(byte me)
{
	do
	:: stop -> stopped++; break

	/* The CPU walks the page table, and remembers, also what allows for more. */
	:: atomic { spte[0] != NONE && (tlb[me] == NONE || (spte_w && !tlb_w[me])) ->
		tlb[me] = spte[0];
		tlb_w[me] = spte_w
	   }

	/* The guest writes by its TLB. */
	:: atomic { tlb_w[me] && !newer -> newer = true }
	:: tlb[me] == GONE -> assert(tlb[me] != GONE)	/* must not be reached */

	/* The SPTE is write-protected: fast_page_fault(), without a lock. */
#ifdef FAST_LOGS_FIRST
	:: atomic { spte[0] != NONE && !spte_w -> dirty = true };
	   atomic { if :: spte[0] != NONE -> spte_w = true :: else fi }
#else
	:: atomic { spte[0] != NONE && !spte_w -> spte_w = true };
	   dirty = true
#endif

	/* There is none: kvm_tdp_mmu_page_fault(). */
	:: atomic { spte[0] == NONE -> gfn_of_fault = 0; take_seq() };
	   fault_in();
	   /* make_spte() */
	   dirty = true;
	   /* tdp_mmu_map_handle_target_level() */
	   atomic {
		if
		:: spte[0] == NONE -> spte[0] = fault_pfn[me]
		:: else
		fi;
		spte_w = true
	   };
	   atomic {
#ifndef NO_LOG_AFTER_SPTE
		dirty = true;
#endif
		skip;
out_unlock:	fault_out()
	   }
	od
}

/* kvm_tdp_populate(): write-protected, as the slot is logged. */
active proctype populator()
{
	do
	:: break
	:: atomic {
		read_lock();
		if
		:: being_invalidated(BIT(0)) -> goto out_unlock
		:: else
		fi
	   };
	   atomic { populate_pfn[0] = (pte[0] -> LIVE : NONE) };
	   atomic {
		if
		:: spte[0] == NONE && populate_pfn[0] != NONE ->
			spte[0] = populate_pfn[0];
#ifdef POPULATE_WRITABLE
			spte_w = true
#else
			spte_w = false
#endif
		:: else
		fi;
out_unlock:	read_unlock();
		populate_pfn[0] = NONE
	   }
	od
}

/* kvm_get_dirty_log_protect(); the VMM then copies the pages that it tells of. */
inline harvest()
{
#ifdef WRPROT_FIRST
	atomic { read_lock(); spte_w = (dirty -> false : spte_w) };
	atomic { logged = dirty; dirty = false; read_unlock() };
#else
	atomic { read_lock(); logged = dirty; dirty = false };
#ifdef WRPROT_BY_STORE
	atomic { old_spte = (logged && spte_w -> spte[0] : NONE) };
	atomic {
		if
		:: old_spte != NONE -> spte[0] = old_spte; spte_w = false
		:: else
		fi;
		old_spte = NONE;
		read_unlock()
	};
#else
	/* clear_dirty_pt_masked() */
	atomic { spte_w = (logged -> false : spte_w); read_unlock() };
#endif
#endif
#ifndef NO_FLUSH_AFTER_WRPROT
	atomic { if :: logged -> flush_tlb(0) :: else fi };
	atomic { if :: logged -> flush_tlb(1) :: else fi };
#endif
	atomic { newer = (logged -> false : newer); logged = false }
}

active proctype harvester()
{
	bool logged;

	do
	:: harvest()
	:: atomic { stop = true } -> break
	od;
	stopped == 2;
	harvest();
	assert(!newer)
}

init {
	atomic {
		run invalidator();
		run invalidator();
		run vcpu(0);
		run vcpu(1)
	}
}
