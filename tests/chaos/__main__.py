# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.chaos --seconds 3600 [--seed N]``: lives until the time is over or a promise is broken.

After each life nothing may be left in the fabric but what a killed process could not give back, and that can be removed.
A failure prints the seed that repeats it: ``--seed N --lives 1``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import obmm
from obmm import emulator
from obmm.region.device import Device

HANGS_AFTER = 90.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=None, help="of the first life; the next ones count on")
    parser.add_argument("--lives", type=int, default=1 << 30, help="at most so many")
    parser.add_argument("--life", type=float, default=4.0, help="seconds of one life")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at the first broken promise")
    options = parser.parse_args()
    seed = int(time.time()) if options.seed is None else options.seed
    end, broken, lives, operations = time.monotonic() + options.seconds, 0, 0, 0
    with tempfile.TemporaryDirectory(prefix="obmm-chaos-") as folder:
        while time.monotonic() < end and lives < options.lives:
            problem, done = one(seed, Path(folder), options.life)
            lives, operations = lives + 1, operations + done
            if problem:
                broken += 1
                print(f"\nseed {seed} broke a promise:\n{problem}\n", flush=True)
                print(f"again: python -m tests.chaos --seed {seed} --lives 1", flush=True)
                if not options.keep_going:
                    break
            elif sys.stdout.isatty() or lives % 20 == 0:
                print(f"{lives} lives, {operations} operations, {broken} broken promises", flush=True)
            seed += 1
    print(json.dumps({"lives": lives, "operations": operations, "broken": broken, "next_seed": seed}), flush=True)
    return 1 if broken else 0


def one(seed: int, folder: Path, seconds: float) -> tuple[str, int]:
    """One life in a fabric of its own -> (what was broken, operations)."""
    rng = random.Random(f"{seed}-outside")
    words = folder / "stderr"  # a file: all of it is kept, and no pipe that fills up stops a life
    with emulator.start(nodes=2) as fabric, words.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.life", str(seed), fabric.socket, str(folder), str(seconds)],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYTHONFAULTHANDLER": ""},
        )
        killed = False
        while rng.random() < 0.5:  # a stop, so that leases run out; or an end
            try:
                process.wait(rng.random() * seconds)
                break
            except subprocess.TimeoutExpired:
                pass
            if rng.random() < 0.3:
                process.kill()
                killed = True
                break
            process.send_signal(signal.SIGSTOP)
            time.sleep(rng.random())
            process.send_signal(signal.SIGCONT)
        try:
            out, _ = process.communicate(timeout=HANGS_AFTER)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGUSR1)
            time.sleep(2)
            process.kill()
            process.communicate()
            end_session(process.pid)
            return f"it hangs\n{words.read_text(errors='replace')}", 0
        end_session(process.pid)
        if process.returncode not in ((0, -9) if killed else (0,)):
            return f"it ended with {process.returncode}\n{words.read_text(errors='replace')}", 0
        problem = leftovers(fabric)
        said = out.split()
        return (f"{problem}\n{words.read_text(errors='replace')}" if problem else ""), int(said[0]) if said else 0


def end_session(session: int) -> None:
    """Kill the children of a life, and wait until they are gone: one that had just begun would export after the count."""
    while children := [pid for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))) if in_session(pid, session)]:
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        time.sleep(0.01)


def in_session(pid: int, session: int) -> bool:
    """Whether it lives, in that session."""
    try:
        state, _, _, of = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[:4]
    except OSError:
        return False
    return int(of) == session and state != "Z"


def leftovers(fabric: emulator.Fabric) -> str:
    """What is wrong in the fabric after a life, killed or not."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        nodes = fabric.status()["nodes"]
        if not any(node["open_files"] for node in nodes.values()):
            break
        time.sleep(0.02)
    else:
        return f"files are open without an owner: {nodes}"
    if fabric.status()["internal_errors"]:
        return "the fabric had an internal error"
    for name, node in fabric.status()["nodes"].items():
        with obmm.open(fabric.device(name)) as device:
            for region in node["regions"]:
                remove(device, region)
    fabric.check()
    left = {name: node["regions"] for name, node in fabric.status()["nodes"].items() if node["regions"]}
    return f"regions that cannot be removed: {left}" if left else ""


def remove(device: Device, region: dict[str, object]) -> None:
    """As ``obmm gc`` does with what the dead left."""
    call = device.driver.unexport if region["kind"] == "export" else device.driver.unimport
    call(int(str(region["mem_id"])))


if __name__ == "__main__":
    sys.exit(main())
