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

/* All others are called only if it is not NULL, unless they say so. */
#ifdef CONFIG_X86_64
/* For any VM. */
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
/* The VM, with or without it, turned out to be confidential. */
void kvm_gtdp_forbid(struct kvm *kvm);

int kvm_vm_ioctl_populate_memory(struct kvm *kvm, void __user *argp);
int kvm_vm_ioctl_harvest_accessed(struct kvm *kvm, void __user *argp);

/* Is kvm.global_tdp "never"? */
bool kvm_gtdp_is_stopped(void);

/* Has the VM, any VM, one of @features, and may use it? */
static inline bool kvm_gtdp_has(struct kvm *kvm, u64 features)
{
	return kvm_gtdp(kvm) && READ_ONCE(kvm->arch.gtdp_features) & features &&
	       !kvm_gtdp_is_stopped();
}

/* Map what is present; returns how many bytes at the start of @range are mapped. */
u64 kvm_gtdp_prefault(struct kvm_vcpu *vcpu, const struct kvm_pre_fault_memory *range);

/* There is a vCPU; have a follower if there is none. */
void kvm_gtdp_want_follower(struct kvm *kvm);

/* A vCPU is about to run. */
void kvm_gtdp_vcpu_runs(struct kvm_vcpu *vcpu);

int kvm_gtdp_alloc_slot(struct kvm *kvm, struct kvm_memory_slot *slot);
/* For any VM. */
static inline void kvm_gtdp_free_slot(struct kvm_memory_slot *slot)
{
	vfree(slot->arch.gtdp_regions);
	slot->arch.gtdp_regions = NULL;
}

/* The slot is there, anew or with other flags. */
void kvm_gtdp_slot_changed(struct kvm *kvm, const struct kvm_memory_slot *slot,
			   enum kvm_mr_change change);

/* The host took part of a slot away, called with mmu_lock held. */
void kvm_gtdp_zapped(struct kvm *kvm, const struct kvm_memory_slot *slot,
		     gfn_t start, gfn_t end);

/* All that maps the range was zapped, called under SRCU or slots_lock. */
void kvm_gtdp_zapped_range(struct kvm *kvm, gfn_t start, gfn_t end);

/* With FAULT_AROUND: link a table for a fault, filled; mmu_lock is held for read. */
int kvm_gtdp_link_sp(struct kvm_vcpu *vcpu, struct kvm_page_fault *fault,
		     struct tdp_iter *iter, struct kvm_mmu_page *sp);

/* A fault has been dealt with, with the result @r; called without mmu_lock. */
void kvm_gtdp_fault_around(struct kvm_vcpu *vcpu, struct kvm_page_fault *fault, int r);

#endif /* __KVM_X86_MMU_GLOBAL_TDP_H */
