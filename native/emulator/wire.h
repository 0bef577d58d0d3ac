/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the emulator's client and server say to each other, byte by byte
 * (docs/emulator.md, "Wire protocol").  obmm/emulator/protocol.py mirrors this
 * file.  Little-endian, no holes; both ends run on one machine.
 */
#ifndef OBMM_WIRE_H
#define OBMM_WIRE_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#define OBMM_WIRE_MAGIC 0x4d4d424fu /* "OBMM" */
#define OBMM_WIRE_VERSION 2

#define OBMM_WIRE_NAME_MAX 64
#define OBMM_WIRE_ROOT_MAX 256
/* Payload of one request: the largest ioctl argument that a number can name, rounded up. */
#define OBMM_WIRE_PAYLOAD_MAX 16384u
/* Per answer; a longer list continues in the next one. */
#define OBMM_WIRE_ACTIONS_MAX 64u
#define OBMM_WIRE_DESCRIPTORS_MAX 64u

/* What a connection is for: system calls in the structs below, or control requests in JSON. */
enum obmm_wire_kind {
	OBMM_WIRE_CALLS = 1,
	OBMM_WIRE_CONTROL = 2,
};

enum obmm_wire_call {
	/* args: flags, effective uid; payload: path.  One descriptor comes back. */
	OBMM_CALL_OPEN = 1,
	/* args: request number, argument pointer; payload: the argument as far as the number tells its size */
	OBMM_CALL_IOCTL = 2,
	/* args: address, length, prot, flags, offset, errno of the reservation (0: reserved, or MAP_FIXED) */
	OBMM_CALL_MMAP = 3,
	/* args: address, length */
	OBMM_CALL_MUNMAP = 4,
	/* args: address, length, prot */
	OBMM_CALL_MPROTECT = 5,
	/* args: old address, old length, new length, flags, new address */
	OBMM_CALL_MREMAP = 6,
	/* args: address, length, advice */
	OBMM_CALL_MADVISE = 7,
	/* args: address, length, flags */
	OBMM_CALL_MSYNC = 8,
	/* args: one of enum obmm_wire_operation, then that operation's arguments */
	OBMM_CALL_FILE = 9,
	/* payload: struct obmm_wire_window; the value is the window's local physical address */
	OBMM_CALL_PROGRAM = 10,
	/* args: local physical address */
	OBMM_CALL_UNPROGRAM = 11,
	/* payload: the bytes that a NEED answer asked for, none when they cannot be read */
	OBMM_CALL_MEMORY = 12,
	/* args: errno.  An action of the last answer failed: take its effects back. */
	OBMM_CALL_UNDO = 13,
	/* The last user of the connection is gone.  Refused with EBUSY while mappings live. */
	OBMM_CALL_LEAVE = 14,
	/* args: mode, effective uid; payload: a device's path */
	OBMM_CALL_CHMOD = 15,
	/* args: owner, group, effective uid; payload: a device's path */
	OBMM_CALL_CHOWN = 16,
	/* args: mem_id; the value is how many open files the region has */
	OBMM_CALL_OPENS = 17,
};

/* Operations on an open file that carry no memory of their own. */
enum obmm_wire_operation {
	OBMM_FILE_READ = 1,
	OBMM_FILE_WRITE = 2,
	OBMM_FILE_LSEEK = 3,
	OBMM_FILE_FSYNC = 4,
	OBMM_FILE_FALLOCATE = 5,
	OBMM_FILE_FTRUNCATE = 6,
	OBMM_FILE_DEVICE = 7, /* the value is the mem_id, 0 for /dev/obmm */
	OBMM_FILE_FLAGS = 8,  /* the value is what F_GETFL says */
};

/* The payload could not be read at the caller's pointer: none follows. */
#define OBMM_REQUEST_FAULT 1u

enum obmm_wire_answer_kind {
	/* The call is over: result, actions, at most one copy-back. */
	OBMM_ANSWER_DONE = 1,
	/* More of the caller's memory is needed: send it as OBMM_CALL_MEMORY. */
	OBMM_ANSWER_NEED = 2,
	/* Actions that do not fit in one answer; the next one follows at once. */
	OBMM_ANSWER_MORE = 3,
	/* The descriptor is none of this fabric's: the kernel's call is the right one. */
	OBMM_ANSWER_FOREIGN = 4,
};

enum obmm_wire_action_kind {
	OBMM_ACTION_MAP = 1,
	OBMM_ACTION_PROTECT = 2,
	OBMM_ACTION_UNMAP = 3,
};

struct obmm_wire_hello {
	uint32_t magic;
	uint16_t version;
	uint16_t kind;
	char node[OBMM_WIRE_NAME_MAX]; /* empty: the fabric's first node */
};

struct obmm_wire_welcome {
	uint32_t magic;
	uint16_t version;
	uint16_t zero;
	int32_t error; /* 0 or an errno: ENODEV no such node, EPROTO other version, EACCES other user */
	uint32_t tag; /* of this fabric, in the names of its open files */
	char node[OBMM_WIRE_NAME_MAX];
	char root[OBMM_WIRE_ROOT_MAX]; /* the node's tree: root/sys, root/proc, root/dev */
};

struct obmm_wire_request {
	uint32_t size; /* of the payload that follows */
	uint16_t call;
	uint16_t flags;
	uint64_t file; /* inode of what stands for the open file, or 0 */
	uint64_t arg[6];
};

struct obmm_wire_answer {
	uint32_t kind;
	int32_t error; /* 0 or an errno */
	int64_t value;
	uint16_t actions;     /* this many struct obmm_wire_action follow */
	uint16_t descriptors; /* passed with this answer */
	uint32_t zero;
	uint64_t address; /* NEED: what to send.  DONE: where `length` bytes behind the actions go */
	uint64_t length;
};

struct obmm_wire_action {
	uint16_t kind;
	uint16_t descriptor; /* MAP: index among this answer's descriptors */
	uint32_t prot;
	uint64_t address;
	uint64_t length;
	uint64_t offset; /* MAP: in the descriptor */
};

struct obmm_wire_window {
	uint8_t owner_eid[16];
	uint32_t owner_cna;
	uint32_t tokenid;
	uint64_t uba;
	uint64_t length;
	uint64_t pa;	    /* wanted local physical address, 0: any */
	uint32_t local_cna; /* controller that owns the window, 0: any */
	uint32_t cache;	    /* 1 cacheable, 2 non-cacheable */
};

static_assert(sizeof(struct obmm_wire_hello) == 72, "wire");
static_assert(sizeof(struct obmm_wire_welcome) == 336, "wire");
static_assert(sizeof(struct obmm_wire_request) == 64, "wire");
static_assert(sizeof(struct obmm_wire_answer) == 40, "wire");
static_assert(sizeof(struct obmm_wire_action) == 32, "wire");
static_assert(sizeof(struct obmm_wire_window) == 56, "wire");
static_assert(offsetof(struct obmm_wire_answer, address) == 24, "wire");
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the protocol is little-endian");

#endif
