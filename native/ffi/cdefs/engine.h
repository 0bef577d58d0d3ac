/* SPDX-License-Identifier: Apache-2.0 */
/* engine/engine.h */
#define OBMM_MAX_THREADS ...
#define OBMM_TICKETS ...
struct obmm_engine;
int obmm_engine_create(unsigned int threads, uint64_t spin_ns, const int *cpus, unsigned int n_cpus,
		       struct obmm_engine **engine);
int obmm_engine_stop(struct obmm_engine *engine, int64_t timeout_ns);
void obmm_engine_free(struct obmm_engine *engine);
void obmm_engine_drop(struct obmm_engine **engine);
unsigned int obmm_engine_expect(struct obmm_engine *engine, int64_t within_ns);
uint64_t obmm_engine_spun_ns(const struct obmm_engine *engine, uint64_t *in_vain);
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
int obmm_engine_gather_all(struct obmm_engine *engine, const struct obmm_request *requests, unsigned int n,
			   uint64_t deadline_ns, struct obmm_outcome *outcomes, unsigned int *bad);
int obmm_engine_submit(struct obmm_engine *engine, const struct obmm_request *requests, unsigned int n,
		       unsigned int threads, struct obmm_outcome *outcomes, uint64_t *tickets, unsigned int *bad);
int obmm_ticket_collect(struct obmm_engine *engine, uint64_t ticket, int64_t timeout_ns);
int obmm_ticket_abandon(struct obmm_engine *engine, uint64_t ticket);
int obmm_ticket_release(struct obmm_engine *engine, uint64_t ticket);

/* engine/probe.h */
int obmm_probe_latency(const struct obmm_table *table, uint64_t length, uint64_t loads, uint64_t seed,
		       double *nanoseconds, struct obmm_fault *fault);
int obmm_probe_gather(struct obmm_engine *engine, const struct obmm_table *table, int64_t *ids, uint8_t *out,
		      uint64_t count, unsigned int rounds, unsigned int threads, uint64_t seed, double *nanoseconds,
		      struct obmm_outcome *outcome);
int obmm_probe_handover(struct obmm_engine *engine, unsigned int threads, unsigned int rounds, uint64_t pause_ns,
			uint64_t lead_ns, uint64_t *first, uint64_t *all);

/* engine/timeline.h */
struct obmm_thread_times {
	uint64_t awake, came, last, ended, rows, spun, room;
	...;
};
int obmm_probe_timeline(struct obmm_engine *engine, const struct obmm_table *table, int64_t *ids, uint8_t *out,
			uint64_t count, unsigned int rounds, unsigned int threads, uint64_t lead_ns, uint64_t seed,
			struct obmm_thread_times *times);

/* engine/pace.h */
struct obmm_pace {
	...;
};
unsigned int obmm_pace_threads(unsigned int level);
unsigned int obmm_pace_choose(struct obmm_pace *pace, uint64_t rows, bool ready, unsigned int most, uint32_t row_ns,
			      bool tries);
void obmm_pace_begin(struct obmm_pace *pace, uint64_t rows, bool ready, unsigned int threads);
void obmm_pace_learn(struct obmm_pace *pace, uint64_t rows, bool ready, unsigned int threads, uint64_t nanoseconds);

/* engine/wake.h */
void obmm_wake(void *context, const struct obmm_outcome *outcome);

/* engine/room.h */
unsigned int obmm_room_free(void);
unsigned int obmm_room_quota(const char *groups, const char *mount);

/* engine/nodes.h */
unsigned int obmm_nodes_with_cpus(const char *folder);
unsigned int obmm_node_cpus(const char *folder, unsigned int node);
int obmm_node_of(const void *base, uint64_t length);
