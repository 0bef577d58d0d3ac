// SPDX-License-Identifier: GPL-2.0-only
/*
 * /sys/kernel/debug/obmm_sim: what tests look at and what they break.
 *
 *   counters   page faults by kind, cache operations by kind
 *   log        what the hardware was asked for: cache operations and UMMU calls; reading takes them out
 *   inject     "NAME VALUE", "blocker START LENGTH", "reset"; EINVAL for a value without a meaning
 *   decoder    "ADDRESS LENGTH TOKENID": that piece of a window leads to this host's export; LENGTH 0 removes
 *   sigbus     "MEM_ID START END": the next touch of these bytes raises SIGBUS; START = END heals
 */
#include <linux/debugfs.h>
#include <linux/fs.h>
#include <linux/module.h>
#include <linux/overflow.h>
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

/* ---- log: whole lines; without a reader the oldest are kept ---- */

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
static const struct file_operations log_fops = { .owner = THIS_MODULE, .open = simple_open, .read = log_read };

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

/* Exactly `count` numbers, or -EINVAL and -ERANGE. */
static int read_numbers(char *line, u64 *numbers, int count)
{
	char *rest = strim(line), *word;
	int i, err;

	for (i = 0; i < count; i++) {
		word = strsep(&rest, " ");
		err = word ? kstrtoull(word, 0, &numbers[i]) : -EINVAL;
		if (err)
			return err;
	}
	return rest ? -EINVAL : 0;
}

#define MAX_TOKEN 0xfffff
#define MAX_BUSY 1000 /* of 10 ms each, in a call that no signal ends */
#define MAX_SLEEP_MS 10000

static const struct {
	const char *name;
	int *value;
	int min, max;
} switches[] = {
#define SWITCH(_name, _min, _max) { #_name, &sim_inject._name, _min, _max }
	SWITCH(flush_err, 0, MAX_ERRNO),
	SWITCH(flush_skip, 0, INT_MAX),
	SWITCH(flush_busy, 0, MAX_BUSY),
	SWITCH(flush_sleep, 0, MAX_SLEEP_MS),
	SWITCH(drain_state, -MAX_ERRNO, 1),
	SWITCH(tdev_fail, 0, 1),
	SWITCH(tdev_free_err, 0, MAX_ERRNO),
	SWITCH(tid_min, 0, MAX_TOKEN),
	SWITCH(tid_max, 0, MAX_TOKEN),
	SWITCH(map_err, 0, MAX_ERRNO),
	SWITCH(alloc_fail, 0, 1),
	SWITCH(alloc_limit, 0, INT_MAX),
	SWITCH(lin_err, 0, MAX_ERRNO),
	SWITCH(split_err, 0, MAX_ERRNO),
	SWITCH(split_skip, 0, INT_MAX),
	SWITCH(remap_err, 0, MAX_ERRNO),
};

static int apply_blocker(char *words)
{
	u64 range[2], end;
	int err = read_numbers(words, range, 2);

	if (err)
		return err;
	if (check_add_overflow(range[0], range[1], &end))
		return -EINVAL;
	sim_inject.blocker_start = range[0];
	sim_inject.blocker_length = range[1];
	return 0;
}

static int apply(char *line)
{
	char *words = strim(line);
	char *name = strsep(&words, " ");
	s64 value;
	int i, err;

	if (!words) {
		if (strcmp(name, "reset"))
			return -EINVAL;
		sim_inject = nothing_injected;
		return 0;
	}
	if (!strcmp(name, "blocker"))
		return apply_blocker(words);
	err = kstrtoll(words, 0, &value);
	if (err)
		return err;
	for (i = 0; i < ARRAY_SIZE(switches); i++) {
		if (strcmp(switches[i].name, name))
			continue;
		if (value < switches[i].min || value > switches[i].max)
			return -EINVAL;
		WRITE_ONCE(*switches[i].value, value);
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
static const struct file_operations inject_fops = { .owner = THIS_MODULE, .open = simple_open, .write = inject_write };

static void poison(struct sim_region *region, u64 start, u64 end)
{
	down_write(&sim_decoder_sem); /* no fault is between its look and its insertion */
	region->poison_start = start;
	region->poison_end = end;
	if (start < end)
		sim_area_zap(region, start, end);
	up_write(&sim_decoder_sem);
}

static ssize_t sigbus_write(struct file *file, const char __user *from, size_t size, loff_t *at)
{
	struct sim_region *region;
	u64 words[3], start, end;
	char line[80];
	int err = read_line(line, sizeof(line), from, size) ?: read_numbers(line, words, 3);

	if (err)
		return err;
	if (words[1] > words[2])
		return -EINVAL;
	region = sim_region_get(words[0]);
	if (!region)
		return -ENOENT;
	start = words[1];
	end = min(words[2], region->size);
	if (start == words[2])
		poison(region, 0, 0);
	else if (start < end)
		poison(region, start & PAGE_MASK, PAGE_ALIGN(end));
	else
		err = -EINVAL;
	sim_region_put(region);
	return err ?: size;
}
static const struct file_operations sigbus_fops = { .owner = THIS_MODULE, .open = simple_open, .write = sigbus_write };

static ssize_t decoder_write(struct file *file, const char __user *from, size_t size, loff_t *at)
{
	u64 words[3], end;
	char line[80];
	int err = read_line(line, sizeof(line), from, size) ?: read_numbers(line, words, 3);

	if (err)
		return err;
	if (!IS_ALIGNED(words[0] | words[1], SIM_CHUNK) || words[2] > MAX_TOKEN ||
	    check_add_overflow(words[0], words[1], &end))
		return -EINVAL;
	return sim_decoder_program(words[0], words[1], words[2]) ?: size;
}
static const struct file_operations decoder_fops = { .owner = THIS_MODULE, .open = simple_open, .write = decoder_write };

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
