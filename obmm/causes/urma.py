# SPDX-License-Identifier: Apache-2.0
"""What each result of a call of liburma and each status of a request means, and what to do (URMA specification 5, 10)."""

from __future__ import annotations

import errno
from collections.abc import Iterable
from typing import Final

from obmm.causes import Cause, Causes
from obmm.causes.package import PACKAGE
from obmm.operations import OF_LIBURMA, OF_URMA, Operation

CALL_CODES: Final[dict[int, str]] = {
    1: "ENOPERM",
    11: "EAGAIN",
    12: "ENOMEM",
    17: "EEXIST",
    22: "EINVAL",
    110: "ETIMEOUT",
    115: "EINPROGRESS",
    0x1000: "FAIL",
}
"""The library's names of what its calls answer."""

_DEAD = "attach a new Queue to the same ticket: this one is dead"

STATUSES: Final[dict[int, tuple[str, str, str, str]]] = {
    1: ("UNSUPPORTED_OPCODE_ERR", "EIO", "this device does not know the request", _DEAD),
    2: ("LOC_LEN_ERR", "EIO", "one request is longer than the device's max_read_size or max_write_size", f"cut it (Context.attributes has both), and {_DEAD}"),
    3: ("LOC_OPERATION_ERR", "EIO", "this side could not carry the request out", _DEAD),
    4: ("LOC_ACCESS_ERR", "EACCES", "the local buffer is not inside its registered segment, or its memory is gone", f"keep what Context.buffer() returned alive until the call has ended, and {_DEAD}"),
    5: ("REM_RESP_LEN_ERR", "EACCES", "the answer had another length", _DEAD),
    6: ("REM_UNSUPPORTED_REQ_ERR", "EIO", "the peer's device does not know the request, or it is too long for it", _DEAD),
    7: ("REM_OPERATION_ERR", "EIO", "the peer's side failed", _DEAD),
    8: ("REM_ACCESS_ABORT_ERR", "EACCES", "wrong token, revoked or unregistered segment, missing right, out of range, or the peer is gone", "fetch the ticket again, compare generations, and attach a new Queue to it: this one is dead"),
    9: ("ACK_TIMEOUT_ERR", "ETIMEDOUT", "no answer to any try: the peer's process or node is gone, the link is down, or the transport is wrong", f"transport='ctp', look for the peer, and {_DEAD}"),
    10: ("RNR_RETRY_CNT_EXC_ERR", "EIO", "the peer was not ready", _DEAD),
    11: ("WR_FLUSH_ERR", "EACCES", "an earlier request of this queue failed", _DEAD),
    12: ("WR_SUSPEND_DONE", "EIO", "the queue was suspended by an error", _DEAD),
    13: ("WR_FLUSH_ERR_DONE", "EIO", "the queue was flushed after an error", _DEAD),
    14: ("WR_UNHANDLED", "EIO", "the request was never begun", _DEAD),
    15: ("LOC_DATA_POISON", "EIO", "the local memory is damaged", f"use another buffer, and {_DEAD}"),
    16: ("REM_DATA_POISON", "EIO", "the peer's memory is damaged", f"have its owner publish anew, and {_DEAD}"),
}  # fmt: skip
"""Status of a request -> its name, the errno nearest to it, meaning and fix."""

CALLS: Final[dict[tuple[str, int], tuple[str, str]]] = {
    ("init", 0x1000): ("no provider could be loaded: the folder `urma` beside the library is missing, empty or unreadable (a stand-in: OBMM_URMA_STANDIN names no folder of a stand-in, or its faults are not rules)", "compare the folder and its mode, or the stand-in's environment"),
    ("init", 17): ("something else in this process has initialised the library", "share its Context"),
    ("get_device_list", 19): ("no device: kernel modules or the engine's service are not there", "look into /sys/class/ubcore"),
    ("get_device_by_name", 19): ("no such device", "take a name from /sys/class/ubcore"),
    ("create_context", 5): ("the node /dev/uburma/NAME is missing or not permitted, or the EID index does not exist", "compare owner and mode of the node, pass eid_index of the list"),
    ("query_device", 0x1000): ("the node /dev/uburma/NAME is missing or not permitted", "compare owner and mode of the node"),
    ("get_eid_list", 5): ("the device's EIDs cannot be read", "compare owner and mode of /dev/uburma/NAME"),
    ("delete_context", 11): ("something made from it still lives", "close it first"),
    ("delete_jfc", 11): ("events were not acknowledged", "acknowledge each event that a wait returned"),
    ("post", 12): ("the queue is full: completions must be signalled and polled first", "make a deeper Queue, or post less at a time"),
    ("post", 22): ("a request is malformed", "report it: this is a bug of obmm"),
    ("register_seg", 22): ("an access set other than local, r, rw, or an address of 0", "pass one of the three, and memory of this process"),
    ("free_token_id", 22): ("a segment still uses it", "close the segments first"),
    ("", 0): ("the provider refused without a reason", "read the system log, check transport and priority"),
    ("", 1): ("this process may not do it", "compare owner and mode of /dev/uburma/NAME"),
    ("", 11): ("the device is busy", "try again"),
    ("", 12): ("no memory, or a limit of the device is reached (Context.attributes)", "close what is not used"),
    ("", 22): ("an argument is invalid for this device", "compare it with Context.attributes, which has the limits"),
    ("", 0x1000): ("the provider failed", "read the system log"),
}  # fmt: skip
"""(function, result) -> meaning and fix.  Function "" is the text for every other one."""


def code_name(code: int) -> str:
    """The name of a call's result: the library's, else that of the errno."""
    return CALL_CODES.get(code) or errno.errorcode.get(code, f"code {code}")


def errno_of_call(code: int) -> int:
    """The errno nearest to a call's result, which often is one."""
    return code if code in errno.errorcode else errno.EIO


def call_cause(function: str, code: int) -> Cause:
    """What the result `code` means for `function`, and what to do."""
    found = CALLS.get((function, code)) or CALLS.get(("", code))
    number = hex(code) if code > 255 else str(code)
    unknown = ("a code that this package does not know", "read the system log")
    return Cause("URMA specification 5/10", *(found or unknown), answer=f"{number} {code_name(code)}")


def status_cause(status: int) -> Cause:
    """What a request's `status` means, and what to do."""
    if status not in STATUSES:
        return Cause("URMA specification 5", "a status that this package does not know", _DEAD, str(status))
    name, _, meaning, fix = STATUSES[status]
    return Cause(f"URMA specification 5-{status}/10", meaning, fix, answer=f"{status} {name}")


def _calls(function: str, codes: Iterable[int]) -> Causes:
    found: Causes = {}
    for code in codes:
        name = errno.errorcode[errno_of_call(code)]
        found[function, name] = (*found.get((function, name), ()), call_cause(function, code))
    return found


_ARGUMENT: Final = PACKAGE["URMA", "EINVAL"]
_GENERAL: Final = [code for function, code in CALLS if not function]

URMA: Causes = _calls("URMA", _GENERAL)
"""Of each function what is its own; what they have in common is the answer of ``URMA``."""

URMA["URMA", "EINVAL"] = (*_ARGUMENT, *URMA["URMA", "EINVAL"])
for _function in (*OF_LIBURMA, *OF_URMA):
    _own = [code for function, code in CALLS if function == _function]
    if _function in OF_LIBURMA:
        URMA |= _calls(_function, dict.fromkeys([*_own, 0x1000, 0]))
    else:
        URMA |= {(_function, "EINVAL"): _ARGUMENT, **_calls(_function, _own)}

for _function in (Operation.URMA_READ, Operation.URMA_READ_MANY, Operation.URMA_WRITE_MANY):
    for _status, (_, _name, _, _) in STATUSES.items():
        URMA[_function, _name] = (*URMA.get((_function, _name), ()), status_cause(_status))
    URMA[_function, "EPIPE"] = (
        Cause("URMA specification 7.5-4", "the queue died by an earlier request, or its completion queue did", _DEAD),
    )

URMA[Operation.URMA_ATTACH, "EXDEV"] = (
    Cause(
        "URMA specification 8.1", "a ticket of a stand-in here, or a real one for a stand-in", "the same on both sides"
    ),
)
URMA[Operation.URMA_FETCH, "EPROTO"] = (
    Cause("docs/urma.md", "the peer's answer has no manifest of this version", "the same obmm on both sides"),
)
