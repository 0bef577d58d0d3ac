# SPDX-License-Identifier: Apache-2.0
"""Finding the library, and telling what it is (URMA specification 2, 4.7, 10; conformance list 37, 39)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from obmm import urma
from obmm.urma import library as loading
from obmm.urma.abi import FUNCTIONS
from obmm.urma.standin import LIBRARY, StandIn


def built(folder: Path, functions: list[str]) -> Path:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    file = folder / "liburma.so.0"
    source = "\n".join(f"int {name}(void) {{ return 22; }}" for name in functions)
    subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", file], input=source, text=True, check=True)
    return file


@pytest.fixture
def nothing_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "_loaded", {})


def test_no_library_is_told_with_every_place() -> None:
    """In a process of its own: a stand-in that is loaded here has the name that the loader looks for."""
    program = "from obmm import urma\ntry: urma.load()\nexcept urma.UrmaLibraryError as error: print(error)"
    environment = {name: value for name, value in os.environ.items() if name != loading.ENVIRONMENT}
    told = subprocess.run(
        [sys.executable, "-P", "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert all(part in told.stdout for part in (loading.INSTALLED, loading.BARE, "StandIn", loading.ENVIRONMENT))


def test_a_file_that_is_no_library(tmp_path: Path, nothing_loaded: None) -> None:
    file = tmp_path / "liburma.so.0"
    file.write_text("nothing")
    with pytest.raises(urma.UrmaLibraryError, match="providers in"):
        urma.load(file)


def test_a_library_that_lacks_a_function(tmp_path: Path, nothing_loaded: None) -> None:
    with pytest.raises(urma.UrmaLibraryError, match=r"it lacks urma_read$"):
        urma.load(built(tmp_path, [name for name in FUNCTIONS if name != "urma_read"]))


@pytest.mark.parametrize(
    ("extra", "profile"), [([], "A"), (["urma_alloc_jfs", "urma_get_seg_ctx"], "C"), (["urma_alloc_jfs"], None)]
)
def test_the_profile_is_told_by_symbols(
    tmp_path: Path, nothing_loaded: None, extra: list[str], profile: str | None
) -> None:
    file = built(tmp_path, [*FUNCTIONS, *extra])
    if profile is None:
        with pytest.raises(urma.UrmaLibraryError, match="profile M"):
            urma.load(file)
        return
    found = urma.load(file)
    assert (found.profile, found.kind, found.standin, found.counters()) == (profile, "real", None, None)


def test_a_forced_profile(tmp_path: Path, nothing_loaded: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(loading.FORCED_ABI, "C")
    assert urma.load(built(tmp_path, [*FUNCTIONS, "urma_alloc_jfs"])).profile == "C"


def test_a_stand_in_is_only_taken_by_its_name(monkeypatch: pytest.MonkeyPatch, nothing_loaded: None) -> None:
    monkeypatch.delenv(loading.ENVIRONMENT, raising=False)
    monkeypatch.setattr(loading, "INSTALLED", LIBRARY)
    with pytest.raises(urma.UrmaLibraryError, match="never taken by itself"):
        urma.load()
    found = urma.load(LIBRARY)
    assert (found.kind, found.profile) == ("stand-in", "C")
    assert "stand-in" in str(found)


def test_the_real_library_and_the_stand_in_are_never_in_one_process(tmp_path: Path, nothing_loaded: None) -> None:
    urma.load(LIBRARY)
    with pytest.raises(urma.UrmaLibraryError, match="same so-name"):
        urma.load(built(tmp_path, list(FUNCTIONS)))


def test_a_device_that_is_not_there_is_explained(library: urma.Library) -> None:
    with pytest.raises(urma.UrmaError, match="/sys/class/ubcore"):
        urma.Context("udma9", library=library)


def test_a_stand_in_that_is_gone_is_explained(library: urma.Library, monkeypatch: pytest.MonkeyPatch) -> None:
    with StandIn() as other:
        monkeypatch.setenv("OBMM_URMA_STANDIN", other.folder)
    with pytest.raises(urma.UrmaError, match="OBMM_URMA_STANDIN names no folder"):
        urma.Context(library=library)


def test_transport_priority_and_limits(context: urma.Context) -> None:
    assert [
        (context.queue(transport=t).priority, context.queue(transport=t).priority_guessed) for t in ("ctp", "rtp")
    ] == [
        (6, False),
        (15, False),
    ]
    for bad in ({"depth": 0}, {"depth": 1 << 20}, {"list_max": 9000}, {"transport": "utp"}):
        with pytest.raises(urma.UrmaArgumentError):
            context.queue(**bad)  # type: ignore[arg-type]
