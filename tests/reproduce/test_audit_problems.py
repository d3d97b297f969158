"""Tests of the three problems that all methods are audited on, and of the settings each method gets
there.
"""

import pytest
import torch

from credo.core.errors import DataError
from credo.engine.method import make_method
from credo.likelihoods import Categorical
from credo.methods import methods
from credo_reproduce.audit_problems import DESCENT, NOT_APPLICABLE, PROBLEMS, SETTINGS

OF_FIT = {"epochs", "lr", "batch_size"}


def problem(name):
    try:
        return PROBLEMS[name]()
    except DataError as error:
        pytest.skip(f"needs the yacht data: {error}")


@pytest.mark.parametrize("name", PROBLEMS)
def test_data_are_the_same_every_time(name):
    a, b = problem(name), problem(name)
    torch.rand(3)  # the global generator plays no part
    for one, other in zip((*a.train, *a.test), (*b.train, *b.test), strict=True):
        assert torch.equal(one, other)
    assert a.name == name


@pytest.mark.parametrize("name", PROBLEMS)
def test_every_model_starts_from_the_same_network_under_the_standard_prior(name):
    found = problem(name)
    state = torch.get_rng_state()
    one, two = found.bnn(), found.bnn()
    assert torch.equal(state, torch.get_rng_state()) and one.net is not two.net
    for a, b in zip(one.net.parameters(), two.net.parameters(), strict=True):
        assert torch.equal(a, b)
    for site in one.random.values():
        law = one.prior.at(site)
        assert float(law.mean.reshape(-1)[0]) == 0.0 and float(law.stddev.reshape(-1)[0]) == 1.0
    # noise is known, so there is one posterior
    assert not any(p.requires_grad for p in one.likelihood.parameters())


@pytest.mark.parametrize("name", PROBLEMS)
def test_data_fit_the_network_and_are_of_unit_size(name):
    found = problem(name)
    x, y = found.train
    for inputs, targets in (found.train, found.test):
        assert len(inputs) == len(targets) and inputs.isfinite().all()
        assert found.bnn().functions(inputs[:3], 2, source="prior").shape[:2] == (2, 3)
    # Standardised, or drawn so: 40 draws of N(0, 1) have a deviation within 0.6 to 1.4 but once in
    # 10^4.
    assert (
        float(x.mean(0).abs().max()) < 0.6
        and float(x.std(0).min()) > 0.4
        and float(x.std(0).max()) < 1.6
    )
    if isinstance(found.likelihood, Categorical):
        assert set(y.tolist()) == {0, 1} and 0.3 < float(y.double().mean()) < 0.7
    else:
        assert y.dim() == 2 and 0.5 < float(y.std()) < 2.0


def test_train_and_test_do_not_share_rows():
    for name in ("linear", "crescents"):
        (x, _), (new, _) = problem(name).train, problem(name).test
        assert float(torch.cdist(x, new).min()) > 0


def test_the_yacht_is_standardised_on_its_training_rows():
    found = problem("yacht")
    for part in found.train:
        assert torch.allclose(part.mean(0), torch.zeros(part.shape[1]), atol=1e-4)
        assert torch.allclose(part.std(0), torch.ones(part.shape[1]), atol=1e-3)
    assert len(found.train[1]) + len(found.test[1]) == 308


def test_crescents_can_be_told_apart_but_not_by_a_line():
    """Least squares on the inputs is right less often than on angles' own curves: there is
    something for a network to do.
    """
    x, y = problem("crescents").test
    design = torch.cat([x, torch.ones(len(x), 1)], 1)
    guess = design @ torch.linalg.lstsq(design, 2.0 * y.float().unsqueeze(1) - 1).solution
    straight = float(((guess[:, 0] > 0) == (y == 1)).double().mean())
    curved = torch.cat([design, x.square(), x**3, x.prod(1, keepdim=True)], 1)
    guess = curved @ torch.linalg.lstsq(curved, 2.0 * y.float().unsqueeze(1) - 1).solution
    assert 0.7 < straight < float(((guess[:, 0] > 0) == (y == 1)).double().mean())


@pytest.mark.parametrize("method", methods.names())
def test_every_method_is_run_with_settings_it_takes_or_is_set_apart_with_a_reason(method):
    if method in NOT_APPLICABLE:
        assert len(NOT_APPLICABLE[method]) > 10 and method not in SETTINGS
        return
    given = SETTINGS.get(method, DESCENT)
    make_method(method, {key: value for key, value in given.items() if key not in OF_FIT})
    assert "epochs" not in given  # the experiment's own setting


def test_nothing_is_set_for_a_method_that_does_not_exist():
    assert {*SETTINGS, *NOT_APPLICABLE} <= set(methods.names())
    assert all(0 < problem_of().lr < 1 for name, problem_of in PROBLEMS.items() if name != "yacht")
