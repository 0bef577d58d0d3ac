/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Injected faults (URMA specification 11.3).  A rule is a text of words
 * separated by commas: which requests, and one action.
 *
 *	node=NAME  queue=ID        of this node or send queue only
 *	every=K | at=I | first=N   every k-th, the i-th (from 0), or the first n that match
 *
 *	status=N     the request ends with this completion status
 *	drop         no record; the queue is dead
 *	delay=US     the record is visible later
 *	late=US      record and data are
 *	early        the record is there before the data
 *	list=M       the post takes m requests, then answers 12
 *	poll         the next poll answers -1
 *	import       an import answers NULL and leaves errno alone
 *	duplicate    two records
 *	swap         the record goes to the queue of the next one, whose record comes here
 *	kill         the owner of the memory is killed before
 */
#ifndef URMA_STANDIN_FAULTS_H
#define URMA_STANDIN_FAULTS_H

#include <stdint.h>

enum { URMA_RULES = 32 };

enum urma_action {
	URMA_NOTHING = 0,
	URMA_STATUS,
	URMA_DROP,
	URMA_DELAY,
	URMA_LATE,
	URMA_EARLY,
	URMA_LIST,
	URMA_POLL,
	URMA_IMPORT,
	URMA_DUPLICATE,
	URMA_SWAP,
	URMA_KILL,
};

struct urma_rule {
	uint32_t action;
	uint32_t value;
	uint32_t every; /* 0: see at */
	uint32_t at, count;
	uint32_t queue; /* 0: any */
	char node[64];	/* "": any */
	uint32_t seen;
};

/* 0, or -EINVAL for a text that is not a rule. */
int urma_parse_rule(const char *text, struct urma_rule *rule);

/*
 * Whether a rule of `n` with one of the actions in the mask (1 << action)
 * strikes now; each call counts as one request for it.  NULL if none does.
 */
const struct urma_rule *urma_strikes(struct urma_rule *rules, uint32_t n, uint32_t actions, const char *node,
				     uint32_t queue);

#endif
