/* SPDX-License-Identifier: Apache-2.0 */
/* A gather's end as an event of a descriptor, to wait for with poll or in an event loop. */
#ifndef OBMM_WAKE_H
#define OBMM_WAKE_H

#include "../gather/gather.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * A struct obmm_completion's call: makes the eventfd whose number is `context`
 * readable.  The descriptor must be open until the ticket is done.
 */
void obmm_wake(void *context, const struct obmm_outcome *outcome);

#ifdef __cplusplus
}
#endif
#endif
