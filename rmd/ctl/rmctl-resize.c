/* SPDX-License-Identifier: GPL-2.0-or-later */
/* rmctl resize VM: another capacity, another bandwidth, or a layout by hand. */
#include <stdio.h>
#include <string.h>

#include "rm-size.h"
#include "rmctl.h"
#include "rmctl-print.h"

static char *capacity;
static char *bandwidth;
static char *layout;
static gboolean dry_run;
static gboolean no_wait;
static gint64 expect_generation = -1;

/* clang-format off */
static const GOptionEntry entries[] = {
	{"capacity", 'c', 0, G_OPTION_ARG_STRING, &capacity,
	 "Memory of the VM, a multiple of 128M: 4G, 4224M", "SIZE"},
	{"bandwidth", 'w', 0, G_OPTION_ARG_STRING, &bandwidth,
	 "Number of channels that carry it: 4ch", "N"},
	{"layout", 'l', 0, G_OPTION_ARG_STRING, &layout,
	 "Chunks of 128 MiB on each named channel, by hand; the others keep theirs: dimm0=8,dimm3=8",
	 "LIST"},
	{"dry-run", 0, 0, G_OPTION_ARG_NONE, &dry_run, "Only show what would be done", NULL},
	{"no-wait", 0, 0, G_OPTION_ARG_NONE, &no_wait, "Print the number of the job and return", NULL},
	{"expect-generation", 0, 0, G_OPTION_ARG_INT64, &expect_generation,
	 "Fail if the VM has changed since (GENERATION of rmctl list)", "N"},
	RMCTL_TABLE_ENTRIES,
	{NULL},
};
/* clang-format on */

/* Of the plan that --dry-run prints. */
static const RmctlColumn columns[] = {
	{"CHANNEL", "name", RMCTL_STRING, TRUE, "name in rmd.conf"},
	{"BEFORE", "before", RMCTL_CHUNKS, TRUE, "what the VM holds there"},
	{"AFTER", "after", RMCTL_CHUNKS, TRUE, "what it would hold"},
	{"CHUNKS-BEFORE", "before", RMCTL_COUNT, FALSE, "BEFORE in chunks of 128 MiB"},
	{"CHUNKS-AFTER", "after", RMCTL_COUNT, FALSE, "AFTER in chunks of 128 MiB"},
};

/* ---- reading the request ---- */

static gboolean
read_capacity(GVariantDict *options, GError **error)
{
	g_autoptr(GError) why = NULL;
	guint64 bytes;

	if (!rm_size_parse(capacity, &bytes, &why)) {
		rm_error_set(error, RM_ERROR_INVALID, "--capacity: %s", why->message);
		return FALSE;
	}
	if (bytes == 0) {
		rm_error_set(
			error, RM_ERROR_INVALID,
			"--capacity %s: a VM cannot be without memory; virsh shutdown stops it",
			capacity);
		return FALSE;
	}
	if (!rm_size_check_chunks("--capacity", bytes, error))
		return FALSE;
	g_variant_dict_insert(options, "capacity-bytes", "t", bytes);
	return TRUE;
}

static gboolean
read_bandwidth(GVariantDict *options, GError **error)
{
	g_autofree char *number = g_strdup(bandwidth);
	guint64 channels;

	if (g_str_has_suffix(number, "ch"))
		number[strlen(number) - 2] = '\0';
	if (!g_ascii_string_to_unsigned(number, 10, 1, 4096, &channels, NULL)) {
		rm_error_set(error, RM_ERROR_INVALID,
			     "--bandwidth: '%s' is not a number of channels above 0; write for "
			     "example 4ch",
			     bandwidth);
		return FALSE;
	}
	g_variant_dict_insert(options, "bandwidth-channels", "u", (guint32)channels);
	return TRUE;
}

static gboolean
read_layout(GVariantDict *options, GError **error)
{
	g_auto(GStrv) parts = g_strsplit(layout, ",", -1);
	g_autoptr(GHashTable) seen = g_hash_table_new(g_str_hash, g_str_equal);
	GVariantBuilder builder;
	guint i;

	g_variant_builder_init(&builder, G_VARIANT_TYPE("a{su}"));
	for (i = 0; parts[i] != NULL; i++) {
		char *equals = strchr(g_strstrip(parts[i]), '=');
		guint64 chunks;

		if (equals == NULL || equals == parts[i] ||
		    !g_ascii_string_to_unsigned(equals + 1, 10, 0, G_MAXUINT32, &chunks, NULL)) {
			rm_error_set(error, RM_ERROR_INVALID,
				     "--layout: '%s' is not CHANNEL=CHUNKS; write for example "
				     "dimm0=8,dimm3=8",
				     parts[i]);
			break;
		}
		*equals = '\0';
		if (!g_hash_table_add(seen, parts[i])) {
			rm_error_set(error, RM_ERROR_INVALID, "--layout: '%s' is there twice",
				     parts[i]);
			break;
		}
		g_variant_builder_add(&builder, "{su}", parts[i], (guint32)chunks);
	}
	if (parts[i] != NULL) {
		g_variant_builder_clear(&builder);
		return FALSE;
	}
	g_variant_dict_insert_value(options, "layout", g_variant_builder_end(&builder));
	return TRUE;
}

/* NULL if the options contradict each other or are no values. */
static GVariant *
read_request(GError **error)
{
	g_autoptr(GVariantDict) options = g_variant_dict_new(NULL);

	if (layout != NULL && (capacity != NULL || bandwidth != NULL)) {
		rm_error_set(error, RM_ERROR_INVALID,
			     "--layout says how many chunks lie where; leave out %s",
			     capacity != NULL ? "--capacity" : "--bandwidth");
		return NULL;
	}
	if (layout == NULL && capacity == NULL && bandwidth == NULL) {
		rm_error_set(error, RM_ERROR_INVALID,
			     "nothing to change; give --capacity, --bandwidth or --layout");
		return NULL;
	}
	if ((capacity != NULL && !read_capacity(options, error)) ||
	    (bandwidth != NULL && !read_bandwidth(options, error)) ||
	    (layout != NULL && !read_layout(options, error)))
		return NULL;
	if (expect_generation >= 0)
		g_variant_dict_insert(options, "expected-generation", "t",
				      (guint64)expect_generation);
	return g_variant_ref_sink(g_variant_dict_end(options));
}

/* ---- doing it ---- */

static int
show_plan(RmManager1 *manager, const char *vm, GVariant *options)
{
	g_autoptr(GVariant) plan = NULL;
	GError *error = NULL;

	if (!rm_manager1_call_plan_resize_sync(manager, vm, options, &plan, NULL, &error))
		return rmctl_fail_vm(manager, vm, error);
	if (!rmctl_print_rows("plan", columns, G_N_ELEMENTS(columns), plan, &error))
		return rmctl_fail(error);
	return RMCTL_OK;
}

static int
print_job_number(guint64 id)
{
	if (rmctl_print_options.json)
		printf("{\n  \"job\" : %" G_GUINT64_FORMAT "\n}\n", id);
	else
		printf("%" G_GUINT64_FORMAT "\n", id);
	return RMCTL_OK;
}

/* What the VM has now; the change itself has succeeded. */
static int
print_result(RmManager1 *manager, const char *vm)
{
	g_autoptr(GVariant) domain = NULL;
	GError *error = NULL;

	if (!rm_manager1_call_get_domain_sync(manager, vm, &domain, NULL, &error))
		return rmctl_fail_vm(manager, vm, error);
	if (rmctl_print_options.json) {
		rmctl_print_json(domain);
	} else {
		g_autofree char *name = rmctl_format(domain, "name", RMCTL_STRING);
		g_autofree char *actual = rmctl_format(domain, "actual-bytes", RMCTL_BYTES);
		g_autofree char *channels = rmctl_format(domain, "bandwidth-channels", RMCTL_COUNT);

		printf("%s: %s on %s channel%s\n", name, actual, channels,
		       g_str_equal(channels, "1") ? "" : "s");
	}
	return RMCTL_OK;
}

static int
resize(RmManager1 *manager, const char *vm, GVariant *options)
{
	g_autoptr(GVariant) job = NULL;
	GError *error = NULL;
	guint64 id;
	int code;

	if (!rm_manager1_call_resize_sync(manager, vm, options, &id, NULL, &error))
		return rmctl_fail_vm(manager, vm, error);
	if (no_wait)
		return print_job_number(id);
	if (id != 0) {
		code = rmctl_wait_job(manager, id, rmctl_print_options.json, &job);
		if (code != RMCTL_OK)
			return code;
	}
	return print_result(manager, vm);
}

static int
run(int argc, char **argv)
{
	g_autofree char *help = rmctl_describe_columns(columns, G_N_ELEMENTS(columns));
	g_autofree char *text = g_strconcat("The columns are those of --dry-run. ", help, NULL);
	g_autoptr(RmManager1) manager = NULL;
	g_autoptr(GVariant) options = NULL;
	GError *error = NULL;

	if (!rmctl_parse(&rmctl_verb_resize, entries, text, 1, 1, &argc, &argv))
		return RMCTL_USAGE;
	if (dry_run && no_wait)
		return rmctl_usage(&rmctl_verb_resize,
				   "--dry-run starts no job; leave out --no-wait");
	if (!rmctl_check_output(columns, G_N_ELEMENTS(columns), &error))
		return rmctl_fail(error);
	options = read_request(&error);
	if (options == NULL)
		return rmctl_fail(error);
	manager = rmctl_connect(&error);
	if (manager == NULL)
		return rmctl_fail(error);
	return dry_run ? show_plan(manager, argv[1], options) : resize(manager, argv[1], options);
}

const RmctlVerb rmctl_verb_resize = {"resize", "VM", "Change capacity, bandwidth or layout of a VM",
				     run};
