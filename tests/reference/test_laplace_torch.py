"""laplace-torch as oracle: the same network, prior and data, to 1e-4 in covariances of functions,
evidence and probit probabilities.
"""

import copy
import re

import pytest
import torch
from torch import nn
from torch.distributions import Normal
from torch.utils.data import DataLoader, TensorDataset

from credo import BNN
from credo.curvature.linearised import linear_moments
from credo.likelihoods import Gaussian


def theirs():
    """Their package. It imports torchvision, whose compiled operators need not match torch and are
    not used: missing ones are declared.
    """
    declared = {}
    while True:
        try:
            import laplace

            return laplace, declared
        except ImportError as error:
            pytest.skip(f"laplace-torch is not installed ({error})", allow_module_level=True)
        except RuntimeError as error:
            missing = re.search(r"operator torchvision::(\w+) does not exist", str(error))
            if missing is None or missing[1] in declared:
                pytest.skip(
                    f"laplace-torch cannot be imported here ({str(error).splitlines()[0]})",
                    allow_module_level=True,
                )
            library = torch.library.Library("torchvision", "FRAGMENT")
            library.define(f"{missing[1]}(Tensor boxes, Tensor scores, float threshold) -> Tensor")
            declared[missing[1]] = library  # kept, or the declaration goes with it


laplace, _declared = theirs()
PRECISION = 2.0
FORMS = {"diagonal": "diag", "kfac": "kron", "full": "full"}
RTOL = 1e-4


def mlp(outputs=3):
    return nn.Sequential(
        nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, outputs)
    )


def cnn():
    body = [
        nn.Conv2d(1, 4, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 5, 3),
        nn.ReLU(),
        nn.Flatten(),
    ]
    return nn.Sequential(*body, nn.Linear(20, 3))


def problem(name):
    torch.manual_seed(0)
    net, x = (mlp(), torch.randn(40, 4)) if name == "mlp" else (cnn(), torch.randn(40, 1, 8, 8))
    return net.double(), x.double(), torch.randint(0, 3, (40,))


def both(net, x, y, subset, form, task="classification", **noise):
    likelihood = Gaussian(std=noise["sigma_noise"]) if noise else "categorical"
    prior = Normal(torch.zeros(()).double(), PRECISION**-0.5)
    ours = BNN(net, likelihood, prior=prior)
    ours.fit(
        (x, y), "laplace", structure=form, subset=subset, train=False, tune="none", progress=False
    )
    where = {"all": "all", "last": "last_layer"}[subset]
    other = laplace.Laplace(
        copy.deepcopy(net),
        task,
        subset_of_weights=where,
        hessian_structure=FORMS[form],
        prior_precision=PRECISION,
        **noise,
    )
    other.fit(DataLoader(TensorDataset(x, y), batch_size=40))
    return ours, other


def close(ours, other):
    scale = float(other.abs().max())
    assert float((ours - other).abs().max()) < RTOL * scale


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["mlp", "cnn"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("subset", ["all", "last"])
def test_classification(name, form, subset):
    net, x, y = problem(name)
    ours, other = both(net, x, y, subset, form)
    mean, cover = linear_moments(ours.model, ours.posterior, x[:6], {}, None, covariance=True)
    their_mean, their_cover = other._glm_predictive_distribution(x[:6])
    close(mean, their_mean.detach())
    close(cover, their_cover.detach())
    assert ours.history[-1]["log_evidence"] == pytest.approx(
        float(other.log_marginal_likelihood()), rel=RTOL
    )
    close(
        ours.predict(x[:6], shortcut="probit").mean,
        other(x[:6], pred_type="glm", link_approx="probit").detach(),
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["mlp", "cnn"])
@pytest.mark.parametrize("choice", ["largest_variance", "largest_magnitude", "masks"])
def test_subnetworks(name, choice):
    """The same single weights are chosen, and have the same covariances and evidence."""
    net, x, y = problem(name)
    size = {"mlp": 25, "cnn": 150}[
        name
    ]  # more than those behind units that no image turns on, which are all alike
    numel = sum(p.numel() for p in net.parameters())
    loader = DataLoader(TensorDataset(x, y), batch_size=40)
    if choice == "largest_variance":
        diagonal = laplace.DiagLaplace(
            copy.deepcopy(net), "classification", prior_precision=PRECISION
        )
        index = laplace.utils.LargestVarianceDiagLaplaceSubnetMask(net, size, diagonal).select(
            loader
        )
    elif choice == "largest_magnitude":
        index = laplace.utils.LargestMagnitudeSubnetMask(net, size).select()
    else:
        index = torch.arange(0, numel, 5)
    flat = torch.zeros(numel, dtype=torch.bool).index_fill(0, index, True)
    pieces = flat.split([p.numel() for p in net.parameters()])
    masks = {
        n: m.reshape(p.shape) for m, (n, p) in zip(pieces, net.named_parameters(), strict=True)
    }
    chosen = {"subset": masks} if choice == "masks" else {"subset": choice, "size": size}
    ours = BNN(net, "categorical", prior=Normal(torch.zeros(()).double(), PRECISION**-0.5))
    ours.fit(
        (x, y), "laplace", structure="full", train=False, tune="none", progress=False, **chosen
    )
    family = ours.posterior.factors[0]
    assert all(
        torch.equal(at, masks[n].reshape(-1).nonzero().reshape(-1))
        for n, at in family.local().items()
    )
    other = laplace.Laplace(
        copy.deepcopy(net),
        "classification",
        subset_of_weights="subnetwork",
        hessian_structure="full",
        subnetwork_indices=index,
        prior_precision=PRECISION,
    )
    other.fit(loader)
    close(family.covariance(), other.posterior_covariance.detach())
    _, cover = linear_moments(ours.model, ours.posterior, x[:6], {}, None, covariance=True)
    close(cover, other._glm_predictive_distribution(x[:6])[1].detach())
    assert ours.history[-1]["log_evidence"] == pytest.approx(
        float(other.log_marginal_likelihood()), rel=RTOL
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("form", FORMS)
def test_regression_with_two_outputs(form):
    torch.manual_seed(0)
    net, x, y = mlp(2).double(), torch.randn(40, 4).double(), torch.randn(40, 2).double()
    ours, other = both(net, x, y, "all", form, "regression", sigma_noise=0.5)
    _, cover = linear_moments(ours.model, ours.posterior, x[:6], {}, None, covariance=True)
    close(cover, other._glm_predictive_distribution(x[:6])[1].detach())
    assert ours.history[-1]["log_evidence"] == pytest.approx(
        float(other.log_marginal_likelihood()), rel=RTOL
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("form", FORMS)
def test_the_width_that_the_evidence_prefers(form):
    """Their gradient search over the log precision ends where ours does, once it has converged."""
    net, x, y = problem("mlp")
    _, other = both(net, x, y, "all", form)
    other.optimize_prior_precision(method="marglik", pred_type="glm", n_steps=2000, lr=0.05)
    tuned = BNN(net, "categorical", prior=Normal(0.0, 1.0))
    tuned.fit((x, y), "laplace", structure=form, train=False, progress=False)
    width = tuned.model.prior.at(tuned.model.sites["0.weight"]).scale
    assert float(width**-2) == pytest.approx(
        float(other.prior_precision.detach().reshape(-1)[0]), rel=1e-2
    )
    assert tuned.history[-1]["log_evidence"] >= float(other.log_marginal_likelihood()) - 1e-6
