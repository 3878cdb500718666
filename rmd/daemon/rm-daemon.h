/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The one object of the process: configuration, ledger, stores and all domains. Owns what concerns
 * more than one domain: claims, plans, the scrubber's results, look-ups, and telling the bus what
 * changed. What happens inside one domain is rm-vm's.
 */
#ifndef RM_DAEMON_H
#define RM_DAEMON_H

#include <gio/gio.h>

#include "rm-config.h"
#include "rm-domain-xml.h"
#include "rm-ledger.h"
#include "rm-planner.h"
#include "rm-reconcile.h"
#include "rm-store.h"

G_BEGIN_DECLS

typedef struct RmDaemon RmDaemon;
typedef struct RmVm RmVm;
typedef struct RmScrubber RmScrubber;

/* Told from the main loop; the bus turns them into signals. */
typedef struct {
	void (*job_changed)(const RmJob *job, gpointer data);
	void (*domain_changed)(const char *uuid, gpointer data);
	void (*channels_changed)(gpointer data);
} RmDaemonEvents;

struct RmDaemon {
	const RmConfig *config;
	RmLedger *ledger;
	GPtrArray *stores; /* of RmStore */
	GHashTable *vms;   /* uuid -> RmVm, owned */
	GQueue claims;     /* of Claim, waiting */
	GQueue releases;   /* of GTask, waiting for a domain to be gone */
	RmScrubber *scrubber;
	const RmDaemonEvents *events;
	gpointer events_data;
	guint settle_idle;
	guint flush_timeout;
};

/*
 * Opens the stores and the ledger, voids what is not of this boot and picks up the domains that
 * run.
 * @config must live as long.
 */
RmDaemon *rm_daemon_new(const RmConfig *config, GError **error);
void rm_daemon_set_events(RmDaemon *daemon, const RmDaemonEvents *events, gpointer data);
void rm_daemon_free(RmDaemon *daemon);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RmDaemon, rm_daemon_free)

/* By name or UUID; an error that names it otherwise. */
RmVm *rm_daemon_find_vm(RmDaemon *daemon, const char *name_or_uuid, GError **error);
RmStore *rm_daemon_store(RmDaemon *daemon, guint channel);

/* What the planner needs, for @vm or a new domain (NULL). Free with g_free(); borrows names. */
RmPlanUse *rm_daemon_plan_use(RmDaemon *daemon, const RmVm *vm);

/* What @row is to have, and how it lies. */
RmPlanGoal rm_daemon_goal(const RmVmRow *row);
GArray *rm_daemon_plan_nodes(const RmVm *vm);

/* of RmVm, borrowed, oldest first. */
GPtrArray *rm_daemon_list_vms(RmDaemon *daemon);

/* A running domain and its new targets (RmPlanNode). */
typedef struct {
	RmVm *vm;
	GArray *nodes;
} RmDaemonMove;

void rm_daemon_move_clear(RmDaemonMove *move);

/* of RmDaemonMove: what would free whole channels, and how many. */
GArray *rm_daemon_plan_compact(RmDaemon *daemon, guint *ret_freed);
/* of RmDaemonMove: what would empty @channel; an error says which domain cannot leave and why. */
GArray *rm_daemon_plan_evacuate(RmDaemon *daemon, guint channel, GError **error);
/* Begins a job of @kind for each, whose numbers (guint64) are appended to @jobs. */
gboolean rm_daemon_apply_moves(RmDaemon *daemon, const GArray *moves, const char *kind,
			       GArray *jobs, GError **error);
/* Offline only when nothing is granted on it. */
gboolean rm_daemon_set_channel_state(RmDaemon *daemon, guint channel, RmChannelState state,
				     GError **error);

/* aa{sv}, floating: every domain and what differs, with its case; done too without @dry_run. */
GVariant *rm_daemon_reconcile(RmDaemon *daemon, gboolean dry_run);
void rm_daemon_add_reconcile_line(GVariantBuilder *lines, const char *vm, const char *channel,
				  RmReconcileCase c, guint n_chunks);

/* Claims chunks for a domain; @task returns a boolean. Takes @domain. */
void rm_daemon_claim(RmDaemon *daemon, RmDomainXml *domain, GTask *task);
/* Lets go of a domain; @task returns TRUE when it is gone. */
void rm_daemon_release(RmDaemon *daemon, const char *uuid, GTask *task);

/*
 * Something changed that others may wait for (chunks became free, a domain went): looks at all of
 * them, soon.
 */
void rm_daemon_settle(RmDaemon *daemon);

/*
 * The books could not be written. Nothing may happen that is not in them, so this ends the process;
 * domains keep running and the next start continues from the books.
 */
void rm_daemon_ledger_failed(const GError *error) G_GNUC_NORETURN;

/* A line in the log and in the history. @uuid may be NULL. */
void rm_daemon_note(RmDaemon *daemon, GLogLevelFlags level, const char *uuid, const char *kind,
		    const char *format, ...) G_GNUC_PRINTF(5, 6);

/* What need not be on disk at once (history, phases of chunks) is, soon. */
void rm_daemon_flush_soon(RmDaemon *daemon);

void rm_daemon_emit_job(RmDaemon *daemon, const RmJob *job);
void rm_daemon_emit_domain(RmDaemon *daemon, const char *uuid);
void rm_daemon_emit_channels(RmDaemon *daemon);

G_END_DECLS

#endif
