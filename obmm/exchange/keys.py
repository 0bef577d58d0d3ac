# SPDX-License-Identifier: Apache-2.0
"""The shared key: a file of hexadecimal digits that only its owner can read."""

from __future__ import annotations

import errno
import hashlib
import hmac
import os
import secrets
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import TypeAlias

from obmm.errors import ObmmArgumentError
from obmm.exchange.secrets import Opaque

MIN_BYTES = 32
MAX_BYTES = 128
MIN_DISTINCT = 16  # 32 random bytes have fewer distinct values once in 10^20

KeySource: TypeAlias = "str | os.PathLike[str] | Key"


def _refuse(path: object, problem: str, fix: str, number: int = errno.EINVAL) -> ObmmArgumentError:
    return ObmmArgumentError.because("KEY", number, f"{path}: {problem}", fix, "docs/exchange.md")


class Key:
    """A pre-shared key.  Holds no readable copy of the secret: only HMAC states derived from it.

    `identity` is 8 hexadecimal digits that two holders of the key can compare; it says nothing about the key.
    """

    __slots__ = ("_mac", "identity", "name")

    def __init__(self, secret: bytes | bytearray, name: str = "key") -> None:
        self.name = name
        self.identity = "unfit"
        if not MIN_BYTES <= len(secret) <= MAX_BYTES:
            raise _refuse(
                name,
                f"a key of {len(secret)} bytes; {MIN_BYTES}..{MAX_BYTES} are allowed",
                "make one with `openssl rand -hex 32` (umask 077)",
            )
        if len(set(secret)) < MIN_DISTINCT:
            raise _refuse(name, "the bytes are too regular to be random", "make one with `openssl rand -hex 32`")
        self._mac = hmac.new(secret, digestmod=hashlib.sha256)
        self.identity = self.derive(b"obmm exchange 1 key identity")[:4].hex()

    def derive(self, label: bytes, context: bytes = b"") -> Opaque:
        """HMAC-SHA-256(key, label || 0x00 || context), 32 bytes."""
        mac = self._mac.copy()
        mac.update(label + b"\0" + context)
        return Opaque(mac.digest())

    def __repr__(self) -> str:
        return f"<Key {self.name} id={self.identity}>"

    def __reduce__(self) -> str:
        raise TypeError("a key cannot be pickled")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Key:
        """The key in the file at ``path``.

        The file holds at least 64 hexadecimal digits and nothing else but white space.  It must be a regular file,
        owned by this user or root, and closed to group and others.  Raises ObmmArgumentError with the fix.
        """
        name = os.fspath(path)
        try:
            with open(path, "rb", opener=lambda p, flags: os.open(p, flags | os.O_NONBLOCK)) as file:
                _check_file(name, os.fstat(file.fileno()))
                text = Opaque(file.read(4 * MAX_BYTES))
        except OSError as error:
            if isinstance(error, ObmmArgumentError):
                raise
            raise _refuse(
                name,
                f"cannot be read: {error.strerror}",
                "pass the path of the cluster's key file",
                error.errno or errno.EIO,
            ) from None
        return cls(_from_hex(name, text), name)

    @classmethod
    def generate(cls, path: str | os.PathLike[str]) -> Key:
        """Write a new random key to a new file of mode 0600 and load it; an existing file is refused."""
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _refuse(
                os.fspath(path), f"cannot be created: {error.strerror}", "name a new file", error.errno or errno.EIO
            ) from None
        with open(fd, "w") as file:
            file.write(secrets.token_hex(MIN_BYTES) + "\n")
            file.flush()
            os.fsync(fd)
        return cls.load(path)


def _check_file(name: str, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise _refuse(name, "is not a regular file", "pass the path of the cluster's key file")
    if status.st_mode & 0o077:
        raise _refuse(
            name,
            f"mode {stat.S_IMODE(status.st_mode):04o} lets group or others in",
            f"chmod 600 {name}, and make a new key if others could read this one",
            errno.EACCES,
        )
    if status.st_uid not in (os.geteuid(), 0):
        raise _refuse(
            name,
            f"belongs to uid {status.st_uid}, who can change it",
            f"chown it to uid {os.geteuid()}",
            errno.EACCES,
        )


def _from_hex(name: str, text: Opaque) -> Opaque:
    try:
        return Opaque.fromhex(text.decode("ascii"))
    except ValueError:
        raise _refuse(
            name, "holds something other than pairs of hexadecimal digits", "make one with `openssl rand -hex 32`"
        ) from None


def check_private(path: str | os.PathLike[str]) -> str:
    """The path as text, after the checks of `Key.load` on type, mode and owner (for TLS private keys)."""
    name = os.fspath(path)
    try:
        status = os.stat(path)
    except OSError as error:
        raise _refuse(name, f"cannot be read: {error.strerror}", "pass the path of the private key") from None
    _check_file(name, status)
    return name


def load_keys(source: KeySource | Iterable[KeySource], most: int) -> tuple[Key, ...]:
    """One key or several, from paths or `Key` objects; more than ``most`` are refused."""
    sources = [source] if isinstance(source, str | os.PathLike | Key) else list(source)
    if not 1 <= len(sources) <= most:
        raise _refuse(
            "key",
            f"{len(sources)} keys; 1..{most} are allowed",
            "during a rotation pass the new key and the old one, afterwards the new one",
        )
    return tuple(each if isinstance(each, Key) else Key.load(each) for each in sources)


def default_key_path() -> Path:
    """Where the command line looks for a key: ``$XDG_CONFIG_HOME/obmm/cluster.key``."""
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "obmm" / "cluster.key"
