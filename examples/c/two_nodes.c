/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One node lends memory, another reads it.  C11 and C++17.
 *
 *	two_nodes lend DEVICE                          prints "EID CNA TOKENID UBA LENGTH", lends until its input ends
 *	two_nodes borrow DEVICE EID CNA TOKENID UBA LENGTH [WINDOW]
 *
 * DEVICE is /dev/obmm or emulator:SOCKET#NODE.  WINDOW is the local physical
 * address at which the management plane made the lender's memory appear; on an
 * emulated node the program asks the emulator for one.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <obmm/obmm.h>

#define LENGTH (UINT64_C(4) << 20)
#define NON_CACHEABLE 2

/* Say what was refused.  Every function returns a negative errno then. */
static int refused(const char *what, int rc)
{
	fprintf(stderr, "%s: %s\n", what, strerror(-rc));
	return 1;
}

/* Non-cacheable (O_SYNC): no ownership to take, and the other node sees what is stored. */
static int map(struct obmm_sys *sys, uint64_t mem_id, uint64_t length, int prot, struct obmm_held *held)
{
	int rc = obmm_held_open(sys, held, mem_id, (prot & PROT_WRITE ? O_RDWR : O_RDONLY) | O_SYNC);

	if (!rc)
		rc = obmm_held_map(sys, held, NULL, 0, length, prot, 0);
	return rc ? rc : obmm_held_guard(held, mem_id);
}

static int lend(struct obmm_node *node, const struct obmm_controller *own)
{
	struct obmm_owned region = { 0 };
	struct obmm_held held = OBMM_HELD_INIT;
	struct obmm_vendor_info vendor;
	struct obmm_cmd_export cmd;
	struct obmm_fault fault;
	int rc;

	memset(&vendor, 0, sizeof(vendor));
	vendor.ummu_mask = UINT64_C(1) << (own->ummu % 64);
	vendor.on_chip = 1;
	memset(&cmd, 0, sizeof(cmd));
	if (own->numa >= OBMM_MAX_LOCAL_NUMA_NODES)
		return refused("NUMA node of the controller", -ERANGE);
	cmd.size[own->numa] = LENGTH;
	cmd.length = own->numa + 1;
	cmd.flags = OBMM_EXPORT_FLAG_ALLOW_MMAP;
	cmd.pxm_numa = (int32_t)own->numa;
	cmd.vendor_info = &vendor;
	cmd.vendor_len = sizeof(vendor);
	memcpy(cmd.deid, own->eid, sizeof(cmd.deid));

	rc = obmm_owned_export(node, &cmd, &region);
	if (rc)
		return refused("export", rc);
	rc = map(node->sys, region.mem_id, LENGTH, PROT_READ | PROT_WRITE, &held);
	for (uint64_t i = 0; !rc && i < LENGTH; i += 8)
		rc = obmm_copy_nc_to((char *)held.base + i, &i, sizeof(i), &fault);
	if (rc) {
		refused("map and write", rc);
	} else {
		/* all that the other node has to know */
		for (int i = 0; i < OBMM_EID_LEN; i++)
			printf("%02x", own->eid[i]);
		printf(" %" PRIu32 " %" PRIu32 " %" PRIu64 " %" PRIu64 "\n", own->cna, cmd.tokenid, cmd.uba, LENGTH);
		fflush(stdout);
		while (getchar() != EOF)
			;
	}
	if (obmm_held_release(node->sys, &held) || obmm_owned_unexport(node, &region))
		rc = rc ? rc : -EBUSY;
	return rc ? refused("lend", rc) : 0;
}

/* The local physical address that leads to the lender's memory, in *pa; what was programmed for it, in *programmed. */
static int find_window(struct obmm_node *node, const struct obmm_cmd_import *cmd, uint64_t uba, uint64_t *pa,
		       uint64_t *programmed)
{
	struct obmm_emulator_window window;
	int rc;

	if (*pa)
		return 0;
	if (strncmp(node->sys->name, "emulator:", 9))
		return -EINVAL; /* on hardware the management plane says it */
	memset(&window, 0, sizeof(window));
	memcpy(window.owner_eid, cmd->deid, sizeof(window.owner_eid));
	window.owner_cna = cmd->dcna;
	window.tokenid = cmd->tokenid;
	window.uba = uba;
	window.length = cmd->length;
	window.local_cna = cmd->scna;
	window.cache = NON_CACHEABLE;
	rc = obmm_emulator_program(node->sys, &window, programmed);
	*pa = *programmed;
	return rc;
}

static int borrow(struct obmm_node *node, const struct obmm_controller *own, char **handle, int count)
{
	struct obmm_owned region = { 0 };
	struct obmm_held held = OBMM_HELD_INIT;
	struct obmm_cmd_import cmd;
	struct obmm_fault fault;
	uint64_t programmed = 0, word = 0;
	int rc;

	memset(&cmd, 0, sizeof(cmd));
	cmd.flags = OBMM_IMPORT_FLAG_ALLOW_MMAP;
	cmd.numa_id = -1;
	cmd.scna = own->cna;
	memcpy(cmd.seid, own->eid, sizeof(cmd.seid));
	for (int i = 0; i < OBMM_EID_LEN; i++)
		if (sscanf(handle[0] + 2 * i, "%2" SCNx8, &cmd.deid[i]) != 1)
			return refused("EID", -EINVAL);
	cmd.dcna = (uint32_t)strtoul(handle[1], NULL, 0);
	cmd.tokenid = (uint32_t)strtoul(handle[2], NULL, 0);
	cmd.length = strtoull(handle[4], NULL, 0);
	cmd.addr = count > 5 ? strtoull(handle[5], NULL, 0) : 0;

	rc = find_window(node, &cmd, strtoull(handle[3], NULL, 0), &cmd.addr, &programmed);
	if (rc)
		return refused("window", rc);
	rc = obmm_owned_import(node, &cmd, &region);
	if (!rc)
		rc = map(node->sys, region.mem_id, cmd.length, PROT_READ, &held);
	/* a lender that died is -EFAULT here, and no dead process */
	for (uint64_t i = 0; !rc && i < cmd.length; i += 8) {
		rc = obmm_copy_nc_from(&word, (char *)held.base + i, sizeof(word), &fault);
		if (!rc && word != i)
			rc = -EIO;
	}
	if (rc)
		refused("import, map and read", rc);
	else
		printf("%" PRIu64 " bytes of CNA %" PRIu32 " are as they were written\n", cmd.length, cmd.dcna);
	if (obmm_held_release(node->sys, &held) || obmm_owned_unimport(node, &region) ||
	    obmm_emulator_release(node->sys, &programmed))
		rc = rc ? rc : -EBUSY;
	return rc ? refused("borrow", rc) : 0;
}

int main(int argc, char **argv)
{
	struct obmm_node node = OBMM_NODE_INIT;
	struct obmm_controller own;
	int lends = argc == 3 && !strcmp(argv[1], "lend");
	int rc;

	if (!lends && !(argc >= 8 && !strcmp(argv[1], "borrow"))) {
		fprintf(stderr, "two_nodes lend DEVICE | borrow DEVICE EID CNA TOKENID UBA LENGTH [WINDOW]\n");
		return 2;
	}
	if (obmm_version() != OBMM_VERSION)
		return refused("another release's library", -EPROTO);
	rc = obmm_sys_open(argv[2], &node.sys);
	if (rc)
		return refused(argv[2], rc);
	rc = obmm_node_open(&node); /* a descriptor, or a negative errno: never used unseen */
	if (!rc)
		rc = obmm_first_controller(node.sys->root, &own);
	if (rc)
		rc = refused("open", rc);
	else
		rc = lends ? lend(&node, &own) : borrow(&node, &own, argv + 3, argc - 3);
	obmm_node_close(&node);
	return rc;
}
