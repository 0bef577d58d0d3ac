/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loopback smoke test: one host exports memory and imports it back.
 *
 *	smoke [SIZE] [--json] [--nc] [--window ADDRESS] [--device DEVICE]
 *
 * OBMM_DEVICE, or --device, chooses the backend.  On an emulated node the test programs the
 * decoder itself.  On hardware that is the management plane's business: give
 * the local physical address of a window that leads to this export, or the
 * import is left out and the exporter's own mapping verified.
 *
 * The pattern is 256 64-bit little-endian words at the start of the region,
 * word i = 0xdead0000 + i * 0x1111 (they fit in 32 bits, so a reader of either
 * width can tell them).  The load-latency chain lies behind the first 4 KiB.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "../access/order.h"
#include "../core/obmm_rw.h"
#include "../core/topology.h"
#include "../emulator/client.h"
#include "chase.h"
#include "faults.h"
#include "report.h"

#define DEFAULT_SIZE (4ULL << 20)
#define WORDS 256
#define CHAIN_OFFSET 4096
#define CHAIN_MAX (64ULL << 20)

/* One end of the loopback: a region and this process's mapping of it. */
struct end {
	uint64_t mem_id;
	int fd;
	unsigned char *memory;
};

struct smoke {
	struct report *report;
	struct obmm_sys *sys;
	int emulated;  /* figures say nothing about hardware */
	int programs;  /* the backend lets us program the decoder */
	int nc;
	uint64_t size;
	uint64_t window; /* --window, 0: none */
	int fd;
	struct obmm_controller controller;
	uint64_t uba;
	uint32_t tokenid;
	uint64_t programmed; /* address of our decoder entry */
	struct end exported, imported;
	/* what a faulting access leaves behind */
	unsigned int word;
	uint64_t found;
	/* of the reader's mapping, then of local memory */
	const void *chains[2];
	struct chase_result latency[2];
};

static uint64_t pattern(unsigned int i)
{
	return 0xdead0000ULL + i * 0x1111ULL;
}

static uint64_t chain_length(const struct smoke *smoke)
{
	uint64_t length = smoke->size - CHAIN_OFFSET;

	return length < CHAIN_MAX ? length : CHAIN_MAX;
}

/* The mapping that is verified: the importer's where there is one. */
static const struct end *reader(const struct smoke *smoke)
{
	return smoke->imported.memory ? &smoke->imported : &smoke->exported;
}

static int own(struct smoke *smoke, const struct end *end, uint8_t access)
{
	uint64_t start = (uintptr_t)end->memory;

	/* NC needs no ownership, only barriers (spec 16) */
	if (smoke->nc)
		return 0;
	return obmm_rw_set_ownership(smoke->sys, end->fd, start, start + smoke->size,
				     OBMM_SHM_MEM_NORMAL | access, OBMM_SHM_CACHE_INFER);
}

static int map(struct smoke *smoke, const char *step, struct end *end, int flags, int prot)
{
	void *memory;
	int rc;

	rc = obmm_rw_shmdev_open(smoke->sys, end->mem_id, flags | (smoke->nc ? O_SYNC : 0));
	if (rc < 0) {
		report_refused(smoke->report, step, rc, "SHMDEV_OPEN", "mem_id=%" PRIu64 ", %s", end->mem_id,
			       smoke->nc ? "NC" : "CC");
		return 0;
	}
	end->fd = rc;
	rc = obmm_rw_map(smoke->sys, end->fd, NULL, 0, smoke->size, prot, 0, &memory);
	if (rc < 0) {
		report_refused(smoke->report, step, rc, "MMAP", "mem_id=%" PRIu64 ", length=%" PRIu64,
			       end->mem_id, smoke->size);
		return 0;
	}
	end->memory = memory;
	return 1;
}

static int step_open(struct smoke *smoke)
{
	const struct obmm_controller *controller = &smoke->controller;
	int rc = obmm_rw_open(smoke->sys);

	if (rc < 0) {
		report_refused(smoke->report, "open", rc, "OPEN", "path=%s", OBMM_DEV_PATH);
		return 0;
	}
	smoke->fd = rc;
	if (obmm_first_controller(smoke->sys->root, &smoke->controller)) {
		report_failed(smoke->report, "open",
			      "%s opens, but there is no UB bus controller below %s/sys/devices/ub_bus_controller*: "
			      "nothing could reach exported memory; load the UB bus driver, check the firmware",
			      OBMM_DEV_PATH, smoke->sys->root);
		return 0;
	}
	report_ok(smoke->report, "open", "%s, controller %u: CNA %#x, UMMU %u, NUMA node %u", OBMM_DEV_PATH,
		  controller->index, controller->cna, controller->ummu, controller->numa);
	return 1;
}

static int step_export(struct smoke *smoke)
{
	const struct obmm_controller *controller = &smoke->controller;
	struct obmm_vendor_info vendor = { .ummu_mask = 1ULL << (controller->ummu % 64), .on_chip = 1 };
	struct obmm_cmd_export cmd = {
		.length = controller->numa + 1,
		.flags = OBMM_EXPORT_FLAG_ALLOW_MMAP,
		.pxm_numa = (int32_t)controller->numa,
		.vendor_len = sizeof(vendor),
		.vendor_info = &vendor,
	};
	int rc;

	if (controller->numa >= OBMM_MAX_LOCAL_NUMA_NODES) {
		report_failed(smoke->report, "export", "controller %u is on NUMA node %u; the driver takes 0 to %d",
			      controller->index, controller->numa, OBMM_MAX_LOCAL_NUMA_NODES - 1);
		return 0;
	}
	cmd.size[controller->numa] = smoke->size;
	memcpy(cmd.deid, controller->eid, sizeof(cmd.deid));
	rc = obmm_rw_export(smoke->sys, smoke->fd, &cmd);
	if (rc < 0) {
		report_refused(smoke->report, "export", rc, "EXPORT",
			       "size[%u]=%" PRIu64 ", flags=ALLOW_MMAP, pxm_numa=%u, vendor_len=%zu", controller->numa,
			       smoke->size, controller->numa, sizeof(vendor));
		return 0;
	}
	smoke->exported.mem_id = cmd.mem_id;
	smoke->uba = cmd.uba;
	smoke->tokenid = cmd.tokenid;
	report_ok(smoke->report, "export", "%" PRIu64 " bytes of NUMA node %u, mem_id %" PRIu64, smoke->size,
		  controller->numa, cmd.mem_id);
	return 1;
}

static int step_map(struct smoke *smoke)
{
	if (!map(smoke, "map export", &smoke->exported, O_RDWR, PROT_READ | PROT_WRITE))
		return 0;
	report_ok(smoke->report, "map export", "%s%" PRIu64 " read-write, %s", OBMM_SHMDEV_PREFIX,
		  smoke->exported.mem_id, smoke->nc ? "non-cacheable" : "cacheable");
	return 1;
}

static void write_all(void *argument)
{
	struct smoke *smoke = argument;
	volatile uint64_t *words = (void *)smoke->exported.memory;

	for (smoke->word = 0; smoke->word < WORDS; smoke->word++)
		words[smoke->word] = pattern(smoke->word);
	chase_build(smoke->exported.memory + CHAIN_OFFSET, chain_length(smoke));
	obmm_order_store();
}

static const char *fault_text(int signal)
{
	return signal == SIGBUS ? "SIGBUS: no memory answers (decoder not programmed for this export, exporter gone, "
				  "poison or link error; driver specification 17)" :
				  "SIGSEGV: the mapping does not allow the access (driver specification 9.9)";
}

static int step_write(struct smoke *smoke)
{
	int rc, signal = faults_catch(write_all, smoke);

	if (signal) {
		report_failed(smoke->report, "write", "word %u: %s", smoke->word, fault_text(signal));
		return 0;
	}
	/* W -> R: written back before the other side looks */
	rc = own(smoke, &smoke->exported, OBMM_SHM_MEM_READONLY);
	if (rc < 0) {
		report_refused(smoke->report, "write", rc, "UPDATE_RANGE",
			       "mem_id=%" PRIu64 ", READONLY, INFER, length=%" PRIu64, smoke->exported.mem_id,
			       smoke->size);
		return 0;
	}
	report_ok(smoke->report, "write", "%d words of 64 bits, word i = 0xdead0000 + i * 0x1111; %s", WORDS,
		  smoke->nc ? "store barrier" : "written back (W to R)");
	return 1;
}

/* Where the import goes: *address 0 when it is not known. */
static int find_window(struct smoke *smoke, uint64_t *address)
{
	struct obmm_emulator_window window = {
		.owner_cna = smoke->controller.cna,
		.tokenid = smoke->tokenid,
		.uba = smoke->uba,
		.length = smoke->size,
		.pa = smoke->window,
		.local_cna = smoke->controller.cna,
		.cache = smoke->nc ? 2 : 1,
	};
	int rc;

	*address = smoke->window;
	if (!smoke->programs)
		return 1;
	memcpy(window.owner_eid, smoke->controller.eid, sizeof(window.owner_eid));
	rc = obmm_emulator_program(smoke->sys, &window, &smoke->programmed);
	if (rc < 0) {
		report_refused(smoke->report, "import", rc, "PROGRAM_WINDOW",
			       "length=%" PRIu64 ", %s, address=%#" PRIx64, smoke->size, smoke->nc ? "NC" : "CC",
			       smoke->window);
		return 0;
	}
	*address = smoke->programmed;
	return 1;
}

static int step_import(struct smoke *smoke)
{
	struct obmm_cmd_import cmd = {
		.flags = OBMM_IMPORT_FLAG_ALLOW_MMAP,
		.length = smoke->size,
		.tokenid = smoke->tokenid,
		.scna = smoke->controller.cna,
		.dcna = smoke->controller.cna,
		.numa_id = -1,
	};
	int rc;

	if (!find_window(smoke, &cmd.addr))
		return 0;
	if (!cmd.addr) {
		report_skipped(smoke->report, "import",
			       "no window for loopback: on hardware the management plane programs the decoder; give the "
			       "local physical address of a window onto this export with --window. The exporter's own "
			       "mapping is verified instead");
		return 1;
	}
	memcpy(cmd.deid, smoke->controller.eid, sizeof(cmd.deid));
	memcpy(cmd.seid, smoke->controller.eid, sizeof(cmd.seid));
	rc = obmm_rw_import(smoke->sys, smoke->fd, &cmd);
	if (rc < 0) {
		report_refused(smoke->report, "import", rc, "IMPORT",
			       "addr=%#" PRIx64 ", length=%" PRIu64 ", flags=ALLOW_MMAP, scna=%#x, dcna=%#x", cmd.addr,
			       cmd.length, cmd.scna, cmd.dcna);
		return 0;
	}
	smoke->imported.mem_id = cmd.mem_id;
	report_ok(smoke->report, "import", "window at %#" PRIx64 ", mem_id %" PRIu64, cmd.addr, cmd.mem_id);
	return 1;
}

static int step_map_import(struct smoke *smoke)
{
	int rc;

	if (!smoke->imported.mem_id) {
		report_skipped(smoke->report, "map import", "nothing was imported");
		return 1;
	}
	/* a cacheable importer starts without access, so that nothing stale is cached (spec 16, rule 6) */
	if (!map(smoke, "map import", &smoke->imported, O_RDONLY, smoke->nc ? PROT_READ : PROT_NONE))
		return 0;
	rc = own(smoke, &smoke->imported, OBMM_SHM_MEM_READONLY);
	if (rc < 0) {
		report_refused(smoke->report, "map import", rc, "UPDATE_RANGE",
			       "mem_id=%" PRIu64 ", READONLY, INFER, length=%" PRIu64, smoke->imported.mem_id,
			       smoke->size);
		return 0;
	}
	report_ok(smoke->report, "map import", "%s%" PRIu64 " read-only, %s", OBMM_SHMDEV_PREFIX,
		  smoke->imported.mem_id, smoke->nc ? "non-cacheable" : "cacheable (N to R)");
	return 1;
}

static const char *through(const struct smoke *smoke)
{
	return smoke->imported.memory ? "the import" : "the exporter's own mapping";
}

static void read_words(void *argument)
{
	struct smoke *smoke = argument;
	const volatile uint64_t *words = (const void *)reader(smoke)->memory;

	obmm_order_load();
	for (smoke->word = 0; smoke->word < WORDS; smoke->word++) {
		smoke->found = words[smoke->word];
		if (smoke->found != pattern(smoke->word))
			return;
	}
}

static int step_verify(struct smoke *smoke)
{
	int signal = faults_catch(read_words, smoke);

	if (signal) {
		report_failed(smoke->report, "verify", "word %u: %s", smoke->word, fault_text(signal));
		return 0;
	}
	if (smoke->word < WORDS) {
		report_failed(smoke->report, "verify",
			      "word %u through %s is %#" PRIx64 ", not %#" PRIx64 ": the window leads to other memory, or "
			      "the data was not written back",
			      smoke->word, through(smoke), smoke->found, pattern(smoke->word));
		return 0;
	}
	report_ok(smoke->report, "verify", "%d words through %s", WORDS, through(smoke));
	return 1;
}

static void chase(void *argument)
{
	struct smoke *smoke = argument;

	chase_compare(smoke->chains, smoke->latency);
}

static int step_latency(struct smoke *smoke)
{
	const struct chase_result *far = &smoke->latency[0], *local = &smoke->latency[1];
	uint64_t length = chain_length(smoke);
	void *memory;
	int signal;

	memory = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED) {
		report_failed(smoke->report, "load latency", "no local memory to compare with: %s", strerror(errno));
		return 0;
	}
	/* base pages, as the region is mapped; refused only by kernels that have no others */
	madvise(memory, length, MADV_NOHUGEPAGE);
	chase_build(memory, length);
	smoke->chains[0] = reader(smoke)->memory + CHAIN_OFFSET;
	smoke->chains[1] = memory;
	signal = faults_catch(chase, smoke);
	munmap(memory, length);
	if (signal) {
		report_failed(smoke->report, "load latency", "%s", fault_text(signal));
		return 0;
	}
	report_ok(smoke->report, "load latency",
		  "%d dependent loads over %" PRIu64 " bytes through %s: p50 %.1f ns, p99 %.1f ns; local memory "
		  "p50 %.1f ns, p99 %.1f ns, ratio %.2f%s",
		  CHASE_BATCH * CHASE_SAMPLES, length, through(smoke), far->p50, far->p99, local->p50, local->p99,
		  far->p50 / local->p50,
		  smoke->emulated ? " (emulator: plain shared memory, no figure of any hardware)" : "");
	report_figure(smoke->report, "latency_ns", far->p50);
	report_figure(smoke->report, "latency_p99_ns", far->p99);
	report_figure(smoke->report, "local_latency_ns", local->p50);
	report_figure(smoke->report, "local_latency_p99_ns", local->p99);
	return 1;
}

/* Release, unmap, close: whatever of the mapping exists. */
static int unmap(struct smoke *smoke, struct end *end)
{
	int rc, ok = 1;

	if (end->memory) {
		rc = own(smoke, end, OBMM_SHM_MEM_NO_ACCESS);
		if (rc < 0) {
			report_refused(smoke->report, "tear down", rc, "UPDATE_RANGE",
				       "mem_id=%" PRIu64 ", NO_ACCESS, INFER", end->mem_id);
			ok = 0;
		}
		rc = obmm_rw_unmap(smoke->sys, end->memory, smoke->size);
		if (rc < 0) {
			report_refused(smoke->report, "tear down", rc, "MUNMAP", "mem_id=%" PRIu64, end->mem_id);
			ok = 0;
		}
	}
	if (end->fd >= 0)
		obmm_rw_close(smoke->sys, end->fd);
	return ok;
}

/* In reverse order, and on after an error: nothing may stay behind. */
static void tear_down(struct smoke *smoke)
{
	int rc, ok = 1;

	ok &= unmap(smoke, &smoke->imported);
	if (smoke->imported.mem_id) {
		rc = obmm_rw_unimport(smoke->sys, smoke->fd, smoke->imported.mem_id, 0);
		if (rc < 0) {
			report_refused(smoke->report, "tear down", rc, "UNIMPORT", "mem_id=%" PRIu64,
				       smoke->imported.mem_id);
			ok = 0;
		}
	}
	if (smoke->programmed) {
		rc = obmm_emulator_unprogram(smoke->sys, smoke->programmed);
		if (rc < 0) {
			report_refused(smoke->report, "tear down", rc, "PROGRAM_WINDOW", "forget %#" PRIx64,
				       smoke->programmed);
			ok = 0;
		}
	}
	ok &= unmap(smoke, &smoke->exported);
	if (smoke->exported.mem_id) {
		rc = obmm_rw_unexport(smoke->sys, smoke->fd, smoke->exported.mem_id, 0);
		if (rc < 0) {
			report_refused(smoke->report, "tear down", rc, "UNEXPORT", "mem_id=%" PRIu64,
				       smoke->exported.mem_id);
			ok = 0;
		}
	}
	if (smoke->fd >= 0)
		obmm_rw_close(smoke->sys, smoke->fd);
	if (ok)
		report_ok(smoke->report, "tear down", "nothing left behind");
}

static int run(struct smoke *smoke)
{
	static int (*const STEPS[])(struct smoke *) = {
		step_open,   step_export,     step_map,	   step_write,
		step_import, step_map_import, step_verify, step_latency,
	};
	size_t i = 0;

	while (i < sizeof(STEPS) / sizeof(STEPS[0]) && STEPS[i](smoke))
		i++;
	tear_down(smoke);
	return report_finish(smoke->report);
}

static void usage(FILE *out)
{
	fputs("usage: smoke [SIZE] [--json] [--nc] [--window ADDRESS] [--device DEVICE]\n"
	      "  SIZE              bytes, or with K, M, G, T (4MiB by default); rounded up to the granule\n"
	      "  --json            one JSON object instead of lines\n"
	      "  --nc              non-cacheable on both sides\n"
	      "  --window ADDRESS  local physical address of a window that leads to this export\n"
	      "  --device DEVICE   /dev/obmm, emulator, emulator:<socket>[#<node>], emulator#<node>;\n"
	      "                    else OBMM_DEVICE, else /dev/obmm\n",
	      out);
}

static int refuse(const char *what, const char *value, const char *fix)
{
	fprintf(stderr, "smoke: %s %s: %s\n", what, value, fix);
	return 2;
}

int main(int argc, char **argv)
{
	static const struct option OPTIONS[] = {
		{ "json", no_argument, NULL, 'j' },
		{ "nc", no_argument, NULL, 'n' },
		{ "window", required_argument, NULL, 'w' },
		{ "device", required_argument, NULL, 'd' },
		{ "help", no_argument, NULL, 'h' },
		{ NULL, 0, NULL, 0 },
	};
	struct smoke smoke = { .fd = -1, .exported.fd = -1, .imported.fd = -1 };
	const char *device = getenv("OBMM_DEVICE");
	uint64_t wanted = DEFAULT_SIZE, granule;
	int option, json = 0, preloaded, rc, ok;
	char *end;

	while ((option = getopt_long(argc, argv, "h", OPTIONS, NULL)) != -1) {
		switch (option) {
		case 'j':
			json = 1;
			break;
		case 'n':
			smoke.nc = 1;
			break;
		case 'w':
			errno = 0;
			smoke.window = strtoull(optarg, &end, 0);
			if (errno || *end || !smoke.window || smoke.window % OBMM_BASIC_GRANULARITY)
				return refuse("--window", optarg, "not a multiple of 2 MiB above 0 (rules I7, I8)");
			break;
		case 'd':
			device = optarg;
			break;
		case 'h':
			usage(stdout);
			return 0;
		default:
			usage(stderr);
			return 2;
		}
	}
	if (argc - optind > 1) {
		usage(stderr);
		return 2;
	}
	if (optind < argc && (obmm_parse_size(argv[optind], &wanted) || !wanted))
		return refuse("size", argv[optind], "a positive number of bytes, K, M, G or T is needed");

	rc = obmm_sys_open(device, &smoke.sys);
	if (rc == -EINVAL)
		return refuse("device", device,
			      "names no device; use /dev/obmm, emulator or emulator:<socket>[#<node>]");
	if (rc < 0) {
		smoke.report = report_new(json, device, 1, wanted);
		report_refused(smoke.report, "open", rc, "OPEN", "device=%s", device);
		report_finish(smoke.report);
		return 1;
	}
	smoke.programs = !strncmp(smoke.sys->name, "emulator", strlen("emulator"));
	/* under `obmm emulate run` the driver's own paths lead to an emulated node */
	preloaded = getenv("LD_PRELOAD") && strstr(getenv("LD_PRELOAD"), "libobmm_preload");
	smoke.emulated = smoke.programs || preloaded;
	granule = obmm_granule(smoke.sys->root);
	if (wanted > UINT64_MAX - granule)
		return refuse("size", argv[optind], "beyond 64 bits once rounded up");
	smoke.size = (wanted + granule - 1) / granule * granule;
	smoke.report = report_new(json, preloaded ? "emulator behind /dev/obmm" : smoke.sys->name, smoke.emulated,
				  smoke.size);
	if (smoke.size != wanted)
		report_notice(smoke.report, "%" PRIu64 " bytes rounded up to %" PRIu64 ", a multiple of the granule %" PRIu64,
			      wanted, smoke.size, granule);
	ok = run(&smoke);
	smoke.sys->destroy(smoke.sys);
	return !ok;
}
