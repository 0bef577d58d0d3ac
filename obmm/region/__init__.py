# SPDX-License-Identifier: Apache-2.0
"""Regions: memory that this node exports or imports, and the device that makes them."""
