// SPDX-License-Identifier: GPL-2.0-only
/*
 * /sys/devices/obmm/obmm_shmdev<id>/ (11.1): one value per file, root only.
 */
#include <linux/sysfs.h>
#include <asm/unaligned.h>

#include "sim.h"

#define REGION(_dev) container_of(_dev, struct sim_region, dev)

#define REGION_ATTR(_group, _name, _format, ...)                                                            \
	static ssize_t _group##_##_name##_show(struct device *dev, struct device_attribute *attr, char *buf) \
	{                                                                                                   \
		const struct sim_region *region __maybe_unused = REGION(dev);                               \
		return sysfs_emit(buf, _format "\n", __VA_ARGS__);                                          \
	}                                                                                                   \
	static struct device_attribute _group##_##_name##_attr =                                            \
		__ATTR(_name, 0400, _group##_##_name##_show, NULL)

/* bytes 8-15, then 0-7, as native numbers */
#define EID_FORMAT "%#llx:%#llx"
#define EID_VALUES(_eid) get_unaligned((u64 *)((_eid) + 8)), get_unaligned((u64 *)(_eid))

REGION_ATTR(region, size, "%#llx", region->size);
REGION_ATTR(region, type, "%s", region->type == SIM_EXPORT ? "export" : "import");
REGION_ATTR(region, priv_len, "%u", region->priv_len);
REGION_ATTR(region, allow_mmap, "%d", region->allow_mmap);
REGION_ATTR(export, uba, "%#llx", region->exp.uba);
REGION_ATTR(export, tokenid, "%#x", region->exp.tokenid);
REGION_ATTR(export, memory_from_user, "%d", 0);
REGION_ATTR(export, deid, EID_FORMAT, EID_VALUES(region->exp.deid));
REGION_ATTR(import, pa, "%#llx", region->imp.pa);
REGION_ATTR(import, scna, "%#x", region->imp.scna);
REGION_ATTR(import, dcna, "%#x", region->imp.dcna);
REGION_ATTR(import, seid, EID_FORMAT, EID_VALUES(region->imp.seid));
REGION_ATTR(import, deid, EID_FORMAT, EID_VALUES(region->imp.deid));

static ssize_t node_mem_size_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	const u64 *size = REGION(dev)->exp.node_size;
	int last = OBMM_MAX_LOCAL_NUMA_NODES - 1;
	ssize_t at = 0;
	int i;

	while (last && !size[last])
		last--;
	for (i = 0; i <= last; i++)
		at += sysfs_emit_at(buf, at, "%#llx%c", size[i], i == last ? '\n' : ',');
	return at;
}
static struct device_attribute node_mem_size_attr = __ATTR(node_mem_size, 0400, node_mem_size_show, NULL);

static ssize_t priv_read(struct file *file, struct kobject *kobj, struct bin_attribute *attr, char *buf,
			 loff_t at, size_t count)
{
	return memory_read_from_buffer(buf, count, &at, REGION(kobj_to_dev(kobj))->priv, OBMM_MAX_PRIV_LEN);
}
static struct bin_attribute priv_attr = __BIN_ATTR(priv, 0400, priv_read, NULL, OBMM_MAX_PRIV_LEN);

static struct attribute *region_attrs[] = {
	&region_size_attr.attr, &region_type_attr.attr, &region_priv_len_attr.attr,
	&region_allow_mmap_attr.attr, NULL,
};
static struct bin_attribute *region_bin_attrs[] = { &priv_attr, NULL };
static const struct attribute_group region_group = { .attrs = region_attrs, .bin_attrs = region_bin_attrs };

static struct attribute *export_attrs[] = {
	&node_mem_size_attr.attr,    &export_uba_attr.attr, &export_tokenid_attr.attr,
	&export_memory_from_user_attr.attr, &export_deid_attr.attr, NULL,
};
static const struct attribute_group export_group = { .name = "export_info", .attrs = export_attrs };

static struct attribute *import_attrs[] = {
	&import_pa_attr.attr,	&import_scna_attr.attr, &import_dcna_attr.attr,
	&import_seid_attr.attr, &import_deid_attr.attr, NULL,
};
static const struct attribute_group import_group = { .name = "import_info", .attrs = import_attrs };

const struct attribute_group *sim_export_groups[] = { &region_group, &export_group, NULL };
const struct attribute_group *sim_import_groups[] = { &region_group, &import_group, NULL };
