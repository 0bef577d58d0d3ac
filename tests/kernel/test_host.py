# SPDX-License-Identifier: Apache-2.0
"""The host's side of the guests: verdicts that miss nothing, things that are whole or not there, one run at a time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from . import packages
from .machine import complaints


@pytest.mark.parametrize(
    "line",
    [
        "[   12.1] BUG: Bad page state in process python3  pfn:1a200",
        "[   12.1] BUG: unable to handle page fault for address: ffffea0008000034",
        "[   12.1] Huh VM_FAULT_OOM leaked out to the #PF handler. Retrying PF",
        "<4>[   12.1] Call Trace:",
        "[   12.1] Call trace:",
        "[   12.1] WARNING: CPU: 0 PID: 1 at mm/gup.c:1",
        "[   12.1] BUG: Bad rss-counter state mm:00000000 type:MM_FILEPAGES val:1",
        "[   12.1] VFS: Busy inodes after unmount of tmpfs. Self-destruct in 5 seconds.  Have a nice day...",
        "[   12.1] INFO: task python3:77 blocked for more than 120 seconds.",
        "[   12.1] refcount_t: underflow; use-after-free.",
    ],
)
def test_a_kernel_that_complains_has_failed_its_guest(line: str) -> None:
    assert complaints(f"== smoke\n{line}\r\nGUEST-RC=0\r\n") == [line]


def test_a_quiet_console_has_nothing_to_complain_of() -> None:
    console = (
        "== kernel_rules\n....\nRan 30 tests in 9.1s\nCASE m1-debug x86 EINVAL\nDeprecationWarning: old\nGUEST-RC=0\n"
    )
    assert complaints(console) == []


def test_what_was_interrupted_is_not_there(tmp_path: Path) -> None:
    target = tmp_path / "unpacked"
    with pytest.raises(KeyboardInterrupt), packages.whole(target) as beside:
        beside.mkdir()
        (beside / "half").touch()
        raise KeyboardInterrupt
    assert not target.exists()
    with packages.whole(target) as beside:
        beside.mkdir()
        (beside / "all").touch()
    assert [path.name for path in target.iterdir()] == ["all"]


def test_a_failed_second_making_leaves_the_first(tmp_path: Path) -> None:
    target = tmp_path / "module.ko"
    target.write_text("old")
    with pytest.raises(SystemExit), packages.whole(target) as beside:
        beside.write_text("half")
        raise SystemExit("the compiler failed")
    assert target.read_text() == "old"


def test_a_second_run_waits_for_the_first(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from tests.kernel.packages import one_run\n"
        "with one_run(Path(sys.argv[1])): print('in', flush=True)"
    )
    root = Path(__file__).resolve().parents[2]
    with packages.one_run(tmp_path):
        other = subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path)], cwd=root, stdout=subprocess.PIPE, text=True
        )
        assert other.stdout is not None
        assert other.stdout.readline().startswith("== waiting")
    assert other.communicate(timeout=60)[0] == "in\n"


def _program(folder: Path, name: str, text: str) -> None:
    place = folder / name
    place.write_text(f"#!/bin/sh\n{text}\n")
    place.chmod(0o755)


def test_the_lock_of_apt_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _program(
        tmp_path,
        "apt-get",
        f"[ -e {tmp_path}/free ] && echo done && exit 0\ntouch {tmp_path}/free\n"
        'echo "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 7 (apt-get)" >&2\nexit 100',
    )
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    assert packages.apt("apt-get", "update") == "done\n"


def test_another_failure_of_apt_is_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _program(tmp_path, "apt-get", 'echo "E: Unable to fetch some archives" >&2; exit 100')
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(SystemExit, match="Unable to fetch"):
        packages.apt("apt-get", "update")


def test_packages_that_the_archive_lacks_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _program(tmp_path, "apt-cache", 'echo "Package: busybox-static"; exit 100')
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    packages.require(["busybox-static"], ())
    with pytest.raises(SystemExit, match=r"no libssl3, python3\.11-minimal: guests are made"):
        packages.require(["busybox-static", "python3.11-minimal", "libssl3"], ())
