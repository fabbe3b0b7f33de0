// SPDX-License-Identifier: GPL-2.0
/*
 * Have no device a live page map, as when it is being removed: get_dev_pagemap() finds
 * none.  For tests only.
 */
#include <linux/kprobes.h>
#include <linux/memremap.h>
#include <linux/module.h>
#include <linux/ptrace.h>

/* The caller, who has given up what it had before, gets no reference. */
static int found(struct kretprobe_instance *instance, struct pt_regs *regs)
{
	struct dev_pagemap *pgmap = (void *)regs_return_value(regs);

	if (pgmap)
		put_dev_pagemap(pgmap);
	regs_set_return_value(regs, 0);
	return 0;
}

static struct kretprobe probe = {
	.kp.symbol_name = "get_dev_pagemap",
	.handler = found,
	.maxactive = 64,
};

static int __init lab_pagemap_init(void)
{
	return register_kretprobe(&probe);
}
module_init(lab_pagemap_init);

static void __exit lab_pagemap_exit(void)
{
	unregister_kretprobe(&probe);
}
module_exit(lab_pagemap_exit);

MODULE_DESCRIPTION("Has no device a live page map");
MODULE_LICENSE("GPL");
