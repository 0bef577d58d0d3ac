/* SPDX-License-Identifier: Apache-2.0 */
/* Start and log (SDK specification 5). */
#include "standin.h"

const char *ubsmem_standin_version(void)
{
	return standin_in_process() ? "obmm stand-in 2: in-process mode on the OBMM emulator" :
				      "obmm stand-in 2: daemon mode on the OBMM emulator";
}

int ubsmem_init_attributes(ubsmem_options_t *options)
{
	return options ? UBSM_OK : UBSM_ERR_PARAM_INVALID;
}

int ubsmem_initialize(const ubsmem_options_t *options)
{
	return options ? standin_connect() : UBSM_ERR_PARAM_INVALID;
}

int ubsmem_finalize(void)
{
	standin_disconnect();
	return UBSM_OK;
}

/* the stand-in logs nothing */
int ubsmem_set_logger_level(int level)
{
	return level >= 0 && level <= 4 ? UBSM_OK : UBSM_ERR_PARAM_INVALID;
}

int ubsmem_set_extern_logger(ubsmem_logger_func logger)
{
	return logger ? UBSM_OK : UBSM_ERR_PARAM_INVALID;
}
