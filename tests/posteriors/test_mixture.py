import pytest
import torch
from zoo.families import MAKERS, values
from zoo.stats import has_mean

from credo.core.errors import CredoError
from credo.core.seeds import Streams
from credo.posteriors import Delta, MeanField, Mixture, Posterior


def test_components_are_picked_with_their_weights():
    points = [Posterior([Delta.start({"w": torch.tensor([float(i)])})]) for i in range(3)]
    mixture = Mixture.of(points, [0.2, 0.5, 0.3])
    draws = mixture.draw(Streams(0, range(20_000)))["w"].double()
    for i, weight in enumerate((0.2, 0.5, 0.3)):
        has_mean((draws == i).double(), weight)


def test_weights_need_not_be_normalised_and_default_to_equal():
    parts = [Posterior([Delta.start({"w": torch.zeros(1)})]) for _ in range(4)]
    assert torch.allclose(Mixture.of(parts).log_weights.exp(), torch.full((4,), 0.25))
    assert torch.allclose(
        Mixture.of(parts, [1, 1, 2, 4]).log_weights.exp(), torch.tensor([0.125, 0.125, 0.25, 0.5])
    )


def test_density_is_the_weighted_sum_of_densities():
    mixture = MAKERS["mixture"]()
    point = values(4)
    parts = torch.stack([part.log_prob(point) for part in mixture.parts])
    expected = torch.log((parts.exp() * torch.tensor([0.25, 0.75], dtype=torch.float64)).sum())
    assert torch.allclose(
        mixture.log_prob(point), expected, rtol=1e-6
    )  # weights are stored in single precision


def test_errors():
    with pytest.raises(CredoError, match="at least one component"):
        Mixture({"w": (1,)})
    a, b = (Posterior([MeanField.start({name: torch.zeros(1)})]) for name in "ab")
    with pytest.raises(CredoError, match="same parameters"):
        Mixture.of([a, b])
