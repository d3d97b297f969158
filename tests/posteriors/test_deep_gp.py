"""Deep processes: one layer against a sparse process, several against their own draws."""

import pytest
import torch
from zoo.models import shaken
from zoo.stats import same_mean, same_variance

from credo.core.errors import DataError
from credo.core.seeds import generator, isolated
from credo.core.shell import Shell
from credo.posteriors import DeepGP, Posterior, RowNoise, SparseGP

pytest.importorskip("gpytorch", reason="the gp extra is not installed")
ROWS = torch.randn(30, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
NEW = torch.randn(6, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def deep(widths=(2,), outputs=2, size=0.2):
    return shaken(DeepGP.start(ROWS, outputs, widths, 8, generator(0)), size=size)


@torch.no_grad()
@pytest.mark.parametrize("joint", [False, True])
def test_one_layer_is_a_sparse_process(joint):
    ours, theirs = deep(widths=()), shaken(SparseGP.start("", ROWS, 2, 8, generator(0)), size=0.2)
    noise = RowNoise(0, range(4), len(NEW))
    torch.testing.assert_close(ours.outputs(NEW, noise, joint), theirs.outputs(NEW, noise, joint))
    torch.testing.assert_close(ours.average(NEW), theirs.average(NEW))
    assert torch.equal(ours.own_kl(), theirs.own_kl())
    mean, var = ours.conditionals(NEW, 7)
    assert mean.shape == (1, 6, 2) and torch.equal(var[0], theirs.marginals_at(NEW)[1])


@torch.no_grad()
def test_hidden_layers_start_near_a_linear_map():
    """At the training inputs that are inducing points: there the deviation is that of q, 0.003, and
    the root of the jitter, 0.001.
    """
    same = DeepGP.start(ROWS, 1, (3,), 30, generator(0)).layers[0]
    mean, var = same.marginals_at(ROWS)
    torch.testing.assert_close(mean, (ROWS - ROWS.mean(0)) / ROWS.std(0, correction=0))
    assert float(var.max().sqrt()) < 0.01
    wide = DeepGP.start(ROWS, 1, (5,), 30, generator(0)).layers[0].linear(ROWS)
    torch.testing.assert_close(wide, torch.cat([mean, torch.zeros(30, 2).double()], 1))


@torch.no_grad()
def test_narrow_layers_start_at_the_main_directions():
    line = torch.randn(200, 1, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    rows = torch.cat(
        [
            line,
            2 * line,
            torch.randn(200, 1, generator=torch.Generator().manual_seed(3), dtype=torch.float64),
        ],
        1,
    )
    kept = DeepGP.start(rows, 1, (1,), 8, generator(0)).layers[0].linear(rows)[:, 0]
    assert abs(float(torch.corrcoef(torch.stack([kept, line[:, 0]]))[0, 1])) > 0.99
    few = DeepGP.start(rows[:2], 1, (3,), 8, generator(0)).layers[0]
    assert few.inducing == 2


@torch.no_grad()
def test_joint_draws_have_the_marginals_of_the_others():
    family = deep()
    whole, apart = (
        family.outputs(NEW, RowNoise(k, range(1500), len(NEW)), bool(k)) for k in (0, 1)
    )
    same_mean(whole, apart)
    same_variance(whole, apart)


@torch.no_grad()
def test_a_joint_draw_is_a_function():
    """One value per input, wherever it is asked for; 0.02: what is left is twenty times the root of
    gpytorch's jitter, 0.001, over two layers.
    """
    twice = torch.cat([NEW, NEW])
    family = deep()
    drawn = family.outputs(twice, RowNoise(0, range(50), 12), True)
    assert (drawn[:, :6] - drawn[:, 6:]).abs().max() < 0.02
    apart = family.outputs(twice, RowNoise(0, range(50), 12), False)
    assert (apart[:, :6] - apart[:, 6:]).abs().mean() > 0.1


@torch.no_grad()
def test_the_mean_function_is_the_mean_of_draws():
    family = deep(size=0.1)
    drawn = family.outputs(NEW, RowNoise(0, range(4000), len(NEW)), False)
    with isolated(0):
        centre = family.conditionals(NEW, 4000)[0]
    same_mean(centre, drawn)
    parts = torch.cat([family.average(NEW[:2]), family.average(NEW[2:])])
    torch.testing.assert_close(parts, family.average(NEW))
    error = centre.std(0) * (1 / 256 + 1 / 4000) ** 0.5  # of means over 256 and over 4,000 draws
    assert bool(
        ((family.average(NEW) - centre.mean(0)).abs() < 5 * error + 1e-6).all()
    )  # z = 5, once in 1.7 million


@torch.no_grad()
@pytest.mark.parametrize("widths", [(), (2,), (4, 2)])
def test_batches_change_nothing(widths):
    family, noise = deep(widths), RowNoise(0, range(5), len(NEW))
    parts = [family.outputs(NEW[a:b], noise.at(a, b), False) for a, b in ((0, 2), (2, 6))]
    torch.testing.assert_close(torch.cat(parts, 1), family.outputs(NEW, noise, False))


def test_the_kl_is_summed_over_layers_and_gradients_reach_everything():
    family = deep((3, 2))
    assert torch.allclose(family.own_kl(), sum(layer.own_kl() for layer in family.layers))
    with isolated(0):
        mean, var = family.conditionals(ROWS, 2)
    assert mean.shape == var.shape == (2, 30, 2) and not torch.equal(mean[0], mean[1])
    (mean.square().sum() + var.sum() + family.own_kl()).backward()
    assert all(
        p.grad is not None and bool(torch.isfinite(p.grad).all()) for p in family.parameters()
    )


def test_it_is_rebuilt_from_its_description():
    posterior = Posterior([deep((4, 2))])
    again = Posterior.from_config(posterior.config())
    again.load_state_dict(posterior.state_dict(), assign=True)
    noise = RowNoise(0, range(3), len(NEW))
    assert posterior.process is not None and again.process is not None
    assert torch.equal(
        posterior.process.outputs(NEW, noise, False), again.process.outputs(NEW, noise, False)
    )
    assert again.config() == posterior.config()


def test_inputs_are_flattened_real_numbers():
    family, shell = deep(), Shell(torch.nn.Identity())
    assert family.read(shell, NEW.reshape(6, 1, 3)).shape == (6, 3)
    with pytest.raises(DataError, match=r"these are torch.int64: give real numbers"):
        family.read(shell, torch.zeros(4, 3, dtype=torch.long))
