/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Prints rmd's dictionaries: as a table from a description of its columns, or as JSON with every
 * key. Owns the table options and the spelling of each kind of value; knows no verb and no bus.
 */
#ifndef RMCTL_PRINT_H
#define RMCTL_PRINT_H

#include <glib.h>

G_BEGIN_DECLS

typedef enum {
	RMCTL_STRING,   /* s */
	RMCTL_STRINGS,  /* as, joined by commas */
	RMCTL_COUNT,    /* u, i, t or x */
	RMCTL_BYTES,    /* t: a size */
	RMCTL_CHUNKS,   /* u: chunks, shown as a size */
	RMCTL_MBPS,     /* u: shown in GB/s */
	RMCTL_BOOLEAN,  /* b: yes or no */
	RMCTL_FRACTION, /* d from 0 to 1: shown in percent */
	RMCTL_TIME,     /* x: microseconds since 1970; 0 is shown as nothing */
} RmctlKind;

typedef struct {
	const char *name; /* the heading, and what -o takes in either case */
	const char *key;  /* of the dictionary */
	RmctlKind kind;
	gboolean is_default;
	const char *help;
} RmctlColumn;

typedef struct {
	char *output;
	gboolean json;
	gboolean raw;
	gboolean no_headings;
	gboolean bytes;
} RmctlPrintOptions;

/* The process has one set of table options, filled by these entries. */
extern RmctlPrintOptions rmctl_print_options;

/* clang-format off */
#define RMCTL_JSON_ENTRY                                                                           \
	{"json", 'J', 0, G_OPTION_ARG_NONE, &rmctl_print_options.json,                             \
	 "Print JSON: everything, sizes in bytes", NULL}
#define RMCTL_TABLE_ENTRIES                                                                        \
	{"output", 'o', 0, G_OPTION_ARG_STRING, &rmctl_print_options.output,                       \
	 "Columns to show; begin with + to add to the usual ones", "LIST"},                        \
	RMCTL_JSON_ENTRY,                                                                          \
	{"raw", 'r', 0, G_OPTION_ARG_NONE, &rmctl_print_options.raw,                               \
	 "Print values with single blanks between them", NULL},                                    \
	{"no-headings", 'n', 0, G_OPTION_ARG_NONE, &rmctl_print_options.no_headings,               \
	 "Print no headings", NULL},                                                               \
	{"bytes", 'b', 0, G_OPTION_ARG_NONE, &rmctl_print_options.bytes,                           \
	 "Print sizes in bytes", NULL}
/* clang-format on */

/* "Columns:" and a line for each, for the help of a verb. */
char *rmctl_describe_columns(const RmctlColumn *columns, gsize n);

/*
 * Prints @rows (aa{sv}) as rmctl_print_options wants it: a table, or {"@json_name": [ … ]}. FALSE
 * and RM_ERROR_INVALID for a column that does not exist.
 */
gboolean rmctl_print_rows(const char *json_name, const RmctlColumn *columns, gsize n,
			  GVariant *rows, GError **error);

/* Fails where rmctl_print_rows() would, without printing: to be called before anything is asked. */
gboolean rmctl_check_output(const RmctlColumn *columns, gsize n, GError **error);

/* One dictionary (a{sv}) as a JSON object, keys with "_" in place of "-". */
void rmctl_print_json(GVariant *dictionary);

/* One value of a dictionary as a table would show it; "" where it is missing. */
char *rmctl_format(GVariant *dictionary, const char *key, RmctlKind kind);

G_END_DECLS

#endif
