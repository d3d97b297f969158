"""Gradients for a discrete latent variable, compared: score function, straight-through,
Gumbel-softmax, and the exact one.

Binary 8 x 8 digits and a VAE whose code is a few categorical variables, so few that all codes can
be enumerated: the ELBO and its gradient are then known. Part one: bias and noise of each estimate
of the encoder's gradient, at the same point half way through training. Part two: the ELBO that
training with each reaches, always with hard codes and exact.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from credo.core.seeds import generator, isolated, mix
from credo.core.settings import setting
from credo.generative import Bound, codes, priors
from credo.generative.network import LatentNet
from credo.likelihoods import Bernoulli
from credo_reproduce.base import Experiment, Say, experiments
from credo_reproduce.outcome import Check, Outcome, Row, Table
from credo_reproduce.plots import curves, line
from credo_reproduce.probes import coders, digits

KINDS: dict[str, dict[str, Any]] = {
    "score, 1 draw": {"gradient": "score"},
    "score, 4 draws": {"gradient": "score", "draws": 4},
    "straight-through": {"gradient": "straight_through"},
    "Gumbel-softmax, temperature 1": {"gradient": "gumbel", "temperature": 1.0},
    "Gumbel-softmax, temperature 0.5": {"gradient": "gumbel", "temperature": 0.5},
    "Gumbel-softmax, temperature 0.1": {"gradient": "gumbel", "temperature": 0.1},
}
EXACT = "exact (all codes)"
Z = 4.0  # deviations beyond which a bias counts as one: chance alone reaches them once in 16,000


@experiments.register("latent_gradients")
@dataclass(frozen=True)
class LatentGradients(Experiment):
    """Bias, noise, and what training reaches."""

    name: ClassVar[str] = "latent_gradients"
    title: ClassVar[str] = "Gradients through a discrete latent variable"
    reference: ClassVar[str] = (
        "Williams 1992; Bengio et al. 2013; Jang et al. 2017 and Maddison et al. 2017."
    )
    cost: ClassVar[str] = "4 minutes on one CPU core"
    needs: ClassVar[tuple[str, ...]] = ("digits",)
    quick_settings: ClassVar[dict[str, Any]] = {
        "variables": 1,
        "hidden": 8,
        "half": 5,
        "steps": 10,
        "repeats": 10,
        "seeds": 1,
    }

    variables: int = setting(2, "Categorical latent variables.", ge=1)
    categories: int = setting(8, "Values of each.", ge=2)
    hidden: int = setting(64, "Units of the hidden layers.", ge=1)
    half: int = setting(300, "Exact steps before gradients are compared.", ge=1)
    repeats: int = setting(1000, "Gradients of each kind.", ge=2)
    steps: int = setting(3000, "Steps of training.", ge=1)
    batch: int = setting(100, "Data in a step.", ge=2)
    lr: float = setting(2e-3, "Learning rate of Adam.", gt=0.0)
    seeds: int = setting(3, "Trainings of each kind.", ge=1)

    def run(self, device: torch.device, seed: int, say: Say) -> Outcome:
        """Compare, then train."""
        (x, _), _ = digits(seed, 297)
        x = (x > 0.5).float().to(device)
        net = self._net(seed, device)
        self._train(net, x, None, seed, self.half)
        compared = self._compare(net, x[: self.batch], seed)
        for row in compared:
            say(f"{row.label}: {dict(row.measured)}")
        reached: dict[str, list[list[float]]] = {}
        for label, kind in [(EXACT, None), *KINDS.items()]:
            reached[label] = []
            for place in range(seed, seed + self.seeds):
                reached[label].append(
                    self._train(self._net(place, device), x, kind, place, self.steps)
                )
            say(f"{label}: final ELBO {[round(run[-1], 3) for run in reached[label]]}")
        return self._outcome(compared, reached)

    def _net(self, seed: int, device: torch.device) -> LatentNet:
        code = codes.Categorical(self.variables, self.categories)
        pair = coders(seed, code.width, code.size, (self.hidden,), 64)
        prior = priors.Uniform(code.size, groups=self.variables)
        return LatentNet(*pair, code, prior, Bernoulli(), (64,)).to(device).train()

    def _every_code(self, like: Tensor) -> Tensor:
        """All codes, one-hot, ``(C^G, size)``."""
        grid = torch.tensor(
            list(itertools.product(range(self.categories), repeat=self.variables)),
            device=like.device,
        )
        return F.one_hot(grid, self.categories).to(like.dtype).flatten(1)

    def _exact(self, net: LatentNet, x: Tensor) -> Tensor:
        """The ELBO of each datum, over all codes."""
        q = net.posterior(net.inputs(x))
        z = self._every_code(x)
        codes = z.unsqueeze(1).expand(-1, len(x), -1)
        fit = net.likelihood.log_prob(net.decode(z).unsqueeze(1), x)
        kl = net.prior.divergence(q)
        assert kl is not None
        return (q.log_prob(codes).exp() * fit).sum(0) - kl.sum(-1)

    def _objective(self, net: LatentNet, kind: dict[str, Any] | None) -> Callable[[Tensor], Tensor]:
        if kind is None:
            return lambda x: self._exact(net, x)
        net.train_on(Bound(**kind), [])
        return lambda x: net(x)[:, 0]

    def _train(
        self, net: LatentNet, x: Tensor, kind: dict[str, Any] | None, seed: int, steps: int
    ) -> list[float]:
        """Climb, and note the exact ELBO of all data now and then."""
        climb = self._objective(net, kind)
        adam = torch.optim.Adam(net.parameters(), lr=self.lr)
        order = generator(seed, "order")
        elbos = []
        with isolated(mix(seed, "noise"), x.device):
            for step in range(steps):
                rows = torch.randint(len(x), (self.batch,), generator=order).to(x.device)
                adam.zero_grad(set_to_none=True)
                (-climb(x[rows]).mean()).backward()
                adam.step()
                if step in _marks(steps):
                    with torch.no_grad():
                        elbos.append(float(self._exact(net, x).mean()))
        return elbos

    def _compare(self, net: LatentNet, x: Tensor, seed: int) -> list[Row]:
        """Of the encoder's gradient g: |mean estimate - g| / |g|, noise sqrt(sum of variances) /
        |g|, and the cosine of the mean with g.
        """
        parameters = list(net.encoder.parameters())
        exact = _flat(torch.autograd.grad(self._exact(net, x).mean(), parameters)).double()
        rows = []
        for label, kind in KINDS.items():
            climb = self._objective(net, kind)
            draws = []
            with isolated(mix(seed, label), x.device):
                for _ in range(self.repeats):
                    draws.append(_flat(torch.autograd.grad(climb(x).mean(), parameters)).double())
            found = torch.stack(draws)
            mean, var = found.mean(0), found.var(0)
            noise = var.sum().sqrt()
            # along one fixed direction, so that the noise of thousands of coordinates does not add
            # up to a bias
            along = found @ (exact / exact.norm())
            off = (along.mean() - exact.norm()) / (along.std() / len(along) ** 0.5).clamp_min(1e-30)
            rows.append(
                Row(
                    label,
                    {
                        "bias": float((mean - exact).norm() / exact.norm()),
                        "by chance": float(noise / self.repeats**0.5 / exact.norm()),
                        "z": float(off),
                        "noise": float(noise / exact.norm()),
                        "cosine": float(F.cosine_similarity(mean, exact, 0)),
                    },
                )
            )
        return rows

    def _outcome(self, compared: list[Row], reached: dict[str, list[list[float]]]) -> Outcome:
        note = (
            "Of the encoder's gradient g. bias: |mean - g| / |g|; by chance: what an unbiased "
            "estimate would show of it; z: of the projection "
            "on g; noise: root of the summed variances over |g|; cosine: of mean and g."
        )
        finals = {label: torch.tensor([run[-1] for run in runs]) for label, runs in reached.items()}
        rows = [
            Row(
                label,
                {"ELBO": float(v.mean()), "lowest": float(v.min()), "highest": float(v.max())},
            )
            for label, v in finals.items()
        ]
        tables = [
            Table("Bias and noise", ["bias", "by chance", "z", "noise", "cosine"], compared, note),
            Table(
                "The exact ELBO that training reaches",
                ["ELBO", "lowest", "highest"],
                rows,
                f"Nats per datum, {self.seeds} fits.",
                digits=4,
            ),
        ]
        grid = [step + 1 for step in _marks(self.steps)]
        ends = [float(v.mean()) for v in finals.values()]
        figure = curves(
            "Training with each gradient",
            "step",
            "exact ELBO (nats per datum)",
            [
                line(label, grid, torch.tensor(runs).mean(0).tolist(), dash=label == EXACT)
                for label, runs in reached.items()
            ],
            y_range=[min(ends) - 4.0, max(ends) + 1.0],
            caption=f"Mean of {self.seeds} fits, on all data, with hard codes.",
        )
        score = [row for row in compared if row.label.startswith("score")]
        others = [row for row in compared if not row.label.startswith("score")]
        checks = [
            Check(
                "The score function is unbiased",
                ", ".join(f"z = {float(row.measured['z'] or 0):.1f}" for row in score),
                f"|z| below {Z:g}",
                all(abs(float(row.measured["z"] or 0)) < Z for row in score),
            ),
            Check(
                "Relaxations are less noisy",
                f"{max(float(r.measured['noise'] or 0) for r in others):.2f} against "
                f"{float(score[0].measured['noise'] or 0):.2f}",
                "below one draw of the score function",
                all(
                    float(r.measured["noise"] or 0) < float(score[0].measured["noise"] or 0)
                    for r in others
                ),
            ),
        ]
        return Outcome(tables, [figure], checks)


def _marks(steps: int) -> list[int]:
    """About thirty steps at which the bound is noted, the last one among them."""
    return sorted({*range(0, steps, max(1, steps // 30)), steps - 1})


def _flat(grads: tuple[Tensor, ...]) -> Tensor:
    return torch.cat([g.flatten() for g in grads])
