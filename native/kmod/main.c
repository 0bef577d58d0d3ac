// SPDX-License-Identifier: GPL-2.0-only
/*
 * Module parameters, start and end.
 */
#include <linux/module.h>

#include "sim.h"

char *sim_param_topology = "A";
module_param_named(topology, sim_param_topology, charp, 0444);
MODULE_PARM_DESC(topology, "host of the driver transcript: A (one controller) or B (two)");

ulong sim_param_feature = 0xf;
module_param_named(feature, sim_param_feature, ulong, 0444);
MODULE_PARM_DESC(feature, "UB memory features of the firmware; 0 closes the gate (D1)");

bool sim_param_skip_cache;
module_param_named(skip_cache_maintain, sim_param_skip_cache, bool, 0444);
MODULE_PARM_DESC(skip_cache_maintain, "cache maintenance succeeds at once");

ulong sim_param_memseg = SIM_CHUNK;
module_param_named(memseg, sim_param_memseg, ulong, 0444);
MODULE_PARM_DESC(memseg, "unit of EXPORT sizes in bytes: a power of two, at least 2 MiB");

ulong sim_param_fabric_base;
module_param_named(fabric_base, sim_param_fabric_base, ulong, 0444);
MODULE_PARM_DESC(fabric_base, "physical address of memory shared by two hosts");

ulong sim_param_fabric_size;
module_param_named(fabric_size, sim_param_fabric_size, ulong, 0444);
MODULE_PARM_DESC(fabric_size, "its bytes; 0: no fabric, memory is the guest's own");

uint sim_param_fabric_share;
module_param_named(fabric_share, sim_param_fabric_share, uint, 0444);
MODULE_PARM_DESC(fabric_share, "which half exports come from, and which host this is: 0 or 1");

static const struct {
	int (*init)(void);
	void (*exit)(void);
} parts[] = {
	{ sim_ownership_init, NULL },
	{ sim_memory_init, sim_memory_exit },
	{ sim_topology_init, sim_topology_exit },
	{ sim_regions_init, sim_regions_exit },
	{ sim_debug_init, sim_debug_exit },
	{ sim_control_init, sim_control_exit },
};

static void stop(int count)
{
	while (count--)
		if (parts[count].exit)
			parts[count].exit();
}

static int __init obmm_sim_init(void)
{
	int i, err;

	if (sim_param_memseg < SIM_CHUNK || !is_power_of_2(sim_param_memseg))
		return -EINVAL;
	for (i = 0; i < ARRAY_SIZE(parts); i++) {
		err = parts[i].init();
		if (err) {
			stop(i);
			return err;
		}
	}
	pr_info("obmm_sim: simulator of the OBMM driver, no Unified Bus hardware; /dev/obmm is ready\n");
	return 0;
}

static void __exit obmm_sim_exit(void)
{
	stop(ARRAY_SIZE(parts));
	sim_tokens_exit();
}

module_init(obmm_sim_init);
module_exit(obmm_sim_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Simulator of openEuler's OBMM driver for tests in guests");
