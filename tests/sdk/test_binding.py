# SPDX-License-Identifier: Apache-2.0
"""The binding without any library: layouts, codes, and what a missing library says."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from cffi import FFI

from obmm.errors import ObmmError
from obmm.sdk import abi, arguments
from obmm.sdk.codes import ERRNO, HINTS, Code, c_name, hint
from obmm.sdk.errors import SdkArgumentError, SdkError, SdkLibraryError
from obmm.sdk.library import load
from obmm.sdk.records import RegionHost


def test_section_3_layouts_are_exact() -> None:
    assert abi.layout_faults(abi.ffi) == []


def test_section_3_check_sees_a_wrong_size_and_a_wrong_offset() -> None:
    wrong = FFI()
    wrong.cdef(
        abi.DECLARATIONS.replace(
            "char name[49]; size_t size; } ubsmem_shmem_desc_t", "char name[73]; size_t size; } ubsmem_shmem_desc_t"
        )
    )
    assert abi.layout_faults(wrong) == [
        "sizeof(ubsmem_shmem_desc_t) is 88, not 64",
        "offsetof(ubsmem_shmem_desc_t, size) is 80, not 56",
    ]


def test_section_6_has_26_functions_and_all_are_declared() -> None:
    assert len(set(abi.FUNCTIONS)) == 26
    assert all(f"{name}(" in abi.DECLARATIONS for name in abi.FUNCTIONS)


def test_section_10_has_19_kinds() -> None:
    assert len(abi.FaultKind) == 19


@pytest.mark.parametrize("code", [code for code in Code if code])
def test_section_13_every_code_explains_itself(code: Code) -> None:
    error = SdkError.answered("allocate", code, 0.25, "/x/libubsm_sdk.so", name="n", size=5)
    assert isinstance(error, ObmmError)
    assert error.code == code
    assert error.errno == ERRNO[code]
    assert error.operation == "allocate"
    assert error.elapsed == 0.25
    text = str(error)
    assert str(int(code)) in text
    assert c_name(code) in text
    assert "name='n'" in text
    assert "0.250 s" in text
    assert hint("allocate", code) in text
    assert len(hint("allocate", code)) > 20


@pytest.mark.parametrize(
    ("operation", "code", "words"),
    [
        ("initialize", 6015, "ubsmd"),
        ("allocate", 6010, "4 MiB"),
        ("map", 6010, "descriptor limit"),
        ("write_lock", 6010, "smaller than one unit"),
        ("map", 6011, "root has no override"),
        ("deallocate", 6011, "creator"),
        ("create_region", 6014, "byte by byte"),
        ("allocate", 6017, "retry in minutes"),
        ("allocate_with_provider", 6020, "cluster()"),
        ("lookup", 6020, "not attached on this node"),
        ("map", 6020, "list_objects"),
        ("allocate", 6021, "SharedObject.open"),
        ("map", 6021, "already registered"),
        ("deallocate", 6024, "unmap it everywhere"),
        ("lookup", 6040, "MXM_CHANNEL_TIMEOUT"),
        ("allocate", 6050, "128 MiB"),
        ("map", 6050, "provider"),
        ("unmap", 6050, "regions()"),
        ("map", 6051, "EPERM"),
        ("set_ownership", 6051, "obmm explain UPDATE_RANGE"),
        ("write_lock", 6060, "never wait"),
        ("write_lock", 6061, "never wait"),
        ("write_lock", 6062, "never wait"),
        ("map", 6099, "daemon's log"),
        ("map", 7777, "does not know"),
    ],
)
def test_section_13_hints(operation: str, code: int, words: str) -> None:
    assert words in hint(operation, code)


def test_section_13_table_has_a_text_for_every_code() -> None:
    assert {code for operation, code in HINTS if operation == ""} == set(Code) - {Code.OK}


def test_missing_library_is_one_error_that_names_what_was_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OBMM_SDK_LIBRARY", raising=False)
    with pytest.raises(SdkLibraryError) as caught:
        load()
    text = str(caught.value)
    assert "/usr/local/ubs_mem/lib/libubsm_sdk.so" in text
    assert "- libubsm_sdk.so:" in text
    assert "group `ubsmd`" in text
    assert "OBMM_SDK_LIBRARY" in text


def test_named_library_is_the_only_one_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OBMM_SDK_LIBRARY", "/nowhere/lib.so")
    with pytest.raises(SdkLibraryError, match="/nowhere: No such file") as caught:
        load()
    assert "/usr/local" not in str(caught.value)


def test_library_without_the_functions_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "libubsm_sdk.so"
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-xc", "-", "-o", path],
        input=b"int ubsmem_finalize(void) { return 0; }",
        check=True,
    )
    with pytest.raises(SdkLibraryError, match=r"lacks .*ubsmem_init_attributes"):
        load(path)


def test_standin_on_the_default_path_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "libfound.so"
    source = 'const char *ubsmem_standin_version(void) { return "test 1"; }\n'
    source += "\n".join(f"int {name}(void) {{ return 0; }}" for name in abi.FUNCTIONS)
    subprocess.run(["gcc", "-shared", "-fPIC", "-xc", "-", "-o", path], input=source.encode(), check=True)
    monkeypatch.delenv("OBMM_SDK_LIBRARY", raising=False)
    monkeypatch.setattr("obmm.sdk.library.INSTALLED", str(path))
    with pytest.raises(SdkLibraryError, match="stand-in"):
        load()
    library = load(path)
    assert library.kind == "stand-in"
    assert "stand-in" in repr(library)
    assert "(stand-in)" in str(library)


def test_optional_functions_may_be_missing(tmp_path: Path) -> None:
    from obmm.sdk.calls import Calls

    path = tmp_path / "libold.so"
    names = [name for name in abi.FUNCTIONS if name != "ubsmem_local_nid_query"]
    source = "\n".join(f"int {name}(void) {{ return 0; }}" for name in names)
    subprocess.run(["gcc", "-shared", "-fPIC", "-xc", "-", "-o", path], input=source.encode(), check=True)
    library = load(path)
    assert library.kind == "real"
    assert library.missing == {"ubsmem_local_nid_query"}
    assert "ubsmem_local_nid_query" in repr(library)
    with pytest.raises(SdkLibraryError, match="ubsmem_local_nid_query"):
        Calls(library).local_slot()


def test_unreadable_place_is_named(tmp_path: Path) -> None:
    path = tmp_path / "libubsm_sdk.so"
    path.write_bytes(b"no library")
    with pytest.raises(SdkLibraryError, match=r"libubsm_sdk\.so"):
        load(path)


@pytest.mark.parametrize("flags", range(0x80))
def test_section_4_2_flag_sets(flags: int) -> None:
    if flags in {0x0, 0x10, 0x1, 0x11, 0x2, 0x6, 0x12, 0x16, 0x8, 0xC, 0x18, 0x1C, 0x28, 0x2C, 0x38, 0x3C}:
        arguments.check_object("allocate", "x", 4 << 20, flags)
    else:
        with pytest.raises(SdkArgumentError, match="0x3c"):
            arguments.check_object("allocate", "x", 4 << 20, flags)


@pytest.mark.parametrize(
    ("size", "good"), [(0, False), ((4 << 20) - 1, True), ((4 << 20) + 1, False), (6 << 20, False), (8 << 20, True)]
)
def test_section_6_2_sizes_round_up_to_a_page_first(size: int, good: bool) -> None:
    if good:
        arguments.check_object("allocate", "x", size, 0)
    else:
        with pytest.raises(SdkArgumentError, match="multiple of 4 MiB"):
            arguments.check_object("allocate", "x", size, 0)


def test_section_9_lease_sizes_are_not_rounded() -> None:
    with pytest.raises(SdkArgumentError, match="4194304"):
        arguments.check_lease("lease_malloc", (4 << 20) - 1, 0)


def test_names_and_hosts() -> None:
    arguments.check_name("map", "x" * 47)
    for name in ("", "x" * 48, "a\0b"):
        with pytest.raises(SdkArgumentError, match=r"1\.\.47"):
            arguments.check_name("map", name)
    with pytest.raises(SdkArgumentError, match="1\\.\\.63"):
        arguments.check_host("allocate_with_provider", "x" * 64)
    with pytest.raises(SdkArgumentError) as caught:
        arguments.check_region("create_region", "default")
    assert caught.value.code == 6016
    with pytest.raises(SdkArgumentError, match="1 hosts"):
        arguments.check_hosts([RegionHost("a", True)])
    with pytest.raises(SdkArgumentError, match="affinity"):
        arguments.check_hosts([RegionHost("a"), RegionHost("b")])


def test_13_a_library_without_its_dependency_names_it(tmp_path: Path) -> None:
    """As `ldd` lists it, beside the folder's owner and mode."""
    needed, library = tmp_path / "libneeded-by-sdk.so", tmp_path / "libubsm_sdk.so"
    for path, more in ((needed, []), (library, [str(needed)])):
        command = [
            "gcc",
            "-shared",
            "-fPIC",
            "-Wl,--no-as-needed",
            f"-Wl,-soname,{path.name}",
            "-xc",
            "/dev/null",
            "-xnone",
        ]
        subprocess.run([*command, *more, "-o", str(path)], check=True)
    needed.unlink()
    with pytest.raises(SdkLibraryError) as refused:
        load(library)
    text = str(refused.value)
    assert "libneeded-by-sdk.so => not found" in text
    assert f"{tmp_path} is drwx" in text


def test_13_a_file_that_is_no_library_is_said_to_be_none(tmp_path: Path) -> None:
    path = tmp_path / "libubsm_sdk.so"
    path.write_text("text")
    with pytest.raises(SdkLibraryError, match="not a dynamic executable"):
        load(path)
