/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * One process of somebody else, known by pidfd and start time, so that a pid that is used again is
 * never taken for it. Owns the pidfd and the watch on it; knows nothing of domains.
 */
#ifndef RM_PROCESS_H
#define RM_PROCESS_H

#include <gio/gio.h>
#include <sys/types.h>

G_BEGIN_DECLS

typedef struct RmProcess RmProcess;
typedef void (*RmProcessGone)(gpointer data);

/*
 * Opens @pid. With @start_time_ticks != 0 only if it is still the process that started then.
 * RM_ERROR_NOT_FOUND: it is gone.
 */
RmProcess *rm_process_open(gint pid, guint64 start_time_ticks, GError **error);

/* The process at the other end of a connected UNIX socket. */
RmProcess *rm_process_open_peer(GSocket *socket, GError **error);

gint rm_process_pid(const RmProcess *process);
guint64 rm_process_start_time_ticks(const RmProcess *process);
/* The user that it runs as now; FALSE when it is gone. */
gboolean rm_process_uid(const RmProcess *process, uid_t *ret_uid);
gboolean rm_process_alive(const RmProcess *process);
gboolean rm_process_equal(const RmProcess *a, const RmProcess *b);

/* Calls @gone once from the main loop when the process has ended; replaces an older watch. */
void rm_process_watch(RmProcess *process, RmProcessGone gone, gpointer data);

void rm_process_free(RmProcess *process);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RmProcess, rm_process_free)

G_END_DECLS

#endif
