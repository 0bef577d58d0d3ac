/* SPDX-License-Identifier: Apache-2.0 */
/* Host groups and the cluster (SDK specification 6.1, 6.3, 8). */
#include <stdlib.h>
#include <string.h>

#include "standin.h"

/* One round trip whose answer is exactly `size` bytes at `out`. */
static int ask(struct standin_request *request, const void *payload, void *out, size_t size)
{
	size_t got;
	void *body;
	int code = standin_call(request, payload, &body, &got);

	if (!code && got != size)
		code = UBSM_ERR_NET;
	if (!code && size)
		memcpy(out, body, size);
	free(body);
	return code;
}

int ubsmem_lookup_regions(ubsmem_regions_t *regions)
{
	struct standin_request request = { .op = STANDIN_GROUPS };

	if (!regions)
		return UBSM_ERR_PARAM_INVALID;
	if (standin_connect())
		return UBSM_ERR_MEMLIB;
	return ask(&request, NULL, regions, sizeof(*regions));
}

static int in_group(const ubsmem_region_attributes_t *group, const char *host)
{
	for (int i = 0; i < group->host_num; i++)
		if (!strcmp(group->hosts[i].host_name, host))
			return 1;
	return 0;
}

static int all_in_one_group(const ubsmem_regions_t *groups, const ubsmem_region_attributes_t *wanted)
{
	for (int g = 0; g < groups->num; g++) {
		int i = 0;

		while (i < wanted->host_num && in_group(&groups->region[g], wanted->hosts[i].host_name))
			i++;
		if (i == wanted->host_num)
			return 1;
	}
	return 0;
}

int ubsmem_create_region(const char *name, size_t size, const ubsmem_region_attributes_t *attributes)
{
	struct standin_request request = { .op = STANDIN_REGION_CREATE, .size = sizeof(*attributes) };
	ubsmem_regions_t groups;
	int code;

	if (!name || !attributes)
		return UBSM_ERR_PARAM_INVALID;
	if (!strcmp(name, "default"))
		return UBSM_ERR_NO_NEEDED;
	if (size || attributes->host_num < 2 || attributes->host_num > 16 || standin_bad_name(name))
		return UBSM_ERR_PARAM_INVALID;
	for (int i = 0; i < attributes->host_num; i++) {
		size_t length = strnlen(attributes->hosts[i].host_name, sizeof(attributes->hosts[i].host_name));

		if (length < 1 || length > UBSM_MAX_HOST)
			return UBSM_ERR_PARAM_INVALID;
	}
	code = ubsmem_lookup_regions(&groups);
	if (code)
		return code;
	if (!all_in_one_group(&groups, attributes))
		return UBSM_CHECK_RESOURCE_ERROR;
	strcpy(request.region, name);
	return standin_call(&request, attributes, NULL, NULL);
}

int ubsmem_lookup_region(const char *name, ubsmem_region_desc_t *region)
{
	struct standin_request request = { .op = STANDIN_REGION_LOOKUP };

	if (!name || !region || standin_bad_name(name))
		return UBSM_ERR_PARAM_INVALID;
	if (standin_connect())
		return UBSM_ERR_MEMLIB;
	strcpy(request.region, name);
	return ask(&request, NULL, region, sizeof(*region));
}

int ubsmem_destroy_region(const char *name)
{
	struct standin_request request = { .op = STANDIN_REGION_DESTROY };

	if (!name)
		return UBSM_ERR_PARAM_INVALID;
	if (!strcmp(name, "default"))
		return UBSM_ERR_NO_NEEDED;
	if (standin_bad_name(name))
		return UBSM_ERR_PARAM_INVALID;
	if (standin_connect())
		return UBSM_ERR_MEMLIB;
	strcpy(request.region, name);
	return standin_call(&request, NULL, NULL, NULL);
}

int ubsmem_lookup_cluster_statistic(ubsmem_cluster_info_t *cluster)
{
	struct standin_request request = { .op = STANDIN_CLUSTER };

	return cluster ? ask(&request, NULL, cluster, sizeof(*cluster)) : UBSM_ERR_PARAM_INVALID;
}

int ubsmem_local_nid_query(uint32_t *slot)
{
	struct standin_request request = { .op = STANDIN_SLOT };

	return slot ? ask(&request, NULL, slot, sizeof(*slot)) : UBSM_ERR_PARAM_INVALID;
}
