// SPDX-License-Identifier: GPL-2.0
/*
 * Have KVM take a CPU for one with EPT of 5 levels.
 *
 * There, how many levels a VM's page tables have depends on what its vCPUs are told of
 * physical addresses, so it is not known before that; with 48 bits or less they have 4,
 * which any CPU has.  Load this, then kvm_intel.  For tests only.
 */
#include <linux/kprobes.h>
#include <linux/module.h>
#include <linux/ptrace.h>

/* void kvm_configure_mmu(bool enable_tdp, int forced_level, int max_level, ...) */
static int max_level_is_5(struct kprobe *probe, struct pt_regs *regs)
{
	regs->dx = 5;
	return 0;
}

static struct kprobe probe = {
	.symbol_name = "kvm_configure_mmu",
	.pre_handler = max_level_is_5,
};

static int __init lab_level_init(void)
{
	return register_kprobe(&probe);
}
module_init(lab_level_init);

static void __exit lab_level_exit(void)
{
	unregister_kprobe(&probe);
}
module_exit(lab_level_exit);

MODULE_DESCRIPTION("Has KVM take a CPU for one with EPT of 5 levels");
MODULE_LICENSE("GPL");
