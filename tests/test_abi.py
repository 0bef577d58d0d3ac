# SPDX-License-Identifier: Apache-2.0
"""Driver specification 3-5, as Python sees it."""

import pytest

from obmm._native import ffi, lib
from obmm.driver import abi


def test_a_wrong_request_number_fails_the_import():
    with pytest.raises(ImportError, match=r"EXPORT is 0xc0e07800, the driver's is 0x7800"):
        abi._command(abi.Request.EXPORT, "struct obmm_cmd_export", 224, 0x7800)


def test_a_wrong_struct_size_fails_the_import():
    with pytest.raises(ImportError, match="obmm_cmd_export has 224 bytes, the driver's has 184"):
        abi._command(abi.Request.EXPORT, "struct obmm_cmd_export", 184, 0xC0E07800)


def test_every_request_has_its_struct():
    assert set(abi.COMMANDS) == set(abi.Request)


def test_a_request_number_carries_the_size_of_its_struct():
    assert {r: r >> 16 & 0x3FFF for r in abi.Request} == {r: c.size for r, c in abi.COMMANDS.items()}


def test_rw_commands_write_their_struct_back():
    assert {r.name for r, c in abi.COMMANDS.items() if c.writes_back} == {
        "EXPORT",
        "IMPORT",
        "ADDR_QUERY",
        "EXPORT_PID",
        "DECLARE_PREIMPORT",
    }


def test_the_flags_fill_their_masks():
    assert abi.ExportFlag.ALLOW_MMAP | abi.ExportFlag.FAST == abi.EXPORT_FLAG_MASK
    assert sum(abi.ImportFlag) == abi.IMPORT_FLAG_MASK
    assert {*abi.MemType} == {*range(abi.MEM_TYPE_MASK + 1)}
    assert max(abi.MemAccess) == abi.MEM_ACCESS_MASK


@pytest.mark.parametrize(
    ("struct", "field", "offset"),
    [
        # the layouts that earlier clients got wrong: both pointer orders, odd EIDs, the packed struct
        ("export", "vendor_info", 208),
        ("export", "priv", 216),
        ("export_pid", "priv", 88),
        ("export_pid", "vendor_info", 96),
        ("import", "deid", 51),
        ("import", "seid", 67),
        ("preimport", "deid", 39),
        ("preimport", "seid", 55),
        ("preimport", "priv", 71),
    ],
)
def test_cffi_sees_the_compilers_layout(struct, field, offset):
    assert ffi.offsetof(f"struct obmm_cmd_{struct}", field) == offset


def test_a_struct_reads_bytes_that_came_from_elsewhere():
    data = bytearray(96)
    data[51:67] = bytes(range(16))
    command = ffi.from_buffer(abi.COMMANDS[abi.Request.IMPORT].pointer, data)
    assert bytes(command.deid) == bytes(range(16))


def test_the_pmd_flag_is_bit_63_of_the_offset():
    assert abi.MMAP_FLAG_HUGETLB_PMD == 1 << 63


def test_the_kernel_table_names_itself():
    kernel = lib.obmm_sys_kernel()
    assert (ffi.string(kernel.name), ffi.string(kernel.root)) == (b"kernel", b"")
