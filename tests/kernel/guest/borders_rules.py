# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: PT009, PT027 - unittest, because a guest has no pytest
"""The module cannot hurt its kernel: what any opener may try, and what it must not leave behind."""

from __future__ import annotations

import ctypes
import errno
import os
import select
import signal
import stat
import subprocess
import tempfile
import unittest
from pathlib import Path

from obmm._native import ffi, lib

from . import borders, simulator, suite
from .raw import CHUNK, PAGE, READ, SYS, WRITE, Region, ok, outcome, put, word

_LIBC = ctypes.CDLL(None)
_CLONE_NEWPID = 0x20000000
WINDOW = 0xA0000000
CNA = 0x40A


class Window:
    """An import of a piece of this host's window, mapped."""

    def __init__(self, pa: int = WINDOW, length: int = CHUNK, pmd: bool = False) -> None:
        self.length = length
        self._control = ok(lib.obmm_rw_open(SYS))
        command = ffi.new("struct obmm_cmd_import *", {"flags": 1, "addr": pa, "length": length, "scna": CNA})
        ok(lib.obmm_rw_import(SYS, self._control, command))
        self.mem_id = command.mem_id
        self._fd = ok(lib.obmm_rw_shmdev_open(SYS, self.mem_id, os.O_RDWR))
        out = ffi.new("void **")
        ok(lib.obmm_rw_map(SYS, self._fd, ffi.NULL, 0, length, READ | WRITE, int(pmd), out))
        self._pointer = out[0]
        self.at = int(ffi.cast("uintptr_t", out[0]))

    def close(self) -> None:
        ok(lib.obmm_rw_unmap(SYS, self._pointer, self.length))
        os.close(self._fd)
        ok(lib.obmm_rw_unimport(SYS, self._control, self.mem_id, 0))
        os.close(self._control)


class WithoutHandler(unittest.TestCase):
    """Driver memory is reached by loads and stores, and by nothing that keeps its page."""

    def test_no_system_call_finds_the_page_behind_a_mapping(self) -> None:
        for pmd in (False, True):
            with self.subTest(pmd=pmd), Region() as region:
                at = region.map(pmd=pmd)
                put(at + PAGE, 1)
                self.assertEqual(borders.wrong(at + PAGE), {})
                self.assertEqual(word(at + PAGE), 1)
                region.unmap(at)

    def test_no_system_call_finds_the_page_behind_a_window(self) -> None:
        for pmd in (False, True):
            with self.subTest(pmd=pmd):
                window = Window(pmd=pmd)
                put(window.at, 1)
                self.assertEqual(borders.wrong(window.at), {})
                window.close()

    def test_copying_calls_move_the_bytes(self) -> None:
        for pmd in (False, True):
            with self.subTest(pmd=pmd), Region() as region, tempfile.TemporaryFile() as file:
                at = region.map(pmd=pmd)
                put(at, 0x1122334455667788)
                memory = ffi.buffer(ffi.cast("char *", at), 16)
                self.assertEqual(os.pwrite(file.fileno(), memoryview(memory)[:8], 0), 8)
                self.assertEqual(os.preadv(file.fileno(), [memoryview(memory)[8:16]], 0), 8)
                self.assertEqual(word(at + 8), word(at))
                with open("/proc/self/mem", "rb", buffering=0) as own:
                    own.seek(at)
                    self.assertEqual(own.read(8), memory[:8])
                region.unmap(at)


class Pinned(unittest.TestCase):
    def test_an_open_debug_file_keeps_the_module(self) -> None:
        for name, flags in {
            "counters": os.O_RDONLY,
            "log": os.O_RDONLY,
            "inject": os.O_WRONLY,
            "decoder": os.O_WRONLY,
            "sigbus": os.O_WRONLY,
        }.items():
            with self.subTest(name):
                fd = os.open(simulator.DEBUG / name, flags)
                refused = subprocess.run(["rmmod", "obmm_sim"], capture_output=True, check=False)
                self.assertNotEqual(refused.returncode, 0)
                os.close(fd)
        simulator.load()

    def test_a_node_on_another_mount_holds_the_mount_no_longer_than_it_is_open(self) -> None:
        with tempfile.TemporaryDirectory() as place, Region() as region:
            subprocess.run(["mount", "-t", "tmpfs", "t", place], check=True)
            node = Path(place) / "node"
            device = os.stat(f"/dev/obmm_shmdev{region.mem_id}").st_rdev
            os.mknod(node, 0o600 | stat.S_IFCHR, device)
            os.close(region.fd)
            first = os.open(node, os.O_RDWR)
            region.fd = region.open()
            os.close(first)
            subprocess.run(["umount", place], check=True)
            at = region.map()
            put(at, 5)
            simulator.sigbus(region.mem_id, 0, PAGE)
            self.assertEqual(outcome(lambda: word(region.map())), "SIGBUS")
            region.unmap(at)


class Translations(unittest.TestCase):
    def test_a_removed_entry_takes_its_mappings_with_it(self) -> None:
        for pmd in (False, True):
            with self.subTest(pmd=pmd):
                window = Window(pmd=pmd)
                with Region() as region:
                    simulator.decoder(WINDOW, CHUNK, region.tokenid)
                    at = region.map(pmd=pmd)
                    put(at, 77)
                    self.assertEqual(word(window.at), 77)
                    simulator.decoder(WINDOW, 0, 0)
                    self.assertNotEqual(word(window.at), 77)
                    region.unmap(at)
                with Region() as after:
                    at = after.map()
                    put(at, 78)
                    self.assertNotEqual(word(window.at), 78)
                    after.unmap(at)
                window.close()

    def test_a_new_entry_hides_what_was_mapped_before(self) -> None:
        window = Window()
        put(window.at, 3)
        with Region() as region:
            simulator.decoder(WINDOW, CHUNK, region.tokenid)
            self.assertEqual(word(window.at), 0)
            simulator.decoder(WINDOW, 0, 0)
        self.assertEqual(word(window.at), 3)
        window.close()

    def test_an_address_has_one_entry(self) -> None:
        other = WINDOW + 16 * CHUNK
        with Region() as one, Region() as two:
            simulator.decoder(other, CHUNK, one.tokenid)
            simulator.decoder(WINDOW, CHUNK, one.tokenid)
            simulator.decoder(other, 0, 0)
            simulator.decoder(WINDOW, CHUNK, two.tokenid)
            simulator.decoder(WINDOW, 0, 0)
            window = Window()
            at = two.map()
            put(at, 9)
            self.assertNotEqual(word(window.at), 9)
            two.unmap(at)
            window.close()

    def test_entries_do_not_overlap_and_have_a_limit(self) -> None:
        with Region() as region:
            simulator.decoder(WINDOW, 2 * CHUNK, region.tokenid)
            with self.assertRaises(OSError) as refused:
                simulator.decoder(WINDOW + CHUNK, CHUNK, region.tokenid)
            self.assertEqual(refused.exception.errno, errno.EEXIST)
            places = [WINDOW, *(WINDOW + (2 + i) * CHUNK for i in range(15))]
            for place in places[1:]:
                simulator.decoder(place, CHUNK, region.tokenid)
            with self.assertRaises(OSError) as refused:
                simulator.decoder(WINDOW + 64 * CHUNK, CHUNK, region.tokenid)
            self.assertEqual(refused.exception.errno, errno.ENOSPC)
            for place in places:
                simulator.decoder(place, 0, 0)


class Ends(unittest.TestCase):
    def test_a_container_whose_init_touches_failed_memory_ends(self) -> None:
        with Region() as region:
            simulator.sigbus(region.mem_id, 0, PAGE)
            here, there = os.pipe()
            starter = os.fork()
            if starter == 0:  # its next child is process 1 of a namespace: no signal with the default action reaches it
                _LIBC.unshare(_CLONE_NEWPID)
                init = os.fork()
                if init == 0:
                    word(region.map())
                    os._exit(0)
                os.write(there, b"%d" % init)
                _, status = os.waitpid(init, 0)
                os._exit(os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0)
            init = int(os.read(here, 32))
            watched = select.poll()
            descriptor = os.pidfd_open(starter)
            watched.register(descriptor)
            ended = watched.poll(30_000)
            os.kill(init, signal.SIGKILL) if not ended else None
            _, status = os.waitpid(starter, 0)
            for fd in (here, there, descriptor):
                os.close(fd)
            self.assertEqual((bool(ended), os.WEXITSTATUS(status)), (True, signal.SIGBUS))
            simulator.sigbus(region.mem_id, 0, 0)


class Limits(unittest.TestCase):
    def test_window_memory_that_runs_out_is_sigbus(self) -> None:
        size = 0x20000000 - CHUNK  # of the window: with what exports hold, more than the guest has left
        with Region(chunks=140) as held:
            window = Window(WINDOW + CHUNK, size)
            node = window.mem_id

            def touch() -> None:
                fd = ok(lib.obmm_rw_shmdev_open(SYS, node, os.O_RDWR))
                out = ffi.new("void **")
                ok(lib.obmm_rw_map(SYS, fd, ffi.NULL, 0, size, READ | WRITE, 0, out))
                at = int(ffi.cast("uintptr_t", out[0]))
                for offset in range(0, size, CHUNK):
                    put(at + offset, 1)

            self.assertEqual(outcome(touch), "SIGBUS")
            window.close()
            self.assertEqual(held.size, 140 * CHUNK)
        simulator.load()  # the window's memory goes with the module

    def test_injections_without_a_meaning_are_refused(self) -> None:
        for line in (
            "flush_err -5",
            "flush_err 4096",
            "flush_busy 2000000000",
            "flush_sleep 99999999",
            "drain_state 7",
            "tid_min -1",
            "tid_max 1048576",
            "alloc_limit 4294967296",
            "flush_err 5 6",
            "flush_err",
            "flush_err x",
            "nothing 1",
            "blocker 1",
            "blocker 18446744073709551615 2",
            "resets",
        ):
            with self.subTest(line), self.assertRaises(OSError):
                (simulator.DEBUG / "inject").write_text(line)
        for place, line in (
            ("decoder", "0xa0000000 0x200000"),
            ("decoder", "0xa0000000 0x200000 1048576"),
            ("decoder", "0xa0000000 4096 0"),
            ("decoder", "0xffffffffffe00000 0x200000 0"),
            ("sigbus", "1 2 1"),
            ("sigbus", "1"),
        ):
            with self.subTest(line), self.assertRaises(OSError):
                (simulator.DEBUG / place).write_text(line)


def main() -> bool:
    simulator.load()
    return suite.run(__name__)
