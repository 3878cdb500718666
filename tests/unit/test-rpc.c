/* SPDX-License-Identifier: GPL-2.0-or-later */
#include <string.h>

#include "rm-error.h"
#include "rm-rpc.h"

static void
test_hello(void)
{
	static const char line[] =
		"{\"type\":\"hello\",\"seq\":1,\"version\":1,\"uuid\":\"u\",\"ready\":true,"
		"\"regions\":[{\"channel\":\"dimm0\",\"base\":true,\"size\":1073741824,"
		"\"requested\":268435456,\"plugged\":134217728,\"chunks\":[{\"chunk\":17,\"block\":"
		"3},"
		"{\"chunk\":18}]}],\"later\":null}";
	g_autoptr(GError) error = NULL;
	g_autoptr(RmRpcMessage) m = rm_rpc_parse(line, strlen(line), &error);
	const RmRpcRegion *r;

	g_assert_no_error(error);
	g_assert_cmpint(m->type, ==, RM_RPC_HELLO);
	g_assert_cmpuint(m->seq, ==, 1);
	g_assert_cmpstr(m->uuid, ==, "u");
	g_assert_true(m->ready);
	g_assert_cmpuint(m->regions->len, ==, 1);
	r = g_ptr_array_index(m->regions, 0);
	g_assert_cmpstr(r->channel, ==, "dimm0");
	g_assert_true(r->base);
	g_assert_cmpuint(r->size_bytes, ==, 1073741824);
	g_assert_cmpuint(r->requested_bytes, ==, 268435456);
	g_assert_cmpuint(r->plugged_bytes, ==, 134217728);
	g_assert_cmpuint(r->chunks->len, ==, 2);
	g_assert_cmpuint(g_array_index(r->chunks, RmRpcChunk, 0).chunk, ==, 17);
	g_assert_cmpint(g_array_index(r->chunks, RmRpcChunk, 0).block, ==, 3);
	g_assert_cmpint(g_array_index(r->chunks, RmRpcChunk, 1).block, ==, -1);
}

static void
test_others(void)
{
	static const char *const lines[] = {
		"{\"type\":\"done\",\"seq\":2,\"id\":9}",
		"{\"type\":\"error\",\"seq\":3,\"id\":9,\"class\":\"Busy\",\"desc\":\"in use\"}",
		"{\"type\":\"progress\",\"seq\":4,\"channel\":\"c\",\"requested\":134217728,"
		"\"plugged\":0}",
		"{\"type\":\"released\",\"seq\":5,\"channel\":\"c\",\"base\":false,\"chunks\":[1,0]"
		"}",
		"{\"type\":\"stalled\",\"seq\":6,\"channel\":\"c\",\"remaining\":5,\"seconds\":7}",
		"{\"type\":\"from-the-future\",\"seq\":7}",
	};
	static const RmRpcType types[] = {RM_RPC_DONE,     RM_RPC_ERROR,   RM_RPC_PROGRESS,
					  RM_RPC_RELEASED, RM_RPC_STALLED, RM_RPC_OTHER};
	guint i;

	for (i = 0; i < G_N_ELEMENTS(lines); i++) {
		g_autoptr(GError) error = NULL;
		g_autoptr(RmRpcMessage) m = rm_rpc_parse(lines[i], strlen(lines[i]), &error);

		g_assert_no_error(error);
		g_assert_cmpint(m->type, ==, types[i]);
		g_assert_cmpuint(m->seq, ==, i + 2);
		if (m->type == RM_RPC_ERROR)
			g_assert_cmpstr(m->error_class, ==, "Busy");
		if (m->type == RM_RPC_PROGRESS)
			g_assert_cmpuint(m->requested_bytes, ==, 134217728);
		if (m->type == RM_RPC_RELEASED)
			g_assert_cmpuint(g_array_index(m->chunks, guint, 0), ==, 1);
	}
}

static void
test_bad(void)
{
	static const struct {
		const char *line;
		const char *message;
	} cases[] = {
		{"", "not an object"},
		{"[]", "not an object"},
		{"{", "not JSON"},
		{"{\"type\":\"done\"}", "no \"seq\""},
		{"{\"seq\":1}", "no \"type\""},
		{"{\"type\":1,\"seq\":1}", "wrong type of \"type\""},
		{"{\"type\":\"done\",\"seq\":-1,\"id\":1}", "-1 is not from 0"},
		{"{\"type\":\"done\",\"seq\":1.5,\"id\":1}", "wrong type of \"seq\""},
		{"{\"type\":\"progress\",\"seq\":1,\"channel\":\"c\",\"requested\":1,\"plugged\":"
		 "0}",
		 "1 is not a multiple of 128 MiB"},
		{"{\"type\":\"released\",\"seq\":1,\"channel\":\"c\",\"base\":false,\"chunks\":["
		 "\"1\"]}",
		 "element 0 of \"chunks\""},
		{"{\"type\":\"released\",\"seq\":1,\"channel\":\"c\",\"base\":false,\"chunks\":[1,-"
		 "2]}",
		 "element 1 of \"chunks\""},
		{"{\"type\":\"hello\",\"seq\":1,\"version\":1,\"uuid\":\"u\",\"ready\":true,"
		 "\"regions\":[[]]}",
		 "element 0 of \"regions\" is not an object"},
		{"{\"type\":\"done\",\"seq\":1,\"id\":[[[[[[[[[]]]]]]]]]}", "deeper"},
		{"{\"type\":\"\xff\",\"seq\":1}", "UTF-8"},
	};
	guint i;

	for (i = 0; i < G_N_ELEMENTS(cases); i++) {
		g_autoptr(GError) error = NULL;
		g_autoptr(RmRpcMessage) m =
			rm_rpc_parse(cases[i].line, strlen(cases[i].line), &error);

		g_assert_null(m);
		g_assert_error(error, RM_ERROR, RM_ERROR_INVALID);
		if (!strstr(error->message, cases[i].message))
			g_error("case %u: \"%s\" does not say \"%s\"", i, error->message,
				cases[i].message);
	}
}

static void
test_format(void)
{
	static const RmRpcGrant grants[] = {{17, 0}, {18, 268435456}};
	static const guint chunks[] = {3, 5};
	g_autofree char *grant = rm_rpc_format_grant(1, 2, "dimm0", TRUE, grants, 2);
	g_autofree char *resize = rm_rpc_format_resize(2, 3, "dimm1", 0, TRUE);
	g_autofree char *revoke = rm_rpc_format_revoke(3, 4, "dimm1", chunks, 2);

	g_assert_cmpstr(
		grant, ==,
		"{\"type\":\"grant\",\"seq\":1,\"id\":2,\"channel\":\"dimm0\",\"base\":true,"
		"\"chunks\":[{\"chunk\":17,\"fd\":0,\"offset\":0,\"length\":134217728},"
		"{\"chunk\":18,\"fd\":1,\"offset\":268435456,\"length\":134217728}]}\n");
	g_assert_cmpstr(resize, ==,
			"{\"type\":\"resize\",\"seq\":2,\"id\":3,\"channel\":\"dimm1\","
			"\"requested\":0,\"drain\":true}\n");
	g_assert_cmpstr(revoke, ==,
			"{\"type\":\"revoke\",\"seq\":3,\"id\":4,\"channel\":\"dimm1\","
			"\"chunks\":[3,5]}\n");
}

/* The stream cut at every place gives the same lines. */
static void
test_lines(void)
{
	static const char stream[] = "one\n\ntwo three\nrest";
	static const char *const lines[] = {"one", "", "two three"};
	gsize cut;

	for (cut = 0; cut <= strlen(stream); cut++) {
		RmRpcBuffer buffer;
		guint n = 0, part;

		rm_rpc_buffer_init(&buffer);
		for (part = 0; part < 2; part++) {
			if (part == 0)
				rm_rpc_buffer_append(&buffer, stream, cut);
			else
				rm_rpc_buffer_append(&buffer, stream + cut, strlen(stream) - cut);
			for (;;) {
				g_autofree char *line = NULL;
				gsize len;

				g_assert_true(rm_rpc_buffer_take(&buffer, &line, &len, NULL));
				if (!line)
					break;
				g_assert_cmpstr(line, ==, lines[n++]);
			}
		}
		g_assert_cmpuint(n, ==, 3);
		rm_rpc_buffer_clear(&buffer);
	}
}

static void
test_long_line(void)
{
	g_autofree char *data = g_malloc(RM_RPC_LINE_MAX);
	g_autoptr(GError) error = NULL;
	g_autofree char *line = NULL;
	RmRpcBuffer buffer;
	gsize len;

	memset(data, 'x', RM_RPC_LINE_MAX);
	rm_rpc_buffer_init(&buffer);
	rm_rpc_buffer_append(&buffer, data, RM_RPC_LINE_MAX - 1);
	g_assert_true(rm_rpc_buffer_take(&buffer, &line, &len, &error));
	g_assert_null(line);
	rm_rpc_buffer_append(&buffer, data, 1);
	g_assert_false(rm_rpc_buffer_take(&buffer, &line, &len, &error));
	g_assert_error(error, RM_ERROR, RM_ERROR_INVALID);
	rm_rpc_buffer_clear(&buffer);
}

int
main(int argc, char **argv)
{
	g_test_init(&argc, &argv, NULL);
	g_test_add_func("/rpc/hello", test_hello);
	g_test_add_func("/rpc/others", test_others);
	g_test_add_func("/rpc/bad", test_bad);
	g_test_add_func("/rpc/format", test_format);
	g_test_add_func("/rpc/lines", test_lines);
	g_test_add_func("/rpc/long-line", test_long_line);
	return g_test_run();
}
