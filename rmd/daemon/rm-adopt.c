/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "rm-adopt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "rm-error.h"
#include "rm-paths.h"
#include "rm-process.h"
#include "rm-reconcile.h"

/* Where libvirt keeps the XML of what runs. Nothing depends on it: it only knows min and max. */
#define LIBVIRT_STATE_DIR "/run/libvirt/qemu"

/* A QEMU that was found. */
typedef struct {
	RmVmRow *row;
	GArray *channels; /* of RmVmChannel */
	GArray *chunks;   /* of RmChunk: channel and number */
	RmProcess *process;
} Stranger;

static void
stranger_free(Stranger *s)
{
	rm_vm_row_free(s->row);
	g_clear_pointer(&s->channels, g_array_unref);
	g_clear_pointer(&s->chunks, g_array_unref);
	g_clear_pointer(&s->process, rm_process_free);
	g_free(s);
}
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Stranger, stranger_free)

/* ---- QEMU's option syntax: "kind,key=value,key=value", a comma in a value is doubled ---- */

static char *
option_value(const char *text, const char *key)
{
	gsize n = strlen(key);

	while (text && *text) {
		g_autoptr(GString) part = g_string_new(NULL);

		for (; *text; text++) {
			if (text[0] == ',' && text[1] != ',')
				break;
			text += text[0] == ',';
			g_string_append_c(part, *text);
		}
		text += *text == ',';
		if (strncmp(part->str, key, n) == 0 && part->str[n] == '=')
			return g_strdup(part->str + n + 1);
	}
	return NULL;
}

static gboolean
option_uint(const char *text, const char *key, guint *ret_value)
{
	g_autofree char *value = option_value(text, key);
	guint64 number;

	if (!value || !g_ascii_string_to_unsigned(value, 10, 0, G_MAXINT32, &number, NULL))
		return FALSE;
	*ret_value = (guint)number;
	return TRUE;
}

static gboolean
option_chunks(const char *text, const char *key, guint *ret_chunks)
{
	g_autofree char *value = option_value(text, key);
	guint64 bytes;

	if (!value || !rm_size_parse(value, &bytes, NULL) || bytes % RM_CHUNK_BYTES ||
	    bytes / RM_CHUNK_BYTES > G_MAXINT32)
		return FALSE;
	*ret_chunks = (guint)(bytes / RM_CHUNK_BYTES);
	return TRUE;
}

/* ---- a command line ---- */

static RmVmChannel *
find_channel(GArray *channels, guint channel)
{
	RmVmChannel fresh = {.channel = channel, .cnode = G_MAXUINT};
	guint i;

	for (i = 0; i < channels->len; i++) {
		RmVmChannel *c = &g_array_index(channels, RmVmChannel, i);

		if (c->channel == channel)
			return c;
	}
	g_array_append_val(channels, fresh);
	return &g_array_index(channels, RmVmChannel, channels->len - 1);
}

static void
read_backend(const RmTopology *topology, Stranger *s, const char *value)
{
	g_autofree char *name = option_value(value, "channel");
	g_autofree char *base = option_value(value, "base");
	guint channel, size;

	if (!name || !rm_topology_find(topology, name, &channel) ||
	    !option_chunks(value, "size", &size))
		return;
	if (g_strcmp0(base, "on") == 0)
		find_channel(s->channels, channel)->base_chunks = size;
	else
		find_channel(s->channels, channel)->window_chunks = size;
}

static void
read_numa(const RmTopology *topology, Stranger *s, const char *value)
{
	guint node, snode, dax, number, i;

	if (!option_uint(value, "node-id", &node) || !option_uint(value, "snode", &snode) ||
	    !option_uint(value, "dax", &dax) || !option_uint(value, "channel", &number))
		return;
	for (i = 0; i < rm_topology_n_channels(topology); i++) {
		const RmChannel *channel = rm_topology_channel(topology, i);
		RmVmChannel *c;

		if (channel->dax != dax || channel->channel != number)
			continue;
		c = find_channel(s->channels, i);
		c->cnode = node;
		c->snode = snode;
	}
}

static void
read_option(RmDaemon *daemon, Stranger *s, const char *option, const char *value)
{
	const RmTopology *topology = daemon->config->topology;

	if (g_str_equal(option, "-uuid")) {
		g_free(s->row->uuid);
		s->row->uuid = g_ascii_strdown(value, -1);
	} else if (g_str_equal(option, "-name")) {
		char *guest = option_value(value, "guest");

		g_free(s->row->name);
		s->row->name = guest ? guest : g_strdup(value);
	} else if (g_str_equal(option, "-smp")) {
		s->row->vcpus = MAX(1, (guint)atoi(value));
	} else if (g_str_equal(option, "-machine") && !strchr(value, '=')) {
		g_free(s->row->machine);
		s->row->machine = g_strdup(value);
	} else if (g_str_equal(option, "-machine") && !g_str_has_prefix(value, "hmat=")) {
		g_auto(GStrv) parts = g_strsplit(value, ",", 2);

		g_free(s->row->machine);
		s->row->machine = g_strdup(parts[0]);
	} else if (g_str_equal(option, "-object") &&
		   g_str_has_prefix(value, "memory-backend-channel,")) {
		read_backend(topology, s, value);
	} else if (g_str_equal(option, "-numa") && g_str_has_prefix(value, "channel,")) {
		read_numa(topology, s, value);
	}
}

/* TRUE: it is one of ours, by the socket that it was told to use. */
static gboolean
read_command_line(RmDaemon *daemon, Stranger *s, gint pid)
{
	g_autofree char *path = g_strdup_printf("/proc/%d/cmdline", pid);
	g_autofree char *text = NULL;
	g_autofree char *wanted = NULL;
	gboolean ours = FALSE;
	const char *at;
	gsize len;

	if (!g_file_get_contents(path, &text, &len, NULL) || !len)
		return FALSE;
	for (at = text; at < text + len; at += strlen(at) + 1) {
		const char *value = at + strlen(at) + 1;

		if (at[0] == '-' && value < text + len)
			read_option(daemon, s, at, value);
	}
	if (!s->row->uuid || !g_uuid_string_is_valid(s->row->uuid))
		return FALSE;
	wanted = rm_paths_vm_socket(daemon->config->runtime_dir, s->row->uuid);
	for (at = text; at < text + len; at += strlen(at) + 1) {
		g_autofree char *socket = NULL;

		if (!g_str_has_prefix(at, "channel-manager,"))
			continue;
		socket = option_value(at, "path");
		ours |= g_strcmp0(socket, wanted) == 0;
	}
	return ours;
}

/* ---- what a process has ---- */

static void
add_chunk(RmDaemon *daemon, GArray *chunks, GHashTable *seen, const char *path)
{
	const RmTopology *topology = daemon->config->topology;
	guint i;

	for (i = 0; i < rm_topology_n_channels(topology); i++) {
		const RmChannel *channel = rm_topology_channel(topology, i);
		RmChunk c = {.channel = i};
		gint64 key;

		if (!rm_store_parse_path(rm_daemon_store(daemon, i), channel->name, path,
					 &c.chunk) ||
		    c.chunk >= channel->size_chunks)
			continue;
		key = (gint64)i << 32 | c.chunk;
		if (g_hash_table_add(seen, g_memdup2(&key, sizeof(key))))
			g_array_append_val(chunks, c);
		return;
	}
}

static GArray *
chunks_of(RmDaemon *daemon, gint pid)
{
	GArray *chunks = g_array_new(FALSE, TRUE, sizeof(RmChunk));
	g_autoptr(GHashTable) seen =
		g_hash_table_new_full(g_int64_hash, g_int64_equal, g_free, NULL);
	g_autofree char *path = g_strdup_printf("/proc/%d/maps", pid);
	g_autofree char *folder = g_strdup_printf("/proc/%d/fd", pid);
	g_autofree char *text = NULL;
	g_autoptr(GDir) dir = NULL;
	const char *name;

	if (g_file_get_contents(path, &text, NULL, NULL)) {
		g_auto(GStrv) lines = g_strsplit(text, "\n", -1);
		guint i;

		for (i = 0; lines[i]; i++) {
			const char *file = strchr(lines[i], '/');

			if (file)
				add_chunk(daemon, chunks, seen, file);
		}
	}
	dir = g_dir_open(folder, 0, NULL);
	while (dir && (name = g_dir_read_name(dir))) {
		g_autofree char *link = g_build_filename(folder, name, NULL);
		g_autofree char *file = g_file_read_link(link, NULL);

		if (file)
			add_chunk(daemon, chunks, seen, file);
	}
	return chunks;
}

/* ---- a domain of it ---- */

static gint
compare_cnodes(gconstpointer a, gconstpointer b)
{
	guint ca = ((const RmVmChannel *)a)->cnode, cb = ((const RmVmChannel *)b)->cnode;

	return ca < cb ? -1 : ca > cb;
}

/* What only its XML says. */
static void
ask_libvirt(RmVmRow *row)
{
	g_autofree char *file = g_strconcat(row->name, ".xml", NULL);
	g_autofree char *path = g_build_filename(LIBVIRT_STATE_DIR, file, NULL);
	g_autofree char *text = NULL;
	g_autoptr(RmDomainXml) xml = NULL;
	char *start, *end;

	if (strchr(row->name, '/') || !g_file_get_contents(path, &text, NULL, NULL))
		return;
	start = strstr(text, "<domain ");
	end = start ? strstr(start, "</domain>") : NULL;
	if (!end || !rm_domain_xml_parse(start, end + strlen("</domain>") - start, &xml, NULL) ||
	    !xml || g_ascii_strcasecmp(xml->uuid, row->uuid) != 0)
		return;
	row->capacity_min_chunks = (guint)(xml->capacity_min_bytes / RM_CHUNK_BYTES);
	row->capacity_max_chunks = (guint)(xml->capacity_max_bytes / RM_CHUNK_BYTES);
	row->bandwidth_min_channels = MAX(1, xml->bandwidth_channels_min);
	if (xml->bandwidth_channels_max)
		row->bandwidth_max_channels = xml->bandwidth_channels_max;
	row->shared = !xml->share_exclusive;
}

/* FALSE: the command line does not say all that a domain needs. */
static gboolean
complete_row(Stranger *s)
{
	RmVmRow *row = s->row;
	guint base = 0, most = 0, used = 0, i, k;

	g_array_sort(s->channels, compare_cnodes);
	for (i = 0; i < s->channels->len; i++) {
		RmVmChannel *c = &g_array_index(s->channels, RmVmChannel, i);

		if (c->cnode != i || !c->window_chunks || c->snode > c->cnode)
			return FALSE;
		for (k = 0; k < s->chunks->len; k++)
			c->target_chunks +=
				g_array_index(s->chunks, RmChunk, k).channel == c->channel;
		c->target_chunks =
			CLAMP(c->target_chunks, c->base_chunks, c->base_chunks + c->window_chunks);
		base += c->base_chunks;
		most = MAX(most, c->base_chunks + c->window_chunks);
		used += c->target_chunks != 0;
		row->capacity_chunks += c->target_chunks;
	}
	if (!row->name)
		row->name = g_strdup(row->uuid);
	if (!row->machine)
		row->machine = g_strdup("q35");
	row->vcpus = MAX(row->vcpus, 1);
	row->generation = 1;
	row->claimed_usec = g_get_real_time();
	row->capacity_min_chunks = base;
	row->capacity_max_chunks = MAX(most, row->capacity_chunks);
	row->bandwidth_channels = MAX(used, 1);
	row->bandwidth_min_channels = 1;
	row->bandwidth_max_channels = MAX(s->channels->len, 1);
	ask_libvirt(row);
	return s->channels->len && s->chunks->len;
}

static GPtrArray *
find_strangers(RmDaemon *daemon)
{
	GPtrArray *found = g_ptr_array_new_with_free_func((GDestroyNotify)stranger_free);
	g_autoptr(GDir) dir = g_dir_open("/proc", 0, NULL);
	const char *name;

	while (dir && (name = g_dir_read_name(dir))) {
		g_autoptr(Stranger) s = NULL;
		guint64 pid;

		if (!g_ascii_string_to_unsigned(name, 10, 1, G_MAXINT32, &pid, NULL))
			continue;
		s = g_new0(Stranger, 1);
		s->row = g_new0(RmVmRow, 1);
		s->channels = g_array_new(FALSE, TRUE, sizeof(RmVmChannel));
		if (!read_command_line(daemon, s, (gint)pid))
			continue;
		s->process = rm_process_open((gint)pid, 0, NULL);
		if (!s->process)
			continue;
		s->chunks = chunks_of(daemon, (gint)pid);
		s->row->pid = (gint)pid;
		s->row->start_time_ticks = rm_process_start_time_ticks(s->process);
		if (complete_row(s))
			g_ptr_array_add(found, g_steal_pointer(&s));
		else
			rm_daemon_note(
				daemon, G_LOG_LEVEL_WARNING, s->row->uuid, "adopt",
				"process %d is a QEMU of this rmd, but its command line does "
				"not say enough to adopt it; its chunks are set aside",
				(gint)pid);
	}
	return found;
}

/* ---- into the books ---- */

/* How many of the strangers have each chunk: a table over all channels. */
static guint8 *
count_holders(RmDaemon *daemon, GPtrArray *strangers, gsize *offsets)
{
	const RmTopology *topology = daemon->config->topology;
	guint8 *holders;
	gsize sum = 0;
	guint i, k;

	for (i = 0; i < rm_topology_n_channels(topology); i++) {
		offsets[i] = sum;
		sum += rm_topology_channel(topology, i)->size_chunks;
	}
	holders = g_new0(guint8, sum + 1);
	for (i = 0; i < strangers->len; i++) {
		const Stranger *s = g_ptr_array_index(strangers, i);

		for (k = 0; k < s->chunks->len; k++) {
			const RmChunk *c = &g_array_index(s->chunks, RmChunk, k);
			guint8 *n = &holders[offsets[c->channel] + c->chunk];

			*n = MIN(*n + 1, 2);
		}
	}
	return holders;
}

/*
 * The base memory of a channel is its lowest chunks: rmd grants it first, and nothing tells which
 * they are once the books are lost. QEMU's hello corrects it before anything is done with them.
 */
static gboolean
adopt_one(RmDaemon *daemon, Stranger *s, const guint8 *holders, const gsize *offsets, guint *ret_n,
	  GError **error)
{
	g_autofree guint *base_left =
		g_new0(guint, rm_topology_n_channels(daemon->config->topology) + 1);
	guint k;

	for (k = 0; k < s->channels->len; k++) {
		const RmVmChannel *c = &g_array_index(s->channels, RmVmChannel, k);

		base_left[c->channel] = c->base_chunks;
	}
	if (!rm_ledger_add_vm(daemon->ledger, s->row,
			      (const RmVmChannel *)(gpointer)s->channels->data, s->channels->len,
			      error))
		return FALSE;
	s->row->state = RM_VM_RUNNING;
	if (!rm_ledger_update_vm(daemon->ledger, s->row, error))
		return FALSE;
	for (k = 0; k < s->chunks->len; k++) {
		const RmChunk *c = &g_array_index(s->chunks, RmChunk, k);
		gboolean base = base_left[c->channel] != 0;

		if (rm_reconcile_added(holders[offsets[c->channel] + c->chunk], TRUE) !=
		    RM_CASE_MAPPED)
			continue;
		if (!rm_ledger_adopt(daemon->ledger, c->channel, c->chunk, s->row->id, base, error))
			return FALSE;
		base_left[c->channel] -= base;
		(*ret_n)++;
	}
	return TRUE;
}

static gint
compare_chunks(gconstpointer a, gconstpointer b)
{
	const RmChunk *ca = a, *cb = b;

	if (ca->channel != cb->channel)
		return ca->channel < cb->channel ? -1 : 1;
	return ca->chunk < cb->chunk ? -1 : ca->chunk > cb->chunk;
}

gboolean
rm_adopt_running(RmDaemon *daemon, guint *ret_n, GError **error)
{
	g_autoptr(GPtrArray) strangers = find_strangers(daemon);
	g_autofree gsize *offsets =
		g_new0(gsize, rm_topology_n_channels(daemon->config->topology) + 1);
	g_autofree guint8 *holders = count_holders(daemon, strangers, offsets);
	g_autoptr(RmLedgerTx) tx = rm_ledger_begin(daemon->ledger, error);
	guint i;

	*ret_n = 0;
	if (!tx)
		return FALSE;
	for (i = 0; i < strangers->len; i++) {
		Stranger *s = g_ptr_array_index(strangers, i);
		guint n = 0;

		g_array_sort(s->chunks, compare_chunks);
		if (!adopt_one(daemon, s, holders, offsets, &n, error))
			return FALSE;
		(*ret_n)++;
		rm_daemon_note(daemon, G_LOG_LEVEL_WARNING, s->row->uuid, "adopt",
			       "domain %s: process %d runs and the books are lost: adopted with "
			       "%u chunks",
			       s->row->name, s->row->pid, n);
	}
	return rm_ledger_commit(&tx, error);
}
