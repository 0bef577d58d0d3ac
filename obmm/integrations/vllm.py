# SPDX-License-Identifier: Apache-2.0
"""The door into vLLM: found by its plug-in mechanism, closed unless the additional config names a source.

    vllm serve /models/flash --additional-config '{"obmm_engram": {"source": "10.0.0.7:13857/flash"}}'

The configuration is not known when plug-ins are loaded, and they are loaded in every process: the classes get their door when
the engine imports them, and ask for the option when a table is made.  Without the option everything is the engine's.
"""

from __future__ import annotations

from types import ModuleType

from obmm.integrations.imports import when_imported

ENGRAM = "vllm.models.deepseek_v41.common.engram"
PLE = "vllm.models.qwen4_exp.common.ngram_embedding"


def plugin() -> None:
    """The entry point; called in every process of the engine, several times over."""
    when_imported(ENGRAM, _engram)
    when_imported(PLE, _ple)


def _engram(module: ModuleType) -> None:
    from obmm.integrations import vllm_engram

    vllm_engram.install(module)


def _ple(module: ModuleType) -> None:
    from obmm.integrations import vllm_ple

    vllm_ple.install(module)
