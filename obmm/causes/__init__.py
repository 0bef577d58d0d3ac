# SPDX-License-Identifier: Apache-2.0
"""One way in which an operation ends with an errno, and those that several operations have in common."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cause:
    """One way in which an operation ends with an errno."""

    rules: str
    meaning: str
    fix: str
    answer: str = ""
    """A library's own number and name of this answer (SDK, URMA); the errno is only the nearest one."""

    @property
    def said(self) -> str:
        """The meaning, after what the library itself calls the answer."""
        return f"{self.answer}: {self.meaning}" if self.answer else self.meaning

    def is_called(self, answer: str) -> bool:
        """Whether `answer` is the library's number or name of this one, in any case: ``6020``, ``NOT_FOUND``."""
        return answer.upper() in {
            word for each in self.answer.upper().split() for word in (each, each.removeprefix("UBSM_ERR_"))
        }

    @property
    def text(self) -> str:
        """As an error of a library says it."""
        return f"{self.meaning}; fix: {self.fix}"


def because(rules: str, meaning: str, fix: str) -> Cause:
    """A `Cause`; `rules` cites pages of docs/."""
    return Cause(rules, meaning, fix)


GATE = because(
    "D1",
    "the firmware reports none of the four UB memory features, so the driver refuses every command",
    "enable UB memory borrow or share in the firmware; read /sys/bus/ub/ub_feature",
)
GENERATION = because(
    "D2",
    "the driver does not know this request number: another generation of the interface, a 32-bit process, "
    "or the wrong kind of node (region commands go to /dev/obmm_shmdev<id>, all others to /dev/obmm)",
    "update the driver to a release of November 2025 or later; run `obmm doctor`",
)
POINTER = because(
    "D3/D5", "the argument could not be copied", "report this as a bug of obmm: its buffers are always valid"
)
UNLOADING = because("X15/I26", "the obmm module is being unloaded", "load the module again and retry")

Causes = dict[tuple[str, str], tuple[Cause, ...]]
"""(operation, errno name) -> causes, most likely first."""
