// SPDX-License-Identifier: GPL-2.0
/*
 * How to have DAMON look at memory, see global_tdp_damon.h.
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "test_util.h"
#include "global_tdp.h"
#include "global_tdp_damon.h"

#define KDAMOND		GTDP_DAMON "/0"
#define CONTEXT		GTDP_DAMON_CONTEXT

/* Regions of a target to look at, each once in a sampling interval. */
#define MAX_REGIONS	50

/* The kernel's own statistics, beside which no other instance of DAMON may run. */
#define DAMON_STAT	"/sys/module/damon_stat/parameters"

/* It is this program's to stop. */
static bool created;

/* To be started again then. */
static bool stopped_stat;

void gtdp_damon_set_text(const char *dir, const char *name, const char *text)
{
	TEST_ASSERT(gtdp_write_file(dir, name, text), "Can't write '%s' to %s/%s", text, dir,
		    name);
}

void gtdp_damon_set(const char *dir, const char *name, u64 value)
{
	char text[32];

	snprintf(text, sizeof(text), "%lu", value);
	gtdp_damon_set_text(dir, name, text);
}

static void set_target(int i, const struct gtdp_damon_target *target)
{
	char dir[128], region[160];

	snprintf(dir, sizeof(dir), CONTEXT "/targets/%d", i);
	gtdp_damon_set(dir, "pid_target", getpid());
	gtdp_damon_set(dir, "regions/nr_regions", 1);
	snprintf(region, sizeof(region), "%s/regions/0", dir);
	gtdp_damon_set(region, "start", (u64)target->hva);
	gtdp_damon_set(region, "end", (u64)target->hva + target->size);
}

static void stop_at_exit(void)
{
	gtdp_damon_stop();
}

bool gtdp_damon_create(const struct gtdp_damon_target *targets, int nr,
		       u64 sample_usecs, u64 aggregate_usecs)
{
	static bool registered;
	int i;

	if (!gtdp_write_file(GTDP_DAMON, "nr_kdamonds", "1")) {
		ksft_print_msg("no DAMON\n");
		return false;
	}

	/* For when an assertion fails, too. */
	if (!registered)
		atexit(stop_at_exit);
	registered = true;
	created = true;

	gtdp_damon_set(KDAMOND, "contexts/nr_contexts", 1);
	if (!gtdp_write_file(CONTEXT, "operations", "fvaddr")) {
		ksft_print_msg("no DAMON of virtual addresses\n");
		gtdp_damon_stop();
		return false;
	}

	gtdp_damon_set(CONTEXT, "monitoring_attrs/nr_regions/max", MAX_REGIONS);
	gtdp_damon_set(CONTEXT, "monitoring_attrs/intervals/sample_us", sample_usecs);
	gtdp_damon_set(CONTEXT, "monitoring_attrs/intervals/aggr_us", aggregate_usecs);
	gtdp_damon_set(CONTEXT, "targets/nr_targets", nr);
	for (i = 0; i < nr; i++)
		set_target(i, &targets[i]);
	return true;
}

static bool is_stat_on(void)
{
	FILE *file = fopen(DAMON_STAT "/enabled", "r");
	bool on = file && fgetc(file) == 'Y';

	if (file)
		fclose(file);
	return on;
}

void gtdp_damon_start(void)
{
	if (is_stat_on()) {
		gtdp_damon_set_text(DAMON_STAT, "enabled", "N");
		stopped_stat = true;
	}
	gtdp_damon_set_text(KDAMOND, "state", "on");
}

bool gtdp_damon_stop(void)
{
	bool was_on;

	if (!created)
		return true;

	was_on = gtdp_write_file(KDAMOND, "state", "off");
	gtdp_write_file(GTDP_DAMON, "nr_kdamonds", "0");
	created = false;

	if (stopped_stat)
		gtdp_write_file(DAMON_STAT, "enabled", "Y");
	stopped_stat = false;
	return was_on;
}
