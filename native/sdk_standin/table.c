/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "standin.h"

static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;
static struct standin_mapping *table;

void standin_table_add(struct standin_mapping *mapping)
{
	pthread_mutex_lock(&table_lock);
	mapping->next = table;
	table = mapping;
	pthread_mutex_unlock(&table_lock);
}

void standin_table_remove(struct standin_mapping *mapping)
{
	pthread_mutex_lock(&table_lock);
	for (struct standin_mapping **at = &table; *at; at = &(*at)->next) {
		if (*at == mapping) {
			*at = mapping->next;
			break;
		}
	}
	pthread_mutex_unlock(&table_lock);
}

struct standin_mapping *standin_table_object(const char *name)
{
	struct standin_mapping *found;

	pthread_mutex_lock(&table_lock);
	for (found = table; found; found = found->next)
		if (!found->lease && !strcmp(found->name, name))
			break;
	pthread_mutex_unlock(&table_lock);
	return found;
}

struct standin_mapping *standin_table_at(const void *base)
{
	struct standin_mapping *found;

	pthread_mutex_lock(&table_lock);
	for (found = table; found; found = found->next)
		if (found->base == base)
			break;
	pthread_mutex_unlock(&table_lock);
	return found;
}

int standin_table_overlaps(const char *base, size_t length)
{
	struct standin_mapping *found;

	pthread_mutex_lock(&table_lock);
	for (found = table; found; found = found->next)
		if (base < found->base + found->length && found->base < base + length)
			break;
	pthread_mutex_unlock(&table_lock);
	return found != NULL;
}

static void *collect(int leases, size_t width, size_t *size)
{
	size_t count = 0;
	char *list, *at;

	pthread_mutex_lock(&table_lock);
	for (struct standin_mapping *mapping = table; mapping; mapping = mapping->next)
		count += !!mapping->lease == leases;
	at = list = calloc(count + 1, width);
	for (struct standin_mapping *mapping = table; mapping && list; mapping = mapping->next) {
		if (!!mapping->lease != leases)
			continue;
		memcpy(at, leases ? (void *)&mapping->lease : mapping->name, width);
		at += width;
	}
	pthread_mutex_unlock(&table_lock);
	*size = at - list;
	return list;
}

void *standin_table_leases(size_t *size)
{
	return collect(1, sizeof(uint64_t), size);
}

void *standin_table_names(size_t *size)
{
	return collect(0, 48, size);
}
