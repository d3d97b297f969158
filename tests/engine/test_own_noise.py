import pytest
import torch
import torch.nn.functional as F
from torch import nn
from zoo.dropout import make
from zoo.models import make_model
from zoo.networks import make as make_plain

from credo.core.errors import NetworkError
from credo.core.seeds import isolated
from credo.core.shell import Shell
from credo.engine.own_noise import OwnMasks, is_random, modules_without_norms, own_masks

NONE = OwnMasks({}, {}, {})


def found(name, shared=True, **how):
    net, x = make(name, **how)
    return own_masks(make_model(net), x, shared)


def test_a_module_before_a_dense_layer():
    assert found("dense", p=0.2) == OwnMasks(
        {"2.mask0": (1, 6)}, {"2.mask0": 0.2}, {"3.weight": "2.mask0"}
    )


def test_channels_of_images_and_what_they_are_flattened_into():
    shapes, rates, feeds = found("image")
    assert shapes == {"2.mask0": (1, 6, 1, 1), "5.mask0": (1, 4, 1, 1)} and set(rates.values()) == {
        0.3
    }
    assert feeds == {"3.weight": "2.mask0", "7.weight": "5.mask0"}


def test_plain_dropout_on_images_has_one_entry_per_pixel():
    net = nn.Sequential(
        nn.Conv2d(2, 6, 3), nn.Dropout(0.1), nn.Conv2d(6, 4, 3), nn.Flatten(), nn.Linear(16, 2)
    )
    shapes, _, feeds = own_masks(make_model(net), torch.randn(3, 2, 6, 6), True)
    assert shapes == {"1.mask0": (1, 6, 4, 4)} and feeds == {"2.weight": "1.mask0"}


def test_channels_of_a_series_are_those_of_the_convolution_that_reads_them():
    """(B, C, L): shared over positions, a mask has one entry per channel."""
    net = nn.Sequential(
        nn.Conv1d(2, 6, 3), nn.Dropout(0.1), nn.Conv1d(6, 4, 3), nn.Flatten(), nn.Linear(8, 2)
    )
    assert own_masks(make_model(net), torch.randn(3, 2, 6), True).shapes == {"1.mask0": (1, 6, 1)}


def test_a_reused_module_has_a_mask_per_use():
    shapes, rates, feeds = found("reused")
    assert shapes == {"drop.mask0": (1, 6), "drop.mask1": (1, 4)} and rates == {
        "drop.mask0": 0.3,
        "drop.mask1": 0.3,
    }
    assert feeds == {"second.weight": "drop.mask0", "head.weight": "drop.mask1"}
    assert found("reused", twice=True) == found("reused")


def test_positions_share_a_mask_or_the_module_is_left_alone():
    assert found("sequence").shapes == {"drop.mask0": (1, 1, 6)} and found("sequence").feeds == {
        "mix.weight": "drop.mask0"
    }
    assert found("sequence", shared=False) == NONE


def test_a_module_on_sequences_and_on_vectors_is_left_alone_as_a_whole():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.drop, self.layer = nn.Dropout(0.3), nn.Linear(5, 2)

        def forward(self, x):
            return self.layer(self.drop(self.drop(x).mean(1)))

    model, x = make_model(Both()), torch.randn(3, 6, 5)
    assert own_masks(model, x, True).shapes == {"drop.mask0": (1, 1, 5), "drop.mask1": (1, 5)}
    assert own_masks(model, x, False) == NONE


def test_units_that_are_added_to_others_feed_nothing():
    shapes, _, feeds = found("residual")
    assert set(shapes) == {"before.mask0", "after.mask0"} and feeds == {
        "inner.weight": "before.mask0"
    }


def test_weights_of_recurrent_and_attention_layers():
    """The first layer of an LSTM reads its input; its other weights read its own state.

    Attention reads it by all projections.
    """
    assert found("recurrent").feeds == {"lstm.weight_ih_l0": "drop.mask0"}
    assert found("attention").feeds == {"attention.in_proj_weight": "drop.mask0"}
    assert found("attention").shapes == {"drop.mask0": (1, 1, 8)}


def test_a_transformer_layers_modules():
    shapes, _, feeds = found("encoder")
    assert shapes == {
        "layer.dropout1.mask0": (1, 1, 8),
        "layer.dropout.mask0": (1, 1, 16),
        "layer.dropout2.mask0": (1, 1, 8),
    }
    assert feeds == {"layer.linear2.weight": "layer.dropout.mask0"}


def test_rates_of_zero_and_frozen_weights_do_not_count():
    assert found("dense", p=0.0) == NONE
    net, x = make("dense")
    net[3].weight.requires_grad_(False)
    assert own_masks(make_model(net), x, True).feeds == {}


def test_examples_may_lie_on_the_second_axis():
    class Turned(nn.Module):
        def __init__(self):
            super().__init__()
            self.drop, self.layer = nn.Dropout(0.3), nn.Linear(5, 2)

        def forward(self, x):
            return self.layer(self.drop(x.transpose(0, 1))).mean(0)

    assert own_masks(make_model(Turned()), torch.randn(2, 6, 5), True).shapes == {
        "drop.mask0": (1, 1, 5)
    }


def test_without_an_example_axis_it_is_refused():
    class Whole(nn.Module):
        def __init__(self):
            super().__init__()
            self.drop, self.layer = nn.Dropout(0.3), nn.Linear(5, 5)

        def forward(self, x):
            return F.linear(x, self.drop(self.layer.weight), self.layer.bias)

    with pytest.raises(
        NetworkError,
        match=r"'drop' is applied to \(5, 5\), which has no axis of 2 examples; "
        r"method='stochastic'",
    ):
        own_masks(make_model(Whole()), torch.randn(2, 5), True)


def test_an_order_that_depends_on_the_data_is_refused():
    class Sometimes(nn.Module):
        def __init__(self):
            super().__init__()
            self.drop, self.layer = nn.Dropout(0.3), nn.Linear(5, 2)

        def forward(self, x):
            return self.layer(self.drop(x) if len(x) % 2 else x)

    with pytest.raises(
        NetworkError, match="calls its dropout modules in an order that depends on the data"
    ):
        own_masks(make_model(Sometimes()), torch.randn(3, 5), True)


def test_dry_runs_leave_no_trace():
    net, x = make("dense")
    model = make_model(net)
    shell, state = model.shell(), torch.get_rng_state()
    before = {n: t.clone() for n, t in net.state_dict().items()}
    own_masks(model, x, True)
    is_random(model, x, NONE)
    assert (
        torch.equal(state, torch.get_rng_state())
        and isinstance(shell.module[2], nn.Dropout)
        and isinstance(net[2], nn.Dropout)
    )
    assert all(torch.equal(before[n], t) for n, t in net.state_dict().items())


def test_found_masks_are_all_that_is_random_of_most_networks():
    for name in ("dense", "image", "residual", "reused", "sequence", "attention"):
        net, x = make(name)
        model = make_model(net)
        assert is_random(model, x, NONE) and not is_random(model, x, own_masks(model, x, True)), (
            name
        )


@pytest.mark.parametrize("name", ["functional", "recurrent", "encoder"])
def test_noise_that_no_module_stands_for_is_noticed(name):
    """F.dropout, between an LSTM's layers, on attention weights."""
    net, x = make(name)
    model = make_model(net)
    assert is_random(model, x, own_masks(model, x, True))


def test_noise_that_rarely_acts_is_noticed():
    class Rare(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(5, 2)

        def forward(self, x):
            return self.layer(x) * (1 + (torch.rand(()) < 0.5) * float(self.training))

    assert is_random(make_model(Rare()), torch.randn(3, 5), NONE)


def test_batch_statistics_are_no_noise():
    net, x = make_plain("batchnorm")
    assert not is_random(make_model(net), x, NONE)
    assert modules_without_norms(net) == ("", "0", "2", "3")
    assert "1" not in modules_without_norms(nn.Sequential(nn.Linear(2, 2), nn.InstanceNorm1d(2)))


def test_only_the_chosen_modules_noise_counts():
    net, x = make("residual")
    model = make_model(net)
    assert is_random(model, x, NONE, ("before",)) and not is_random(model, x, NONE, ("first",))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_every_precision(dtype):
    net, x = make("dense")
    model = make_model(net.to(dtype))
    assert not is_random(model, x.to(dtype), own_masks(model, x.to(dtype), True))


def test_feeds_are_where_masking_the_weight_is_masking_the_units():
    """The meaning of ``feeds``, network by network: with the mask in its place, and with the
    weight's columns scaled instead.
    """
    for name in ("dense", "image", "residual", "sequence", "recurrent", "attention", "reused"):
        net, x = make(name)
        net.eval()
        model = make_model(net)
        shapes, _, feeds = own_masks(model, x, True)
        for weight, mask in feeds.items():
            shell = Shell(net)
            shell.train(False)
            with isolated(1):
                z = torch.rand(shapes[mask]).double()
            count = 2 if name == "reused" else 1
            path = mask.rpartition(".")[0]
            shell.place({f"{path}.mask{k}": torch.ones(()).double() for k in range(count)})
            shell.place({mask: z})
            value = dict(net.named_parameters())[weight].detach()
            units = z.flatten().repeat_interleave(value.shape[1] // z.numel())
            scaled = value * units.reshape(1, -1, *[1] * (value.dim() - 2))
            plain = Shell(net)
            plain.train(False)
            plain.place({weight: scaled})
            with torch.no_grad():
                assert torch.allclose(shell(x), plain(x), atol=1e-10), (name, weight)


def test_a_module_that_drops_everything_is_refused():
    net = nn.Sequential(nn.Linear(5, 3), nn.Dropout(1.0), nn.Linear(3, 2))
    with pytest.raises(NetworkError, match="'1' drops everything"):
        own_masks(make_model(net), torch.randn(3, 5), True)


# --- networks that can be stilled -----------------------------------------------------------------


class Stilled(nn.Module):
    """Noise of what it says of the data, which ``hold`` stills, and a dropout module that it does
    not.
    """

    def __init__(self, p=0.0):
        super().__init__()
        self.layer, self.drop, self.held = nn.Linear(5, 2), nn.Dropout(p), False

    def hold(self):
        self.held = True

    def forward(self, x):
        out = self.layer(self.drop(x))
        return out if self.held else out + torch.randn_like(out)


def test_noise_that_the_network_stills_is_none_of_its_weights():
    net, x = Stilled(), torch.randn(3, 5)
    assert not is_random(make_model(net), x, NONE)
    del Stilled.hold
    try:
        assert is_random(make_model(net), x, NONE), "the same network without a way to still it"
    finally:
        Stilled.hold = lambda self: setattr(self, "held", True)


def test_other_noise_of_a_stilled_network_still_counts():
    net, x = Stilled(0.4), torch.randn(3, 5)
    model = make_model(net)
    assert is_random(model, x, NONE) and not is_random(model, x, own_masks(model, x, True))


def test_the_callers_network_is_not_stilled():
    net, x = Stilled(), torch.randn(3, 5)
    model = make_model(net)
    shell = model.shell()
    is_random(model, x, NONE)
    assert not net.held and not shell.module.held and not model.shell().module.held
    assert not torch.equal(net(x), net(x))


def test_only_a_method_can_still_a_network():
    class Setting(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.hold = nn.Linear(5, 2), 0.5

        def forward(self, x):
            return self.layer(x) + self.hold * torch.randn(len(x), 2, dtype=x.dtype)

    assert is_random(make_model(Setting()), torch.randn(3, 5), NONE)


@pytest.mark.parametrize("binarise", [False, True])
@pytest.mark.parametrize("posterior", ["diagonal", "full", "categorical"])
@pytest.mark.parametrize(("draws", "bound"), [(1, "elbo"), (3, "elbo"), (3, "iwae")])
def test_latent_draws_are_no_noise_of_the_weights_but_a_coders_dropout_is(
    posterior, binarise, draws, bound
):
    from credo.generative.bounds import Bound
    from credo.generative.codes import codes
    from credo.generative.network import LatentNet
    from credo.generative.priors import make_prior
    from credo.likelihoods import Bernoulli

    x = torch.rand(4, 6, dtype=torch.float64).round()
    for p in (0.0, 0.5):
        code = codes[posterior](2)
        encoder, decoder = (
            nn.Linear(6, code.width),
            nn.Sequential(nn.Linear(code.size, 8), nn.Dropout(p), nn.Linear(8, 6)),
        )
        net = LatentNet(encoder, decoder, code, make_prior(code, None), Bernoulli(), (6,), binarise)
        gradient = "score" if posterior == "categorical" and bound == "iwae" else None
        net.train_on(Bound(draws=draws, bound=bound, gradient=gradient), [])
        model = make_model(net.double())
        assert is_random(model, x, NONE) == (p > 0)
        if (
            p and draws == 1
        ):  # several draws meet a module at once, so that its mask has no axis of examples
            assert not is_random(model, x, own_masks(model, x, True))
    assert not net._latents_fixed and not torch.equal(net(x), net(x))
