// SPDX-License-Identifier: GPL-2.0
/*
 * Go on where the emulator runs a breakpoint that is gone.
 *
 * To patch an instruction that other CPUs may be executing (a static key, a probe),
 * the kernel writes a breakpoint over its first byte, then the rest, then the first
 * byte.  QEMU's TCG drops what it has translated of a page before it does a write to
 * it.  A CPU that translates in between reads the byte from before: its translation
 * has the breakpoint, and is valid until somebody writes there again.  Whoever runs
 * it dies of "Oops: int3", in the scheduler as likely as not.
 *
 * Here, such a breakpoint is told by the byte in memory, which is none.  That byte is
 * written once more as it is, which drops the translation, and the instruction is run.
 */
#include <linux/atomic.h>
#include <linux/jiffies.h>
#include <linux/kdebug.h>
#include <linux/kprobes.h>
#include <linux/module.h>
#include <linux/percpu.h>
#include <asm/processor-flags.h>
#include <asm/special_insns.h>
#include <asm/text-patching.h>

/* In a row, at the same place: more, and writing again is of no use. */
#define MAX_TIMES	8

struct place {
	unsigned long ip;
	unsigned long when;
	unsigned int times;
};

static DEFINE_PER_CPU(struct place, last);
static atomic_t gone;

static void notrace write_again(u8 *byte, u8 is)
{
	unsigned long cr0 = read_cr0();

	/*
	 * Text is read-only but for this, on this CPU, which takes nothing but NMIs here.
	 * If the byte is another by now, somebody else has written it.
	 */
	asm volatile("mov %0, %%cr0" : : "r" (cr0 & ~X86_CR0_WP) : "memory");
	cmpxchg(byte, is, is);
	asm volatile("mov %0, %%cr0" : : "r" (cr0) : "memory");
}

/* How often in a row this CPU has met a breakpoint there. */
static unsigned int notrace times(unsigned long ip)
{
	struct place *place = this_cpu_ptr(&last);

	if (place->ip != ip || place->when != jiffies)
		*place = (struct place){ .ip = ip, .when = jiffies };
	return ++place->times;
}

static int notrace met(struct notifier_block *block, unsigned long event, void *data)
{
	struct pt_regs *regs = ((struct die_args *)data)->regs;
	u8 *byte = (u8 *)(regs->ip - INT3_INSN_SIZE);
	u8 is;

	if (event != DIE_INT3 || user_mode(regs))
		return NOTIFY_DONE;

	/*
	 * A breakpoint that is there may have come back since this CPU was told that nobody
	 * is patching: go back once, and be told again.
	 */
	is = READ_ONCE(*byte);
	if (times(regs->ip) > (is == INT3_INSN_OPCODE ? 1 : MAX_TIMES))
		return NOTIFY_DONE;

	regs->ip = (unsigned long)byte;
	if (is == INT3_INSN_OPCODE)
		return NOTIFY_STOP;

	write_again(byte, is);
	/* This is an NMI as far as printk() is concerned: it is put off. */
	pr_warn("lab: breakpoints gone: %d, at %pS\n", atomic_inc_return(&gone), byte);
	return NOTIFY_STOP;
}
NOKPROBE_SYMBOL(met);

static struct notifier_block block = {
	.notifier_call = met,
};

static int __init lab_breakpoint_init(void)
{
	return register_die_notifier(&block);
}
module_init(lab_breakpoint_init);

static void __exit lab_breakpoint_exit(void)
{
	unregister_die_notifier(&block);
}
module_exit(lab_breakpoint_exit);

MODULE_DESCRIPTION("Goes on where the emulator runs a breakpoint that is gone");
MODULE_LICENSE("GPL");
