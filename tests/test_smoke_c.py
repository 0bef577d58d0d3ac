# SPDX-License-Identifier: Apache-2.0
"""The loopback smoke test in C, as `make smoke-c` builds it: libc only, one line per step, the reason of a failure."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import obmm.emulator
from obmm.emulator.program import environment

ROOT = Path(__file__).resolve().parents[1]
STEPS = ["open", "export", "map export", "write", "import", "map import", "verify", "load latency", "tear down"]


def build(flavour: str) -> Path:
    subprocess.run(["make", "-s", "-C", ROOT / "native", f"FLAVOUR={flavour}", "smoke"], check=True, timeout=120)
    return ROOT / "build" / "c" / flavour / "smoke"


@pytest.fixture(scope="module")
def program() -> Path:
    return build("plain")


@pytest.fixture(scope="module")
def device():
    with obmm.emulator.start(nodes=1) as fabric:
        yield fabric.device("a")


@pytest.fixture(scope="module")
def smoke(program, device):
    def run(*arguments: str, device: str = device) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "OBMM_DEVICE": device}
        return subprocess.run([program, *arguments], env=environment, text=True, capture_output=True, timeout=60)

    return run


@pytest.fixture(scope="module")
def lines(smoke) -> list[str]:
    """What a run without arguments says."""
    done = smoke()
    assert done.returncode == 0, done.stdout
    return done.stdout.splitlines()


def test_every_step_is_ok(lines):
    assert [re.split(r"  +", line)[:2] for line in lines[1:-1]] == [[step, "ok"] for step in STEPS]


def test_the_backend_is_named_first_and_last(lines, device):
    assert (f"backend {device}" in lines[0], f"backend={device} " in lines[-1]) == (True, True)


def test_emulated_figures_are_labelled(lines):
    assert "no figure of any hardware" in lines[1 + STEPS.index("load latency")]


def test_non_cacheable_on_both_sides(smoke):
    done = smoke("--nc")
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("arguments", [[], ["--nc"]])
def test_it_owns_what_it_touches_when_caches_are_modelled(smoke, arguments):
    with obmm.emulator.start(nodes=1, strict=True, seed=1) as fabric:
        done = smoke(*arguments, device=fabric.device("a"))
    assert done.returncode == 0, done.stdout


def test_json_tells_every_step(smoke):
    report = json.loads(smoke("--json").stdout)
    assert (report["result"], report["emulated"], report["size"]) == ("ok", True, 4 << 20)
    assert [(step["name"], step["status"], step["errno"]) for step in report["steps"]] == [
        (step, "ok", None) for step in STEPS
    ]
    assert 0 < report["latency_ns"] <= report["latency_p99_ns"]
    assert 0 < report["local_latency_ns"] <= report["local_latency_p99_ns"]


def test_a_size_is_rounded_up_with_a_notice(smoke):
    report = json.loads(smoke("--json", "5000000").stdout)
    assert (report["result"], report["size"]) == ("ok", 6 << 20)
    assert report["notices"] == ["5000000 bytes rounded up to 6291456, a multiple of the granule 2097152"]


def test_a_refused_export_explains_its_errno_and_leaves_nothing(smoke):
    done = smoke("1TiB")
    assert done.returncode == 1
    assert "EXPORT(size[0]=1099511627776, " in done.stdout
    assert "failed with ENOMEM (Cannot allocate memory)\n  - not enough contiguous memory" in done.stdout
    assert re.search("^tear down +ok", done.stdout, re.MULTILINE)


def test_json_names_the_errno_of_a_refusal(smoke):
    report = json.loads(smoke("--json", "1TiB").stdout)
    assert report["result"] == "failed"
    assert [(step["name"], step["errno"]) for step in report["steps"] if step["status"] == "failed"] == [
        ("export", "ENOMEM")
    ]


def test_a_failure_after_the_export_still_removes_it(smoke):
    # 2 MiB is RAM, never in a UB window
    report = json.loads(smoke("--json", "--window", "0x200000").stdout)
    assert [(step["name"], step["status"]) for step in report["steps"][-2:]] == [
        ("import", "failed"),
        ("tear down", "ok"),
    ]
    assert "mem_id 1" in smoke().stdout.splitlines()[2]


@pytest.fixture(scope="module")
def as_on_hardware(program, device):
    """The same program on the driver's own paths and calls, which the preload library answers."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [program, "--device", "/dev/obmm", *arguments]
        return subprocess.run(command, env=environment(device), text=True, capture_output=True, timeout=60)

    return run


def test_without_a_window_the_exporters_own_mapping_is_verified(as_on_hardware):
    report = json.loads(as_on_hardware("--json").stdout)
    assert (report["backend"], report["emulated"], report["result"]) == ("emulator behind /dev/obmm", True, "ok")
    steps = {step["name"]: step for step in report["steps"]}
    assert (steps["import"]["status"], steps["map import"]["status"]) == ("skipped", "skipped")
    assert "no window for loopback" in steps["import"]["text"]
    assert steps["verify"]["text"] == "256 words through the exporter's own mapping"


def test_a_window_that_leads_elsewhere_is_found_out(as_on_hardware):
    # the decoder was not programmed there
    report = json.loads(as_on_hardware("--json", "--window", "0x10000000000").stdout)
    assert report["result"] == "failed"
    steps = {step["name"]: step for step in report["steps"]}
    assert (steps["import"]["status"], steps["verify"]["status"]) == ("ok", "failed")
    assert "word 0: SIGBUS: no memory answers (decoder not programmed" in steps["verify"]["text"]
    assert steps["tear down"]["status"] == "ok"


@pytest.mark.skipif(os.path.exists("/dev/obmm"), reason="the driver is loaded here")
def test_no_driver_is_a_failure_with_its_fix(smoke):
    done = smoke(device="/dev/obmm")
    assert done.returncode == 1
    assert "OPEN(path=/dev/obmm) failed with ENOENT" in done.stdout
    assert "modprobe obmm" in done.stdout


def test_no_fabric_is_a_failure_with_its_fix(smoke):
    done = smoke(device="emulator:/nonexistent/fabric.sock")
    assert done.returncode == 1
    assert "OPEN(device=emulator:/nonexistent/fabric.sock) failed with ENOENT" in done.stdout


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
    assert "device emulated: names no device" in done.stderr


@pytest.mark.parametrize("flavour", ["asan", "tsan"])
def test_core_and_client_are_clean_under_sanitizers(flavour, device):
    environment = {**os.environ, "OBMM_DEVICE": device, "TSAN_OPTIONS": "halt_on_error=1"}
    done = subprocess.run([build(flavour)], env=environment, text=True, capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout


@pytest.mark.skipif(
    not (shutil.which("aarch64-linux-gnu-gcc") and shutil.which("qemu-aarch64")),
    reason="needs gcc-aarch64-linux-gnu and qemu-user",
)
def test_an_aarch64_client_gets_along_with_the_server(device):
    done = subprocess.run(
        ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu", build("aarch64")],
        env={**os.environ, "OBMM_DEVICE": device},
        text=True,
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("ldd") is None, reason="needs ldd")
def test_it_links_to_libc_only(program):
    libraries = subprocess.run(["ldd", program], text=True, capture_output=True, check=True).stdout
    names = {Path(line.split()[0]).name.split(".")[0] for line in libraries.splitlines()}
    assert names - {"linux-vdso", "ld-linux-x86-64", "ld-linux-aarch64", "libpthread"} == {"libc"}
