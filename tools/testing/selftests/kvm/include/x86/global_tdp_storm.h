/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Takes a page away from a VM while a range of memory that includes it is being
 * invalidated, and sees that TLBs were flushed before the page is reused.
 */
#ifndef SELFTEST_KVM_GLOBAL_TDP_STORM_H
#define SELFTEST_KVM_GLOBAL_TDP_STORM_H

#include "global_tdp_layout.h"

struct gtdp_storm_counts {
	/* Pages taken, and those of them that the other thread was in the midst of. */
	u64 pages;
	u64 raced;
	u64 layouts[GTDP_NR_LAYOUTS];
};

/* Once, before threads that fork. */
void gtdp_storm_init(void);
/* Choose a layout, and take @nr pages away. */
void gtdp_storm(struct kvm_random_state *rng, int nr);
struct gtdp_storm_counts gtdp_storm_end(void);

#endif /* SELFTEST_KVM_GLOBAL_TDP_STORM_H */
