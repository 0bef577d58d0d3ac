# SPDX-License-Identifier: Apache-2.0
"""The wire does not change unnoticed."""

import json

from obmm.exchange.frames import FrameType
from tests.exchange import make_golden


def test_golden_frames_are_what_the_code_makes() -> None:
    assert make_golden.FILE.read_text() == make_golden.build(), "run tests/exchange/make_golden.py and read the diff"


def test_golden_values_fit_the_golden_frames() -> None:
    document = json.loads(make_golden.FILE.read_text())
    values, frames = document["derivation"], document["key"]
    assert frames[2]["hex"][32:] == values["client_proof"]
    assert frames[3]["hex"][32:] == values["server_proof"]
    assert frames[5]["hex"][64:] == values["tag_of_welcome"]


def test_every_frame_type_has_a_golden_frame() -> None:
    document = json.loads(make_golden.FILE.read_text())
    assert {int(frame["type"], 16) for frame in document["key"]} == set(FrameType)


def test_authentication_adds_frames_and_changes_none() -> None:
    """Without HELLO (which names the mode) the plain session is the keyed one without its added frames."""
    document = json.loads(make_golden.FILE.read_text())
    added = {FrameType.CHALLENGE, FrameType.PROOF, FrameType.TAG}
    keyed = [frame for frame in document["key"] if int(frame["type"], 16) not in added]
    assert keyed[1:] == document["plain"][1:]
