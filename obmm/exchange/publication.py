# SPDX-License-Identifier: Apache-2.0
"""A named region as the server publishes it: handle, manifest, and the hold on the region."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterable, Mapping
from typing import Any, Protocol, TypeAlias, runtime_checkable

from obmm.errors import ObmmArgumentError
from obmm.exchange.call_messages import REGION_NAME
from obmm.exchange.frames import MAX_MANIFEST
from obmm.exchange.leases import LeaseRecord
from obmm.handle import Handle


class PublishedRegion(Protocol):
    """What the server needs of a region (`obmm.ExportedRegion` has it)."""

    @property
    def nbytes(self) -> int: ...
    def handle(self) -> Handle: ...


class Hold(Protocol):
    """What keeps a region from being closed while it is published."""

    def release(self) -> None: ...


@runtime_checkable
class Holdable(Protocol):
    """A region that can be kept from being unexported while importers hold leases on it."""

    def hold(self, why: str) -> Hold: ...


Manifest: TypeAlias = Mapping[str, Any]
Publishable: TypeAlias = "PublishedRegion | tuple[PublishedRegion, Manifest]"


def check_region_name(name: object) -> str:
    """A name that a region can be published under, or ObmmArgumentError."""
    if not isinstance(name, str) or not REGION_NAME.fullmatch(name):
        raise ObmmArgumentError.because(
            "SERVE",
            errno.EINVAL,
            f"region name {name!r} is not 1..128 characters of A-Z a-z 0-9 . _ : / @ + -",
            "rename it",
        )
    return name


class Publication:
    """One region under one name.  The handle is taken once, when it is published."""

    def __init__(self, name: str, region: PublishedRegion, manifest: Manifest | None = None) -> None:
        self.name = check_region_name(name)
        self.region = region
        self.handle = region.handle()
        if manifest is None:
            manifest = getattr(region, "manifest", None) or {
                "format": "obmm-raw",
                "version": 1,
                "bytes": region.nbytes,
            }
        self.manifest = _encode(name, manifest)
        self.revoked = False
        self._hold: Hold | None = None
        self._reported: set[bytes] = set()

    @property
    def generation(self) -> int:
        return self.handle.generation

    def hold(self) -> None:
        """Keep the region from being closed: somebody may be reading it."""
        if self._hold is None and isinstance(self.region, Holdable):
            self._hold = self.region.hold(f"importers have leases on {self.name!r}: revoke it first")

    def unhold(self) -> None:
        """The last reader has left."""
        if self._hold is not None:
            self._hold.release()
            self._hold = None

    def not_reported(self, records: Iterable[LeaseRecord]) -> tuple[LeaseRecord, ...]:
        """Those of the leases that were not asked about before: a log names each of them once."""
        new = tuple(record for record in records if record.id not in self._reported)
        self._reported.update(record.id for record in new)
        return new

    def __repr__(self) -> str:
        return f"<publication {self.name!r} of {self.handle.length} bytes>"


def _encode(name: str, manifest: Manifest) -> bytes:
    try:
        text = json.dumps(dict(manifest), separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise ObmmArgumentError.because(
            "SERVE", errno.EINVAL, f"the manifest of {name!r} is not a JSON object: {error}", "use plain JSON types"
        ) from None
    if len(text) > MAX_MANIFEST:
        raise ObmmArgumentError.because(
            "SERVE",
            errno.EMSGSIZE,
            f"the manifest of {name!r} has {len(text)} bytes of JSON, at most {MAX_MANIFEST} are allowed",
            "put large parts (token maps, canaries) into the region and their offsets into the manifest",
        )
    return text
