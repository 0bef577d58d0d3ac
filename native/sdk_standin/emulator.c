/* SPDX-License-Identifier: Apache-2.0 */
/* The emulator's client and what exports and imports, copies of this library's own: nothing of it is visible outside. */
#include "../core/obmm_rw.c"
#include "../core/sys.c"
#include "../emulator/client.c"
#include "../emulator/connection.c"
#include "../core/topology.c"
