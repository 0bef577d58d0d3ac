# SPDX-License-Identifier: Apache-2.0
"""What to do with a gather that failed (Engram specification 11.2)."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Self

from obmm.errors import ObmmArgumentError

Step = Literal["raise", "zero", "local", "retry"]


@dataclass(frozen=True, slots=True)
class Policy:
    """What is tried in turn: an optional `retry`, an optional `local` replica, and then zeros or the error.

    `zero` ends the chain with zeros, otherwise the error does.

    >>> policy = obmm.prefetch.Policy.of(("retry", "zero"))
    >>> policy.retry, policy.local, policy.zero
    (True, False, True)
    """

    retry: bool
    local: bool
    zero: bool

    @classmethod
    def of(cls, steps: Step | Sequence[Step]) -> Self:
        """``"zero"``, or a chain such as ``("retry", "local", "zero")``; a chain without an end ends with "raise".

        ObmmArgumentError for `steps` that are none.
        """
        chain = [steps] if isinstance(steps, str) else list(steps)
        order = [step for step in ("retry", "local", "zero", "raise") if step in chain]
        if not chain or chain != order or ("zero" in chain and "raise" in chain):
            raise ObmmArgumentError.because(
                "PREFETCH",
                errno.EINVAL,
                f"policy {steps!r}",
                'use "raise", "zero", "local", "retry", or a chain of them in the order retry, local, then zero or raise',
                "Engram specification 11.2",
            )
        return cls("retry" in chain, "local" in chain, "zero" in chain)

    def __str__(self) -> str:
        chain = ["retry"] * self.retry + ["local"] * self.local + ["zero" if self.zero else "raise"]
        return ", ".join(chain)
