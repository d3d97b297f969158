"""A zoo of small networks with inputs.

Every entry is (network, inputs) in double precision; outputs are ``(B, 2)``.
"""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

# examples; no other axis of any input is 3 or 4, so that the example axis is known by its size
B = 3


class Checkpointed(nn.Module):
    def __init__(self, use=True, reentrant=False):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh())
        self.head, self.use, self.reentrant = nn.Linear(8, 2), use, reentrant

    def forward(self, x):
        h = checkpoint(self.inner, x, use_reentrant=self.reentrant) if self.use else self.inner(x)
        return self.head(h)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(7, 6), nn.Linear(6, 7, bias=False)
        self.head.weight = self.embed.weight
        self.out = nn.Linear(7, 2)

    def forward(self, x):
        return self.out(torch.tanh(self.head(self.embed(x).mean(1))))


class SharedLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.again, self.head = nn.Linear(5, 6), nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, x):
        h = torch.tanh(self.first(x))
        return self.head(torch.tanh(self.again(torch.tanh(self.again(h)))))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.head = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.attention(x, x, x, need_weights=False)[0].mean(1))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.encoder, self.head = (
            nn.TransformerEncoder(layer, 2, enable_nested_tensor=False),
            nn.Linear(8, 2),
        )

    def forward(self, x):
        return self.head(self.encoder(x)[:, 0])


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.rnn, self.head = kind(5, 6, num_layers=2, batch_first=True), nn.Linear(6, 2)

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1])


class Sequence(nn.Module):
    """A linear map over positions, examples not first: attention-like transposes."""

    def __init__(self):
        super().__init__()
        self.mix, self.head = nn.Linear(5, 6), nn.Linear(6, 2)

    def forward(self, x):
        return self.head(torch.tanh(self.mix(x.transpose(0, 1))).mean(0))


class Embedded(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(7, 6), nn.Linear(6, 2)

    def forward(self, x):
        return self.head(torch.tanh(self.embed(x)).mean(1))


class DictNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.head = nn.Linear(5, 6), nn.Linear(2, 6), nn.Linear(6, 2)

    def forward(self, left, right):
        return {"logits": self.head(torch.tanh(self.a(left) + self.b(right))), "extra": left.sum()}


class Matmul(nn.Module):
    """A bare parameter used by plain ``@``, and a linear layer's weight used without the layer."""

    def __init__(self):
        super().__init__()
        self.bare = nn.Parameter(torch.randn(5, 6))
        self.layer, self.head = nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, x):
        return self.head(
            torch.tanh(torch.tanh(x @ self.bare) @ self.layer.weight.T + self.layer.bias)
        )


class CustomFunction(nn.Module):
    """A layer whose weight goes through a hand-written autograd function."""

    class Multiply(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            ctx.save_for_backward(x, w)
            return x @ w.T

        @staticmethod
        def backward(ctx, grad):
            x, w = ctx.saved_tensors
            return grad @ w, grad.T @ x

    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(5, 6, bias=False), nn.Linear(6, 2)

    def forward(self, x):
        return self.head(torch.tanh(self.Multiply.apply(x, self.layer.weight)))


class Hidden(nn.Module):
    """A use that Python's override protocol does not see."""

    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(5, 6, bias=False), nn.Linear(6, 2)

    def forward(self, x):
        with torch._C.DisableTorchFunctionSubclass():
            h = torch.tanh(x @ self.layer.weight.t())
        return self.head(h)


class CrossBias(nn.Module):
    """One layer's weight with another layer's bias."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.head = nn.Linear(5, 6), nn.Linear(5, 6), nn.Linear(6, 2)

    def forward(self, x):
        one = F.linear(x, self.a.weight, self.b.bias)
        return self.head(torch.tanh(one) * torch.tanh(F.linear(x, self.b.weight, self.a.bias)))


def mlp(width=6):
    return nn.Sequential(nn.Linear(5, width), nn.Tanh(), nn.Linear(width, 2))


def inplace():
    return nn.Sequential(
        nn.Linear(5, 6),
        nn.ReLU(inplace=True),
        nn.Linear(6, 6),
        nn.Dropout(0.0, inplace=True),
        nn.Linear(6, 2),
    )


def conv(groups=1, pooled=True):
    body = [
        nn.Conv2d(2, 6, 3, padding=1, groups=groups),
        nn.Tanh(),
        nn.Conv2d(6, 6, 3, groups=groups),
        nn.Tanh(),
    ]
    tail = (
        [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 2)]
        if pooled
        else [nn.Flatten(), nn.Linear(6 * 16, 2)]
    )
    return nn.Sequential(*body, *tail)


def transposed():
    return nn.Sequential(
        nn.ConvTranspose2d(2, 6, 3, stride=2, groups=2),
        nn.Tanh(),
        nn.ConvTranspose2d(6, 5, 2),
        nn.Tanh(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(5, 2),
    )


def conv1d():
    return nn.Sequential(
        nn.Conv1d(5, 6, 3),
        nn.Tanh(),
        nn.ConvTranspose1d(6, 5, 2),
        nn.Flatten(),
        nn.Linear(5 * 5, 2),
    )


def batchnorm():
    return nn.Sequential(nn.Linear(5, 6, bias=False), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 2))


def weight_norm_old():
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.Sequential(nn.utils.weight_norm(nn.Linear(5, 6)), nn.Tanh(), nn.Linear(6, 2))


def weight_norm_new():
    return nn.Sequential(
        nn.utils.parametrizations.weight_norm(nn.Linear(5, 6)), nn.Tanh(), nn.Linear(6, 2)
    )


def _flat():
    return torch.randn(B, 5)


def _steps():
    return torch.randn(B, 6, 5)


def _tokens():
    return torch.randn(B, 6, 8)


def _words():
    return torch.randint(0, 7, (B, 6))


def _image():
    return torch.randn(B, 2, 6, 6)


#: name -> (network factory, input factory)
ZOO = {
    "mlp": (mlp, _flat),
    "inplace": (inplace, _flat),
    "checkpointed": (Checkpointed, _flat),
    "tied": (Tied, _words),
    "shared_layer": (SharedLayer, _flat),
    "weight_norm_old": (weight_norm_old, _flat),
    "weight_norm_new": (weight_norm_new, _flat),
    "attention": (Attention, _tokens),
    "transformer": (Transformer, _tokens),
    "lstm": (lambda: Recurrent(nn.LSTM), _steps),
    "gru": (lambda: Recurrent(nn.GRU), _steps),
    "batchnorm": (batchnorm, _flat),
    "conv": (conv, _image),
    "grouped": (lambda: conv(groups=2), _image),
    "transposed": (transposed, _image),
    "conv1d": (conv1d, lambda: torch.randn(B, 5, 6)),
    "embedding": (Embedded, _words),
    "sequence": (Sequence, _steps),
    "dicts": (DictNet, lambda: {"left": torch.randn(B, 5), "right": torch.randn(B, 2)}),
    "matmul": (Matmul, _flat),
    "custom_function": (CustomFunction, _flat),
    "hidden": (Hidden, _flat),
    "cross_bias": (CrossBias, _flat),
}


def make(name, dtype=torch.float64, seed=0):
    """The named network and its inputs; weights and inputs depend on ``seed`` alone."""
    network, inputs = ZOO[name]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        default = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            return network(), inputs()
        finally:
            torch.set_default_dtype(default)
