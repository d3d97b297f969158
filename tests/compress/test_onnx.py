"""An ONNX file gives what the network, or the ensemble of draws, gives under PyTorch, for any
number of examples.
"""

import importlib

import pytest
import torch
from torch import nn

import credo
from credo.compress.onnx import Ensemble, ensemble, opened, session, to_onnx
from credo.compress.pruned import Pruned
from credo.compress.slim import slim
from credo.compress.slim_report import report
from credo.core.errors import CredoError, RunError, SettingError

pytest.importorskip("onnxruntime")
CLOSE = {"rtol": 1e-4, "atol": 1e-6}  # float32 sums in another order
QUICK = {"epochs": 3, "progress": False}


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def normed():
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64, 12),
        nn.ReLU(),
        nn.Linear(12, 3),
    )
    with torch.no_grad():
        net[1].running_mean.copy_(normal(4))
        net[1].running_var.copy_(normal(4, seed=1).exp())
    return net.eval()


@pytest.fixture(scope="module")
def labels():
    x = normal(40, 3)
    torch.manual_seed(0)
    return credo.BNN(credo.nets.mlp(3, [8], 2)).fit((x, (x[:, 0] > 0).long()), "vi", **QUICK)


@pytest.mark.parametrize("examples", [1, 4])
def test_a_plain_network_with_batch_normalisation(tmp_path, examples):
    net, x = normed(), normal(7, 1, 8, 8)
    path = to_onnx(net, tmp_path / "net.onnx", x[:examples])
    assert [p.name for p in tmp_path.iterdir()] == ["net.onnx"] and path == tmp_path / "net.onnx"
    for size in (1, 7):
        torch.testing.assert_close(opened(path)(x[:size])[0], net(x[:size]).detach(), **CLOSE)


def test_the_mean_network_of_a_posterior(tmp_path, labels):
    x = normal(9, 3, seed=2)
    (outputs,) = opened(to_onnx(labels, tmp_path / "mean.onnx", x[:2]))(x)
    torch.testing.assert_close(outputs, labels.predict(x, shortcut="mean").outputs[0], **CLOSE)


def test_an_ensemble_of_draws_gives_the_predictive_mean_and_variance(tmp_path, labels):
    x = normal(9, 3, seed=2)
    path = to_onnx(labels, tmp_path / "draws.onnx", x[:2], samples=5, seed=3)
    predicted = labels.predict(x, samples=5, seed=3)
    for found, expected in zip(opened(path)(x), (predicted.mean, predicted.variance), strict=True):
        torch.testing.assert_close(found, expected, **CLOSE)


@pytest.mark.parametrize(
    ("likelihood", "outputs", "random"),
    [
        ("gaussian", 1, "all"),
        ("heteroscedastic", 2, "last"),
        ("poisson", 1, "weights"),
        ("student_t", 1, "all"),
    ],
)
def test_ensembles_of_other_likelihoods(likelihood, outputs, random):
    """As modules: the same equations are then written; files of them are tested above."""
    x = normal(30, 3)
    y = (
        x[:, :1].exp().round()
        if likelihood == "poisson"
        else x[:, :1] + 0.1 * normal(30, 1, seed=1)
    )
    bnn = credo.BNN(credo.nets.mlp(3, [6], outputs), likelihood, random=random).fit(
        (x, y), "vi", **QUICK
    )
    predicted = bnn.predict(x, samples=4)
    for found, expected in zip(
        ensemble(bnn, 4)(x), (predicted.mean, predicted.variance), strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_regression_with_a_deterministic_part_that_all_draws_share(tmp_path):
    x = normal(30, 3)
    bnn = credo.BNN(credo.nets.mlp(3, [6], 1), "gaussian", random="last").fit(
        (x, x[:, :1]), "vi", **QUICK
    )
    members = ensemble(bnn, 3).members
    assert len({id(m.get_parameter("0.weight")) for m in members}) == 1
    predicted = bnn.predict(x, samples=3)
    for found, expected in zip(
        opened(to_onnx(bnn, tmp_path / "a.onnx", x, samples=3))(x),
        (predicted.mean, predicted.variance),
        strict=True,
    ):
        torch.testing.assert_close(found, expected, **CLOSE)


def test_the_members_of_a_deep_ensemble_are_exported_once_each():
    x = normal(30, 3)
    bnn = credo.BNN(credo.nets.mlp(3, [4], 2)).fit(
        (x, (x[:, 0] > 0).long()), "deep_ensemble", members=2, **QUICK
    )
    both = ensemble(bnn, 10)
    assert len(both.members) == 2
    torch.testing.assert_close(both(x)[0], bnn.predict(x).mean, rtol=1e-5, atol=1e-6)
    with pytest.raises(CredoError, match="mean of several modes"):
        to_onnx(bnn, "nowhere.onnx", x)


def test_slimmed_and_pruned_networks_and_their_speed():
    net, x = normed(), normal(3, 1, 8, 8)
    with torch.no_grad():
        net[5].weight[4:] = 0
        net[0].weight[2:] = 0
    small = slim(Pruned(net, {}, {}, "by hand", 0.0), x)
    assert small[5].out_features == 4
    torch.testing.assert_close(session(small, x)(x)[0], net(x).detach(), **CLOSE)
    found = report(net, small, x, rounds=1, runtime=session)
    assert set(found.seconds) == {1, 64} and all(min(pair) > 0 for pair in found.seconds.values())


def test_a_graph_module_with_taken_inputs(tmp_path):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Linear(600, 80), nn.Linear(80, 80), nn.Linear(80, 2)

        def forward(self, x):
            x = self.a(x).relu()
            return self.c(x + self.b(x))

    net, x = Two().eval(), normal(3, 600)
    with torch.no_grad():
        net.a.weight[:, 20:] = 0
        net.a.weight[40:] = 0
        net.b.weight[40:] = 0
    small = slim(net, x)
    torch.testing.assert_close(
        opened(to_onnx(small, tmp_path / "a.onnx", x))(x)[0], net(x).detach(), **CLOSE
    )


# --- refusals -------------------------------------------------------------------------------------


def test_samples_need_draws_of_weights(labels):
    x = normal(20, 3)
    with pytest.raises(SettingError, match="samples=3 needs a BNN"):
        to_onnx(normed(), "nowhere.onnx", x, samples=3)
    with pytest.raises(SettingError, match="samples=0"):
        to_onnx(labels, "nowhere.onnx", x, samples=0)
    laplace = credo.BNN(credo.nets.mlp(3, [4], 2)).fit(
        (x, (x[:, 0] > 0).long()), "laplace", **QUICK
    )
    with pytest.raises(CredoError, match="no ensemble of networks: it predicts by"):
        to_onnx(laplace, "nowhere.onnx", x, samples=3)
    process = credo.BNN(credo.nets.mlp(3, [4], 1), "gaussian", credo.priors.FanIn(std=1.0)).fit(
        (x, x[:, :1]), "nngp", progress=False
    )
    for samples in (None, 3):
        with pytest.raises(CredoError, match="Gaussian process|draws functions"):
            to_onnx(process, "nowhere.onnx", x, samples=samples)


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(3, 2)

    def forward(self, x):
        return self.a(x) if x.sum() > 0 else -self.a(x)


def test_what_cannot_be_written_leaves_no_file(tmp_path):
    with pytest.raises(CredoError, match="Branching cannot be written as ONNX"):
        to_onnx(Branching(), tmp_path / "a.onnx", normal(2, 3))
    with pytest.raises(RunError, match="Cannot write"):
        to_onnx(nn.Linear(3, 2), tmp_path / "missing" / "a.onnx", normal(2, 3))
    assert list(tmp_path.iterdir()) == []


def test_a_network_that_differs_in_the_file_is_refused(tmp_path):
    class Noisy(nn.Module):
        def forward(self, x):
            return x + torch.rand_like(x)

    with pytest.raises(CredoError, match="differ by"):
        to_onnx(Noisy(), tmp_path / "a.onnx", normal(2, 3))
    assert list(tmp_path.iterdir()) == []


def test_a_missing_package_is_named_with_what_to_install(monkeypatch, tmp_path):
    found = importlib.import_module

    def missing(name, *rest):
        if name == "onnxscript":
            raise ImportError(name)
        return found(name, *rest)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(CredoError, match=r"'onnxscript'.*pip install 'credo-bayes\[onnx\]'"):
        to_onnx(nn.Linear(3, 2), tmp_path / "a.onnx", normal(2, 3))


def test_too_large_for_one_file_is_refused_before_writing(tmp_path):
    huge = nn.Linear(1 << 15, 1 << 15, device="meta")
    with pytest.raises(CredoError, match="4,295,098,368 bytes"):
        to_onnx(huge, tmp_path / "a.onnx", normal(2, 3))


def test_the_ensemble_keeps_its_likelihood_as_it_was(labels):
    one = ensemble(labels, 2)
    assert (
        isinstance(one, Ensemble) and one.likelihood is not labels.likelihood and not one.training
    )
