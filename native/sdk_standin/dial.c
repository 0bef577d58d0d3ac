/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "standin.h"

static int connect_once(const struct standin_settings *settings)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int fd;

	if (!*settings->folder || (size_t)snprintf(address.sun_path, sizeof(address.sun_path), "%s/daemon.sock",
						    settings->folder) >= sizeof(address.sun_path))
		return -ENOENT;
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	if (!connect(fd, (struct sockaddr *)&address, sizeof(address)))
		return fd;
	close(fd);
	return -errno;
}

/* After attempt i: 2^i seconds, at most the cap; n attempts take 2^n - 1 seconds (5). */
static void pause_after(const struct standin_settings *settings, unsigned long attempt)
{
	unsigned long seconds = 1UL << attempt, ms;
	struct timespec left;

	if (seconds > settings->wait_cap_s)
		seconds = settings->wait_cap_s;
	ms = seconds * settings->second_ms;
	left = (struct timespec){ ms / 1000, ms % 1000 * 1000000L };
	while (nanosleep(&left, &left) && errno == EINTR)
		;
}

int standin_dial(const struct standin_settings *settings, int back, struct standin_welcome *welcome)
{
	struct standin_request hello = {
		.op = STANDIN_HELLO,
		.arg = { settings->user[0], settings->user[1], back },
	};
	struct standin_answer answer;
	int fd = connect_once(settings);

	/* a missing socket is an answer at once; a reconnection has its own rhythm */
	for (unsigned long attempt = 0; fd < 0 && fd != -ENOENT && !back && attempt < settings->attempts; attempt++) {
		pause_after(settings, attempt);
		if (attempt + 1 < settings->attempts)
			fd = connect_once(settings);
	}
	if (fd < 0)
		return fd;
	memcpy(hello.name, settings->node, sizeof(hello.name));
	if (!standin_send(fd, &hello, sizeof(hello)) && !standin_receive(fd, &answer, sizeof(answer)) && !answer.code &&
	    answer.size == sizeof(*welcome) && !standin_receive(fd, welcome, sizeof(*welcome)) &&
	    memchr(welcome->socket, 0, sizeof(welcome->socket)) && memchr(welcome->node, 0, sizeof(welcome->node)))
		return fd;
	close(fd);
	return -ECONNREFUSED;
}
