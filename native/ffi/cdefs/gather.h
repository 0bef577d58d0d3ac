/* SPDX-License-Identifier: Apache-2.0 */
/* gather/hot.h */
#define OBMM_HOT_MOST_BYTES ...
struct obmm_hot;
int obmm_hot_create(uint64_t rows, uint32_t row_bytes, struct obmm_hot **hot);
void obmm_hot_free(struct obmm_hot *hot);
uint64_t obmm_hot_rows(const struct obmm_hot *hot);
uint64_t obmm_hot_bytes(const struct obmm_hot *hot);

/* gather/gather.h */
#define OBMM_TABLE_NC ...
#define OBMM_TABLE_HUGE ...
#define OBMM_INVALID_ERROR ...
#define OBMM_INVALID_ZERO ...
#define OBMM_MOST_FAULTS ...
struct obmm_tuning {
	uint32_t prefetch_bytes;
	uint32_t stream_bytes;
	uint32_t stream_alone;
	uint32_t stream_row;
	uint32_t order_rows;
	uint32_t order_row;
	uint32_t row_ns;
	uint32_t most_threads;
	uint32_t node;
	uint32_t near_cpus;
};
struct obmm_totals {
	uint64_t gathers;
	uint64_t ids;
	uint64_t rows_read;
	uint64_t rows_zero;
	uint64_t rows_hot;
	uint64_t rows_missed;
	uint64_t nanoseconds;
	uint64_t refused;
	uint64_t faults;
	uint64_t stale;
	uint64_t cancelled;
};
struct obmm_fetch {
	void *context;
	...;
};
struct obmm_delay {
	uint64_t call_ns;
	uint64_t row_ps;
};
void obmm_delay_wait(uint64_t began_ns, uint64_t ns);
struct obmm_table {
	const uint8_t *base;
	uint64_t rows;
	uint64_t row_stride;
	uint64_t rows_per_segment;
	uint64_t segment_bytes;
	uint32_t row_bytes;
	uint32_t flags;
	struct obmm_tuning tuning;
	struct obmm_gate *const *gates;
	uint32_t n_gates;
	const uint64_t *version;
	const uint64_t *cached;
	struct obmm_totals *totals;
	const struct obmm_fetch *fetch;
	struct obmm_pace *pace;
	const struct obmm_delay *delay;
};
struct obmm_failures {
	uint8_t *rows;
	uint64_t failed;
	uint64_t faults;
	...;
};
struct obmm_outcome;
struct obmm_completion {
	void (*call)(void *context, const struct obmm_outcome *outcome);
	void *context;
};
struct obmm_work {
	uint64_t chunk;
	...;
};
struct obmm_request {
	const struct obmm_table *table;
	const void *ids;
	uint64_t count;
	uint8_t *out;
	uint64_t out_stride;
	uint32_t id_bytes;
	uint32_t invalid;
	const int64_t *head_offsets;
	const uint8_t *column_mask;
	uint64_t columns;
	struct obmm_recheck *recheck;
	uint64_t low;
	uint64_t high;
	struct obmm_failures *failures;
	struct obmm_hot *hot;
	struct obmm_completion then;
	struct obmm_work *work;
};
struct obmm_outcome {
	int64_t bad_index;
	int64_t bad_id;
	uint64_t rows_read;
	uint64_t rows_zero;
	uint64_t rows_hot;
	uint64_t nanoseconds;
	uint64_t version;
	struct obmm_fault fault;
	int32_t status;
	int32_t threads;
	uint64_t ready;
};
void obmm_tuning_default(struct obmm_tuning *tuning, uint32_t row_bytes, uint32_t flags);
struct obmm_scratch;
int obmm_gather_check(const struct obmm_request *request, struct obmm_outcome *outcome);
int obmm_gather_range(const struct obmm_request *request, uint64_t from, uint64_t to, struct obmm_scratch *scratch,
		      struct obmm_outcome *outcome);
const char *obmm_gather_isa(void);
int obmm_gather_use(const char *isa);

/* gather/fp8.h */
void obmm_fp8_rows(const uint8_t *rows, uint64_t n, uint32_t dim, const uint16_t *products, uint16_t *out);
