// SPDX-License-Identifier: Apache-2.0
// A Go program on the installed C library, through cgo.
package main

/*
#include <string.h>
#include <obmm/obmm.h>

static int use(const char *device, unsigned long long *id)
{
	struct obmm_node node = OBMM_NODE_INIT;
	struct obmm_owned region = { 0 };
	struct obmm_vendor_info vendor;
	struct obmm_controller own;
	struct obmm_cmd_export cmd;
	int rc = obmm_sys_open(device, &node.sys);

	if (rc)
		return rc;
	rc = obmm_node_open(&node);
	if (!rc)
		rc = obmm_first_controller(node.sys->root, &own);
	if (!rc) {
		memset(&vendor, 0, sizeof(vendor));
		memset(&cmd, 0, sizeof(cmd));
		vendor.ummu_mask = UINT64_C(1) << (own.ummu % 64);
		vendor.on_chip = 1;
		cmd.size[0] = UINT64_C(4) << 20;
		cmd.length = 1;
		cmd.flags = OBMM_EXPORT_FLAG_ALLOW_MMAP;
		cmd.vendor_info = &vendor;
		cmd.vendor_len = sizeof(vendor);
		memcpy(cmd.deid, own.eid, sizeof(cmd.deid));
		rc = obmm_owned_export(&node, &cmd, &region);
		*id = region.mem_id;
	}
	if (!rc)
		rc = obmm_owned_unexport(&node, &region);
	obmm_node_close(&node);
	return rc;
}
*/
import "C"

import (
	"fmt"
	"os"
)

func main() {
	var id C.ulonglong
	rc := C.use(C.CString(os.Args[1]), &id)
	fmt.Printf("region %d: %d\n", id, rc)
}
