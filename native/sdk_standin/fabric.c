/* SPDX-License-Identifier: Apache-2.0 */
/* The emulated nodes, as the UB engine and its agents see them: exports, decoder windows, imports (12.1). */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "../core/obmm_rw.h"
#include "../emulator/client.h"
#include "state.h"

static struct fabric_way *to(struct standin_cluster *cluster, uint32_t node, int *rc)
{
	struct fabric_way *way = &cluster->ways[node];
	struct obmm_sys *sys;

	if (way->sys)
		return way;
	*rc = obmm_sys_emulator(cluster->state->fabric, cluster->state->nodes[node], &sys);
	if (*rc)
		return NULL;
	*rc = obmm_first_controller(sys->root, &way->controller);
	if (!*rc) {
		way->fd = obmm_rw_open(sys);
		*rc = way->fd < 0 ? way->fd : 0;
	}
	if (*rc) {
		sys->destroy(sys);
		return NULL;
	}
	way->sys = sys;
	return way;
}

void fabric_leave(struct standin_cluster *cluster)
{
	for (uint32_t node = 0; node < STANDIN_NODES; node++) {
		struct fabric_way *way = &cluster->ways[node];

		if (!way->sys)
			continue;
		obmm_rw_close(way->sys, way->fd);
		way->sys->destroy(way->sys);
		way->sys = NULL;
	}
}

int fabric_export(struct standin_cluster *cluster, uint32_t node, struct standin_export *out)
{
	int rc;
	struct fabric_way *way = to(cluster, node, &rc);
	struct obmm_vendor_info vendor = { .on_chip = 1 };
	struct obmm_cmd_export cmd = {
		.flags = OBMM_EXPORT_FLAG_ALLOW_MMAP,
		.vendor_len = sizeof(vendor),
		.vendor_info = &vendor,
	};

	if (!way)
		return rc;
	if (way->controller.numa >= OBMM_MAX_LOCAL_NUMA_NODES)
		return -ENODEV;
	vendor.ummu_mask = 1ULL << way->controller.ummu % 64;
	cmd.length = way->controller.numa + 1;
	cmd.pxm_numa = (int32_t)way->controller.numa;
	cmd.size[way->controller.numa] = cluster->state->unit;
	memcpy(cmd.deid, way->controller.eid, sizeof(cmd.deid));
	rc = obmm_rw_export(way->sys, way->fd, &cmd);
	if (rc < 0)
		return rc;
	*out = (struct standin_export){ .mem_id = cmd.mem_id, .uba = cmd.uba, .tokenid = cmd.tokenid };
	return 0;
}

int fabric_unexport(struct standin_cluster *cluster, uint32_t node, uint64_t mem_id)
{
	int rc;
	struct fabric_way *way = to(cluster, node, &rc);

	if (!way)
		return rc;
	rc = obmm_rw_unexport(way->sys, way->fd, mem_id, 0);
	return rc < 0 && rc != -ENOENT ? rc : 0;
}

int fabric_import(struct standin_cluster *cluster, uint32_t node, uint32_t provider, const struct standin_export *source,
		  int noncacheable, uint64_t *mem_id, uint64_t *window)
{
	int rc;
	struct fabric_way *here = to(cluster, node, &rc);
	struct fabric_way *there = here ? to(cluster, provider, &rc) : NULL;
	struct obmm_emulator_window wanted = {
		.tokenid = source->tokenid,
		.uba = source->uba,
		.length = cluster->state->unit,
		.cache = noncacheable ? 2 : 1,
	};
	struct obmm_cmd_import cmd = {
		.flags = OBMM_IMPORT_FLAG_ALLOW_MMAP,
		.length = cluster->state->unit,
		.tokenid = source->tokenid,
		.numa_id = -1,
	};

	if (!there)
		return rc;
	memcpy(wanted.owner_eid, there->controller.eid, sizeof(wanted.owner_eid));
	wanted.owner_cna = there->controller.cna;
	wanted.local_cna = here->controller.cna;
	rc = obmm_emulator_program(here->sys, &wanted, window);
	if (rc < 0)
		return rc;
	cmd.addr = *window;
	cmd.scna = here->controller.cna;
	cmd.dcna = there->controller.cna;
	memcpy(cmd.seid, here->controller.eid, sizeof(cmd.seid));
	memcpy(cmd.deid, there->controller.eid, sizeof(cmd.deid));
	rc = obmm_rw_import(here->sys, here->fd, &cmd);
	if (rc < 0) {
		obmm_emulator_unprogram(here->sys, *window);
		return rc;
	}
	*mem_id = cmd.mem_id;
	return 0;
}

int fabric_unimport(struct standin_cluster *cluster, uint32_t node, uint64_t mem_id, uint64_t window)
{
	int rc;
	struct fabric_way *way = to(cluster, node, &rc);

	if (!way)
		return rc;
	rc = obmm_rw_unimport(way->sys, way->fd, mem_id, 0);
	if (rc < 0 && rc != -ENOENT)
		return rc;
	obmm_emulator_unprogram(way->sys, window);
	return 0;
}

int fabric_busy(struct standin_cluster *cluster, uint32_t node, uint64_t mem_id)
{
	int rc;
	struct fabric_way *way = to(cluster, node, &rc);
	int64_t opens;

	if (!way)
		return rc;
	opens = obmm_emulator_opens(way->sys, mem_id);
	return opens == -ENOENT ? 0 : opens < 0 ? (int)opens : opens > 0;
}

int fabric_give(struct standin_cluster *cluster, uint32_t node, uint64_t mem_id, uint32_t mode, uint32_t uid, uint32_t gid)
{
	int rc;
	struct fabric_way *way = to(cluster, node, &rc);
	char path[64];

	if (!way)
		return rc;
	snprintf(path, sizeof(path), OBMM_SHMDEV_PREFIX "%llu", (unsigned long long)mem_id);
	if (mode && obmm_emulator_chmod(way->sys, path, mode))
		return -errno;
	return obmm_emulator_chown(way->sys, path, uid, gid) ? -errno : 0;
}

static int read_hex(const struct fabric_way *way, uint32_t numa, const char *name, uint64_t *value)
{
	char path[512];
	FILE *file;
	int found;

	snprintf(path, sizeof(path), "%s/sys/kernel/obmm_mempool/obmm-%u/%s", way->sys->root, numa, name);
	file = fopen(path, "re");
	if (!file)
		return -errno;
	found = fscanf(file, "%lx", value);
	fclose(file);
	return found == 1 ? 0 : -EIO;
}

int fabric_pool(struct standin_cluster *cluster, uint32_t node, uint32_t numa, uint64_t *total, uint64_t *used)
{
	int rc;
	struct fabric_way *way = to(cluster, node, &rc);

	if (!way)
		return rc;
	rc = read_hex(way, numa, "total", total);
	return rc ? rc : read_hex(way, numa, "used", used);
}
