"""``VAE``: a generative model with a posterior over each datum's latent variables, and over its
weights if you wish.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from credo.core.errors import SettingError
from credo.core.registry import Registry
from credo.core.seeds import isolated, mix
from credo.core.settings import positive
from credo.generative.annealed import anneal, both_ways
from credo.generative.bounds import Bound, log_mean_exp
from credo.generative.codes import Code
from credo.generative.latent_model import LatentModel
from credo.generative.latent_queries import means
from credo.generative.marginal import draws_at_once, importance
from credo.generative.network import LatentNet
from credo.generative.priors import LatentPrior
from credo.likelihoods.base import Likelihood

kinds: Registry[type[LatentModel]] = Registry("autoencoder")


@kinds.register("VAE")
class VAE(LatentModel):
    """x ~ p(x given f(z)), z ~ p(z), with q(z given x) from an encoder (Kingma and Welling 2014).

    ``encoder``: data -> ``code.width`` numbers, 2 x latent_dim for the diagonal posterior (mean,
    raw deviation). ``decoder``: codes -> what the likelihood needs, a logit per pixel for
    "bernoulli" or "continuous_bernoulli". ``posterior``: "diagonal", "full", "flow",
    "categorical", or one of ``credo.generative.codes``. ``prior``: "normal", "mixture", "vamp", or
    an object. ``random``: which of the decoder's weights have a posterior where the method gives
    them one. ``binarise``: grey values are probabilities, from which a binary datum is drawn at
    every step.
    """

    def __init__(
        self,
        encoder: nn.Module,
        decoder: nn.Module,
        latent_dim: int,
        likelihood: str | Likelihood = "bernoulli",
        *,
        posterior: str | Code = "diagonal",
        prior: str | LatentPrior | None = None,
        random: Any = "all",
        weight_prior: Any = None,
        binarise: bool = False,
    ) -> None:
        if posterior == "point" or (isinstance(posterior, Code) and posterior.name == "point"):
            raise SettingError(
                "posterior='point' makes a plain autoencoder; use credo.generative.Autoencoder."
            )
        super().__init__(
            encoder,
            decoder,
            latent_dim,
            likelihood,
            posterior,
            prior,
            random,
            weight_prior,
            binarise,
        )

    def elbo(
        self, x: Any, draws: int = 1, samples: int = 1, seed: int = 0, batch_size: int | None = None
    ) -> Tensor:
        """The evidence lower bound of each datum in nats, ``(N,)``: E_q[log p(x given z)] - KL[q(z
        given x), p(z)], beta 1 whatever training used.

        ``draws`` of z per datum; with random weights averaged over ``samples`` draws of them,
        before their own KL is counted.
        """
        return self._values(x, draws, samples, seed, batch_size)[..., 0]

    def latent_kl(
        self, x: Any, draws: int = 1, samples: int = 1, seed: int = 0, batch_size: int | None = None
    ) -> Tensor:
        """KL[q(z given x), p(z)] of each datum in nats, ``(N,)``; exact where it has a closed
        form.
        """
        return self._values(x, draws, samples, seed, batch_size)[..., 1]

    def _values(
        self, x: Any, draws: int, samples: int, seed: int, batch_size: int | None
    ) -> Tensor:
        """Bound and KL ``(N, 2)``; many draws are made a few at a time."""
        positive("draws", draws, 1)

        def make(net: LatentNet, batch: Tensor) -> Tensor:
            size = draws_at_once(net, len(batch))
            counts = [min(size, draws - start) for start in range(0, draws, size)]
            return sum(
                (net.value(batch, Bound(draws=n)) * (n / draws) for n in counts),
                torch.zeros((), device=batch.device),
            )

        return self.under_each_draw(x, make, samples, seed, batch_size).mean(0)

    def log_marginal(
        self,
        x: Any,
        k: int = 1000,
        samples: int = 1,
        seed: int = 0,
        batch_size: int | None = None,
        proposal: str = "encoder",
    ) -> Tensor:
        """log p(x) of each datum in nats, ``(N,)``, by importance sampling with ``k`` draws from
        the encoder (or the prior).

        With random weights p(x) is averaged over ``samples`` draws of them. In expectation a lower
        bound.
        """
        k = positive("k", k, 1)
        size = positive("batch_size", batch_size, 100)

        def make(net: LatentNet, batch: Tensor) -> Tensor:
            return importance(net, batch, k, proposal)

        return log_mean_exp(self.under_each_draw(x, make, samples, seed, size))

    def annealed(
        self,
        x: Any,
        chains: int = 16,
        steps: int = 500,
        leapfrog: int = 10,
        samples: int = 1,
        seed: int = 0,
        batch_size: int | None = None,
    ) -> Tensor:
        """log p(x) of each datum, ``(N,)``, by annealed importance sampling: ``chains`` of
        ``steps`` temperatures with ``leapfrog`` moves each.

        Much dearer than ``log_marginal`` and not misled by a poor encoder, which it does not use.
        In expectation a lower bound.
        """
        self._differentiable()
        sizes = (
            positive("chains", chains, 1),
            positive("steps", steps, 1),
            positive("leapfrog", leapfrog, 1),
        )
        return log_mean_exp(
            self.under_each_draw(
                x, lambda net, batch: anneal(net, batch, *sizes), samples, seed, batch_size
            )
        )

    def bracket(
        self, n: int = 100, chains: int = 16, steps: int = 500, leapfrog: int = 10, seed: int = 0
    ) -> tuple[Tensor, Tensor]:
        """Lower and upper estimate of log p(x), each ``(n,)``, for ``n`` data drawn from the model
        itself, where the true code is known.

        In expectation the truth lies between. Their gap says how far ``annealed`` with the same
        settings can be off on such data. Under the first draw of random weights.
        """
        self._differentiable()
        sizes = (
            positive("chains", chains, 1),
            positive("steps", steps, 1),
            positive("leapfrog", leapfrog, 1),
        )
        z, x = self.simulate(n, seed)
        with (
            self.placed(self.numbers(1, seed)[0], seed) as net,
            isolated(mix(seed, "bracket"), z.device),
        ):
            return both_ways(net, z, x, *sizes)

    def _differentiable(self) -> None:
        if not self.code.continuous:
            raise SettingError(
                "Annealing follows gradients of z, which a discrete code has none of; use "
                "log_marginal."
            )
        if self.bnn.posterior.noisy_modules:
            raise SettingError(
                "Annealing needs a density that stays what it is; this decoder is random by "
                "itself: use log_marginal."
            )

    def objective(self, x: Any, samples: int = 1, seed: int = 0) -> dict[str, float]:
        """The whole bound on data, in nats: nll (minus the expected bounds), kl of the weights,
        elbo = -nll - kl.
        """
        data = self._data(x)
        return self.bnn.objective((data, torch.zeros(len(data))), samples, seed)

    def sample(self, n: int, seed: int = 0, noise: bool = False, samples: int = 16) -> Tensor:
        """``n`` data drawn from the model, in their shape: E[x given z] with z from the prior, or
        with ``noise`` x itself.

        Random weights: the data are divided among ``samples`` draws of them.
        """
        numbers = self.numbers(min(positive("samples", samples, 1), positive("n", n, 1)), seed)
        out = []
        with torch.no_grad():
            for place, number in enumerate(numbers):
                count = len(range(place, n, len(numbers)))
                out.append(self._draw(number, count, seed, noise))
        return torch.cat(out)

    def _draw(self, number: int, count: int, seed: int, noise: bool) -> Tensor:
        device = self.bnn.model.device
        with self.placed(number, seed) as net, isolated(mix(seed, "sample", number), device):
            z = net.from_prior(count)
            if not noise:
                return means(net, z)
            return net.likelihood.sample(net.decode(z), mix(seed, "noise", number)).reshape(
                count, *net.shape
            )

    def simulate(self, n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
        """``n`` draws (z, x) from the joint distribution under the first draw of the weights: data
        whose true code is known.
        """
        number = self.numbers(1, seed)[0]
        with (
            torch.no_grad(),
            self.placed(number, seed) as net,
            isolated(mix(seed, "simulate"), self.bnn.model.device),
        ):
            z = net.from_prior(positive("n", n, 1))
            x = net.likelihood.sample(net.decode(z), mix(seed, "simulated"))
            return z, x.reshape(n, *net.shape)


@kinds.register("Autoencoder")
class Autoencoder(LatentModel):
    """The plain baseline: z is what the encoder says, and reconstruction is all that counts.

    It has no p(x) and nothing to sample from.

    ``encoder``: data -> latent_dim numbers.
    """

    def __init__(
        self,
        encoder: nn.Module,
        decoder: nn.Module,
        latent_dim: int,
        likelihood: str | Likelihood = "bernoulli",
        *,
        random: Any = "all",
        weight_prior: Any = None,
        binarise: bool = False,
    ) -> None:
        super().__init__(
            encoder, decoder, latent_dim, likelihood, "point", None, random, weight_prior, binarise
        )

    def make_bound(self, settings: dict[str, Any]) -> Bound:
        """Reconstruction alone; there is nothing to set."""
        if settings:
            raise SettingError(
                "A plain autoencoder maximises no bound, so it has no "
                f"{', '.join(sorted(settings))}; use a VAE."
            )
        return Bound()
