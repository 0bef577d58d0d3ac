# SPDX-License-Identifier: Apache-2.0
"""Token ids in, row numbers out."""
