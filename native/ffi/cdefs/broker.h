/* SPDX-License-Identifier: Apache-2.0 */
#define OBMM_BROKER_MAGIC ...
#define OBMM_BROKER_VERSION ...
#define OBMM_BROKER_PATH_MAX ...

enum obmm_broker_kind { OBMM_BROKER_HELLO, OBMM_BROKER_OPEN, ... };

struct obmm_broker_request {
	uint32_t magic;
	uint16_t version;
	uint16_t kind;
	uint32_t flags;
	char path[...];
};

struct obmm_broker_answer {
	uint32_t magic;
	int32_t error;
	uint32_t size;
};

int obmm_sys_broker(const char *socket_path, struct obmm_sys *base, struct obmm_sys **out);
struct obmm_sys *obmm_sys_broker_base(struct obmm_sys *sys);
