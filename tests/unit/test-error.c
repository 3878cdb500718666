/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "rm-error.h"

static void
test_one_line(void)
{
	g_autoptr(GError) error = NULL;

	rm_error_set(&error, RM_ERROR_NO_SPACE, "wanted %d\nof %d", 3, 2);
	g_assert_error(error, RM_ERROR, RM_ERROR_NO_SPACE);
	g_assert_cmpstr(error->message, ==, "wanted 3 of 2");
}

static void
test_names(void)
{
	g_assert_cmpstr(rm_error_name(RM_ERROR_NOT_FOUND), ==, "NotFound");
	g_assert_cmpstr(rm_error_name(RM_ERROR_STALE), ==, "Stale");
}

int
main(int argc, char **argv)
{
	g_test_init(&argc, &argv, NULL);
	g_test_add_func("/error/one-line", test_one_line);
	g_test_add_func("/error/names", test_names);
	return g_test_run();
}
