# SPDX-License-Identifier: Apache-2.0
"""How a server's sessions are protected, as one value that can be replaced while it runs."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field

from obmm.exchange.keys import Key
from obmm.exchange.messages import Mode


@dataclass(frozen=True, slots=True)
class Credentials:
    """Exactly one of plain, keys, TLS."""

    mode: Mode
    keys: tuple[Key, ...] = ()
    context: ssl.SSLContext | None = field(default=None, repr=False)

    def still_good(self, earlier: Credentials, key: Key | None) -> bool:
        """Whether a session of ``earlier`` credentials (and that key) may go on under these.

        A certificate cannot be judged again in the middle of a session: after a change it is shown anew.
        """
        if self is earlier:
            return True
        if self.mode is Mode.KEY:
            return key is None or any((each.identity, each.who) == (key.identity, key.who) for each in self.keys)
        return self.context is earlier.context
