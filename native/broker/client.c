/* SPDX-License-Identifier: Apache-2.0 */
#include "broker.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#define ANSWER_SECONDS 10

struct broker {
	struct obmm_sys sys; /* first: the table is the object */
	struct obmm_sys *base;
	struct sockaddr_un address;
	char name[512];
};

static struct broker *broker_of(struct obmm_sys *sys)
{
	return (struct broker *)sys;
}

static int dial(const struct sockaddr_un *address)
{
	const struct timeval limit = { .tv_sec = ANSWER_SECONDS };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return -errno;
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
	while (connect(fd, (const struct sockaddr *)address, sizeof(*address))) {
		int error = -errno;

		if (error == -EINTR)
			continue;
		close(fd);
		return error;
	}
	return fd;
}

/* Keep the first descriptor in *passed, and close all others that a message brought. */
static void take_descriptors(struct msghdr *message, int *passed)
{
	for (struct cmsghdr *head = CMSG_FIRSTHDR(message); head; head = CMSG_NXTHDR(message, head)) {
		size_t count = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);

		if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS)
			continue;
		for (size_t i = 0; i < count; i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(head) + i * sizeof(int), sizeof(fd));
			if (*passed < 0)
				*passed = fd;
			else
				close(fd);
		}
	}
}

/* The answer, with at most one descriptor (-1: none).  0 or a negative errno. */
static int receive(int fd, struct obmm_broker_answer *answer, int *passed)
{
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(sizeof(int))];
	} control;
	size_t have = 0;

	*passed = -1;
	while (have < sizeof(*answer)) {
		struct iovec part = { (char *)answer + have, sizeof(*answer) - have };
		struct msghdr message = {
			.msg_iov = &part,
			.msg_iovlen = 1,
			.msg_control = &control,
			.msg_controllen = sizeof(control),
		};
		ssize_t n = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n ? (errno == EAGAIN ? -ETIMEDOUT : -errno) : -ECONNRESET;
		take_descriptors(&message, passed);
		have += n;
	}
	return answer->magic == OBMM_BROKER_MAGIC ? 0 : -EPROTO;
}

static int ask(struct broker *b, const struct obmm_broker_request *request)
{
	struct obmm_broker_answer answer;
	size_t sent = 0;
	int passed = -1, rc, fd = dial(&b->address);

	if (fd < 0)
		return fd;
	rc = 0;
	while (sent < sizeof(*request)) {
		ssize_t n = send(fd, (const char *)request + sent, sizeof(*request) - sent, MSG_NOSIGNAL);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0) {
			/* a broker with no room answers before it reads, and closes */
			rc = errno == EPIPE || errno == ECONNRESET ? 0 : -errno;
			break;
		}
		sent += n;
	}
	if (!rc)
		rc = receive(fd, &answer, &passed);
	close(fd);
	if (!rc && answer.error)
		rc = -answer.error;
	if (!rc && passed < 0)
		rc = -EPROTO;
	if (rc && passed >= 0)
		close(passed);
	return rc ? rc : passed;
}

static int broker_open(struct obmm_sys *sys, const char *path, int flags)
{
	struct obmm_broker_request request = {
		.magic = OBMM_BROKER_MAGIC,
		.version = OBMM_BROKER_VERSION,
		.kind = OBMM_BROKER_OPEN,
		.flags = flags & ~O_CLOEXEC,
	};
	int fd;

	if (strlen(path) >= sizeof(request.path)) {
		errno = ENAMETOOLONG;
		return -1;
	}
	strcpy(request.path, path);
	fd = ask(broker_of(sys), &request);
	if (fd < 0) {
		errno = -fd;
		return -1;
	}
	if (!(flags & O_CLOEXEC))
		fcntl(fd, F_SETFD, 0);
	return fd;
}

static int broker_ioctl(struct obmm_sys *sys, int fd, unsigned long request, void *arg)
{
	struct obmm_sys *base = broker_of(sys)->base;

	return base->ioctl(base, fd, request, arg);
}

static void *broker_mmap(struct obmm_sys *sys, void *addr, size_t length, int prot, int flags, int fd,
			 uint64_t offset)
{
	struct obmm_sys *base = broker_of(sys)->base;

	return base->mmap(base, addr, length, prot, flags, fd, offset);
}

static int broker_munmap(struct obmm_sys *sys, void *addr, size_t length)
{
	struct obmm_sys *base = broker_of(sys)->base;

	return base->munmap(base, addr, length);
}

static int broker_close(struct obmm_sys *sys, int fd)
{
	struct obmm_sys *base = broker_of(sys)->base;

	return base->close(base, fd);
}

static void broker_destroy(struct obmm_sys *sys)
{
	struct obmm_sys *base = broker_of(sys)->base;

	base->destroy(base);
	free(sys);
}

int obmm_sys_broker(const char *socket_path, struct obmm_sys *base, struct obmm_sys **out)
{
	struct broker *b;

	if (strlen(socket_path) >= sizeof(b->address.sun_path))
		return -ENAMETOOLONG;
	b = calloc(1, sizeof(*b));
	if (!b)
		return -ENOMEM;
	b->base = base;
	b->address.sun_family = AF_UNIX;
	strcpy(b->address.sun_path, socket_path);
	snprintf(b->name, sizeof(b->name), "broker:%s (%s)", socket_path, base->name);
	b->sys = (struct obmm_sys){
		.size = sizeof(b->sys),
		.open = broker_open,
		.ioctl = broker_ioctl,
		.mmap = broker_mmap,
		.munmap = broker_munmap,
		.close = broker_close,
		.destroy = broker_destroy,
		.root = base->root,
		.name = b->name,
	};
	*out = &b->sys;
	return 0;
}

struct obmm_sys *obmm_sys_broker_base(struct obmm_sys *sys)
{
	return broker_of(sys)->base;
}
