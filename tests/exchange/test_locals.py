# SPDX-License-Identifier: Apache-2.0
"""E11: tracebacks printed with their locals show no uba, no tokenid and no key."""

from __future__ import annotations

import copy
import pickle
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from obmm import Handle, HandleFlag, ObmmError, eid
from obmm.exchange import Key
from obmm.exchange.frames import FrameType, pack_frame
from obmm.exchange.messages import Grant, parse
from obmm.handle import Secret

UBA, TOKEN = 0xFFFFFF7654321, 0x5EC4E7A9
HEX = "0123456789abcdef" * 4


def handle(**changes: Any) -> Handle:
    fields: dict[str, Any] = {
        "mem_id": 1, "length": 1 << 21, "uba": UBA, "tokenid": TOKEN, "owner_cna": 1, "owner_eid": eid(1),
        "flags": HandleFlag.HEADER, "generation": 7,
    }  # fmt: skip
    return Handle(**fields | changes)


def damaged(place: int, value: int) -> bytearray:
    raw = bytearray(handle().pack())
    raw[place] = value
    return raw


def grant(raw: bytes | bytearray) -> bytes:
    return bytes(16) + (1).to_bytes(4, "little") + bytes(raw) + bytes(4)


FAILURES: list[Callable[[], Any]] = [
    *(
        lambda changes=changes: handle(**changes)
        for changes in (
            {"length": 0}, {"generation": 0}, {"mem_id": -1}, {"owner_cna": 1 << 40}, {"base_dist": 256},
            {"pxm_numa": 1 << 40}, {"owner_eid": b""}, {"peer_eid": b""}, {"flags": 16}, {"flags": 3}, {"uba": 1 << 70 | UBA},
            {"tokenid": 1 << 40 | TOKEN}, {"pxm_numa": "x"}, {"mem_id": "x"},
        )
    ),
    lambda: handle().for_peer(b"short"),
    lambda: Handle.unpack(bytes(handle().pack())[:79]),
    *(lambda place=place, value=value: Handle.unpack(damaged(place, value)) for place, value in ((69, 2), (70, 16), (70, 3))),
    lambda: Handle.unpack(bytes(72) + bytes(8)),
    *(
        lambda place=place, value=value: parse(pack_frame(FrameType.GRANT, grant(damaged(place, value))))
        for place, value in ((69, 2), (70, 16), (70, 3))
    ),
    lambda: Key(b"\x01" * 32),
    lambda: Key.load("/dev/null"),
]  # fmt: skip


def shown(error: BaseException) -> str:
    """As pytest, sentry and rich print it: every frame below the test's own with the repr of its locals."""
    frames = traceback.TracebackException.from_exception(error, capture_locals=True)
    texts = []
    for frame in frames.stack:
        if "test_locals" not in frame.filename:
            texts.append(f"{frame.name}: {frame.locals}")
    return "\n".join(texts) + str(error)


@pytest.mark.parametrize("number", range(len(FAILURES)))
def test_no_failure_shows_a_secret_in_its_locals(number: int) -> None:
    with pytest.raises((ObmmError, TypeError)) as caught:
        FAILURES[number]()
    text = shown(caught.value)
    for secret in (UBA, TOKEN, UBA | 1 << 70, TOKEN | 1 << 40):
        for form in (str(secret), f"{secret:x}", repr(secret.to_bytes(9, "little"))[2:-1]):
            assert form not in text, text


@pytest.mark.parametrize("text", [HEX[:-1] + "x", HEX[:-1], HEX + " " + "z" * 8])
def test_no_failure_of_a_key_file_shows_its_digits(tmp_path: Path, text: str) -> None:
    path = tmp_path / "key"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(ObmmError) as caught:
        Key.load(path)
    assert HEX[:16] not in shown(caught.value)


def test_a_secret_is_the_number_and_prints_nothing() -> None:
    whole = handle()
    assert whole.uba == UBA
    assert int(whole.uba) == UBA
    assert f"{whole.uba} {whole.uba:#x} {whole.uba!r} {[whole.tokenid]}" == "*** *** *** [***]"
    assert isinstance(whole.uba, Secret)
    assert Handle.unpack(whole.pack()) == whole == copy.copy(whole) == pickle.loads(pickle.dumps(whole))
    assert str(UBA) not in repr(Grant(bytes(16), 1, whole, b"{}"))
