"""The network of a latent-variable model: encoder, draws, decoder, likelihood; what it gives for a
datum is a bound on its log p(x).

Seen from outside it is a network like any other, so that every method of the library fits it: by
maximum likelihood, or with a posterior over the decoder's weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from credo.core.errors import NetworkError
from credo.generative.bounds import Bound, Drawn, Gradient, Parts, Score
from credo.generative.codes import Code
from credo.generative.priors import LatentPrior
from credo.likelihoods.base import Likelihood


class LatentNet(nn.Module):
    """``forward(x) -> (N, 2)``: the bound on log p(x), and KL[q(z given x), p(z)] without gradient,
    in nats per datum.
    """

    ramp: Tensor
    steps: Tensor

    def __init__(
        self,
        encoder: nn.Module,
        decoder: nn.Module,
        code: Code,
        prior: LatentPrior,
        likelihood: Likelihood,
        shape: Sequence[int],
        binarise: bool = False,
    ) -> None:
        super().__init__()
        self.encoder, self.decoder, self.code, self.prior, self.likelihood = (
            encoder,
            decoder,
            code,
            prior,
            likelihood,
        )
        self.shape, self.binarise, self.bound = tuple(shape), binarise, Bound()
        self.code.to(self.dtype)
        self.prior.to(self.dtype)
        self._one_number = (
            math.prod(shape) == 1 and likelihood.check_targets(torch.zeros(1, 1)).dim() == 1
        )
        self._latents_fixed = False
        self.register_buffer(
            "ramp", torch.ones(1)
        )  # the KL's weight, step by step, up to its last value
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    @property
    def dtype(self) -> torch.dtype:
        """Of the codes, and of what the encoder sees."""
        return next(
            (p.dtype for p in self.decoder.parameters() if p.is_floating_point()),
            torch.get_default_dtype(),
        )

    def train_on(self, bound: Bound, ramp: Sequence[float]) -> None:
        """Train on this bound, with these weights of the KL in the first steps."""
        bound.gradient_for(self.code)  # refused here rather than in the middle of a step
        self.bound = bound
        self.ramp = torch.tensor([*ramp, 1.0])
        self.steps = torch.zeros((), dtype=torch.long)

    def hold(self) -> None:
        """Take latent variables at their means from now on: what then differs from pass to pass is
        noise of the encoder and the decoder.
        """
        self._latents_fixed = True

    # --- pieces -----------------------------------------------------------------------------------

    def observe(self, x: Tensor) -> Tensor:
        """The datum as it is modelled: itself, or a binary image drawn from its grey values."""
        return torch.bernoulli(x) if self.binarise and not self._latents_fixed else x

    def targets(self, x: Tensor) -> Tensor:
        """What the likelihood sees ``(N, D)``, or ``(N,)`` where it takes single numbers so."""
        return x.flatten(1).squeeze(-1) if self._one_number else x.flatten(1)

    def read(self, inputs: Tensor) -> Tensor:
        """The encoder's numbers ``(N, width)`` for inputs as the network sees them."""
        encoded = _wide(self.encoder(inputs))
        if encoded.dim() != 2 or encoded.shape[-1] != self.code.width:
            raise NetworkError(
                f"The encoder gives shape {tuple(encoded.shape)} for {len(inputs)} data; the "
                f"latent posterior {self.code.name!r} with "
                f"latent_dim={self.code.latent_dim} needs {(len(inputs), self.code.width)}: change "
                "its last layer."
            )
        return encoded

    def inputs(self, x: Tensor) -> Tensor:
        """Data as the encoder sees them."""
        return self.likelihood.inputs(x.flatten(1)).reshape(x.shape).to(self.dtype)

    def posterior(self, inputs: Tensor) -> Distribution:
        """q(z given x) for inputs as the network sees them."""
        return self.code.at(self.read(inputs))

    def decode(self, z: Tensor) -> Tensor:
        """Decoder outputs ``(..., F)`` for ``(..., size)``."""
        rows = z.flatten(0, -2)
        outputs = _wide(self.decoder(rows))
        if outputs.dim() < 2 or len(outputs) != len(rows):
            raise NetworkError(
                f"The decoder gives shape {tuple(outputs.shape)} for {len(rows)} codes; expected "
                "a row per code."
            )
        return outputs.flatten(1).unflatten(0, z.shape[:-1])

    def num_outputs(self) -> int:
        """Numbers that the decoder gives per datum."""
        return math.prod(self.shape) * (self.likelihood.latents_per_target or 1)

    def from_prior(self, count: int) -> Tensor:
        """Codes ``(count, size)`` from the global generator."""
        return self.prior.sample(
            count, self.posterior, torch.empty(0, dtype=self.dtype, device=self.ramp.device)
        )

    def log_prior(self, z: Tensor) -> Tensor:
        """log p(z)."""
        return self.prior.log_prob(z, self.posterior)

    def log_fit(self, z: Tensor, targets: Tensor) -> Tensor:
        """log p(x given z) ``(K, N)`` for draws ``(K, N, size)``."""
        return self.likelihood.log_prob(self.decode(z), targets)

    # --- the bound --------------------------------------------------------------------------------

    def weight(self) -> Tensor | float:
        """The KL's weight at this step of training, which is then over."""
        if len(self.ramp) == 1:
            return self.bound.beta
        now = self.ramp.gather(0, self.steps.clamp(max=len(self.ramp) - 1).reshape(1)).squeeze(0)
        self.steps += 1
        return self.bound.beta * now

    def parts(self, x: Tensor, gradient: Gradient, weight: Tensor | float = 1.0) -> Parts:
        """Draw z and evaluate everything the bound is made of."""
        encoded = self.read(self.inputs(x))
        drawn = (
            Drawn.centre(self.code.at(encoded), gradient.bound.draws)
            if self._latents_fixed
            else gradient.draw(self.code, encoded)
        )
        closed = (
            self.prior.divergence(drawn.q)
            if gradient.exact_kl and gradient.bound.bound == "elbo"
            else None
        )
        log_p = self.log_prior(drawn.z) if closed is None else torch.zeros_like(drawn.log_q)
        return Parts(self.log_fit(drawn.z, self.targets(x)), log_p, drawn.log_q, closed, weight)

    def value(self, x: Tensor, bound: Bound) -> Tensor:
        """Bound and KL ``(N, 2)`` of data as they are modelled, from plain draws: never relaxed,
        and without gradients to q.
        """
        gradient = Score(bound, self.code.latent_dim)
        parts = self.parts(x, gradient)
        return torch.stack([gradient.value(parts), parts.divergence()], -1)

    def forward(self, x: Tensor) -> Tensor:
        """Value: the bound. Gradient: that of the training objective."""
        x = self.observe(x)
        if not self.training:
            return self.value(x, self.bound)
        gradient = self.bound.gradient_for(self.code)
        parts = self.parts(x, gradient, self.weight())
        objective = gradient.objective(parts)
        with torch.no_grad():
            found = (
                torch.stack([gradient.value(parts), parts.divergence()], -1)
                if gradient.hard
                else self.value(x, self.bound)
            )
        return torch.stack([found[:, 0] + (objective - objective.detach()), found[:, 1]], -1)


def _wide(t: Tensor) -> Tensor:
    """Matrix products may be in half precision; densities and their sums are not."""
    return t.float() if t.dtype in (torch.bfloat16, torch.float16) else t
