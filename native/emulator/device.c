/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../abi/obmm_abi.h"
#include "../core/sys.h"

/* Where `obmm emulate up` listens. */
static void default_socket(char *path, size_t size)
{
	const char *base = getenv("XDG_RUNTIME_DIR");

	if (base && *base)
		snprintf(path, size, "%s/obmm/fabric.sock", base);
	else
		snprintf(path, size, "/tmp/obmm-%u/fabric.sock", getuid());
}

int obmm_sys_open(const char *device, struct obmm_sys **out)
{
	char text[512], path[512];
	char *node, *socket;

	if (!device || !*device || !strcmp(device, OBMM_DEV_PATH)) {
		*out = obmm_sys_kernel();
		return 0;
	}
	if ((size_t)snprintf(text, sizeof(text), "%s", device) >= sizeof(text))
		return -ENAMETOOLONG;
	node = strchr(text, '#');
	if (node)
		*node++ = '\0';
	socket = strchr(text, ':');
	if (socket)
		*socket++ = '\0';
	if (strcmp(text, "emulator"))
		return -EINVAL;
	if (!socket || !*socket) {
		default_socket(path, sizeof(path));
		socket = path;
	}
	return obmm_sys_emulator(socket, node && *node ? node : NULL, out);
}
