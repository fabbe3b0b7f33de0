/* SPDX-License-Identifier: GPL-2.0 */
#ifndef __KVM_X86_MMU_GLOBAL_TDP_H
#define __KVM_X86_MMU_GLOBAL_TDP_H

#include <linux/kvm_host.h>

#include "mmu_internal.h"

struct tdp_iter;

/*
 * Global TDP builds the VM's TDP page tables ahead of the vCPUs' faults, see
 * Documentation/virt/kvm/global_tdp.rst.  These are all the hooks that the rest
 * of KVM calls; each does nothing for VMs without it.
 */

/* NULL if the VM never had Global TDP, i.e. nothing was mapped ahead. */
static inline struct kvm_gtdp *kvm_gtdp(struct kvm *kvm)
{
	return IS_ENABLED(CONFIG_X86_64) ? READ_ONCE(kvm->arch.gtdp) : NULL;
}

#ifdef CONFIG_X86_64
int kvm_gtdp_init_vm(struct kvm *kvm);
/* What the VM may have, or, if @kvm is NULL, what any VM may have. */
u64 kvm_gtdp_supported(struct kvm *kvm);
int kvm_gtdp_enable(struct kvm *kvm, u64 features);
#else
static inline int kvm_gtdp_init_vm(struct kvm *kvm) { return 0; }
static inline u64 kvm_gtdp_supported(struct kvm *kvm) { return 0; }
static inline int kvm_gtdp_enable(struct kvm *kvm, u64 features) { return features ? -EINVAL : 0; }
#endif

/* The VM is going away. */
void kvm_gtdp_stop(struct kvm_gtdp *gtdp);
/* The VM turned out to be confidential. */
void kvm_gtdp_forbid(struct kvm *kvm);

int kvm_vm_ioctl_populate_memory(struct kvm *kvm, void __user *argp);
int kvm_vm_ioctl_harvest_accessed(struct kvm *kvm, void __user *argp);

/* Has the VM any of @features, and is kvm.global_tdp not "never"? */
bool __kvm_gtdp_has(struct kvm *kvm, u64 features);
static inline bool kvm_gtdp_has(struct kvm *kvm, u64 features)
{
	return unlikely(kvm_gtdp(kvm)) && __kvm_gtdp_has(kvm, features);
}

/* Map what is present; returns how many bytes at the start of @range are mapped. */
u64 __kvm_gtdp_prefault(struct kvm_vcpu *vcpu, const struct kvm_pre_fault_memory *range);
static inline u64 kvm_gtdp_prefault(struct kvm_vcpu *vcpu,
				    const struct kvm_pre_fault_memory *range)
{
	return unlikely(kvm_gtdp(vcpu->kvm)) ? __kvm_gtdp_prefault(vcpu, range) : 0;
}

/* Has the VM any feature?  The deletion of memslots depends on that, not on the parameter. */
bool __kvm_gtdp_enabled(struct kvm *kvm);
static inline bool kvm_gtdp_enabled(struct kvm *kvm)
{
	return unlikely(kvm_gtdp(kvm)) && __kvm_gtdp_enabled(kvm);
}

/* There is a vCPU; have a follower if there is none. */
void __kvm_gtdp_want_follower(struct kvm *kvm);
static inline void kvm_gtdp_want_follower(struct kvm *kvm)
{
	if (unlikely(kvm_gtdp(kvm)))
		__kvm_gtdp_want_follower(kvm);
}

/* A vCPU is about to run. */
void __kvm_gtdp_vcpu_runs(struct kvm *kvm);
static inline void kvm_gtdp_vcpu_runs(struct kvm *kvm)
{
	if (unlikely(kvm_gtdp(kvm)))
		__kvm_gtdp_vcpu_runs(kvm);
}

int kvm_gtdp_alloc_slot(struct kvm *kvm, struct kvm_memory_slot *slot);
static inline void kvm_gtdp_free_slot(struct kvm_memory_slot *slot)
{
	vfree(slot->arch.gtdp_regions);
	slot->arch.gtdp_regions = NULL;
}

/* The slot is there, anew or with other flags. */
void __kvm_gtdp_slot_changed(struct kvm *kvm, const struct kvm_memory_slot *slot,
			     enum kvm_mr_change change);
static inline void kvm_gtdp_slot_changed(struct kvm *kvm,
					 const struct kvm_memory_slot *slot,
					 enum kvm_mr_change change)
{
	if (unlikely(kvm_gtdp(kvm)))
		__kvm_gtdp_slot_changed(kvm, slot, change);
}

/* The host took part of a slot away, called with mmu_lock held. */
void __kvm_gtdp_zapped(struct kvm *kvm, const struct kvm_memory_slot *slot,
		       gfn_t start, gfn_t end);
static inline void kvm_gtdp_zapped(struct kvm *kvm,
				   const struct kvm_memory_slot *slot,
				   gfn_t start, gfn_t end)
{
	if (unlikely(kvm_gtdp(kvm)))
		__kvm_gtdp_zapped(kvm, slot, start, end);
}

/* All that maps the range was zapped, called under SRCU or slots_lock. */
void __kvm_gtdp_zapped_range(struct kvm *kvm, gfn_t start, gfn_t end);
static inline void kvm_gtdp_zapped_range(struct kvm *kvm, gfn_t start, gfn_t end)
{
	if (unlikely(kvm_gtdp(kvm)))
		__kvm_gtdp_zapped_range(kvm, start, end);
}

/* With FAULT_AROUND: link a table for a fault, filled; mmu_lock is held for read. */
int kvm_gtdp_link_sp(struct kvm_vcpu *vcpu, struct kvm_page_fault *fault,
		     struct tdp_iter *iter, struct kvm_mmu_page *sp);

/* A fault has been dealt with, with the given result; called without mmu_lock. */
void __kvm_gtdp_fault_around(struct kvm_vcpu *vcpu, struct kvm_page_fault *fault);
static inline void kvm_gtdp_fault_around(struct kvm_vcpu *vcpu,
					 struct kvm_page_fault *fault, int r)
{
	/* Someone else, e.g. the follower, may have been faster with the page itself. */
	if (unlikely(kvm_gtdp(vcpu->kvm)) && (r == RET_PF_FIXED || r == RET_PF_SPURIOUS))
		__kvm_gtdp_fault_around(vcpu, fault);
}

#endif /* __KVM_X86_MMU_GLOBAL_TDP_H */
