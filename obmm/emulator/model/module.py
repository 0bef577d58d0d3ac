# SPDX-License-Identifier: Apache-2.0
"""The loaded driver module and its parameters (driver specification 12)."""

from __future__ import annotations

from ..topology import HostSpec


class Module:
    """State of the module `obmm` on one host."""

    def __init__(self, spec: HostSpec) -> None:
        self.loaded = True
        self.gate_open = True
        self.skip_cache_maintain = False
        self.memseg = spec.memseg
