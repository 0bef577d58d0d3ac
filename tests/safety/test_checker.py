# SPDX-License-Identifier: Apache-2.0
"""OBMM_CHECK=1: breaches of "many readers or one writing node" across emulated nodes, and views without a live peer."""

from __future__ import annotations

import errno
import gc
import signal
import subprocess
import sys
import warnings

import pytest

import obmm
from obmm import emulator
from obmm.mapping.checker import OwnershipBreach, PeerUnknown

MIB = 1 << 20


@pytest.fixture(scope="module")
def fabric():
    with emulator.start(nodes=2) as fabric:
        yield fabric


@pytest.fixture
def pair(fabric, monkeypatch):
    """An export of a and its import on b, with the checks on."""
    monkeypatch.setenv("OBMM_CHECK", "1")
    with obmm.open(fabric.device("a")) as a, obmm.open(fabric.device("b")) as b, a.export_region(MIB) as region:
        with b.import_region(region.handle()) as imported:
            yield region, imported


@pytest.fixture
def no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def here_the_writer_writes(mapping):
    mapping.acquire("w")


def here_the_reader_reads(mapping):
    mapping.acquire("r")


@pytest.mark.parametrize("writer_first", [True, False])
def test_a_writer_and_a_reader_on_two_nodes_are_reported_with_both_stacks(pair, writer_first):
    region, imported = pair
    with region.map("none") as writer:
        with imported.map("none") as reader:
            steps = [(here_the_writer_writes, writer), (here_the_reader_reads, reader)]
            for step, mapping in steps[:: 1 if writer_first else -1][:1]:
                step(mapping)
            with pytest.warns(OwnershipBreach) as caught:
                for step, mapping in steps[:: 1 if writer_first else -1][1:]:
                    step(mapping)
        text = str(caught[0].message)
        assert "here_the_writer_writes" in text
        assert "here_the_reader_reads" in text


def test_two_writing_nodes_are_reported(pair):
    region, imported = pair
    with region.map("rw"), pytest.warns(OwnershipBreach, match="has W and"):
        imported.map("rw").close()


def test_phases_in_turn_and_readers_together_are_silent(pair, no_warning):
    region, imported = pair
    with region.map("rw") as writer:
        writer.store("u1", 0, 1)
        writer.publish()
        with imported.map("r") as reader, region.map("r"):
            assert reader.load("u1", 0) == 1
        with writer.writing():
            writer.store("u1", 0, 2)
        writer.release()
        with imported.map("rw") as other:
            other.store("u1", 0, 3)


def test_disjoint_ranges_and_mappings_of_one_node_are_silent(pair, no_warning):
    region, imported = pair
    with region.map("rw", 0, 8192), region.map("rw", 0, 8192), imported.map("rw", 3 * 65536, 4 * 65536):
        pass


def test_noncacheable_mappings_are_not_a_breach(pair, fabric, no_warning):
    region, _ = pair
    with obmm.open(fabric.device("b")) as b, b.import_region(region.handle(), cache="nc") as imported:
        with region.map("rw", cache="nc"), imported.map("rw"):
            pass


WRITER = """
import sys, obmm
m = obmm.open(sys.argv[1]).import_region(obmm.Handle.unpack(bytes.fromhex(sys.argv[2]))).map("rw")
print("has it", flush=True)
sys.stdin.readline()
"""


def test_another_process_is_seen_while_it_lives_and_forgotten_when_it_is_dead(pair, fabric):
    region, _ = pair
    child = subprocess.Popen(
        [sys.executable, "-c", WRITER, fabric.device("b"), region.handle().pack().hex()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout.readline() == "has it\n"
    with pytest.warns(OwnershipBreach, match=f"pid {child.pid}"):
        region.map("r").close()
    child.send_signal(signal.SIGKILL)
    child.communicate()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        region.map("rw").close()


def test_a_view_without_a_lease_is_warned_about_once(pair):
    _, imported = pair
    with imported.map("r") as mapping:
        with pytest.warns(PeerUnknown, match="snapshot"):
            view = mapping.view(0, 10)
        del view
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            mapping.as_numpy("u1", 10)
            assert mapping.snapshot(0, 10) == bytes(10)


def test_a_view_under_a_renewed_lease_or_of_an_export_is_not(pair, fabric, tmp_path, no_warning):
    region, _ = pair
    with obmm.serve({"t": region}, port=0, plain=True, journal=tmp_path / "j") as server:
        with obmm.open(fabric.device("b")) as b, obmm.connect(f"127.0.0.1:{server.port}", plain=True) as peer:
            with b.import_region(peer.fetch("t")) as imported, imported.map("r") as mapping:
                mapping.view(0, 10)
    with region.map("r") as mapping:
        mapping.view(0, 10)


def test_off_it_is_not_there(fabric, monkeypatch, no_warning):
    monkeypatch.delenv("OBMM_CHECK", raising=False)
    with obmm.open(fabric.device("a")) as a, a.export_region(MIB) as region, region.map("rw") as mapping:
        assert mapping._piece.check is None


def test_an_account_that_cannot_be_opened_raises_nothing_and_is_settled_later(pair, monkeypatch):
    """A finalizer raises nothing, and what it could not do is done by the next one."""
    region, _ = pair
    piece = region.map("rw")._piece
    account = piece.check._account
    assert "runs" in account.read_text()
    seen = []
    monkeypatch.setattr(sys, "unraisablehook", seen.append)
    with monkeypatch.context() as refused:

        def refuse(*_arguments, **_options):
            raise obmm.ObmmError(errno.EMFILE, "no descriptor")

        refused.setattr("obmm.mapping.checker.Descriptor.open", refuse)
        del piece
        gc.collect()
    assert not seen
    assert "runs" in account.read_text()
    region.map("none").close()
    assert account.read_text() == ""
