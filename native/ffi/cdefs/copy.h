/* SPDX-License-Identifier: Apache-2.0 */
/* copy/guard.h */
struct obmm_fault {
	uint64_t id;
	uint64_t offset;
	uint64_t address;
	int32_t signo;
	int32_t code;
};
int obmm_guard_add(const void *base, size_t length, uint64_t id);
int obmm_guard_remove(int slot);
int obmm_guard_count(void);
int obmm_guard_check(void);
int obmm_guard_install(void);

/* copy/copy.h */
int obmm_copy_from(void *dst, const void *src, size_t length, struct obmm_fault *fault);
int obmm_copy_to(void *dst, const void *src, size_t length, struct obmm_fault *fault);
int obmm_copy_nc_from(void *dst, const void *src, size_t length, struct obmm_fault *fault);
int obmm_copy_nc_to(void *dst, const void *src, size_t length, struct obmm_fault *fault);
int obmm_fill(void *dst, int byte, size_t length, struct obmm_fault *fault);
int obmm_compare(const void *left, const void *right, size_t length, struct obmm_fault *fault);
int obmm_load(const void *src, unsigned int width, uint64_t *value, struct obmm_fault *fault);
int obmm_store(void *dst, unsigned int width, uint64_t value, struct obmm_fault *fault);
void obmm_fence_load(void);
void obmm_fence_store(void);
void obmm_fence_full(void);

/* copy/recheck.h */
struct obmm_recheck;
struct obmm_header_place {
	int fd;
	uint64_t start;
	uint64_t end;
	const uint64_t *version;
	struct obmm_gate *gate;
};
struct obmm_recheck *obmm_recheck_create(struct obmm_sys *sys, const struct obmm_header_place *place);
void obmm_recheck_free(struct obmm_recheck *recheck);
void obmm_recheck_hold(struct obmm_recheck *recheck);
void obmm_recheck_resume(struct obmm_recheck *recheck, int readonly);
int obmm_recheck_run(struct obmm_recheck *recheck, uint64_t *version, struct obmm_fault *fault);

/* copy/hot.h */
#define OBMM_HOT_MOST_BYTES ...
struct obmm_hot;
int obmm_hot_create(uint64_t rows, uint32_t row_bytes, struct obmm_hot **hot);
void obmm_hot_free(struct obmm_hot *hot);
uint64_t obmm_hot_rows(const struct obmm_hot *hot);
uint64_t obmm_hot_bytes(const struct obmm_hot *hot);

/* copy/gather.h */
#define OBMM_TABLE_NC ...
#define OBMM_TABLE_HUGE ...
#define OBMM_INVALID_ERROR ...
#define OBMM_INVALID_ZERO ...
#define OBMM_MOST_FAULTS ...
struct obmm_tuning {
	uint32_t prefetch_bytes;
	uint32_t stream_bytes;
	uint32_t stream_row;
	uint32_t order_rows;
	uint32_t order_row;
	uint32_t thread_rows;
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
};
struct obmm_failures {
	uint8_t *rows;
	uint64_t failed;
	uint64_t faults;
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

/* copy/engine.h */
#define OBMM_MAX_THREADS ...
#define OBMM_TICKETS ...
struct obmm_engine;
int obmm_engine_create(unsigned int threads, uint64_t spin_ns, const int *cpus, unsigned int n_cpus,
		       struct obmm_engine **engine);
int obmm_engine_stop(struct obmm_engine *engine, int64_t timeout_ns);
void obmm_engine_free(struct obmm_engine *engine);
unsigned int obmm_engine_threads(const struct obmm_engine *engine);
unsigned int obmm_engine_pinned(const struct obmm_engine *engine);
unsigned int obmm_engine_in_use(struct obmm_engine *engine);
int64_t obmm_engine_gather(struct obmm_engine *engine, const struct obmm_request *request, unsigned int threads,
		       struct obmm_outcome *outcome);
struct obmm_call {
	struct obmm_engine *engine;
	const struct obmm_request *request;
	struct obmm_outcome *outcome;
};
int64_t obmm_engine_call(const struct obmm_call *call);
int obmm_engine_submit(struct obmm_engine *engine, const struct obmm_request *requests, unsigned int n,
		       unsigned int threads, struct obmm_outcome *outcomes, uint64_t *tickets, unsigned int *bad);
int obmm_ticket_collect(struct obmm_engine *engine, uint64_t ticket, int64_t timeout_ns);
int obmm_ticket_abandon(struct obmm_engine *engine, uint64_t ticket);
int obmm_ticket_release(struct obmm_engine *engine, uint64_t ticket);

/* copy/probe.h */
int obmm_probe_latency(const struct obmm_table *table, uint64_t length, uint64_t loads, uint64_t seed,
		       double *nanoseconds, struct obmm_fault *fault);
int obmm_probe_gather(struct obmm_engine *engine, const struct obmm_table *table, int64_t *ids, uint8_t *out,
		      uint64_t count, unsigned int rounds, unsigned int threads, uint64_t seed, double *nanoseconds,
		      struct obmm_outcome *outcome);

/* copy/crc32c.h */
uint32_t obmm_crc32c(uint32_t crc, const void *data, size_t length);
