# SPDX-License-Identifier: Apache-2.0
"""The loopback smoke test in C, as `make smoke-c` builds it: libc only, one line per step, the reason of a failure."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

import obmm.emulator

ROOT = Path(__file__).resolve().parents[1]
STEPS = ["open", "export", "map", "write", "import", "map-import", "verify", "latency", "tear-down"]


@pytest.fixture(scope="module")
def program() -> Path:
    subprocess.run(["make", "-s", "-C", ROOT / "native", "FLAVOUR=plain", "smoke"], check=True, timeout=120)
    return ROOT / "build" / "c" / "plain" / "smoke"


@pytest.fixture(scope="module")
def device():
    with obmm.emulator.start(nodes=1) as fabric:
        yield fabric.device("a")


@pytest.fixture
def smoke(program, device):
    def run(*arguments: str, device: str = device) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "OBMM_DEVICE": device}
        return subprocess.run([program, *arguments], env=environment, text=True, capture_output=True, timeout=60)

    return run


def test_every_step_is_ok(smoke):
    done = smoke()
    assert done.returncode == 0, done.stdout
    assert [line.split()[:2] for line in done.stdout.splitlines()[1:-1]] == [[step, "ok"] for step in STEPS]


def test_the_backend_is_named_first_and_last(smoke, device):
    first, *_, last = smoke().stdout.splitlines()
    assert (f"backend {device}" in first, f"backend={device} " in last) == (True, True)


def test_emulated_figures_are_labelled(smoke):
    assert "no figure of any hardware" in smoke().stdout


def test_non_cacheable_on_both_sides(smoke):
    done = smoke("--nc")
    assert done.returncode == 0, done.stdout


def test_json_tells_every_step(smoke):
    report = json.loads(smoke("--json").stdout)
    assert (report["ok"], report["size"]) == (True, 4 << 20)
    assert [(step["step"], step["status"], step["errno"]) for step in report["steps"]] == [
        (step, "ok", None) for step in STEPS
    ]
    assert set(report["figures"]) == {"load_p50_ns", "load_p99_ns", "local_load_p50_ns", "local_load_p99_ns"}


def test_a_size_is_rounded_up_with_a_notice(smoke):
    report = json.loads(smoke("--json", "5000000").stdout)
    assert (report["ok"], report["size"]) == (True, 6 << 20)
    assert report["notices"] == ["5000000 bytes rounded up to 6291456, a multiple of the granule 2097152"]


def test_a_refused_export_explains_its_errno_and_leaves_nothing(smoke):
    done = smoke("1TiB")
    assert done.returncode == 1
    assert "EXPORT(size[0]=1099511627776, " in done.stdout
    assert "failed with ENOMEM (Cannot allocate memory)\n  - not enough contiguous memory" in done.stdout
    assert "tear-down   ok" in done.stdout


def test_json_names_the_errno_of_a_refusal(smoke):
    report = json.loads(smoke("--json", "1TiB").stdout)
    assert report["ok"] is False
    assert [(step["step"], step["errno"]) for step in report["steps"] if step["status"] == "FAILED"] == [
        ("export", "ENOMEM")
    ]


def test_a_failure_after_the_export_still_removes_it(smoke):
    # 2 MiB is RAM, never in a UB window
    report = json.loads(smoke("--json", "--window", "0x200000").stdout)
    assert [(step["step"], step["status"]) for step in report["steps"][-2:]] == [
        ("import", "FAILED"),
        ("tear-down", "ok"),
    ]
    assert "mem_id 1" in smoke().stdout.splitlines()[2]


@pytest.mark.skipif(os.path.exists("/dev/obmm"), reason="the driver is loaded here")
def test_no_driver_is_a_failure_with_its_fix(smoke):
    done = smoke(device="/dev/obmm")
    assert done.returncode == 1
    assert "OPEN(path=/dev/obmm) failed with ENOENT" in done.stdout
    assert "modprobe obmm" in done.stdout


def test_no_fabric_is_a_failure_with_its_fix(smoke):
    done = smoke(device="emulator:/nonexistent/fabric.sock")
    assert done.returncode == 1
    assert "OPEN(OBMM_DEVICE=emulator:/nonexistent/fabric.sock) failed with ENOENT" in done.stdout


@pytest.mark.parametrize(
    "arguments", [["0"], ["-1"], ["4X"], ["99999999T"], ["--window", "5"], ["--window", "x"], ["--what"], ["1", "2"]]
)
def test_a_wrong_argument_is_refused(smoke, arguments):
    done = smoke(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr


def test_a_device_that_is_none_is_refused(smoke):
    done = smoke(device="emulated")
    assert (done.returncode, done.stdout) == (2, "")
    assert "OBMM_DEVICE emulated: names no device" in done.stderr


@pytest.mark.skipif(shutil.which("ldd") is None, reason="needs ldd")
def test_it_links_to_libc_only(program):
    libraries = subprocess.run(["ldd", program], text=True, capture_output=True, check=True).stdout
    names = {Path(line.split()[0]).name.split(".")[0] for line in libraries.splitlines()}
    assert names - {"linux-vdso", "ld-linux-x86-64", "ld-linux-aarch64", "libpthread"} == {"libc"}
