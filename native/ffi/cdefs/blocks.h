/* SPDX-License-Identifier: Apache-2.0 */
/* blocks/slot.h */
#define OBMM_SLOT_MAGIC ...
#define OBMM_SLOT_VERSION ...
#define OBMM_SLOT_READY ...
struct obmm_slot_header {
	uint32_t magic;
	uint16_t version;
	uint16_t state;
	uint64_t generation;
	uint8_t hash[16];
	uint32_t length;
	uint32_t crc;
	uint64_t incarnation;
	uint64_t fingerprint;
	uint32_t reserved;
	uint32_t header_crc;
};
struct obmm_block_place {
	uint8_t hash[16];
	uint64_t generation;
	uint32_t slot;
	uint32_t length;
};

/* blocks/area.h */
struct obmm_slot_use;
struct obmm_block_area {
	uint8_t *base;
	uint64_t stride;
	uint32_t slots;
	uint32_t capacity;
	uint64_t incarnation;
	uint64_t fingerprint;
	struct obmm_gate *gate;
	struct obmm_slot_use *use;
	struct obmm_sys *sys;
	int32_t fd;
};
struct obmm_slot_use *obmm_slot_use_create(uint32_t slots);
void obmm_slot_use_free(struct obmm_slot_use *use);
int obmm_slots_clear(const struct obmm_block_area *area, const uint32_t *slots, uint32_t count);

/* blocks/batch.h */
#define OBMM_BLOCK_PENDING ...
#define OBMM_BLOCK_DONE ...
#define OBMM_BLOCK_UNKNOWN ...
#define OBMM_BLOCK_LENGTH ...
#define OBMM_BLOCK_REUSED ...
#define OBMM_BLOCK_TORN ...
#define OBMM_BLOCK_CORRUPT ...
#define OBMM_BLOCK_FAULT ...
#define OBMM_BLOCK_RIGHT ...
#define OBMM_BLOCK_CLOSED ...
#define OBMM_BLOCK_LATE ...
#define OBMM_BLOCK_BUFFER ...
struct obmm_block_batch {
	const struct obmm_block_area *area;
	const struct obmm_block_place *places;
	const uint64_t *addresses;
	const uint32_t *sizes;
	int8_t *status;
	uint32_t count;
	uint32_t pieces;
	int32_t to_write;
	int32_t bell;
	uint64_t deadline_ns;
	uint64_t bytes;
	uint32_t faults;
	struct obmm_fault fault;
	struct obmm_outcome outcome;
	...;
};
int obmm_batch_prepare(struct obmm_block_batch *batch);
int obmm_batch_run(struct obmm_engine *engine, struct obmm_block_batch *batch);
int obmm_batch_submit(struct obmm_engine *engine, struct obmm_block_batch *batch, uint64_t *ticket);

/* blocks/summed.h */
const char *obmm_summed_isa(void);
int obmm_summed_use(const char *isa);
