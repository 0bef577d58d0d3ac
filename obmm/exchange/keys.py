# SPDX-License-Identifier: Apache-2.0
"""The shared key: a file of hexadecimal digits that only its owner can read."""

from __future__ import annotations

import errno
import hashlib
import hmac
import os
import shlex
import stat
from collections.abc import Iterable
from contextlib import closing, suppress
from pathlib import Path
from typing import TypeAlias

from obmm.arguments import listed, wrong_type
from obmm.driver.descriptor import Descriptor
from obmm.errors import ObmmArgumentError
from obmm.exchange.secrets import Opaque

CREDENTIAL = "obmm.key"  # LoadCredential=obmm.key:/etc/obmm/cluster.key in a unit file
MIN_BYTES = 32
MAX_BYTES = 128
MIN_DISTINCT = 16  # 32 random bytes have fewer distinct values once in 10^20

KeySource: TypeAlias = "str | os.PathLike[str] | Key"


def _refuse(path: object, problem: str, fix: str, number: int = errno.EINVAL) -> ObmmArgumentError:
    return ObmmArgumentError.because("KEY", number, f"{path}: {problem}", fix, "docs/exchange.md")


class Key:
    """A pre-shared key.  Holds no readable copy of the secret: only HMAC states derived from it.

    `identity` is 8 hexadecimal digits that two holders of the key can compare; it says nothing about the key.  `who` is
    the name under which a server knows the holders of this key: their leases belong to it, and keys of one name (during a
    rotation) are one; "" for a key that all share.

    `secret`: at least 32 bytes (ObmmArgumentError); `name` for messages.

    >>> key = obmm.exchange.Key.generate(folder / "cluster.key")
    >>> same = obmm.exchange.Key.load(folder / "cluster.key", who="serving")
    >>> key.identity == same.identity, len(key.derive(b"label"))
    (True, 32)
    """

    __slots__ = ("_mac", "identity", "name", "who")

    def __init__(self, secret: bytes | bytearray, name: str = "key", *, who: str = "") -> None:
        self.name = name
        self.who = who
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
    def load(cls, path: str | os.PathLike[str], *, who: str = "") -> Key:
        """The key in the file at ``path``; ``who`` is whose it is, for a server that tells its clients apart.

        The file holds at least 64 hexadecimal digits and nothing else but white space.  It must be a regular file,
        owned by this user or root, and closed to group and others.  Raises ObmmArgumentError (a ValueError) with the fix.
        """
        try:
            name = os.fspath(path)
            if b"\0" in os.fsencode(name):
                raise ValueError("a NUL ends no name")
        except (TypeError, ValueError) as error:
            raise _refuse(repr(path), f"is not a path: {error}", "pass the path of the cluster's key file") from None
        text = Opaque(4 * MAX_BYTES)
        try:
            with open(path, "rb", 0, opener=lambda p, flags: os.open(p, flags | os.O_NONBLOCK)) as file:
                _check_file(name, os.fstat(file.fileno()))
                del text[file.readinto(text) :]
            secret = _from_hex(name, text)
        except OSError as error:
            if isinstance(error, ObmmArgumentError):
                raise
            raise _refuse(
                name,
                f"cannot be read: {error.strerror}",
                "pass the path of the cluster's key file",
                error.errno or errno.EIO,
            ) from None
        finally:
            text.wipe()
        try:
            return cls(secret, name, who=who)
        finally:
            secret.wipe()

    @classmethod
    def generate(cls, path: str | os.PathLike[str]) -> Key:
        """Write a new random key to a new file of mode 0600 at `path`, and load it; ObmmArgumentError for an existing
        file, OSError where it cannot be written.
        """
        try:
            file = Descriptor.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        except OSError as error:
            raise _refuse(
                os.fspath(path),
                f"cannot be created: {os.strerror(error.errno or errno.EIO)}",
                "name a new file",
                error.errno or errno.EIO,
            ) from None
        try:
            with closing(file):
                _write_random(file.fileno())
                os.fsync(file.fileno())
            return cls.load(path)
        except BaseException as error:
            with suppress(OSError):  # half a key does not stand in the way of another try
                os.unlink(path)
            if not isinstance(error, OSError) or isinstance(error, ObmmArgumentError):
                raise
            problem = f"cannot be written: {os.strerror(error.errno or errno.EIO)}"
            raise _refuse(os.fspath(path), problem, "write it elsewhere", error.errno or errno.EIO) from None


def _write_random(fd: int) -> None:
    """A new key, digit by digit, and no other copy of it."""
    secret, text = Opaque(MIN_BYTES), Opaque()
    try:
        with open("/dev/urandom", "rb", 0) as source:
            if source.readinto(secret) != MIN_BYTES:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
        for each in secret:
            text += _HEX[each >> 4 : (each >> 4) + 1] + _HEX[each & 15 : (each & 15) + 1]
        text += b"\n"
        if os.write(fd, text) != len(text):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        secret.wipe()
        text.wipe()


def _check_file(name: str, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise _refuse(name, "is not a regular file", "pass the path of the cluster's key file")
    if status.st_mode & 0o077 and not _is_credential(name, status):
        raise _refuse(
            name,
            f"mode {stat.S_IMODE(status.st_mode):04o} lets group or others in",
            f"chmod 600 {shlex.quote(name)}, and make a new key if others could read this one",
            errno.EACCES,
        )
    if status.st_uid not in (os.geteuid(), 0):
        raise _refuse(
            name,
            f"belongs to uid {status.st_uid}, who can change it",
            f"chown it to uid {os.geteuid()}",
            errno.EACCES,
        )


def _is_credential(name: str, status: os.stat_result) -> bool:
    """systemd's credentials belong to root and are read through an ACL, whose mask shows as the group's right."""
    folder = os.environ.get("CREDENTIALS_DIRECTORY")
    return (
        bool(folder) and Path(name).parent == Path(folder or "") and status.st_uid == 0 and not status.st_mode & 0o037
    )


_HEX = b"0123456789abcdef"
_DIGITS = {ord(digit): value for value, digit in enumerate("0123456789abcdef")} | {
    ord(digit): value + 10 for value, digit in enumerate("ABCDEF")
}


def _from_hex(name: str, text: Opaque) -> Opaque:
    """The bytes, made digit by digit: no text or `bytes` object, which could not be wiped, ever holds the key."""
    secret, high = Opaque(), -1
    for each in text:
        if each in b" \t\r\n\v\f" and high < 0:
            continue
        value = _DIGITS.get(each, -1)
        if value < 0:
            break
        if high < 0:
            high = value
        else:
            secret.append(high << 4 | value)
            high = -1
    else:
        if high < 0:
            return secret
    secret.wipe()
    raise _refuse(
        name, "holds something other than pairs of hexadecimal digits", "make one with `openssl rand -hex 32`"
    )


def check_private(path: str | os.PathLike[str]) -> str:
    """The path as text, after the checks of `Key.load` on type, mode and owner (for TLS private keys)."""
    name = os.fspath(path)
    try:
        status = os.stat(path)
    except (OSError, ValueError) as error:  # ValueError: a NUL in it
        problem = error.strerror if isinstance(error, OSError) else str(error)
        raise _refuse(repr(name)[1:-1], f"cannot be read: {problem}", "pass the path of the private key") from None
    _check_file(name, status)
    return name


def load_keys(source: KeySource | Iterable[KeySource], most: int) -> tuple[Key, ...]:
    """One key or several, from paths or `Key` objects; more than ``most`` are refused."""
    sources = [source] if isinstance(source, str | os.PathLike | Key) else listed("KEY", "key", source, "paths")
    for each in sources:
        if not isinstance(each, str | os.PathLike | Key):
            raise wrong_type("KEY", "key", each, "the path of a key file, or a Key")
    if not 1 <= len(sources) <= most:
        raise _refuse(
            "key",
            f"{len(sources)} keys; 1..{most} are allowed",
            "during a rotation pass the new key and the old one, afterwards the new one",
        )
    return tuple(each if isinstance(each, Key) else Key.load(each) for each in sources)


def mistaken(keys: Iterable[Key]) -> str:
    """Which of the keys is another one's too, under another name or none; "" when each has its own."""
    known: dict[str, Key] = {}
    for key in keys:
        twin = known.setdefault(key.identity, key)
        if twin.who != key.who:
            names = [repr(each.who) if each.who else f"{each.name}, which has no name," for each in (key, twin)]
            return f"{names[0]} has the same key as {names[1].removesuffix(',')}, and would be taken for it"
    return ""


def default_key_path() -> Path:
    """Where the command line looks for a key: systemd's credential ``obmm.key``, else ``$XDG_CONFIG_HOME/obmm/cluster.key``."""
    credentials = os.environ.get("CREDENTIALS_DIRECTORY")
    if credentials and (Path(credentials) / CREDENTIAL).exists():
        return Path(credentials) / CREDENTIAL
    base = os.environ.get("XDG_CONFIG_HOME")
    if not base:
        try:
            base = str(Path.home() / ".config")
        except RuntimeError:  # a user without a home
            base = "/etc"
    return Path(base) / "obmm" / "cluster.key"
