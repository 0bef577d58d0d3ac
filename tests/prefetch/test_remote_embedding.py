# SPDX-License-Identifier: Apache-2.0
"""`RemoteEngramEmbedding` against a plain local computation, bit for bit (Engram specification 3, 8.1, 10)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import oracle
import pytest
from pool_node import config

import obmm
from obmm import emulator
from obmm.errors import ObmmArgumentError
from obmm.prefetch import ExportedHistory
from obmm.prefetch.pool import EngramPool, EngramPrefetcher

torch = pytest.importorskip("torch", reason="torch is not installed")

V, M, K, N, EOS = 200, 40, 2, 3, 2
COLUMNS = K * (N - 1)
ROW = 16


def weights(table: int) -> Any:
    return torch.randn(M + 2 * table + 1, ROW, generator=torch.Generator().manual_seed(table))


@pytest.fixture(scope="module")
def pool() -> Iterator[EngramPool]:
    with emulator.start(nodes=1) as fabric, obmm.open(fabric.device()) as device:
        made = EngramPool(config(num_tables=COLUMNS, embedding_dim=ROW), device=device)
        made.initialize()
        for table in range(COLUMNS):
            made.load_table(table, weights(table))
        yield made
        made.shutdown()


def embedding(pool: EngramPool, hidden: int = ROW, dtype: Any = None) -> Any:
    from obmm.prefetch.pool import RemoteEngramEmbedding

    torch.manual_seed(1)
    return RemoteEngramEmbedding(V, hidden, M, K, N, EngramPrefetcher(pool), eos=EOS).to(dtype or torch.float32)


class Request:
    """One request of an engine: all of its tokens, and how many of them were in batches."""

    def __init__(self, slot: int, tokens: list[int]) -> None:
        self.slot, self.tokens, self.done = slot, tokens, 0


def batch(pieces: list[tuple[Request, int]], **more: Any) -> SimpleNamespace:
    """The next so many tokens of each request."""
    tokens, positions = [], []
    for request, count in pieces:
        places = range(request.done, request.done + count)
        positions += places
        tokens += [request.tokens[place] for place in places]
        request.done += count
    return SimpleNamespace(
        input_ids=torch.tensor(tokens, dtype=torch.int64),
        positions=torch.tensor(positions, dtype=torch.int64),
        req_pool_indices=torch.tensor([request.slot for request, _ in pieces], dtype=torch.int64),
        extend_seq_lens=torch.tensor([count for _, count in pieces], dtype=torch.int64),
        **more,
    )


def local(module: Any, sequences: list[tuple[list[int], list[int]]]) -> Any:
    """The same from tables in this process: (tokens of the request, places in the batch) for each request."""
    tokens = torch.tensor([sequence[t] for sequence, places in sequences for t in places], dtype=torch.int64)
    flat = [
        oracle.poly_row(oracle.look_back(sequence, t, N), V, M, N, K, EOS)
        for sequence, places in sequences
        for t in places
    ]
    ids = torch.tensor(flat, dtype=torch.int64).reshape(-1, COLUMNS)
    total = torch.nn.functional.embedding(tokens, module.word_embedding.weight)
    offset = 0
    for table in range(COLUMNS):
        rows = weights(table).to(total.dtype)[ids[:, table] - offset]
        offset += M + 2 * table + 1
        total = total + (module.projections[table](rows) if module.projections else rows)
    return total / (1 + COLUMNS)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("hidden", [ROW, ROW * COLUMNS])
def test_word_and_remote_parts_are_averaged_bit_for_bit(pool: EngramPool, hidden: int, dtype: Any) -> None:
    """Prefill in chunks, then decode, of several requests at once; rows of the hidden size, or projected to it."""
    module = embedding(pool, hidden, dtype)
    random = np.random.default_rng(4)
    requests = [Request(slot, random.integers(0, V, 40).tolist()) for slot in (5, 0, 3)]
    requests[1].tokens[4:9] = [EOS, 7, EOS, EOS, 1]
    with torch.no_grad():
        for counts in ([9, 5, 1], [3, 4, 2], *[[1, 1, 1]] * 6):
            begun = [request.done for request in requests]
            made = batch(list(zip(requests, counts, strict=True)))
            if counts == [1, 1, 1]:
                made.extend_seq_lens = None  # decode: as many tokens for every request
            module.trigger_prefetch(made)
            result = module(made.input_ids, made)
            places = [list(range(at, at + count)) for at, count in zip(begun, counts, strict=True)]
            expected = local(module, [(request.tokens, p) for request, p in zip(requests, places, strict=True)])
            assert result.dtype == dtype
            assert torch.equal(result, expected)


def test_rows_that_were_not_triggered_are_read_in_forward(pool: EngramPool) -> None:
    module, request = embedding(pool), Request(0, [5, 6, 7])
    made = batch([(request, 3)])
    assert torch.equal(module(made.input_ids, made), local(module, [(request.tokens, [0, 1, 2])]))


def test_two_batches_may_be_under_way(pool: EngramPool) -> None:
    """The next batch is triggered before the forward of this one; a second trigger of one batch changes nothing."""
    module, request = embedding(pool), Request(0, list(range(10, 30)))
    first, second = batch([(request, 8)]), batch([(request, 4)])
    for made in (first, second, first):
        module.trigger_prefetch(made)
    assert torch.equal(module(first.input_ids, first), local(module, [(request.tokens, list(range(8)))]))
    assert torch.equal(module(second.input_ids, second), local(module, [(request.tokens, list(range(8, 12)))]))
    assert module.history.position(0) == 12


def test_padding_and_warm_up_have_the_word_part_only(pool: EngramPool) -> None:
    module, request = embedding(pool), Request(0, [5, 6, 7])
    words = module.word_embedding.weight
    warm_up = torch.tensor([1, 2], dtype=torch.int64)
    assert torch.equal(module(warm_up), words[warm_up] / (1 + COLUMNS))
    made = batch([(request, 3)])
    result = module(torch.cat([made.input_ids, torch.zeros(5, dtype=torch.int64)]), made)
    assert torch.equal(result[:3], local(module, [(request.tokens, [0, 1, 2])]))
    assert torch.equal(result[3:], words[[0] * 5] / (1 + COLUMNS))


def test_an_idle_rank_has_no_tokens(pool: EngramPool) -> None:
    module = embedding(pool)
    for made in (batch([]), batch([], ngram_history=torch.empty(0, N - 1, dtype=torch.int64), rids=[])):
        module.trigger_prefetch(made)
        assert module(made.input_ids, made).shape == (0, ROW)


def test_a_slots_next_owner_does_not_see_the_one_before(pool: EngramPool) -> None:
    module = embedding(pool)
    old, new = Request(3, list(range(50, 60))), Request(3, list(range(60, 70)))
    for request in (old, new):
        made = batch([(request, 6)])
        assert torch.equal(module(made.input_ids, made), local(module, [(request.tokens, list(range(6)))]))
    assert len(module.history) == 1


def test_a_named_request_is_known_in_any_slot_and_goes_when_its_slot_is_taken(pool: EngramPool) -> None:
    module = embedding(pool)
    moved, other = Request(3, list(range(50, 60))), Request(3, list(range(60, 70)))
    made = batch([(moved, 4)], rids=["moved"])
    module(made.input_ids, made)
    moved.slot = 7
    made = batch([(moved, 2), (other, 2)], rids=["moved", "other"])
    expected = local(module, [(moved.tokens, [4, 5]), (other.tokens, [0, 1])])
    assert torch.equal(module(made.input_ids, made), expected)
    third = Request(7, list(range(70, 80)))
    made = batch([(third, 2)], rids=["third"])
    module(made.input_ids, made)
    assert "moved" not in module.history
    assert len(module.history) == 2


def test_rejected_drafts_are_taken_back(pool: EngramPool) -> None:
    module, request = embedding(pool), Request(0, [5, 6, 7, 8, 9, 10, 11])
    drafts = Request(0, [5, 6, 7, 90, 91])
    made = batch([(drafts, 5)], rids=["r"])
    module(made.input_ids, made)
    request.done = 3
    made = batch([(request, 2)], rids=["r"])
    assert torch.equal(module(made.input_ids, made), local(module, [(request.tokens, [3, 4])]))


def test_a_history_that_is_not_known_is_not_guessed(pool: EngramPool) -> None:
    """A cached prefix without its tokens, a slot without a name that falls back: an error, and nothing is pending."""
    module, request = embedding(pool), Request(0, list(range(20, 40)))
    request.done = 4
    with pytest.raises(ObmmArgumentError, match="import_"):
        module.trigger_prefetch(batch([(request, 2)]))
    request.done = 4
    module.history.import_(0, ExportedHistory(4, (23, 22)))
    made = batch([(request, 2)])
    assert torch.equal(module(made.input_ids, made), local(module, [(request.tokens, [4, 5])]))
    request.done = 3
    with pytest.raises(ObmmArgumentError, match="is at 6, not at 3"):
        module.trigger_prefetch(batch([(request, 1)]))


def test_an_engine_that_carries_the_history_is_believed(pool: EngramPool) -> None:
    module, request = embedding(pool), Request(0, list(range(20, 40)))
    request.done = 4
    made = batch([(request, 2)], ngram_history=torch.tensor([[23, 22]]))
    assert torch.equal(module(made.input_ids, made), local(module, [(request.tokens, [4, 5])]))
    assert len(module.history) == 0


def test_a_cancelled_batch_leaves_the_history_as_it_was(pool: EngramPool) -> None:
    module, request = embedding(pool), Request(0, list(range(20, 60)))
    made = batch([(request, 5)])
    module(made.input_ids, made)
    aborted = batch([(request, 30)])
    module.trigger_prefetch(aborted)
    module.cancel(aborted)
    module.cancel(aborted)
    request.done = 5
    made = batch([(request, 3)])
    assert torch.equal(module(made.input_ids, made), local(module, [(request.tokens, [5, 6, 7])]))


def test_a_failed_read_leaves_the_history_for_another_try(pool: EngramPool, monkeypatch: pytest.MonkeyPatch) -> None:
    module, request = embedding(pool), Request(0, list(range(20, 60)))
    made = batch([(request, 5)])
    with monkeypatch.context() as broken:
        broken.setattr(module._prefetcher, "wait_and_gather", lambda _: (_ for _ in ()).throw(TimeoutError("late")))
        with pytest.raises(TimeoutError):
            module(made.input_ids, made)
    assert module.history.position(0) == 0
    assert torch.equal(module(made.input_ids, made), local(module, [(request.tokens, list(range(5)))]))


def test_batches_that_do_not_fit_are_refused(pool: EngramPool) -> None:
    module = embedding(pool)
    one, two = Request(0, [1, 2, 3]), Request(0, [4, 5, 6])
    for wrong, text in (
        (batch([(one, 2), (two, 1)]), "a request twice"),
        (SimpleNamespace(**(vars(batch([(one, 1)])) | {"extend_seq_lens": torch.tensor([2])})), "1 input_ids"),
        (SimpleNamespace(**(vars(batch([(two, 1)])) | {"rids": ["a", "b"]})), "2 rids"),
        (SimpleNamespace(**(vars(batch([(two, 1)])) | {"positions": torch.tensor([])})), "0 positions"),
    ):
        with pytest.raises(ObmmArgumentError, match=text):
            module.trigger_prefetch(wrong)
    with pytest.raises(ObmmArgumentError, match="is -1"):  # a place-holder never reaches a table (condition 20)
        module.trigger_prefetch(batch([(Request(1, [-1]), 1)]))
    made = [batch([(Request(slot, [1]), 1)]) for slot in range(9)]
    for each in made[:8]:
        module.trigger_prefetch(each)
    with pytest.raises(ObmmArgumentError, match="8 batches"):
        module.trigger_prefetch(made[8])


def test_it_is_a_module_like_any_other(pool: EngramPool) -> None:
    module = embedding(pool, ROW * COLUMNS)
    assert isinstance(module, torch.nn.Module)
    names = ["word_embedding.weight", *(f"projections.{table}.weight" for table in range(COLUMNS))]
    assert list(module.state_dict()) == names
    other = embedding(pool, ROW * COLUMNS)
    torch.nn.init.zeros_(other.word_embedding.weight)
    other.load_state_dict(module.state_dict())
    request = Request(0, [5, 6, 7])
    made = batch([(request, 3)])
    result = other(made.input_ids, made)
    assert torch.equal(result, local(module, [(request.tokens, [0, 1, 2])]))
    result.sum().backward()
    assert other.projections[0].weight.grad is not None


def test_without_torch_the_pool_still_imports_and_the_module_says_what_it_needs() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from obmm.prefetch import pool\n"
        "try:\n    pool.RemoteEngramEmbedding\n"
        "except ImportError as error:\n    assert 'pip install torch' in str(error), error\n"
        "else:\n    raise SystemExit('no error')\n"
        "assert not hasattr(pool, 'SomethingElse')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
