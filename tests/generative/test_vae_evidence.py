"""The likelihood of bounds: what it counts, what it watches, what it refuses."""

import pytest
import torch

from credo.core.errors import CredoError
from credo.generative.vae_evidence import Evidence

OUTPUTS = torch.tensor([[-3.0, 1.0], [-5.0, 2.0]])


def test_the_first_output_is_what_a_datum_counts():
    likelihood = Evidence()
    assert likelihood.log_prob(OUTPUTS, torch.zeros(2)).tolist() == [-3.0, -5.0]
    assert likelihood.log_prob(OUTPUTS.expand(4, 2, 2), torch.zeros(2)).shape == (4, 2)
    assert (
        likelihood.num_outputs(torch.zeros(2)) == 2
        and likelihood.accepts(2, torch.zeros(2))
        and not likelihood.accepts(3, torch.zeros(2))
    )


def test_monitor_gives_means_per_datum_since_the_last_call():
    likelihood = Evidence()
    assert likelihood.monitor() == {}
    likelihood.log_prob(OUTPUTS, torch.zeros(2))
    likelihood.log_prob(OUTPUTS[:1] * 4, torch.zeros(1))
    assert likelihood.monitor() == {
        "bound": pytest.approx((-3 - 5 - 12) / 3),
        "latent_kl": pytest.approx((1 + 2 + 4) / 3),
    }
    assert likelihood.monitor() == {}


def test_evaluation_is_not_watched():
    likelihood = Evidence()
    with torch.no_grad():
        likelihood.log_prob(OUTPUTS, torch.zeros(2))
    assert likelihood.monitor() == {}


def test_what_is_watched_is_neither_saved_nor_learned():
    likelihood = Evidence(kind="VAE")
    likelihood.log_prob(OUTPUTS, torch.zeros(2))
    assert (
        likelihood.state_dict() == {}
        and not list(likelihood.parameters())
        and likelihood.config() == {"kind": "VAE"}
    )
    assert Evidence.from_config(likelihood.config()).config() == {"kind": "VAE"}


def test_gradients_are_those_of_the_bound_alone():
    outputs = OUTPUTS.clone().requires_grad_(True)
    Evidence().log_prob(outputs, torch.zeros(2)).sum().backward()
    assert outputs.grad.tolist() == [[1.0, 0.0], [1.0, 0.0]]


@pytest.mark.parametrize("y", [torch.zeros(3), torch.arange(3), torch.tensor([True, False])])
def test_whatever_stands_beside_the_data_is_ignored(y):
    assert len(Evidence().check_targets(y)) == len(Evidence().check_training_targets(y)) == len(y)


def test_it_predicts_nothing():
    likelihood = Evidence()
    calls = [
        lambda: likelihood(OUTPUTS),
        lambda: likelihood.marginals(OUTPUTS),
        lambda: likelihood.marginal_entropy(OUTPUTS),
        lambda: likelihood.sample(OUTPUTS),
        lambda: likelihood.mixture_quantile(OUTPUTS, 0.5),
        lambda: likelihood.probs(OUTPUTS),
    ]
    for call in calls:
        with pytest.raises(CredoError):
            call()
    with pytest.raises(
        CredoError,
        match="predicts no targets; use its own sample, reconstruct, elbo and log_marginal",
    ):
        likelihood(OUTPUTS)
