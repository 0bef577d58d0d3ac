# SPDX-License-Identifier: Apache-2.0
"""What is measured: one small class each."""
