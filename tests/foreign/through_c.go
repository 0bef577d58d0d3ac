// SPDX-License-Identifier: Apache-2.0
// A Go program that asks libc for the device, through cgo.
package main

/*
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>
#include "abi/obmm_abi.h"

// cgo calls no function with a variable number of arguments
static int open_file(const char *path) { return open(path, O_RDWR | O_CLOEXEC | O_SYNC); }
static int command(int fd, unsigned long request, void *argument) { return ioctl(fd, request, argument); }
static int export_memory(int fd, struct obmm_cmd_export *cmd, struct obmm_vendor_info *vendor)
{
	cmd->vendor_info = vendor;
	return ioctl(fd, OBMM_CMD_EXPORT, cmd);
}
static int unexport(int fd, unsigned long long id)
{
	struct obmm_cmd_unexport cmd = { .mem_id = id };

	return ioctl(fd, OBMM_CMD_UNEXPORT, &cmd);
}
*/
import "C"

import (
	"fmt"
	"unsafe"
)

func main() {
	control := C.open_file(C.CString("/dev/obmm"))
	var text [4]byte
	_, err := C.read(control, unsafe.Pointer(&text[0]), 4)
	fmt.Println("read:", err)
	_, err = C.command(control, 0, nil)
	fmt.Println("command 0:", err)

	cmd := (*C.struct_obmm_cmd_export)(C.calloc(1, C.sizeof_struct_obmm_cmd_export))
	vendor := (*C.struct_obmm_vendor_info)(C.calloc(1, C.sizeof_struct_obmm_vendor_info))
	vendor.ummu_mask = 1
	vendor.on_chip = 1
	cmd.size[0] = 4 << 20
	cmd.length = 1
	cmd.flags = C.OBMM_EXPORT_FLAG_ALLOW_MMAP
	cmd.vendor_len = C.sizeof_struct_obmm_vendor_info
	if rc, err := C.export_memory(control, cmd, vendor); rc != 0 {
		panic(err)
	}
	path := C.CString(fmt.Sprintf("/dev/obmm_shmdev%d", cmd.mem_id))
	done := make(chan error)
	go func() {
		region := C.open_file(path)
		memory, err := C.mmap(nil, 4096, C.PROT_READ|C.PROT_WRITE, C.MAP_SHARED, region, 0)
		if uintptr(memory) == ^uintptr(0) {
			panic(err)
		}
		copy(unsafe.Slice((*byte)(memory), 4096), "remote memory")
		fmt.Printf("region %d: %s\n", cmd.mem_id, unsafe.Slice((*byte)(memory), 13))
		_, err = C.unexport(control, C.ulonglong(cmd.mem_id))
		C.munmap(memory, 4096)
		C.close(region)
		done <- err
	}()
	fmt.Println("unexport while mapped:", <-done)
	if rc, err := C.unexport(control, C.ulonglong(cmd.mem_id)); rc != 0 {
		panic(err)
	}
	_, err = C.open_file(path)
	fmt.Println("gone:", err)
	C.close(control)
}
