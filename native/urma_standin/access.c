/* SPDX-License-Identifier: Apache-2.0 */
/* Carrying requests out in the other process's memory (URMA specification 11.1 U5 to U7, 11.2). */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "standin.h"

static char trouble[256];

const char *urma_standin_trouble(void)
{
	return trouble;
}

const urma_sg_t *urma_local(const urma_jfs_wr_t *wr)
{
	return wr->opcode == URMA_OPC_READ ? &wr->rw.dst : &wr->rw.src;
}

const urma_sge_t *urma_remote(const urma_jfs_wr_t *wr)
{
	return wr->opcode == URMA_OPC_READ ? wr->rw.src.sge : wr->rw.dst.sge;
}

uint64_t urma_length(const urma_jfs_wr_t *wr)
{
	const urma_sg_t *local = urma_local(wr);
	uint64_t length = 0;

	for (uint32_t i = 0; i < local->num_sge; i++)
		length += local->sge[i].len;
	return length;
}

uint32_t urma_check_local(const urma_jfs_wr_t *wr)
{
	const urma_sg_t *local = urma_local(wr);

	if (urma_length(wr) > URMA_MAX_BYTES)
		return URMA_CR_LOC_LEN_ERR;
	for (uint32_t i = 0; i < local->num_sge; i++) {
		const urma_sge_t *piece = &local->sge[i];
		const struct segment *segment = urma_registered(piece->tseg);

		if (!segment || piece->addr < segment->public.seg.ubva.va ||
		    piece->addr - segment->public.seg.ubva.va > segment->public.seg.len ||
		    piece->len > segment->public.seg.len - (piece->addr - segment->public.seg.ubva.va))
			return URMA_CR_LOC_ACCESS_ERR;
	}
	return URMA_CR_SUCCESS;
}

/* --- whom a request reaches.  With the lock of the state. --- */

/* The process behind an imported segment, or URMA_NOBODY: a request gets no answer then. */
static int owner_of(struct urma_state *state, const urma_seg_t *seg)
{
	const int node = urma_node_of(state, seg->ubva.eid);

	return node == URMA_NOBODY || state->unreachable[node] ? URMA_NOBODY :
								 urma_process_of(state, (uint32_t)node, seg->ubva.uasid);
}

/* The target that requests go to takes them: 0, or a status. */
static uint32_t check_target(struct urma_state *state, const struct target *target)
{
	const int node = urma_node_of(state, target->public.id.eid.raw);

	if (node == URMA_NOBODY || state->unreachable[node])
		return URMA_CR_ACK_TIMEOUT_ERR;
	for (uint32_t i = 0; i < state->targets_end; i++) {
		const struct urma_target *one = &state->targets[i];

		if (!one->owner || one->id != target->public.id.id || state->processes[one->owner - 1].node != (uint32_t)node)
			continue;
		if (!urma_lives(&state->processes[one->owner - 1]))
			return URMA_CR_ACK_TIMEOUT_ERR;
		return one->policy && one->token != target->token ? URMA_CR_REM_ACCESS_ABORT_ERR : URMA_CR_SUCCESS;
	}
	return URMA_CR_ACK_TIMEOUT_ERR;
}

/* Whether a registered segment lets this request in. */
static int admits(const struct urma_segment *segment, int owner, const struct segment *asked, uint32_t right,
		  uint64_t address, uint64_t length)
{
	return segment->owner == (uint32_t)owner + 1 && !segment->leaving &&
	       segment->token_id == asked->public.seg.token_id && (!segment->policy || segment->token == asked->token) &&
	       segment->access & right && address >= segment->va && address - segment->va <= segment->len &&
	       length <= segment->len - (address - segment->va);
}

static int find(struct urma_state *state, int owner, const urma_jfs_wr_t *wr)
{
	const urma_sge_t *remote = urma_remote(wr);
	const struct segment *asked = (const struct segment *)remote->tseg;
	const uint32_t right = wr->opcode == URMA_OPC_READ ? URMA_ACCESS_READ : URMA_ACCESS_WRITE;
	const uint64_t length = urma_length(wr);

	for (int i = 0; i < (int)state->segments_end; i++)
		if (state->segments[i].owner && admits(&state->segments[i], owner, asked, right, remote->addr, length))
			return i;
	return URMA_NOBODY;
}

void urma_kill_owner(const urma_jfs_wr_t *wr)
{
	struct urma_state *state = urma_here.state;
	const struct segment *asked = (const struct segment *)urma_remote(wr)->tseg;
	int owner;

	urma_lock(state);
	owner = owner_of(state, &asked->public.seg);
	if (owner != URMA_NOBODY && (uint32_t)owner != urma_here.number)
		kill(state->processes[owner].pid, SIGKILL);
	urma_unlock(state);
	if (owner == URMA_NOBODY || (uint32_t)owner == urma_here.number)
		return;
	while (urma_lives(&state->processes[owner]))
		usleep(100); /* the kernel marks it; no waiter is woken */
}

/* --- copying --- */

static void explain(int error, int32_t pid)
{
	snprintf(trouble, sizeof(trouble),
		 "the kernel does not let this process reach the memory of process %d (%s): the stand-in needs the same "
		 "user, and kernel.yama.ptrace_scope of at most 1",
		 pid, strerror(error));
}

/* Whether all local pieces are mapped: asked of the kernel, page by page, after a copy that failed. */
static int locals_mapped(const urma_jfs_wr_t *wr)
{
	const urma_sg_t *local = urma_local(wr);
	const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);

	for (uint32_t i = 0; i < local->num_sge; i++) {
		const uint64_t start = local->sge[i].addr, end = start + local->sge[i].len;

		for (uint64_t at = start; at < end; at = (at / page + 1) * page) {
			char byte;
			struct iovec to = { &byte, 1 }, from = { (void *)(uintptr_t)at, 1 };

			if (process_vm_readv(getpid(), &to, 1, &from, 1, 0) != 1)
				return 0;
		}
	}
	return 1;
}

/* The request in which byte `done` of the run lies. */
static uint32_t request_at(const struct urma_run *run, uint64_t done)
{
	uint32_t i = 0;

	for (; i < run->done; i++) {
		const uint64_t length = urma_length(run->wrs[i]);

		if (done < length)
			break;
		done -= length;
	}
	return i;
}

/* Requests 0 .. done - 1, in one system call; fewer, with the status of the next one, when it fails. */
static void copy(struct urma_run *run, int32_t pid)
{
	struct iovec local[URMA_MAX_PIECES], remote[URMA_MAX_PIECES];
	unsigned long locals = 0, remotes = 0;
	uint64_t wanted = 0;
	ssize_t done;
	int error;
	const int reads = run->wrs[0]->opcode == URMA_OPC_READ;

	for (uint32_t i = 0; i < run->done; i++) {
		const urma_sg_t *pieces = urma_local(run->wrs[i]);
		const uint64_t length = urma_length(run->wrs[i]);

		if (!length)
			continue;
		remote[remotes++] = (struct iovec){ (void *)(uintptr_t)urma_remote(run->wrs[i])->addr, length };
		for (uint32_t piece = 0; piece < pieces->num_sge; piece++)
			if (pieces->sge[piece].len)
				local[locals++] = (struct iovec){ (void *)(uintptr_t)pieces->sge[piece].addr, pieces->sge[piece].len };
		wanted += length;
	}
	if (!wanted)
		return;
	urma_count(&urma_here.counts.copies, 1);
	done = reads ? process_vm_readv(pid, local, locals, remote, remotes, 0) :
		       process_vm_writev(pid, local, locals, remote, remotes, 0);
	urma_count(&urma_here.counts.bytes, done > 0 ? (uint64_t)done : 0);
	if (done >= 0 && (uint64_t)done == wanted)
		return;
	error = errno;
	run->done = request_at(run, done > 0 ? (uint64_t)done : 0);
	run->status = URMA_CR_REM_ACCESS_ABORT_ERR;
	if (done < 0 && error == ESRCH) {
		run->status = URMA_CR_ACK_TIMEOUT_ERR;
	} else if (done < 0 && error == EPERM) {
		explain(error, pid);
		run->status = 3; /* LOC_OPERATION_ERR: it is this side that cannot */
	} else if (!locals_mapped(run->wrs[run->done])) {
		run->status = URMA_CR_LOC_ACCESS_ERR;
	}
}

/*
 * With the lock: how many of the requests one segment of `owner` lets in, from
 * the first on; *status is why the next one is refused, 0 if another segment has it.
 */
static uint32_t admitted(struct urma_state *state, const struct urma_run *run, int owner, int *place, uint32_t *status)
{
	const struct segment *asked = (const struct segment *)urma_remote(run->wrs[0])->tseg;
	const uint32_t right = run->wrs[0]->opcode == URMA_OPC_READ ? URMA_ACCESS_READ : URMA_ACCESS_WRITE;
	uint32_t n = 0;

	*place = find(state, owner, run->wrs[0]);
	while (*place != URMA_NOBODY && n < run->count &&
	       admits(&state->segments[*place], owner, asked, right, urma_remote(run->wrs[n])->addr, urma_length(run->wrs[n])))
		n++;
	*status = n < run->count && (!n || find(state, owner, run->wrs[n]) == URMA_NOBODY) ? URMA_CR_REM_ACCESS_ABORT_ERR :
											      URMA_CR_SUCCESS;
	return n;
}

void urma_run(struct urma_run *run)
{
	struct urma_state *state = urma_here.state;
	const struct segment *asked = (const struct segment *)urma_remote(run->wrs[0])->tseg;
	uint32_t refusal = URMA_CR_ACK_TIMEOUT_ERR;
	int owner, place = URMA_NOBODY, pin = URMA_NOBODY;
	int32_t pid = 0;

	run->done = 0;
	urma_lock(state);
	run->status = check_target(state, (const struct target *)run->wrs[0]->tjetty);
	owner = run->status ? URMA_NOBODY : owner_of(state, &asked->public.seg);
	if (owner != URMA_NOBODY) {
		run->done = admitted(state, run, owner, &place, &refusal);
		pid = state->processes[owner].pid;
	}
	if (run->done)
		pin = urma_pin(state, urma_here.number, (uint32_t)place);
	urma_unlock(state);
	if (!run->status)
		run->status = refusal;
	if (pin == URMA_NOBODY) {
		run->done = 0;
		return;
	}
	copy(run, pid);
	if (!urma_lives(&state->processes[owner])) { /* its pid may be another's by now */
		run->done = 0;
		run->status = URMA_CR_ACK_TIMEOUT_ERR;
	}
	urma_unpin(state, pin);
}
