/* SPDX-License-Identifier: GPL-2.0-or-later */
/* rmctl channels: every channel of the host, what is free on it and who has the rest. */
#include "rmctl.h"
#include "rmctl-print.h"

static const RmctlColumn columns[] = {
	{"NAME", "name", RMCTL_STRING, TRUE, "name in rmd.conf"},
	{"TIER", "tier", RMCTL_STRING, TRUE, "dimm or cxl"},
	{"SOCKET", "socket", RMCTL_COUNT, TRUE, "socket that it is attached to"},
	{"SIZE", "size-chunks", RMCTL_CHUNKS, TRUE, "whole chunks that it has"},
	{"FREE", "free-chunks", RMCTL_CHUNKS, TRUE, "clean, for anybody"},
	{"GRANTED", "granted-chunks", RMCTL_CHUNKS, TRUE, "held by VMs"},
	{"RELEASED", "released-chunks", RMCTL_CHUNKS, TRUE, "given back, not yet clean"},
	{"SCRUBBING", "scrubbing-chunks", RMCTL_CHUNKS, FALSE, "being cleaned now"},
	{"QUARANTINED", "quarantined-chunks", RMCTL_CHUNKS, FALSE, "taken out of use"},
	{"READ", "read-mbps", RMCTL_MBPS, TRUE, "read bandwidth, GB/s"},
	{"WRITE", "write-mbps", RMCTL_MBPS, FALSE, "write bandwidth, GB/s"},
	{"LATENCY", "latency-ns", RMCTL_COUNT, FALSE, "read latency, ns"},
	{"DAX", "dax", RMCTL_COUNT, FALSE, "number of its DAX device"},
	{"CHANNEL", "channel", RMCTL_COUNT, FALSE, "number of the memory channel"},
	{"STATE", "state", RMCTL_STRING, TRUE, "online, failed, draining or offline"},
	{"VMS", "vms", RMCTL_STRINGS, TRUE, "VMs with chunks on it"},
};

static int
run(int argc, char **argv)
{
	static const GOptionEntry entries[] = {RMCTL_TABLE_ENTRIES, {NULL}};
	g_autofree char *help = rmctl_describe_columns(columns, G_N_ELEMENTS(columns));
	g_autoptr(RmManager1) manager = NULL;
	g_autoptr(GVariant) channels = NULL;
	GError *error = NULL;

	if (!rmctl_parse(&rmctl_verb_channels, entries, help, 0, 0, &argc, &argv))
		return RMCTL_USAGE;
	if (!rmctl_check_output(columns, G_N_ELEMENTS(columns), &error))
		return rmctl_fail(error);
	manager = rmctl_connect(&error);
	if (manager == NULL ||
	    !rm_manager1_call_list_channels_sync(manager, &channels, NULL, &error) ||
	    !rmctl_print_rows("channels", columns, G_N_ELEMENTS(columns), channels, &error))
		return rmctl_fail(error);
	return RMCTL_OK;
}

const RmctlVerb rmctl_verb_channels = {"channels", "", "List the channels of this host", run};
