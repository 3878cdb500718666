/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "rm-config.h"

#include <pwd.h>
#include <string.h>

#include "rm-error.h"

#define DEFAULT_RUNTIME_DIR "/run/rmd"
#define DEFAULT_EMULATOR    "/usr/libexec/ramryder/qemu-system-x86_64"
/* Debian's libvirt runs QEMU as it. */
#define DEFAULT_QEMU_USER "libvirt-qemu"

static const char *const daemon_keys[] = {"runtime-dir", "state-dir",     "claim-timeout",
					  "job-timeout", "scrub-threads", "scrub-rate",
					  NULL};
static const char *const qemu_keys[] = {"emulator", "user", NULL};
static const char *const store_keys[] = {"kind", "path", NULL};
static const char *const channel_keys[] = {"store",   "tier", "socket",         "dax",
					   "channel", "size", "read-bandwidth", "write-bandwidth",
					   "latency", NULL};

/* What the helpers below need to say where a mistake is. */
typedef struct {
	GKeyFile *file;
	const char *path;
	const char *group;
} Section;

static gboolean
section_check_keys(const Section *s, const char *const *known, GError **error)
{
	g_auto(GStrv) keys = g_key_file_get_keys(s->file, s->group, NULL, NULL);
	g_autofree char *list = NULL;
	guint i;

	for (i = 0; keys && keys[i]; i++) {
		if (g_strv_contains(known, keys[i]))
			continue;
		list = g_strjoinv(", ", (char **)known);
		rm_error_set(error, RM_ERROR_INVALID, "%s: [%s] has an unknown key %s; known: %s",
			     s->path, s->group, keys[i], list);
		return FALSE;
	}
	return TRUE;
}

/* The value of @key; @fallback if it is absent, an error if there is no fallback either. */
static char *
section_get(const Section *s, const char *key, const char *fallback, GError **error)
{
	g_autoptr(GError) local = NULL;
	g_autofree char *value = NULL;

	if (!g_key_file_has_key(s->file, s->group, key, NULL)) {
		if (fallback)
			return g_strdup(fallback);
		rm_error_set(error, RM_ERROR_INVALID, "%s: [%s] needs the key %s", s->path,
			     s->group, key);
		return NULL;
	}
	value = g_key_file_get_string(s->file, s->group, key, &local);
	if (!value) {
		rm_error_set(error, RM_ERROR_INVALID, "%s: [%s] %s: %s", s->path, s->group, key,
			     local->message);
		return NULL;
	}
	g_strstrip(value);
	if (!*value) {
		rm_error_set(error, RM_ERROR_INVALID, "%s: [%s] %s is empty", s->path, s->group,
			     key);
		return NULL;
	}
	return g_steal_pointer(&value);
}

static gboolean
section_get_uint(const Section *s, const char *key, const char *fallback, guint64 min, guint64 max,
		 guint *ret_value, GError **error)
{
	g_autofree char *text = section_get(s, key, fallback, error);
	guint64 value;

	if (!text)
		return FALSE;
	if (!g_ascii_string_to_unsigned(text, 10, min, max, &value, NULL)) {
		rm_error_set(error, RM_ERROR_INVALID,
			     "%s: [%s] %s=%s is not a whole number from %" G_GUINT64_FORMAT
			     " to %" G_GUINT64_FORMAT,
			     s->path, s->group, key, text, min, max);
		return FALSE;
	}
	*ret_value = (guint)value;
	return TRUE;
}

static char *
section_get_path(const Section *s, const char *key, const char *fallback, GError **error)
{
	g_autofree char *value = section_get(s, key, fallback, error);

	if (!value)
		return NULL;
	if (!g_path_is_absolute(value)) {
		rm_error_set(error, RM_ERROR_INVALID, "%s: [%s] %s=%s is not an absolute path",
			     s->path, s->group, key, value);
		return NULL;
	}
	return g_canonicalize_filename(value, "/");
}

static void
store_config_free(RmStoreConfig *store)
{
	g_free(store->name);
	g_free(store->kind);
	g_free(store->path);
	g_free(store);
}

static const RmStoreConfig *
find_store(const RmConfig *config, const char *name)
{
	guint i;

	for (i = 0; i < config->stores->len; i++) {
		const RmStoreConfig *store = g_ptr_array_index(config->stores, i);

		if (g_str_equal(store->name, name))
			return store;
	}
	return NULL;
}

static gboolean
load_store(RmConfig *config, const Section *s, const char *name, GError **error)
{
	RmStoreConfig *store;
	g_autofree char *kind = NULL;
	g_autofree char *path = NULL;
	guint i;

	if (!section_check_keys(s, store_keys, error))
		return FALSE;
	if (!rm_channel_name_valid(name)) {
		rm_error_set(error, RM_ERROR_INVALID,
			     "%s: [%s]: a store's name is a letter, then letters, digits, '-', "
			     "'_', '.'",
			     s->path, s->group);
		return FALSE;
	}
	kind = section_get(s, "kind", "file", error);
	if (!kind)
		return FALSE;
	if (!g_str_equal(kind, "file")) {
		rm_error_set(error, RM_ERROR_INVALID, "%s: [%s] kind=%s is unknown; known: file",
			     s->path, s->group, kind);
		return FALSE;
	}
	path = section_get_path(s, "path", NULL, error);
	if (!path)
		return FALSE;
	for (i = 0; i < config->stores->len; i++) {
		const RmStoreConfig *other = g_ptr_array_index(config->stores, i);

		if (!g_str_equal(other->path, path))
			continue;
		rm_error_set(error, RM_ERROR_INVALID, "%s: [%s] path=%s is that of [store %s]",
			     s->path, s->group, path, other->name);
		return FALSE;
	}
	store = g_new0(RmStoreConfig, 1);
	store->name = g_strdup(name);
	store->kind = g_steal_pointer(&kind);
	store->path = g_steal_pointer(&path);
	g_ptr_array_add(config->stores, store);
	return TRUE;
}

static gboolean
load_channel_size(RmChannel *channel, const Section *s, GError **error)
{
	g_autoptr(GError) local = NULL;
	g_autofree char *what = NULL;
	g_autofree char *text = section_get(s, "size", NULL, error);
	guint64 bytes;

	if (!text)
		return FALSE;
	if (!rm_size_parse(text, &bytes, &local)) {
		rm_error_set(error, RM_ERROR_INVALID, "%s: [%s] size: %s", s->path, s->group,
			     local->message);
		return FALSE;
	}
	what = g_strdup_printf("%s: [%s] size=%s", s->path, s->group, text);
	if (!rm_size_check_chunks(what, bytes, error))
		return FALSE;
	if (!bytes || bytes / RM_CHUNK_BYTES > G_MAXINT32) {
		rm_error_set(error, RM_ERROR_INVALID,
			     "%s: [%s] size=%s: a channel has from 1 to %d chunks of 128 MiB",
			     s->path, s->group, text, G_MAXINT32);
		return FALSE;
	}
	channel->size_chunks = (guint)(bytes / RM_CHUNK_BYTES);
	return TRUE;
}

static gboolean
load_channel(RmConfig *config, const Section *s, const char *name, GError **error)
{
	g_autoptr(RmChannel) channel = g_new0(RmChannel, 1);
	g_autoptr(GError) local = NULL;
	g_autofree char *tier = NULL;

	if (!section_check_keys(s, channel_keys, error))
		return FALSE;
	if (!rm_channel_name_valid(name)) {
		rm_error_set(error, RM_ERROR_INVALID,
			     "%s: [%s]: a channel's name is a letter, then letters, digits, '-', "
			     "'_', '.', at most %d in all",
			     s->path, s->group, RM_CHANNEL_NAME_MAX);
		return FALSE;
	}
	channel->name = g_strdup(name);
	channel->store = section_get(s, "store", NULL, error);
	if (!channel->store)
		return FALSE;
	if (!find_store(config, channel->store)) {
		rm_error_set(error, RM_ERROR_INVALID, "%s: [%s] store=%s: there is no [store %s]",
			     s->path, s->group, channel->store, channel->store);
		return FALSE;
	}
	tier = section_get(s, "tier", NULL, error);
	if (!tier)
		return FALSE;
	if (!rm_tier_parse(tier, &channel->tier)) {
		rm_error_set(error, RM_ERROR_INVALID,
			     "%s: [%s] tier=%s is unknown; known: dimm, cxl", s->path, s->group,
			     tier);
		return FALSE;
	}
	if (!section_get_uint(s, "socket", "0", 0, RM_SOCKET_MAX, &channel->socket, error) ||
	    !section_get_uint(s, "dax", NULL, 0, G_MAXUINT32, &channel->dax, error) ||
	    !section_get_uint(s, "channel", "0", 0, G_MAXUINT32, &channel->channel, error) ||
	    !load_channel_size(channel, s, error) ||
	    !section_get_uint(s, "read-bandwidth", NULL, 1, G_MAXUINT32, &channel->read_mbps,
			      error) ||
	    !section_get_uint(s, "write-bandwidth", NULL, 1, G_MAXUINT32, &channel->write_mbps,
			      error) ||
	    !section_get_uint(s, "latency", NULL, 1, 65535, &channel->latency_ns, error))
		return FALSE;
	if (!rm_topology_add(config->topology, g_steal_pointer(&channel), &local)) {
		rm_error_set(error, RM_ERROR_INVALID, "%s: %s", s->path, local->message);
		return FALSE;
	}
	return TRUE;
}

/* A size a second; 0 is no limit. */
static gboolean
load_scrub_rate(RmConfig *config, const Section *s, GError **error)
{
	g_autofree char *text = section_get(s, "scrub-rate", "0", error);
	g_autoptr(GError) local = NULL;

	if (!text)
		return FALSE;
	if (g_str_equal(text, "0"))
		return TRUE;
	if (rm_size_parse(text, &config->scrub_bytes_per_sec, &local))
		return TRUE;
	rm_error_set(error, RM_ERROR_INVALID,
		     "%s: [%s] scrub-rate=%s: %s; it is a size a second (4G), or 0 for no limit",
		     s->path, s->group, text, local->message);
	return FALSE;
}

static gboolean
load_daemon(RmConfig *config, const Section *s, GError **error)
{
	if (!section_check_keys(s, daemon_keys, error))
		return FALSE;
	config->runtime_dir = section_get_path(s, "runtime-dir", DEFAULT_RUNTIME_DIR, error);
	if (!config->runtime_dir)
		return FALSE;
	config->state_dir = section_get_path(s, "state-dir", "/var/lib/rmd", error);
	if (!config->state_dir)
		return FALSE;
	return section_get_uint(s, "claim-timeout", "300", 1, 86400, &config->claim_timeout_sec,
				error) &&
	       section_get_uint(s, "job-timeout", "600", 1, 86400, &config->job_timeout_sec,
				error) &&
	       section_get_uint(s, "scrub-threads", "2", 1, 64, &config->scrub_threads, error) &&
	       load_scrub_rate(config, s, error);
}

static gboolean
load_qemu(RmConfig *config, const Section *s, GError **error)
{
	if (!section_check_keys(s, qemu_keys, error))
		return FALSE;
	config->emulator = section_get_path(s, "emulator", DEFAULT_EMULATOR, error);
	if (!config->emulator)
		return FALSE;
	if (!g_key_file_has_key(s->file, s->group, "user", NULL)) {
		if (getpwnam(DEFAULT_QEMU_USER))
			config->qemu_user = g_strdup(DEFAULT_QEMU_USER);
		return TRUE;
	}
	config->qemu_user = section_get(s, "user", NULL, error);
	if (config->qemu_user && !getpwnam(config->qemu_user)) {
		rm_error_set(error, RM_ERROR_INVALID, "%s: [%s] user=%s: there is no such user",
			     s->path, s->group, config->qemu_user);
		return FALSE;
	}
	return config->qemu_user != NULL;
}

/* "store NAME" -> NAME, NULL if @group is of another kind. */
static const char *
group_name(const char *group, const char *kind)
{
	gsize len = strlen(kind);

	if (strncmp(group, kind, len) != 0 || group[len] != ' ')
		return NULL;
	for (group += len; *group == ' '; group++)
		;
	return group;
}

static gboolean
check_groups(char **groups, const char *path, GError **error)
{
	guint i;

	for (i = 0; groups[i]; i++) {
		if (g_str_equal(groups[i], "daemon") || g_str_equal(groups[i], "qemu") ||
		    group_name(groups[i], "store") || group_name(groups[i], "channel"))
			continue;
		rm_error_set(error, RM_ERROR_INVALID,
			     "%s: unknown group [%s]; known: [daemon], [qemu], [store NAME], "
			     "[channel NAME]",
			     path, groups[i]);
		return FALSE;
	}
	return TRUE;
}

/*
 * GKeyFile merges groups of one name, which would make of a channel that is written twice a silent
 * mixture; so they are looked for in the text.
 */
static gboolean
check_duplicates(const char *text, const char *path, GError **error)
{
	g_auto(GStrv) lines = g_strsplit(text, "\n", -1);
	g_autoptr(GHashTable) groups = g_hash_table_new(g_str_hash, g_str_equal);
	g_autoptr(GHashTable) keys = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
	const char *group = "";
	guint i;

	for (i = 0; lines[i]; i++) {
		char *line = g_strstrip(lines[i]);
		char *equals = strchr(line, '=');

		if (line[0] == '#' || !line[0])
			continue;
		if (line[0] == '[') {
			group = line;
			if (!g_hash_table_add(groups, line)) {
				rm_error_set(error, RM_ERROR_INVALID,
					     "%s: line %u: %s is there twice", path, i + 1, line);
				return FALSE;
			}
		} else if (equals) {
			g_autofree char *key = g_strndup(line, (gsize)(equals - line));

			g_strchomp(key);
			if (!g_hash_table_add(keys, g_strconcat(group, key, NULL))) {
				rm_error_set(error, RM_ERROR_INVALID,
					     "%s: line %u: %s has the key %s twice", path, i + 1,
					     group, key);
				return FALSE;
			}
		}
	}
	return TRUE;
}

static GKeyFile *
load_key_file(const char *path, GError **error)
{
	g_autoptr(GKeyFile) file = g_key_file_new();
	g_autoptr(GError) local = NULL;
	g_autofree char *text = NULL;
	gsize len;

	if (!g_file_get_contents(path, &text, &len, &local)) {
		rm_error_set(error, RM_ERROR_INVALID, "cannot read the configuration: %s",
			     local->message);
		return NULL;
	}
	if (!g_key_file_load_from_data(file, text, len, G_KEY_FILE_NONE, &local)) {
		rm_error_set(error, RM_ERROR_INVALID, "%s: %s", path, local->message);
		return NULL;
	}
	if (!check_duplicates(text, path, error))
		return NULL;
	return g_steal_pointer(&file);
}

const char *
rm_config_path(const char *option)
{
	const char *env = g_getenv(RM_CONFIG_ENV);

	if (option)
		return option;
	return env && *env ? env : RM_CONFIG_DEFAULT_PATH;
}

RmConfig *
rm_config_load(const char *path, GError **error)
{
	g_autoptr(RmConfig) config = g_new0(RmConfig, 1);
	g_autoptr(GKeyFile) file = NULL;
	g_auto(GStrv) groups = NULL;
	Section section = {.path = path};
	guint i;

	config->path = g_strdup(path);
	config->stores = g_ptr_array_new_with_free_func((GDestroyNotify)store_config_free);
	config->topology = rm_topology_new();
	file = load_key_file(path, error);
	if (!file)
		return NULL;
	section.file = file;
	groups = g_key_file_get_groups(file, NULL);
	if (!check_groups(groups, path, error))
		return NULL;
	section.group = "daemon";
	if (!load_daemon(config, &section, error))
		return NULL;
	section.group = "qemu";
	if (!load_qemu(config, &section, error))
		return NULL;
	for (i = 0; groups[i]; i++) {
		const char *name = group_name(groups[i], "store");

		section.group = groups[i];
		if (name && !load_store(config, &section, name, error))
			return NULL;
	}
	/* Only now: a channel may stand before its store. */
	for (i = 0; groups[i]; i++) {
		const char *name = group_name(groups[i], "channel");

		section.group = groups[i];
		if (name && !load_channel(config, &section, name, error))
			return NULL;
	}
	if (!rm_topology_n_channels(config->topology)) {
		rm_error_set(error, RM_ERROR_INVALID,
			     "%s: there is no channel; at least one [channel NAME] is needed",
			     path);
		return NULL;
	}
	return g_steal_pointer(&config);
}

char *
rm_config_load_runtime_dir(const char *path, GError **error)
{
	g_autoptr(GKeyFile) file = NULL;
	Section section = {.path = path, .group = "daemon"};

	if (!g_file_test(path, G_FILE_TEST_EXISTS))
		return g_strdup(DEFAULT_RUNTIME_DIR);
	file = load_key_file(path, error);
	if (!file)
		return NULL;
	section.file = file;
	return section_get_path(&section, "runtime-dir", DEFAULT_RUNTIME_DIR, error);
}

void
rm_config_free(RmConfig *config)
{
	if (!config)
		return;
	g_free(config->path);
	g_free(config->runtime_dir);
	g_free(config->state_dir);
	g_free(config->emulator);
	g_free(config->qemu_user);
	if (config->stores)
		g_ptr_array_unref(config->stores);
	rm_topology_free(config->topology);
	g_free(config);
}
