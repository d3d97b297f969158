"""Networks with every kind of channel traffic, and a way to prune whole rows and columns of
them.
"""

import torch
from torch import nn
from torch.nn import functional as F

import credo


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Residual(nn.Module):
    """Two blocks: one identity, one with a strided shortcut; activations in place, and a view with
    its sizes written out.
    """

    def __init__(self):
        super().__init__()
        self.stem, self.relu = nn.Conv2d(3, 12, 3, padding=1), nn.ReLU(inplace=True)
        self.one, self.norm = nn.Conv2d(12, 10, 3, padding=1, bias=False), nn.BatchNorm2d(10)
        self.two, self.after = nn.Conv2d(10, 12, 1), nn.BatchNorm2d(12)
        self.down, self.three, self.head = (
            nn.Conv2d(12, 16, 1, 2),
            nn.Conv2d(12, 16, 3, 2, 1),
            nn.Linear(64, 7),
        )

    def forward(self, x):
        kept = self.relu(self.stem(x))
        x = self.after(self.two(self.relu(self.norm(self.one(kept)))))
        x += kept
        x = self.relu(x)
        x = F.relu(self.three(x)) + self.down(x)
        return self.head(F.adaptive_avg_pool2d(x, 2).view(-1, 64))


class Joined(nn.Module):
    """Concatenation, depthwise and grouped convolutions, a gate, a transposed convolution, slopes
    per channel.
    """

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 6, 3, padding=1, padding_mode="reflect")
        self.depth, self.slopes, self.gate = (
            nn.Conv2d(14, 14, 3, padding=1, groups=14),
            nn.PReLU(14),
            nn.Linear(14, 14),
        )
        self.mix, self.up, self.grouped, self.head = (
            nn.Conv2d(14, 8, 1),
            nn.ConvTranspose2d(8, 6, 2, 2),
            nn.Conv2d(6, 6, 1, groups=2),
            nn.Linear(6, 4),
        )

    def forward(self, x):
        n, c, h, w = x.shape
        x = self.a(x)
        x = self.slopes(self.depth(torch.cat([x, torch.tanh(self.b(x))], 1)))
        x = x * torch.sigmoid(self.gate(x.mean((2, 3))))[:, :, None, None]
        return self.head(self.grouped(self.up(self.mix(x))).amax(dim=[2, 3]).reshape(n, -1))


class Words(nn.Module):
    """Embedding, layer normalisation, a scale per channel, a shared layer, two outputs."""

    def __init__(self):
        super().__init__()
        self.words, self.one, self.norm = nn.Embedding(11, 6), nn.Linear(6, 12), nn.LayerNorm(12)
        self.two, self.three, self.four = nn.Linear(12, 12), nn.Linear(12, 9), nn.Linear(45, 8)
        self.shared, self.head = nn.Linear(8, 8), nn.Linear(8, 3)
        self.scale = nn.Parameter(torch.arange(9.0) % 3)

    def forward(self, x):
        x = F.gelu(self.one(self.words(x)))
        x = torch.sigmoid(self.three(x + self.two(self.norm(x)))) * self.scale
        x = F.silu(self.four(x.flatten(1)))
        x = self.shared(self.shared(x).relu()).relu()
        return {"logits": self.head(x), "features": x}


class Sound(nn.Module):
    """One spatial axis: padded average pooling, in-place methods, permutations."""

    def __init__(self):
        super().__init__()
        self.a, self.gate, self.b, self.head = (
            nn.Conv1d(2, 8, 3),
            nn.Linear(8, 8),
            nn.Conv1d(8, 6, 3, padding=1),
            nn.Linear(6, 5),
        )

    def forward(self, x):
        x = self.a(x)
        x = F.avg_pool1d(x * self.gate(x.mean(-1)).sigmoid().unsqueeze(-1), 2, padding=1)
        x = F.max_pool1d(self.b(x).relu_(), 2)
        return self.head(x.permute(0, 2, 1)).transpose(1, 2).log_softmax(1)


class Overwritten(nn.Module):
    """A tensor that is read before and after it is changed in place."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 10), nn.Linear(10, 10), nn.Linear(10, 3)

    def forward(self, x):
        h = self.a(x)
        y = self.b(h)
        F.relu(h, inplace=True)
        return self.c(h + y)


def mlp():
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(32, 20),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(20, 16, bias=False),
        nn.Softplus(),
        nn.Linear(16, 16),
        nn.Tanh(),
        nn.Linear(16, 3),
    )


def convolutional():
    block = nn.Sequential(nn.Conv2d(8, 10, 3, bias=False), nn.BatchNorm2d(10), nn.ELU())
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        block,
        nn.AvgPool2d(2, padding=1),
        nn.Flatten(),
        nn.Linear(40, 12),
        nn.BatchNorm1d(12),
        nn.LeakyReLU(),
        nn.Linear(12, 4),
    )


NETS = {
    "mlp": (mlp, normal(5, 2, 16)),
    "convolutional": (convolutional, normal(5, 3, 10, 10)),
    "residual": (Residual, normal(5, 3, 8, 8)),
    "joined": (Joined, normal(4, 3, 9, 9)),
    "sound": (Sound, normal(3, 2, 12)),
    "overwritten": (Overwritten, normal(3, 4)),
    "resnet": (lambda: credo.nets.resnet(depth=8, width=8), normal(2, 3, 8, 8)),
    "resnet frn": (lambda: credo.nets.resnet(depth=8, width=8, norm="frn"), normal(2, 3, 8, 8)),
    "resnet group": (lambda: credo.nets.resnet(depth=8, width=8, norm="group"), normal(2, 3, 8, 8)),
    "words": (Words, torch.randint(0, 11, (4, 5), generator=torch.Generator().manual_seed(0))),
}
LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.ConvTranspose2d)


@torch.no_grad()
def pruned(net, seed=0, share=0.5):
    """Rows and columns of random layers set to zero, some with their biases, some scales of
    normalisation too; statistics that matter.
    """
    draw = torch.Generator().manual_seed(seed)

    def some(count, most):
        return torch.rand(count, generator=draw) < most * torch.rand((), generator=draw)

    for module in net.modules():
        if isinstance(module, LAYERS):
            dead = some(module.weight.shape[0], 2 * share)
            module.weight[dead] = 0
            module.weight[:, some(module.weight.shape[1], 2 * share)] = 0
            if (
                module.bias is not None
                and module.bias.shape == dead.shape
                and torch.rand((), generator=draw) < 0.5
            ):
                module.bias[dead] = 0
        if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)):
            module.running_mean.normal_(generator=draw)
            module.running_var.uniform_(0.5, 2, generator=draw)
            module.weight.normal_(generator=draw)
            module.bias.normal_(generator=draw)
            module.weight[some(len(module.weight), 0.4)] = 0
    return net.eval()


@torch.no_grad()
def lenet(units=(5, 10, 16)):
    """LeNet-5 with so many units left in each hidden layer."""
    net = credo.nets.lenet5_caffe().eval()
    for place, keep in zip((0, 2, 5), units, strict=True):
        net[place].weight[keep:] = 0
        net[place].bias[keep:] = 0
    return net
