"""Networks with dropout of their own, multiplicative posteriors over any network, and what their
passes should be: enumeration of masks.
"""

import itertools

import torch
import torch.nn.functional as F
from torch import nn

from credo.core.seeds import isolated
from credo.engine.outputs import Draws, sampled_outputs
from credo.methods import methods
from zoo.fits import begun
from zoo.models import Passes, make_model
from zoo.stats import same_mean, same_variance

METHODS = ("mc_dropout", "concrete_dropout", "gaussian_dropout", "variational_dropout")


class Residual(nn.Module):
    """The first mask feeds the second layer alone; the second mask is added to what is not masked
    before anything reads it.
    """

    def __init__(self, p=0.3):
        super().__init__()
        self.first, self.inner, self.head = nn.Linear(5, 6), nn.Linear(6, 6), nn.Linear(6, 2)
        self.before, self.after = nn.Dropout(p), nn.Dropout(p)

    def forward(self, x):
        h = torch.tanh(self.first(x))
        return self.head(h + self.after(torch.tanh(self.inner(self.before(h)))))


class Reused(nn.Module):
    """One dropout module in two places of a pass."""

    def __init__(self, p=0.3, twice=False):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(5, 6), nn.Linear(6, 4), nn.Linear(4, 2)
        self.drop = nn.Dropout(p)
        if twice:
            self.same = self.drop  # a second name of the same module

    def forward(self, x):
        again = getattr(self, "same", self.drop)
        return self.head(again(torch.tanh(self.second(self.drop(torch.tanh(self.first(x)))))))


class Functional(nn.Module):
    """Dropout by the function, which no module stands for."""

    def __init__(self, p=0.3):
        super().__init__()
        self.first, self.head, self.p = nn.Linear(5, 6), nn.Linear(6, 2), p

    def forward(self, x):
        return self.head(F.dropout(torch.tanh(self.first(x)), self.p, self.training))


class Sequence(nn.Module):
    """A linear map over positions after dropout; a mask may be shared by them."""

    def __init__(self, p=0.3):
        super().__init__()
        self.first, self.drop, self.mix, self.head = (
            nn.Linear(5, 6),
            nn.Dropout(p),
            nn.Linear(6, 6),
            nn.Linear(6, 2),
        )

    def forward(self, x):
        return self.head(torch.tanh(self.mix(self.drop(torch.tanh(self.first(x))))).mean(1))


class Recurrent(nn.Module):
    """Dropout before an LSTM, and inside it between its layers."""

    def __init__(self, p=0.3, inner=0.3):
        super().__init__()
        self.drop, self.lstm = (
            nn.Dropout(p),
            nn.LSTM(5, 6, num_layers=2, dropout=inner, batch_first=True),
        )
        self.head = nn.Linear(6, 2)

    def forward(self, x):
        return self.head(self.lstm(self.drop(x))[0][:, -1])


class Attention(nn.Module):
    """Dropout before an attention layer."""

    def __init__(self, p=0.3):
        super().__init__()
        self.drop, self.attention = nn.Dropout(p), nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        h = self.drop(x)
        return self.head(self.attention(h, h, h, need_weights=False)[0].mean(1))


class Encoder(nn.Module):
    """torch's own Transformer layer, with its four places of dropout."""

    def __init__(self, p=0.3):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=p, batch_first=True)
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.layer(x)[:, 0])


def dense(p=0.3):
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Dropout(p), nn.Linear(6, 2))


def image(p=0.3):
    """Channels dropped before a convolution, and channels dropped before they are flattened into a
    dense layer.
    """
    return nn.Sequential(
        nn.Conv2d(2, 6, 3),
        nn.Tanh(),
        nn.Dropout2d(p),
        nn.Conv2d(6, 4, 3),
        nn.Tanh(),
        nn.Dropout2d(p),
        nn.Flatten(),
        nn.Linear(16, 2),
    )


FLAT, STEPS, TOKENS, IMAGE = (3, 5), (3, 6, 5), (3, 6, 8), (3, 2, 6, 6)
NETWORKS = {
    "dense": (dense, FLAT),
    "image": (image, IMAGE),
    "residual": (Residual, FLAT),
    "reused": (Reused, FLAT),
    "functional": (Functional, FLAT),
    "sequence": (Sequence, STEPS),
    "recurrent": (Recurrent, STEPS),
    "attention": (Attention, TOKENS),
    "encoder": (Encoder, TOKENS),
}


def make(name, seed=0, **how):
    """The named network and inputs for it, in double precision; both depend on ``seed`` alone."""
    network, shape = NETWORKS[name]
    with isolated(seed):
        return network(**how).double(), torch.randn(shape).double()


def begin(method, net, x, prior=None, random="all", likelihood="gaussian", **settings):
    """The model and the posterior that a dropout method starts from."""
    chosen = methods[method](**settings)
    model = chosen.adapt(make_model(net, random, likelihood, prior))
    elbo, _ = begun(chosen, model, x)
    return model, elbo.posterior


def outputs(model, posterior, x, samples, seed=2, **how):
    """Outputs ``(S, B, F)`` of draws."""
    return sampled_outputs(
        model, Draws.of(posterior, samples, seed), x, model.buffers(), seed, **how
    )[0]


def cross(draws):
    """Products of centred outputs of one input ``(S, B, F, F)``: their mean is the covariance over
    outputs.
    """
    centred = draws - draws.mean(0)
    return centred.unsqueeze(-1) * centred.unsqueeze(-2)


def agree(method, net, x, estimator, draws=1200, reference=6000, **settings):
    """z-tests of mean and covariance over outputs of every input: passes of an estimator against
    draws of weights; the plan.
    """
    model, posterior = begin(method, net, x, **settings)
    passes = Passes(model, posterior, estimator, x)
    ours, truth = passes(draws, seed=1), outputs(model, posterior, x, reference, vectorise=True)
    same_mean(ours, truth)
    same_variance(ours, truth)
    same_mean(cross(ours), cross(truth))
    return passes.plan


def masks(rates):
    """Every mask over independent units ``(C, K)``, and its probability ``(C,)``, differentiable in
    the drop rates ``(K,)``.
    """
    rows = torch.tensor(list(itertools.product((0.0, 1.0), repeat=len(rates))), dtype=rates.dtype)
    return rows, (rows * (1 - rates) + (1 - rows) * rates).prod(1)
