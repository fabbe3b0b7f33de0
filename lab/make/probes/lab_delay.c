// SPDX-License-Identifier: GPL-2.0
/*
 * Widen the window of a race: have a function of the kernel return late.
 *
 *	insmod lab_delay.ko function=make_spte usecs=200
 *
 * Whoever calls it waits, with preemption off and whatever locks it holds, for that
 * many microseconds; other CPUs go on.  For tests only: KVM itself has no such hook.
 */
#include <linux/delay.h>
#include <linux/kprobes.h>
#include <linux/module.h>

static char *function;
module_param(function, charp, 0444);
MODULE_PARM_DESC(function, "Name of the function that is to return late");

static unsigned int usecs = 100;
module_param(usecs, uint, 0444);
MODULE_PARM_DESC(usecs, "By how much, 1 to 20000");

static unsigned long delayed;
module_param(delayed, ulong, 0444);
MODULE_PARM_DESC(delayed, "How often it did so far");

static int delay(struct kretprobe_instance *instance, struct pt_regs *regs)
{
	mdelay(usecs / 1000);
	udelay(usecs % 1000);
	delayed++;
	return 0;
}

static struct kretprobe probe = {
	.handler = delay,
	.maxactive = 64,
};

static int __init lab_delay_init(void)
{
	if (!function || !usecs || usecs > 20000)
		return -EINVAL;

	probe.kp.symbol_name = function;
	return register_kretprobe(&probe);
}
module_init(lab_delay_init);

static void __exit lab_delay_exit(void)
{
	unregister_kretprobe(&probe);
}
module_exit(lab_delay_exit);

MODULE_DESCRIPTION("Has a function return late, to widen the window of a race");
MODULE_LICENSE("GPL");
