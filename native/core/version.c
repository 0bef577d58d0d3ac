/* SPDX-License-Identifier: Apache-2.0 */
#include "version.h"

uint32_t obmm_version(void)
{
	return OBMM_VERSION;
}
