# SPDX-License-Identifier: Apache-2.0
"""The SDK arms: a stand-in is used only when named, and never passes for the SDK."""

from __future__ import annotations

import os
import subprocess
import sys

import jsonschema

import obmm
from obmm.bench import decision, results
from obmm.sdk.standin import StandIn


def test_without_a_library_the_sdk_arms_say_what_was_tried(document):
    reasons = {each["arm"]: each["reason"] for each in document["unavailable"]}
    assert reasons.keys() == {"sdk-cacheable", "sdk-nc", "sdk-pmd"}
    assert all("libubsm_sdk.so" in reason for reason in reasons.values())


def test_a_named_stand_in_is_measured_and_marked(tmp_path, schema):
    path = tmp_path / "sdk.json"
    arms = ("sdk-cacheable", "sdk-nc", "sdk-pmd")
    with obmm.emulator.start(nodes=2) as fabric, StandIn(fabric) as standin:
        command = [sys.executable, "-m", "obmm.bench", "run", "--preset", "smoke", "--arms", ",".join(arms)]
        ran = subprocess.run(
            [*command, "--workloads", "loads,batch,read,write,control-sdk", "-o", str(path)],
            env={**os.environ, **standin.environment(fabric.nodes[0])},
            capture_output=True,
            text=True,
            timeout=90,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        assert standin.status()["objects"] == {}
    document = results.read(path)
    jsonschema.validate(document, schema)
    assert [arm["name"] for arm in document["arms"]] == list(arms), document["unavailable"]
    assert all(r["kind"] == "stand-in" and r["mark"].startswith("STAND-IN") for r in document["results"])
    cycles = [r for r in document["results"] if r["workload"] == "control-sdk"]
    assert len(cycles) == 5 * len(arms)
    assert all("say nothing about hardware" in r["caveat"] for r in cycles)
    assert all(verdict.arm is None for verdict in decision.verdicts(document))
