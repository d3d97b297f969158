import pytest
import torch
from torch import nn

import credo
from credo import compress
from credo.core.errors import NetworkError, RunError

X = torch.randn(120, 6, generator=torch.Generator().manual_seed(0))
Y = ((X[:, 0] + X[:, 1]) > 0).long()


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 2))


@pytest.fixture(scope="module")
def bnn():
    return credo.BNN(net(), "categorical").fit(
        (X, Y), "sparse_vd", epochs=40, batch_size=30, lr=1e-2, progress=False
    )


def test_a_posterior_becomes_a_file_and_the_file_a_network(bnn, tmp_path):
    told = compress.encode(bnn, tmp_path / "a.credo", note="digits")
    back = compress.decode(tmp_path / "a.credo", net())
    codes = compress.quantise(compress.prune(bnn))
    assert torch.allclose(back(X), codes.fill(net())(X), atol=1e-6), "units may have changed places"
    assert told.bytes == (tmp_path / "a.credo").stat().st_size < told.float32_bytes / 4
    assert compress.read_note(tmp_path / "a.credo") == "digits"
    with pytest.raises(NetworkError, match="another network"):
        compress.decode(tmp_path / "a.credo", nn.Linear(6, 2))
    (tmp_path / "a.credo").write_bytes((tmp_path / "a.credo").read_bytes()[:-3])
    with pytest.raises(RunError, match="cut or altered"):
        compress.decode(tmp_path / "a.credo", net())


def test_codes_alone_need_their_network(bnn, tmp_path):
    pruned = compress.prune(bnn)
    codes = compress.quantise(pruned)
    with pytest.raises(NetworkError, match="give net="):
        compress.encode(codes, tmp_path / "a.credo")
    compress.encode(codes, tmp_path / "a.credo", net=net())
    assert torch.allclose(
        compress.decode(tmp_path / "a.credo", net())(X), codes.fill(net())(X), atol=1e-6
    )


def test_tidying_adds_zeros_and_changes_no_output(bnn):
    pruned = compress.prune(bnn, threshold=0.0)
    tidy = compress.tidy(pruned, X[:10])
    assert tidy.nonzero < pruned.nonzero and torch.allclose(tidy.net(X), pruned.net(X), atol=1e-5)
    slim = compress.slim(tidy, X[:10])
    assert torch.allclose(slim(X), pruned.net(X), atol=1e-5)
    assert all(
        not p[~tidy.masks[n]].any() for n, p in tidy.net.named_parameters() if n in tidy.masks
    )


@pytest.mark.parametrize(
    "call, told",
    [
        (lambda bnn: compress.slim(bnn, X[:2, :3]), "cannot run on the example"),
        (lambda bnn: compress.tidy(bnn, X[:2, :3]), "cannot run on the example"),
        (lambda bnn: compress.score(net(), bnn, (X[:, :3], Y)), "cannot run on these inputs"),
        (
            lambda bnn: compress.sparsity(3),
            "Expected a fitted BNN, what prune gave, or a network; got int",
        ),
        (lambda bnn: compress.prune(net()), "expected a fitted BNN, got Sequential"),
        (lambda bnn: compress.prune(bnn, threshold="3"), "threshold='3' is not valid"),
        (
            lambda bnn: compress.fine_tune(compress.prune(bnn), bnn, (X, Y), epochs=-1),
            "epochs=-1 is not valid",
        ),
        (
            lambda bnn: compress.fine_tune(compress.prune(bnn), bnn, (X, Y), batch_size=0),
            "batch_size=0 is not valid",
        ),
        (
            lambda bnn: compress.fine_tune(compress.prune(bnn), bnn, (X, Y), lr=0.0),
            "lr=0.0 is not valid",
        ),
    ],
)
def test_mistakes_are_said_in_one_sentence(bnn, call, told):
    with pytest.raises(credo.CredoError, match=told):
        call(bnn)


def test_a_posterior_is_quantised_as_it_would_be_pruned(bnn):
    pruned = compress.prune(bnn)
    assert compress.quantise(bnn).nonzero == compress.quantise(
        pruned
    ).nonzero and compress.precision(bnn) == compress.precision(pruned)
