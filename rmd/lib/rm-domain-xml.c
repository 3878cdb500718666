/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "rm-domain-xml.h"

#include <string.h>

#include <libxml/parser.h>
#include <libxml/tree.h>

#include "rm-error.h"
#include "rm-size.h"

#define NAMESPACE_STEM "urn:ramryder:libvirt:"
#define SHIM_NAME      "qemu-ramryder"

G_DEFINE_AUTOPTR_CLEANUP_FUNC(xmlDoc, xmlFreeDoc)

/* The elements of <rr:memory>; each at most once. */
typedef struct {
	xmlNode *capacity;
	xmlNode *bandwidth;
	xmlNode *placement;
	xmlNode *policy;
} MemoryParts;

void
rm_domain_xml_free(RmDomainXml *domain)
{
	if (domain == NULL)
		return;
	g_free(domain->name);
	g_free(domain->uuid);
	g_free(domain->machine);
	g_free(domain->emulator);
	g_free(domain);
}

/* ---- libxml2, made short ---- */

static const char *
node_name(const xmlNode *node)
{
	return (const char *)node->name;
}

static const char *
node_namespace(const xmlNode *node)
{
	return node->ns != NULL ? (const char *)node->ns->href : "";
}

/* The first child element of @parent that is called @name and is in no namespace; NULL-safe. */
static xmlNode *
child_element(xmlNode *parent, const char *name)
{
	xmlNode *node = parent != NULL ? xmlFirstElementChild(parent) : NULL;

	for (; node != NULL; node = xmlNextElementSibling(node))
		if (node->ns == NULL && g_str_equal(node_name(node), name))
			return node;
	return NULL;
}

static char *
attribute(xmlNode *node, const char *name)
{
	xmlChar *value = node != NULL ? xmlGetNoNsProp(node, (const xmlChar *)name) : NULL;
	char *copy = value != NULL ? g_strstrip(g_strdup((const char *)value)) : NULL;

	xmlFree(value);
	return copy;
}

/* The trimmed text of an element; NULL for no element. */
static char *
element_text(xmlNode *node)
{
	xmlChar *value = node != NULL ? xmlNodeGetContent(node) : NULL;
	char *copy = value != NULL ? g_strstrip(g_strdup((const char *)value)) : NULL;

	xmlFree(value);
	return copy;
}

static xmlDoc *
read_document(const char *xml, gssize len, GError **error)
{
	gsize size = len < 0 ? strlen(xml) : (gsize)len;
	g_autoptr(xmlDoc) document = NULL;
	xmlNode *root;

	if (size > G_MAXINT) {
		rm_error_set(error, RM_ERROR_INVALID, "the domain XML is larger than 2 GiB");
		return NULL;
	}
	document = xmlReadMemory(xml, (int)size, "domain.xml", NULL,
				 XML_PARSE_NONET | XML_PARSE_NOERROR | XML_PARSE_NOWARNING |
					 XML_PARSE_NOCDATA);
	if (document == NULL) {
		const xmlError *last = xmlGetLastError();
		g_autofree char *why = g_strstrip(g_strdup(
			last != NULL && last->message != NULL ? last->message : "unknown error"));

		rm_error_set(error, RM_ERROR_INVALID, "the domain XML cannot be read: line %d: %s",
			     last != NULL ? last->line : 0, why);
		return NULL;
	}
	root = xmlDocGetRootElement(document);
	if (root == NULL || !g_str_equal(node_name(root), "domain")) {
		rm_error_set(
			error, RM_ERROR_INVALID,
			"the XML is not that of a libvirt domain: its root is <%s>, not <domain>",
			root != NULL ? node_name(root) : "");
		return NULL;
	}
	return g_steal_pointer(&document);
}

/* ---- finding <rr:memory> ---- */

/*
 * TRUE with *ret_memory == NULL where <metadata> holds nothing of ours. Another version of our
 * namespace is an error: a VM that asks for channels must not come up without them.
 */
static gboolean
find_memory(xmlNode *root, xmlNode **ret_memory, GError **error)
{
	xmlNode *metadata = child_element(root, "metadata");
	xmlNode *node = metadata != NULL ? xmlFirstElementChild(metadata) : NULL;

	*ret_memory = NULL;
	for (; node != NULL; node = xmlNextElementSibling(node)) {
		const char *space = node_namespace(node);

		if (!g_str_has_prefix(space, NAMESPACE_STEM))
			continue;
		if (!g_str_equal(space, RM_DOMAIN_XML_NAMESPACE)) {
			rm_error_set(
				error, RM_ERROR_INVALID,
				"<%s> in <metadata> has the namespace %s, which this version does "
				"not know; it knows " RM_DOMAIN_XML_NAMESPACE,
				node_name(node), space);
			return FALSE;
		}
		if (!g_str_equal(node_name(node), "memory")) {
			rm_error_set(error, RM_ERROR_INVALID,
				     "<rr:%s> in <metadata> is unknown; there is only <rr:memory>",
				     node_name(node));
			return FALSE;
		}
		if (*ret_memory != NULL) {
			rm_error_set(error, RM_ERROR_INVALID,
				     "<rr:memory> is there twice in <metadata>; keep one");
			return FALSE;
		}
		*ret_memory = node;
	}
	return TRUE;
}

/* Refuses attributes that are not in the NULL-terminated list @allowed. */
static gboolean
check_attributes(xmlNode *node, const char *const *allowed, GError **error)
{
	const xmlAttr *attr;

	for (attr = node->properties; attr != NULL; attr = attr->next) {
		g_autofree char *list = NULL;

		if (attr->ns == NULL && g_strv_contains(allowed, (const char *)attr->name))
			continue;
		list = g_strjoinv(", ", (char **)allowed);
		rm_error_set(error, RM_ERROR_INVALID,
			     "<rr:%s> has the unknown attribute '%s'; known are: %s",
			     node_name(node), (const char *)attr->name,
			     allowed[0] != NULL ? list : "none");
		return FALSE;
	}
	return TRUE;
}

/* Refuses elements below @node. */
static gboolean
check_no_children(xmlNode *node, GError **error)
{
	xmlNode *child = xmlFirstElementChild(node);

	if (child == NULL)
		return TRUE;
	rm_error_set(error, RM_ERROR_INVALID, "<rr:%s> holds the unknown element <%s>; remove it",
		     node_name(node), node_name(child));
	return FALSE;
}

static gboolean
check_no_text(xmlNode *node, GError **error)
{
	g_autofree char *text = element_text(node);

	if (text == NULL || text[0] == '\0')
		return TRUE;
	rm_error_set(error, RM_ERROR_INVALID,
		     "<rr:%s> holds the text '%s'; it takes attributes only", node_name(node),
		     text);
	return FALSE;
}

/* Own text between the elements of <rr:memory>. */
static gboolean
check_memory_text(xmlNode *memory, GError **error)
{
	const xmlNode *node;

	for (node = memory->children; node != NULL; node = node->next) {
		g_autofree char *text = NULL;

		if (node->type != XML_TEXT_NODE)
			continue;
		text = g_strstrip(g_strdup((const char *)node->content));
		if (text[0] == '\0')
			continue;
		rm_error_set(error, RM_ERROR_INVALID,
			     "<rr:memory> holds the text '%s'; it takes elements only", text);
		return FALSE;
	}
	return TRUE;
}

static gboolean
collect_parts(xmlNode *memory, MemoryParts *ret_parts, GError **error)
{
	static const char *const none[] = {NULL};
	MemoryParts parts = {NULL};
	struct {
		const char *name;
		xmlNode **slot;
	} known[] = {
		{"capacity", &parts.capacity},
		{"bandwidth", &parts.bandwidth},
		{"placement", &parts.placement},
		{"policy", &parts.policy},
	};
	xmlNode *node;

	if (!check_attributes(memory, none, error) || !check_memory_text(memory, error))
		return FALSE;
	for (node = xmlFirstElementChild(memory); node != NULL;
	     node = xmlNextElementSibling(node)) {
		xmlNode **slot = NULL;
		gsize i;

		for (i = 0; i < G_N_ELEMENTS(known); i++)
			if (g_str_equal(node_namespace(node), RM_DOMAIN_XML_NAMESPACE) &&
			    g_str_equal(node_name(node), known[i].name))
				slot = known[i].slot;
		if (slot == NULL) {
			rm_error_set(
				error, RM_ERROR_INVALID,
				"<rr:memory> holds the unknown element <%s>; known are "
				"<rr:capacity>, <rr:bandwidth>, <rr:placement> and <rr:policy>",
				node_name(node));
			return FALSE;
		}
		if (*slot != NULL) {
			rm_error_set(error, RM_ERROR_INVALID,
				     "<rr:%s> is there twice in <rr:memory>; keep one",
				     node_name(node));
			return FALSE;
		}
		*slot = node;
	}
	if (parts.capacity == NULL) {
		rm_error_set(error, RM_ERROR_INVALID,
			     "<rr:memory> has no <rr:capacity>; say how much memory the VM starts "
			     "with, for example <rr:capacity unit=\"GiB\">4</rr:capacity>");
		return FALSE;
	}
	*ret_parts = parts;
	return TRUE;
}

/* ---- libvirt's own memory ---- */

/* libvirt's scaled integers: <memory unit="KiB">4194304</memory>; without a unit they are KiB. */
static gboolean
read_libvirt_size(xmlNode *node, guint64 *ret_bytes, GError **error)
{
	static const struct {
		const char *name;
		guint64 factor;
	} units[] = {
		{"b", 1},      {"bytes", 1},    {"KB", 1000},
		{"k", RM_KIB}, {"KiB", RM_KIB}, {"MB", 1000 * 1000},
		{"M", RM_MIB}, {"MiB", RM_MIB}, {"GB", 1000 * 1000 * 1000},
		{"G", RM_GIB}, {"GiB", RM_GIB}, {"TB", G_GUINT64_CONSTANT(1000000000000)},
		{"T", RM_TIB}, {"TiB", RM_TIB},
	};
	g_autofree char *text = element_text(node);
	g_autofree char *unit = attribute(node, "unit");
	guint64 factor = 0, number;
	gsize i;

	for (i = 0; i < G_N_ELEMENTS(units); i++)
		if (g_str_equal(unit != NULL ? unit : "KiB", units[i].name))
			factor = units[i].factor;
	if (factor == 0 || !g_ascii_string_to_unsigned(text, 10, 1, G_MAXUINT64, &number, NULL) ||
	    !g_uint64_checked_mul(ret_bytes, number, factor)) {
		rm_error_set(error, RM_ERROR_INVALID, "<%s unit='%s'> '%s' is not a size",
			     node_name(node), unit != NULL ? unit : "KiB", text);
		return FALSE;
	}
	return TRUE;
}

/* ---- <rr:capacity> ---- */

static gboolean
read_capacity_number(const char *what, const char *text, guint64 factor, const char *unit,
		     guint64 *ret_bytes, GError **error)
{
	guint64 number, bytes;

	if (!g_ascii_string_to_unsigned(text, 10, 1, G_MAXUINT64, &number, NULL) ||
	    !g_uint64_checked_mul(&bytes, number, factor)) {
		rm_error_set(error, RM_ERROR_INVALID,
			     "%s: '%s' is not a whole number of %s above 0", what, text, unit);
		return FALSE;
	}
	if (!rm_size_check_chunks(what, bytes, error))
		return FALSE;
	*ret_bytes = bytes;
	return TRUE;
}

/* Leaves *bytes alone if the attribute is missing. */
static gboolean
read_capacity_attribute(xmlNode *node, const char *name, guint64 factor, const char *unit,
			guint64 *bytes, GError **error)
{
	g_autofree char *text = attribute(node, name);
	g_autofree char *what = NULL;

	if (text == NULL)
		return TRUE;
	what = g_strdup_printf("<rr:capacity> attribute %s", name);
	return read_capacity_number(what, text, factor, unit, bytes, error);
}

static gboolean
check_capacity_order(const RmDomainXml *domain, GError **error)
{
	g_autofree char *value = rm_size_format(domain->capacity_bytes);
	g_autofree char *min = rm_size_format(domain->capacity_min_bytes);
	g_autofree char *max = rm_size_format(domain->capacity_max_bytes);

	if (domain->capacity_min_bytes > domain->capacity_bytes) {
		rm_error_set(
			error, RM_ERROR_INVALID,
			"<rr:capacity> %s is less than its own min, %s; raise the one or lower "
			"the other",
			value, min);
		return FALSE;
	}
	if (domain->capacity_bytes > domain->capacity_max_bytes) {
		rm_error_set(
			error, RM_ERROR_INVALID,
			"<rr:capacity> %s is more than its own max, %s; lower the one or raise "
			"the other",
			value, max);
		return FALSE;
	}
	return TRUE;
}

static gboolean
check_against_memory(const RmDomainXml *domain, guint64 memory_bytes, gboolean has_max,
		     GError **error)
{
	g_autofree char *value = rm_size_format(domain->capacity_bytes);
	g_autofree char *max = rm_size_format(domain->capacity_max_bytes);
	g_autofree char *memory = rm_size_format(memory_bytes);

	if (has_max && domain->capacity_max_bytes != memory_bytes) {
		rm_error_set(
			error, RM_ERROR_INVALID,
			"<rr:capacity> max is %s but <memory> is %s: both are the most that the "
			"VM may get; make them equal",
			max, memory);
		return FALSE;
	}
	if (domain->capacity_bytes > memory_bytes) {
		rm_error_set(
			error, RM_ERROR_INVALID,
			"<rr:capacity> is %s but <memory> is %s: <memory> is the most that the VM "
			"may get; raise it, or lower the capacity",
			value, memory);
		return FALSE;
	}
	return TRUE;
}

static gboolean
read_capacity(xmlNode *node, guint64 memory_bytes, RmDomainXml *domain, GError **error)
{
	static const char *const allowed[] = {"unit", "min", "max", NULL};
	g_autofree char *unit = attribute(node, "unit");
	g_autofree char *text = element_text(node);
	guint64 factor, min_bytes = 0, max_bytes = 0;

	if (!check_attributes(node, allowed, error) || !check_no_children(node, error))
		return FALSE;
	factor = unit != NULL ? rm_size_unit(unit) : 0;
	if (factor == 0) {
		rm_error_set(error, RM_ERROR_INVALID,
			     "<rr:capacity> has %s%s%s; use bytes, KiB, MiB, GiB or TiB",
			     unit != NULL ? "the unknown unit '" : "no unit",
			     unit != NULL ? unit : "", unit != NULL ? "'" : "");
		return FALSE;
	}
	if (!read_capacity_number("<rr:capacity>", text, factor, unit, &domain->capacity_bytes,
				  error) ||
	    !read_capacity_attribute(node, "min", factor, unit, &min_bytes, error) ||
	    !read_capacity_attribute(node, "max", factor, unit, &max_bytes, error))
		return FALSE;

	domain->capacity_max_bytes = max_bytes != 0 ? max_bytes : memory_bytes;
	if (!check_against_memory(domain, memory_bytes, max_bytes != 0, error))
		return FALSE;
	if (max_bytes == 0 && !rm_size_check_chunks("<memory>", memory_bytes, error))
		return FALSE;
	if (min_bytes == 0) {
		guint64 eighth = domain->capacity_max_bytes / 8;

		min_bytes = (eighth + RM_CHUNK_BYTES - 1) / RM_CHUNK_BYTES * RM_CHUNK_BYTES;
		min_bytes = MIN(MAX(min_bytes, RM_GIB), domain->capacity_bytes);
	}
	domain->capacity_min_bytes = min_bytes;
	return check_capacity_order(domain, error);
}

/* ---- <rr:bandwidth> ---- */

/* "80" or "80.5" GB/s as 80000 or 80500 MB/s; up to three digits after the point. */
static gboolean
parse_gbps(const char *text, guint64 *ret_mbps)
{
	g_auto(GStrv) parts = g_strsplit(text, ".", 2);
	guint64 whole, fraction = 0;
	gsize digits;

	if (!g_ascii_string_to_unsigned(parts[0], 10, 0, 1000 * 1000, &whole, NULL))
		return FALSE;
	if (parts[1] != NULL) {
		digits = strlen(parts[1]);
		if (digits > 3 ||
		    !g_ascii_string_to_unsigned(parts[1], 10, 0, 999, &fraction, NULL))
			return FALSE;
		for (; digits < 3; digits++)
			fraction *= 10;
	}
	*ret_mbps = whole * 1000 + fraction;
	return *ret_mbps > 0;
}

static gboolean
read_bandwidth_number(RmBandwidthUnit unit, const char *what, const char *text, guint64 *ret_value,
		      GError **error)
{
	gboolean ok = unit == RM_BANDWIDTH_MBPS
			      ? parse_gbps(text, ret_value)
			      : g_ascii_string_to_unsigned(text, 10, 1, 4096, ret_value, NULL);

	if (!ok)
		rm_error_set(error, RM_ERROR_INVALID, "%s: '%s' is not a %s above 0", what, text,
			     unit == RM_BANDWIDTH_MBPS
				     ? "number of GB/s with at most three decimals"
				     : "whole number of channels");
	return ok;
}

static gboolean
read_bandwidth_attribute(xmlNode *node, RmBandwidthUnit unit, const char *name, guint64 *value,
			 GError **error)
{
	g_autofree char *text = attribute(node, name);
	g_autofree char *what = NULL;

	if (text == NULL)
		return TRUE;
	what = g_strdup_printf("<rr:bandwidth> attribute %s", name);
	return read_bandwidth_number(unit, what, text, value, error);
}

static gboolean
read_bandwidth_unit(xmlNode *node, RmDomainXml *domain, GError **error)
{
	g_autofree char *unit = attribute(node, "unit");
	g_autofree char *share = attribute(node, "share");

	if (unit != NULL && !g_str_equal(unit, "channels") && !g_str_equal(unit, "GB/s")) {
		rm_error_set(error, RM_ERROR_INVALID,
			     "<rr:bandwidth> has the unknown unit '%s'; use channels or GB/s",
			     unit);
		return FALSE;
	}
	if (share != NULL && !g_str_equal(share, "exclusive") && !g_str_equal(share, "shared")) {
		rm_error_set(
			error, RM_ERROR_INVALID,
			"<rr:bandwidth> attribute share: '%s' is unknown; use exclusive or shared",
			share);
		return FALSE;
	}
	domain->bandwidth_unit = unit != NULL && g_str_equal(unit, "GB/s") ? RM_BANDWIDTH_MBPS
									   : RM_BANDWIDTH_CHANNELS;
	domain->share_exclusive = share == NULL || g_str_equal(share, "exclusive");
	return TRUE;
}

static gboolean
read_bandwidth(xmlNode *node, RmDomainXml *domain, GError **error)
{
	static const char *const allowed[] = {"unit", "min", "max", "share", NULL};
	g_autofree char *text = element_text(node);
	guint64 value = 0, min = 0, max = 0;
	RmBandwidthUnit unit;

	if (!check_attributes(node, allowed, error) || !check_no_children(node, error) ||
	    !read_bandwidth_unit(node, domain, error))
		return FALSE;
	unit = domain->bandwidth_unit;
	if (!read_bandwidth_number(unit, "<rr:bandwidth>", text, &value, error) ||
	    !read_bandwidth_attribute(node, unit, "min", &min, error) ||
	    !read_bandwidth_attribute(node, unit, "max", &max, error))
		return FALSE;
	if (min > value || (max != 0 && value > max)) {
		g_autofree char *limit = attribute(node, min > value ? "min" : "max");

		rm_error_set(error, RM_ERROR_INVALID,
			     "<rr:bandwidth> %s is %s than its own %s, %s; change one of them",
			     text, min > value ? "less" : "more", min > value ? "min" : "max",
			     limit);
		return FALSE;
	}
	if (unit == RM_BANDWIDTH_MBPS) {
		domain->bandwidth_mbps = value;
		domain->bandwidth_mbps_min = min != 0 ? min : 1;
		domain->bandwidth_mbps_max = max;
	} else {
		domain->bandwidth_channels = (guint)value;
		domain->bandwidth_channels_min = min != 0 ? (guint)min : 1;
		domain->bandwidth_channels_max = (guint)max;
	}
	return TRUE;
}

/* ---- <rr:placement> ---- */

static gboolean
read_tiers(xmlNode *node, RmDomainXml *domain, GError **error)
{
	g_autofree char *text = attribute(node, "tiers");
	g_auto(GStrv) words = NULL;
	guint i;

	if (text == NULL) {
		domain->tier_dimm = domain->tier_cxl = TRUE;
		return TRUE;
	}
	words = g_strsplit_set(text, " \t\r\n", -1);
	for (i = 0; words[i] != NULL; i++) {
		if (words[i][0] == '\0')
			continue;
		if (g_str_equal(words[i], "dimm")) {
			domain->tier_dimm = TRUE;
		} else if (g_str_equal(words[i], "cxl")) {
			domain->tier_cxl = TRUE;
		} else {
			rm_error_set(
				error, RM_ERROR_INVALID,
				"<rr:placement> attribute tiers: '%s' is unknown; the tiers are "
				"dimm and cxl",
				words[i]);
			return FALSE;
		}
	}
	/* The base memory lies on DIMM heads: without one there is no guest. */
	if (!domain->tier_dimm) {
		rm_error_set(
			error, RM_ERROR_INVALID,
			"<rr:placement> attribute tiers: '%s' has no dimm, where the base memory "
			"must lie; add it",
			text);
		return FALSE;
	}
	return TRUE;
}

static gboolean
read_sockets(xmlNode *node, RmDomainXml *domain, GError **error)
{
	g_autofree char *text = attribute(node, "sockets");
	g_auto(GStrv) words = NULL;
	guint i;

	domain->sockets_auto = text == NULL || g_str_equal(text, "auto");
	if (domain->sockets_auto)
		return TRUE;
	words = g_strsplit_set(text, " \t\r\n", -1);
	for (i = 0; words[i] != NULL; i++) {
		guint64 socket;

		if (words[i][0] == '\0')
			continue;
		if (!g_ascii_string_to_unsigned(words[i], 10, 0, 63, &socket, NULL)) {
			rm_error_set(
				error, RM_ERROR_INVALID,
				"<rr:placement> attribute sockets: '%s' is not a socket number "
				"(0 to 63); write auto, or numbers with blanks between them",
				words[i]);
			return FALSE;
		}
		domain->sockets |= G_GUINT64_CONSTANT(1) << socket;
	}
	if (domain->sockets == 0) {
		rm_error_set(
			error, RM_ERROR_INVALID,
			"<rr:placement> attribute sockets is empty; write auto, or numbers with "
			"blanks between them");
		return FALSE;
	}
	return TRUE;
}

static gboolean
read_base(xmlNode *node, RmDomainXml *domain, GError **error)
{
	g_autofree char *text = attribute(node, "base");
	g_autofree char *base = NULL;
	g_autofree char *value = NULL;

	if (text == NULL || g_str_equal(text, "auto"))
		return TRUE;
	if (!rm_size_parse(text, &domain->base_bytes, NULL) || domain->base_bytes == 0) {
		rm_error_set(
			error, RM_ERROR_INVALID,
			"<rr:placement> attribute base: '%s' is not a size; write auto, or for "
			"example 2GiB",
			text);
		return FALSE;
	}
	if (!rm_size_check_chunks("<rr:placement> attribute base", domain->base_bytes, error))
		return FALSE;
	if (domain->base_bytes <= domain->capacity_bytes)
		return TRUE;
	base = rm_size_format(domain->base_bytes);
	value = rm_size_format(domain->capacity_bytes);
	rm_error_set(error, RM_ERROR_INVALID,
		     "<rr:placement> attribute base: %s is more than <rr:capacity>, %s, which "
		     "includes it",
		     base, value);
	return FALSE;
}

static gboolean
read_placement(xmlNode *node, RmDomainXml *domain, GError **error)
{
	static const char *const allowed[] = {"tiers", "sockets", "base", NULL};

	return check_attributes(node, allowed, error) && check_no_children(node, error) &&
	       check_no_text(node, error) && read_tiers(node, domain, error) &&
	       read_sockets(node, domain, error) && read_base(node, domain, error);
}

/* ---- <rr:policy> ---- */

static gboolean
check_policy_numbers(xmlNode *node, GError **error)
{
	static const struct {
		const char *name;
		guint64 max;
		const char *kind;
	} numbers[] = {
		{"grow", 100, "a percentage"},
		{"shrink", 100, "a percentage"},
		{"grow-window", G_MAXUINT32, "a number of seconds"},
		{"shrink-window", G_MAXUINT32, "a number of seconds"},
	};
	static const char *const modes[] = {"auto", "capacity", "bandwidth", NULL};
	g_autofree char *mode = attribute(node, "mode");
	gsize i;

	for (i = 0; i < G_N_ELEMENTS(numbers); i++) {
		g_autofree char *text = attribute(node, numbers[i].name);
		guint64 number;

		if (text == NULL ||
		    g_ascii_string_to_unsigned(text, 10, 1, numbers[i].max, &number, NULL))
			continue;
		rm_error_set(error, RM_ERROR_INVALID,
			     "<rr:policy> attribute %s: '%s' is not %s above 0", numbers[i].name,
			     text, numbers[i].kind);
		return FALSE;
	}
	if (mode == NULL || g_strv_contains(modes, mode))
		return TRUE;
	rm_error_set(error, RM_ERROR_INVALID,
		     "<rr:policy> attribute mode: '%s' is unknown; use auto, capacity or bandwidth",
		     mode);
	return FALSE;
}

/*
 * The schema has the whole element; what no part of this version acts on is refused rather than
 * ignored, so that nobody waits for a VM to grow.
 */
static gboolean
read_policy(xmlNode *node, GError **error)
{
	static const char *const allowed[] = {"kind", "grow",          "grow-window", "shrink",
					      "mode", "shrink-window", NULL};
	static const char *const kinds[] = {"manual", "threshold", "predict", "slo", NULL};
	g_autofree char *kind = attribute(node, "kind");

	if (!check_attributes(node, allowed, error) || !check_no_children(node, error) ||
	    !check_no_text(node, error) || !check_policy_numbers(node, error))
		return FALSE;
	if (kind == NULL || g_str_equal(kind, "manual"))
		return TRUE;
	rm_error_set(
		error, RM_ERROR_INVALID,
		g_strv_contains(kinds, kind)
			? "<rr:policy> kind '%s' is not served by this version; write "
			  "kind=\"manual\" and resize with rmctl"
			: "<rr:policy> kind '%s' is unknown; use manual, threshold, predict or slo",
		kind);
	return FALSE;
}

/* ---- the rest of the domain ---- */

/* What fills, forbids or contradicts the memory that we provide; each by its name. */
static gboolean
check_memory_backing(xmlNode *root, GError **error)
{
	xmlNode *backing = child_element(root, "memoryBacking");
	xmlNode *allocation = child_element(backing, "allocation");
	g_autofree char *mode = attribute(allocation, "mode");
	const char *found = NULL;

	if (child_element(backing, "hugepages") != NULL)
		found = "<hugepages>";
	else if (child_element(backing, "locked") != NULL)
		found = "<locked>";
	else if (g_strcmp0(mode, "immediate") == 0)
		found = "<allocation mode='immediate'>";
	if (found == NULL)
		return TRUE;
	rm_error_set(
		error, RM_ERROR_INVALID,
		"%s in <memoryBacking> does not go with <rr:memory>: it would take host memory "
		"beside the VM's channels; remove it",
		found);
	return FALSE;
}

static gboolean
check_layout(xmlNode *root, GError **error)
{
	xmlNode *module = child_element(child_element(root, "devices"), "memory");
	g_autofree char *model = attribute(module, "model");

	if (child_element(child_element(root, "cpu"), "numa") != NULL) {
		rm_error_set(
			error, RM_ERROR_INVALID,
			"<numa> in <cpu> does not go with <rr:memory>, which makes the guest's "
			"nodes itself; remove it");
		return FALSE;
	}
	if (child_element(root, "maxMemory") != NULL) {
		rm_error_set(
			error, RM_ERROR_INVALID,
			"<maxMemory> does not go with <rr:memory>: <memory> is the most that the "
			"VM may get; remove it");
		return FALSE;
	}
	if (module != NULL) {
		rm_error_set(
			error, RM_ERROR_INVALID,
			"<memory model='%s'> in <devices> does not go with <rr:memory>; remove it "
			"and raise <memory>",
			model != NULL ? model : "");
		return FALSE;
	}
	return TRUE;
}

static gboolean
check_hypervisor(xmlNode *root, GError **error)
{
	xmlNode *os_type = child_element(child_element(root, "os"), "type");
	g_autofree char *type = attribute(root, "type");
	g_autofree char *arch = attribute(os_type, "arch");
	g_autofree char *machine = attribute(os_type, "machine");

	if (g_strcmp0(type, "kvm") != 0 && g_strcmp0(type, "qemu") != 0) {
		rm_error_set(error, RM_ERROR_INVALID,
			     "<domain type='%s'> does not go with <rr:memory>; use kvm or qemu",
			     type != NULL ? type : "");
		return FALSE;
	}
	if (arch != NULL && !g_str_equal(arch, "x86_64")) {
		rm_error_set(error, RM_ERROR_INVALID,
			     "<type arch='%s'> does not go with <rr:memory>; use x86_64", arch);
		return FALSE;
	}
	if (machine == NULL ||
	    !(g_str_equal(machine, "q35") || g_str_equal(machine, "pc") ||
	      g_str_has_prefix(machine, "pc-q35-") || g_str_has_prefix(machine, "pc-i440fx-"))) {
		rm_error_set(error, RM_ERROR_INVALID,
			     "<type machine='%s'> does not go with <rr:memory>; use q35 or pc",
			     machine != NULL ? machine : "");
		return FALSE;
	}
	return TRUE;
}

static gboolean
is_shim(const char *emulator)
{
	g_autofree char *name = g_path_get_basename(emulator);

	return g_str_has_prefix(name, SHIM_NAME);
}

/* Without the shim the VM would run on ordinary memory while its chunks lie idle. */
static gboolean
check_emulator(const char *emulator, GError **error)
{
	if (emulator == NULL || is_shim(emulator))
		return TRUE;
	rm_error_set(error, RM_ERROR_INVALID,
		     "<emulator> '%s' does not go with <rr:memory>; use the " SHIM_NAME
		     " of this installation",
		     emulator);
	return FALSE;
}

static gboolean
read_uuid(xmlNode *root, char **ret_uuid, GError **error)
{
	g_autofree char *text = element_text(child_element(root, "uuid"));
	g_autofree char *uuid = text != NULL ? g_ascii_strdown(text, -1) : NULL;

	if (uuid == NULL || !g_uuid_string_is_valid(uuid)) {
		rm_error_set(error, RM_ERROR_INVALID, "the domain has %s%s%s",
			     text != NULL ? "the UUID '" : "no <uuid>", text != NULL ? text : "",
			     text != NULL ? "', which is not one" : "");
		return FALSE;
	}
	*ret_uuid = g_steal_pointer(&uuid);
	return TRUE;
}

static gboolean
read_vcpus(xmlNode *vcpu, RmDomainXml *domain, GError **error)
{
	g_autofree char *all = element_text(vcpu);
	g_autofree char *current = attribute(vcpu, "current");
	guint64 count = 1, at_start = 1;

	if ((all != NULL && !g_ascii_string_to_unsigned(all, 10, 1, G_MAXUINT16, &count, NULL)) ||
	    (current != NULL &&
	     !g_ascii_string_to_unsigned(current, 10, 1, count, &at_start, NULL))) {
		rm_error_set(error, RM_ERROR_INVALID,
			     "<vcpu> says '%s', current '%s', which are not numbers of CPUs", all,
			     current != NULL ? current : "");
		return FALSE;
	}
	domain->vcpus = (guint)count;
	domain->vcpus_current = (guint)(current != NULL ? at_start : count);
	return TRUE;
}

static gboolean
read_identity(xmlNode *root, RmDomainXml *domain, GError **error)
{
	if (!read_vcpus(child_element(root, "vcpu"), domain, error))
		return FALSE;
	domain->name = element_text(child_element(root, "name"));
	if (domain->name == NULL || domain->name[0] == '\0') {
		rm_error_set(error, RM_ERROR_INVALID, "the domain has no <name>");
		return FALSE;
	}
	if (!read_uuid(root, &domain->uuid, error))
		return FALSE;
	domain->machine = attribute(child_element(child_element(root, "os"), "type"), "machine");
	domain->emulator = element_text(child_element(child_element(root, "devices"), "emulator"));
	return check_emulator(domain->emulator, error);
}

static gboolean
read_memory(xmlNode *root, guint64 *ret_bytes, GError **error)
{
	xmlNode *memory = child_element(root, "memory");
	xmlNode *current = child_element(root, "currentMemory");
	guint64 memory_bytes, current_bytes;
	g_autofree char *memory_text = NULL;
	g_autofree char *current_text = NULL;

	if (memory == NULL) {
		rm_error_set(error, RM_ERROR_INVALID,
			     "the domain has no <memory>, which is the most that the VM may get");
		return FALSE;
	}
	if (!read_libvirt_size(memory, &memory_bytes, error))
		return FALSE;
	*ret_bytes = memory_bytes;
	if (current == NULL)
		return TRUE;
	if (!read_libvirt_size(current, &current_bytes, error))
		return FALSE;
	if (current_bytes == memory_bytes)
		return TRUE;
	memory_text = rm_size_format(memory_bytes);
	current_text = rm_size_format(current_bytes);
	rm_error_set(error, RM_ERROR_INVALID,
		     "<currentMemory> is %s but <memory> is %s: libvirt would inflate the balloon; "
		     "make them equal, <rr:capacity> says what the VM starts with",
		     current_text, memory_text);
	return FALSE;
}

gboolean
rm_domain_xml_parse(const char *xml, gssize len, RmDomainXml **ret_domain, GError **error)
{
	g_autoptr(xmlDoc) document = read_document(xml, len, error);
	g_autoptr(RmDomainXml) domain = g_new0(RmDomainXml, 1);
	MemoryParts parts;
	xmlNode *root, *memory;
	guint64 memory_bytes;

	if (document == NULL)
		return FALSE;
	root = xmlDocGetRootElement(document);
	if (!find_memory(root, &memory, error))
		return FALSE;
	if (memory == NULL) {
		*ret_domain = NULL;
		return TRUE;
	}

	domain->share_exclusive = TRUE;
	domain->sockets_auto = TRUE;
	if (!check_hypervisor(root, error) || !read_identity(root, domain, error) ||
	    !collect_parts(memory, &parts, error) || !check_memory_backing(root, error) ||
	    !check_layout(root, error) || !read_memory(root, &memory_bytes, error) ||
	    !read_capacity(parts.capacity, memory_bytes, domain, error))
		return FALSE;
	if (parts.bandwidth == NULL)
		domain->bandwidth_channels = domain->bandwidth_channels_min = 1;
	else if (!read_bandwidth(parts.bandwidth, domain, error))
		return FALSE;
	if (parts.placement == NULL)
		domain->tier_dimm = domain->tier_cxl = TRUE;
	else if (!read_placement(parts.placement, domain, error))
		return FALSE;
	if (parts.policy != NULL && !read_policy(parts.policy, error))
		return FALSE;
	*ret_domain = g_steal_pointer(&domain);
	return TRUE;
}

gboolean
rm_domain_xml_peek(const char *xml, gssize len, char **ret_uuid, gboolean *ret_ours, GError **error)
{
	g_autoptr(xmlDoc) document = read_document(xml, len, error);
	g_autofree char *emulator = NULL;
	g_autofree char *uuid = NULL;
	xmlNode *root, *memory;
	gboolean ours;

	if (document == NULL)
		return FALSE;
	root = xmlDocGetRootElement(document);
	if (!read_uuid(root, &uuid, error))
		return FALSE;
	emulator = element_text(child_element(child_element(root, "devices"), "emulator"));
	/* What find_memory() refuses is ours as well. */
	ours = !find_memory(root, &memory, NULL) || memory != NULL ||
	       (emulator != NULL && is_shim(emulator));
	*ret_uuid = g_steal_pointer(&uuid);
	*ret_ours = ours;
	return TRUE;
}
