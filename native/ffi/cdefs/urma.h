/* SPDX-License-Identifier: Apache-2.0 */
/* urma/path.h */
struct obmm_urma_path;
int obmm_urma_path_create(uint64_t post, uint64_t poll, void *queue, void *jfc, uint32_t depth, uint32_t list_max,
			  struct obmm_urma_path **path);
void obmm_urma_path_free(struct obmm_urma_path *path);
int obmm_urma_path_is_dead(const struct obmm_urma_path *path);
int obmm_urma_path_kill(struct obmm_urma_path *path, int64_t timeout_ns);
struct obmm_urma_batch {
	void *target;
	void *remote_segment;
	uint64_t remote;
	uint64_t remote_bytes;
	void *local_segment;
	uint64_t local;
	uint64_t local_bytes;
	const uint64_t *offsets;
	const uint32_t *lengths;
	uint32_t length;
	uint32_t opcode;
	uint64_t n;
	int64_t timeout_ns;
};
struct obmm_urma_outcome {
	uint64_t index;
	uint32_t status;
	int32_t code;
	uint64_t lists, foreign, nanoseconds;
};
int obmm_urma_transfer(struct obmm_urma_path *path, const struct obmm_urma_batch *batch,
		       struct obmm_urma_outcome *outcome);

/* urma/reader.h */
struct obmm_urma_reader {
	struct obmm_fetch fetch;
	struct obmm_urma_path *path;
	struct obmm_urma_batch way;
	uint64_t version;
	struct obmm_urma_outcome last;
	int32_t result;
	...;
};
int obmm_urma_reader_init(struct obmm_urma_reader *reader);
void obmm_urma_reader_end(struct obmm_urma_reader *reader);
void obmm_urma_reader_switch(struct obmm_urma_reader *reader, struct obmm_urma_path *path,
			     const struct obmm_urma_batch *way);
