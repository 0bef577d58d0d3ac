/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <sys/socket.h>

#include "standin.h"

int standin_send(int fd, const void *data, size_t size)
{
	for (const char *at = data; size;) {
		ssize_t n = send(fd, at, size, MSG_NOSIGNAL);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return -1;
		at += n;
		size -= n;
	}
	return 0;
}

int standin_receive(int fd, void *data, size_t size)
{
	for (char *at = data; size;) {
		ssize_t n = recv(fd, at, size, 0);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return -1;
		at += n;
		size -= n;
	}
	return 0;
}
