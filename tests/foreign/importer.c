/* SPDX-License-Identifier: Apache-2.0 */
/*
 * importer PORT: gets a description over TCP, prints it for the management
 * plane, reads the window's address from its standard input, imports, verifies.
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "check.h"
#include "mem.h"

int main(int argc, char **argv)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int server = socket(AF_INET, SOCK_STREAM, 0), fd;
	struct mem_desc desc;
	uint64_t id, *words;
	unsigned long hpa;

	CHECK(argc == 2);
	address.sin_port = htons(atoi(argv[1]));
	CHECK(!connect(server, (struct sockaddr *)&address, sizeof(address)));
	CHECK(recv(server, &desc, sizeof(desc), MSG_WAITALL) == sizeof(desc));
	printf("%u %lu %lu %u\n", desc.tokenid, (unsigned long)desc.uba, (unsigned long)desc.length, desc.cna);
	fflush(stdout);
	CHECK(scanf("%lu", &hpa) == 1);
	id = mem_import(&desc, hpa);
	CHECK(id);
	fd = mem_open(id, O_RDWR);
	words = mmap(NULL, desc.length, PROT_NONE, MAP_SHARED, fd, 0);
	CHECK(words != MAP_FAILED);
	CHECK(!mem_set_ownership(fd, words, desc.length, PROT_READ));
	for (uint64_t i = 0; i < desc.length / 8; i++)
		CHECK(words[i] == i * 0x9e3779b97f4a7c15ULL);
	CHECK(!mem_set_ownership(fd, words, desc.length, PROT_NONE));
	CHECK(!munmap(words, desc.length) && !close(fd) && !mem_unimport(id));
	CHECK(write(server, "", 1) == 1);
	puts("importer ok");
	return 0;
}
