/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "rm-rpc.h"

#include <json-glib/json-glib.h>
#include <string.h>

#include "rm-error.h"
#include "rm-size.h"

/* Objects in arrays in objects in arrays in the message: no message is deeper than 5. */
#define DEPTH_MAX 8

static const char *const type_names[RM_RPC_OTHER] = {
	[RM_RPC_HELLO] = "hello",       [RM_RPC_DONE] = "done",
	[RM_RPC_ERROR] = "error",       [RM_RPC_PROGRESS] = "progress",
	[RM_RPC_RELEASED] = "released", [RM_RPC_STALLED] = "stalled",
};

/* ---- reading ---- */

/* The JSON parser recurses: a line of brackets must not reach it. */
static gboolean
check_depth(const char *line, gsize len, GError **error)
{
	gboolean in_string = FALSE;
	guint depth = 0;
	gsize i;

	for (i = 0; i < len; i++) {
		if (in_string) {
			if (line[i] == '\\')
				i++;
			else if (line[i] == '"')
				in_string = FALSE;
		} else if (line[i] == '"') {
			in_string = TRUE;
		} else if (line[i] == '{' || line[i] == '[') {
			if (++depth > DEPTH_MAX) {
				rm_error_set(error, RM_ERROR_INVALID,
					     "message is nested deeper than %d", DEPTH_MAX);
				return FALSE;
			}
		} else if ((line[i] == '}' || line[i] == ']') && depth) {
			depth--;
		}
	}
	return TRUE;
}

static JsonNode *
get_value(JsonObject *object, const char *name, GType type, GError **error)
{
	JsonNode *node = json_object_get_member(object, name);

	if (node && JSON_NODE_HOLDS_VALUE(node) && json_node_get_value_type(node) == type)
		return node;
	rm_error_set(error, RM_ERROR_INVALID, "message %s \"%s\"",
		     node ? "has a wrong type of" : "has no", name);
	return NULL;
}

static gboolean
get_uint(JsonObject *object, const char *name, guint64 max, guint64 *ret_value, GError **error)
{
	JsonNode *node = get_value(object, name, G_TYPE_INT64, error);
	gint64 value;

	if (!node)
		return FALSE;
	value = json_node_get_int(node);
	if (value < 0 || (guint64)value > max) {
		rm_error_set(error, RM_ERROR_INVALID,
			     "\"%s\": %" G_GINT64_FORMAT " is not from 0 to %" G_GUINT64_FORMAT,
			     name, value, max);
		return FALSE;
	}
	*ret_value = (guint64)value;
	return TRUE;
}

static gboolean
get_uint32(JsonObject *object, const char *name, guint *ret_value, GError **error)
{
	guint64 value;

	if (!get_uint(object, name, G_MAXINT32, &value, error))
		return FALSE;
	*ret_value = (guint)value;
	return TRUE;
}

/* A size in bytes of whole chunks. */
static gboolean
get_size(JsonObject *object, const char *name, guint64 *ret_bytes, GError **error)
{
	if (!get_uint(object, name, G_MAXINT64, ret_bytes, error))
		return FALSE;
	if (*ret_bytes % RM_CHUNK_BYTES == 0)
		return TRUE;
	rm_error_set(error, RM_ERROR_INVALID,
		     "\"%s\": %" G_GUINT64_FORMAT " is not a multiple of 128 MiB", name,
		     *ret_bytes);
	return FALSE;
}

static gboolean
get_boolean(JsonObject *object, const char *name, gboolean *ret_value, GError **error)
{
	JsonNode *node = get_value(object, name, G_TYPE_BOOLEAN, error);

	if (!node)
		return FALSE;
	*ret_value = json_node_get_boolean(node);
	return TRUE;
}

static gboolean
get_string(JsonObject *object, const char *name, char **ret_value, GError **error)
{
	JsonNode *node = get_value(object, name, G_TYPE_STRING, error);

	if (!node)
		return FALSE;
	*ret_value = json_node_dup_string(node);
	return TRUE;
}

static JsonArray *
get_array(JsonObject *object, const char *name, GError **error)
{
	JsonNode *node = json_object_get_member(object, name);

	if (node && JSON_NODE_HOLDS_ARRAY(node))
		return json_node_get_array(node);
	rm_error_set(error, RM_ERROR_INVALID, "message %s \"%s\"",
		     node ? "has a wrong type of" : "has no", name);
	return NULL;
}

static JsonObject *
get_element_object(JsonArray *array, guint i, const char *name, GError **error)
{
	JsonNode *node = json_array_get_element(array, i);

	if (JSON_NODE_HOLDS_OBJECT(node))
		return json_node_get_object(node);
	rm_error_set(error, RM_ERROR_INVALID, "element %u of \"%s\" is not an object", i, name);
	return NULL;
}

static void
region_free(RmRpcRegion *region)
{
	g_free(region->channel);
	if (region->chunks)
		g_array_unref(region->chunks);
	g_free(region);
}
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RmRpcRegion, region_free)

static gboolean
parse_region_chunk(JsonObject *object, GArray *chunks, GError **error)
{
	RmRpcChunk chunk = {.block = -1};

	if (!get_uint32(object, "chunk", &chunk.chunk, error))
		return FALSE;
	if (json_object_has_member(object, "block")) {
		guint64 block;

		if (!get_uint(object, "block", G_MAXINT32, &block, error))
			return FALSE;
		chunk.block = (gint64)block;
	}
	g_array_append_val(chunks, chunk);
	return TRUE;
}

static RmRpcRegion *
parse_region(JsonObject *object, GError **error)
{
	g_autoptr(RmRpcRegion) region = g_new0(RmRpcRegion, 1);
	JsonArray *array;
	guint i;

	if (!get_string(object, "channel", &region->channel, error) ||
	    !get_boolean(object, "base", &region->base, error) ||
	    !get_size(object, "size", &region->size_bytes, error) ||
	    !get_size(object, "requested", &region->requested_bytes, error) ||
	    !get_size(object, "plugged", &region->plugged_bytes, error))
		return NULL;
	array = get_array(object, "chunks", error);
	if (!array)
		return NULL;
	region->chunks = g_array_new(FALSE, FALSE, sizeof(RmRpcChunk));
	for (i = 0; i < json_array_get_length(array); i++) {
		JsonObject *element = get_element_object(array, i, "chunks", error);

		if (!element || !parse_region_chunk(element, region->chunks, error))
			return NULL;
	}
	return g_steal_pointer(&region);
}

static gboolean
parse_hello(RmRpcMessage *message, JsonObject *object, GError **error)
{
	JsonArray *array;
	guint i;

	if (!get_uint32(object, "version", &message->version, error) ||
	    !get_string(object, "uuid", &message->uuid, error) ||
	    !get_boolean(object, "ready", &message->ready, error))
		return FALSE;
	array = get_array(object, "regions", error);
	if (!array)
		return FALSE;
	message->regions = g_ptr_array_new_with_free_func((GDestroyNotify)region_free);
	for (i = 0; i < json_array_get_length(array); i++) {
		JsonObject *element = get_element_object(array, i, "regions", error);
		RmRpcRegion *region = element ? parse_region(element, error) : NULL;

		if (!region)
			return FALSE;
		g_ptr_array_add(message->regions, region);
	}
	return TRUE;
}

static gboolean
parse_released(RmRpcMessage *message, JsonObject *object, GError **error)
{
	JsonArray *array;
	guint i;

	if (!get_string(object, "channel", &message->channel, error) ||
	    !get_boolean(object, "base", &message->base, error))
		return FALSE;
	array = get_array(object, "chunks", error);
	if (!array)
		return FALSE;
	message->chunks = g_array_new(FALSE, FALSE, sizeof(guint));
	for (i = 0; i < json_array_get_length(array); i++) {
		JsonNode *node = json_array_get_element(array, i);
		gint64 value = -1;
		guint chunk;

		if (JSON_NODE_HOLDS_VALUE(node) && json_node_get_value_type(node) == G_TYPE_INT64)
			value = json_node_get_int(node);
		if (value < 0 || value > G_MAXINT32) {
			rm_error_set(error, RM_ERROR_INVALID,
				     "element %u of \"chunks\" is not the number of a chunk", i);
			return FALSE;
		}
		chunk = (guint)value;
		g_array_append_val(message->chunks, chunk);
	}
	return TRUE;
}

static gboolean
parse_body(RmRpcMessage *message, JsonObject *object, GError **error)
{
	switch (message->type) {
	case RM_RPC_HELLO:
		return parse_hello(message, object, error);
	case RM_RPC_DONE:
		return get_uint(object, "id", G_MAXINT64, &message->id, error);
	case RM_RPC_ERROR:
		return get_uint(object, "id", G_MAXINT64, &message->id, error) &&
		       get_string(object, "class", &message->error_class, error) &&
		       get_string(object, "desc", &message->desc, error);
	case RM_RPC_PROGRESS:
		return get_string(object, "channel", &message->channel, error) &&
		       get_size(object, "requested", &message->requested_bytes, error) &&
		       get_size(object, "plugged", &message->plugged_bytes, error);
	case RM_RPC_RELEASED:
		return parse_released(message, object, error);
	case RM_RPC_STALLED:
		return get_string(object, "channel", &message->channel, error) &&
		       get_uint(object, "remaining", G_MAXINT64, &message->remaining_bytes,
				error) &&
		       get_uint(object, "seconds", G_MAXINT64, &message->seconds, error);
	case RM_RPC_OTHER:
		break;
	}
	return TRUE;
}

RmRpcMessage *
rm_rpc_parse(const char *line, gsize len, GError **error)
{
	g_autoptr(RmRpcMessage) message = g_new0(RmRpcMessage, 1);
	g_autoptr(JsonParser) parser = NULL;
	g_autoptr(GError) local = NULL;
	g_autofree char *type = NULL;
	JsonObject *object;
	JsonNode *root;
	guint i;

	if (!g_utf8_validate(line, (gssize)len, NULL)) {
		rm_error_set(error, RM_ERROR_INVALID, "message is not UTF-8");
		return NULL;
	}
	if (!check_depth(line, len, error))
		return NULL;
	parser = json_parser_new_immutable();
	if (!json_parser_load_from_data(parser, line, (gssize)len, &local)) {
		rm_error_set(error, RM_ERROR_INVALID, "message is not JSON: %s", local->message);
		return NULL;
	}
	root = json_parser_get_root(parser);
	if (!root || !JSON_NODE_HOLDS_OBJECT(root)) {
		rm_error_set(error, RM_ERROR_INVALID, "message is not an object");
		return NULL;
	}
	object = json_node_get_object(root);
	if (!get_string(object, "type", &type, error) ||
	    !get_uint(object, "seq", G_MAXINT64, &message->seq, error))
		return NULL;
	message->type = RM_RPC_OTHER;
	for (i = 0; i < RM_RPC_OTHER; i++) {
		if (g_str_equal(type, type_names[i]))
			message->type = (RmRpcType)i;
	}
	if (!parse_body(message, object, error)) {
		g_prefix_error(error, "%s: ", type);
		return NULL;
	}
	return g_steal_pointer(&message);
}

void
rm_rpc_message_free(RmRpcMessage *message)
{
	if (!message)
		return;
	g_free(message->error_class);
	g_free(message->desc);
	g_free(message->uuid);
	g_free(message->channel);
	if (message->regions)
		g_ptr_array_unref(message->regions);
	if (message->chunks)
		g_array_unref(message->chunks);
	g_free(message);
}

/* ---- writing ---- */

static JsonBuilder *
begin(const char *type, guint64 seq, guint64 id, const char *channel)
{
	JsonBuilder *builder = json_builder_new_immutable();

	json_builder_begin_object(builder);
	json_builder_set_member_name(builder, "type");
	json_builder_add_string_value(builder, type);
	json_builder_set_member_name(builder, "seq");
	json_builder_add_int_value(builder, (gint64)seq);
	json_builder_set_member_name(builder, "id");
	json_builder_add_int_value(builder, (gint64)id);
	json_builder_set_member_name(builder, "channel");
	json_builder_add_string_value(builder, channel);
	return builder;
}

static char *
end(JsonBuilder *builder)
{
	g_autoptr(JsonGenerator) generator = json_generator_new();
	g_autoptr(JsonNode) root = NULL;
	g_autofree char *text = NULL;

	json_builder_end_object(builder);
	root = json_builder_get_root(builder);
	json_generator_set_root(generator, root);
	text = json_generator_to_data(generator, NULL);
	return g_strconcat(text, "\n", NULL);
}

static void
add_int(JsonBuilder *builder, const char *name, guint64 value)
{
	json_builder_set_member_name(builder, name);
	json_builder_add_int_value(builder, (gint64)value);
}

static void
add_boolean(JsonBuilder *builder, const char *name, gboolean value)
{
	json_builder_set_member_name(builder, name);
	json_builder_add_boolean_value(builder, value);
}

char *
rm_rpc_format_grant(guint64 seq, guint64 id, const char *channel, gboolean base,
		    const RmRpcGrant *chunks, guint n)
{
	g_autoptr(JsonBuilder) builder = begin("grant", seq, id, channel);
	guint i;

	g_return_val_if_fail(n > 0 && n <= RM_RPC_FDS_MAX, NULL);
	add_boolean(builder, "base", base);
	json_builder_set_member_name(builder, "chunks");
	json_builder_begin_array(builder);
	for (i = 0; i < n; i++) {
		json_builder_begin_object(builder);
		add_int(builder, "chunk", chunks[i].chunk);
		add_int(builder, "fd", i);
		add_int(builder, "offset", chunks[i].offset_bytes);
		add_int(builder, "length", RM_CHUNK_BYTES);
		json_builder_end_object(builder);
	}
	json_builder_end_array(builder);
	return end(builder);
}

char *
rm_rpc_format_resize(guint64 seq, guint64 id, const char *channel, guint64 requested_bytes,
		     gboolean drain)
{
	g_autoptr(JsonBuilder) builder = begin("resize", seq, id, channel);

	add_int(builder, "requested", requested_bytes);
	add_boolean(builder, "drain", drain);
	return end(builder);
}

char *
rm_rpc_format_revoke(guint64 seq, guint64 id, const char *channel, const guint *chunks, guint n)
{
	g_autoptr(JsonBuilder) builder = begin("revoke", seq, id, channel);
	guint i;

	json_builder_set_member_name(builder, "chunks");
	json_builder_begin_array(builder);
	for (i = 0; i < n; i++)
		json_builder_add_int_value(builder, chunks[i]);
	json_builder_end_array(builder);
	return end(builder);
}

/* ---- lines ---- */

void
rm_rpc_buffer_init(RmRpcBuffer *buffer)
{
	buffer->bytes = g_byte_array_new();
	buffer->taken = 0;
	buffer->scanned = 0;
}

void
rm_rpc_buffer_clear(RmRpcBuffer *buffer)
{
	g_clear_pointer(&buffer->bytes, g_byte_array_unref);
}

void
rm_rpc_buffer_append(RmRpcBuffer *buffer, const void *data, gsize len)
{
	/* Once for all lines that were taken: a flood of short ones must not cost more. */
	if (buffer->taken) {
		g_byte_array_remove_range(buffer->bytes, 0, (guint)buffer->taken);
		buffer->scanned -= buffer->taken;
		buffer->taken = 0;
	}
	g_byte_array_append(buffer->bytes, data, (guint)len);
}

gboolean
rm_rpc_buffer_take(RmRpcBuffer *buffer, char **ret_line, gsize *ret_len, GError **error)
{
	const guint8 *start = buffer->bytes->data + buffer->taken, *end = NULL;
	gsize len;

	if (buffer->bytes->len > buffer->scanned)
		end = memchr(buffer->bytes->data + buffer->scanned, '\n',
			     buffer->bytes->len - buffer->scanned);
	len = end ? (gsize)(end - start) : buffer->bytes->len - buffer->taken;
	if (len >= RM_RPC_LINE_MAX) {
		rm_error_set(error, RM_ERROR_INVALID, "message is longer than %d bytes",
			     RM_RPC_LINE_MAX);
		return FALSE;
	}
	buffer->scanned = buffer->taken + len;
	*ret_line = end ? g_strndup((const char *)start, len) : NULL;
	*ret_len = end ? len : 0;
	if (end) {
		buffer->taken += len + 1;
		buffer->scanned = buffer->taken;
	}
	return TRUE;
}
