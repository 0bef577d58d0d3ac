/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon.h"
#include "standin.h"

struct engine {
	int listener;
	struct standin_state *state;
};

static void *serve(void *argument)
{
	struct engine *engine = argument;
	char message[64];

	for (;;) {
		int fd = accept4(engine->listener, NULL, NULL, SOCK_CLOEXEC);

		if (fd < 0)
			break;
		if (!standin_receive(fd, message, sizeof(message))) {
			standin_lock(engine->state);
			engine->state->engine_calls++;
			standin_unlock(engine->state);
			standin_send(fd, message, sizeof(message));
		}
		close(fd);
	}
	free(engine);
	return NULL;
}

int engine_start(const char *path, struct standin_state *state)
{
	struct engine *engine = malloc(sizeof(*engine));
	pthread_t thread;

	if (!engine)
		return -1;
	*engine = (struct engine){ .listener = daemon_listen(path), .state = state };
	if (engine->listener < 0 || pthread_create(&thread, NULL, serve, engine)) {
		free(engine);
		return -1;
	}
	pthread_detach(thread);
	return 0;
}

void engine_call(const char *path, unsigned int times)
{
	char message[64] = { 0 };

	while (times--) {
		int fd = daemon_connect(path);

		if (fd < 0)
			return;
		if (!standin_send(fd, message, sizeof(message)))
			standin_receive(fd, message, sizeof(message));
		close(fd);
	}
}
