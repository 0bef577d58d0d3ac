/* SPDX-License-Identifier: Apache-2.0 */
#include "owned.h"

#include <stddef.h>
#include <unistd.h>

#include "obmm_rw.h"

void obmm_node_init(struct obmm_node *node)
{
	*node = (struct obmm_node)OBMM_NODE_INIT;
	node->pid = getpid();
}

int obmm_node_open(struct obmm_node *node)
{
	int fd = obmm_rw_open(node->sys);

	if (fd < 0)
		return fd;
	node->fd = fd;
	return 0;
}

void obmm_node_abandon(struct obmm_node *node)
{
	if (node->sys && node->fd >= 0)
		obmm_rw_close(node->sys, node->fd);
	node->fd = -1;
}

void obmm_node_close(struct obmm_node *node)
{
	struct obmm_sys *sys = node->sys;

	obmm_node_abandon(node);
	node->sys = NULL;
	if (sys && (!node->pid || node->pid == getpid()))
		sys->destroy(sys);
}

int obmm_owned_export(struct obmm_node *node, struct obmm_cmd_export *cmd, struct obmm_owned *owned)
{
	int result = obmm_rw_export(node->sys, node->fd, cmd);

	if (result >= 0)
		owned->mem_id = cmd->mem_id;
	return result < 0 ? result : 0;
}

int obmm_owned_export_useraddr(struct obmm_node *node, struct obmm_cmd_export_pid *cmd, struct obmm_owned *owned)
{
	int result = obmm_rw_export_useraddr(node->sys, node->fd, cmd);

	if (result >= 0)
		owned->mem_id = cmd->mem_id;
	return result < 0 ? result : 0;
}

int obmm_owned_import(struct obmm_node *node, struct obmm_cmd_import *cmd, struct obmm_owned *owned)
{
	int result = obmm_rw_import(node->sys, node->fd, cmd);

	if (result >= 0)
		owned->mem_id = cmd->mem_id;
	return result < 0 ? result : 0;
}

static int removed(int result, struct obmm_owned *owned)
{
	if (result >= 0)
		owned->mem_id = 0;
	return result < 0 ? result : 0;
}

int obmm_owned_unexport(struct obmm_node *node, struct obmm_owned *owned)
{
	return owned->mem_id ? removed(obmm_rw_unexport(node->sys, node->fd, owned->mem_id, 0), owned) : 0;
}

int obmm_owned_unimport(struct obmm_node *node, struct obmm_owned *owned)
{
	return owned->mem_id ? removed(obmm_rw_unimport(node->sys, node->fd, owned->mem_id, 0), owned) : 0;
}
