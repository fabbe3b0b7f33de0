/* SPDX-License-Identifier: GPL-2.0 */
/*
 * DAMON asks how memory is used: it has pages age, one of each of its regions at a
 * time, and looks later whether they are young.
 */
#ifndef SELFTEST_KVM_GLOBAL_TDP_DAMON_H
#define SELFTEST_KVM_GLOBAL_TDP_DAMON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GTDP_DAMON		"/sys/kernel/mm/damon/admin/kdamonds"
#define GTDP_DAMON_CONTEXT	GTDP_DAMON "/0/contexts/0"

struct gtdp_damon_target {
	void *hva;
	size_t size;
};

void gtdp_damon_set(const char *dir, const char *name, u64 value);
void gtdp_damon_set_text(const char *dir, const char *name, const char *text);

/*
 * For pieces of this process's memory: a look each @sample_usecs, of which the
 * results are there after @aggregate_usecs.  Returns false, and says so, if there is
 * no DAMON.  It stops when the program ends, if it was not stopped before.
 */
bool gtdp_damon_create(const struct gtdp_damon_target *targets, int nr,
		       u64 sample_usecs, u64 aggregate_usecs);
void gtdp_damon_start(void);
/* Returns false if it was not at work any more. */
bool gtdp_damon_stop(void);

#endif /* SELFTEST_KVM_GLOBAL_TDP_DAMON_H */
