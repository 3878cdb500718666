/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Takes released chunks back and makes them clean, in a worker thread, batch by batch. Its list of
 * work is the ledger, so nothing is lost in a crash and every step may be done again. Owns the
 * states released -> scrubbing -> free; touches no chunk in another state.
 */
#ifndef RM_SCRUBBER_H
#define RM_SCRUBBER_H

#include "rm-daemon.h"

G_BEGIN_DECLS

RmScrubber *rm_scrubber_new(RmDaemon *daemon);
/* There may be new work. */
void rm_scrubber_kick(RmScrubber *scrubber);
/* Waits for the running batch. */
void rm_scrubber_free(RmScrubber *scrubber);

G_END_DECLS

#endif
