# SPDX-License-Identifier: Apache-2.0
"""The broker: a privileged process that opens the device for users whom a policy allows."""
