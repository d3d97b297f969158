import pytest
import torch
from torch import nn

import credo
from credo.compress import Pruned, prune, sparsity
from credo.compress.pruned import keep_masks, moments, plain, pruned_of, scores
from credo.core.errors import CredoError, SettingError

X = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))


def fitted(method="vi", **settings):
    return credo.BNN(net(), "categorical").fit((X, Y), method, epochs=3, progress=False, **settings)


@pytest.fixture(scope="module")
def sparse():
    return fitted("sparse_vd", lr=1e-2, kl_warmup=0, kl_schedule="constant")


def test_the_family_s_own_rule_is_that_of_its_mean(sparse):
    found = prune(sparse)
    mean = sparse.posterior.mean()
    assert (
        found.rule == "own"
        and found.threshold is None
        and set(found.masks) == {"0.weight", "2.weight"}
    )
    for name, parameter in found.net.named_parameters():
        assert torch.equal(parameter.detach(), mean[name])
    assert (
        found.sparsity()
        == sparsity(sparse)
        == {n: 1 - float(m.double().mean()) for n, m in keep_masks(sparse.posterior).items()}
    )


def test_another_threshold_prunes_more_or_less(sparse):
    family = sparse.posterior.members[0]
    log_alpha = torch.cat([v.reshape(-1) for v in family.log_alpha().values()])
    counts = []
    for threshold in (-100.0, float(log_alpha.median()), 100.0):
        found = prune(sparse, threshold=threshold)
        counts.append(found.nonzero - 8)  # biases
        assert counts[-1] == int((log_alpha < threshold).sum())
        values = dict(found.net.named_parameters())
        assert all(
            torch.equal(values[n].detach(), v * found.masks[n])
            for n, v in family.marginals()[0].items()
        )
    assert counts[0] == 0 and counts[2] == 36


def test_by_signal_to_noise_and_magnitude():
    bnn = fitted()
    mean, std = moments(bnn.posterior)
    assert torch.allclose(scores(bnn, "snr")["0.weight"], mean["0.weight"].abs() / std["0.weight"])
    for by in ("snr", "magnitude"):
        found = prune(bnn, by, share=0.5)
        assert sum(int(m.sum()) for m in found.masks.values()) == 18 and found.rule == by
        gone = torch.cat([scores(bnn, by)[n][~m] for n, m in found.masks.items()])
        stays = torch.cat([scores(bnn, by)[n][m] for n, m in found.masks.items()])
        assert gone.max() <= stays.min()
        again = prune(bnn, by, threshold=float(stays.min()))
        assert all(torch.equal(again.masks[n], m) for n, m in found.masks.items())
    assert prune(bnn, share=0.0).nonzero == prune(bnn, share=0.0).numel
    assert prune(bnn, share=0.5).rule == "snr"


def test_biases_are_never_pruned_by_score_and_the_fit_is_left_alone():
    bnn = fitted()
    before = {n: v.clone() for n, v in bnn.posterior.mean().items()}
    found = prune(bnn, share=0.9)
    assert set(found.masks) == {"0.weight", "2.weight"} and not any(
        m.training for m in found.net.modules()
    )
    assert all(torch.equal(v, before[n]) for n, v in bnn.posterior.mean().items())
    assert found.ratio == found.numel / found.nonzero


def test_statistics_of_normalisation_come_along():
    torch.manual_seed(0)
    bnn = credo.BNN(
        nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)), "categorical"
    )
    bnn.fit((X, Y), "vi", epochs=3, progress=False)
    found = dict(plain(bnn).named_buffers())
    assert (
        torch.equal(found["1.running_mean"], bnn.buffers["1.running_mean"])
        and found["1.running_mean"].any()
    )


def test_other_values_keep_the_zeros(sparse):
    found = prune(sparse)
    other = found.with_values({n: torch.ones_like(p) for n, p in found.net.named_parameters()})
    assert isinstance(other, Pruned) and all(
        torch.equal(dict(other.net.named_parameters())[n] != 0, m) for n, m in found.masks.items()
    )


def test_a_plain_network_and_a_posterior_without_a_rule_have_the_zeros_they_have():
    plain_net = net()
    with torch.no_grad():
        plain_net[0].weight[0] = 0
    assert pruned_of(plain_net).sparsity() == {"0.weight": pytest.approx(1 / 6), "2.weight": 0.0}
    found = pruned_of(fitted())
    assert found.masks == {} and found.nonzero == found.numel and pruned_of(found) is found


@pytest.mark.parametrize(
    "settings, told",
    [
        ({"by": "taste"}, "by='taste' is not known"),
        ({"by": "own"}, "needs a posterior that prunes by itself"),
        ({"by": "snr"}, "give one of them"),
        ({"by": "snr", "threshold": 1.0, "share": 0.5}, "give one of them"),
        ({"by": "magnitude", "share": 1.0}, "a share from 0 to below 1"),
        ({"by": "magnitude", "share": -0.1}, "a share from 0 to below 1"),
    ],
)
def test_what_cannot_be_is_refused(settings, told):
    with pytest.raises(SettingError, match=told):
        prune(fitted(), **settings)


def test_own_takes_no_share_and_points_have_no_noise(sparse):
    with pytest.raises(SettingError, match="takes a threshold, no share"):
        prune(sparse, "own", share=0.5)
    with pytest.raises(SettingError, match="knows none; use by='magnitude'"):
        prune(fitted("map"), "snr", share=0.5)
    assert prune(fitted("map"), "magnitude", share=0.5).nonzero == 18 + 8


def test_an_ensemble_has_no_mean_network():
    with pytest.raises(CredoError, match="whose mean is no network; distil it"):
        prune(fitted("deep_ensemble", members=2), "magnitude", share=0.5)


def test_a_posterior_whose_mean_is_empty_is_refused():
    with pytest.raises(CredoError, match="no network to compress: every weight has mean zero"):
        prune(fitted("variance_net", layers="all"), "magnitude", share=0.5)


@pytest.mark.parametrize(
    "method", ["group_normal_jeffreys", "group_horseshoe", "horseshoe", "structured_bp"]
)
def test_groups_go_whole_and_by_any_threshold(method):
    bnn = fitted(method)
    found, none = prune(bnn), prune(bnn, threshold=1e9 if method == "structured_bp" else -1e9)
    mean = bnn.posterior.mean()
    assert found.rule == "own" and all(
        torch.allclose(p.detach(), mean[n])
        for n, p in found.net.named_parameters()
        if n in found.masks
    )
    assert not any(mask.any() for mask in none.masks.values()) and set(found.std) >= {"2.weight"}


def test_counts_are_of_weights_up_for_pruning():
    masks = {"0.weight": torch.eye(6, 4).bool(), "2.weight": torch.ones(2, 6).bool()}
    assert Pruned(net(), masks, {}, "own", None).counts == (4 + 12, 24 + 12)
