/* SPDX-License-Identifier: GPL-2.0-or-later */
/* rmctl show VM: what one VM is to have, what it has, and on which channels. */
#include <stdio.h>

#include "rmctl.h"
#include "rmctl-print.h"

static const RmctlColumn columns[] = {
	{"CHANNEL", "name", RMCTL_STRING, TRUE, "name in rmd.conf"},
	{"TIER", "tier", RMCTL_STRING, TRUE, "dimm or cxl"},
	{"CNODE", "cnode", RMCTL_COUNT, TRUE, "number of the guest's channel node"},
	{"SNODE", "snode", RMCTL_COUNT, TRUE, "NUMA node of the guest that it belongs to"},
	{"SIZE", "chunks", RMCTL_CHUNKS, TRUE, "what the VM holds there, in rmd's ledger"},
	{"TARGET", "target-chunks", RMCTL_CHUNKS, TRUE, "what it is to hold there"},
	{"BASE", "base-chunks", RMCTL_CHUNKS, TRUE, "of SIZE: base memory, never unplugged"},
	{"REQUESTED", "requested-bytes", RMCTL_BYTES, FALSE, "what its QEMU asks of the guest"},
	{"PLUGGED", "plugged-bytes", RMCTL_BYTES, TRUE, "what the guest has beside BASE"},
	{"CHUNKS", "chunks", RMCTL_COUNT, FALSE, "SIZE in chunks"},
};

static void print_line(const char *label, const char *format, ...) G_GNUC_PRINTF(2, 3);

static void
print_line(const char *label, const char *format, ...)
{
	va_list args;

	printf("%-11s", label);
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	putchar('\n');
}

static void
print_head(GVariant *domain)
{
	g_autofree char *name = rmctl_format(domain, "name", RMCTL_STRING);
	g_autofree char *uuid = rmctl_format(domain, "uuid", RMCTL_STRING);
	g_autofree char *state = rmctl_format(domain, "state", RMCTL_STRING);
	g_autofree char *pid = rmctl_format(domain, "pid", RMCTL_COUNT);
	g_autofree char *capacity = rmctl_format(domain, "capacity-bytes", RMCTL_BYTES);
	g_autofree char *min = rmctl_format(domain, "capacity-min-bytes", RMCTL_BYTES);
	g_autofree char *max = rmctl_format(domain, "capacity-max-bytes", RMCTL_BYTES);
	g_autofree char *actual = rmctl_format(domain, "actual-bytes", RMCTL_BYTES);
	g_autofree char *channels = rmctl_format(domain, "bandwidth-channels", RMCTL_COUNT);
	g_autofree char *channels_min = rmctl_format(domain, "bandwidth-min", RMCTL_COUNT);
	g_autofree char *channels_max = rmctl_format(domain, "bandwidth-max", RMCTL_COUNT);
	gboolean connected = FALSE, ready = FALSE;

	g_variant_lookup(domain, "connected", "b", &connected);
	g_variant_lookup(domain, "ready", "b", &ready);
	print_line("Name:", "%s", name);
	print_line("UUID:", "%s", uuid);
	if (g_str_equal(pid, "0"))
		print_line("State:", "%s", state);
	else
		print_line("State:", "%s, process %s%s", state, pid,
			   !connected ? ", not connected"
			   : !ready   ? ", not ready yet"
				      : "");
	print_line("Capacity:", "%s (%s to %s), the guest has %s", capacity, min, max, actual);
	print_line("Bandwidth:", "%s channels (%s to %s)", channels, channels_min, channels_max);
	putchar('\n');
}

static int
run(int argc, char **argv)
{
	static const GOptionEntry entries[] = {RMCTL_TABLE_ENTRIES, {NULL}};
	g_autofree char *help = rmctl_describe_columns(columns, G_N_ELEMENTS(columns));
	g_autoptr(RmManager1) manager = NULL;
	g_autoptr(GVariant) domain = NULL;
	g_autoptr(GVariant) channels = NULL;
	GError *error = NULL;

	if (!rmctl_parse(&rmctl_verb_show, entries, help, 1, 1, &argc, &argv))
		return RMCTL_USAGE;
	if (!rmctl_check_output(columns, G_N_ELEMENTS(columns), &error))
		return rmctl_fail(error);
	manager = rmctl_connect(&error);
	if (manager == NULL)
		return rmctl_fail(error);
	if (!rm_manager1_call_get_domain_sync(manager, argv[1], &domain, NULL, &error))
		return rmctl_fail_vm(manager, argv[1], error);
	if (rmctl_print_options.json) {
		rmctl_print_json(domain);
		return RMCTL_OK;
	}
	if (!rmctl_print_options.raw && !rmctl_print_options.no_headings)
		print_head(domain);
	channels = g_variant_lookup_value(domain, "channels", G_VARIANT_TYPE("aa{sv}"));
	if (channels != NULL &&
	    !rmctl_print_rows("channels", columns, G_N_ELEMENTS(columns), channels, &error))
		return rmctl_fail(error);
	return RMCTL_OK;
}

const RmctlVerb rmctl_verb_show = {"show", "VM", "Show one VM and its channels", run};
