/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What one tenant may still do with the memory of another: mappings, fds and mremap after the
 * take-back. Needs 3 chunks on the temporary folder's file system, and touches a few pages of each.
 */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <glib/gstdio.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "rm-error.h"
#include "rm-store-file.h"

typedef struct {
	char *dir;
	RmTopology *topology;
	RmStoreConfig config;
	RmStore *store;
} Fixture;

static void
add_channel(RmTopology *topology, const char *name, guint dax, guint chunks)
{
	RmChannel *c = g_new0(RmChannel, 1);

	c->name = g_strdup(name);
	c->store = g_strdup("lab");
	c->dax = dax;
	c->size_chunks = chunks;
	g_assert_true(rm_topology_add(topology, c, NULL));
}

static void
set_up(Fixture *f, gconstpointer data)
{
	g_autoptr(GError) error = NULL;

	f->dir = g_dir_make_tmp("rmd-store-XXXXXX", NULL);
	f->topology = rm_topology_new();
	add_channel(f->topology, "c0", 0, 4);
	f->config.name = (char *)"lab";
	f->config.kind = (char *)"file";
	f->config.path = g_build_filename(f->dir, "store", NULL);
	f->store = rm_store_open(&f->config, f->topology, &error);
	g_assert_no_error(error);
}

static int
remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
	return remove(path);
}

static void
tear_down(Fixture *f, gconstpointer data)
{
	rm_store_free(f->store);
	rm_topology_free(f->topology);
	nftw(f->dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
	g_free(f->config.path);
	g_free(f->dir);
}

static int
grant(Fixture *f, guint chunk)
{
	g_autoptr(GError) error = NULL;
	guint64 offset = 1;
	int fd;

	rm_store_prepare(f->store, "c0", chunk, &error);
	g_assert_no_error(error);
	fd = rm_store_open_chunk(f->store, "c0", chunk, &offset, &error);
	g_assert_no_error(error);
	g_assert_cmpuint(offset, ==, 0);
	return fd;
}

static void
take_back(Fixture *f, guint chunk)
{
	g_autoptr(GError) error = NULL;

	rm_store_take_back(f->store, "c0", chunk, &error);
	g_assert_no_error(error);
	rm_store_scrub(f->store, "c0", chunk, &error);
	g_assert_no_error(error);
}

static char *
map(int fd)
{
	char *at = mmap(NULL, RM_CHUNK_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	g_assert_true(at != MAP_FAILED);
	return at;
}

/* The signal that reading *at ends a child with; 0 if none. */
static int
signal_of_read(const volatile char *at)
{
	pid_t pid = fork();
	int status;

	g_assert_cmpint(pid, >=, 0);
	if (pid == 0) {
		signal(SIGBUS, SIG_DFL);
		(void)*at;
		_exit(0);
	}
	g_assert_cmpint(waitpid(pid, &status, 0), ==, pid);
	return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

static void
test_fresh(Fixture *f, gconstpointer data)
{
	int fd = grant(f, 0);
	struct stat st;
	char *at = map(fd);
	g_autofree char *path = rm_store_file_path(f->store, "c0", 0);

	g_assert_true(g_str_has_suffix(path, "/store/c0/00000"));
	g_assert_cmpint(fstat(fd, &st), ==, 0);
	g_assert_cmpint(st.st_size, ==, RM_CHUNK_BYTES);
	/* All of it is there: no page of it can be missing later. */
	g_assert_cmpint(st.st_blocks * 512, >=, RM_CHUNK_BYTES);
	g_assert_cmpint(st.st_mode & 07777, ==, 0600);
	g_assert_cmpint(at[0], ==, 0);
	g_assert_cmpint(at[RM_CHUNK_BYTES - 1], ==, 0);
	munmap(at, RM_CHUNK_BYTES);
	close(fd);
}

static void
test_old_mapping(Fixture *f, gconstpointer data)
{
	int fd = grant(f, 0), next;
	char *at = map(fd), *theirs;
	char bytes[6];

	memcpy(at, "secret", 6);
	take_back(f, 0);
	g_assert_cmpint(signal_of_read(at), ==, SIGBUS);
	g_assert_cmpint(pread(fd, bytes, 6, 0), ==, 0);

	next = grant(f, 0);
	theirs = map(next);
	g_assert_cmpmem(theirs, 6, "\0\0\0\0\0\0", 6);
	memcpy(theirs, "theirs", 6);
	g_assert_cmpint(signal_of_read(at), ==, SIGBUS);
	/* Grown again by the one who kept it: his own zeros, never their bytes. */
	g_assert_cmpint(ftruncate(fd, RM_CHUNK_BYTES), ==, 0);
	g_assert_cmpmem(at, 6, "\0\0\0\0\0\0", 6);
	g_assert_cmpint(pread(fd, bytes, 6, 0), ==, 6);
	g_assert_cmpmem(bytes, 6, "\0\0\0\0\0\0", 6);
	memcpy(at, "poison", 6);
	g_assert_cmpmem(theirs, 6, "theirs", 6);
	munmap(at, RM_CHUNK_BYTES);
	munmap(theirs, RM_CHUNK_BYTES);
	close(fd);
	close(next);
}

static void
test_mremap(Fixture *f, gconstpointer data)
{
	int fd = grant(f, 0), neighbour = grant(f, 1);
	char *at = map(fd), *more;

	close(fd);
	more = mremap(at, RM_CHUNK_BYTES, 2 * RM_CHUNK_BYTES, MREMAP_MAYMOVE);
	g_assert_true(more != MAP_FAILED);
	g_assert_cmpint(signal_of_read(more), ==, 0);
	g_assert_cmpint(signal_of_read(more + RM_CHUNK_BYTES), ==, SIGBUS);
	munmap(more, 2 * RM_CHUNK_BYTES);
	close(neighbour);
}

static void
test_again(Fixture *f, gconstpointer data)
{
	g_autofree char *path = rm_store_file_path(f->store, "c0", 2);
	g_autofree char *temporary = g_strconcat(path, ".new", NULL);
	g_autoptr(GError) error = NULL;
	guint64 offset;
	int fd;

	/* Every step may come twice, and after a crash in the middle of making the file. */
	g_assert_true(g_file_set_contents(temporary, "half", 4, NULL));
	fd = grant(f, 2);
	close(fd);
	g_assert_false(g_file_test(temporary, G_FILE_TEST_EXISTS));
	fd = rm_store_open_chunk(f->store, "c0", 2, &offset, &error);
	g_assert_no_error(error);
	close(fd);
	take_back(f, 2);
	take_back(f, 2);
	g_assert_false(g_file_test(path, G_FILE_TEST_EXISTS));
	fd = rm_store_open_chunk(f->store, "c0", 2, &offset, &error);
	g_assert_cmpint(fd, ==, -1);
	g_assert_error(error, RM_ERROR, RM_ERROR_FAILED);
	g_clear_error(&error);
	/* A file that is there in spite of the take-back is not clean. */
	g_assert_true(g_file_set_contents(path, "x", 1, NULL));
	g_assert_false(rm_store_scrub(f->store, "c0", 2, &error));
	g_assert_error(error, RM_ERROR, RM_ERROR_FAILED);
	g_clear_error(&error);
	/* A link is not followed. */
	g_unlink(path);
	g_assert_cmpint(symlink("/dev/null", path), ==, 0);
	g_assert_false(rm_store_take_back(f->store, "c0", 2, &error));
	g_assert_error(error, RM_ERROR, RM_ERROR_FAILED);
}

static void
test_in_use(Fixture *f, gconstpointer data)
{
	gboolean in_use = TRUE;
	char *at;
	int fd;

	g_assert_true(rm_store_in_use(f->store, "c0", 0, &in_use, NULL));
	g_assert_false(in_use);
	fd = grant(f, 0);
	at = map(fd);
	g_assert_true(rm_store_in_use(f->store, "c0", 0, &in_use, NULL));
	g_assert_true(in_use);
	close(fd); /* the mapping alone */
	g_assert_true(rm_store_in_use(f->store, "c0", 0, &in_use, NULL));
	g_assert_true(in_use);
	munmap(at, RM_CHUNK_BYTES);
	g_assert_true(rm_store_in_use(f->store, "c0", 0, &in_use, NULL));
	g_assert_false(in_use);
}

static void
test_room(Fixture *f, gconstpointer data)
{
	g_autoptr(GPtrArray) stores = g_ptr_array_new();
	g_autoptr(GError) error = NULL;

	g_ptr_array_add(stores, f->store);
	g_assert_true(rm_store_check_room(stores, f->topology, &error));
	g_assert_no_error(error);
	add_channel(f->topology, "huge", 1, G_MAXINT32); /* 256 PiB */
	g_assert_false(rm_store_check_room(stores, f->topology, &error));
	g_assert_error(error, RM_ERROR, RM_ERROR_NO_SPACE);
	g_assert_nonnull(strstr(error->message, "channel huge: it wants 288230376017494016 bytes"));
	g_assert_nonnull(strstr(error->message, "available in "));
}

/* A full file system is an error of prepare, and leaves nothing. RLIMIT_FSIZE stands in for it. */
static void
test_full(Fixture *f, gconstpointer data)
{
	g_autofree char *path = rm_store_file_path(f->store, "c0", 3);
	g_autofree char *temporary = g_strconcat(path, ".new", NULL);
	pid_t pid = fork();
	int status;

	if (pid == 0) {
		struct rlimit limit = {1 << 20, 1 << 20};
		GError *error = NULL;

		signal(SIGXFSZ, SIG_IGN);
		setrlimit(RLIMIT_FSIZE, &limit);
		if (rm_store_prepare(f->store, "c0", 3, &error))
			_exit(1);
		_exit(strstr(error->message, "allocate 134217728 bytes") ? 0 : 2);
	}
	g_assert_cmpint(waitpid(pid, &status, 0), ==, pid);
	g_assert_cmpint(status, ==, 0);
	g_assert_false(g_file_test(path, G_FILE_TEST_EXISTS));
	g_assert_false(g_file_test(temporary, G_FILE_TEST_EXISTS));
}

int
main(int argc, char **argv)
{
	g_test_init(&argc, &argv, NULL);
#define ADD(name, func) g_test_add("/store/" name, Fixture, NULL, set_up, func, tear_down)
	ADD("fresh", test_fresh);
	ADD("old-mapping", test_old_mapping);
	ADD("mremap", test_mremap);
	ADD("again", test_again);
	ADD("in-use", test_in_use);
	ADD("room", test_room);
	ADD("full", test_full);
	return g_test_run();
}
