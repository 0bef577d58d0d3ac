# SPDX-License-Identifier: Apache-2.0
"""`obmm.nn.Embedding` in place of a frozen `torch.nn.Embedding`: the same rows."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import obmm
from obmm.errors import CopyError, ObmmArgumentError
from obmm.exchange import ArrayManifest

torch = pytest.importorskip("torch", reason="pip install torch")

from obmm.nn import Embedding  # noqa: E402 - needs torch


@pytest.fixture
def theirs():
    torch.manual_seed(3)
    return torch.nn.Embedding(500, 16)


@pytest.fixture
def ours(theirs, a, b):
    weight = theirs.weight.detach().numpy()
    with a.export_region(weight.nbytes, label="weight") as region:
        with region.map("rw") as m:
            with m.writing():
                m.write(0, weight)
            m.publish()
        manifest = ArrayManifest(weight.dtype, weight.shape).to_json()
        with obmm.serve({"weight": (region, manifest)}, port=0, plain=True, term_s=60) as server:
            with obmm.connect(f"127.0.0.1:{server.port}", plain=True) as peer, peer.open("weight", b) as table:
                yield Embedding.from_pretrained(table, padding_idx=0)


@pytest.mark.parametrize("kind", [torch.int32, torch.int64])
@pytest.mark.parametrize("shape", [(), (7,), (3, 5), (0,), (2, 0, 4)], ids=str)
def test_it_gives_torchs_rows_for_torchs_ids(theirs, ours, shape, kind):
    ids = torch.randint(0, 500, shape).to(kind)
    assert torch.equal(ours(ids), theirs(ids))


def test_it_stands_in_a_model(theirs, ours):
    head = torch.nn.Linear(16, 4)
    ids = torch.randint(0, 500, (2, 9))
    assert torch.equal(torch.nn.Sequential(ours, head)(ids), torch.nn.Sequential(theirs, head)(ids))


def test_it_describes_itself(ours):
    assert (ours.num_embeddings, ours.embedding_dim, ours.padding_idx) == (500, 16, 0)
    assert "500, 16, padding_idx=0" in repr(ours)
    assert list(ours.parameters()) == []


def test_a_tied_weight_is_a_copy(theirs, ours):
    assert torch.equal(ours.weight, theirs.weight)


@pytest.mark.parametrize(
    "ids", [torch.tensor([500]), torch.tensor([-1]), torch.tensor([1.0]), torch.tensor([True])], ids=str
)
def test_what_is_no_row_is_refused(ours, ids):
    with pytest.raises(ObmmArgumentError):
        ours(ids)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Embedding(np.zeros((3, 4, 5), "<f4")),
        lambda: Embedding(np.zeros((3, 4), "<f4"), padding_idx=3),
        lambda: Embedding.from_pretrained(np.zeros((3, 4), "<f4"), freeze=False),
    ],
)
def test_what_cannot_be_an_embedding_is_refused(make):
    with pytest.raises(ObmmArgumentError):
        make()


def test_bfloat16_rows_are_torchs():
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="pip install 'obmm[files]'")
    table = np.arange(40).reshape(10, 4).astype(ml_dtypes.bfloat16)
    rows = Embedding(table)(torch.tensor([9, 0]))
    assert rows.dtype == torch.bfloat16
    assert rows.tolist() == [[36, 37, 38, 39], [0, 1, 2, 3]]


FRESH = torch.arange(40.0).reshape(10, 4)
IDS = torch.tensor([[1, 2], [9, 0]])


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64])
def test_its_rows_have_the_type_that_the_model_was_moved_to(ours, theirs, kind):
    got, expected = ours.to(kind)(IDS), theirs.to(kind)(IDS)
    assert got.dtype == expected.dtype
    assert torch.equal(got, expected)


def test_a_models_checkpoint_is_loaded_over_it(ours, theirs):
    head = torch.nn.Linear(16, 4)
    checkpoint = torch.nn.Sequential(theirs, head).state_dict()
    loaded = torch.nn.Sequential(ours, torch.nn.Linear(16, 4)).load_state_dict(checkpoint)
    assert (loaded.missing_keys, loaded.unexpected_keys) == ([], [])
    assert list(ours.state_dict()) == []


@pytest.mark.parametrize("other", [torch.zeros(500, 16), torch.zeros(500, 8)], ids=["rows", "shape"])
def test_another_models_checkpoint_is_refused(ours, other):
    with pytest.raises(RuntimeError, match="weight is another table"):
        ours.load_state_dict({"weight": other})


def test_a_deep_copy_reads_the_same_table(ours, theirs):
    twin = copy.deepcopy(torch.nn.Sequential(ours))
    assert twin[0] is not ours
    assert torch.equal(twin(IDS), theirs(IDS))


def test_a_pickle_over_another_nodes_memory_is_refused(ours):
    with pytest.raises(CopyError):
        pickle.dumps(ours)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_model_gives_the_same(ours, theirs, backend):
    torch.compiler.reset()
    head = torch.nn.Linear(16, 4)
    compiled = torch.compile(torch.nn.Sequential(ours, head), backend=backend)
    assert torch.allclose(compiled(IDS), head(theirs(IDS)))


@pytest.mark.parametrize(
    "context",
    [torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu", dtype=torch.bfloat16)],
    ids=["no_grad", "inference_mode", "autocast"],
)
def test_a_context_of_torchs_changes_nothing(ours, theirs, context):
    with context():
        got, expected = ours(IDS), theirs(IDS)
    assert (got.dtype, torch.equal(got, expected)) == (expected.dtype, True)


@pytest.mark.parametrize(
    "ids",
    [IDS.t(), IDS[:, ::2], torch.tensor(3).expand(2, 2), IDS.to(torch.uint8)],
    ids=["turned", "steps", "one", "u8"],
)
def test_ids_that_are_not_contiguous(ours, theirs, ids):
    assert torch.equal(ours(ids), theirs(ids.long()))


def test_ids_without_data_give_rows_without_data(ours):
    rows = ours(torch.empty(3, dtype=torch.int64, device="meta"))
    assert (rows.is_meta, tuple(rows.shape)) == (True, (3, 16))


@pytest.mark.parametrize("ids", [[1, 2], np.array([1, 2]), None], ids=["list", "array", "none"])
def test_ids_that_are_no_tensor_are_one_sentence(ours, ids):
    with pytest.raises(ObmmArgumentError, match="ids of type"):
        ours(ids)


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float8_e4m3fn])
def test_a_tensor_is_a_source(kind):
    if kind != torch.float32:
        pytest.importorskip("ml_dtypes", reason="pip install 'obmm[files]'")
    weight = FRESH.to(kind)
    assert torch.equal(Embedding.from_pretrained(weight)(IDS).float(), weight[IDS].float())


@pytest.mark.parametrize("source", [None, [[1.0]], np.zeros((3, 4), ">f4"), np.zeros((3, 4), "U3"), torch.tensor(1.0)])
def test_what_is_no_table_is_refused(source):
    with pytest.raises(ObmmArgumentError, match="EMBEDDING"):
        Embedding(source)


@pytest.mark.parametrize("padding", [1.5, True, "1", -4])
def test_a_padding_that_is_no_row_is_refused(padding):
    with pytest.raises(ObmmArgumentError, match="padding_idx"):
        Embedding(np.zeros((3, 4), "<f4"), padding_idx=padding)


def test_what_torchs_layer_says_of_itself_it_says_too(ours, theirs):
    for name in ("max_norm", "norm_type", "scale_grad_by_freq", "sparse"):
        assert getattr(ours, name) == getattr(theirs, name)
