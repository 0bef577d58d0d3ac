# SPDX-License-Identifier: Apache-2.0
"""`obmm serve` as a process: what it prints in TLS mode runs, and SIGHUP reads certificates, lists, keys and rules again."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

import obmm
from obmm import emulator
from obmm.bench.certificates import Authority
from obmm.exchange import ExchangeError, Key, TlsFiles
from tests.exchange.conftest import until
from tests.exchange.test_commands import run, served, table

__all__ = ["table"]  # a fixture

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    (tmp_path / "authority").mkdir()
    return Authority(tmp_path / "authority")


def options(files: TlsFiles) -> tuple[object, ...]:
    return ("--tls", files.certificate, files.private_key, files.authority)


def replace(installed: TlsFiles, files: TlsFiles) -> None:
    """As an operator does: the new files under the old names."""
    for old, new in zip(
        (installed.certificate, installed.private_key, installed.authority),
        (files.certificate, files.private_key, files.authority),
        strict=True,
    ):
        shutil.copy(new, f"{old}.new")
        os.replace(f"{old}.new", old)


def hang_up(process: subprocess.Popen[str], answer: str) -> None:
    """SIGHUP, and the line that says what came of it."""
    process.send_signal(signal.SIGHUP)
    assert process.stderr
    while answer not in (line := process.stderr.readline()):
        assert line, "the server has ended"


def give_up(port: int, runtime: Path) -> None:
    """The leases of clients that were cut off: as an operator ends them."""
    done = run("lease", "end", "--region", "table", "--port", port, "--yes", env={"XDG_RUNTIME_DIR": str(runtime)})
    assert "1 lease(s) ended" in done.stdout, done


def may_connect(port: int, **how: Any) -> bool:
    try:
        obmm.connect(f"127.0.0.1:{port}", timeout=10, **how).close()
    except ExchangeError:
        return False
    return True


def test_the_printed_fetch_runs_in_tls_mode(
    fabric: emulator.Fabric, tmp_path: Path, table: Path, authority: Authority
) -> None:
    """Where the client's own certificate lies as CLIENT.pem and CLIENT.key, copied as it stands."""
    elsewhere = tmp_path / "a client's folder"
    elsewhere.mkdir()
    client = authority.issue("client")
    shutil.copy(client.certificate, elsewhere / "CLIENT.pem")
    shutil.copy(client.private_key, elsewhere / "CLIENT.key")
    with served(fabric, tmp_path, "--host", "127.0.0.1", *options(authority.issue("server")), table=table) as (
        process,
        line,
    ):
        while "elsewhere: " not in line:
            line = process.stdout.readline()
        words = shlex.split(line.partition("elsewhere: ")[2])
        place = words.index("obmm")
        answer = run(*words[place + 1 :], env=dict(each.split("=", 1) for each in words[:place]), cwd=elsewhere)
        assert answer.returncode == 0, answer.stderr
        assert "fetch ok" in answer.stdout
        shows = run("serve", "--status", words[place + 2], *words[words.index("--tls") :], cwd=elsewhere)
        assert "table" in shows.stdout, shows.stderr


def test_sighup_reads_certificates_again_and_leases_stay(
    fabric: emulator.Fabric, tmp_path: Path, table: Path, authority: Authority
) -> None:
    (tmp_path / "next").mkdir()
    following = Authority(tmp_path / "next", name="next authority")
    installed, client = authority.issue("server"), authority.issue("client")
    next_client = following.issue("client")
    how = ("--host", "127.0.0.1", "--json", *options(installed))
    with served(fabric, tmp_path, *how, table=table) as (process, line):
        port = json.loads(line)["port"]
        old = obmm.connect(f"127.0.0.1:{port}", tls=TlsFiles(client.certificate, client.private_key, _kept(authority)))
        old.fetch("table")
        assert not may_connect(port, tls=next_client), "that authority is not known yet"

        Path(installed.private_key).write_text("no key at all")
        hang_up(process, "stay as they were")
        assert process.poll() is None
        assert may_connect(port, tls=TlsFiles(client.certificate, client.private_key, _kept(authority)))

        replace(installed, following.issue("server"))
        hang_up(process, "read again; 1 session(s) ended")
        assert may_connect(port, tls=next_client)
        assert not may_connect(port, tls=client), "its authority is not the server's any more"
        with obmm.connect(f"127.0.0.1:{port}", tls=next_client) as peer:
            assert peer.status()["server"]["leases"] == 1, "the lease of who was cut off is not given up"
        old.close(timeout=0.2, force=True)
        give_up(port, tmp_path)


def _kept(authority: Authority) -> Path:
    """The authority's certificate under a name that is not replaced."""
    kept = authority.folder / "kept.pem"
    if not kept.exists():
        shutil.copy(authority.path, kept)
    return kept


def test_sighup_reads_the_revocation_list_again(
    fabric: emulator.Fabric, tmp_path: Path, table: Path, authority: Authority
) -> None:
    good, bad = authority.issue("good"), authority.issue("bad")
    listed = authority.revoke()
    how = ("--host", "127.0.0.1", "--json", *options(authority.issue("server")), "--revoked", listed)
    with served(fabric, tmp_path, *how, table=table) as (process, line):
        port = json.loads(line)["port"]
        with obmm.connect(f"127.0.0.1:{port}", tls=bad) as peer:
            assert peer.list()
            authority.revoke(bad)
            hang_up(process, "read again")
            until(lambda: not may_connect(port, tls=bad))
            assert may_connect(port, tls=good)
            with pytest.raises(ExchangeError):
                peer.list(timeout=2)
            peer.close(timeout=0.2, force=True)


def test_sighup_reads_named_keys_and_rules_again(fabric: emulator.Fabric, tmp_path: Path, table: Path) -> None:
    for name in ("old", "new", "other"):
        Key.generate(tmp_path / f"{name}.key")
    rules = tmp_path / "access.toml"

    def write(*keys: str, regions: str = "table*") -> None:
        named = "".join(f'[[key]]\nname = "serving"\nfile = "{each}.key"\n' for each in keys)
        rules.write_text(
            f'{named}[[key]]\nname = "other"\nfile = "other.key"\n[[allow]]\nkeys = ["serving"]\nregions = ["{regions}"]\n'
        )
        rules.chmod(0o600)

    write("old")
    with served(fabric, tmp_path, "--host", "127.0.0.1", "--json", "--access", rules, table=table) as (process, line):
        port = json.loads(line)["port"]

        def sees(name: str) -> list[str]:
            with obmm.connect(f"127.0.0.1:{port}", key=tmp_path / f"{name}.key") as peer:
                return list(peer.list())

        assert (sees("old"), sees("other")) == (["table"], [])
        assert not may_connect(port, key=tmp_path / "new.key")
        write("old", "new")  # the rotation: both, then the new one alone
        hang_up(process, "read again; 0 session(s) ended")
        assert (sees("old"), sees("new")) == (["table"], ["table"])
        with obmm.connect(f"127.0.0.1:{port}", key=tmp_path / "old.key") as peer:
            peer.fetch("table")
            write("new")
            hang_up(process, "read again; 1 session(s) ended")
            until(lambda: not may_connect(port, key=tmp_path / "old.key"))
            with obmm.connect(f"127.0.0.1:{port}", key=tmp_path / "new.key") as other:
                assert other.status()["server"]["leases"] == 1
            peer.close(timeout=0.2, force=True)
        write("new", regions="nothing*")
        hang_up(process, "read again")
        assert sees("new") == []
        rules.write_text("[[key]]\nname = 5\n")
        hang_up(process, "stay as they were")
        assert sees("new") == []
        give_up(port, tmp_path)
