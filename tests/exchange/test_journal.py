# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import os
import socket
import tempfile
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from obmm.exchange import JournalError, LeaseRecord, LeaseState
from obmm.exchange.journal import LeaseJournal, default_journal, released_everywhere
from obmm.exchange.journal_lines import first_line, grant_line, host_id


def record(number: int) -> LeaseRecord:
    return LeaseRecord(
        id=number.to_bytes(16, "big"),
        region="table",
        generation=0xFEDCBA9876543210,
        client="c/1",
        address="127.0.0.1",
        identity="",
        importer_eid=bytes(16),
        granted=1.5,
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "leases.journal"


def crash(journal: LeaseJournal) -> None:
    """What a SIGKILL leaves: the file as written, the lock gone."""
    journal.abandon()


def recovered(path: Path) -> list[int]:
    journal = LeaseJournal(path)
    crash(journal)
    assert all(each.state is LeaseState.UNKNOWN for each in journal.recovered)
    return sorted(int.from_bytes(each.id, "big") for each in journal.recovered)


def test_grants_survive_a_crash_and_releases_end_them(path: Path) -> None:
    journal = LeaseJournal(path)
    for number in range(5):
        journal.grant(record(number))
    journal.release(record(1))
    journal.release(record(3), forced=True)
    journal.commit()
    crash(journal)
    assert recovered(path) == [0, 2, 4]
    assert recovered(path) == [0, 2, 4]


def test_lines_of_one_batch_keep_their_order(path: Path) -> None:
    """Granted, released, granted again: the last word counts."""
    journal = LeaseJournal(path)
    journal.grant(record(1))
    journal.release(record(1))
    journal.grant(record(1))
    journal.grant(record(2))
    journal.release(record(2))
    journal.commit()
    crash(journal)
    assert recovered(path) == [1]


def test_everything_about_a_lease_is_kept(path: Path) -> None:
    journal = LeaseJournal(path)
    journal.grant(record(7))
    journal.commit()
    crash(journal)
    journal = LeaseJournal(path)
    (got,) = journal.recovered
    want = record(7)
    want.state = LeaseState.UNKNOWN
    assert {name: getattr(got, name) for name in LeaseRecord.__slots__} == {
        name: getattr(want, name) for name in LeaseRecord.__slots__
    }
    crash(journal)


def test_leases_of_an_earlier_boot_are_dropped(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = LeaseJournal(path)
    journal.grant(record(1))
    journal.commit()
    crash(journal)
    monkeypatch.setattr("obmm.exchange.journal_lines.boot_id", lambda: "another boot")
    assert recovered(path) == []


def test_a_torn_tail_is_dropped_wherever_it_tears(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    journal = LeaseJournal(path)
    for number in range(3):
        journal.grant(record(number))
        journal.commit()
    crash(journal)
    whole = path.read_bytes()
    last = whole.rstrip(b"\n").rfind(b"\n") + 1
    for end in (last, last + 1, last + 8, last + 9, last + 30, len(whole) - 2, len(whole) - 1):
        path.write_bytes(whole[:end])
        assert recovered(path) == [0, 1]
    assert "torn last line" in caplog.text
    path.write_bytes(whole)
    assert recovered(path) == [0, 1, 2]


def test_a_last_line_of_zeros_is_a_torn_tail(path: Path) -> None:
    journal = LeaseJournal(path)
    journal.grant(record(1))
    journal.commit()
    crash(journal)
    path.write_bytes(path.read_bytes() + bytes(100))
    assert recovered(path) == [1]


def test_damage_in_the_middle_is_refused_with_its_line(path: Path) -> None:
    journal = LeaseJournal(path)
    for number in range(3):
        journal.grant(record(number))
    journal.commit()
    crash(journal)
    raw = bytearray(path.read_bytes())
    raw[60] ^= 1
    path.write_bytes(raw)
    with pytest.raises(JournalError, match="damaged in line 2"):
        LeaseJournal(path)
    path.write_bytes(b"")
    LeaseJournal(path).close()  # the lock is not left behind by the refusal


@pytest.mark.parametrize("content", ["af" * 32 + "\n", "x", "obmm lease journal 2\n", "obmm lease journal x\n"])
def test_any_other_file_is_left_alone(path: Path, content: str) -> None:
    path.write_text(content)
    with pytest.raises(JournalError, match="something else than a lease journal"):
        LeaseJournal(path)
    assert path.read_text() == content


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: socket.socket(socket.AF_UNIX).bind(str(path))])
def test_what_is_no_regular_file_is_left_alone(path: Path, make: Any) -> None:
    """It would be replaced and removed: as root, /dev/null for the whole machine."""
    make(path)
    before = path.lstat()
    with pytest.raises(JournalError, match="not a regular file"):
        LeaseJournal(path)
    after = path.lstat()
    assert (after.st_ino, after.st_mode) == (before.st_ino, before.st_mode)
    assert sorted(path.parent.iterdir()) == [path]


def test_a_first_line_that_is_torn_is_an_empty_journal(path: Path) -> None:
    path.write_text("obmm lea")
    assert recovered(path) == []


def test_two_servers_cannot_share_a_journal(path: Path) -> None:
    journal = LeaseJournal(path)
    with pytest.raises(JournalError, match="in use by another server"):
        LeaseJournal(path)
    journal.close()
    LeaseJournal(path).close()


def test_a_folder_that_is_not_there_or_not_ours_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "gone" / "journal", tmp_path / "file" / "journal", tmp_path):
        with pytest.raises(JournalError, match=r"cannot be used: .*journal=PATH"):
            LeaseJournal(path)


def test_opening_rewrites_the_file_without_what_is_over(path: Path) -> None:
    journal = LeaseJournal(path)
    for number in range(100):
        journal.grant(record(number))
        journal.commit()
        journal.release(record(number))
        journal.commit()
    crash(journal)
    before = path.stat().st_size
    assert recovered(path) == []
    assert path.stat().st_size < before // 10


def test_it_is_compacted_while_it_runs(path: Path) -> None:
    journal = LeaseJournal(path)
    for number in range(50):
        journal.grant(record(number))
    journal.commit()
    journal.compact([grant_line(record(49))])
    journal.grant(record(50))
    journal.commit()
    crash(journal)
    assert recovered(path) == [49, 50]


def test_a_failed_compaction_changes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = LeaseJournal(path)
    for number in range(5):
        journal.grant(record(number))
    journal.commit()
    with monkeypatch.context() as patch:

        def full(fd: int) -> None:
            raise OSError(28, "No space left on device")

        patch.setattr(os, "fsync", full)
        journal.compact([])
    assert not path.with_name(path.name + ".new").exists()
    journal.grant(record(5))
    journal.commit()
    crash(journal)
    assert recovered(path) == [0, 1, 2, 3, 4, 5]


def test_a_clean_end_without_leases_leaves_no_journal(path: Path) -> None:
    journal = LeaseJournal(path)
    journal.grant(record(1))
    journal.commit()
    journal.release(record(1))
    journal.close()
    journal.close()
    assert list(path.parent.iterdir()) == []


def test_a_clean_end_with_leases_keeps_them(path: Path) -> None:
    journal = LeaseJournal(path)
    journal.grant(record(1))
    journal.close()
    assert recovered(path) == [1]


def test_only_the_owner_can_read_it(path: Path) -> None:
    LeaseJournal(path)
    assert path.stat().st_mode & 0o077 == 0


def test_a_full_disk_refuses_grants_and_keeps_releases(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = LeaseJournal(path)
    journal.grant(record(1))
    journal.commit()
    real = os.write

    def half_then_full(fd: int, data: memoryview) -> int:
        if fd != journal._fd:
            return real(fd, data)
        if len(data) > 20:
            return real(fd, data[:20])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", half_then_full)
    journal.release(record(1))
    journal.grant(record(2))
    with pytest.raises(JournalError, match="No space left"):
        journal.commit()
    monkeypatch.undo()
    journal.commit()
    crash(journal)
    assert recovered(path) == []


def whole(event: object) -> bytes:
    """A line with the right checksum, whatever it says."""
    text = json.dumps(event).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


GRANT = {
    "event": "grant", "lease": "00" * 16, "region": "r", "generation": "0" * 15 + "1", "client": "", "address": "",
    "identity": "", "importer_eid": "00" * 16, "granted": 1.0, "boot": "b",
}  # fmt: skip


@pytest.mark.parametrize(
    "event",
    [
        5, [], "x", None, {}, {"event": "steal"}, {"event": "release"}, {"event": "release", "lease": "xx"},
        *({key: value for key, value in GRANT.items() if key != missing} for missing in GRANT),
        *(GRANT | {key: [] for key in (wrong,)} for wrong in GRANT),
        GRANT | {"granted": 1e300}, GRANT | {"granted": True}, GRANT | {"lease": "0 " * 16}, GRANT | {"generation": "-1"},
    ],
)  # fmt: skip
def test_a_whole_line_that_says_something_else_is_refused_with_its_line(path: Path, event: object) -> None:
    path.write_bytes(first_line() + whole(GRANT) + whole(event))
    with pytest.raises(JournalError, match="line 3"):
        LeaseJournal(path)
    assert path.read_bytes().endswith(whole(event)), "and left alone"


def test_a_journal_of_another_machine_is_refused_and_left_alone(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = LeaseJournal(path)
    journal.grant(record(1))
    journal.commit()
    crash(journal)
    before = path.read_bytes()
    monkeypatch.setattr("obmm.exchange.journal_lines.host_id", lambda: "0" * 12)
    with pytest.raises(JournalError, match="belongs to another machine"):
        LeaseJournal(path)
    assert path.read_bytes() == before
    monkeypatch.undo()
    assert recovered(path) == [1]


def test_the_default_journal_names_host_and_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert default_journal(5).name == f"leases-{host_id()}-5.journal"
    (tmp_path / "obmm" / "leases-5.journal").write_text("obmm lease journal 1\n")
    assert default_journal(5).name == "leases-5.journal", "one of the version before is gone on with"
    (tmp_path / "obmm" / f"leases-{host_id()[::-1]}x-6.journal").write_text("obmm lease journal 2 host=other\n")
    assert released_everywhere(7) is None


def test_a_journal_of_a_newer_version_says_upgrade(path: Path) -> None:
    path.write_bytes(b"obmm lease journal 3 host=x\n")
    with pytest.raises(JournalError, match="newer obmm: upgrade"):
        LeaseJournal(path)


def test_without_a_state_folder_another_one_is_taken_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    assert default_journal(5).parent == tmp_path / "tmp" / f"obmm-state-{os.geteuid()}"
    assert "no state folder" in caplog.text


@given(st.binary(max_size=300))
def test_whatever_stands_in_the_file_the_error_is_the_journals_own(rest: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal"
        path.write_bytes(first_line() + rest)
        try:
            LeaseJournal(path).abandon()
        except JournalError as error:
            assert str(path) in str(error)


@pytest.mark.parametrize(
    "head",
    [
        b"obmm lease journal " + b"9" * 5000 + b"\n",
        b"obmm lease journal " + b"9" * 5000 + b" host=x\n",
        b"obmm lease journal " + b"1" * 100_000,
        b"obmm lease journal 0 host=x\n",
        b"obmm lease journal -2 host=x\n",
        "obmm lease journal \u00b2 host=x\n".encode(),
    ],
)
def test_a_first_line_that_nobody_wrote_is_refused_and_left_alone(path: Path, head: bytes) -> None:
    path.write_bytes(head)
    with pytest.raises(JournalError) as caught:
        LeaseJournal(path)
    assert len(str(caught.value)) < 1000
    assert path.read_bytes() == head


def test_one_lease_in_two_spellings_is_one(path: Path) -> None:
    lines = [grant_line(record(0xAB))]
    text = json.loads(lines[0].partition(b" ")[2]) | {"generation": "00" * 7 + "07"}
    text["lease"] = text["lease"].upper()
    body = json.dumps(text).encode()
    path.write_bytes(first_line() + lines[0] + b"%08x %s\n" % (zlib.crc32(body), body))
    journal = LeaseJournal(path)
    crash(journal)
    assert [(each.id, each.generation) for each in journal.recovered] == [(record(0xAB).id, 7)]


@pytest.mark.parametrize("content", ["uninitialized\n", "", "0" * 32 + "\n", "\n", "x" * 32])
def test_a_machine_id_that_every_machine_of_an_image_has_tells_no_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    (tmp_path / "machine-id").write_text(content)
    monkeypatch.setattr("obmm.exchange.journal_lines._MACHINE_ID", tmp_path / "machine-id")
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(nodename="node-a"))
    first = host_id.__wrapped__()
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(nodename="node-b"))
    assert host_id.__wrapped__() != first


def test_leases_of_who_knows_which_machine_are_not_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first version did not say whose a journal is: one in a folder that hosts share may be a living node's."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    earlier = tmp_path / "obmm" / "leases-5.journal"
    earlier.parent.mkdir(mode=0o700)
    line = grant_line(record(1))
    earlier.write_bytes(b"obmm lease journal 1\n" + line)
    assert default_journal(5) == earlier, "a lease of this boot is ours"
    monkeypatch.setattr("obmm.exchange.journal_lines.boot_id", lambda: "another")
    before = earlier.read_bytes()
    LeaseJournal(default_journal(5)).close()
    assert earlier.read_bytes() == before
