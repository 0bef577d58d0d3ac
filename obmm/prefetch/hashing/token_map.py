# SPDX-License-Identifier: Apache-2.0
"""Token id -> compressed id (Engram specification 2.1).  Needs the `tokenizers` package; a serving host does not."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from obmm.prefetch.hashing.plan import refused

_REPLACEMENT = "\ufffd"
_LONE_SPACE = "\ue000"
MOST_TOKENS = 1 << 24


def build_token_map(tokenizer: Any, expected_size: int | None = None) -> NDArray[np.int32]:
    """The map of a Hugging Face ``tokenizers.Tokenizer``: int32 ``[vocabulary with added tokens]``.

    `expected_size` is the model's configured compressed vocabulary size; another size is refused, since one wrong entry
    changes every multiplier.  Build it once, when the table is made, and store it with the table.

    ObmmArgumentError for ids with holes, more than 2^24 of them, or another size than `expected_size`; ImportError without the package (extra ``tokenizer``).

    >>> try:
    ...     from tokenizers import Tokenizer, decoders, models
    ...     tokenizer = Tokenizer(models.WordLevel({"the": 0, "THE": 1}, unk_token="the"))
    ...     tokenizer.decoder = decoders.Fuse()
    ...     print(obmm.prefetch.build_token_map(tokenizer))
    ... except ImportError:
    ...     print("[0 0], with the package tokenizers installed")
    [0 0]...
    """
    size = _size(tokenizer)
    entries = (
        (tokenizer.id_to_token(token) or "", tokenizer.decode([token], skip_special_tokens=False))
        for token in range(size)
    )
    compressed = compress_entries(entries)
    distinct = int(compressed.max(initial=-1)) + 1
    if expected_size is not None and distinct != expected_size:
        raise refused(
            f"the tokenizer compresses to {distinct} ids, the model is configured for {expected_size}",
            "use the model's own tokenizer and the pinned version of the tokenizers package",
            "2.1",
        )
    return compressed


def _size(tokenizer: Any) -> int:
    """How many token ids there are; what the map is made for is bounded, and without holes."""
    size = tokenizer.get_vocab_size(with_added_tokens=True)
    if not 0 <= size <= MOST_TOKENS:
        raise refused(f"a vocabulary of {size} tokens", f"at most {MOST_TOKENS}", "2.1")
    numbers = set(tokenizer.get_vocab(with_added_tokens=True).values())
    missing = next((number for number in range(size) if number not in numbers), None)
    if missing is not None:
        raise refused(
            f"token id {missing} does not exist, although the highest one is {max(numbers)}",
            "give the tokens consecutive ids: a map has an entry for each number, and a model was made for one map",
            "2.1",
        )
    return int(size)


def compress_entries(entries: Iterable[tuple[str, str]]) -> NDArray[np.int32]:
    """The map of ``(raw vocabulary string, decoded text)`` pairs in the order of their token ids."""
    normalise = _normaliser().normalize_str
    seen: dict[str, int] = {}
    ids = []
    for raw, text in entries:
        key = raw if _REPLACEMENT in text else normalise(text) or text
        ids.append(seen.setdefault(key, len(seen)))
    return np.array(ids, dtype=np.int32)


def _normaliser() -> Any:
    try:
        from tokenizers import Regex, normalizers
    except ImportError as error:
        raise ImportError(
            "building a token map needs the 'tokenizers' package (pip install tokenizers); "
            "a re-implementation on unicodedata gives other ids"
        ) from error
    return normalizers.Sequence(
        [
            normalizers.NFKC(),
            normalizers.NFD(),
            normalizers.StripAccents(),
            normalizers.Lowercase(),
            normalizers.Replace(Regex(r"[ \t\r\n]+"), " "),
            normalizers.Replace(Regex(r"\A \z"), _LONE_SPACE),
            normalizers.Strip(),
            normalizers.Replace(_LONE_SPACE, " "),
        ]
    )
