# SPDX-License-Identifier: Apache-2.0
"""One guest under QEMU: its console, its verdict, its end."""

from __future__ import annotations

import atexit
import os
import re
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .architecture import Architecture

#: The last line of a guest that ran to its end.  QEMU's own status says nothing: it is 0 after a panic too.
VERDICT = re.compile(r"^GUEST-RC=(\d+)\s*$", re.MULTILINE)

#: What a kernel says when something went wrong that did not stop it.
COMPLAINT = re.compile(
    r"BUG:|Bad page|Bad rss-counter|leaked out|Call [Tt]race|WARNING: |Oops|refcount_t: |"
    r"Busy inodes after unmount|blocked for more than \d+ seconds|general protection|Unable to handle kernel|"
    r"detected stalls|self-detected stall"
)


def complaints(console: str) -> list[str]:
    """The lines of a console by which a guest has failed, whatever its last line says."""
    return [line.strip() for line in console.splitlines() if COMPLAINT.search(line)]


@dataclass(frozen=True)
class Boot:
    """What guests of an architecture boot, and the folder for their consoles."""

    architecture: Architecture
    folder: Path
    kernel: Path
    initramfs: Path


class Machine:
    """A guest.  `run` words reach it on the kernel's command line as ``obmm.run=``."""

    def __init__(
        self,
        boot: Boot,
        run: str,
        console: str = "console",
        devices: Sequence[str] = (),
        memory_mib: int = 768,
        cpus: str = "1",
        core: int | None = None,
        limit_s: float = 600.0,
    ) -> None:
        self.console = boot.folder / f"{console}.log"
        self.console.unlink(missing_ok=True)
        words = f"{boot.architecture.cmdline} quiet panic=-1 panic_on_warn=1 obmm.run={run}"
        command = [
            *boot.architecture.qemu, "-nodefaults", "-no-user-config", "-accel", "tcg,thread=multi",
            "-m", str(memory_mib), "-smp", cpus, "-display", "none", "-serial", f"file:{self.console}",
            "-no-reboot", "-kernel", str(boot.kernel), "-initrd", str(boot.initramfs), "-append", words, *devices,
        ]  # fmt: skip
        if core is not None:
            command = ["taskset", "-c", str(core), *command]
        # whatever happens to this program, the guest ends
        command = ["timeout", "-k", "5", f"{limit_s:.0f}", *command]
        self._started = time.monotonic()
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
        )
        atexit.register(self.kill)

    @property
    def text(self) -> str:
        return self.console.read_text(errors="replace") if self.console.exists() else ""

    def wait_for(self, words: str, timeout: float) -> bool:
        """Until the console shows `words`, the guest ends, or `timeout` seconds are over."""
        until = time.monotonic() + timeout
        while time.monotonic() < until:
            if words in self.text:
                return True
            if self._process.poll() is not None:
                return words in self.text
            time.sleep(0.05)
        return False

    def finish(self, timeout: float) -> int | None:
        """The guest's own verdict; None when it gave none (a panic, a hang, a kill) or when its kernel complained."""
        left = timeout - (time.monotonic() - self._started)
        try:
            self._process.wait(max(left, 0.1))
        except subprocess.TimeoutExpired:
            print(f"the guest did not end within {timeout:.0f} s", flush=True)
            self.kill()
        found = VERDICT.search(self.text)
        return int(found[1]) if found and self.sound() else None

    def sound(self) -> bool:
        """Whether the kernel has complained of nothing so far; says what it complained of."""
        lines = complaints(self.text)
        for line in lines:
            print(f"the kernel complains: {line}", flush=True)
        return not lines

    def kill(self) -> None:
        """SIGKILL: the node is lost."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        if self._process.stdout is None or self._process.stdout.closed:
            return
        output, _ = self._process.communicate(timeout=10)
        if output:
            print(output.decode(errors="replace"), end="", flush=True)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started
