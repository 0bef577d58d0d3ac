# SPDX-License-Identifier: Apache-2.0
"""The harness behind `obmm bench`: arms, workloads, results, report."""
