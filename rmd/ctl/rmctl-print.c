/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "rmctl-print.h"

#include <stdio.h>
#include <string.h>

#include <json-glib/json-glib.h>
#include <libsmartcols.h>

#include "rm-error.h"
#include "rm-size.h"

RmctlPrintOptions rmctl_print_options;

/* ---- values ---- */

static guint64
number_of(GVariant *value)
{
	switch (g_variant_classify(value)) {
	case G_VARIANT_CLASS_UINT64:
		return g_variant_get_uint64(value);
	case G_VARIANT_CLASS_UINT32:
		return g_variant_get_uint32(value);
	case G_VARIANT_CLASS_INT64:
		return (guint64)g_variant_get_int64(value);
	case G_VARIANT_CLASS_INT32:
		return (guint64)g_variant_get_int32(value);
	default:
		return 0;
	}
}

/* Exact for whole chunks: 128M, 4G, 4.125G. */
static char *
format_bytes(guint64 bytes)
{
	char number[32];
	gsize length;

	if (rmctl_print_options.bytes)
		return g_strdup_printf("%" G_GUINT64_FORMAT, bytes);
	if (bytes < RM_GIB)
		return bytes % RM_MIB == 0 ? g_strdup_printf("%" G_GUINT64_FORMAT "%s",
							     bytes / RM_MIB, bytes != 0 ? "M" : "")
					   : g_strdup_printf("%.1fM", (double)bytes / RM_MIB);
	g_snprintf(number, sizeof(number), "%.3f", (double)bytes / RM_GIB);
	for (length = strlen(number); number[length - 1] == '0'; length--)
		;
	if (number[length - 1] == '.')
		length--;
	return g_strdup_printf("%.*sG", (int)length, number);
}

static char *
format_time(gint64 usec)
{
	g_autoptr(GDateTime) time = NULL;

	if (usec == 0)
		return g_strdup("");
	time = g_date_time_new_from_unix_local(usec / G_USEC_PER_SEC);
	return g_date_time_format(time, "%F %T");
}

static char *
format_strings(GVariant *value)
{
	g_autofree const char **strings = NULL;

	if (!g_variant_is_of_type(value, G_VARIANT_TYPE_STRING_ARRAY))
		return g_strdup("");
	strings = g_variant_get_strv(value, NULL);
	return g_strjoinv(",", (char **)strings);
}

static char *
format_value(GVariant *value, RmctlKind kind)
{
	switch (kind) {
	case RMCTL_STRING:
		return g_variant_is_of_type(value, G_VARIANT_TYPE_STRING)
			       ? g_variant_dup_string(value, NULL)
			       : g_strdup("");
	case RMCTL_STRINGS:
		return format_strings(value);
	case RMCTL_COUNT:
		return g_strdup_printf("%" G_GINT64_FORMAT, (gint64)number_of(value));
	case RMCTL_BYTES:
		return format_bytes(number_of(value));
	case RMCTL_CHUNKS:
		return format_bytes(number_of(value) * RM_CHUNK_BYTES);
	case RMCTL_MBPS:
		return g_strdup_printf("%g", (double)number_of(value) / 1000);
	case RMCTL_BOOLEAN:
		return g_strdup(g_variant_is_of_type(value, G_VARIANT_TYPE_BOOLEAN) &&
						g_variant_get_boolean(value)
					? "yes"
					: "no");
	case RMCTL_FRACTION:
		return g_variant_is_of_type(value, G_VARIANT_TYPE_DOUBLE)
			       ? g_strdup_printf("%.0f%%", 100 * g_variant_get_double(value))
			       : g_strdup("");
	case RMCTL_TIME:
		return format_time((gint64)number_of(value));
	}
	return g_strdup("");
}

char *
rmctl_format(GVariant *dictionary, const char *key, RmctlKind kind)
{
	g_autoptr(GVariant) value = g_variant_lookup_value(dictionary, key, NULL);

	return value != NULL ? format_value(value, kind) : g_strdup("");
}

/* ---- JSON ---- */

static JsonNode *json_of(GVariant *value);

/* Keys of a{sv} are ours and get "_"; those of any other dictionary are names and stay. */
static JsonNode *
json_of_dictionary(GVariant *value)
{
	gboolean is_ours = g_variant_is_of_type(value, G_VARIANT_TYPE_VARDICT);
	JsonNode *node = json_node_new(JSON_NODE_OBJECT);
	JsonObject *object = json_object_new();
	gsize i;

	for (i = 0; i < g_variant_n_children(value); i++) {
		g_autoptr(GVariant) entry = g_variant_get_child_value(value, i);
		g_autoptr(GVariant) key = g_variant_get_child_value(entry, 0);
		g_autoptr(GVariant) content = g_variant_get_child_value(entry, 1);
		g_autofree char *name = g_variant_dup_string(key, NULL);

		if (is_ours)
			g_strdelimit(name, "-", '_');
		json_object_set_member(object, name, json_of(content));
	}
	json_node_take_object(node, object);
	return node;
}

static JsonNode *
json_of_array(GVariant *value)
{
	JsonNode *node = json_node_new(JSON_NODE_ARRAY);
	JsonArray *array = json_array_new();
	gsize i;

	for (i = 0; i < g_variant_n_children(value); i++) {
		g_autoptr(GVariant) child = g_variant_get_child_value(value, i);

		json_array_add_element(array, json_of(child));
	}
	json_node_take_array(node, array);
	return node;
}

static JsonNode *
json_of(GVariant *value)
{
	if (g_variant_is_of_type(value, G_VARIANT_TYPE_VARIANT)) {
		g_autoptr(GVariant) inner = g_variant_get_variant(value);

		return json_of(inner);
	}
	if (g_variant_is_of_type(value, G_VARIANT_TYPE_DICTIONARY))
		return json_of_dictionary(value);
	if (g_variant_is_of_type(value, G_VARIANT_TYPE_ARRAY))
		return json_of_array(value);
	return json_gvariant_serialize(value);
}

static void
print_node(JsonNode *node)
{
	g_autoptr(JsonGenerator) generator = json_generator_new();
	g_autofree char *text = NULL;

	json_generator_set_root(generator, node);
	json_generator_set_pretty(generator, TRUE);
	text = json_generator_to_data(generator, NULL);
	puts(text);
}

void
rmctl_print_json(GVariant *dictionary)
{
	g_autoptr(JsonNode) node = json_of(dictionary);

	print_node(node);
}

static void
print_json_rows(const char *name, GVariant *rows)
{
	g_autoptr(JsonNode) node = json_node_new(JSON_NODE_OBJECT);
	JsonObject *object = json_object_new();

	json_object_set_member(object, name, json_of(rows));
	json_node_take_object(node, object);
	print_node(node);
}

/* ---- tables ---- */

char *
rmctl_describe_columns(const RmctlColumn *columns, gsize n)
{
	g_autoptr(GString) text = g_string_new("Columns (those with * are shown without -o):\n");
	gsize i;

	for (i = 0; i < n; i++)
		g_string_append_printf(text, "  %c %-14s %s\n", columns[i].is_default ? '*' : ' ',
				       columns[i].name, columns[i].help);
	return g_string_free(g_steal_pointer(&text), FALSE);
}

static const RmctlColumn *
find_column(const RmctlColumn *columns, gsize n, const char *name)
{
	gsize i;

	for (i = 0; i < n; i++)
		if (g_ascii_strcasecmp(columns[i].name, name) == 0)
			return &columns[i];
	return NULL;
}

/* The columns to show, in order: a GPtrArray of const RmctlColumn *. */
static GPtrArray *
choose_columns(const RmctlColumn *columns, gsize n, GError **error)
{
	const char *output = rmctl_print_options.output;
	g_autoptr(GPtrArray) chosen = g_ptr_array_new();
	g_auto(GStrv) names = NULL;
	gsize i;

	if (output == NULL || output[0] == '+')
		for (i = 0; i < n; i++)
			if (columns[i].is_default)
				g_ptr_array_add(chosen, (RmctlColumn *)&columns[i]);
	if (output == NULL)
		return g_steal_pointer(&chosen);
	names = g_strsplit(output[0] == '+' ? output + 1 : output, ",", -1);
	for (i = 0; names[i] != NULL; i++) {
		const RmctlColumn *column = find_column(columns, n, g_strstrip(names[i]));

		if (column == NULL) {
			rm_error_set(error, RM_ERROR_INVALID,
				     "-o: there is no column '%s'; --help lists them", names[i]);
			return NULL;
		}
		g_ptr_array_add(chosen, (RmctlColumn *)column);
	}
	return g_steal_pointer(&chosen);
}

gboolean
rmctl_check_output(const RmctlColumn *columns, gsize n, GError **error)
{
	g_autoptr(GPtrArray) chosen = choose_columns(columns, n, error);

	return chosen != NULL;
}

static gboolean
is_right_aligned(RmctlKind kind)
{
	return kind != RMCTL_STRING && kind != RMCTL_STRINGS && kind != RMCTL_TIME &&
	       kind != RMCTL_BOOLEAN;
}

static void
print_table(GPtrArray *chosen, GVariant *rows)
{
	struct libscols_table *table = scols_new_table();
	gsize i;
	guint c;

	if (table == NULL)
		g_error("out of memory");
	scols_table_enable_raw(table, rmctl_print_options.raw);
	scols_table_enable_noheadings(table, rmctl_print_options.no_headings);
	for (c = 0; c < chosen->len; c++) {
		const RmctlColumn *column = chosen->pdata[c];

		scols_table_new_column(table, column->name, 0,
				       is_right_aligned(column->kind) ? SCOLS_FL_RIGHT : 0);
	}
	for (i = 0; i < g_variant_n_children(rows); i++) {
		g_autoptr(GVariant) row = g_variant_get_child_value(rows, i);
		struct libscols_line *line = scols_table_new_line(table, NULL);

		for (c = 0; c < chosen->len; c++) {
			const RmctlColumn *column = chosen->pdata[c];
			g_autofree char *text = rmctl_format(row, column->key, column->kind);

			scols_line_set_data(line, c, text);
		}
	}
	scols_print_table(table);
	scols_unref_table(table);
}

gboolean
rmctl_print_rows(const char *json_name, const RmctlColumn *columns, gsize n, GVariant *rows,
		 GError **error)
{
	g_autoptr(GPtrArray) chosen = choose_columns(columns, n, error);

	if (chosen == NULL)
		return FALSE;
	if (rmctl_print_options.json)
		print_json_rows(json_name, rows);
	else
		print_table(chosen, rows);
	return TRUE;
}
