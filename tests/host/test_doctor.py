# SPDX-License-Identifier: Apache-2.0
"""`obmm doctor`: on emulated nodes with injected faults, and on trees made for the purpose."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import resource
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import obmm
from obmm import Backend, emulator
from obmm.cli.main import main
from obmm.driver import abi
from obmm.host import doctor, inventory
from obmm.host import machine as doctor_machine
from obmm.host.check import Check

MIB = 1 << 20


@pytest.fixture(scope="module")
def running():
    with emulator.start(nodes=1) as fabric:
        yield fabric


@pytest.fixture
def fabric(running):
    yield running
    running.inject(0, "reset")


def checks(backend: Backend, **options) -> dict[str, Check]:
    return {check.name: check for check in doctor.diagnose(backend, **options)}


def tree(root: Path, **files: str) -> str:
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(root)


# --- on an emulated node ----------------------------------------------------------------------------------------------


def test_a_healthy_node_has_no_error_and_is_said_to_be_emulated(fabric):
    found = checks(Backend.parse(fabric.device()))
    assert {check.status for check in found.values()} <= {"ok", "skipped"}
    assert "emulated" in found["backend"].text
    assert "CNA 0x40a" in found["controllers"].text


def test_the_report_has_no_side_effect(fabric):
    before = fabric.status()["nodes"]
    files = {path: path.read_bytes() for path in fabric.root().rglob("*") if path.is_file()}
    checks(Backend.parse(fabric.device()))
    after = fabric.status()["nodes"]
    assert {node: state["regions"] for node, state in before.items()} == {
        node: state["regions"] for node, state in after.items()
    }
    assert {path: path.read_bytes() for path in fabric.root().rglob("*") if path.is_file()} == files


@pytest.mark.parametrize(
    ("number", "text", "fix"),
    [
        (errno.EACCES, "EACCES", "open-broker"),
        (errno.EPERM, "device cgroup", "--device /dev/obmm"),
        (errno.ENXIO, "without a driver behind it", "load the module"),
    ],
)
def test_every_refusal_of_the_control_node_is_told_apart(fabric, number, text, fix):
    fabric.inject(0, "open-error", value=number)
    found = checks(Backend.parse(fabric.device()))
    assert found["control node"].status == "error"
    assert text in found["control node"].text
    assert fix in found["control node"].fix
    assert found["interface"].status == "skipped"


def test_D1_a_closed_gate_is_found():
    with emulator.start(nodes=1) as fabric:
        fabric.inject(0, "gate-closed")
        found = checks(Backend.parse(fabric.device()))
        assert found["interface"].status == "error"
        assert "D1" in found["interface"].text
        assert "firmware" in found["interface"].fix


def test_an_absent_module_is_found():
    with emulator.start(nodes=1) as fabric:
        fabric.inject(0, "module-absent")
        found = checks(Backend.parse(fabric.device()))
        assert found["module"].status == "error"
        assert found["control node"].status == "error"
        assert "ENOENT" in found["control node"].text
        assert "modprobe" in found["module"].fix


def test_no_fabric_is_one_error(tmp_path):
    (only,) = doctor.diagnose(Backend(socket=str(tmp_path / "none.sock")))
    assert (only.name, only.status) == ("backend", "error")
    assert "obmm emulate up" in only.text


ABANDON = """
import sys, obmm
region = obmm.open(sys.argv[1]).export_region(1 << 20, label="left")
print(region.mem_id, flush=True)
input()
"""


@pytest.fixture
def unused():
    """A fabric that no other test has left anything in."""
    with emulator.start(nodes=1) as fabric:
        yield fabric


def test_leftovers_of_the_dead_are_counted(unused):
    fabric = unused
    child = subprocess.Popen(
        [sys.executable, "-c", ABANDON, fabric.device()], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    mem_id = int(child.stdout.readline())
    assert checks(Backend.parse(fabric.device()))["leftovers"].status == "ok"
    child.send_signal(signal.SIGKILL)
    child.communicate()
    found = checks(Backend.parse(fabric.device()))["leftovers"]
    assert found.status == "warning"
    assert "2 MiB" in found.text
    assert "obmm gc" in found.fix
    with obmm.open(fabric.device()) as device:
        device.driver.unexport(mem_id)


def test_json_and_exit_status(fabric):
    result = CliRunner().invoke(main, ["doctor", "--json", "--device", fabric.device()])
    report = json.loads(result.stdout)
    assert result.exit_code == 0
    assert report["emulated"] is True
    assert report["verdict"] == "ok"
    assert {"name", "status", "text", "fix"} == set(report["checks"][0])
    fabric.inject(0, "open-error", value=errno.EACCES)
    result = CliRunner().invoke(main, ["doctor", "--device", fabric.device()])
    assert result.exit_code == 1
    assert "fix:" in result.output


# --- the probe of driver specification 20 -----------------------------------------------------------------------------


def answering(**answers: int):
    asked = []

    def ioctl(request, buffer):
        asked.append(int(request))
        assert buffer.mem_id == 0
        return -answers["new" if request == abi.Request.ADDR_QUERY else "old"]

    return ioctl, asked


@pytest.mark.parametrize(
    ("answers", "status", "text", "calls"),
    [
        ({"new": errno.ENOENT}, "ok", "November 2025", 1),
        ({"new": errno.EOPNOTSUPP}, "error", "D1", 1),
        ({"new": errno.ENOTTY, "old": errno.ENOENT}, "error", "2023", 2),
        ({"new": errno.ENOTTY, "old": errno.EINVAL}, "error", "2023", 2),
        ({"new": errno.ENOTTY, "old": errno.ENOTTY}, "error", "another generation", 2),
        ({"new": errno.EIO}, "error", "EIO", 1),
        ({"new": 0}, "error", "success", 1),
    ],
)
def test_the_interface_is_probed_once_and_without_effect(answers, status, text, calls):
    ioctl, asked = answering(**answers)
    check = doctor.check_interface(ioctl)
    assert check.status == status
    assert text in check.text
    assert len(asked) == calls
    assert set(asked) <= {0xC0207804, 0x00007804}


# --- on trees made for the purpose ------------------------------------------------------------------------------------


def test_EACCES_names_path_owner_mode_and_our_groups(tmp_path):
    node = tmp_path / "obmm"
    node.touch(mode=0o600)
    check = doctor.check_control_node(str(node), -errno.EACCES)
    for part in (str(node), f"owner {os.getuid()}:", "mode 0600", "we are", "in groups"):
        assert part in check.text


def test_EPERM_with_mode_bits_that_forbid_it_is_no_cgroup(tmp_path):
    node = tmp_path / "obmm"
    node.touch(mode=0o000)
    if os.geteuid() == 0:
        text = as_nobody(
            f"from obmm.host import doctor; print(doctor.check_control_node({str(node)!r}, -1).text)", tmp_path
        )
    else:
        text = doctor.check_control_node(str(node), -errno.EPERM).text
    assert "EPERM" in text
    assert "cgroup" not in text


@pytest.mark.parametrize(
    ("text", "status", "part"),
    [
        ("0xf\nborrow_nc+\nborrow_cc+\nshare_nc-\nshare_cc-\n", "ok", "borrow_nc, borrow_cc"),
        ("0x0\nborrow_nc-\n", "error", "no feature"),
        ("on\n", "warning", "not a mask"),
        ("", "warning", "not a mask"),
    ],
)
def test_feature_mask(tmp_path, text, status, part):
    check = doctor.check_features(tree(tmp_path, sys__bus__ub__ub_feature=text))
    assert check.status == status
    assert part in check.text


def test_no_feature_source_means_all_features(tmp_path):
    assert doctor.check_features(str(tmp_path)).status == "ok"


def test_skipped_cache_maintenance_is_a_warning(tmp_path):
    root = tree(tmp_path, sys__module__obmm__parameters__skip_cache_maintain="Y\n")
    found = {check.name: check for check in doctor.check_parameters(root)}
    assert found["cache maintenance"].status == "warning"


def test_X14_a_coarser_ummu_than_the_memseg_is_an_error(tmp_path):
    files = {"sys__module__obmm__parameters__mem_allocator_granu": "2M\n"}
    for power, status in ((0, None), (1, "error")):
        root = tree(tmp_path, **files, sys__module__ummu__parameters__ubm_granule=f"{power}\n")
        found = {check.name: check for check in doctor.check_parameters(root)}
        assert (found["UMMU granule"].status if "UMMU granule" in found else None) == status


def controller(root: Path, index: int, **files: str) -> Path:
    folder = root / f"sys/devices/ub_bus_controller{index}/00001"
    folder.mkdir(parents=True)
    for name, text in (
        {"ubc": "0x1", "eid": "18", "primary_cna": "0x040a", "ummu_map": "0x00", "numa": "0x00"} | files
    ).items():
        if text is not None:
            (folder / name).write_text(text + "\n")
    return folder


@pytest.mark.parametrize(
    ("files", "text"),
    [
        ({"primary_cna": "0x0000"}, "CNA or EID 0"),
        ({"eid": "0"}, "CNA or EID 0"),
        ({"eid": "abc"}, "eid says 'abc'"),
        ({"ummu_map": "0x40"}, "ummu_map says 0x40"),
        ({"primary_cna": None}, "primary_cna"),
        ({"numa": None}, "no NUMA node"),
    ],
)
def test_a_broken_controller_is_named_with_its_file(tmp_path, files, text):
    controller(tmp_path, 0, **files)
    errors = [check for check in doctor.check_controllers(str(tmp_path)) if check.status == "error"]
    assert len(errors) == 1
    assert text in errors[0].text


def test_no_controller_and_twins(tmp_path):
    (none,) = doctor.check_controllers(str(tmp_path))
    assert none.status == "error"
    controller(tmp_path, 0)
    controller(tmp_path, 1)
    assert "same CNA" in list(doctor.check_controllers(str(tmp_path)))[-1].text


def test_windows_say_which_provider_is_active(tmp_path):
    assert doctor.check_windows(Backend(), {}).status == "warning"
    assert "emulator" in doctor.check_windows(Backend(socket="/x"), {}).text
    table = tmp_path / "w.toml"
    table.write_text('[[window]]\naddress=0xa0000000\nlength="2MiB"\ncache="cc"\nlocal_cna=1\nowner_cna=2\n')
    table.chmod(0o600)
    check = doctor.check_windows(Backend(), {"OBMM_WINDOWS": str(table)})
    assert (check.status, f"static {table}: 1 windows" in check.text) == ("ok", True)
    table.chmod(0o644)
    assert "chmod 0600" in doctor.check_windows(Backend(), {"OBMM_WINDOWS": str(table)}).text
    assert doctor.check_windows(Backend(), {"OBMM_WINDOWS": "/none"}).status == "error"


def test_boot_parameters(tmp_path):
    line = tmp_path / "cmdline"
    line.write_text("root=/dev/sda pmd_mapping=30% numa_remote=preonline,8\n")
    assert "pmd_mapping=30%, numa_remote=preonline,8" in doctor.check_boot_parameters(line).text
    line.write_text("root=/dev/sda\n")
    assert doctor.check_boot_parameters(line).status == "warning"


def test_pools_that_are_empty_warn(tmp_path):
    names = ("total", "used", "available_cleared")
    files = {f"sys__kernel__obmm_mempool__obmm-0__{name}": "0x0\n" for name in names}
    assert doctor.check_pools(tree(tmp_path, **files)).status == "warning"
    assert doctor.check_pools(str(tmp_path / "none")).status == "skipped"


def as_nobody(code: str, readable: Path) -> str:
    """Run `code` as a user without any privilege that may enter `readable`."""
    for folder in (readable, *readable.parents):
        if folder.owner() == "root" and folder != Path("/tmp") and folder != Path("/"):
            folder.chmod(stat.S_IMODE(folder.stat().st_mode) | 0o011)
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import os; from obmm.host import doctor; os.setgid(65534); os.setgroups([]); os.setuid(65534)\n{code}",
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become nobody")
def test_without_root_what_may_be_read_is_read_and_the_rest_is_skipped(tmp_path):
    root = Path(tree(tmp_path, sys__module__obmm__parameters__skip_cache_maintain="N\n"))
    controller(root, 0)
    for name in ("sys/module/obmm/parameters/mempool_size", "sys/kernel/obmm_mempool/obmm-0/total",
                 "sys/devices/obmm/obmm_shmdev1/type", "dev/obmm_shmdev1"):  # fmt: skip
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o400)
    out = as_nobody(
        f"""
root = {str(root)!r}
for check in (*doctor.check_parameters(root), doctor.check_pools(root), *doctor.check_controllers(root),
              doctor.check_leftovers(root), doctor.check_region_nodes(root)):
    print(check.name, check.status, sep="=")
""",
        tmp_path,
    )
    assert out.splitlines() == [
        "parameters=skipped",
        "pools=skipped",
        "controllers=ok",
        "leftovers=skipped",
        "region nodes=warning",
    ]


# --- the machine ------------------------------------------------------------------------------------------------------


def test_machine_limits(tmp_path):
    root = tree(tmp_path, proc__sys__vm__max_map_count="1000\n")
    assert doctor_machine.check_map_count(root).status == "warning"
    assert doctor_machine.check_descriptors(256).status == "warning"
    assert doctor_machine.check_descriptors(resource.RLIM_INFINITY).status == "ok"
    assert doctor_machine.check_process(4).status == "error"
    assert doctor_machine.check_process(8, 65536).status == "error"


def test_huge_pages_and_numa_nodes(tmp_path):
    pages = "sys__kernel__mm__hugepages__hugepages-2048kB__"
    root = tree(
        tmp_path,
        **{f"{pages}nr_hugepages": "8\n", f"{pages}free_hugepages": "3\n"},
        sys__devices__system__node__node0__cpulist="0-3\n",
        sys__devices__system__node__node4__cpulist="\n",
    )
    assert "3 of 8" in doctor_machine.check_huge_pages(root).text
    assert "nodes 0, 4; without CPUs (remote or memory only): 4" in doctor_machine.check_numa(root).text


def test_the_hash_seed_is_mentioned():
    assert "not set" in doctor_machine.check_hash_seed({}).text
    assert "42" in doctor_machine.check_hash_seed({"PYTHONHASHSEED": "42"}).text


def test_every_check_that_is_not_ok_has_a_fix(tmp_path):
    for check in (
        doctor.check_module(str(tmp_path)),
        *doctor.check_controllers(str(tmp_path)),
        *(doctor.check_control_node("/nowhere", -number) for number in (1, 2, 5, 6, 13, 19, 95)),
        *(doctor.check_interface(lambda *_, n=n: -n) for n in (5, 25, 95)),
    ):
        assert check.status == "error"
        assert len(check.fix) > 10


# --- does ownership do anything? --------------------------------------------------------------------------------------


def test_the_ownership_probe_tells_working_builds_from_those_of_may_2026(fabric):
    before = fabric.status()["nodes"]["a"]["regions"]
    with obmm.open(fabric.device()) as device:
        assert device.ownership_takes_effect()
        fabric.inject(0, "range-ineffective", value=1)
        assert not device.ownership_takes_effect()
        assert device.regions == ()
    assert fabric.status()["nodes"]["a"]["regions"] == before


def test_doctor_probes_ownership_only_when_asked(fabric):
    fabric.inject(0, "range-ineffective", value=1)
    plain = CliRunner().invoke(main, ["doctor", "--device", fabric.device()])
    probed = CliRunner().invoke(main, ["doctor", "--probe", "--device", fabric.device()])
    assert (plain.exit_code, probed.exit_code) == (0, 1)
    assert "a store without the right went through" in probed.output
    fabric.inject(0, "reset")
    assert "take effect" in CliRunner().invoke(main, ["doctor", "--probe", "--device", fabric.device()]).output


def test_a_refused_probe_is_an_error_with_the_drivers_reason(fabric):
    fabric.inject(0, "no-ids", value=1)
    result = CliRunner().invoke(main, ["doctor", "--probe", "--device", fabric.device()])
    assert result.exit_code == 1
    assert "ENOSPC" in result.output


def test_files_that_no_driver_writes_break_neither_doctor_nor_ls_nor_gc(fabric):
    """Every file of a node's tree, emptied, cut, scrambled, out of range, or a folder: words, never a traceback."""
    rng = random.Random(5)
    with obmm.open(fabric.device("a")) as device, device.export_region(1 << 20):
        files = sorted(path for path in Path(device.root).rglob("*") if path.is_file())
        for path in rng.sample(files, min(len(files), 40)):
            before, mode = path.read_bytes(), path.stat().st_mode
            path.unlink()
            for content in (b"", before[: len(before) // 2], rng.randbytes(50), b"9" * 20, b"-1", None):
                if content is None:
                    path.unlink()
                    path.mkdir()
                else:
                    path.write_bytes(content)
                names = [check.name for check in doctor.diagnose(Backend.parse(fabric.device("a")), users=dict)]
                assert names[-1] == "PYTHONHASHSEED", path
                with contextlib.suppress(OSError, ValueError):
                    inventory.regions(device.root, dict)
            path.rmdir()
            path.write_bytes(before)
            path.chmod(mode)
        assert len(inventory.regions(device.root, dict)) == 1


def test_a_region_of_an_unknown_type_is_never_taken_for_an_import(tmp_path):
    folder = tmp_path / "sys/devices/obmm/obmm_shmdev7"
    folder.mkdir(parents=True)
    (folder / "type").write_text("preimport\n")
    (folder / "priv").write_bytes(b"")
    with pytest.raises(ValueError, match="unknown type 'preimport'"):
        inventory.regions(str(tmp_path), dict)
