# SPDX-License-Identifier: Apache-2.0
"""The vendor's SDK path; listed with its reason where there is no library."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from obmm.bench.arms.arm import Arm, Kind, Memory, Progress, Unavailable

TITLES = {"cacheable": "SDK, cacheable", "nc": "SDK, non-cacheable", "pmd": "SDK, PMD"}


class SdkArm(Arm):
    """`mode` is "cacheable", "nc" or "pmd"."""

    kind: Kind = "hardware"

    def __init__(self, mode: str) -> None:
        self.name, self.title = f"sdk-{mode}", TITLES[mode]

    @contextmanager
    def open(self, nbytes: int, progress: Progress) -> Iterator[Memory]:
        import obmm.sdk as sdk

        if not hasattr(sdk, "SharedObject"):
            raise Unavailable("this version has no binding of libubsm_sdk.so")
        raise Unavailable("no libubsm_sdk.so that answers on this host")
        yield  # type: ignore[unreachable]
