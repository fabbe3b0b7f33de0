/*
 * No vCPU reads a page after its owner was told that it is gone.
 *
 * Two invalidations, population and two vCPUs.  Two gfns, in the LAYOUT
 *   SPAN	two slots that map one host range side by side
 *   ALIAS	two slots that map the same host page
 *   ONE_SLOT	one slot, which one huge SPTE may map
 */

#define SPAN		1
#define ALIAS		2
#define ONE_SLOT	3

#define NGFN		2
#if LAYOUT == ALIAS
#define NHVA		1
#define HVA(gfn)	0
#else
#define NHVA		2
#define HVA(gfn)	(gfn)
#endif
#define HUGE		(LAYOUT == ONE_SLOT)

#include "mmu.pml"

proctype vcpu(byte me)
{
	do
	/* The CPU walks the page table, whatever for, and remembers. */
	:: atomic { tlb[me] == NONE && spte[0] != NONE -> tlb[me] = spte[0] }
	:: atomic { tlb[me] == NONE && spte[1] != NONE -> tlb[me] = spte[1]; tlb_gfn[me] = 1 }

	/* The guest reads by its TLB.  Any other page than this does no harm. */
	:: tlb[me] == GONE -> assert(tlb[me] != GONE)	/* must not be reached */

	/* It finds no SPTE: kvm_tdp_mmu_page_fault(). */
	:: atomic {
		if
		:: spte[0] == NONE -> gfn_of_fault = 0
		:: spte[1] == NONE -> gfn_of_fault = 1
		fi;
		take_seq()
	   };
	   fault_in();
	   /* tdp_mmu_map_handle_target_level(), unless someone else was faster. */
	   atomic {
		if
		:: spte[gfn_of_fault] == NONE -> spte[gfn_of_fault] = fault_pfn[me]
		:: else
		fi;
out_unlock:	fault_out()
	   }
	od
}

/* Reads the host's PTE of a gfn, or of all that a huge SPTE maps. */
inline read_pte(gfn)
{
	if
	:: BIT(gfn) & gfns -> populate_pfn[gfn] = (pte[HVA(gfn)] -> LIVE : NONE)
	:: else
	fi
}

/* What is mapped already stays. */
inline fill(gfn)
{
	spte[gfn] = (spte[gfn] == NONE -> populate_pfn[gfn] : spte[gfn])
}

#ifdef HUGE_CHECKS_ONE_PAGE
#define checked		(gfns == 3 -> BIT(0) : gfns)
#else
#define checked		gfns
#endif

inline choose_region()
{
	if
	:: gfns = BIT(0)
	:: gfns = BIT(1)
#if HUGE
	:: gfns = BIT(0) | BIT(1)
#endif
	fi
}

/* kvm_tdp_populate() */
active proctype populator()
{
	byte gfns;

	do
	::
#ifdef PTE_BEFORE_LOCK
	   atomic { choose_region(); read_pte(0); read_pte(1) };
#endif
	   atomic {
		read_lock();
#ifndef PTE_BEFORE_LOCK
		choose_region();
#endif
		/* scan_host() */
		if
#ifndef NO_RANGE_CHECK
		:: being_invalidated(checked) -> goto out_unlock
#endif
		:: else
		fi
	   };
#ifndef PTE_BEFORE_LOCK
	   atomic { read_pte(0); read_pte(1) };
#endif
	   atomic {
		if
		/* link_sp() with a page table that was filled aside, or tdp_fill_holes(). */
		:: fill(0); fill(1)
#if HUGE
		/* install_huge(), in place of nothing or of a page table. */
		:: gfns == (BIT(0) | BIT(1)) && populate_pfn[0] && populate_pfn[1] ->
			spte[0] = populate_pfn[0];
			spte[1] = populate_pfn[1];
			huge = true
#endif
		fi;
out_unlock:	read_unlock();
		populate_pfn[0] = NONE;
		populate_pfn[1] = NONE;
		gfns = 0
	   }
	od
}

init {
	atomic {
		run invalidator();
		run invalidator();
		run vcpu(0);
		run vcpu(1)
	}
}
