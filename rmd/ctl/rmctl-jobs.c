/* SPDX-License-Identifier: GPL-2.0-or-later */
/* rmctl jobs [JOB]: what rmd is doing and has done; wait for a job, or cancel it. */
#include "rmctl.h"
#include "rmctl-print.h"

static const RmctlColumn columns[] = {
	{"ID", "id", RMCTL_COUNT, TRUE, "number of the job"},
	{"VM", "vm", RMCTL_STRING, TRUE, "name of the domain"},
	{"KIND", "kind", RMCTL_STRING, TRUE, "start, resize, compact or drain"},
	{"STATE", "state", RMCTL_STRING, TRUE, "running, done, failed or cancelled"},
	{"PROGRESS", "progress", RMCTL_FRACTION, TRUE, "how much of it is done"},
	{"CREATED", "created-usec", RMCTL_TIME, TRUE, "when it began"},
	{"FINISHED", "finished-usec", RMCTL_TIME, FALSE, "when it ended"},
	{"UUID", "uuid", RMCTL_STRING, FALSE, "UUID of the domain"},
	{"MESSAGE", "message", RMCTL_STRING, TRUE, "what it does, or why it failed"},
};

static gboolean cancel;
static gboolean wait_for_it;

static const GOptionEntry entries[] = {
	RMCTL_TABLE_ENTRIES,
	{"cancel", 0, 0, G_OPTION_ARG_NONE, &cancel,
	 "Stop JOB; its VM keeps what it has at that moment", NULL},
	{"wait", 0, 0, G_OPTION_ARG_NONE, &wait_for_it,
	 "Show the progress of JOB until it has ended", NULL},
	{NULL},
};

static int
print_jobs(GVariant *jobs)
{
	GError *error = NULL;

	if (rmctl_print_rows("jobs", columns, G_N_ELEMENTS(columns), jobs, &error))
		return RMCTL_OK;
	return rmctl_fail(error);
}

static int
show_all(RmManager1 *manager)
{
	g_autoptr(GVariant) jobs = NULL;
	GError *error = NULL;

	if (!rm_manager1_call_list_jobs_sync(manager, &jobs, NULL, &error))
		return rmctl_fail(error);
	return print_jobs(jobs);
}

static int
show_one(RmManager1 *manager, guint64 id)
{
	g_autoptr(GVariant) job = NULL;
	g_autoptr(GVariant) jobs = NULL;
	GError *error = NULL;
	int code = RMCTL_OK;

	if (cancel && !rm_manager1_call_cancel_job_sync(manager, id, NULL, &error))
		return rmctl_fail(error);
	if (wait_for_it)
		code = rmctl_wait_job(manager, id, rmctl_print_options.json, &job);
	else if (!rm_manager1_call_get_job_sync(manager, id, &job, NULL, &error))
		return rmctl_fail(error);
	if (job == NULL || cancel)
		return code;
	jobs = g_variant_ref_sink(g_variant_new_array(G_VARIANT_TYPE_VARDICT, &job, 1));
	return MAX(code, print_jobs(jobs));
}

static int
run(int argc, char **argv)
{
	g_autofree char *help = rmctl_describe_columns(columns, G_N_ELEMENTS(columns));
	g_autoptr(RmManager1) manager = NULL;
	GError *error = NULL;
	guint64 id = 0;

	if (!rmctl_parse(&rmctl_verb_jobs, entries, help, 0, 1, &argc, &argv))
		return RMCTL_USAGE;
	if (!rmctl_check_output(columns, G_N_ELEMENTS(columns), &error))
		return rmctl_fail(error);
	if (argc == 1 && (cancel || wait_for_it))
		return rmctl_usage(&rmctl_verb_jobs, "%s needs the number of a job",
				   cancel ? "--cancel" : "--wait");
	if (argc == 2 && !g_ascii_string_to_unsigned(argv[1], 10, 1, G_MAXUINT64, &id, NULL))
		return rmctl_usage(&rmctl_verb_jobs, "'%s' is not the number of a job", argv[1]);
	manager = rmctl_connect(&error);
	if (manager == NULL)
		return rmctl_fail(error);
	return argc == 1 ? show_all(manager) : show_one(manager, id);
}

const RmctlVerb rmctl_verb_jobs = {"jobs", "[JOB]", "List jobs; show, await or cancel one", run};
