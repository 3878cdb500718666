/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "rmctl.h"

#include <locale.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CALL_MSEC (30 * 1000)

static const RmctlVerb *const verbs[] = {
	&rmctl_verb_channels,  &rmctl_verb_list,    &rmctl_verb_show,    &rmctl_verb_resize,
	&rmctl_verb_jobs,      &rmctl_verb_state,   &rmctl_verb_compact, &rmctl_verb_ledger,
	&rmctl_verb_reconcile, &rmctl_verb_version,
};

static char *socket_option;
static const char *current_verb; /* for messages */

static const GOptionEntry common_entries[] = {
	{"socket", 0, 0, G_OPTION_ARG_FILENAME, &socket_option,
	 "Talk to the rmd behind this socket (default: RMD_BUS, else from rmd.conf)", "PATH"},
	{NULL},
};

/* ---- messages ---- */

static void
say(const char *message)
{
	fprintf(stderr, "rmctl%s%s: %s\n", current_verb != NULL ? " " : "",
		current_verb != NULL ? current_verb : "", message);
}

int
rmctl_usage(const RmctlVerb *verb, const char *format, ...)
{
	g_autofree char *message = NULL;
	va_list args;

	va_start(args, format);
	message = g_strdup_vprintf(format, args);
	va_end(args);
	say(message);
	return RMCTL_USAGE;
}

static int
exit_code(const GError *error)
{
	if (rm_client_is_unreachable(error))
		return RMCTL_UNREACHABLE;
	if (g_error_matches(error, RM_ERROR, RM_ERROR_INVALID))
		return RMCTL_USAGE;
	if (g_error_matches(error, RM_ERROR, RM_ERROR_NOT_FOUND))
		return RMCTL_NOT_FOUND;
	if (g_error_matches(error, RM_ERROR, RM_ERROR_NO_SPACE))
		return RMCTL_NO_SPACE;
	return RMCTL_FAILED;
}

int
rmctl_fail(GError *error)
{
	int code;

	rm_client_clean_error(socket_option, &error);
	code = exit_code(error);
	say(error->message);
	g_error_free(error);
	return code;
}

/* ---- names that are spelt alike ---- */

/* Number of insertions, deletions and replacements from @a to @b (Levenshtein). */
static guint
edit_distance(const char *a, const char *b)
{
	gsize n = strlen(b), i, j;
	g_autofree guint *row = g_new(guint, n + 1);

	for (j = 0; j <= n; j++)
		row[j] = (guint)j;
	for (i = 1; a[i - 1] != '\0'; i++) {
		guint diagonal = row[0];

		row[0] = (guint)i;
		for (j = 1; j <= n; j++) {
			guint above = row[j];
			guint replaced = diagonal + (a[i - 1] != b[j - 1]);

			row[j] = MIN(MIN(above, row[j - 1]) + 1, replaced);
			diagonal = above;
		}
	}
	return row[n];
}

static gboolean
is_close(const char *asked, const char *name)
{
	g_autofree char *a = g_ascii_strdown(asked, -1);
	g_autofree char *b = g_ascii_strdown(name, -1);
	guint allowed = strlen(b) < 4 ? 1 : (guint)MAX(strlen(b) / 3, 2);

	return g_str_has_prefix(b, a) || edit_distance(a, b) <= allowed;
}

int
rmctl_fail_vm(RmManager1 *manager, const char *vm, GError *error)
{
	g_autoptr(GVariant) domains = NULL;
	g_autoptr(GPtrArray) close = g_ptr_array_new();
	g_autoptr(GPtrArray) all = g_ptr_array_new();
	g_autofree char *list = NULL;
	g_autofree char *message = NULL;
	const char *name;
	GVariantIter iter;
	GVariant *domain;

	if (!g_error_matches(error, RM_ERROR, RM_ERROR_NOT_FOUND) ||
	    !rm_manager1_call_list_domains_sync(manager, &domains, NULL, NULL))
		return rmctl_fail(error);
	g_error_free(error);
	g_variant_iter_init(&iter, domains);
	while ((domain = g_variant_iter_next_value(&iter)) != NULL) {
		if (g_variant_lookup(domain, "name", "&s", &name)) {
			g_ptr_array_add(all, (char *)name);
			if (is_close(vm, name) && close->len < 5)
				g_ptr_array_add(close, (char *)name);
		}
		g_variant_unref(domain); /* the names live in @domains */
	}
	if (close->len == 0 && all->len > 0 && all->len <= 5)
		g_ptr_array_extend(close, all, NULL, NULL);
	g_ptr_array_add(close, NULL);
	list = g_strjoinv(", ", (char **)close->pdata);
	if (all->len == 0)
		message = g_strdup_printf("no VM '%s': rmd holds channels for no VM at all", vm);
	else if (list[0] != '\0')
		message = g_strdup_printf("no VM '%s'; did you mean: %s", vm, list);
	else
		message = g_strdup_printf("no VM '%s'; there are %u, rmctl list shows them", vm,
					  all->len);
	say(message);
	return RMCTL_NOT_FOUND;
}

/* ---- options ---- */

gboolean
rmctl_parse(const RmctlVerb *verb, const GOptionEntry *entries, const char *description,
	    int min_arguments, int max_arguments, int *argc, char ***argv)
{
	g_autoptr(GOptionContext) context = g_option_context_new(verb->arguments);
	g_autofree char *name = g_strconcat("rmctl ", verb->name, NULL);
	g_autofree char *summary = g_strconcat(verb->summary, ".", NULL);
	g_autoptr(GError) error = NULL;

	g_set_prgname(name);
	g_option_context_set_summary(context, summary);
	g_option_context_set_description(context, description);
	if (entries != NULL)
		g_option_context_add_main_entries(context, entries, NULL);
	g_option_context_add_main_entries(context, common_entries, NULL);
	if (!g_option_context_parse(context, argc, argv, &error)) {
		rmctl_usage(verb, "%s; see: rmctl %s --help", error->message, verb->name);
		return FALSE;
	}
	/* GOption leaves a "--" that separates. */
	if (*argc > 1 && g_str_equal((*argv)[1], "--")) {
		memmove(*argv + 1, *argv + 2, sizeof(char *) * (gsize)(*argc - 1));
		(*argc)--;
	}
	if (*argc - 1 >= min_arguments && *argc - 1 <= max_arguments)
		return TRUE;
	if (*argc - 1 < min_arguments)
		rmctl_usage(verb, "%s is missing; see: rmctl %s --help", verb->arguments,
			    verb->name);
	else
		rmctl_usage(verb, "the argument '%s' is one too many; see: rmctl %s --help",
			    (*argv)[max_arguments + 1], verb->name);
	return FALSE;
}

RmManager1 *
rmctl_connect(GError **error)
{
	if (socket_option == NULL)
		socket_option = rm_client_bus_path(error);
	return socket_option != NULL ? rm_client_connect(socket_option, CALL_MSEC, error) : NULL;
}

/* ---- main ---- */

static void
print_help(void)
{
	gsize i;

	printf("Usage: rmctl [--socket PATH] VERB [OPTION…]\n\n"
	       "Shows and changes the memory channels that rmd gives to virtual machines.\n\n"
	       "Verbs:\n");
	for (i = 0; i < G_N_ELEMENTS(verbs); i++) {
		g_autofree char *usage = g_strjoin(" ", verbs[i]->name, verbs[i]->arguments, NULL);

		printf("  %-14s%s\n", usage, verbs[i]->summary);
	}
	printf("\nOptions:\n"
	       "  --socket PATH talk to the rmd behind this socket\n"
	       "  -h, --help    this text; rmctl VERB --help explains a verb\n"
	       "  --version     the same as the verb version\n\n"
	       "Exit codes: 0 done, 1 failed, 2 wrong usage or impossible request, 3 not found,\n"
	       "4 not enough room, 5 rmd cannot be reached. See rmctl(1).\n");
}

static const RmctlVerb *
find_verb(const char *name)
{
	gsize i;

	for (i = 0; i < G_N_ELEMENTS(verbs); i++)
		if (g_str_equal(name, verbs[i]->name))
			return verbs[i];
	return NULL;
}

static int
unknown_verb(const char *name)
{
	g_autoptr(GString) close = g_string_new(NULL);
	g_autofree char *message = NULL;
	gsize i;

	for (i = 0; i < G_N_ELEMENTS(verbs); i++)
		if (edit_distance(name, verbs[i]->name) <= 2)
			g_string_append_printf(close, "%s%s", close->len > 0 ? ", " : "",
					       verbs[i]->name);
	message = g_strdup_printf("'%s' is no verb; %s%s", name,
				  close->len > 0 ? "did you mean: " : "rmctl --help lists them",
				  close->str);
	say(message);
	return RMCTL_USAGE;
}

int
main(int argc, char **argv)
{
	const RmctlVerb *verb;
	int i = 1;

	setlocale(LC_ALL, "");
	setlocale(LC_NUMERIC, "C"); /* 4.125G everywhere: scripts read it too */
	while (i < argc && argv[i][0] == '-') {
		if (g_str_equal(argv[i], "--help") || g_str_equal(argv[i], "-h")) {
			print_help();
			return RMCTL_OK;
		}
		if (g_str_equal(argv[i], "--version")) {
			argv[i] = (char *)"version";
			break;
		}
		if (g_str_has_prefix(argv[i], "--socket=")) {
			socket_option = g_strdup(argv[i] + strlen("--socket="));
			i += 1;
		} else if (g_str_equal(argv[i], "--socket") && i + 1 < argc) {
			socket_option = g_strdup(argv[i + 1]);
			i += 2;
		} else {
			g_autofree char *message =
				g_strdup_printf("unknown option '%s'; see: rmctl --help", argv[i]);

			say(message);
			return RMCTL_USAGE;
		}
	}
	if (i >= argc) {
		say("which verb? see: rmctl --help");
		return RMCTL_USAGE;
	}
	verb = find_verb(argv[i]);
	if (verb == NULL)
		return unknown_verb(argv[i]);
	current_verb = verb->name;
	return verb->run(argc - i, argv + i);
}
