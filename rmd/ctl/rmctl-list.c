/* SPDX-License-Identifier: GPL-2.0-or-later */
/* rmctl list: every VM that holds channels. */
#include "rmctl.h"
#include "rmctl-print.h"

static const RmctlColumn columns[] = {
	{"NAME", "name", RMCTL_STRING, TRUE, "name of the domain"},
	{"UUID", "uuid", RMCTL_STRING, FALSE, "UUID of the domain"},
	{"STATE", "state", RMCTL_STRING, TRUE, "claimed, running or gone"},
	{"CAPACITY", "capacity-bytes", RMCTL_BYTES, TRUE, "what it is to have"},
	{"ACTUAL", "actual-bytes", RMCTL_BYTES, TRUE, "what its guest has"},
	{"MIN", "capacity-min-bytes", RMCTL_BYTES, FALSE, "least capacity"},
	{"MAX", "capacity-max-bytes", RMCTL_BYTES, TRUE, "most capacity"},
	{"CHANNELS", "bandwidth-channels", RMCTL_COUNT, TRUE, "bandwidth, in channels"},
	{"CHANNELS-MIN", "bandwidth-min", RMCTL_COUNT, FALSE, "least channels"},
	{"CHANNELS-MAX", "bandwidth-max", RMCTL_COUNT, FALSE, "most channels"},
	{"PID", "pid", RMCTL_COUNT, FALSE, "process of its QEMU"},
	{"CONNECTED", "connected", RMCTL_BOOLEAN, FALSE, "whether its QEMU talks to rmd"},
	{"READY", "ready", RMCTL_BOOLEAN, FALSE, "whether its QEMU is complete"},
	{"GENERATION", "generation", RMCTL_COUNT, FALSE, "counts its changes"},
};

static int
run(int argc, char **argv)
{
	static const GOptionEntry entries[] = {RMCTL_TABLE_ENTRIES, {NULL}};
	g_autofree char *help = rmctl_describe_columns(columns, G_N_ELEMENTS(columns));
	g_autoptr(RmManager1) manager = NULL;
	g_autoptr(GVariant) domains = NULL;
	GError *error = NULL;

	if (!rmctl_parse(&rmctl_verb_list, entries, help, 0, 0, &argc, &argv))
		return RMCTL_USAGE;
	if (!rmctl_check_output(columns, G_N_ELEMENTS(columns), &error))
		return rmctl_fail(error);
	manager = rmctl_connect(&error);
	if (manager == NULL ||
	    !rm_manager1_call_list_domains_sync(manager, &domains, NULL, &error) ||
	    !rmctl_print_rows("vms", columns, G_N_ELEMENTS(columns), domains, &error))
		return rmctl_fail(error);
	return RMCTL_OK;
}

const RmctlVerb rmctl_verb_list = {"list", "", "List the VMs that hold channels", run};
