import hashlib

import numpy as np
import pytest
import torch
from torch import nn

import credo
from credo_reproduce.probes import coders, digits, glorot, images, minibatches, probe


def test_a_probe_measures_the_nll_of_the_fitted_posterior_and_no_kl():
    x, y = torch.randn(8, 2), torch.randint(3, (8,))
    bnn = credo.BNN(credo.nets.mlp(2, (4,), 3)).fit((x, y), "mle", epochs=1, progress=False)
    nll, kl = probe(bnn, "weights")(x, y)
    assert torch.allclose(nll, -bnn.predict(x).log_prob(y).sum()) and kl == 0


def test_minibatches_are_drawn_with_replacement_and_keep_pairs_together():
    x, y = torch.arange(5.0).unsqueeze(1), torch.arange(5)
    batches = minibatches(x, y, 100, torch.Generator().manual_seed(0))
    first, second = next(batches), next(batches)
    assert torch.equal(first[0][:, 0].long(), first[1])
    assert set(first[1].tolist()) == set(range(5)) and not torch.equal(first[1], second[1])


def test_images_become_rows_in_the_unit_interval(tmp_path, monkeypatch):
    arrays = {"x_train": np.full((4, 2, 2), 255, np.uint8), "y_train": np.arange(4, dtype=np.uint8)}
    arrays |= {"x_test": np.zeros((3, 2, 2), np.uint8), "y_test": np.zeros(3, np.uint8)}
    np.savez(tmp_path / "toy.npz", **arrays)
    digest = hashlib.sha256((tmp_path / "toy.npz").read_bytes()).hexdigest()
    (tmp_path / "SHA256SUMS").write_text(f"{digest}  toy.npz\n")
    monkeypatch.setenv("CREDO_DATA", str(tmp_path))
    (x, y), (test, _) = images("toy", torch.device("cpu"), 2)
    assert x.shape == (2, 4) and x.max() == 1 and y.tolist() == [0, 1] and len(test) == 3


def test_digits_are_split_without_overlap():
    (x, y), (held, _) = digits(0, 360)
    assert (len(x), len(held)) == (1437, 360) and float(x.max()) == 1.0 and len(y) == len(x)


def test_glorots_weights_have_their_variance_and_biases_are_zero():
    """Uniform on +-a with a^2 = 6 / (fan-in + fan-out): variance a^2 / 3, fourth moment a^4 / 5.

    z-test at 4.5, once in 150,000.
    """
    torch.manual_seed(0)
    one, two = credo.nets.mlp_encoder((30,), 50, (200, 100)), credo.nets.mlp_decoder(50, 30, (200,))
    glorot(one, two)
    layers = [
        layer for net in (one, two) for layer in net.modules() if isinstance(layer, nn.Linear)
    ]
    assert len(layers) == 5
    for layer in layers:
        square = 6 / (layer.in_features + layer.out_features)
        found = layer.weight.detach().double().square()
        assert float(found.max()) <= square * (1 + 1e-6) and not bool(layer.bias.any())
        error = (square**2 * (1 / 5 - 1 / 9) / found.numel()) ** 0.5
        assert abs(float(found.mean()) - square / 3) < 4.5 * error


def test_glorot_leaves_other_layers_alone_and_follows_the_seed():
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3))
    before = {name: t.clone() for name, t in net.state_dict().items()}
    torch.manual_seed(1)
    glorot(net)
    first = net[3].weight.detach().clone()
    assert all(
        torch.equal(before[name], t)
        for name, t in net.state_dict().items()
        if not name.startswith("3.")
    )
    torch.manual_seed(1)
    glorot(net)
    assert torch.equal(first, net[3].weight) and not torch.equal(first, before["3.weight"])


@pytest.mark.parametrize(
    "net",
    [nn.Linear(3, 2), nn.Linear(3, 2, bias=False), nn.Sequential(nn.Linear(3, 2, bias=False))],
)
def test_glorot_takes_layers_with_and_without_biases(net):
    before = next(net.parameters()).detach().clone()
    glorot(net)
    assert not torch.equal(before, next(net.parameters()))


def test_coders_follow_the_seed_and_leave_the_callers_generator():
    state = torch.get_rng_state()
    (encoder, decoder), (again, _), (other, _) = (
        coders(seed, 8, 4, (30,), start=glorot) for seed in (0, 0, 1)
    )
    assert torch.equal(state, torch.get_rng_state())
    assert encoder(torch.zeros(2, 784)).shape == (2, 8) and decoder(torch.zeros(2, 4)).shape == (
        2,
        784,
    )
    assert all(not bool(p.any()) for name, p in encoder.named_parameters() if name.endswith("bias"))
    one, two, three = (next(net.parameters()) for net in (encoder, again, other))
    assert torch.equal(one, two) and not torch.equal(one, three)
    _, wide = coders(0, 8, 4, (30,), 64, outputs=128)
    assert wide(torch.zeros(2, 4)).shape == (2, 128)
