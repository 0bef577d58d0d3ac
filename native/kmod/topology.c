// SPDX-License-Identifier: GPL-2.0-only
/*
 * What hardware this host pretends to have.
 *
 * "A" and "B" are the two hosts of the driver transcript.  "fabric" is one of
 * two hosts around a shared memory: one node, one controller, and windows that
 * look at the shared memory from its first byte on.
 */
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/sysfs.h>

#include "sim.h"

static const struct sim_controller controllers_ab[] = {
	{ .eid = 0x12, .cna = 0x40a, .node = 0, .ummu = 0 },
	{ .eid = 0x13, .cna = 0x50b, .node = 2, .ummu = 1 },
};

static const struct sim_window windows_ab[] = {
	{ 0x40a, SIM_CC, 0xa0000000, 0x20000000, true },
	{ 0x40a, SIM_CC, 0xc0000000, 0x10000000, true },
	{ 0x40a, SIM_NC, 0xd0000000, 0x10000000, true },
	{ 0x40a, SIM_CC, 0x5000000000, 0x200000000, false },
	{ 0x50b, SIM_CC, 0xe0000000, 0x8000000, true },
	{ 0x50b, SIM_NC, 0xe8000000, 0x8000000, true },
};

static const struct sim_topology topology_a = {
	.nodes = { { true, true, 0 }, { true, true, 0 } },
	.controllers = controllers_ab,
	.nr_controllers = 1,
	.windows = windows_ab,
	.nr_windows = 4,
};

static const struct sim_topology topology_b = {
	.nodes = { { true, true, 0 }, { true, true, 0 }, { true, true, 1 }, { true, false, -1 } },
	.controllers = controllers_ab,
	.nr_controllers = 2,
	.windows = windows_ab,
	.nr_windows = 6,
};

/* Addresses above any guest's RAM; as many bytes as the fabric has. */
#define FABRIC_CC 0x2000000000
#define FABRIC_NC 0x3000000000

static struct sim_controller fabric_controller = { .node = 0, .ummu = 0 };
static struct sim_window fabric_windows[] = {
	{ .cache = SIM_CC, .base = FABRIC_CC, .backed = true },
	{ .cache = SIM_NC, .base = FABRIC_NC, .backed = true },
};
static const struct sim_topology topology_fabric = {
	.nodes = { { true, true, 0 } },
	.controllers = &fabric_controller,
	.nr_controllers = 1,
	.windows = fabric_windows,
	.nr_windows = 2,
};

const struct sim_topology *sim_topology;

const struct sim_controller *sim_controller_by_cna(u32 cna)
{
	int i;

	for (i = 0; i < sim_topology->nr_controllers; i++)
		if (sim_topology->controllers[i].cna == cna)
			return &sim_topology->controllers[i];
	return NULL;
}

bool sim_has_ummu(u32 ummu)
{
	int i;

	for (i = 0; i < sim_topology->nr_controllers; i++)
		if (sim_topology->controllers[i].ummu == ummu)
			return true;
	return false;
}

const struct sim_window *sim_window_of(u32 cna, u64 pa, u64 length)
{
	const struct sim_window *window;
	int i;

	for (i = 0; i < sim_topology->nr_windows; i++) {
		window = &sim_topology->windows[i];
		if (window->cna == cna && pa >= window->base && pa - window->base < window->size &&
		    length <= window->size - (pa - window->base))
			return window;
	}
	return NULL;
}

/* ---- /sys/devices/ub_bus_controller<N>/<entity>/ (13.1) ---- */

struct controller_device {
	struct device *root;
	struct device dev;
	const struct sim_controller *hw;
};

static struct controller_device *devices[2];

#define CONTROLLER_ATTR(_name, _format, _value)                                                             \
	static ssize_t _name##_show(struct device *dev, struct device_attribute *attr, char *buf)           \
	{                                                                                                   \
		const struct sim_controller *hw =                                                           \
			container_of(dev, struct controller_device, dev)->hw;                               \
		return sysfs_emit(buf, _format "\n", _value);                                               \
	}                                                                                                   \
	static DEVICE_ATTR_RO(_name)

CONTROLLER_ATTR(eid, "%u", hw->eid);
CONTROLLER_ATTR(primary_cna, "0x%04x", hw->cna);
CONTROLLER_ATTR(ummu_map, "0x%02x", hw->ummu);
CONTROLLER_ATTR(numa, "0x%02x", hw->node);
CONTROLLER_ATTR(ubc, "0x%x", hw->eid);

static struct attribute *controller_attrs[] = {
	&dev_attr_eid.attr, &dev_attr_primary_cna.attr, &dev_attr_ummu_map.attr,
	&dev_attr_numa.attr, &dev_attr_ubc.attr, NULL,
};
ATTRIBUTE_GROUPS(controller);

static void controller_release(struct device *dev)
{
	kfree(container_of(dev, struct controller_device, dev));
}

static int add_controller(int index)
{
	struct controller_device *controller = kzalloc(sizeof(*controller), GFP_KERNEL);
	char name[24];
	int err;

	if (!controller)
		return -ENOMEM;
	snprintf(name, sizeof(name), "ub_bus_controller%d", index);
	controller->hw = &sim_topology->controllers[index];
	controller->root = root_device_register(name);
	if (IS_ERR(controller->root)) {
		err = PTR_ERR(controller->root);
		kfree(controller);
		return err;
	}
	device_initialize(&controller->dev);
	controller->dev.parent = controller->root;
	controller->dev.groups = controller_groups;
	controller->dev.release = controller_release;
	dev_set_name(&controller->dev, "%05x", index + 1);
	err = device_add(&controller->dev);
	if (err) {
		root_device_unregister(controller->root);
		put_device(&controller->dev);
		return err;
	}
	devices[index] = controller;
	return 0;
}

void sim_topology_exit(void)
{
	struct device *root;
	int i;

	for (i = 0; i < ARRAY_SIZE(devices); i++) {
		if (!devices[i])
			continue;
		root = devices[i]->root;
		device_unregister(&devices[i]->dev);
		root_device_unregister(root);
		devices[i] = NULL;
	}
}

int sim_topology_init(void)
{
	int i, err;

	if (sim_param_fabric_size) {
		/* host 0 is 0x40a, host 1 is 0x50b, as the two controllers of "B" */
		fabric_controller.cna = controllers_ab[sim_param_fabric_share].cna;
		fabric_controller.eid = controllers_ab[sim_param_fabric_share].eid;
		for (i = 0; i < ARRAY_SIZE(fabric_windows); i++) {
			fabric_windows[i].cna = fabric_controller.cna;
			fabric_windows[i].size = sim_param_fabric_size;
		}
		sim_topology = &topology_fabric;
	} else if (!strcmp(sim_param_topology, "A")) {
		sim_topology = &topology_a;
	} else if (!strcmp(sim_param_topology, "B")) {
		sim_topology = &topology_b;
	} else {
		pr_err("obmm_sim: topology is \"A\" or \"B\", not \"%s\"\n", sim_param_topology);
		return -EINVAL;
	}
	for (i = 0; i < sim_topology->nr_controllers; i++) {
		err = add_controller(i);
		if (err) {
			sim_topology_exit();
			return err;
		}
	}
	return 0;
}
