"""Perturbed data, code lengths of a compressor, and likelihood ratios."""

import itertools
import math
import zlib

import numpy as np
import pytest
import torch
from zoo.latent import QUICK, STILL, binary, real, vae

from credo.core.errors import CredoError, DataError, SettingError
from credo.generative import Compressor, LikelihoodRatio, perturb

Z = 4.5  # a right mean is this many deviations off once in 150,000 runs, and seeds are fixed
NATS = 8.0 * math.log(2.0)  # of a byte


def grey(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def levels(*shape, top=256, seed=0):
    return torch.randint(0, top, shape, generator=torch.Generator().manual_seed(seed))


# --- perturb --------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0.05, 0.2, 0.9])
def test_a_share_of_grey_values_is_replaced_by_even_draws(rate):
    x = grey(100, 300)
    before = x.clone()
    out = perturb(x, rate, seed=3)
    changed = out != x
    n = x.numel()
    assert abs(int(changed.sum()) - rate * n) < Z * math.sqrt(n * rate * (1 - rate))
    new = out[changed].double()
    assert float(new.min()) >= 0.0 and float(new.max()) <= 1.0
    assert abs(float(new.mean()) - 0.5) < Z * math.sqrt(1 / 12 / len(new)), (
        "uniform: mean 1/2, variance 1/12"
    )
    assert abs(float(new.square().mean()) - 1 / 3) < Z * math.sqrt(4 / 45 / len(new)), (
        "u^2: mean 1/3, variance 4/45"
    )
    assert torch.equal(x, before), "the caller's data are left alone"


@pytest.mark.parametrize("value", [0.0, 1.0])
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool]
)
def test_binary_data_stay_binary_and_get_fair_coins(dtype, value):
    """A coin changes a pixel half the time: rate / 2 of them change, whatever they were."""
    x, rate = torch.full((100, 100), value).to(dtype), 0.3
    out = perturb(x, rate, seed=1)
    assert out.dtype == dtype and bool(((out == 0) | (out == 1)).all())
    p = rate / 2
    assert abs(int((out != x).sum()) - p * x.numel()) < Z * math.sqrt(x.numel() * p * (1 - p))


def test_where_is_not_what():
    """Replaced pixels of two halves of a batch have nothing to do with each other, nor places with
    values.
    """
    x = torch.full((200, 200), 0.5)
    out = perturb(x, 0.5, seed=0)
    changed = (out != x).double()
    assert abs(_correlation(changed[:100], changed[100:])) < Z / math.sqrt(20_000)
    place = torch.arange(x.numel(), dtype=torch.float64).reshape(x.shape)
    assert abs(_correlation(out[out != x].double(), place[out != x])) < Z / math.sqrt(
        int(changed.sum())
    )


def _correlation(a, b):
    return float(torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1])


def test_a_seed_fixes_it_and_the_callers_generator_is_left_alone():
    x, state = grey(20, 30), torch.get_rng_state()
    one, two, three = (perturb(x, 0.2, seed) for seed in (0, 0, 1))
    assert (
        torch.equal(one, two)
        and not torch.equal(one, three)
        and torch.equal(state, torch.get_rng_state())
    )


def test_shapes_and_precisions_are_kept():
    for x in (grey(4, 1, 5, 5), grey(7), grey(3, 2).double()):
        assert perturb(x).shape == x.shape and perturb(x).dtype == x.dtype


@pytest.mark.parametrize("rate", [0.0, 1.0, -0.1, 1.5, math.nan, True])
def test_bad_rates_are_refused(rate):
    with pytest.raises(SettingError, match="rate="):
        perturb(grey(2, 2), rate)


@pytest.mark.parametrize(
    "x",
    [levels(4, 6, top=32), levels(4, 6, top=32).float(), grey(4, 6) * 3, -grey(4, 6)],
    ids=["whole", "levels", "beyond", "below"],
)
def test_data_that_are_not_in_the_unit_interval_are_refused(x):
    """Draws of [0, 1] mean nothing there; nothing may be made of such data in silence."""
    with pytest.raises(CredoError, match=r"0.*1"):
        perturb(x, 0.5)


# --- compressor -----------------------------------------------------------------------------------


def length(*forms):
    return min(
        len(zlib.compress(bytes(np.asarray(form, dtype=np.uint8).ravel()), 9)) for form in forms
    )


def test_noise_is_stored_as_it_is():
    """No code is shorter than the bytes themselves, a header of 2, a block's 5 and a checksum of
    4.
    """
    x = levels(3, 28, 28).to(torch.uint8)
    assert torch.allclose(
        Compressor().log_marginal(x), torch.full((3,), -(784 + 11) * NATS, dtype=torch.float64)
    )


def test_the_shortest_of_three_codes_counts():
    i, j = np.meshgrid(np.arange(12), np.arange(12), indexing="ij")
    start = np.random.default_rng(0).integers(0, 256, (12, 1))
    images = {
        "plain": (i * 0 + 7) % 256,
        "rows": (start + 11 * j) % 256,
        "columns": (start.T + 11 * i) % 256,
    }
    found = {}
    for name, image in images.items():
        u = image.astype(np.uint8)
        across = np.concatenate([u[:, :1], (u[:, 1:].astype(int) - u[:, :-1]) % 256], 1)
        down = np.concatenate([u[:1], (u[1:].astype(int) - u[:-1]) % 256], 0)
        found[name] = length(u), length(down), length(across)
        value = float(Compressor().log_marginal(torch.from_numpy(u[None]))[0])
        assert value == pytest.approx(-min(found[name]) * NATS, abs=1e-9), name
    assert (
        min(found["rows"]) == found["rows"][2] < found["rows"][0]
        and min(found["columns"]) == found["columns"][1]
    )


def test_finer_patterns_have_longer_codes():
    """Noise in blocks of 28 pixels, 14, 7, 4, 2 and 1."""
    scores = []
    for size in (28, 14, 7, 4, 2, 1):
        blocks = levels(28 // size, 28 // size, seed=size).to(torch.uint8)
        image = blocks.repeat_interleave(size, 0).repeat_interleave(size, 1)
        scores.append(float(Compressor().log_marginal(image.unsqueeze(0))[0]))
    assert all(a > b for a, b in itertools.pairwise(scores)), scores


def test_flat_squares_are_images():
    x = torch.cat([grey(3, 28, 28), torch.linspace(0, 1, 28).expand(1, 28, 28)])
    flat, image, channel = (
        Compressor().log_marginal(form) for form in (x.flatten(1), x, x.unsqueeze(1))
    )
    assert flat.dtype == torch.float64 and flat.shape == (4,)
    assert torch.equal(flat, image) and torch.equal(image, channel)


@pytest.mark.parametrize("shape", [(5, 1), (5,), (5, 7), (5, 3, 4, 6), (5, 2, 3)])
def test_other_shapes_have_codes_too(shape):
    score = Compressor().log_marginal(grey(*shape))
    assert score.shape == (5,) and bool((score < 0).all())


def test_grey_values_are_taken_at_levels():
    whole = levels(6, 49, top=32)
    on_levels = Compressor(32).log_marginal(whole)
    assert torch.equal(on_levels, Compressor(32, unit=False).log_marginal(whole.float()))
    assert torch.equal(on_levels, Compressor(32).log_marginal(whole / 31)) and torch.equal(
        on_levels, Compressor(32).log_marginal((whole / 31).double())
    )
    noise = grey(4, 784)
    lengths = [float(-Compressor(n).log_marginal(noise).mean()) for n in (2, 4, 16, 64, 256)]
    assert lengths == sorted(lengths) and len(set(lengths)) == 5
    assert lengths[0] >= 784 * math.log(2), "noise of two levels has a bit per pixel"


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x.numpy(),
        lambda x: x.tolist(),
        lambda x: x.double(),
        lambda x: x.long(),
        lambda x: x.bool(),
    ],
)
def test_binary_data_of_every_kind(make):
    x = binary(5, 36)
    score = Compressor(2).log_marginal(make(x))
    assert torch.equal(score, Compressor(2).log_marginal(x))


def test_what_is_meant_for_a_model_means_nothing():
    x = grey(5, 16)
    assert torch.equal(
        Compressor().log_marginal(x), Compressor().log_marginal(x, 7, seed=3, batch_size=2)
    )


@pytest.mark.parametrize("value", [1, 0, 257, -3, 2.0, True, "256"])
def test_bad_levels_are_refused(value):
    with pytest.raises(SettingError, match="levels="):
        Compressor(value)


@pytest.mark.parametrize(
    "x",
    [
        torch.tensor([[-0.1, 0.5]]),
        torch.tensor([[300, 5]]),
        torch.tensor([[32.0, 5.0]]),
        torch.tensor([[-1, 5]]),
        torch.tensor([[math.nan, 0.5]]),
        torch.zeros(0, 4),
        {"a": torch.zeros(2, 2)},
        "text",
    ],
)
def test_data_that_have_no_levels_are_refused(x):
    with pytest.raises(DataError):
        Compressor(32).log_marginal(x)


def test_numbers_that_are_neither_in_the_unit_interval_nor_whole_are_refused():
    """0.3, 1.2 and 0.8 would become the levels 0, 1 and 1."""
    with pytest.raises(DataError, match=r"1\.2|\[0, 1\]"):
        Compressor().log_marginal(torch.tensor([[0.3, 1.2, 0.8]]))


# --- ratios ---------------------------------------------------------------------------------------


def test_a_model_is_as_likely_as_itself():
    model = vae().fit(real(), **QUICK)
    assert torch.equal(LikelihoodRatio(model, model).score(real(), k=5), torch.zeros(40))
    drawn = vae("bernoulli", binarise=True).fit(grey(40, 6), **QUICK)
    assert torch.equal(
        LikelihoodRatio(drawn, drawn).score(grey(40, 6), k=5, batch_size=7), torch.zeros(40)
    )


def test_a_score_is_the_difference_with_the_settings_passed_on():
    x = binary()
    model, other = (
        vae("bernoulli").fit(x, **QUICK),
        vae("bernoulli").fit(x, **QUICK | {"lr": 0.1}, seed=1),
    )
    for background in (other, Compressor()):
        score = LikelihoodRatio(model, background).score(x, k=7, seed=2, batch_size=9)
        wanted = model.log_marginal(x, 7, seed=2, batch_size=9) - background.log_marginal(
            x, 7, seed=2, batch_size=9
        )
        assert score.shape == (40,) and torch.equal(score, wanted)


def test_what_only_the_model_knows_scores_high():
    """Trained on one pattern, against a background of fair coins; a null of equal scores would have
    AUROC 1/2.
    """
    pattern = (torch.arange(6) % 2).float().expand(60, 6)
    options = QUICK | {"epochs": 60, "lr": 0.05}
    ratio = LikelihoodRatio(
        vae("bernoulli").fit(pattern, **options),
        vae("bernoulli").fit(binary(200, seed=2), **options),
    )
    assert float(ratio.score(pattern[:5], k=20).min()) > float(
        ratio.score(1 - pattern[:5], k=20).max()
    )


def test_models_of_other_data_are_refused():
    with pytest.raises(SettingError, match=r"\(6,\) and \(5,\)"):
        LikelihoodRatio(vae().fit(real(), **STILL), vae(d=5).fit(real(40, 5), **STILL))


def test_a_model_that_is_not_fitted_is_refused():
    with pytest.raises(CredoError, match="not fitted yet"):
        LikelihoodRatio(vae(), vae())
    with pytest.raises(CredoError, match="not fitted yet"):
        LikelihoodRatio(vae(), Compressor()).score(real())
