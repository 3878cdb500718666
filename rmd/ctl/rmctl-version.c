/* SPDX-License-Identifier: GPL-2.0-or-later */
/* rmctl version: of this program and of the rmd that answers. */
#include <stdio.h>

#include "rmctl.h"
#include "rmctl-print.h"

static char *
ask_version(RmManager1 *manager, GError **error)
{
	g_autoptr(GVariant) answer = NULL;
	g_autoptr(GVariant) value = NULL;

	answer = g_dbus_connection_call_sync(
		g_dbus_proxy_get_connection(G_DBUS_PROXY(manager)), NULL, RM_BUS_PATH,
		"org.freedesktop.DBus.Properties", "Get",
		g_variant_new("(ss)", RM_BUS_INTERFACE, "Version"), G_VARIANT_TYPE("(v)"),
		G_DBUS_CALL_FLAGS_NONE, -1, NULL, error);
	if (answer == NULL)
		return NULL;
	g_variant_get(answer, "(v)", &value);
	return g_variant_dup_string(value, NULL);
}

static int
run(int argc, char **argv)
{
	static const GOptionEntry entries[] = {RMCTL_JSON_ENTRY, {NULL}};
	g_autoptr(RmManager1) manager = NULL;
	g_autofree char *rmd = NULL;
	g_autoptr(GVariant) versions = NULL;
	GVariantDict dictionary;
	GError *error = NULL;

	if (!rmctl_parse(&rmctl_verb_version, entries, NULL, 0, 0, &argc, &argv))
		return RMCTL_USAGE;
	manager = rmctl_connect(&error);
	if (manager != NULL)
		rmd = ask_version(manager, &error);
	if (rmctl_print_options.json) {
		g_variant_dict_init(&dictionary, NULL);
		g_variant_dict_insert(&dictionary, "rmctl", "s", RM_VERSION);
		if (rmd != NULL)
			g_variant_dict_insert(&dictionary, "rmd", "s", rmd);
		versions = g_variant_ref_sink(g_variant_dict_end(&dictionary));
		rmctl_print_json(versions);
	} else {
		printf("rmctl %s\n", RM_VERSION);
		if (rmd != NULL)
			printf("rmd %s\n", rmd);
	}
	fflush(stdout);
	return error != NULL ? rmctl_fail(error) : RMCTL_OK;
}

const RmctlVerb rmctl_verb_version = {"version", "", "Show the versions of rmctl and rmd", run};
