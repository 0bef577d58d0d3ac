# SPDX-License-Identifier: Apache-2.0
"""What each errno of the package's own operations means: arguments that were refused, memory that did not answer."""

from __future__ import annotations

from obmm.causes import Causes
from obmm.causes import because as _c

_SAFETY, _ROWS, _PREFETCH, _EXCHANGE = "docs/safety.md", "docs/rows.md", "docs/prefetch.md", "docs/exchange.md"

# What is refused before anything is touched: the message names the value, this says what is wanted.
_ARGUMENTS = {
    "ACCESS": (_SAFETY, "an offset, size, type or buffer of load, store, read or write", "stay inside the payload"),
    "BENCH": ("docs/benchmark.md", "an option of the benchmark", "see `obmm bench run --help`"),
    "BLOCKS": (_SAFETY, "a key, size or buffer of a block, or a region that holds no blocks", "see obmm.blocks"),
    "BROKER_POLICY": (_SAFETY, "a line of the broker's policy", "correct the line that the message names"),
    "CALL": (_EXCHANGE, "a call's name or payload", "use a name that the server answers to"),
    "CONNECT": (_EXCHANGE, "an address, a name, or more than one mode", "host:port, and one of key, tls, plain"),
    "DEVICE": (
        "docs/device.md",
        "a stream, a buffer or a size of an accelerator",
        "a stream of this device and context",
    ),
    "EMBEDDING": (_PREFETCH, "a type, a size or a device of an embedding", "what its table has"),
    "ENGINE": (_ROWS, "a number of threads, a CPU or a duration of a gather engine", "1 to 64 threads"),
    "ENGRAM": (
        "docs/engram-tables.md",
        "a checkpoint or a table that is not an Engram's",
        "name the model's checkpoint",
    ),
    "EXCHANGE": (_EXCHANGE, "an option of a command that serves or fetches", "see its --help"),
    "FABRIC": (
        "docs/fabric.md",
        "a fabric profile, or a simulated cluster",
        "one of the profiles that ship, or a file of their form",
    ),
    "FETCH": (_EXCHANGE, "a name or an importer's EID", "see peer.list()"),
    "FILE": ("docs/files.md", "a file that cannot be read as a table", "see `obmm serve --help`"),
    "GATHER": (
        _ROWS,
        "ids, an output or an option of a gather",
        "contiguous int32 or int64 ids, an output of their size",
    ),
    "HANDLE": (
        _EXCHANGE,
        "80 bytes that are not a handle, or a field out of range",
        "Handle.unpack() of what was sent",
    ),
    "HASH": (_PREFETCH, "a parameter of a hash plan", "take the plan from the manifest"),
    "HISTORY": (_PREFETCH, "a length or a request of a history", "numbers that the engine gave"),
    "JOURNAL": (_EXCHANGE, "a journal that this version cannot read", "read the message: it names file and line"),
    "KEY": (_EXCHANGE, "a key file", "64 hexadecimal digits in a file that only its owner can read"),
    "MANIFEST": (_ROWS, "a manifest that this version cannot use", "publish with this version, or upgrade the reader"),
    "NPY": ("docs/files.md", "a NumPy file that cannot be served as it is", "save it as a plain array"),
    "POOL": (_PREFETCH, "a table or a setting of a pool", "as obmm.prefetch.pool describes"),
    "POPULATE": (_ROWS, "rows that do not fit their table", "rows of exactly row_bytes, inside the table"),
    "PREFETCH": (
        _PREFETCH,
        "an option, a step or a layer of a prefetcher",
        "begin, start, consume, drain: in this order",
    ),
    "QUEUE": ("docs/spec/urma.md", "a size or a place of a list of reads", "what its segment and queue have"),
    "SERVE": (_EXCHANGE, "a region's name, an address, or more than one mode", "one of key, tls, plain"),
    "TABLE": (_EXCHANGE, "a table that cannot be used as it is published", "publish it with its manifest"),
    "TLS": (_EXCHANGE, "a certificate or its key", "PEM files of this node, signed by the cluster's authority"),
    "URMA": ("docs/spec/urma.md", "an argument of a segment, a queue or a ticket", "what the message asks for"),
    "VIEW": (_SAFETY, "a range, type or shape of a view", "whole items inside the payload"),
    "WINDOWS": ("docs/windows.md", "a line of the table of windows", "correct the entry that the message names"),
}

PACKAGE: Causes = {
    (operation, "EINVAL"): (_c(page, f"{what} cannot be right; nothing was touched", fix),)
    for operation, (page, what, fix) in _ARGUMENTS.items()
}
PACKAGE |= {
    ("ACCESS", "EFAULT"): (
        _c(
            "9.9/17",
            "a load or store did not come back: the memory behind the mapping is gone, or there is no right to it",
            "close the mapping and fetch a fresh handle",
        ),
    ),
    ("ACCESS", "EACCES"): (
        _c("9.9", "the right to the range is missing; an unguarded access would be a SIGSEGV", "acquire it first"),
    ),
    ("COPY", "EPERM"): (
        _c(_SAFETY, "what owns a region, a mapping, a thread or a lease exists once", "open it in the worker"),
    ),
    ("GATHER", "ERANGE"): (
        _c(_ROWS, "an id is not a row of the table; nothing was read", "hash with the table's own manifest"),
    ),
    ("GATHER", "EFAULT"): (
        _c("9.9/17", "a row did not come back: the memory behind it is gone", "close it and fetch a fresh handle"),
    ),
    ("GATHER", "ESTALE"): (
        _c("Engram specification 5.3", "the owner published meanwhile", "gather again, with the new manifest"),
    ),
    ("GATHER", "ETIMEDOUT"): (
        _c("Engram specification 11.3-3", "the rows did not come in time", "look at the peer, or allow more time"),
    ),
    ("EXCHANGE", "EKEYREVOKED"): (
        _c(
            _EXCHANGE,
            "the lease is suspect, revoked, stale or released: its owner does not answer, took its region back, or exported anew",
            "close the region; fetch again when the owner serves it",
        ),
    ),
    ("PREFETCH", "ETIMEDOUT"): (
        _c("Engram specification 11.3-3", "the rows did not come in time", "look at the peer, or allow more time"),
    ),
    ("PREFETCH", "EBUSY"): (_c(_PREFETCH, "gathers still run, or a step is not over", "drain, then close again"),),
}
