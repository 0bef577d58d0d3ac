/* SPDX-License-Identifier: Apache-2.0 */
/* device/accelerator.h */
struct obmm_accelerator {
	const char *name;
	int ordinal;
	int (*pin)(struct obmm_accelerator *self, uint64_t bytes, void **host);
	int (*unpin)(struct obmm_accelerator *self, void *host);
	int (*allocate)(struct obmm_accelerator *self, uint64_t bytes, uint64_t *device);
	int (*release)(struct obmm_accelerator *self, uint64_t device);
	int (*make_stream)(struct obmm_accelerator *self, uint64_t *stream);
	int (*end_stream)(struct obmm_accelerator *self, uint64_t stream);
	int (*make_event)(struct obmm_accelerator *self, uint64_t *event);
	int (*end_event)(struct obmm_accelerator *self, uint64_t event);
	int (*to_device)(struct obmm_accelerator *self, uint64_t device, const void *host, uint64_t bytes, uint64_t stream);
	int (*to_host)(struct obmm_accelerator *self, void *host, uint64_t device, uint64_t bytes, uint64_t stream);
	int (*record)(struct obmm_accelerator *self, uint64_t event, uint64_t stream);
	int (*host)(struct obmm_accelerator *self, uint64_t stream, void (*call)(void *), void *argument);
	int (*wait)(struct obmm_accelerator *self, uint64_t stream, uint64_t event);
	int (*query)(struct obmm_accelerator *self, uint64_t event);
	int (*synchronize)(struct obmm_accelerator *self, uint64_t stream);
	const char *(*why)(struct obmm_accelerator *self);
	...;
};
int obmm_accelerator_cuda(const char *library, int ordinal, struct obmm_accelerator **out, const char **why);
int obmm_accelerator_acl(const char *library, int ordinal, struct obmm_accelerator **out, const char **why);
int obmm_accelerator_fake(struct obmm_accelerator **out);
void obmm_accelerator_hold(struct obmm_accelerator *accelerator);
void obmm_accelerator_drop(struct obmm_accelerator *accelerator);
void obmm_accelerator_unpin(struct obmm_accelerator *accelerator, void *host);
void obmm_accelerator_release(struct obmm_accelerator *accelerator, uint64_t device);
void obmm_accelerator_end_event(struct obmm_accelerator *accelerator, uint64_t event);
int obmm_accelerator_share(struct obmm_accelerator *accelerator, void *host, uint64_t bytes, uint64_t *device);
void obmm_accelerator_unshare(struct obmm_accelerator *accelerator, void *host);
struct obmm_lane;
int obmm_lane_create(struct obmm_accelerator *accelerator, struct obmm_lane **lane);
uint64_t obmm_lane_stream(const struct obmm_lane *lane);
void obmm_lane_drop(struct obmm_lane *lane);

/* device/landing.h */
struct obmm_zone;
struct obmm_landing;
int obmm_zone_create(struct obmm_lane *lane, uint64_t device, struct obmm_zone **zone);
void obmm_zone_free(struct obmm_zone *zone);
int obmm_landing_create(struct obmm_zone *zone, const void *host, struct obmm_landing **landing);
void obmm_landing_free(struct obmm_landing *landing);
void obmm_landing_arm(struct obmm_landing *landing, uint64_t bytes);
void obmm_landing_arrived(void *landing, const struct obmm_outcome *outcome);
int obmm_landing_copy(struct obmm_landing *landing, uint64_t bytes);
int obmm_landing_queued(struct obmm_landing *landing);
int obmm_landing_join(struct obmm_landing *landing, uint64_t stream);
int obmm_landing_done(struct obmm_landing *landing);
int obmm_read_by(struct obmm_accelerator *accelerator, uint64_t event, uint64_t stream, uint64_t copies);

/* device/stream_gather.h */
struct obmm_stream_hash {
	const struct obmm_engram *engram;
	const struct obmm_poly *poly;
	struct obmm_ngram_batch batch;
	int64_t *rows;
	uint64_t width, first, columns, tokens_bytes, history_bytes;
};
struct obmm_stream_deadline {
	int64_t nanoseconds;
	struct obmm_request request;
	void *ids;
	uint8_t *rows;
	...;
};
struct obmm_stream_gather {
	struct obmm_accelerator *accelerator;
	struct obmm_engine *engine;
	struct obmm_request request;
	void *ids;
	uint8_t *rows;
	uint64_t ids_bytes, rows_bytes;
	uint64_t device_rows;
	struct obmm_stream_hash *hash;
	struct obmm_stream_deadline *deadline;
	int64_t version;
	struct obmm_outcome failure;
	...;
};
uint64_t obmm_stream_gather_runs(struct obmm_stream_gather *gather);
uint64_t obmm_stream_gather_failed(struct obmm_stream_gather *gather);
int64_t obmm_stream_gather_status(struct obmm_stream_gather *gather);
int obmm_stream_gather_enqueue(struct obmm_stream_gather *gather, uint64_t device_ids, uint64_t stream);
int obmm_stream_gather_enqueue_tokens(struct obmm_stream_gather *gather, uint64_t device_tokens,
				      uint64_t device_history, uint64_t stream);
uint64_t obmm_stream_gather_take_late(struct obmm_stream_gather *gather);
void obmm_stream_gather_run(void *gather);
int64_t obmm_stream_gather_send(struct obmm_stream_gather *gather, uint64_t stream, int *refused);
void obmm_stream_gather_times(struct obmm_stream_gather *gather, uint64_t *began_ns, uint64_t *ended_ns);
int64_t obmm_stream_gather_take(struct obmm_stream_gather *gather);
int obmm_stream_gather_shut(struct obmm_stream_gather *gather, int64_t timeout_ns);

/* device/fake.h */
struct obmm_fake_counts {
	uint64_t memories, streams, events;
};
void obmm_fake_left(struct obmm_accelerator *accelerator, struct obmm_fake_counts *counts);
void obmm_fake_refuse(struct obmm_accelerator *accelerator, unsigned int others);
struct obmm_fake_graph;
int obmm_fake_capture(struct obmm_accelerator *accelerator, uint64_t stream);
int obmm_fake_end_capture(struct obmm_accelerator *accelerator, uint64_t stream, struct obmm_fake_graph **graph);
int obmm_fake_replay(struct obmm_accelerator *accelerator, struct obmm_fake_graph *graph, uint64_t stream);
void obmm_fake_forget(struct obmm_fake_graph *graph);
