/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The structures of URMA's data path (URMA specification 4.3), as far as lists
 * of reads and writes need them.  The library itself is opened at run time.
 */
#ifndef OBMM_URMA_WIRE_H
#define OBMM_URMA_WIRE_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

enum { OBMM_URMA_WRITE = 0x00, OBMM_URMA_READ = 0x10 };
enum { OBMM_URMA_COMP_ORDER = 1 << 2, OBMM_URMA_COMPLETE = 1 << 5 };
enum { OBMM_URMA_SUSPEND_DONE = 12, OBMM_URMA_FLUSH_DONE = 13 };

struct urma_piece {
	uint64_t addr;
	uint32_t len;
	void *segment;
	void *user_segment; /* always NULL */
};

struct urma_pieces {
	struct urma_piece *pieces;
	uint32_t count;
};

struct urma_request {
	uint32_t opcode;
	uint32_t flag;
	void *target;
	uint64_t user_ctx;
	struct urma_pieces src;
	struct urma_pieces dst;
	uint8_t target_hint;
	uint64_t notify_data;
	struct urma_request *next;
};

struct urma_record {
	uint32_t status;
	uint64_t user_ctx;
	uint32_t opcode;
	uint8_t flag;
	uint32_t completion_len;
	uint32_t local_id;
	uint8_t rest[48];
};

static_assert(sizeof(struct urma_piece) == 32 && offsetof(struct urma_piece, segment) == 16, "urma_sge_t");
static_assert(sizeof(struct urma_pieces) == 16, "urma_sg_t");
static_assert(sizeof(struct urma_request) == 80 && offsetof(struct urma_request, src) == 24 &&
		       offsetof(struct urma_request, dst) == 40 && offsetof(struct urma_request, target_hint) == 56 &&
		       offsetof(struct urma_request, notify_data) == 64 && offsetof(struct urma_request, next) == 72,
	       "urma_jfs_wr_t");
static_assert(sizeof(struct urma_record) == 80 && offsetof(struct urma_record, user_ctx) == 8 &&
		       offsetof(struct urma_record, flag) == 20 && offsetof(struct urma_record, completion_len) == 24,
	       "urma_cr_t");

#endif
