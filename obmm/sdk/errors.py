# SPDX-License-Identifier: Apache-2.0
"""Errors of the SDK path."""

from __future__ import annotations

import errno

from obmm.errors import ObmmError
from obmm.sdk.codes import ERRNO, Code, c_name, hint


class SdkError(ObmmError):
    """An SDK call that was refused or failed.

    `code` is the SDK's result code, `operation` the call, `elapsed` how long it took in seconds; `errno` is only the
    nearest one, the SDK has none.

    >>> obmm.sdk.SdkError.answered("map", 6020, 0.1, "a library", name="table").code
    6020
    """

    def __init__(self, code: int, message: str, *, operation: str = "", elapsed: float = 0.0) -> None:
        super().__init__(ERRNO.get(code, errno.EIO), message, operation=operation)
        self.code = code
        self.elapsed = elapsed

    @classmethod
    def answered(
        cls, operation: str, code: int, elapsed: float, library: str, facts: str = "", **fields: object
    ) -> SdkError:
        """The error for `operation` that `library` answered with `code` after `elapsed` seconds.

        `fields` are the inputs that matter, `facts` what was found out about it here.
        """
        given = ", ".join(f"{key}={value!r}" for key, value in fields.items())
        text = f"sdk.{operation}({given}) of {library} failed with {code} {c_name(code)} after {elapsed:.3f} s\n  - {hint(operation, code)}"
        if facts:
            text += f"\n  - {facts}"
        return cls(code, text, operation=operation, elapsed=elapsed)


class SdkArgumentError(SdkError, ValueError):
    """An argument that the SDK would refuse, refused before the call.

    >>> obmm.sdk.SdkArgumentError.because("create", "size=3", "a multiple of 4 MiB").operation
    'create'
    """

    @classmethod
    def because(cls, operation: str, problem: str, fix: str, code: int = Code.PARAM_INVALID) -> SdkArgumentError:
        """An error of `operation` with the SDK's `code`: `problem` names the value and the rule, `fix` what to pass
        instead.
        """
        return cls(code, f"sdk.{operation}: {problem}; fix: {fix}", operation=operation)


class SdkLibraryError(ObmmError):
    """There is no usable ``libubsm_sdk.so``; the text says what was tried.

    >>> obmm.sdk.load("/nowhere/libubsm_sdk.so")
    Traceback (most recent call last):
    obmm.sdk.errors.SdkLibraryError: ...
    """
