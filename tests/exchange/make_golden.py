# SPDX-License-Identifier: Apache-2.0
"""Golden frames: two whole conversations with fixed nonces, for implementations in other languages.

``python tests/exchange/make_golden.py`` writes them; a test compares them with what the code makes today.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from pathlib import Path

from obmm.exchange.call_messages import Call, Ping, Pong, Reply, Status, StatusPage
from obmm.exchange.errors import Refusal
from obmm.exchange.keys import Key
from obmm.exchange.messages import (
    ErrorMessage,
    Fetch,
    Grant,
    List,
    Listed,
    Message,
    Mode,
    RegionEntry,
    Release,
    Released,
    Renew,
    Renewed,
    Revoked,
    RevokeReason,
    Welcome,
)
from obmm.exchange.session import ClientSession, ServerSession
from obmm.handle import Handle, HandleFlag, eid

FILE = Path(__file__).with_name("golden") / "conversations.json"

KEY = bytes(range(0x40, 0x60))
CLIENT_NONCE = bytes.fromhex("000102030405060708090a0b0c0d0e0f")
SERVER_NONCE = bytes.fromhex("f0e0d0c0b0a090807060504030201000")
LEASE = bytes.fromhex("1ea5e000112233445566778899aabbcc")
HANDLE = Handle(
    mem_id=7,
    length=256 << 20,
    uba=0xFFFFF0000000,
    tokenid=0x4A9,
    owner_cna=0x123456,
    owner_eid=eid(0x1001),
    pxm_numa=-1,
    flags=HandleFlag.HEADER | HandleFlag.READ_ONLY,
    generation=0x0123456789ABCDEF,
)
MANIFEST = b'{"format":"obmm-array","version":1,"dtype":"<f4","shape":[10000,341]}'

# (who speaks, message, request number); requests and answers of every type.
TALK: list[tuple[str, Message, int]] = [
    ("client", List(0), 1),
    ("server", Listed(1, (RegionEntry("embeddings", 256 << 20, HANDLE.generation, len(MANIFEST), 12),)), 1),
    ("client", Fetch(LEASE, "embeddings", eid(0x2002)), 2),
    ("server", Grant(LEASE, 60_000, HANDLE, MANIFEST), 2),
    ("client", Fetch(bytes(15) + b"\1", "nothing"), 3),
    ("server", ErrorMessage(Refusal.NO_REGION, "no region 'nothing' is published here"), 3),
    ("client", Renew(LEASE, HANDLE.generation), 4),
    ("server", Renewed(LEASE, 60_000), 4),
    ("client", Ping(), 5),
    ("server", Pong(), 5),
    ("client", Status(0), 6),
    ("server", StatusPage(0, b'{"version":1,"server":{},"items":[]}'), 6),
    ("client", Call("kv/blocks", b"\1\2\3"), 8),
    ("server", Reply(b"\4\5"), 8),
    ("server", Revoked(LEASE, 30_000, RevokeReason.WITHDRAWN), 0),
    ("client", Release(LEASE), 7),
    ("server", Released(LEASE), 7),
]


def conversation(mode: Mode) -> list[dict[str, str]]:
    """Every frame of one session, as (direction, type, hex)."""
    key = Key(KEY, "golden") if mode is Mode.KEY else None
    client = ClientSession(mode, key, "golden/1", nonce=CLIENT_NONCE)
    server = ServerSession(mode, [key] if key else [], nonce=SERVER_NONCE)
    sides = {"client": client, "server": server}
    out: list[dict[str, str]] = []

    def deliver(speaker: str) -> None:
        other = sides["server" if speaker == "client" else "client"]
        raw = sides[speaker].take()
        at = 0
        while at < len(raw):
            end = at + 16 + int.from_bytes(raw[at + 12 : at + 16], "little")
            out.append({"from": speaker, "type": f"{raw[at + 5]:#04x}", "hex": raw[at:end].hex()})
            at = end
        for _ in other.receive(raw):
            pass

    deliver("client")
    if mode is Mode.KEY:
        deliver("server")
        deliver("client")
    server.welcome(Welcome(bytes(range(16)), 60_000, 300_000, 1))
    deliver("server")
    for speaker, message, request in TALK:
        sides[speaker].send(message, request)
        deliver(speaker)
    return out


def derivation(frames: list[dict[str, str]]) -> dict[str, str]:
    """The values in between, computed here from the page's formulas and not by the package."""
    hello, challenge = (bytes.fromhex(frame["hex"]) for frame in frames[:2])
    transcript = hashlib.sha256(hello + challenge).digest()

    def derive(label: bytes) -> bytes:
        return hmac.digest(KEY, label + b"\0" + transcript, "sha256")

    session = derive(b"obmm exchange 1 session")
    welcome = bytes.fromhex(frames[4]["hex"])
    return {
        "key": KEY.hex(),
        "key_identity": hmac.digest(KEY, b"obmm exchange 1 key identity\0", "sha256")[:4].hex(),
        "transcript": transcript.hex(),
        "client_proof": derive(b"obmm exchange 1 client proof").hex(),
        "server_proof": derive(b"obmm exchange 1 server proof").hex(),
        "session_key": session.hex(),
        "tag_of_welcome": hmac.digest(session, b"\2" + bytes(8) + welcome, "sha256").hex(),
    }


def build() -> str:
    keyed = conversation(Mode.KEY)
    document = {"derivation": derivation(keyed), "key": keyed, "plain": conversation(Mode.PLAIN)}
    return json.dumps(document, indent=1) + "\n"


if __name__ == "__main__":
    FILE.write_text(build())
    print(f"wrote {FILE}")
