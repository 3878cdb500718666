/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "rm-store-file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "rm-error.h"
#include "rm-paths.h"

typedef struct {
	int fd;
} AutoFd;

static void
auto_fd_close(AutoFd *a)
{
	if (a->fd >= 0)
		close(a->fd);
	a->fd = -1;
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(AutoFd, auto_fd_close)

char *
rm_store_file_path(const RmStore *store, const char *channel, guint chunk)
{
	return g_strdup_printf("%s/%s/%05u", store->path, channel, chunk);
}

/*
 * Where a file lies while it is made: never at its final name before it is complete, so that a
 * chunk's name stands for a whole chunk or for nothing.
 */
static char *
new_path(const char *path)
{
	return g_strconcat(path, ".new", NULL);
}

static gboolean
fail(GError **error, const char *verb, const char *path, int saved_errno)
{
	RmError code = saved_errno == ENOSPC || saved_errno == EDQUOT ? RM_ERROR_NO_SPACE
								      : RM_ERROR_FAILED;

	rm_error_set(error, code, "cannot %s %s: %s", verb, path, g_strerror(saved_errno));
	return FALSE;
}

/*
 * Takes away the memory of the file at @path and its name. The fd is opened without following
 * links and must be a plain file: the folder is root's, but a wrong mount is soon made.
 */
static gboolean
drop(const char *path, GError **error)
{
	g_auto(AutoFd) file = {open(path, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC)};
	struct stat st;

	if (file.fd < 0)
		return errno == ENOENT ? TRUE : fail(error, "open", path, errno);
	if (fstat(file.fd, &st) < 0)
		return fail(error, "stat", path, errno);
	if (!S_ISREG(st.st_mode))
		return fail(error, "take back", path, EINVAL);
	if (ftruncate(file.fd, 0) < 0)
		return fail(error, "truncate", path, errno);
	if (unlink(path) < 0 && errno != ENOENT)
		return fail(error, "remove", path, errno);
	return TRUE;
}

static int
do_fallocate(int fd, guint64 bytes)
{
	int rc;

	do
		rc = fallocate(fd, 0, 0, (off_t)bytes);
	while (rc < 0 && errno == EINTR);
	/*
	 * Where the file system cannot promise space, its absence would be a SIGBUS in QEMU; such a
	 * file system is no store.
	 */
	return rc;
}

static gboolean
make(const char *path, const char *temporary, GError **error)
{
	g_auto(AutoFd) file = {open(temporary, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600)};

	if (file.fd < 0)
		return fail(error, "make", temporary, errno);
	if (do_fallocate(file.fd, RM_CHUNK_BYTES) < 0)
		return fail(error, "allocate 134217728 bytes for", path, errno);
	if (rename(temporary, path) < 0)
		return fail(error, "rename to", path, errno);
	return TRUE;
}

static gboolean
file_prepare(RmStore *store, const char *channel, guint chunk, GError **error)
{
	g_autofree char *path = rm_store_file_path(store, channel, chunk);
	g_autofree char *temporary = new_path(path);

	if (!drop(path, error) || !drop(temporary, error))
		return FALSE;
	if (make(path, temporary, error))
		return TRUE;
	drop(temporary, NULL);
	return FALSE;
}

static int
file_open(RmStore *store, const char *channel, guint chunk, guint64 *ret_offset, GError **error)
{
	g_autofree char *path = rm_store_file_path(store, channel, chunk);
	g_auto(AutoFd) file = {open(path, O_RDWR | O_NOFOLLOW | O_CLOEXEC)};
	struct stat st;
	int fd;

	if (file.fd < 0) {
		fail(error, "open", path, errno);
		return -1;
	}
	if (fstat(file.fd, &st) < 0) {
		fail(error, "stat", path, errno);
		return -1;
	}
	if (!S_ISREG(st.st_mode) || (guint64)st.st_size < RM_CHUNK_BYTES) {
		rm_error_set(error, RM_ERROR_FAILED,
			     "%s has %" G_GINT64_FORMAT " bytes, a chunk has %" G_GUINT64_FORMAT,
			     path, (gint64)st.st_size, (guint64)RM_CHUNK_BYTES);
		return -1;
	}
	*ret_offset = 0;
	fd = file.fd;
	file.fd = -1;
	return fd;
}

static gboolean
file_take_back(RmStore *store, const char *channel, guint chunk, GError **error)
{
	g_autofree char *path = rm_store_file_path(store, channel, chunk);
	g_autofree char *temporary = new_path(path);

	return drop(path, error) && drop(temporary, error);
}

/*
 * The next owner gets a new inode, whose pages the kernel zeroes: there is nothing to overwrite,
 * but a file that is there in spite of the take-back must not be called clean.
 */
static gboolean
file_scrub(RmStore *store, const char *channel, guint chunk, GError **error)
{
	g_autofree char *path = rm_store_file_path(store, channel, chunk);
	struct stat st;

	if (lstat(path, &st) < 0)
		return errno == ENOENT ? TRUE : fail(error, "stat", path, errno);
	rm_error_set(error, RM_ERROR_FAILED, "%s is there although it was taken back", path);
	return FALSE;
}

/*
 * A write lease is refused while any other open file description of the inode is there, and a
 * mapping keeps its own: that is exactly the question.
 */
static gboolean
file_in_use(RmStore *store, const char *channel, guint chunk, gboolean *ret_in_use, GError **error)
{
	g_autofree char *path = rm_store_file_path(store, channel, chunk);
	g_auto(AutoFd) file = {open(path, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC)};

	if (file.fd < 0) {
		if (errno != ENOENT)
			return fail(error, "open", path, errno);
		*ret_in_use = FALSE;
		return TRUE;
	}
	if (fcntl(file.fd, F_SETLEASE, F_WRLCK) == 0) {
		fcntl(file.fd, F_SETLEASE, F_UNLCK);
		*ret_in_use = FALSE;
	} else {
		*ret_in_use = TRUE;
	}
	return TRUE;
}

/* "NNNNN (deleted)" was taken away: that is no chunk any more. */
static gboolean
file_parse_path(RmStore *store, const char *channel, const char *path, guint *ret_chunk)
{
	g_autofree char *folder = g_strdup_printf("%s/%s/", store->path, channel);
	guint64 chunk;

	if (!g_str_has_prefix(path, folder) ||
	    !g_ascii_string_to_unsigned(path + strlen(folder), 10, 0, G_MAXINT32, &chunk, NULL))
		return FALSE;
	*ret_chunk = (guint)chunk;
	return TRUE;
}

/* What the chunk files of @channel have allocated: room that counts as available to it. */
static gboolean
allocated_bytes(RmStore *store, const char *channel, guint64 *bytes, GError **error)
{
	g_autofree char *folder = g_build_filename(store->path, channel, NULL);
	g_autoptr(GDir) dir = g_dir_open(folder, 0, NULL);
	const char *name;

	while (dir && (name = g_dir_read_name(dir))) {
		g_autofree char *path = g_build_filename(folder, name, NULL);
		struct stat st;

		if (lstat(path, &st) < 0) {
			if (errno == ENOENT)
				continue;
			return fail(error, "stat", path, errno);
		}
		*bytes += (guint64)st.st_blocks * 512;
	}
	return TRUE;
}

static gboolean
file_room(RmStore *store, const RmTopology *topology, guint64 *ret_device, guint64 *ret_left_bytes,
	  guint64 *ret_own_bytes, GError **error)
{
	struct statvfs vfs;
	struct stat st;
	guint64 own_bytes = 0;
	guint i;

	if (stat(store->path, &st) < 0 || statvfs(store->path, &vfs) < 0)
		return fail(error, "stat", store->path, errno);
	for (i = 0; i < rm_topology_n_channels(topology); i++) {
		const RmChannel *channel = rm_topology_channel(topology, i);

		if (g_str_equal(channel->store, store->name) &&
		    !allocated_bytes(store, channel->name, &own_bytes, error))
			return FALSE;
	}
	*ret_device = st.st_dev;
	*ret_own_bytes = own_bytes;
	/* f_blocks is 0 on a tmpfs without a limit. */
	*ret_left_bytes = vfs.f_blocks ? (guint64)vfs.f_bavail * vfs.f_frsize : G_MAXUINT64;
	return TRUE;
}

static void
file_free(RmStore *store)
{
	g_free(store->name);
	g_free(store->path);
	g_free(store);
}

static const RmStoreClass file_class = {
	.prepare = file_prepare,
	.open = file_open,
	.take_back = file_take_back,
	.scrub = file_scrub,
	.in_use = file_in_use,
	.parse_path = file_parse_path,
	.room = file_room,
	.free = file_free,
};

RmStore *
rm_store_file_open(const RmStoreConfig *config, const RmTopology *topology, GError **error)
{
	g_autoptr(RmStore) store = g_new0(RmStore, 1);
	guint i;

	store->klass = &file_class;
	store->name = g_strdup(config->name);
	store->path = g_strdup(config->path);
	if (!rm_paths_make_dir(store->path, 0700, error))
		return NULL;
	for (i = 0; i < rm_topology_n_channels(topology); i++) {
		const RmChannel *channel = rm_topology_channel(topology, i);
		g_autofree char *dir = NULL;

		if (!g_str_equal(channel->store, store->name))
			continue;
		dir = g_build_filename(store->path, channel->name, NULL);
		if (!rm_paths_make_dir(dir, 0700, error))
			return NULL;
	}
	return g_steal_pointer(&store);
}
