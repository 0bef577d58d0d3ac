# SPDX-License-Identifier: Apache-2.0
"""Programs that measure one thing each, run from a checkout: ``python -m bench.gather``.

They stand on the harness behind `obmm bench` (`obmm.bench`) and are not part of the wheel.
"""
