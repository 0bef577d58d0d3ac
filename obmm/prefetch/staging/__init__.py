# SPDX-License-Identifier: Apache-2.0
"""One reader per node gathers, every rank copies."""
