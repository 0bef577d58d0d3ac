# SPDX-License-Identifier: Apache-2.0
"""The candidates: one small class each."""
