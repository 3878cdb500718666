/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "rm-qemu-args.h"

#include <stdarg.h>
#include <string.h>

#include "rm-error.h"

/* Slots 1 to 31 of our bus: a bridge's own slot 0 is reserved with a SHPC. */
#define SLOTS_PER_BUS 31
/*
 * Where the bus hangs. On q35 libvirt has its own bridge in 0x1e, USB, sound and the chip set in
 * 0x1a, 0x1b, 0x1d and 0x1f, and gives out root ports from 1 upwards; on pc it gives out 0x1f last.
 */
#define BUS_ADDR_Q35 "0x1c"
#define BUS_ADDR_PC  "0x1f"

static const RmVmChannel *
channel_at(const GArray *channels, guint i)
{
	return &g_array_index(channels, RmVmChannel, i);
}

static void add(GPtrArray *args, const char *option, const char *format, ...) G_GNUC_PRINTF(3, 4);

static void
add(GPtrArray *args, const char *option, const char *format, ...)
{
	va_list list;

	va_start(list, format);
	g_ptr_array_add(args, g_strdup(option));
	g_ptr_array_add(args, g_strdup_vprintf(format, list));
	va_end(list);
}

/* QEMU's option syntax: a comma in a value is written twice. */
static char *
escape(const char *value)
{
	g_auto(GStrv) parts = g_strsplit(value, ",", -1);

	return g_strjoinv(",,", parts);
}

/*
 * QEMU's own bus for the channel devices: fixed addresses, whatever libvirt puts on the root bus.
 * Returns NULL for a machine that has none.
 */
static const char *
bus_device(const char *machine)
{
	if (g_str_has_prefix(machine, "pc-q35") || g_str_equal(machine, "q35"))
		return "i82801b11-bridge,id=rrbus,bus=pcie.0,addr=" BUS_ADDR_Q35;
	if (g_str_has_prefix(machine, "pc-i440fx") || g_str_equal(machine, "pc"))
		return "pci-bridge,id=rrbus,bus=pci.0,chassis_nr=254,shpc=off,addr=" BUS_ADDR_PC;
	return NULL;
}

static gboolean
is_head(const RmVmChannel *c)
{
	return c->cnode == c->snode;
}

static guint
count_heads(const GArray *channels, gboolean with_base)
{
	guint i, n = 0;

	for (i = 0; i < channels->len; i++) {
		const RmVmChannel *c = channel_at(channels, i);

		n += is_head(c) && (!with_base || c->base_chunks);
	}
	return n;
}

/*
 * Size and room. A window is a memory device: QEMU aligns each and wants the sum within maxmem;
 * one GiB for each covers any alignment of ours.
 */
static void
add_sizes(GPtrArray *args, const GArray *channels)
{
	guint64 base_bytes = 0, max_bytes = RM_GIB;
	guint i;

	for (i = 0; i < channels->len; i++) {
		const RmVmChannel *c = channel_at(channels, i);

		base_bytes += c->base_chunks * RM_CHUNK_BYTES;
		max_bytes += c->window_chunks * RM_CHUNK_BYTES + RM_GIB;
	}
	add(args, "-m", "size=%" G_GUINT64_FORMAT "M,slots=0,maxmem=%" G_GUINT64_FORMAT "M",
	    base_bytes / RM_MIB, (base_bytes + max_bytes) / RM_MIB);
}

/* The vCPUs are shared out over the heads with base memory, in blocks. */
static void
add_node(GPtrArray *args, const RmTopology *topology, const RmVmChannel *c, guint vcpus,
	 guint index, guint n_heads)
{
	const char *name = rm_topology_channel(topology, c->channel)->name;
	/* Rounded up: what does not divide goes to the first. */
	guint first = (vcpus * index + n_heads - 1) / n_heads;
	guint end = (vcpus * (index + 1) + n_heads - 1) / n_heads;
	g_autofree char *cpus = NULL;

	if (!c->base_chunks) {
		add(args, "-numa", "node,nodeid=%u", c->cnode);
		return;
	}
	cpus = first < end ? g_strdup_printf("cpus=%u-%u,", first, end - 1) : g_strdup("");
	add(args, "-object",
	    "memory-backend-channel,id=base-%s,size=%" G_GUINT64_FORMAT "M,manager=rr0,channel=%s,"
	    "base=on",
	    name, c->base_chunks * RM_CHUNK_BYTES / RM_MIB, name);
	add(args, "-numa", "node,nodeid=%u,%smemdev=base-%s", c->cnode, cpus, name);
}

static void
add_channel(GPtrArray *args, const RmTopology *topology, const RmVmChannel *c)
{
	const RmChannel *channel = rm_topology_channel(topology, c->channel);

	add(args, "-numa",
	    "channel,node-id=%u,snode=%u,socket=%u,tier=%s,dax=%u,channel=%u,read-bandwidth=%u,"
	    "write-bandwidth=%u,latency=%u",
	    c->cnode, c->snode, channel->socket, rm_tier_name(channel->tier), channel->dax,
	    channel->channel, channel->read_mbps, channel->write_mbps, channel->latency_ns);
}

static void
add_device(GPtrArray *args, const RmTopology *topology, const RmVmChannel *c)
{
	const char *name = rm_topology_channel(topology, c->channel)->name;

	add(args, "-object",
	    "memory-backend-channel,id=win-%s,size=%" G_GUINT64_FORMAT "M,manager=rr0,channel=%s",
	    name, c->window_chunks * RM_CHUNK_BYTES / RM_MIB, name);
	add(args, "-device",
	    "virtio-mem-pci,id=chan-%s,memdev=win-%s,node=%u,block-size=128M,requested-size=0,"
	    "unplugged-inaccessible=on,bus=rrbus,addr=0x%x",
	    name, name, c->cnode, c->cnode + 1);
}

char **
rm_qemu_args_build(const RmTopology *topology, const RmVmRow *vm, const GArray *channels,
		   const char *socket_path, GError **error)
{
	g_autoptr(GPtrArray) args = g_ptr_array_new_with_free_func(g_free);
	g_autofree char *path = escape(socket_path);
	const char *bus = bus_device(vm->machine);
	guint n_heads = count_heads(channels, TRUE), head = 0, i;

	if (!bus) {
		rm_error_set(
			error, RM_ERROR_INVALID,
			"domain %s: machine type %s cannot have memory channels; use q35 or pc",
			vm->name, vm->machine);
		return NULL;
	}
	if (channels->len > SLOTS_PER_BUS) {
		rm_error_set(error, RM_ERROR_INVALID,
			     "domain %s: its placement allows %u channels, a machine can have %d; "
			     "narrow tiers or sockets",
			     vm->name, channels->len, SLOTS_PER_BUS);
		return NULL;
	}
	/* QEMU makes its values from the channels; the guest's memory tiers come from it. */
	add(args, "-machine", "hmat=on");
	add_sizes(args, channels);
	add(args, "-object", "channel-manager,id=rr0,path=%s,fd=" RM_QEMU_ARGS_FD, path);
	for (i = 0; i < channels->len; i++) {
		const RmVmChannel *c = channel_at(channels, i);

		add_node(args, topology, c, vm->vcpus, head, n_heads);
		head += c->base_chunks != 0;
	}
	for (i = 0; i < channels->len; i++)
		add_channel(args, topology, channel_at(channels, i));
	add(args, "-device", "%s", bus);
	for (i = 0; i < channels->len; i++)
		add_device(args, topology, channel_at(channels, i));
	g_ptr_array_add(args, NULL);
	return (char **)g_ptr_array_free(g_steal_pointer(&args), FALSE);
}
