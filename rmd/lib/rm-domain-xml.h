/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What a libvirt domain asks of us: reads the domain XML that libvirt hands to its hooks and checks
 * <rr:memory> and the rest of the domain against it. Owns the meaning of that element (data/
 * ramryder-domain.rng states its form); knows neither channels nor the ledger, and includes no bus
 * and no libvirt header.
 *
 *   <metadata>
 *     <rr:memory xmlns:rr="urn:ramryder:libvirt:1">
 *       <rr:capacity unit="GiB" min="2" max="8">4</rr:capacity>
 *       <rr:bandwidth unit="channels" min="1" max="4" share="exclusive">3</rr:bandwidth>
 *       <rr:placement tiers="dimm cxl" sockets="auto" base="auto"/>
 *       <rr:policy kind="manual"/>
 *     </rr:memory>
 *   </metadata>
 *
 * Left out: capacity max = <memory>; capacity min = base memory of one head, MAX(1 GiB, max / 8 in
 * whole chunks), or the value where that is less; bandwidth = 1 channel, its min = 1, its max = all
 * channels that the placement allows; share = exclusive; tiers = "dimm cxl"; sockets = auto; base =
 * auto; policy = manual.
 */
#ifndef RM_DOMAIN_XML_H
#define RM_DOMAIN_XML_H

#include <glib.h>

G_BEGIN_DECLS

#define RM_DOMAIN_XML_NAMESPACE "urn:ramryder:libvirt:1"

typedef enum {
	RM_BANDWIDTH_CHANNELS,
	RM_BANDWIDTH_MBPS, /* unit="GB/s" */
} RmBandwidthUnit;

typedef struct {
	char *name;
	char *uuid;          /* lower case, with hyphens */
	char *machine;       /* as in <type machine=…>: q35, pc, or a versioned one of these */
	char *emulator;      /* NULL if the XML names none */
	guint vcpus;         /* all that it may have */
	guint vcpus_current; /* at start */

	/* Multiples of a chunk; min <= value <= max; all include the base memory. */
	guint64 capacity_bytes;
	guint64 capacity_min_bytes;
	guint64 capacity_max_bytes; /* equal to <memory> */

	RmBandwidthUnit bandwidth_unit;
	/* In the unit that is not used all three are 0; a max of 0 in the one that is means "all
	 * that the placement allows". */
	guint bandwidth_channels;
	guint bandwidth_channels_min;
	guint bandwidth_channels_max;
	guint64 bandwidth_mbps;
	guint64 bandwidth_mbps_min;
	guint64 bandwidth_mbps_max;
	gboolean share_exclusive;

	gboolean tier_dimm;
	gboolean tier_cxl;
	gboolean sockets_auto;
	guint64 sockets;    /* bit n: socket n; 0 if sockets_auto */
	guint64 base_bytes; /* per head; 0 = auto */
} RmDomainXml;

/*
 * Reads @xml (@len bytes, or -1 if it ends with NUL). TRUE with *ret_domain == NULL: a domain
 * without <rr:memory>, none of our business whatever else it holds. FALSE with RM_ERROR_INVALID: a
 * single line that names the element and the values and says what to change.
 */
gboolean rm_domain_xml_parse(const char *xml, gssize len, RmDomainXml **ret_domain, GError **error);

/*
 * Only what is needed to let go of a domain, and without any judgement of the rest: its UUID, and
 * whether it could have a claim (it has an element of ours, or our shim is its emulator).
 */
gboolean rm_domain_xml_peek(const char *xml, gssize len, char **ret_uuid, gboolean *ret_ours,
			    GError **error);

void rm_domain_xml_free(RmDomainXml *domain);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RmDomainXml, rm_domain_xml_free)

G_END_DECLS

#endif
