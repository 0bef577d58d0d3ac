# SPDX-License-Identifier: Apache-2.0
"""Where the address of an import comes from: a provider of windows in the node's physical address space."""
