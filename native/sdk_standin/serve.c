/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon: a thread for each process that is connected, and one that cleans up (SDK specification 16.2). */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon.h"
#include "standin.h"

#define BODY_MAX (1u << 20)
#define CLEAN_MS 50   /* the real daemon looks again after minutes */
#define LOOK_MS 1000 /* for processes that died while there was no daemon */

struct daemon {
	struct standin_cluster *cluster;
	char engine[256]; /* its socket; "" without */
};

struct client {
	struct daemon *daemon;
	int fd;
	uint32_t process, session;
};

static int address_of(const char *path, struct sockaddr_un *address)
{
	*address = (struct sockaddr_un){ .sun_family = AF_UNIX };
	if (strlen(path) >= sizeof(address->sun_path))
		return -ENAMETOOLONG;
	strcpy(address->sun_path, path);
	return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
}

int daemon_listen(const char *path)
{
	struct sockaddr_un address;
	int fd = address_of(path, &address);

	if (fd < 0)
		return fd;
	unlink(path);
	if (!bind(fd, (struct sockaddr *)&address, sizeof(address)) && !listen(fd, 128))
		return fd;
	close(fd);
	return -EIO;
}

int daemon_connect(const char *path)
{
	struct sockaddr_un address;
	int fd = address_of(path, &address);

	if (fd < 0 || !connect(fd, (struct sockaddr *)&address, sizeof(address)))
		return fd;
	close(fd);
	return -ECONNREFUSED;
}

static int reply(int fd, uint32_t id, int code, const void *body, size_t size)
{
	struct standin_answer answer = { .id = id, .code = code, .size = size };

	return standin_send(fd, &answer, sizeof(answer)) || (size && standin_send(fd, body, size));
}

/* HELLO: who it is.  0 when it may go on. */
static int greet(struct client *client)
{
	struct standin_cluster *cluster = client->daemon->cluster;
	struct standin_state *state = cluster->state;
	struct standin_welcome welcome = { 0 };
	struct standin_request hello;
	struct ucred peer;
	socklen_t size = sizeof(peer);
	uint32_t node;

	if (standin_receive(client->fd, &hello, sizeof(hello)) || hello.op != STANDIN_HELLO || hello.size ||
	    getsockopt(client->fd, SOL_SOCKET, SO_PEERCRED, &peer, &size))
		return -1;
	hello.name[sizeof(hello.name) - 1] = '\0';
	standin_lock(state);
	node = standin_node(state, hello.name);
	client->process = STANDIN_NOBODY;
	if (node != STANDIN_NOBODY)
		client->process = standin_enter(cluster, peer.pid, hello.arg[0] == UINT64_MAX ? peer.uid : hello.arg[0],
						hello.arg[1] == UINT64_MAX ? peer.gid : hello.arg[1], node,
						hello.arg[2] != 0);
	if (client->process != STANDIN_NOBODY) {
		client->session = state->processes[client->process].session;
		strcpy(welcome.socket, state->fabric);
		strcpy(welcome.node, state->nodes[node]);
	}
	standin_unlock(state);
	if (client->process == STANDIN_NOBODY)
		return reply(client->fd, hello.id, UBSM_ERR_PARAM_INVALID, NULL, 0) || 1;
	return reply(client->fd, hello.id, UBSM_OK, &welcome, sizeof(welcome));
}

/* One request, answered.  -1 at the end of the connection. */
static int serve_one(struct client *client)
{
	struct standin_request request;
	struct standin_turn turn = { .cluster = client->daemon->cluster, .process = client->process, .request = &request };
	void *payload = NULL;
	int code, rc = 0;

	if (standin_receive(client->fd, &request, sizeof(request)) || request.size > BODY_MAX)
		return -1;
	request.name[sizeof(request.name) - 1] = request.region[sizeof(request.region) - 1] = '\0';
	if (request.size) {
		payload = malloc(request.size);
		if (!payload || standin_receive(client->fd, payload, request.size)) {
			free(payload);
			return -1;
		}
	}
	turn.payload = payload;
	code = standin_answer(&turn);
	if (*client->daemon->engine)
		engine_call(client->daemon->engine, turn.engine);
	if (!turn.lost)
		rc = reply(client->fd, request.id, code, turn.body, code ? 0 : turn.size);
	free(turn.body);
	free(payload);
	return rc ? -1 : 0;
}

static void *serve_client(void *argument)
{
	struct client *client = argument;
	struct standin_cluster *cluster = client->daemon->cluster;

	if (!greet(client)) {
		while (!serve_one(client))
			;
		standin_lock(cluster->state);
		standin_leave(cluster, client->process, client->session);
		standin_unlock(cluster->state);
	}
	close(client->fd);
	free(client);
	return NULL;
}

static void *clean(void *argument)
{
	struct standin_cluster *cluster = argument;
	int left = 0;

	for (;;) {
		poll(NULL, 0, left ? CLEAN_MS : LOOK_MS);
		standin_lock(cluster->state);
		standin_bury(cluster);
		left = standin_sweep(cluster);
		standin_unlock(cluster->state);
	}
	return NULL;
}

static void start_client(struct daemon *daemon, int fd)
{
	struct client *client = malloc(sizeof(*client));
	pthread_t thread;

	if (client)
		*client = (struct client){ .daemon = daemon, .fd = fd };
	if (!client || pthread_create(&thread, NULL, serve_client, client)) {
		free(client);
		close(fd);
		return;
	}
	pthread_detach(thread);
}

int ubsmem_standin_serve(const char *folder, int engine, int in, int out)
{
	static struct daemon daemon; /* for the life of the process: its threads end with it */
	struct pollfd events[2] = { { .fd = in, .events = POLLIN } };
	pthread_t cleaner;
	char path[256];
	int rc = standin_cluster_open(folder, &daemon.cluster);

	if (rc)
		return rc;
	if (engine) {
		snprintf(daemon.engine, sizeof(daemon.engine), "%s/engine.sock", folder);
		if (engine_start(daemon.engine, daemon.cluster->state))
			return -EIO;
	}
	snprintf(path, sizeof(path), "%s/daemon.sock", folder);
	events[1] = (struct pollfd){ .fd = daemon_listen(path), .events = POLLIN };
	if (events[1].fd < 0)
		return events[1].fd;
	if (pthread_create(&cleaner, NULL, clean, daemon.cluster) || write(out, "ready\n", 6) != 6)
		return -EIO;
	for (;;) {
		int fd;

		if (poll(events, 2, -1) < 0) {
			if (errno == EINTR)
				continue;
			break;
		}
		if (events[0].revents) /* the parent is gone, or asks it to end */
			break;
		if (!events[1].revents)
			continue;
		fd = accept4(events[1].fd, NULL, NULL, SOCK_CLOEXEC);
		if (fd >= 0)
			start_client(&daemon, fd);
		else /* no descriptor is free: it is still in the queue, and asking all the time frees none */
			poll(NULL, 0, CLEAN_MS);
	}
	unlink(path);
	return 0;
}
