# SPDX-License-Identifier: Apache-2.0
"""What a user tells a door: a source, how to reach it, and what to do when rows do not come."""

from __future__ import annotations

import errno
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, Self

from obmm.errors import ObmmArgumentError
from obmm.exchange import TlsFiles
from obmm.integrations.link import TableAddress
from obmm.prefetch import Deadlines

OnError = Literal["zeros", "raise", "auto"]
Share = Literal["host", "slice", "all"]


@dataclass(frozen=True, slots=True)
class EngramSettings:
    """The options of a table door, as JSON names them.

    `source`: ``host:port/name``.  `key`: the cluster's key file, `tls`: certificate, key and authority, `plain`: neither.
    `device`: the local OBMM device.  `fingerprint`: how the table's must begin.  `decode_ms`, `prefill_ms`: how long rows
    of a small and of a large step are waited for.
    `on_error`: "zeros" logs a step without rows and goes on, "raise" ends the server before its next step, "auto" does the
    former where the model is neutral to zero rows.
    `share`, between tensor-parallel ranks that need the same rows: "host", one rank of a host reads and the others copy from
    its memory; "slice", a rank reads its own columns and the engine's all-reduce puts them together; "all", every rank
    reads every row.  `host_rows`: up to so many rows of a step are shared by "host", larger ones are read by every rank.
    `graphs`: whether a lookup inside a captured graph is let in, by a native function that the device's
    stream calls; a graph is bound to the publication that it was captured with.
    `staging`: whether prefill rows are fetched ahead of the forward, where the engine can.  `metrics`: ``host:port`` where
    Prometheus finds the counters; several processes of a host take the ports behind it (extra ``metrics``).
    """

    source: str
    key: str | None = None
    tls: tuple[str, str, str] | None = None
    plain: bool = False
    device: str | None = None
    fingerprint: str = ""
    decode_ms: float = 20.0
    prefill_ms: float = 500.0
    on_error: OnError = "auto"
    share: Share = "host"
    host_rows: int = 1 << 18
    staging: bool = True
    graphs: bool = False
    metrics: str | None = None

    @classmethod
    def parse(cls, text: str, *, setting: str) -> Self:
        """A source, or a JSON object of options; ObmmArgumentError that names `setting`."""
        if not text.lstrip().startswith("{"):
            return cls.of({"source": text}, setting=setting)
        try:
            return cls.of(json.loads(text), setting=setting)
        except (ValueError, RecursionError) as error:
            if isinstance(error, ObmmArgumentError):
                raise
            raise _bad(setting, f"not JSON: {error}") from error

    @classmethod
    def of(cls, options: Any, *, setting: str) -> Self:
        """A JSON object of options."""
        names = [field.name for field in fields(cls)]
        if not isinstance(options, Mapping) or not isinstance(options.get("source"), str):
            raise _bad(setting, f"{options!r:.100} names no source")
        unknown = sorted(set(options) - set(names))
        if unknown:
            raise _bad(setting, f"unknown option {', '.join(map(repr, unknown))}; there are {', '.join(names)}")
        tls = options.get("tls")
        if tls is not None and not (isinstance(tls, list | tuple) and len(tls) == 3 and all(_is_text(t) for t in tls)):
            raise _bad(setting, f"tls={tls!r:.100} is not [certificate, key, authority]")
        for name, kinds in _KINDS.items():
            value = options.get(name)
            if name in options and (not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds)):
                raise _bad(setting, f"{name}={value!r:.100}")
        for name, allowed in _ALLOWED.items():
            if options.get(name, allowed[0]) not in allowed:
                raise _bad(setting, f"{name}={options[name]!r:.100}; one of {', '.join(map(repr, allowed))}")
        TableAddress.parse(options["source"])
        made = cls(**{**options, "tls": tuple(tls) if tls is not None else None})
        if not (0 <= made.decode_ms <= 1e6 and 0 <= made.prefill_ms <= 1e6):
            raise _bad(setting, f"decode_ms={made.decode_ms}, prefill_ms={made.prefill_ms}; 0 to 1,000,000")
        if not 1 <= made.host_rows <= _MOST_ROWS:
            raise _bad(setting, f"host_rows={made.host_rows}; 1 to {_MOST_ROWS:,}")
        return made

    @property
    def address(self) -> TableAddress:
        """With no protection named, the cluster's usual key file."""
        plain, key = self.plain, self.key
        if key is None and self.tls is None and not plain:
            from obmm.exchange.keys import default_key_path

            key = str(default_key_path())
        tls = TlsFiles(*self.tls) if self.tls is not None else None
        return TableAddress.parse(self.source, key=key, tls=tls, plain=plain, device=self.device)

    @property
    def deadlines(self) -> Deadlines:
        decode = self.decode_ms / 1e3
        return Deadlines(decode=decode, verify=decode, prefill=self.prefill_ms / 1e3)


_MOST_ROWS = 1 << 22  # of a step: 170,000 tokens of 24 columns
_KINDS: dict[str, tuple[type, ...]] = {
    "key": (str, type(None)),
    "plain": (bool,),
    "device": (str, type(None)),
    "fingerprint": (str,),
    "decode_ms": (int, float),
    "prefill_ms": (int, float),
    "staging": (bool,),
    "graphs": (bool,),
    "host_rows": (int,),
    "metrics": (str, type(None)),
}
_ALLOWED = {"on_error": ("auto", "zeros", "raise"), "share": ("host", "slice", "all")}


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _bad(setting: str, problem: str) -> ObmmArgumentError:
    return ObmmArgumentError.because(
        "CONNECT", errno.EINVAL, f"{setting}: {problem}", 'host:port/name, or {"source": "host:port/name", ...}'
    )
