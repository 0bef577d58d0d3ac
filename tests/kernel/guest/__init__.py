# SPDX-License-Identifier: Apache-2.0
"""What runs inside a guest, as root, on the simulator module."""
