// SPDX-License-Identifier: GPL-2.0-only
/*
 * /sys/kernel/debug/obmm_sim: what tests look at and what they break.
 *
 *   counters   page faults by kind, cache operations by kind
 *   log        what the hardware was asked for: cache operations and UMMU calls; reading takes them out
 *   inject     "NAME VALUE", "blocker START LENGTH", "reset"
 *   decoder    "ADDRESS LENGTH TOKENID": that piece of a window leads to this host's export; LENGTH 0 removes
 *   sigbus     "MEM_ID START END": the next touch of these bytes raises SIGBUS; START = END heals
 */
#include <linux/debugfs.h>
#include <linux/fs.h>
#include <linux/slab.h>
#include <linux/seq_file.h>
#include <linux/uaccess.h>

#include "sim.h"

struct sim_counters sim_counters;

static const struct sim_inject nothing_injected = { .drain_state = 1, .tid_max = 0xfffff };
struct sim_inject sim_inject = { .drain_state = 1, .tid_max = 0xfffff };

static struct dentry *dir;

static int counters_show(struct seq_file *out, void *unused)
{
#define SHOW(_name) seq_printf(out, #_name " %lld\n", (long long)atomic64_read(&sim_counters._name))
	SHOW(pmd_faults);
	SHOW(pte_faults);
	SHOW(bus_faults);
	SHOW(inval);
	SHOW(wb_inval);
	SHOW(wb_only);
	SHOW(drain);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(counters);

/* ---- log: whole lines; when nobody reads it, the oldest are kept ---- */

static char log_text[1 << 16];
static size_t log_length;
static DEFINE_SPINLOCK(log_lock);

void sim_log(const char *format, ...)
{
	size_t room;
	va_list args;
	int n;

	spin_lock(&log_lock);
	room = sizeof(log_text) - log_length;
	va_start(args, format);
	n = vsnprintf(log_text + log_length, room, format, args);
	va_end(args);
	if (n < room)
		log_length += n;
	spin_unlock(&log_lock);
}

static ssize_t log_read(struct file *file, char __user *to, size_t size, loff_t *at)
{
	char *copy = kvmalloc(sizeof(log_text), GFP_KERNEL);
	ssize_t n;

	if (!copy)
		return -ENOMEM;
	spin_lock(&log_lock);
	n = min(size, log_length);
	memcpy(copy, log_text, n);
	log_length -= n;
	memmove(log_text, log_text + n, log_length);
	spin_unlock(&log_lock);
	if (copy_to_user(to, copy, n))
		n = -EFAULT;
	kvfree(copy);
	return n;
}
static const struct file_operations log_fops = { .open = simple_open, .read = log_read };

/* One short line from the user, NUL-terminated. */
static int read_line(char *line, size_t room, const char __user *from, size_t size)
{
	if (size >= room)
		return -EINVAL;
	if (copy_from_user(line, from, size))
		return -EFAULT;
	line[size] = 0;
	return 0;
}

static const struct {
	const char *name;
	int *value;
} switches[] = {
#define SWITCH(_name) { #_name, &sim_inject._name }
	SWITCH(flush_err),   SWITCH(flush_skip),    SWITCH(flush_busy), SWITCH(flush_sleep), SWITCH(drain_state),
	SWITCH(tdev_fail),   SWITCH(tdev_free_err), SWITCH(tid_min),	SWITCH(tid_max),     SWITCH(map_err),
	SWITCH(alloc_fail),  SWITCH(alloc_limit),   SWITCH(lin_err),	SWITCH(split_err),   SWITCH(split_skip),
	SWITCH(remap_err),
};

static int apply(const char *line)
{
	char name[24];
	int value, i;

	if (sysfs_streq(line, "reset")) {
		sim_inject = nothing_injected;
		return 0;
	}
	if (sscanf(line, "blocker %lli %lli", &sim_inject.blocker_start, &sim_inject.blocker_length) == 2)
		return 0;
	if (sscanf(line, "%23s %i", name, &value) != 2)
		return -EINVAL;
	for (i = 0; i < ARRAY_SIZE(switches); i++) {
		if (strcmp(switches[i].name, name))
			continue;
		*switches[i].value = value;
		return 0;
	}
	return -EINVAL;
}

static ssize_t inject_write(struct file *file, const char __user *from, size_t size, loff_t *at)
{
	char line[80];
	int err = read_line(line, sizeof(line), from, size);

	if (!err)
		err = apply(line);
	return err ?: size;
}
static const struct file_operations inject_fops = { .open = simple_open, .write = inject_write };

static ssize_t sigbus_write(struct file *file, const char __user *from, size_t size, loff_t *at)
{
	struct sim_region *region;
	u64 mem_id, start, end;
	char line[80];
	int err = read_line(line, sizeof(line), from, size);

	if (err)
		return err;
	if (sscanf(line, "%lli %lli %lli", &mem_id, &start, &end) != 3 || start > end)
		return -EINVAL;
	region = sim_region_get(mem_id);
	if (!region)
		return -ENOENT;
	WRITE_ONCE(region->poison_start, start & PAGE_MASK);
	WRITE_ONCE(region->poison_end, start == end ? 0 : PAGE_ALIGN(end));
	if (start != end)
		sim_area_zap(region, start & PAGE_MASK, PAGE_ALIGN(end));
	sim_region_put(region);
	return size;
}
static const struct file_operations sigbus_fops = { .open = simple_open, .write = sigbus_write };

static ssize_t decoder_write(struct file *file, const char __user *from, size_t size, loff_t *at)
{
	u64 pa, length;
	u32 tokenid;
	char line[80];
	int err = read_line(line, sizeof(line), from, size);

	if (err)
		return err;
	if (sscanf(line, "%lli %lli %i", &pa, &length, &tokenid) != 3 || !IS_ALIGNED(pa | length, SIM_CHUNK))
		return -EINVAL;
	return sim_decoder_program(pa, length, tokenid) ?: size;
}
static const struct file_operations decoder_fops = { .open = simple_open, .write = decoder_write };

int sim_debug_init(void)
{
	dir = debugfs_create_dir("obmm_sim", NULL);
	debugfs_create_file("counters", 0400, dir, NULL, &counters_fops);
	debugfs_create_file("log", 0400, dir, NULL, &log_fops);
	debugfs_create_file("inject", 0200, dir, NULL, &inject_fops);
	debugfs_create_file("decoder", 0200, dir, NULL, &decoder_fops);
	debugfs_create_file("sigbus", 0200, dir, NULL, &sigbus_fops);
	return 0;
}

void sim_debug_exit(void)
{
	debugfs_remove(dir);
}
