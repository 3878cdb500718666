/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Makes lost books again from what runs: finds the QEMUs of this rmd by their command line, which
 * rmd itself made (channels, windows, nodes), and what each has by the kernel's word (the chunk
 * files that it maps or has open, which it can have from rmd only). Used once, at a start with a
 * new ledger.
 */
#ifndef RM_ADOPT_H
#define RM_ADOPT_H

#include "rm-daemon.h"

G_BEGIN_DECLS

/*
 * Adds every domain that is found, with its chunks, to the ledger; chunks that are in use otherwise
 * are quarantined. *ret_n: how many domains.
 */
gboolean rm_adopt_running(RmDaemon *daemon, guint *ret_n, GError **error);

G_END_DECLS

#endif
