# SPDX-License-Identifier: Apache-2.0
"""What a broker is asked before its first open: which device stands behind it (native/broker/broker.h)."""

from __future__ import annotations

import errno
import socket

from obmm._native import ffi, lib
from obmm.errors import DeviceNotFoundError, ObmmError, errno_name

_SECONDS = 10.0
_NAME_MAX = 4096


def device_behind(path: str) -> str:
    """The device that the broker on `path` opens, as OBMM_DEVICE would name it.

    DeviceNotFoundError if no broker answers there.
    """
    request = ffi.new("struct obmm_broker_request *")
    request.magic = lib.OBMM_BROKER_MAGIC
    request.version = lib.OBMM_BROKER_VERSION
    request.kind = lib.OBMM_BROKER_HELLO
    answer = ffi.new("struct obmm_broker_answer *")
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_SECONDS)
            connection.connect(path)
            connection.sendall(bytes(ffi.buffer(request)))
            ffi.buffer(answer)[:] = _exactly(connection, ffi.sizeof("struct obmm_broker_answer"))
            if answer.magic != lib.OBMM_BROKER_MAGIC or answer.size > _NAME_MAX:
                raise ObmmError(errno.EPROTO, f"{path} is not a broker's socket", operation="OPEN")
            if answer.error == errno.EPROTONOSUPPORT:
                raise ObmmError(
                    answer.error, f"the broker on {path} is of another version of obmm: upgrade the older side"
                )
            if answer.error:
                raise ObmmError.refused("BROKER_OPEN", answer.error, socket=path)
            return _exactly(connection, answer.size).decode()
    except ObmmError:
        raise
    except OSError as error:
        code = error.errno or errno.ETIMEDOUT
        raise DeviceNotFoundError(
            code,
            f"no broker answers on {path} ({errno_name(code)}); start one as root with "
            f"`obmm open-broker --policy FILE --socket {path}`",
            operation="OPEN",
        ) from error


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionResetError(errno.ECONNRESET, "the broker hung up")
        data += part
    return data
