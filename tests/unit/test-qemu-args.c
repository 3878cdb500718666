/* SPDX-License-Identifier: GPL-2.0-or-later */
#include <string.h>

#include "rm-error.h"
#include "rm-qemu-args.h"

static RmTopology *
make_topology(void)
{
	RmTopology *topology = rm_topology_new();
	guint i;

	for (i = 0; i < 3; i++) {
		RmChannel *c = g_new0(RmChannel, 1);

		c->name = i < 2 ? g_strdup_printf("dimm%u", i) : g_strdup("cxl0");
		c->store = g_strdup("lab");
		c->tier = i < 2 ? RM_TIER_DIMM : RM_TIER_CXL;
		c->dax = i + 1;
		c->channel = 7;
		c->size_chunks = 32;
		c->read_mbps = 36000;
		c->write_mbps = 30500;
		c->latency_ns = 100 + i;
		g_assert_true(rm_topology_add(topology, c, NULL));
	}
	return topology;
}

static char *
build(const char *machine, guint vcpus, guint base1, GError **error)
{
	const RmVmChannel nodes[] = {
		{.channel = 0, .cnode = 0, .snode = 0, .base_chunks = 8, .window_chunks = 24},
		{.channel = 2, .cnode = 1, .snode = 1, .base_chunks = base1, .window_chunks = 32},
		{.channel = 1, .cnode = 2, .snode = 0, .base_chunks = 0, .window_chunks = 32},
	};
	RmVmRow vm = {.name = (char *)"vm", .machine = (char *)machine, .vcpus = vcpus};
	g_autoptr(RmTopology) topology = make_topology();
	g_autoptr(GArray) channels = g_array_new(FALSE, FALSE, sizeof(RmVmChannel));
	g_auto(GStrv) args = NULL;

	g_array_append_vals(channels, nodes, G_N_ELEMENTS(nodes));
	args = rm_qemu_args_build(topology, &vm, channels, "/run/r,d/vm/u.sock", error);
	return args ? g_strjoinv(" ", args) : NULL;
}

static void
test_q35(void)
{
	g_autoptr(GError) error = NULL;
	g_autofree char *text = build("pc-q35-7.2", 3, 0, &error);

	g_assert_no_error(error);
	/* 1 GiB, windows of 11 GiB, a GiB of alignment for each and one more. */
	g_assert_cmpstr(
		text, ==,
		"-machine hmat=on"
		" -m size=1024M,slots=0,maxmem=16384M"
		" -object channel-manager,id=rr0,path=/run/r,,d/vm/u.sock,fd=@FD@"
		" -object "
		"memory-backend-channel,id=base-dimm0,size=1024M,manager=rr0,channel=dimm0,"
		"base=on"
		" -numa node,nodeid=0,cpus=0-2,memdev=base-dimm0"
		" -numa node,nodeid=1"
		" -numa node,nodeid=2"
		" -numa channel,node-id=0,snode=0,socket=0,tier=dimm,dax=1,channel=7,"
		"read-bandwidth=36000,write-bandwidth=30500,latency=100"
		" -numa channel,node-id=1,snode=1,socket=0,tier=cxl,dax=3,channel=7,"
		"read-bandwidth=36000,write-bandwidth=30500,latency=102"
		" -numa channel,node-id=2,snode=0,socket=0,tier=dimm,dax=2,channel=7,"
		"read-bandwidth=36000,write-bandwidth=30500,latency=101"
		" -device i82801b11-bridge,id=rrbus,bus=pcie.0,addr=0x1c"
		" -object memory-backend-channel,id=win-dimm0,size=3072M,manager=rr0,channel=dimm0"
		" -device virtio-mem-pci,id=chan-dimm0,memdev=win-dimm0,node=0,block-size=128M,"
		"requested-size=0,unplugged-inaccessible=on,bus=rrbus,addr=0x1"
		" -object memory-backend-channel,id=win-cxl0,size=4096M,manager=rr0,channel=cxl0"
		" -device virtio-mem-pci,id=chan-cxl0,memdev=win-cxl0,node=1,block-size=128M,"
		"requested-size=0,unplugged-inaccessible=on,bus=rrbus,addr=0x2"
		" -object memory-backend-channel,id=win-dimm1,size=4096M,manager=rr0,channel=dimm1"
		" -device virtio-mem-pci,id=chan-dimm1,memdev=win-dimm1,node=2,block-size=128M,"
		"requested-size=0,unplugged-inaccessible=on,bus=rrbus,addr=0x3");
}

static void
test_pc(void)
{
	g_autofree char *text = build("pc", 2, 0, NULL);

	g_assert_nonnull(strstr(text,
				" -device pci-bridge,id=rrbus,bus=pci.0,chassis_nr=254,shpc=off,"
				"addr=0x1f "));
}

static void
test_cpus(void)
{
	g_autofree char *two = build("q35", 5, 8, NULL);
	g_autofree char *one = build("q35", 1, 8, NULL);

	g_assert_nonnull(strstr(two, "node,nodeid=0,cpus=0-2,memdev=base-dimm0"));
	g_assert_nonnull(strstr(two, "node,nodeid=1,cpus=3-4,memdev=base-cxl0"));
	/* Fewer vCPUs than heads: a head without. */
	g_assert_nonnull(strstr(one, "node,nodeid=0,cpus=0-0,memdev=base-dimm0"));
	g_assert_nonnull(strstr(one, "node,nodeid=1,memdev=base-cxl0"));
}

static void
test_machine(void)
{
	g_autoptr(GError) error = NULL;

	g_assert_null(build("microvm", 1, 0, &error));
	g_assert_error(error, RM_ERROR, RM_ERROR_INVALID);
	g_assert_nonnull(strstr(error->message, "microvm"));
}

int
main(int argc, char **argv)
{
	g_test_init(&argc, &argv, NULL);
	g_test_add_func("/qemu-args/q35", test_q35);
	g_test_add_func("/qemu-args/pc", test_pc);
	g_test_add_func("/qemu-args/cpus", test_cpus);
	g_test_add_func("/qemu-args/machine", test_machine);
	return g_test_run();
}
