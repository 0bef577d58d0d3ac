# SPDX-License-Identifier: Apache-2.0
"""Asking for a region by its name: what can be asked, and the answer when there is none."""

from __future__ import annotations

import errno
from collections.abc import Iterable

from obmm.errors import ObmmArgumentError
from obmm.exchange.call_messages import REGION_NAME
from obmm.exchange.errors import RequestRefusedError
from obmm.names import listed


def not_there(refusal: RequestRefusedError, name: str, regions: Iterable[str] | None) -> RequestRefusedError:
    """The same refusal, with the names that the server publishes to this client; None: it did not say."""
    if regions is None:
        return refusal
    instead = f"; it publishes {listed(name, regions)}" if regions else "; it publishes nothing"
    return RequestRefusedError(refusal.reason, f"{refusal.strerror}{instead}")


def check_fetch(name: object, importer_eid: object) -> None:
    """ObmmArgumentError for what no region is fetched with."""
    if not isinstance(name, str) or not REGION_NAME.fullmatch(name):
        raise ObmmArgumentError.because("FETCH", errno.EINVAL, f"{name!r} is not a region name", "see peer.list()")
    if not isinstance(importer_eid, bytes) or len(importer_eid) != 16:
        raise ObmmArgumentError.because("FETCH", errno.EINVAL, "importer_eid is not 16 bytes", "use obmm.eid(number)")
