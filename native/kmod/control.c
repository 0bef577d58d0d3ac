// SPDX-License-Identifier: GPL-2.0-only
/*
 * /dev/obmm: dispatch of the commands (6.0).
 */
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/uaccess.h>

#include "sim.h"

union command {
	struct obmm_cmd_export export;
	struct obmm_cmd_unexport unexport;
	struct obmm_cmd_import import;
	struct obmm_cmd_unimport unimport;
	struct obmm_cmd_addr_query query;
	struct obmm_cmd_preimport preimport;
};

static int run(unsigned int request, union command *cmd)
{
	switch (request) {
	case OBMM_CMD_EXPORT:
		return sim_export(&cmd->export);
	case OBMM_CMD_UNEXPORT:
		return sim_unexport(&cmd->unexport);
	case OBMM_CMD_IMPORT:
		return sim_import(&cmd->import);
	case OBMM_CMD_UNIMPORT:
		return sim_unimport(&cmd->unimport);
	case OBMM_CMD_DECLARE_PREIMPORT:
		return sim_declare_preimport(&cmd->preimport);
	case OBMM_CMD_UNDECLARE_PREIMPORT:
		return sim_undeclare_preimport(&cmd->preimport);
	default:
		return sim_region_query(&cmd->query);
	}
}

static long control_ioctl(struct file *file, unsigned int request, unsigned long arg)
{
	union command cmd;
	int err;

	if (!sim_param_feature) /* D1 */
		return -EOPNOTSUPP;
	switch (request) { /* D2 */
	case OBMM_CMD_EXPORT:
	case OBMM_CMD_UNEXPORT:
	case OBMM_CMD_IMPORT:
	case OBMM_CMD_UNIMPORT:
	case OBMM_CMD_ADDR_QUERY:
	case OBMM_CMD_DECLARE_PREIMPORT:
	case OBMM_CMD_UNDECLARE_PREIMPORT:
		break;
	default:
		return -ENOTTY;
	}
	if (copy_from_user(&cmd, (void __user *)arg, _IOC_SIZE(request))) /* D3 */
		return -EFAULT;
	err = run(request, &cmd);
	if (err)
		return err;
	/* D5: what was created stays even if the caller cannot learn its id */
	if ((_IOC_DIR(request) & _IOC_READ) && copy_to_user((void __user *)arg, &cmd, _IOC_SIZE(request)))
		return -EFAULT;
	return 0;
}

static const struct file_operations control_fops = {
	.owner = THIS_MODULE,
	.unlocked_ioctl = control_ioctl,
	.llseek = no_llseek,
};

static struct miscdevice control = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "obmm",
	.fops = &control_fops,
	.mode = 0600,
};

int sim_control_init(void)
{
	return misc_register(&control);
}

void sim_control_exit(void)
{
	misc_deregister(&control);
}
