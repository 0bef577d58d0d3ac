/* SPDX-License-Identifier: Apache-2.0 */
/* The emulator's client, a copy of this library's own: nothing of it is visible outside. */
#include "../emulator/client.c"
#include "../emulator/connection.c"
