# SPDX-License-Identifier: Apache-2.0
"""What the kernel says and is asked: its constants, its calls, its view of the machine."""
