# SPDX-License-Identifier: Apache-2.0
"""What a user installs: built from the source distribution, looked into, installed into a fresh environment."""

import email
import platform
import runpy
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).resolve().parents[1]


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run([str(part) for part in command], cwd=cwd, text=True, capture_output=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    tmp = tmp_path_factory.mktemp("packaging")
    # a copy: what an earlier build left in the tree must not slip in, nor this build disturb it
    tree = shutil.copytree(
        ROOT, tmp / "tree", ignore=shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "*.so", "__pycache__")
    )
    run(sys.executable, "setup.py", "-q", "sdist", "-d", tmp, cwd=tree)
    (sdist,) = tmp.glob("obmm-*.tar.gz")
    run(*(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", tmp, sdist), cwd=tmp)
    (built,) = tmp.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def files(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return {PurePosixPath(name) for name in archive.namelist()}


@pytest.fixture(scope="module")
def metadata(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


def test_the_wheel_is_abi3_for_cpython_3_11_and_later(wheel):
    tag = wheel.stem.split("-", 2)[2]
    assert tag == f"cp311-abi3-linux_{platform.machine()}"


def test_the_native_module_is_abi3(files):
    assert [str(name) for name in files if name.suffix == ".so" and name.stem.startswith("_native")] == [
        "obmm/_native.abi3.so"
    ]


def test_obmm_is_the_only_top_level_package(files, metadata):
    assert {name.parts[0] for name in files} == {"obmm", f"obmm-{metadata['Version']}.dist-info"}


def test_every_package_of_the_tree_is_installed(files):
    in_tree = {str(init.parent.relative_to(ROOT)) for init in ROOT.glob("obmm/**/__init__.py")}
    in_tree |= {f"obmm/{init.parent.relative_to(ROOT)}" for init in ROOT.glob("bench/**/__init__.py")}
    assert {str(name.parent) for name in files if name.name == "__init__.py"} == in_tree


def test_no_c_source_is_installed_but_the_benchmarks_baselines(files):
    # naive loops to compare with, compiled where they run
    assert {str(name.parent) for name in files if name.suffix in {".c", ".h"}} == {"obmm/bench"}


def test_type_checkers_find_our_types(files):
    assert PurePosixPath("obmm/py.typed") in files


def test_the_licence_is_apache(files, metadata):
    assert metadata["License-Expression"] == "Apache-2.0"
    assert any(name.name == "LICENSE" for name in files)


def test_the_core_needs_cffi_and_numpy_only(metadata):
    core = [line for line in metadata.get_all("Requires-Dist") if "extra ==" not in line]
    assert sorted(line.split(">=")[0] for line in core) == ["cffi", "numpy"]


def test_a_fresh_environment_imports_what_was_installed(wheel, tmp_path):
    venv.create(tmp_path / "env", with_pip=False, symlinks=True)
    python = tmp_path / "env" / "bin" / "python"
    run(
        *(sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", "--no-index", wheel),
        cwd=tmp_path,
    )
    # the dependencies come from here: after the environment's own packages, so that obmm is the wheel's
    (site,) = (tmp_path / "env").glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    report = run(
        *(python, "-I", "-c", "import obmm._native, obmm.abi, obmm.bench; print(obmm.__file__, obmm._native.__file__)"),
        cwd=tmp_path,
    )
    assert [Path(name).is_relative_to(site) for name in report.split()] == [True, True]
    assert (python.parent / "obmm").exists()


@pytest.mark.skipif(shutil.which("aarch64-linux-gnu-gcc") is None, reason="needs gcc-aarch64-linux-gnu")
def test_the_binding_agrees_with_the_c_headers_on_aarch64(tmp_path):
    # cffi's generated C checks every declaration; CPython's headers for LP64 serve both
    source = tmp_path / "native.c"
    build = runpy.run_path(str(ROOT / "native" / "ffi" / "build.py"))
    build["ffibuilder"].emit_c_code(str(source))
    run(
        *("aarch64-linux-gnu-gcc", "-std=gnu11", "-fsyntax-only", "-Wall", "-Wextra", "-Werror"),
        *("-Wno-address-of-packed-member", "-Wno-unused-parameter", "-Wno-missing-field-initializers"),
        *("-D_GNU_SOURCE", "-DPy_LIMITED_API=0x030b0000", f"-I{ROOT / 'native'}"),
        *(f"-I{sysconfig.get_path('include')}", source),
        cwd=tmp_path,
    )
