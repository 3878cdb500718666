/* SPDX-License-Identifier: GPL-2.0-or-later */
#include <glib/gstdio.h>
#include <string.h>
#include <unistd.h>

#include "rm-config.h"
#include "rm-error.h"

#define STORE   "[store s]\npath=/s\n"
#define CHANNEL "[channel c]\nstore=s\ntier=dimm\ndax=0\nsize=2G\n"
#define SPEED   "read-bandwidth=36000\nwrite-bandwidth=30500\nlatency=100\n"

static RmConfig *
load(const char *text, GError **error)
{
	g_autofree char *path = NULL;
	int fd = g_file_open_tmp("rmd-conf-XXXXXX", &path, NULL);
	RmConfig *config;

	g_assert_cmpint(fd, >=, 0);
	close(fd);
	g_assert_true(g_file_set_contents(path, text, -1, NULL));
	config = rm_config_load(path, error);
	g_unlink(path);
	return config;
}

static void
test_good(void)
{
	g_autoptr(GError) error = NULL;
	g_autoptr(RmConfig) config = load("# a comment\n[daemon]\nruntime-dir=/run/x/\n" CHANNEL
					  "socket=1\n" SPEED STORE,
					  &error);
	const RmChannel *c;

	g_assert_no_error(error);
	g_assert_cmpstr(config->runtime_dir, ==, "/run/x");
	g_assert_cmpstr(config->state_dir, ==, "/var/lib/rmd");
	g_assert_cmpstr(config->emulator, ==, "/usr/libexec/ramryder/qemu-system-x86_64");
	g_assert_cmpuint(rm_topology_n_channels(config->topology), ==, 1);
	c = rm_topology_channel(config->topology, 0);
	g_assert_cmpstr(c->name, ==, "c");
	g_assert_cmpint(c->tier, ==, RM_TIER_DIMM);
	g_assert_cmpuint(c->socket, ==, 1);
	g_assert_cmpuint(c->size_chunks, ==, 16);
	g_assert_cmpuint(c->read_mbps, ==, 36000);
	g_assert_cmpuint(c->write_mbps, ==, 30500);
	g_assert_cmpuint(c->latency_ns, ==, 100);
}

static void
test_bad(void)
{
	static const struct {
		const char *text;
		const char *message; /* a part of it */
	} cases[] = {
		{"[deamon]\n" STORE CHANNEL SPEED, "unknown group [deamon]"},
		{"[daemon]\nruntimedir=/x\n" STORE CHANNEL SPEED, "unknown key runtimedir"},
		{"[daemon]\nruntime-dir=x\n" STORE CHANNEL SPEED,
		 "runtime-dir=x is not an absolute"},
		{"[daemon]\njob-timeout=0\n" STORE CHANNEL SPEED,
		 "job-timeout=0 is not a whole number"},
		{"[qemu]\nuser=nobody-of-that-name\n" STORE CHANNEL SPEED,
		 "user=nobody-of-that-name: there is no such user"},
		{"[qemu]\nemulator=\n" STORE CHANNEL SPEED, "emulator is empty"},
		{STORE, "there is no channel"},
		{CHANNEL SPEED, "store=s: there is no [store s]"},
		{"[store s]\nkind=nvme\npath=/s\n" CHANNEL SPEED, "kind=nvme is unknown"},
		{"[store s]\n" CHANNEL SPEED, "[store s] needs the key path"},
		{STORE "[store t]\npath=/s/\n" CHANNEL SPEED, "path=/s is that of [store s]"},
		{STORE CHANNEL, "needs the key read-bandwidth"},
		{STORE CHANNEL "colour=red\n" SPEED, "unknown key colour"},
		{STORE CHANNEL SPEED "size=3G\n", "has the key size twice"},
		{STORE CHANNEL SPEED CHANNEL SPEED, "[channel c] is there twice"},
		{STORE CHANNEL SPEED "[channel d]\nstore=s\ntier=cxl\ndax=0\nsize=1G\n" SPEED,
		 "channel d: dax=0 channel=0 are those of channel c"},
		{STORE "[channel c]\nstore=s\ntier=hbm\ndax=0\nsize=2G\n" SPEED,
		 "tier=hbm is unknown"},
		{STORE "[channel c]\nstore=s\ntier=dimm\ndax=0\nsize=100M\n" SPEED, "size=100M"},
		{STORE "[channel c]\nstore=s\ntier=dimm\ndax=0\nsize=0\n" SPEED, "size=0"},
		{STORE "[channel c]\nstore=s\ntier=dimm\ndax=0\nsize=lots\n" SPEED, "lots"},
		{STORE "[channel c/d]\nstore=s\ntier=dimm\ndax=0\nsize=2G\n" SPEED,
		 "[channel c/d]"},
		{STORE "[channel 9]\nstore=s\ntier=dimm\ndax=0\nsize=2G\n" SPEED, "[channel 9]"},
		{STORE CHANNEL "socket=64\n" SPEED, "socket=64"},
		{STORE CHANNEL "read-bandwidth=0\nwrite-bandwidth=1\nlatency=1\n",
		 "read-bandwidth=0"},
		{"rubbish\n", "rubbish"},
	};
	guint i;

	for (i = 0; i < G_N_ELEMENTS(cases); i++) {
		g_autoptr(GError) error = NULL;
		g_autoptr(RmConfig) config = load(cases[i].text, &error);

		g_assert_null(config);
		g_assert_error(error, RM_ERROR, RM_ERROR_INVALID);
		if (!strstr(error->message, cases[i].message))
			g_error("case %u: \"%s\" does not say \"%s\"", i, error->message,
				cases[i].message);
		g_assert_null(strchr(error->message, '\n'));
	}
}

static void
test_missing(void)
{
	g_autoptr(GError) error = NULL;
	g_autofree char *dir = NULL;

	g_assert_null(rm_config_load("/does/not/exist", &error));
	g_assert_error(error, RM_ERROR, RM_ERROR_INVALID);
	g_assert_nonnull(strstr(error->message, "/does/not/exist"));
	dir = rm_config_load_runtime_dir("/does/not/exist", NULL);
	g_assert_cmpstr(dir, ==, "/run/rmd");
}

/* The example that is installed is right. */
static void
test_example(void)
{
	g_autofree char *path = g_test_build_filename(G_TEST_DIST, "..", "..", "rmd", "data",
						      "rmd.conf.example", NULL);
	g_autoptr(GError) error = NULL;
	g_autoptr(RmConfig) config = rm_config_load(path, &error);

	g_assert_no_error(error);
	g_assert_cmpuint(rm_topology_n_channels(config->topology), >=, 2);
}

int
main(int argc, char **argv)
{
	g_test_init(&argc, &argv, NULL);
	g_test_add_func("/config/good", test_good);
	g_test_add_func("/config/bad", test_bad);
	g_test_add_func("/config/missing", test_missing);
	g_test_add_func("/config/example", test_example);
	return g_test_run();
}
