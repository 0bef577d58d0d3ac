// SPDX-License-Identifier: Apache-2.0
// A Go program as Go writes them: libc is asked for names and users only.
package main

import (
	"net"
	"os"
	"os/user"
)

func main() {
	net.LookupHost("localhost")
	user.Current()
	os.Open("/dev/obmm")
}
