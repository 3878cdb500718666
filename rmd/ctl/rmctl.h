/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What the verbs of rmctl share: the list of verbs, options that several have, the connection to
 * rmd, and how a failure is said. One file a verb; each describes its columns once and hands rmd's
 * dictionaries to rmctl-print.
 */
#ifndef RMCTL_H
#define RMCTL_H

#include "rm-client.h"

G_BEGIN_DECLS

/* Exit codes, documented in rmctl(1). */
enum {
	RMCTL_OK = 0,
	RMCTL_FAILED = 1,
	RMCTL_USAGE = 2,
	RMCTL_NOT_FOUND = 3,
	RMCTL_NO_SPACE = 4,
	RMCTL_UNREACHABLE = 5,
};

typedef struct {
	const char *name;
	const char *arguments; /* behind the options in the usage line; "" if it takes none */
	const char *summary;
	/* argv[0] is the verb; returns an exit code. */
	int (*run)(int argc, char **argv);
} RmctlVerb;

extern const RmctlVerb rmctl_verb_channels;
extern const RmctlVerb rmctl_verb_compact;
extern const RmctlVerb rmctl_verb_jobs;
extern const RmctlVerb rmctl_verb_ledger;
extern const RmctlVerb rmctl_verb_list;
extern const RmctlVerb rmctl_verb_reconcile;
extern const RmctlVerb rmctl_verb_resize;
extern const RmctlVerb rmctl_verb_show;
extern const RmctlVerb rmctl_verb_state;
extern const RmctlVerb rmctl_verb_version;

/* ---- options (rmctl.c) ---- */

/*
 * Parses the options of @verb: @entries (ended by an empty one, or NULL) and those that all verbs
 * have; "--help" prints and exits. @description ends the help text, or NULL. On success *argc and
 * *argv hold what is left behind argv[0], between @min_arguments and @max_arguments of them. FALSE:
 * the failure is said, return RMCTL_USAGE.
 */
gboolean rmctl_parse(const RmctlVerb *verb, const GOptionEntry *entries, const char *description,
		     int min_arguments, int max_arguments, int *argc, char ***argv);

/* "rmctl VERB: MESSAGE" on stderr; returns RMCTL_USAGE. */
int rmctl_usage(const RmctlVerb *verb, const char *format, ...) G_GNUC_PRINTF(2, 3);

/* ---- rmd (rmctl.c) ---- */

/* The manager; NULL when it cannot be reached, with @error set for rmctl_fail(). */
RmManager1 *rmctl_connect(GError **error);

/* Cleans @error of a call, says it and returns the exit code that belongs to it. Frees @error. */
int rmctl_fail(GError *error);

/*
 * As rmctl_fail() for a call about the domain @vm: where there is no such domain, names those that
 * are spelt alike.
 */
int rmctl_fail_vm(RmManager1 *manager, const char *vm, GError *error);

/* ---- waiting (rmctl-wait.c) ---- */

/*
 * Shows the progress of job @id on stderr (unless @quiet) until it has ended, and gives its last
 * dictionary. An interrupt ends the waiting, not the job. Returns an exit code; says what failed.
 */
int rmctl_wait_job(RmManager1 *manager, guint64 id, gboolean quiet, GVariant **ret_job);

G_END_DECLS

#endif
