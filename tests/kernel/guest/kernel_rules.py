# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: PT009, PT027 - unittest, because a guest has no pytest
"""What only a kernel can show: page tables, signals, processes that die, mappings that a fork leaves behind."""

from __future__ import annotations

import errno
import os
import signal
import time
import unittest

from obmm._native import ffi, lib

from . import simulator, suite
from .raw import CHUNK, NONE, PAGE, READ, SYS, WRITE, R, Region, W, ok, outcome, put, word


class Faults:
    """How many faults of each kind happen inside a `with` block."""

    def __enter__(self) -> Faults:
        self._before = simulator.counters()
        return self

    def __exit__(self, *_: object) -> None:
        after = simulator.counters()
        self.pmd = after["pmd_faults"] - self._before["pmd_faults"]
        self.pte = after["pte_faults"] - self._before["pte_faults"]


class PageTables(unittest.TestCase):
    def test_m8_a_block_mapping_takes_one_fault_per_2_mib(self) -> None:
        with Region(chunks=4) as region:
            at = region.map(pmd=True)
            self.assertEqual(at % CHUNK, 0)
            with Faults() as faults:
                for offset in range(0, region.size, CHUNK // 2):
                    put(at + offset, offset + 1)
            self.assertEqual((faults.pmd, faults.pte), (4, 0))
            self.assertEqual([word(at + i * CHUNK) for i in range(4)], [i * CHUNK + 1 for i in range(4)])
            region.unmap(at)

    def test_a_page_mapping_takes_one_fault_per_4_kib(self) -> None:
        with Region() as region:
            at = region.map()
            with Faults() as faults:
                for offset in range(0, 16 * PAGE, PAGE):
                    put(at + offset, offset)
            self.assertEqual((faults.pmd, faults.pte), (0, 16))
            region.unmap(at)

    def test_o_a_right_taken_away_leaves_the_page_tables(self) -> None:
        with Region() as region:
            at = region.map()
            put(at, 1)
            region.own(at, region.size, R)
            with Faults() as faults:
                self.assertEqual(word(at), 1)
            self.assertEqual(faults.pte, 1)
            region.unmap(at)

    def test_9_5_a_block_mapping_cut_at_2_mib_keeps_blocks(self) -> None:
        with Region(chunks=3) as region:
            at = region.map(pmd=True)
            with self.assertRaises(OSError) as refused:
                region.unmap(at + PAGE, PAGE)
            self.assertEqual(refused.exception.errno, errno.EINVAL)
            region.unmap(at + CHUNK, CHUNK)
            with Faults() as faults:
                put(at, 5)
                put(at + 2 * CHUNK, 6)
            self.assertEqual((faults.pmd, faults.pte), (2, 0))
            region.unmap(at, CHUNK)
            region.unmap(at + 2 * CHUNK, CHUNK)


class Signals(unittest.TestCase):
    """A forked child has no mapping, so each child makes its own."""

    def after(self, region: Region, prot: int, state: int | None, store: bool) -> str:
        def body() -> None:
            at = region.map(prot)
            if state is not None:
                region.own(at, region.size, state)
            put(at, 1) if store else word(at)

        return outcome(body)

    def test_9_9_an_access_without_right_is_sigsegv(self) -> None:
        cases = [
            (0, None, False, "SIGSEGV"),
            (READ, None, False, "done"),
            (READ, None, True, "SIGSEGV"),
            (READ | WRITE, NONE, False, "SIGSEGV"),
            (READ | WRITE, R, True, "SIGSEGV"),
            (READ | WRITE, R, False, "done"),
            (0, R, False, "done"),
            (0, W, True, "done"),
        ]
        with Region() as region:
            for prot, state, store, expected in cases:
                with self.subTest(prot=prot, state=state, store=store):
                    self.assertEqual(self.after(region, prot, state, store), expected)

    def test_9_6_a_right_can_differ_from_page_to_page(self) -> None:
        with Region() as region:

            def store_at(page: int) -> str:
                def body() -> None:
                    at = region.map()
                    region.own(at + PAGE, PAGE, R)
                    put(at + page * PAGE, 1)

                return outcome(body)

            self.assertEqual([store_at(page) for page in range(3)], ["done", "SIGSEGV", "done"])

    def test_9_9_a_failed_remote_access_is_sigbus(self) -> None:
        with Region() as region:
            simulator.sigbus(region.mem_id, PAGE, 2 * PAGE)
            self.assertEqual(outcome(lambda: word(region.map())), "done")
            self.assertEqual(outcome(lambda: word(region.map() + PAGE)), "SIGBUS")

    def test_a_system_call_on_failed_memory_is_efault_and_returns(self) -> None:
        with Region() as region:
            simulator.sigbus(region.mem_id, 0, PAGE)
            at = region.map()
            reader, writer = os.pipe()
            with self.assertRaises(OSError) as refused:
                os.write(writer, ffi.buffer(ffi.cast("char *", at), 8))
            self.assertEqual(refused.exception.errno, errno.EFAULT)
            os.close(reader)
            os.close(writer)
            region.unmap(at)


class Guard(unittest.TestCase):
    def test_a_guarded_read_over_a_sigbus_names_the_offset(self) -> None:
        with Region() as region:
            at = region.map()
            put(at + 3 * PAGE, 77)
            slot = ok(lib.obmm_guard_add(ffi.cast("void *", at), region.size, 42))
            buffer = ffi.new("char[]", 8 * PAGE)
            fault = ffi.new("struct obmm_fault *")
            simulator.sigbus(region.mem_id, 3 * PAGE, 4 * PAGE)
            status = lib.obmm_copy_from(buffer, ffi.cast("void *", at), 8 * PAGE, fault)
            self.assertLess(status, 0)
            self.assertEqual((fault.id, fault.signo), (42, signal.SIGBUS))
            self.assertEqual(fault.offset // PAGE, 3)
            simulator.sigbus(region.mem_id, 0, 0)
            ok(lib.obmm_copy_from(buffer, ffi.cast("void *", at), 8 * PAGE, fault))
            self.assertEqual(int(ffi.cast("uint64_t *", buffer)[3 * PAGE // 8]), 77)
            ok(lib.obmm_guard_remove(slot))
            region.unmap(at)

    def test_a_guarded_load_without_right_is_caught(self) -> None:
        with Region() as region:
            at = region.map(0)
            slot = ok(lib.obmm_guard_add(ffi.cast("void *", at), region.size, 7))
            value, fault = ffi.new("uint64_t *"), ffi.new("struct obmm_fault *")
            self.assertLess(lib.obmm_load(ffi.cast("void *", at + 64), 8, value, fault), 0)
            self.assertEqual((fault.id, fault.signo, fault.offset), (7, signal.SIGSEGV, 64))
            ok(lib.obmm_guard_remove(slot))
            region.unmap(at)


class Lifetimes(unittest.TestCase):
    def refused(self, region: Region) -> int:
        """The errno of UNEXPORT; 0 when it worked."""
        try:
            region.unexport()
        except OSError as error:
            return error.errno or -1
        return 0

    def test_u4_a_mapping_outlives_its_descriptor_and_keeps_the_region_busy(self) -> None:
        region = Region()
        at = region.map()
        put(at, 9)
        os.close(region.fd)
        self.assertEqual(self.refused(region), errno.EBUSY)
        self.assertEqual(word(at), 9)
        region.unmap(at, PAGE)
        self.assertEqual(self.refused(region), errno.EBUSY)
        region.unmap(at)
        self.assertEqual(self.refused(region), 0)
        os.close(region.control)

    def test_kill_9_releases_everything_before_wait_returns(self) -> None:
        for _ in range(20):
            region = Region()
            ready, tell = os.pipe()
            pid = os.fork()
            if pid == 0:
                at = region.map()
                put(at, 1)
                os.write(tell, b"x")
                time.sleep(60)
                os._exit(0)
            os.read(ready, 1)
            os.close(region.fd)
            self.assertEqual(self.refused(region), errno.EBUSY)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            self.assertEqual(self.refused(region), 0)
            for fd in (ready, tell, region.control):
                os.close(fd)

    def test_9_5_a_killed_writer_is_written_back(self) -> None:
        with Region() as region:
            before = simulator.counters()["wb_inval"]

            def body() -> None:
                put(region.map(), 1)
                os.kill(os.getpid(), signal.SIGKILL)

            self.assertEqual(outcome(body), "SIGKILL")
            self.assertEqual(simulator.counters()["wb_inval"] - before, 1)

    def test_9_4_a_forked_child_has_no_mapping_and_the_parent_keeps_its_own(self) -> None:
        with Region() as region:
            at = region.map()
            put(at, 3)
            self.assertEqual(outcome(lambda: word(at)), "SIGSEGV")
            self.assertEqual(word(at), 3)
            region.unmap(at)

    def test_a_store_of_another_process_is_a_load_here(self) -> None:
        with Region() as region:
            at = region.map()
            self.assertEqual(outcome(lambda: put(region.map() + 128, 0xABCDEF)), "done")
            self.assertEqual(word(at + 128), 0xABCDEF)
            region.unmap(at)

    def test_22_3_a_removed_export_is_sigbus_for_its_importer(self) -> None:
        window = 0xA0000000
        region = Region()
        simulator.decoder(window, CHUNK, region.tokenid)
        imported = ffi.new("struct obmm_cmd_import *", {"flags": 1, "addr": window, "length": CHUNK, "scna": 0x40A})
        ok(lib.obmm_rw_import(SYS, region.control, imported))
        fd = ok(lib.obmm_rw_shmdev_open(SYS, imported.mem_id, os.O_RDWR))
        out = ffi.new("void **")
        ok(lib.obmm_rw_map(SYS, fd, ffi.NULL, 0, CHUNK, READ | WRITE, 0, out))
        here = int(ffi.cast("uintptr_t", out[0]))
        at = region.map()
        put(at, 11)
        self.assertEqual(word(here), 11)
        region.unmap(at)
        slot = ok(lib.obmm_guard_add(out[0], CHUNK, 5))
        value, fault = ffi.new("uint64_t *"), ffi.new("struct obmm_fault *")
        ok(lib.obmm_load(out[0], 8, value, fault))
        os.close(region.fd)
        self.assertEqual(self.refused(region), 0)
        self.assertLess(lib.obmm_load(out[0], 8, value, fault), 0)
        self.assertEqual((fault.id, fault.signo, fault.offset), (5, signal.SIGBUS, 0))
        ok(lib.obmm_guard_remove(slot))
        ok(lib.obmm_rw_unmap(SYS, out[0], CHUNK))
        os.close(fd)
        ok(lib.obmm_rw_unimport(SYS, region.control, imported.mem_id, 0))
        simulator.decoder(window, 0, 0)
        os.close(region.control)


class PythonApi(unittest.TestCase):
    def test_guarded_reads_and_rights_of_the_package(self) -> None:
        import obmm

        with obmm.open() as device, device.export_region("2MiB", header=False) as region, region.map("rw") as mapping:
            mapping.write(0, b"table" * 100)
            simulator.sigbus(region.mem_id, PAGE, 2 * PAGE)
            self.assertEqual(mapping.read(0, 500), b"table" * 100)
            with self.assertRaises(obmm.RemoteMemoryError) as failed:
                mapping.read(0, 3 * PAGE)
            self.assertIn("4096", str(failed.exception))
            simulator.sigbus(region.mem_id, 0, 0)
            mapping.release()
            with self.assertRaises(obmm.OwnershipError):
                mapping.read(0, 8)
            with mapping.reading():
                self.assertEqual(mapping.read(0, 5), b"table")


def main() -> bool:
    simulator.load()
    return suite.run(__name__)
