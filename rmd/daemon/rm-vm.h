/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * One domain: its process, its socket, what its QEMU says it has, and the loop that brings that to
 * what the ledger says it is to have. The loop is level-triggered: it looks at the whole state,
 * takes the first step that is missing and looks again when that is done; so it does not matter
 * where an earlier run (or an earlier rmd) stopped.
 *
 * Grow first: reserve in the ledger, prepare the memory, grant, resize up, wait for the guest.
 * Then shrink: resize down, wait for `released`, the scrubber does the rest.
 */
#ifndef RM_VM_H
#define RM_VM_H

#include "rm-daemon.h"
#include "rm-process.h"

G_BEGIN_DECLS

/* The row is taken. @channels: of RmVmChannel, taken. @job: its running job or NULL, taken. */
RmVm *rm_vm_new(RmDaemon *daemon, RmVmRow *row, GArray *channels, RmJob *job);
void rm_vm_free(RmVm *vm);

/*
 * After the restart of rmd: finds the process again and listens, or finds it gone. The ledger is
 * the only source.
 */
void rm_vm_resume(RmVm *vm);

const RmVmRow *rm_vm_row(const RmVm *vm);
const GArray *rm_vm_channels(const RmVm *vm);
const RmJob *rm_vm_job(const RmVm *vm);

/* Gives the reserved chunks their memory; @done with FALSE and an error when there is none. */
typedef void (*RmVmPrepared)(RmVm *vm, const GError *error, gpointer data);
void rm_vm_prepare(RmVm *vm, RmVmPrepared done, gpointer data);

/* Records @process (taken) as the domain's and listens on its socket. */
gboolean rm_vm_start(RmVm *vm, RmProcess *process, char ***ret_arguments, char **ret_socket_path,
		     GError **error);

gboolean rm_vm_is_process(const RmVm *vm, const RmProcess *process);

/* TRUE if its process is there now; finds its end before the main loop does. */
gboolean rm_vm_check_process(RmVm *vm);

/* Drops a claim without a process: everything it has is released. */
void rm_vm_drop(RmVm *vm, const char *why);

/*
 * Sets targets (of all possible channels, by cNode) and a job of @kind for them. *ret_job 0:
 * nothing to do.
 */
gboolean rm_vm_set_target(RmVm *vm, const char *kind, const guint *target_chunks,
			  guint capacity_chunks, guint bandwidth_channels, guint mbps,
			  guint64 *ret_job, GError **error);
gboolean rm_vm_cancel_job(RmVm *vm, GError **error);

/* Adds what is to be done about the domain to @lines (aa{sv}), and begins it without @dry_run. */
void rm_vm_reconcile(RmVm *vm, gboolean dry_run, GVariantBuilder *lines);

/* Look again, soon. */
void rm_vm_kick(RmVm *vm);

/* a{sv} as GetDomain() gives it; floating. */
GVariant *rm_vm_to_variant(RmVm *vm);
/* a{sv} as GetJob() gives it; floating. */
GVariant *rm_job_to_variant(const RmJob *job);

G_END_DECLS

#endif
