/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * libvirt's hook for QEMU domains (/etc/libvirt/hooks/qemu or a file in hooks/qemu.d):
 *
 *   NAME prepare begin -    claim the chunks of a domain with <rr:memory>; fail, and the domain
 * does not start NAME release end -      let go of them; never fails, and libvirt also calls it
 * where nothing was claimed anything else           nothing, successfully: a failed "reconnect"
 * would kill a running guest
 *
 * The domain's XML comes on stdin. Whatever is not ours is left alone without a word to rmd. One
 * line on stderr, which libvirt shows to the one who asked.
 */
#include <stdio.h>
#include <string.h>

#include <gio/gunixinputstream.h>

#include "rm-client.h"
#include "rm-domain-xml.h"

/* rmd may have to scrub before it can give; a release waits for the process to go. */
#define CLAIM_MSEC   (120 * 1000)
#define RELEASE_MSEC (20 * 1000)

#define XML_LIMIT_BYTES (16 * 1024 * 1024)

static int
complain(const char *name, const char *message)
{
	fprintf(stderr, "ramryder: domain %s: %s\n", name, message);
	return 1;
}

/* All of stdin, so that libvirt does not see a broken pipe. */
static GBytes *
read_stdin(GError **error)
{
	g_autoptr(GInputStream) input = g_unix_input_stream_new(0, FALSE);
	g_autoptr(GByteArray) all = g_byte_array_new();
	guint8 buffer[16384];
	gssize n;

	while ((n = g_input_stream_read(input, buffer, sizeof(buffer), NULL, error)) > 0) {
		if (all->len + (gsize)n > XML_LIMIT_BYTES) {
			rm_error_set(error, RM_ERROR_INVALID, "its XML is larger than 16 MiB");
			return NULL;
		}
		g_byte_array_append(all, buffer, (guint)n);
	}
	return n == 0 ? g_byte_array_free_to_bytes(g_steal_pointer(&all)) : NULL;
}

static gboolean
claim(const char *xml, GError **error)
{
	g_autofree char *bus_path = rm_client_bus_path(error);
	g_autoptr(RmManager1) manager = NULL;

	if (bus_path == NULL)
		return FALSE;
	manager = rm_client_connect(bus_path, CLAIM_MSEC, error);
	if (manager == NULL)
		return FALSE;
	if (rm_manager1_call_claim_sync(manager, xml, NULL, error))
		return TRUE;
	rm_client_clean_error(bus_path, error);
	return FALSE;
}

static int
prepare(const char *name, GBytes *stdin_bytes)
{
	gsize size;
	const char *data = g_bytes_get_data(stdin_bytes, &size);
	g_autofree char *xml = g_strndup(data, size);
	g_autoptr(RmDomainXml) domain = NULL;
	g_autoptr(GError) error = NULL;

	if (!rm_domain_xml_parse(xml, -1, &domain, &error))
		return complain(name, error->message);
	if (domain == NULL)
		return 0;
	return claim(xml, &error) ? 0 : complain(name, error->message);
}

/*
 * The domain's metadata may have changed while it ran, so the shim as its emulator is enough to
 * ask. rmd learns of a dead domain by itself as well: a failure here is said, not returned.
 */
static void
release(const char *name, GBytes *stdin_bytes)
{
	gsize size;
	const char *xml = g_bytes_get_data(stdin_bytes, &size);
	g_autofree char *bus_path = NULL;
	g_autofree char *uuid = NULL;
	g_autoptr(RmManager1) manager = NULL;
	g_autoptr(GError) error = NULL;
	gboolean ours = FALSE;

	if (!rm_domain_xml_peek(xml != NULL ? xml : "", (gssize)size, &uuid, &ours, &error)) {
		complain(name, error->message);
		return;
	}
	if (!ours)
		return;
	bus_path = rm_client_bus_path(&error);
	if (bus_path != NULL)
		manager = rm_client_connect(bus_path, RELEASE_MSEC, &error);
	if (manager == NULL) {
		complain(name, error->message);
		return;
	}
	if (!rm_manager1_call_release_sync(manager, uuid, NULL, &error)) {
		rm_client_clean_error(bus_path, &error);
		complain(name, error->message);
	}
}

int
main(int argc, char **argv)
{
	g_autoptr(GBytes) xml = NULL;
	g_autoptr(GError) error = NULL;
	gboolean is_prepare, is_release;

	if (argc < 4) {
		fprintf(stderr,
			"Usage: %s NAME OPERATION SUBOPERATION [EXTRA], with the domain's XML on "
			"stdin; libvirt calls it\n",
			argc > 0 ? argv[0] : "rmd-libvirt-hook");
		return 2;
	}
	is_prepare = g_str_equal(argv[2], "prepare") && g_str_equal(argv[3], "begin");
	is_release = g_str_equal(argv[2], "release") && g_str_equal(argv[3], "end");
	if (!is_prepare && !is_release)
		return 0;

	xml = read_stdin(&error);
	if (xml == NULL) {
		complain(argv[1], error->message);
		return is_prepare ? 1 : 0;
	}
	if (is_prepare)
		return prepare(argv[1], xml);
	release(argv[1], xml);
	return 0;
}
