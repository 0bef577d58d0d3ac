# SPDX-License-Identifier: Apache-2.0
"""Every rule of the broker's policy, and every mistake in its file."""

from __future__ import annotations

import dataclasses
import os

import pytest

from obmm import ObmmArgumentError
from obmm.broker.policy import BrokerPeer, Policy, Wanted, groups_of
from obmm.driver.process import start_time
from obmm.region.stamp import OwnerStamp

PEER = BrokerPeer(os.getpid(), 1001, frozenset({1001, 50}), start_time(os.getpid()))
STAMP = OwnerStamp.of_this_process("embeddings-1")
CONTROL = Wanted("/dev/obmm", True)
MINE = Wanted("/dev/obmm_shmdev1", True, 1, "export", STAMP)
READ = dataclasses.replace(MINE, writable=False)
IMPORT = dataclasses.replace(MINE, kind="import")
FOREIGN = dataclasses.replace(MINE, stamp=None)
OTHERS = dataclasses.replace(MINE, stamp=dataclasses.replace(STAMP, start_time=STAMP.start_time + 1))


@pytest.fixture
def policy(tmp_path):
    def make(text: str, mode: int = 0o600) -> Policy:
        path = tmp_path / "policy.toml"
        path.write_text(text)
        path.chmod(mode)
        return Policy(path)

    return make


@pytest.mark.parametrize(
    ("rule", "allowed", "denied"),
    [
        ("users = [1001]\ncontrol = true", [CONTROL], [MINE, READ]),
        ("users = [1002]\ncontrol = true", [], [CONTROL]),
        ("users = [0, 1001]\ncontrol = true", [CONTROL], []),
        ("groups = [50]\ncontrol = true", [CONTROL], []),
        ("groups = [51]\ncontrol = true", [], [CONTROL]),
        ("users = [1001]\ngroups = [51]\ncontrol = true", [], [CONTROL]),
        ("users = [1001]\ngroups = [51, 50]\ncontrol = true", [CONTROL], []),
        ('users = [1001]\nregions = "any"', [MINE, READ, IMPORT, FOREIGN, OTHERS], [CONTROL]),
        ('users = [1001]\nregions = "own"', [MINE, READ, IMPORT], [CONTROL, FOREIGN, OTHERS]),
        ('users = [1001]\nregions = "any"\nlabels = ["embed*"]', [MINE, IMPORT, OTHERS], [FOREIGN]),
        ('users = [1001]\nregions = "any"\nlabels = ["Embed*", "kv"]', [], [MINE, FOREIGN]),
        ('users = [1001]\nregions = "any"\nkinds = ["import"]', [IMPORT], [MINE, READ, FOREIGN]),
        ('users = [1001]\nregions = "any"\nkinds = ["export"]', [MINE, FOREIGN], [IMPORT]),
        ('users = [1001]\nregions = "any"\naccess = "r"', [READ], [MINE, IMPORT]),
        ("", [], [CONTROL, MINE]),
    ],
)
def test_what_a_rule_allows_and_nothing_else(policy, rule, allowed, denied):
    read = policy(f"[[allow]]\n{rule}" if rule else "")
    for wanted in allowed:
        assert read.rule_for(PEER, wanted), wanted
    for wanted in denied:
        assert read.rule_for(PEER, wanted) is None, wanted


def test_own_means_this_very_process(policy):
    read = policy('[[allow]]\nusers = [1001]\nregions = "own"')
    for peer in (
        dataclasses.replace(PEER, pid=PEER.pid + 1),
        dataclasses.replace(PEER, start_time=None),
        dataclasses.replace(PEER, start_time=1),
    ):
        assert read.rule_for(peer, MINE) is None


def test_the_first_rule_that_allows_gives_its_name(policy):
    read = policy(
        """
        [[allow]]
        name = "no"
        users = [7]
        control = true
        [[allow]]
        users = [1001]
        control = true
        [[allow]]
        name = "later"
        users = [1001]
        control = true
        """
    )
    assert read.rule_for(PEER, CONTROL).name == "rule 2"
    assert read.knows(PEER)
    assert not read.knows(dataclasses.replace(PEER, uid=8))


def test_names_of_accounts(policy):
    read = policy('[[allow]]\nusers = ["root"]\ngroups = ["root"]\ncontrol = true')
    assert read.rule_for(BrokerPeer(1, 0, frozenset({0}), 1), CONTROL)


def test_the_groups_of_an_account_are_all_of_them():
    assert groups_of(0, 0) >= {0}
    assert groups_of(4_000_000, 77) == {77}


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("[[allow]]\ncontrol = true", "neither users nor groups"),
        ("[[allow]]\nusers = [1]", "allows nothing"),
        ('[[allow]]\nusers = ["no such account"]\ncontrol = true', "not an account"),
        ("[[allow]]\nusers = [-1]\ncontrol = true", "not an account"),
        ("[[allow]]\nusers = [true]\ncontrol = true", "not an account"),
        ("[[allow]]\nusers = 1\ncontrol = true", "a list"),
        ("[[allow]]\nusers = []\ncontrol = true", "not empty"),
        ("[[allow]]\nusers = [1]\ncontrol = 1", "true or false"),
        ('[[allow]]\nusers = [1]\nregions = "all"', '"own" or "any"'),
        ('[[allow]]\nusers = [1]\nregions = "any"\naccess = "w"', '"r" or "rw"'),
        ('[[allow]]\nusers = [1]\nregions = "any"\nkinds = ["exports"]', "kinds"),
        ('[[allow]]\nusers = [1]\nregions = "any"\nlabels = [1]', "labels"),
        ('[[allow]]\nusers = [1]\ncontrol = true\naccess = "r"', "without regions"),
        ("[[allow]]\nusers = [1]\ncontrol = true\nname = 1", "name"),
        ("[[allow]]\nuser = [1]\ncontrol = true", "unknown keys"),
        ("[[deny]]\nusers = [1]", "unknown keys"),
        ("[allow", "not TOML"),
    ],
)
def test_a_policy_with_a_mistake_is_refused_with_its_place(policy, text, part):
    with pytest.raises(ObmmArgumentError, match="fix:") as caught:
        policy(text)
    assert part in str(caught.value)


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_policy_that_others_may_write_is_refused(policy, mode):
    with pytest.raises(ObmmArgumentError, match="others could write it"):
        policy("", mode)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_policy_of_somebody_else_is_refused(policy, tmp_path):
    policy("")
    os.chown(tmp_path / "policy.toml", 1001, -1)
    with pytest.raises(ObmmArgumentError, match="owner 1001"):
        Policy(tmp_path / "policy.toml")


@pytest.mark.parametrize(
    "text",
    [
        "allow = 5", "allow = [1]", "x = 1", "[" * 30_000, "[[allow]]", "[[allow]]\nusers = 5", "[[allow]]\nusers = [{}]",
        "[[allow]]\nusers = [-1]", "[[allow]]\nusers = [99999999999]", '[[allow]]\nusers = ["a\\u0000b"]',
        "[[allow]]\nusers = [0]\nregions = []", "[[allow]]\nusers = [0]\nregions = {}", "[[allow]]\nusers = [0]\ncontrol = 1",
        '[[allow]]\nusers = [0]\nregions = "any"\nkinds = [["import"]]', '[[allow]]\nusers = [0]\nregions = "any"\nlabels = [1]',
        '[[allow]]\nusers = [0]\nregions = "any"\naccess = ["r"]', "[[allow]]\nusers = [0]\ncontrol = true\nname = 5",
    ],
)  # fmt: skip
def test_whatever_the_file_says_the_error_is_the_policys_own(tmp_path, text):
    path = tmp_path / "policy.toml"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(ObmmArgumentError) as caught:
        Policy(path)
    assert str(path) in str(caught.value)
