import copy
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from zoo.dropout import Encoder, Reused
from zoo.dropout import make as make_dropout
from zoo.networks import ZOO, make

from credo.core.errors import NetworkError
from credo.core.shell import Shell, pick, plain_kernels, unwrap


def snapshot(net):
    """Everything about a network that a caller could notice: tensors by identity and value, mode,
    gradients, hooks.
    """
    modules = list(net.modules())
    return {
        "tensors": [
            (name, id(t), t.detach().clone(), t.requires_grad, t.grad)
            for name, t in [*net.named_parameters(), *net.named_buffers()]
        ],
        "modes": [module.training for module in modules],
        "hooks": [
            (dict(m._forward_hooks), dict(m._forward_pre_hooks), dict(m._backward_hooks))
            for m in modules
        ],
        "attributes": [sorted(m.__dict__) for m in modules],
    }


def same(a, b):
    for (name, ident, value, flag, grad), (name2, ident2, value2, flag2, grad2) in zip(
        a["tensors"], b["tensors"], strict=True
    ):
        assert (
            (name, ident, flag) == (name2, ident2, flag2)
            and torch.equal(value, value2)
            and grad is grad2
        )
    assert (
        a["modes"] == b["modes"] and a["hooks"] == b["hooks"] and a["attributes"] == b["attributes"]
    )


@pytest.mark.parametrize("name", sorted(ZOO))
def test_the_callers_network_is_untouched_and_the_shell_gives_its_outputs(name):
    net, x = make(name)
    net.eval()
    net(**x) if isinstance(x, dict) else net(
        x
    )  # some hooks leave attributes behind at the first call
    before = snapshot(net)
    shell = Shell(net)
    shell.train(False)
    out = shell(x)
    expected = net(**x) if isinstance(x, dict) else net(x)
    if isinstance(out, dict):
        out, expected = out["logits"], expected["logits"]
    assert torch.equal(out, expected)
    shell.train(True)
    shell.place(
        {n: torch.zeros_like(t) for n, t in [*net.named_parameters(), *net.named_buffers()]}
    )
    shell(x)
    same(before, snapshot(net))


def test_memory_is_shared_with_the_network():
    net, _ = make("batchnorm")
    shell = Shell(net)
    own = dict(net.named_parameters()) | dict(net.named_buffers())
    assert all(shell.placed(name) is tensor for name, tensor in own.items())


def test_plain_tensor_attributes_and_lists_of_them_are_shared():
    net = nn.Linear(2, 2)
    net.table, net.nested = torch.ones(3), {"a": [torch.zeros(2)]}
    module = Shell(net).module
    assert (
        module.table is net.table
        and module.nested["a"][0] is net.nested["a"][0]
        and module is not net
    )


def test_tied_parameters_are_replaced_everywhere():
    net, x = make("tied")
    shell = Shell(net)
    new = torch.randn_like(net.embed.weight)
    shell.place({"embed.weight": new})
    assert shell.module.embed.weight is new and shell.module.head.weight is new


@pytest.mark.parametrize("name", ["lstm", "gru", "weight_norm_old", "weight_norm_new"])
def test_placed_parameters_are_used(name):
    """Recurrent layers keep a flat list of their weights, weight_norm computes them by a hook."""
    net, x = make(name)
    other, _ = make(name, seed=1)
    shell = Shell(net)
    shell.place(dict(other.named_parameters()))
    assert torch.allclose(shell(x), other(x))


def test_gradients_go_to_what_was_placed():
    net, x = make("mlp")
    shell = Shell(net)
    new = {n: p.detach().clone().requires_grad_() for n, p in net.named_parameters()}
    shell.place(new)
    shell(x).sum().backward()
    assert all(p.grad is None for p in net.parameters()) and all(
        p.grad is not None for p in new.values()
    )


def test_two_threads_with_their_own_shells():
    net, x = make("mlp")
    expected = {seed: run_with_random_weights(net, x, seed) for seed in range(4)}
    results = {}
    threads = [
        threading.Thread(
            target=lambda s=s: results.__setitem__(s, run_with_random_weights(net, x, s))
        )
        for s in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(results[s], expected[s]) for s in expected)


def run_with_random_weights(net, x, seed):
    shell, generator = Shell(net), torch.Generator().manual_seed(seed)
    outputs = []
    for _ in range(50):
        shell.place(
            {
                n: torch.randn(p.shape, generator=generator, dtype=p.dtype)
                for n, p in net.named_parameters()
            }
        )
        outputs.append(shell(x))
    return torch.stack(outputs)


def test_wrappers_are_taken_off():
    net = nn.Linear(2, 2)
    assert (
        unwrap(net) is net
        and unwrap(torch.compile(net)) is net
        and unwrap(nn.DataParallel(net)) is net
    )
    assert unwrap(torch.compile(nn.DataParallel(net))) is net


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_networks_that_cannot_be_used_are_refused_by_name():
    scripted = nn.Sequential(nn.Linear(2, 2), torch.jit.script(nn.Linear(2, 2)))
    with pytest.raises(NetworkError, match="'1' is a scripted module"):
        unwrap(scripted)
    with pytest.raises(
        NetworkError,
        match=r"'0\.weight' is not initialised \(a lazy module\); run the network once",
    ):
        unwrap(nn.Sequential(nn.LazyLinear(2)))
    with pytest.raises(NetworkError, match="Expected a torch.nn.Module as network, got function"):
        unwrap(make)


def test_a_network_that_refuses_to_be_copied():
    net = nn.Linear(2, 2)
    net.lock = threading.Lock()
    with pytest.raises(NetworkError, match="cannot be copied .*remove the attribute"):
        Shell(net)


def test_inputs_may_be_positional_or_named():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(1))

        def forward(self, a, b):
            return self.w * (a - b)

    shell, a, b = Shell(Two()), torch.tensor([3.0]), torch.tensor([1.0])
    assert shell((a, b)).item() == shell([a, b]).item() == shell({"b": b, "a": a}).item() == 2.0


def test_picking_an_output():
    logits = torch.zeros(3, 2)

    class Answer:
        def __init__(self):
            self.logits = logits

    assert (
        pick(logits, None) is logits
        and pick({"logits": logits}, "logits") is logits
        and pick((1, logits), 1) is logits
    )
    assert pick(Answer(), "logits") is logits
    assert pick(torch.zeros(3), None).shape == (3, 1)
    for output, key, words in [
        ({"a": logits}, "b", "no entry 'b'"),
        ({"a": logits}, None, r"returns \['a'\], not one tensor; say which part with output="),
        (logits, "x", "no entry 'x'"),
        ((logits,), 3, "no entry 3"),
        (copy, None, "returns module"),
    ]:
        with pytest.raises(NetworkError, match=words):
            pick(output, key)


def numbered(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_masks_are_placed_by_name():
    """In evaluation mode too, and in training mode without any noise beside them."""
    net, x = make_dropout("dense")
    shell, mask = Shell(net), numbered(1, 6)
    shell.place({"2.mask0": mask})
    expected = net[3](mask * torch.tanh(net[0](x)))
    for mode in (False, True):
        shell.train(mode)
        assert torch.equal(shell(x), expected)
    assert shell.placed("2.mask0") is mask and isinstance(net[2], nn.Dropout)
    shell.place({"2.mask0": 2 * mask})
    assert torch.equal(shell.placed("2.mask0"), 2 * mask)


@pytest.mark.parametrize("twice", [False, True], ids=["reused", "shared"])
def test_a_module_used_twice_has_two_masks_under_its_first_name(twice):
    net, x = Reused(twice=twice).double(), numbered(3, 5)
    shell, one, two = Shell(net), numbered(1, 6, seed=1), numbered(1, 4, seed=2)
    shell.place({"drop.mask0": one, "drop.mask1": two})
    expected = net.head(two * torch.tanh(net.second(one * torch.tanh(net.first(x)))))
    assert torch.equal(shell(x), expected)
    shell.place({"second.weight": torch.zeros(4, 7, dtype=torch.float64)})
    with pytest.raises(RuntimeError):  # broken off after the first mask
        shell(x)
    shell.place({"second.weight": net.second.weight, "drop.mask0": one, "drop.mask1": two})
    assert torch.equal(shell(x), expected), "placing begins a new pass"
    if twice:
        assert shell.module.same is shell.module.drop


def test_places_that_do_not_exist_are_refused():
    net, _ = make_dropout("dense")
    for name in ("2.mask1", "0.mask0", "nowhere.mask0", "2.weight"):
        with pytest.raises(NetworkError, match=f"The network has no place for '{name}'"):
            Shell(net).place({name: torch.ones(1)})


def test_a_transformer_layer_uses_placed_masks_in_evaluation_mode():
    """Its shortcut of evaluation mode would call no dropout module at all."""
    net, x = Encoder().double(), numbered(3, 6, 8)
    net.eval()
    shell = Shell(net)
    shell.train(False)
    shell.place(
        {
            f"layer.{leaf}.mask0": torch.ones(1, 1, n).double()
            for leaf, n in (("dropout", 16), ("dropout1", 8), ("dropout2", 8))
        }
    )
    with torch.no_grad():
        plain = shell(x)
        assert torch.allclose(plain, net(x), atol=1e-10)
        for leaf, n in (("dropout", 16), ("dropout1", 8), ("dropout2", 8)):
            shell.place({f"layer.{leaf}.mask0": numbered(1, 1, n)})
            changed = shell(x)
            assert not torch.allclose(changed, plain), leaf
            plain = changed


def test_an_encoder_of_several_layers_too():
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.3, batch_first=True)
    net = nn.TransformerEncoder(layer, 2).double().eval()
    shell = Shell(net)
    shell.train(False)
    with torch.no_grad():
        x = numbered(3, 6, 8)
        assert torch.allclose(shell(x), net(x), atol=1e-10)
        shell.place({"layers.1.dropout2.mask0": torch.zeros(1, 1, 8).double()})
        assert not torch.allclose(shell(x), net(x))


def test_swapping_reaches_every_name_of_a_module():
    shell = Shell(Reused(twice=True))
    new = nn.Identity()
    shell.swap("drop", new)
    assert (
        shell.module.drop is new
        and shell.module.same is new
        and isinstance(shell.module.first, nn.Linear)
    )


def test_live_modules_stay_in_training_mode():
    net = nn.Sequential(nn.Sequential(nn.Dropout(), nn.BatchNorm1d(2)), nn.Dropout())
    shell = Shell(net)

    def modes():
        return {path for path, module in shell.module.named_modules() if module.training}

    shell.train(False, ["0.0", "1"])
    assert modes() == {"0.0", "1"}
    shell.train(False, ["0.1"])
    assert modes() == {"0.1"}
    shell.train(False)
    assert modes() == set(), "what was live is no longer"
    shell.train(True, ["1"])
    assert modes() == {"", "0", "0.0", "0.1", "1"}
    assert all(module.training for module in net.modules())


def test_width_is_the_widest_output_from_the_first_named_parameter_on():
    net = nn.Sequential(nn.Linear(2, 50), nn.Linear(50, 3), nn.Linear(3, 7), nn.Linear(7, 1))
    shell, x = Shell(net), torch.zeros(4, 2)
    assert shell.width(x, ["0.weight"]) == 200
    assert shell.width(x, ["1.weight", "3.weight"]) == 28
    assert shell.width(x, ["3.bias"]) == 4 and shell.width(x, []) == 0
    assert not any(
        module._forward_hooks or module._forward_pre_hooks for module in shell.module.modules()
    )


def test_width_counts_outputs_of_any_structure_and_leaves_no_hook_after_an_error():
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, x):
            return {"a": self.layer(x), "b": [F.pad(x, (0, 9))]}

    shell = Shell(Pair())
    assert shell.width(torch.zeros(3, 2), ["layer.weight"]) == 33
    with pytest.raises(RuntimeError):
        shell.width(torch.zeros(3, 5), ["layer.weight"])
    assert not any(
        module._forward_hooks or module._forward_pre_hooks for module in shell.module.modules()
    )


@pytest.mark.filterwarnings("error")
def test_plain_kernels_are_for_a_block_alone_and_without_a_word():
    def switches():
        return torch.backends.mkldnn.enabled, torch.backends.mha.get_fastpath_enabled()

    before = switches()
    with pytest.raises(RuntimeError), plain_kernels(Shell(nn.Linear(2, 2))):
        assert switches() == (False, False)
        raise RuntimeError
    assert switches() == before


def test_recurrent_layers_run_without_cudnn_where_they_must_have_derivatives():
    """In evaluation mode with derivatives; predictions and training keep it, and so do networks
    without such layers.
    """

    class Seen(nn.Module):
        def __init__(self, layer):
            super().__init__()
            self.layer, self.cudnn = layer, []

        def forward(self, x):
            self.cudnn.append(torch.backends.cudnn.enabled)
            return self.layer(x)

    before = torch.backends.cudnn.enabled
    for layer, plain in ((nn.LSTM(3, 2), True), (nn.GRU(3, 2), True), (nn.Linear(3, 2), False)):
        shell = Shell(Seen(layer))
        assert shell.recurrent == plain
        for training in (False, True):
            shell.train(training)
            for grads in (False, True):
                with torch.set_grad_enabled(grads):
                    shell(torch.randn(4, 1, 3))
                assert torch.backends.cudnn.enabled == before
        assert shell.module.cudnn == [True, not plain, True, True]
        with plain_kernels(shell):
            assert torch.backends.cudnn.enabled == (not plain)
        assert torch.backends.cudnn.enabled == before
