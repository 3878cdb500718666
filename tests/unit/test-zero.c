/* SPDX-License-Identifier: GPL-2.0-or-later */
#include <glib/gstdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "rm-error.h"
#include "rm-zero.h"

#define BYTES ((gsize)16 << 20)

static gboolean
is_zero(const char *memory, gsize bytes)
{
	return memory[0] == 0 && memcmp(memory, memory + 1, bytes - 1) == 0;
}

static char *
dirty_memory(gsize bytes)
{
	char *memory =
		mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	g_assert_true(memory != MAP_FAILED);
	memset(memory, 0xa5, bytes);
	return memory;
}

/* Every byte of the range and none beside it, whatever the number of threads does not divide. */
static void
test_all_of_it(void)
{
	static const guint threads[] = {0, 1, 2, 3, 7, 64};
	guint i;

	for (i = 0; i < G_N_ELEMENTS(threads); i++) {
		char *memory = dirty_memory(BYTES);
		gsize done = 0;
		RmZeroOptions options = {.threads = threads[i], .done_bytes = &done};

		g_assert_true(rm_zero_memory(memory + 4096, BYTES - 8192 - 64, &options));
		g_assert_true(is_zero(memory + 4096, BYTES - 8192 - 64));
		g_assert_cmpint((guchar)memory[4095], ==, 0xa5);
		g_assert_cmpint((guchar)memory[BYTES - 4096 - 64], ==, 0xa5);
		g_assert_cmpuint(done, ==, BYTES - 8192 - 64);
		munmap(memory, BYTES);
	}
}

static void
test_rate(void)
{
	char *memory = dirty_memory(BYTES);
	RmZeroOptions options = {.threads = 2, .rate_bytes_per_sec = 64 << 20};
	gint64 start = g_get_monotonic_time();

	g_assert_true(rm_zero_memory(memory, BYTES, &options));
	/* 16 MiB at 64 MiB/s. */
	g_assert_cmpint(g_get_monotonic_time() - start, >=, 240000);
	g_assert_true(is_zero(memory, BYTES));
	munmap(memory, BYTES);
}

static gpointer
cancel_soon(gpointer data)
{
	g_usleep(50000);
	g_atomic_int_set((gint *)data, 1);
	return NULL;
}

static void
test_cancel(void)
{
	char *memory = dirty_memory(BYTES);
	gint cancelled = 0;
	RmZeroOptions options = {
		.threads = 2, .rate_bytes_per_sec = 1 << 20, .cancelled = &cancelled};
	GThread *thread = g_thread_new("cancel", cancel_soon, &cancelled);
	gint64 start = g_get_monotonic_time();

	g_assert_false(rm_zero_memory(memory, BYTES, &options));
	g_assert_cmpint(g_get_monotonic_time() - start, <, 8000000); /* not the 16 s of the rate */
	g_thread_join(thread);
	munmap(memory, BYTES);
}

static void
test_file(void)
{
	g_autofree char *path = g_strdup("/tmp/rmd-zero-XXXXXX");
	g_autofree char *bytes = g_malloc(BYTES);
	int fd = g_mkstemp(path);
	RmZeroOptions options = {.threads = 2};
	g_autoptr(GError) error = NULL;

	memset(bytes, 0x5a, BYTES);
	g_assert_cmpint(write(fd, bytes, BYTES), ==, (gssize)BYTES);
	g_assert_true(rm_zero_file(fd, 4096, BYTES / 2, &options, &error));
	g_assert_no_error(error);
	g_assert_cmpint(pread(fd, bytes, BYTES, 0), ==, (gssize)BYTES);
	g_assert_cmpint(bytes[4095], ==, 0x5a);
	g_assert_true(is_zero(bytes + 4096, BYTES / 2));
	g_assert_cmpint(bytes[4096 + BYTES / 2], ==, 0x5a);
	g_assert_false(rm_zero_file(-1, 0, 4096, &options, &error));
	g_assert_error(error, RM_ERROR, RM_ERROR_FAILED);
	close(fd);
	g_unlink(path);
}

int
main(int argc, char **argv)
{
	g_test_init(&argc, &argv, NULL);
	g_test_add_func("/zero/all-of-it", test_all_of_it);
	g_test_add_func("/zero/rate", test_rate);
	g_test_add_func("/zero/cancel", test_cancel);
	g_test_add_func("/zero/file", test_file);
	return g_test_run();
}
