/* SPDX-License-Identifier: GPL-2.0-or-later */
/* <rr:memory>: what is read, what is left out, and every refusal with its exact text. */
#include <string.h>

#include <glib.h>
#include <libxml/parser.h>
#include <libxml/relaxng.h>

#include "rm-domain-xml.h"
#include "rm-error.h"
#include "rm-size.h"

#define OPEN  "<rr:memory xmlns:rr='urn:ramryder:libvirt:1'>"
#define CLOSE "</rr:memory>"
#define CAP   "<rr:capacity unit='GiB'>4</rr:capacity>"

/* The parts of a domain that a case replaces; NULL stands for the usual one. */
typedef struct {
	const char *name;
	const char *memory; /* inside <metadata> */
	const char *size;   /* <memory> and <currentMemory> */
	const char *extra;  /* more children of <domain> */
	const char *type;
	const char *machine;
	const char *devices;
	const char *error;
	gboolean form_is_right; /* the schema accepts it: the values are what is wrong */
} Case;

static char *
domain_xml(const Case *c)
{
	return g_strconcat(
		"<domain type='", c->type != NULL ? c->type : "kvm", "'>\n",
		"<name>web1</name><uuid>B1F9D6A2-5C0E-4B62-9B0E-0C9AA7A3F1D4</uuid>\n",
		"<metadata><other:x xmlns:other='urn:other'/>", c->memory != NULL ? c->memory : "",
		"</metadata>\n",
		c->size != NULL ? c->size
				: "<memory unit='KiB'>8388608</memory>"
				  "<currentMemory unit='KiB'>8388608</currentMemory>",
		"<vcpu placement='static' current='2'>4</vcpu><os>",
		c->machine != NULL ? c->machine
				   : "<type arch='x86_64' machine='pc-q35-10.0'>hvm</type>",
		"</os>", c->extra != NULL ? c->extra : "", "<devices>",
		c->devices != NULL ? c->devices : "<emulator>/usr/bin/qemu-ramryder</emulator>",
		"</devices></domain>", NULL);
}

static xmlRelaxNG *
schema(void)
{
	g_autofree char *path = g_test_build_filename(G_TEST_DIST, "..", "..", "rmd", "data",
						      "ramryder-domain.rng", NULL);
	xmlRelaxNGParserCtxt *parser = xmlRelaxNGNewParserCtxt(path);
	xmlRelaxNG *relaxng = xmlRelaxNGParse(parser);

	g_assert_nonnull(relaxng);
	xmlRelaxNGFreeParserCtxt(parser);
	return relaxng;
}

static void
ignore_message(void *data, const char *format, ...)
{
}

static gboolean
schema_accepts(const char *memory)
{
	xmlRelaxNG *relaxng = schema();
	xmlRelaxNGValidCtxt *validator = xmlRelaxNGNewValidCtxt(relaxng);
	xmlDoc *document = xmlReadMemory(memory, (int)strlen(memory), "memory.xml", NULL, 0);
	gboolean ok;

	g_assert_nonnull(document);
	xmlRelaxNGSetValidErrors(validator, ignore_message, ignore_message, NULL);
	ok = xmlRelaxNGValidateDoc(validator, document) == 0;
	xmlFreeDoc(document);
	xmlRelaxNGFreeValidCtxt(validator);
	xmlRelaxNGFree(relaxng);
	return ok;
}

static RmDomainXml *
parse_good(const char *memory, const char *size)
{
	Case c = {.memory = memory, .size = size};
	g_autofree char *xml = domain_xml(&c);
	g_autoptr(GError) error = NULL;
	RmDomainXml *domain = NULL;

	g_assert_true(rm_domain_xml_parse(xml, -1, &domain, &error));
	g_assert_no_error(error);
	g_assert_nonnull(domain);
	g_assert_true(schema_accepts(memory));
	return domain;
}

static void
test_full(void)
{
	g_autoptr(RmDomainXml) d = parse_good(
		OPEN "<!-- all of it -->"
		     "<rr:policy kind='manual' grow='80' grow-window='3' shrink='40' "
		     "shrink-window='60' mode='auto'/>"
		     "<rr:capacity unit='MiB' min='2048' max='8192'> 4224 </rr:capacity>"
		     "<rr:bandwidth unit='channels' min='2' max='4' share='shared'>3</rr:bandwidth>"
		     "<rr:placement tiers='dimm' sockets='0 2' base='2GiB'/>" CLOSE,
		NULL);

	g_assert_cmpstr(d->name, ==, "web1");
	g_assert_cmpstr(d->uuid, ==, "b1f9d6a2-5c0e-4b62-9b0e-0c9aa7a3f1d4");
	g_assert_cmpstr(d->machine, ==, "pc-q35-10.0");
	g_assert_cmpstr(d->emulator, ==, "/usr/bin/qemu-ramryder");
	g_assert_cmpuint(d->vcpus, ==, 4);
	g_assert_cmpuint(d->vcpus_current, ==, 2);
	g_assert_cmpuint(d->capacity_bytes, ==, 4224 * RM_MIB);
	g_assert_cmpuint(d->capacity_min_bytes, ==, 2 * RM_GIB);
	g_assert_cmpuint(d->capacity_max_bytes, ==, 8 * RM_GIB);
	g_assert_cmpint(d->bandwidth_unit, ==, RM_BANDWIDTH_CHANNELS);
	g_assert_cmpuint(d->bandwidth_channels, ==, 3);
	g_assert_cmpuint(d->bandwidth_channels_min, ==, 2);
	g_assert_cmpuint(d->bandwidth_channels_max, ==, 4);
	g_assert_cmpuint(d->bandwidth_mbps, ==, 0);
	g_assert_false(d->share_exclusive);
	g_assert_true(d->tier_dimm);
	g_assert_false(d->tier_cxl);
	g_assert_false(d->sockets_auto);
	g_assert_cmpuint(d->sockets, ==, 0x5);
	g_assert_cmpuint(d->base_bytes, ==, 2 * RM_GIB);
}

static void
test_defaults(void)
{
	g_autoptr(RmDomainXml) d = parse_good(OPEN CAP CLOSE, NULL);
	g_autoptr(RmDomainXml) big =
		parse_good(OPEN "<rr:capacity unit='GiB'>32</rr:capacity>" CLOSE,
			   "<memory unit='GiB'>65</memory>");
	g_autoptr(RmDomainXml) small = parse_good(
		OPEN "<rr:capacity unit='MiB'>512</rr:capacity>" CLOSE, "<memory>524288</memory>");

	g_assert_cmpuint(d->capacity_min_bytes, ==, RM_GIB);
	g_assert_cmpuint(d->capacity_max_bytes, ==, 8 * RM_GIB);
	g_assert_cmpuint(d->bandwidth_channels, ==, 1);
	g_assert_cmpuint(d->bandwidth_channels_min, ==, 1);
	g_assert_cmpuint(d->bandwidth_channels_max, ==, 0);
	g_assert_true(d->share_exclusive);
	g_assert_true(d->tier_dimm && d->tier_cxl);
	g_assert_true(d->sockets_auto);
	g_assert_cmpuint(d->base_bytes, ==, 0);
	/* 65 GiB / 8 = 8320 MiB = 65 chunks exactly. */
	g_assert_cmpuint(big->capacity_min_bytes, ==, 8320 * RM_MIB);
	g_assert_cmpuint(small->capacity_min_bytes, ==, 512 * RM_MIB);
}

static void
test_gbps(void)
{
	g_autoptr(RmDomainXml) d = parse_good(
		OPEN CAP "<rr:bandwidth unit='GB/s' min='36' max='144'>80.5</rr:bandwidth>" CLOSE,
		NULL);

	g_assert_cmpint(d->bandwidth_unit, ==, RM_BANDWIDTH_MBPS);
	g_assert_cmpuint(d->bandwidth_mbps, ==, 80500);
	g_assert_cmpuint(d->bandwidth_mbps_min, ==, 36000);
	g_assert_cmpuint(d->bandwidth_mbps_max, ==, 144000);
	g_assert_cmpuint(d->bandwidth_channels, ==, 0);
}

/* A domain without the element is none of our business, however strange it is. */
static void
test_not_ours(void)
{
	static const char *const documents[] = {
		"<domain type='xen'><name>x</name></domain>",
		"<domain><metadata><a:memory xmlns:a='urn:other'/></metadata></domain>",
		"<domain><memory>1</memory><memoryBacking><hugepages/></memoryBacking></domain>",
	};
	gsize i;

	for (i = 0; i < G_N_ELEMENTS(documents); i++) {
		g_autoptr(GError) error = NULL;
		RmDomainXml *domain = (RmDomainXml *)&i;

		g_assert_true(rm_domain_xml_parse(documents[i], -1, &domain, &error));
		g_assert_no_error(error);
		g_assert_null(domain);
	}
}

/* clang-format off */
static const Case cases[] = {
	/* the element */
	{"namespace", "<rr:memory xmlns:rr='urn:ramryder:libvirt:2'/>",
	 .error = "<memory> in <metadata> has the namespace urn:ramryder:libvirt:2, which this version does not know; it knows urn:ramryder:libvirt:1"},
	{"other-element", "<rr:cpu xmlns:rr='urn:ramryder:libvirt:1'/>",
	 .error = "<rr:cpu> in <metadata> is unknown; there is only <rr:memory>"},
	{"twice", OPEN CAP CLOSE OPEN CAP CLOSE,
	 .error = "<rr:memory> is there twice in <metadata>; keep one"},
	{"memory-attribute", "<rr:memory xmlns:rr='urn:ramryder:libvirt:1' tier='cxl'>" CAP CLOSE,
	 .error = "<rr:memory> has the unknown attribute 'tier'; known are: none"},
	{"memory-text", OPEN CAP "4 GiB" CLOSE,
	 .error = "<rr:memory> holds the text '4 GiB'; it takes elements only"},
	{"empty", OPEN CLOSE,
	 .error = "<rr:memory> has no <rr:capacity>; say how much memory the VM starts with, for example <rr:capacity unit=\"GiB\">4</rr:capacity>"},
	{"unknown-element", OPEN CAP "<rr:latency>90</rr:latency>" CLOSE,
	 .error = "<rr:memory> holds the unknown element <latency>; known are <rr:capacity>, <rr:bandwidth>, <rr:placement> and <rr:policy>"},
	{"foreign-element", OPEN CAP "<bandwidth>3</bandwidth>" CLOSE,
	 .error = "<rr:memory> holds the unknown element <bandwidth>; known are <rr:capacity>, <rr:bandwidth>, <rr:placement> and <rr:policy>"},
	{"capacity-twice", OPEN CAP CAP CLOSE,
	 .error = "<rr:capacity> is there twice in <rr:memory>; keep one"},

	/* capacity */
	{"capacity-attribute", OPEN "<rr:capacity unit='GiB' step='1'>4</rr:capacity>" CLOSE,
	 .error = "<rr:capacity> has the unknown attribute 'step'; known are: unit, min, max"},
	{"capacity-child", OPEN "<rr:capacity unit='GiB'>4<rr:min/></rr:capacity>" CLOSE,
	 .error = "<rr:capacity> holds the unknown element <min>; remove it"},
	{"capacity-no-unit", OPEN "<rr:capacity>4</rr:capacity>" CLOSE,
	 .error = "<rr:capacity> has no unit; use bytes, KiB, MiB, GiB or TiB"},
	{"capacity-unit", OPEN "<rr:capacity unit='GB'>4</rr:capacity>" CLOSE,
	 .error = "<rr:capacity> has the unknown unit 'GB'; use bytes, KiB, MiB, GiB or TiB"},
	{"capacity-word", OPEN "<rr:capacity unit='GiB'>four</rr:capacity>" CLOSE,
	 .error = "<rr:capacity>: 'four' is not a whole number of GiB above 0"},
	{"capacity-fraction", OPEN "<rr:capacity unit='GiB'>1.5</rr:capacity>" CLOSE,
	 .error = "<rr:capacity>: '1.5' is not a whole number of GiB above 0"},
	{"capacity-zero", OPEN "<rr:capacity unit='GiB'>0</rr:capacity>" CLOSE,
	 .error = "<rr:capacity>: '0' is not a whole number of GiB above 0"},
	{"capacity-negative", OPEN "<rr:capacity unit='GiB'>-4</rr:capacity>" CLOSE,
	 .error = "<rr:capacity>: '-4' is not a whole number of GiB above 0"},
	{"capacity-overflow", OPEN "<rr:capacity unit='TiB'>18446744073709551615</rr:capacity>" CLOSE,
	 .error = "<rr:capacity>: '18446744073709551615' is not a whole number of TiB above 0", .form_is_right = TRUE},
	{"capacity-unaligned", OPEN "<rr:capacity unit='MiB'>4100</rr:capacity>" CLOSE,
	 .error = "<rr:capacity>: 4100 MiB is not a multiple of the chunk size, 128 MiB; the nearest sizes are 4 GiB and 4224 MiB", .form_is_right = TRUE},
	{"capacity-tiny", OPEN "<rr:capacity unit='MiB'>64</rr:capacity>" CLOSE,
	 .error = "<rr:capacity>: 64 MiB is not a multiple of the chunk size, 128 MiB; the smallest size is 128 MiB", .form_is_right = TRUE},
	{"capacity-min-unaligned", OPEN "<rr:capacity unit='MiB' min='1000'>4096</rr:capacity>" CLOSE,
	 .error = "<rr:capacity> attribute min: 1000 MiB is not a multiple of the chunk size, 128 MiB; the nearest sizes are 896 MiB and 1 GiB", .form_is_right = TRUE},
	{"capacity-max-word", OPEN "<rr:capacity unit='GiB' max='all'>4</rr:capacity>" CLOSE,
	 .error = "<rr:capacity> attribute max: 'all' is not a whole number of GiB above 0"},
	{"capacity-min", OPEN "<rr:capacity unit='GiB' min='5' max='8'>4</rr:capacity>" CLOSE,
	 .error = "<rr:capacity> 4 GiB is less than its own min, 5 GiB; raise the one or lower the other", .form_is_right = TRUE},
	{"capacity-above-memory", OPEN "<rr:capacity unit='GiB'>16</rr:capacity>" CLOSE,
	 .error = "<rr:capacity> is 16 GiB but <memory> is 8 GiB: <memory> is the most that the VM may get; raise it, or lower the capacity", .form_is_right = TRUE},
	{"capacity-max", OPEN "<rr:capacity unit='GiB' max='16'>4</rr:capacity>" CLOSE,
	 .error = "<rr:capacity> max is 16 GiB but <memory> is 8 GiB: both are the most that the VM may get; make them equal", .form_is_right = TRUE},
	{"memory-unaligned", OPEN CAP CLOSE, .size = "<memory unit='MiB'>8200</memory>",
	 .error = "<memory>: 8200 MiB is not a multiple of the chunk size, 128 MiB; the nearest sizes are 8 GiB and 8320 MiB", .form_is_right = TRUE},
	{"memory-missing", OPEN CAP CLOSE, .size = "",
	 .error = "the domain has no <memory>, which is the most that the VM may get", .form_is_right = TRUE},
	{"memory-unit", OPEN CAP CLOSE, .size = "<memory unit='pages'>8</memory>",
	 .error = "<memory unit='pages'> '8' is not a size", .form_is_right = TRUE},
	{"current-memory", OPEN CAP CLOSE, .size = "<memory unit='GiB'>8</memory><currentMemory unit='GiB'>4</currentMemory>",
	 .error = "<currentMemory> is 4 GiB but <memory> is 8 GiB: libvirt would inflate the balloon; make them equal, <rr:capacity> says what the VM starts with", .form_is_right = TRUE},

	/* bandwidth */
	{"bandwidth-unit", OPEN CAP "<rr:bandwidth unit='MB/s'>3</rr:bandwidth>" CLOSE,
	 .error = "<rr:bandwidth> has the unknown unit 'MB/s'; use channels or GB/s"},
	{"bandwidth-share", OPEN CAP "<rr:bandwidth share='fair'>3</rr:bandwidth>" CLOSE,
	 .error = "<rr:bandwidth> attribute share: 'fair' is unknown; use exclusive or shared"},
	{"bandwidth-word", OPEN CAP "<rr:bandwidth>many</rr:bandwidth>" CLOSE,
	 .error = "<rr:bandwidth>: 'many' is not a whole number of channels above 0"},
	{"bandwidth-empty", OPEN CAP "<rr:bandwidth/>" CLOSE,
	 .error = "<rr:bandwidth>: '' is not a whole number of channels above 0"},
	{"bandwidth-half", OPEN CAP "<rr:bandwidth>1.5</rr:bandwidth>" CLOSE,
	 .error = "<rr:bandwidth>: '1.5' is not a whole number of channels above 0"},
	{"bandwidth-gbps", OPEN CAP "<rr:bandwidth unit='GB/s'>1.2345</rr:bandwidth>" CLOSE,
	 .error = "<rr:bandwidth>: '1.2345' is not a number of GB/s with at most three decimals above 0"},
	{"bandwidth-min", OPEN CAP "<rr:bandwidth min='4'>3</rr:bandwidth>" CLOSE,
	 .error = "<rr:bandwidth> 3 is less than its own min, 4; change one of them", .form_is_right = TRUE},
	{"bandwidth-max", OPEN CAP "<rr:bandwidth max='2'>3</rr:bandwidth>" CLOSE,
	 .error = "<rr:bandwidth> 3 is more than its own max, 2; change one of them", .form_is_right = TRUE},
	{"bandwidth-attribute", OPEN CAP "<rr:bandwidth weight='4'>3</rr:bandwidth>" CLOSE,
	 .error = "<rr:bandwidth> has the unknown attribute 'weight'; known are: unit, min, max, share"},

	/* placement */
	{"tier", OPEN CAP "<rr:placement tiers='dimm hbm'/>" CLOSE,
	 .error = "<rr:placement> attribute tiers: 'hbm' is unknown; the tiers are dimm and cxl"},
	{"tier-cxl-only", OPEN CAP "<rr:placement tiers='cxl'/>" CLOSE,
	 .error = "<rr:placement> attribute tiers: 'cxl' has no dimm, where the base memory must lie; add it", .form_is_right = TRUE},
	{"sockets", OPEN CAP "<rr:placement sockets='0,1'/>" CLOSE,
	 .error = "<rr:placement> attribute sockets: '0,1' is not a socket number (0 to 63); write auto, or numbers with blanks between them"},
	{"sockets-large", OPEN CAP "<rr:placement sockets='64'/>" CLOSE,
	 .error = "<rr:placement> attribute sockets: '64' is not a socket number (0 to 63); write auto, or numbers with blanks between them"},
	{"sockets-empty", OPEN CAP "<rr:placement sockets=''/>" CLOSE,
	 .error = "<rr:placement> attribute sockets is empty; write auto, or numbers with blanks between them"},
	{"base", OPEN CAP "<rr:placement base='half'/>" CLOSE,
	 .error = "<rr:placement> attribute base: 'half' is not a size; write auto, or for example 2GiB"},
	{"base-unaligned", OPEN CAP "<rr:placement base='1100M'/>" CLOSE,
	 .error = "<rr:placement> attribute base: 1100 MiB is not a multiple of the chunk size, 128 MiB; the nearest sizes are 1 GiB and 1152 MiB", .form_is_right = TRUE},
	{"base-large", OPEN CAP "<rr:placement base='5G'/>" CLOSE,
	 .error = "<rr:placement> attribute base: 5 GiB is more than <rr:capacity>, 4 GiB, which includes it", .form_is_right = TRUE},
	{"placement-text", OPEN CAP "<rr:placement>dimm</rr:placement>" CLOSE,
	 .error = "<rr:placement> holds the text 'dimm'; it takes attributes only"},
	{"placement-child", OPEN CAP "<rr:placement><rr:tier/></rr:placement>" CLOSE,
	 .error = "<rr:placement> holds the unknown element <tier>; remove it"},

	/* policy */
	{"policy-kind", OPEN CAP "<rr:policy kind='magic'/>" CLOSE,
	 .error = "<rr:policy> kind 'magic' is unknown; use manual, threshold, predict or slo"},
	{"policy-later", OPEN CAP "<rr:policy kind='threshold'/>" CLOSE,
	 .error = "<rr:policy> kind 'threshold' is not served by this version; write kind=\"manual\" and resize with rmctl", .form_is_right = TRUE},
	{"policy-grow", OPEN CAP "<rr:policy grow='180'/>" CLOSE,
	 .error = "<rr:policy> attribute grow: '180' is not a percentage above 0"},
	{"policy-window", OPEN CAP "<rr:policy grow-window='0'/>" CLOSE,
	 .error = "<rr:policy> attribute grow-window: '0' is not a number of seconds above 0"},
	{"policy-mode", OPEN CAP "<rr:policy mode='both'/>" CLOSE,
	 .error = "<rr:policy> attribute mode: 'both' is unknown; use auto, capacity or bandwidth"},

	/* the rest of the domain */
	{"hugepages", OPEN CAP CLOSE, .extra = "<memoryBacking><hugepages/></memoryBacking>",
	 .error = "<hugepages> in <memoryBacking> does not go with <rr:memory>: it would take host memory beside the VM's channels; remove it", .form_is_right = TRUE},
	{"locked", OPEN CAP CLOSE, .extra = "<memoryBacking><nosharepages/><locked/></memoryBacking>",
	 .error = "<locked> in <memoryBacking> does not go with <rr:memory>: it would take host memory beside the VM's channels; remove it", .form_is_right = TRUE},
	{"immediate", OPEN CAP CLOSE, .extra = "<memoryBacking><allocation mode='immediate'/></memoryBacking>",
	 .error = "<allocation mode='immediate'> in <memoryBacking> does not go with <rr:memory>: it would take host memory beside the VM's channels; remove it", .form_is_right = TRUE},
	{"numa", OPEN CAP CLOSE, .extra = "<cpu><numa><cell id='0' cpus='0-3' memory='8388608'/></numa></cpu>",
	 .error = "<numa> in <cpu> does not go with <rr:memory>, which makes the guest's nodes itself; remove it", .form_is_right = TRUE},
	{"max-memory", OPEN CAP CLOSE, .extra = "<maxMemory slots='16'>16777216</maxMemory>",
	 .error = "<maxMemory> does not go with <rr:memory>: <memory> is the most that the VM may get; remove it", .form_is_right = TRUE},
	{"memory-device", OPEN CAP CLOSE, .devices = "<memory model='virtio-mem'/>",
	 .error = "<memory model='virtio-mem'> in <devices> does not go with <rr:memory>; remove it and raise <memory>", .form_is_right = TRUE},
	{"machine", OPEN CAP CLOSE, .machine = "<type arch='x86_64' machine='microvm'>hvm</type>",
	 .error = "<type machine='microvm'> does not go with <rr:memory>; use q35 or pc", .form_is_right = TRUE},
	{"arch", OPEN CAP CLOSE, .machine = "<type arch='aarch64' machine='virt'>hvm</type>",
	 .error = "<type arch='aarch64'> does not go with <rr:memory>; use x86_64", .form_is_right = TRUE},
	{"type", OPEN CAP CLOSE, .type = "xen",
	 .error = "<domain type='xen'> does not go with <rr:memory>; use kvm or qemu", .form_is_right = TRUE},
	{"emulator", OPEN CAP CLOSE, .devices = "<emulator>/usr/bin/qemu-system-x86_64</emulator>",
	 .error = "<emulator> '/usr/bin/qemu-system-x86_64' does not go with <rr:memory>; use the qemu-ramryder of this installation", .form_is_right = TRUE},
};
/* clang-format on */

static void
test_refused(gconstpointer data)
{
	const Case *c = data;
	g_autofree char *xml = domain_xml(c);
	g_autoptr(GError) error = NULL;
	RmDomainXml *domain = NULL;

	g_assert_false(rm_domain_xml_parse(xml, -1, &domain, &error));
	g_assert_error(error, RM_ERROR, RM_ERROR_INVALID);
	g_assert_cmpstr(error->message, ==, c->error);
	g_assert_null(domain);
	g_assert_null(strchr(error->message, '\n'));
	/* The schema and the code are two statements of one form. */
	if (!g_str_equal(c->name, "twice"))
		g_assert_cmpint(schema_accepts(c->memory), ==, c->form_is_right);
}

static void
test_not_xml(void)
{
	g_autoptr(GError) error = NULL;
	g_autoptr(GError) other = NULL;
	RmDomainXml *domain = NULL;

	g_assert_false(rm_domain_xml_parse("<domain><name>", -1, &domain, &error));
	g_assert_error(error, RM_ERROR, RM_ERROR_INVALID);
	g_assert_true(g_str_has_prefix(error->message, "the domain XML cannot be read: line 1: "));
	g_assert_false(rm_domain_xml_parse("<network/>", -1, &domain, &other));
	g_assert_cmpstr(
		other->message, ==,
		"the XML is not that of a libvirt domain: its root is <network>, not <domain>");
}

static void
test_peek(void)
{
	static const struct {
		Case c;
		gboolean ours;
	} peeks[] = {
		{{.memory = OPEN CAP CLOSE}, TRUE},
		{{.memory = OPEN CLOSE, .devices = ""}, TRUE},
		{{.memory = "<rr:memory xmlns:rr='urn:ramryder:libvirt:9'/>", .devices = ""}, TRUE},
		{{.memory = NULL}, TRUE}, /* its emulator is the shim */
		{{.memory = NULL, .devices = "<emulator>/usr/bin/kvm</emulator>"}, FALSE},
	};
	gsize i;

	for (i = 0; i < G_N_ELEMENTS(peeks); i++) {
		g_autofree char *xml = domain_xml(&peeks[i].c);
		g_autofree char *uuid = NULL;
		g_autoptr(GError) error = NULL;
		gboolean ours;

		g_assert_true(rm_domain_xml_peek(xml, -1, &uuid, &ours, &error));
		g_assert_cmpstr(uuid, ==, "b1f9d6a2-5c0e-4b62-9b0e-0c9aa7a3f1d4");
		g_assert_cmpint(ours, ==, peeks[i].ours);
	}
}

static void
test_sizes(void)
{
	static const struct {
		const char *text;
		guint64 bytes;
		const char *format;
	} good[] = {
		{"128M", 128 * RM_MIB, "128 MiB"},
		{"4G", 4 * RM_GIB, "4 GiB"},
		{"4GiB", 4 * RM_GIB, "4 GiB"},
		{"4 gib", 4 * RM_GIB, "4 GiB"},
		{" 1T ", RM_TIB, "1 TiB"},
		{"134217728", 128 * RM_MIB, "128 MiB"},
		{"4100m", 4100 * RM_MIB, "4100 MiB"},
		{"17", 17, "17 bytes"},
		{"0", 0, "0"},
	};
	static const char *const bad[] = {"",
					  "G",
					  "-1G",
					  "4GB",
					  "1.5G",
					  "4X",
					  "0x10",
					  "+4G",
					  "4 G G",
					  "99999999999T",
					  "99999999999999999999"};
	gsize i;

	for (i = 0; i < G_N_ELEMENTS(good); i++) {
		g_autofree char *format = NULL;
		guint64 bytes = 1;

		g_assert_true(rm_size_parse(good[i].text, &bytes, NULL));
		g_assert_cmpuint(bytes, ==, good[i].bytes);
		format = rm_size_format(bytes);
		g_assert_cmpstr(format, ==, good[i].format);
	}
	for (i = 0; i < G_N_ELEMENTS(bad); i++) {
		g_autoptr(GError) error = NULL;
		guint64 bytes = 1;

		g_assert_false(rm_size_parse(bad[i], &bytes, &error));
		g_assert_error(error, RM_ERROR, RM_ERROR_INVALID);
		g_assert_nonnull(strstr(error->message, bad[i]));
		g_assert_cmpuint(bytes, ==, 1);
	}
}

int
main(int argc, char **argv)
{
	gsize i;

	g_test_init(&argc, &argv, NULL);
	g_test_add_func("/domain-xml/full", test_full);
	g_test_add_func("/domain-xml/defaults", test_defaults);
	g_test_add_func("/domain-xml/gbps", test_gbps);
	g_test_add_func("/domain-xml/not-ours", test_not_ours);
	g_test_add_func("/domain-xml/not-xml", test_not_xml);
	g_test_add_func("/domain-xml/peek", test_peek);
	g_test_add_func("/domain-xml/sizes", test_sizes);
	for (i = 0; i < G_N_ELEMENTS(cases); i++) {
		g_autofree char *path = g_strconcat("/domain-xml/refused/", cases[i].name, NULL);

		g_test_add_data_func(path, &cases[i], test_refused);
	}
	return g_test_run();
}
