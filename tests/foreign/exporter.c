/* SPDX-License-Identifier: Apache-2.0 */
/* exporter PORT: exports a table, hands its description to one client over TCP, waits until it is done. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "check.h"
#include "mem.h"

#define SIZE (8UL << 20)

int main(void)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t length = sizeof(address);
	int listener = socket(AF_INET, SOCK_STREAM, 0), client, fd;
	struct mem_desc desc;
	uint64_t id, *words;
	char byte;

	id = mem_export(SIZE, &desc);
	CHECK(id);
	fd = mem_open(id, O_RDWR);
	words = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(words != MAP_FAILED);
	for (uint64_t i = 0; i < SIZE / 8; i++)
		words[i] = i * 0x9e3779b97f4a7c15ULL;
	CHECK(!mem_set_ownership(fd, words, SIZE, PROT_READ));

	CHECK(!bind(listener, (struct sockaddr *)&address, sizeof(address)) && !listen(listener, 1));
	CHECK(!getsockname(listener, (struct sockaddr *)&address, &length));
	printf("%d\n", ntohs(address.sin_port));
	fflush(stdout);
	client = accept(listener, NULL, NULL);
	CHECK(client >= 0);
	CHECK(write(client, &desc, sizeof(desc)) == sizeof(desc));
	CHECK(read(client, &byte, 1) == 1);
	CHECK(!munmap(words, SIZE) && !close(fd) && !mem_unexport(id));
	puts("exporter ok");
	return 0;
}
