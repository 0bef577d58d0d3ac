# SPDX-License-Identifier: Apache-2.0
"""`obmm.nn.Embedding` in place of a frozen `torch.nn.Embedding`: the same rows."""

from __future__ import annotations

import numpy as np
import pytest

import obmm
from obmm.errors import ObmmArgumentError
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
