/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Takes released chunks back and makes them clean, in worker threads ([daemon] scrub-threads), at a
 * bounded rate ([daemon] scrub-rate). Its list of work is the ledger, so nothing is lost in a crash
 * and every step may be done again. Owns the states released -> scrubbing -> free; touches no chunk
 * in another state.
 */
#ifndef RM_SCRUBBER_H
#define RM_SCRUBBER_H

#include "rm-daemon.h"

G_BEGIN_DECLS

typedef struct {
	guint left_chunks;          /* released or being scrubbed */
	guint64 done_chunks;        /* since the start of rmd */
	guint64 rate_bytes_per_sec; /* of the last batch */
} RmScrubProgress;

RmScrubber *rm_scrubber_new(RmDaemon *daemon);
/* There may be new work. */
void rm_scrubber_kick(RmScrubber *scrubber);
RmScrubProgress rm_scrubber_progress(const RmScrubber *scrubber);
/* Stops what is under way at the next chunk and waits for that. */
void rm_scrubber_free(RmScrubber *scrubber);

G_END_DECLS

#endif
