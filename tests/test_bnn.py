import copy
import threading

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.distributions import Categorical, MixtureSameFamily, Normal
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset
from zoo.classification import QUICK, classes, classifier
from zoo.networks import make
from zoo.regression import PRIOR_STD, bnn, exact, problem
from zoo.stats import has_mean, same_mean, same_variance

import credo
from credo import BNN
from credo.core.errors import CredoError, DataError, RunError, SettingError
from credo.data import intake
from credo.engine.run import Run
from credo.likelihoods import Gaussian
from credo.posteriors import Mixture, Posterior, Samples
from credo.priors import Flat


class Pairs(Dataset):
    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class Endless(IterableDataset):
    def __init__(self, x, y):
        self.x, self.y = x, y

    def __iter__(self):
        return iter(zip(self.x, self.y, strict=True))


KINDS = {
    "tensors": lambda x, y: (x, y),
    "numpy": lambda x, y: (x.numpy(), y.numpy()),
    "double": lambda x, y: (x.double(), y),
    "frames": lambda x, y: (pd.DataFrame(x.numpy()), pd.Series(y.numpy())),
    "tensor data set": TensorDataset,
    "data set": Pairs,
    "loader": lambda x, y: DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_data(kind):
    x, y = classes()
    fitted = BNN(classifier()).fit(KINDS[kind](x, y), **QUICK)
    assert len(fitted.history) == 3 and fitted.predict(x, samples=5).probs.shape == (5, 60, 3)
    if kind in ("numpy", "double", "frames", "tensor data set"):
        assert (
            fitted.history[-1]["elbo"] == BNN(classifier()).fit((x, y), **QUICK).history[-1]["elbo"]
        )


def test_a_stream_needs_its_number_of_examples():
    x, y = classes()
    with pytest.raises(DataError, match="num_data="):
        BNN(classifier()).fit(Endless(x, y), **QUICK)
    assert BNN(classifier()).fit(Endless(x, y), num_data=60, **QUICK).history


def state(net):
    return [
        (n, t.clone(), t.requires_grad) for n, t in [*net.named_parameters(), *net.named_buffers()]
    ] + [("mode", net.training, 0)]


@pytest.mark.parametrize("method", ["mle", "map", "vi"])
@pytest.mark.parametrize("training", [True, False])
def test_the_network_is_left_bit_identical(method, training):
    x, y = classes()
    net = classifier().train(training)
    net[0].bias.requires_grad_(False)
    before, rng, inputs = state(net), torch.get_rng_state(), (x.clone(), y.clone())
    fitted = BNN(net).fit((x, y), method, **QUICK)
    fitted.predict(x, samples=3)
    fitted.evaluate((x, y), samples=3)
    for (name, a, flag), (_, b, flag2) in zip(before, state(net), strict=True):
        assert flag == flag2 and (torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b), (
            name
        )
    assert all(p.grad is None for p in net.parameters()) and torch.equal(rng, torch.get_rng_state())
    assert torch.equal(x, inputs[0]) and torch.equal(y, inputs[1])


@pytest.mark.parametrize("method", ["mle", "map", "vi"])
def test_seeded_runs_repeat_and_seeds_differ(method):
    data = classes()
    one, same, other = (BNN(classifier()).fit(data, method, seed=s, **QUICK) for s in (1, 1, 2))
    weight = [b.posterior.mean()["0.weight"] for b in (one, same, other)]
    assert torch.equal(weight[0], weight[1]) and not torch.equal(weight[0], weight[2])
    assert torch.equal(one.predict(data[0], seed=3).mean, same.predict(data[0], seed=3).mean)


def test_fitting_again_starts_anew():
    data = classes()
    twice = BNN(classifier(), "categorical").fit(data, **QUICK).fit(data, **QUICK)
    assert torch.equal(
        twice.posterior.mean()["0.weight"],
        BNN(classifier()).fit(data, **QUICK).posterior.mean()["0.weight"],
    )
    x, y = problem()[:2]
    noisy = bnn(likelihood=Gaussian()).fit((x, y), "mle", **QUICK)
    first = noisy.history[-1]["elbo"]
    assert noisy.fit((x, y), "mle", **QUICK).history[-1]["elbo"] == first, (
        "learned noise starts anew too"
    )


@pytest.mark.parametrize(
    "settings",
    [
        {"method": "mle"},
        {"method": "map"},
        {"method": "vi"},
        {"method": "vi", "posterior": "low_rank"},
        {"method": "vi", "posterior": "full"},
        {"method": "vi", "posterior": "kron"},
    ],
)
def test_saving_and_loading_gives_identical_predictions(settings, tmp_path):
    x, y = classes()
    fitted = BNN(classifier(), random="weights").fit((x, y), **settings, **QUICK)
    fitted.save(tmp_path / "model")
    loaded = credo.load(tmp_path / "model", classifier())
    assert torch.equal(
        loaded.predict(x, samples=5, seed=2).probs, fitted.predict(x, samples=5, seed=2).probs
    )
    assert (
        loaded.history == fitted.history
        and loaded.method == fitted.method
        and set(loaded.random) == set(fitted.random)
    )
    if settings["method"] == "vi":
        assert loaded.objective((x, y), samples=5) == fitted.objective((x, y), samples=5)
    loaded.save(tmp_path / "again")
    assert torch.equal(
        credo.load(tmp_path / "again", classifier()).predict(x, samples=5).probs,
        fitted.predict(x, samples=5).probs,
    )


@pytest.mark.parametrize("likelihood", [None, Gaussian()])
def test_exact_posteriors_save_and_load(likelihood, tmp_path):
    x, y, _ = problem()
    fitted = bnn(likelihood=likelihood).fit((x, y), "exact")
    fitted.save(tmp_path / "model")
    loaded = credo.load(tmp_path / "model", nn.Linear(3, 1).double())
    assert torch.equal(loaded.predict(x, samples=5).mean, fitted.predict(x, samples=5).mean)
    assert torch.allclose(
        loaded.update((x, y)).posterior.mean()["weight"],
        fitted.update((x, y)).posterior.mean()["weight"],
    )


def test_a_finished_run_can_be_loaded_and_adopted(tmp_path):
    x, y = classes()
    fitted = BNN(classifier()).fit((x, y), run=tmp_path / "run", **QUICK)
    loaded = credo.load(tmp_path / "run", classifier())
    again = BNN(classifier()).fit((x, y), run=tmp_path / "run", **QUICK)
    for other in (loaded, again):
        assert torch.equal(other.predict(x, samples=5).probs, fitted.predict(x, samples=5).probs)
        assert [r["elbo"] for r in other.history] == [r["elbo"] for r in fitted.history]


def test_loading_into_another_network_is_refused(tmp_path):
    BNN(classifier()).fit(classes(), **QUICK).save(tmp_path / "model")
    with pytest.raises(
        RunError, match=r"fitted with '0\.weight' of shape \[8, 4\]; this network has \[9, 4\]"
    ):
        credo.load(
            tmp_path / "model",
            nn.Sequential(nn.Linear(4, 9), nn.BatchNorm1d(9), nn.Tanh(), nn.Linear(9, 3)),
        )
    with pytest.raises(RunError, match="no such parameter"):
        credo.load(tmp_path / "model", nn.Linear(4, 3))
    with pytest.raises(RunError, match="holds no saved model"):
        credo.load(tmp_path / "nowhere", classifier())


def test_a_prior_that_cannot_be_stored_is_asked_for_again(tmp_path):
    x, y = classes()
    prior = MixtureSameFamily(
        Categorical(torch.ones(2)), Normal(torch.zeros(2), torch.tensor([1.0, 0.1]))
    )
    fitted = BNN(classifier(), prior=prior).fit((x, y), **QUICK)
    fitted.save(tmp_path / "model")
    loaded = credo.load(tmp_path / "model", classifier())
    assert torch.equal(loaded.predict(x, samples=3).probs, fitted.predict(x, samples=3).probs)
    with pytest.raises(CredoError, match="could not be stored with it; give it again"):
        loaded.objective((x, y), samples=3)
    again = credo.load(tmp_path / "model", classifier(), prior=prior)
    assert again.objective((x, y), samples=3) == fitted.objective((x, y), samples=3)


def test_loops_batches_and_vmap_predict_the_same():
    x, y = classes()
    fitted = BNN(classifier()).fit((x, y), **QUICK)
    base = fitted.predict(x, samples=6, seed=1).outputs
    assert torch.equal(fitted.predict(x, samples=6, seed=1, vectorise=False).outputs, base)
    for how in ({"batch_size": 7}, {"vectorise": True}, {"vectorise": True, "batch_size": 7}):
        assert torch.allclose(
            fitted.predict(x, samples=6, seed=1, **how).outputs, base, rtol=1e-5, atol=1e-6
        )
    assert torch.equal(fitted.predict(x, samples=3, seed=1).outputs, base[:3])
    assert torch.equal(fitted.predict(x, num_samples=3, seed=1).outputs, base[:3])
    assert torch.equal(fitted.predict(x, 3, 1).outputs, base[:3])


def test_the_mean_shortcut_is_one_pass_with_the_mean_weights():
    x, y, _ = problem()
    fitted = bnn().fit((x, y), "exact")
    short = fitted.predict(x, shortcut="mean")
    mean = fitted.posterior.mean()
    assert short.num_samples == 1 and torch.allclose(
        short.mean, x @ mean["weight"].T + mean["bias"]
    )
    same_model = bnn(likelihood=Gaussian()).fit((x, y), "exact").predict(x, shortcut="mean")
    assert torch.isfinite(same_model.std).all()
    with pytest.raises(
        SettingError,
        match="shortcut='median'; expected None or one of 'mean', 'weights', .* 'linear', 'probit'",
    ):
        fitted.predict(x, shortcut="median")
    with pytest.raises(
        SettingError,
        match="shortcut='mean' is about the posterior; with source='prior' leave it out",
    ):
        fitted.predict(x, shortcut="mean", source="prior")


def test_the_mean_of_several_modes_is_refused():
    x, y, _ = problem()
    fitted = bnn().fit((x, y), "map", **QUICK)
    draws = {n: torch.stack([v, v + 1]) for n, v in fitted.posterior.mean().items()}
    for family in (Samples.of(draws), Mixture.of([fitted.posterior, fitted.posterior])):
        other = copy.copy(fitted)
        other._fitted = type(fitted._fitted)(Posterior([family]), {})
        with pytest.raises(CredoError, match=f"not meaningful for a {family.name} posterior"):
            other.predict(x, shortcut="mean")


def test_functions_of_the_prior_and_of_the_posterior():
    x, y, design = problem()
    model = bnn()
    prior = model.functions(x[:4], 4000, source="prior")
    has_mean(prior, torch.zeros(4, 1))
    cover = PRIOR_STD**2 * design[:4] @ design[:4].T
    same_variance(
        prior[:, :, 0],
        torch.from_numpy(np.random.default_rng(0).multivariate_normal(np.zeros(4), cover, 4000)),
    )
    with pytest.raises(CredoError, match="no posterior yet"):
        model.functions(x, 2)
    fitted = model.fit((x, y), "exact")
    mean, cov, _ = exact(design, y[:, 0].numpy())
    posterior = fitted.functions(x[:4], 4000)
    reference = torch.from_numpy(
        np.random.default_rng(1).multivariate_normal(
            design[:4] @ mean, design[:4] @ cov @ design[:4].T, 4000
        )
    )
    same_mean(posterior[:, :, 0], reference)
    same_variance(posterior[:, :, 0], reference)
    assert torch.equal(fitted.functions(x[:4], 10, source="prior"), prior[:10]), (
        "draw i of a seed is always the same"
    )
    assert fitted.predict(x[:4], samples=3, source="prior").num_samples == 3
    with pytest.raises(SettingError, match="source='data'; expected 'posterior' or 'prior'"):
        fitted.predict(x, source="data")
    with pytest.raises(SettingError, match="samples=0"):
        fitted.predict(x, samples=0)
    with pytest.raises(CredoError, match="improper"):
        bnn(prior=Flat()).functions(x, 2, source="prior")


def test_mutual_information_on_conjugate_regression():
    """I(y*; w) = 1/2 log(1 + phi' Sigma phi / s^2), estimated from 20,000 draws; its error is that
    of a log variance.
    """
    x, y, design = problem()
    fitted = bnn().fit((x, y), "exact")
    new = torch.tensor([[3.0, -1.0, 2.0], [0.0, 0.0, 0.0]]).double()
    phi = np.concatenate([new.numpy(), np.ones((2, 1))], 1)
    _, cov, _ = exact(design, y[:, 0].numpy())
    ratio = np.einsum("ni,ij,nj->n", phi, cov, phi) / 0.5**2
    predictive = fitted.predict(new, samples=20_000)
    # epistemic variance: z-test of the draws' variance, then the same formula
    error = np.sqrt(2 / 20_000)
    epistemic = predictive.epistemic[:, 0].numpy() / 0.5**2
    assert (np.abs(epistemic / ratio - 1) < 5 * error).all()
    ours = fitted.predict(new, samples=1500).mutual_information.numpy()
    expected = 0.5 * np.log1p(ratio)
    # d/dr [1/2 log(1 + r)] = 1 / 2(1 + r), r known to 5 standard errors of 1,500 draws
    assert (
        np.abs(ours - expected) < 5 * np.sqrt(2 / 1500) * ratio / (2 * (1 + ratio)) + 5e-3
    ).all()


def test_epistemic_uncertainty_shrinks_with_data_and_aleatoric_does_not():
    results = []
    for n in (100, 1000, 10_000):
        x, y, _ = problem(n=n)
        predictive = bnn(likelihood=Gaussian()).fit((x, y), "exact").predict(x[:20], samples=400)
        results.append((float(predictive.epistemic.mean()), float(predictive.aleatoric.mean())))
    (e1, a1), (e2, a2), (e3, a3) = results
    assert 5 < e1 / e2 < 20 and 5 < e2 / e3 < 20  # variance falls as 1 / N
    assert abs(a1 / 0.25 - 1) < 0.5 and abs(a3 / 0.25 - 1) < 0.05 and abs(a2 / 0.25 - 1) < 0.2


def test_the_objective_adds_up():
    x, y, design = problem()
    fitted = bnn().fit((x, y), "exact")
    parts = fitted.objective((x, y), samples=4000)
    assert abs(parts["elbo"] + parts["nll"] + parts["kl"]) < 1e-9
    evidence = exact(design, y[:, 0].numpy())[2]
    assert abs(parts["elbo"] - evidence) < 5 * parts["error"], (
        "the bound is tight at the exact posterior"
    )
    assert "bits_total" not in parts
    bits = fitted.objective((x, y), precision=0.01)
    assert np.isclose(bits["bits_data"], (bits["nll"] - 30 * np.log(0.01)) / np.log(2))
    labels = BNN(classifier()).fit(classes(), **QUICK).objective(classes(), samples=5)
    assert np.isclose(labels["bits_total"], -labels["elbo"] / np.log(2))


def test_updating_variational_posteriors():
    """Two parts one after the other reach the union's posterior: over eight seeds the mean
    deviation is zero by t-test.

    The largest of four t values with 7 degrees of freedom exceeds 7.9 with probability 4e-4.
    """
    x, y, design = problem(n=60)
    mean, cov, _ = exact(design, y[:, 0].numpy())
    how = {"epochs": 300, "lr": 0.05, "batch_size": 100, "progress": False}
    off = []
    for seed in range(8):
        model = bnn().fit(
            (x[:30], y[:30]),
            "vi",
            init_std=0.1,
            posterior="full",
            estimator="weights",
            train_samples=4,
            seed=seed,
            **how,
        )
        model.update((x[30:], y[30:]), seed=seed, **how)
        ours = torch.cat(
            [model.posterior.mean()["weight"][0], model.posterior.mean()["bias"]]
        ).numpy()
        off.append((ours - mean) / np.sqrt(np.diag(cov)))
    off = np.stack(off)
    assert np.abs(off.mean(0) / (off.std(0, ddof=1) / np.sqrt(len(off)))).max() < 7.9
    assert np.abs(off).max() < 0.5, (
        "no single fit is further than half a posterior standard deviation"
    )
    with pytest.raises(CredoError, match="update needs a posterior with spread"):
        bnn().fit((x, y), "map", **QUICK).update((x, y))


def test_an_earlier_posterior_as_prior():
    x, y, _ = problem(n=40)
    first = bnn().fit((x[:20], y[:20]), "exact")
    second = BNN(nn.Linear(3, 1).double(), Gaussian(std=0.5), prior=first.posterior).fit(
        (x[20:], y[20:]), "exact"
    )
    whole = bnn().fit((x, y), "exact")
    assert torch.allclose(
        second.posterior.mean()["weight"], whole.posterior.mean()["weight"], rtol=1e-6
    )


def test_two_threads_predict_and_fit_at_once():
    x, y = classes()
    fitted = BNN(classifier()).fit((x, y), **QUICK)
    expected = {s: fitted.predict(x, samples=20, seed=s).probs for s in range(3)}
    expected_fit = {
        s: BNN(classifier()).fit((x, y), seed=s, **QUICK).posterior.mean()["0.weight"]
        for s in range(2)
    }
    loader_fit = (
        BNN(classifier())
        .fit(DataLoader(TensorDataset(x, y), 16, shuffle=True), seed=7, **QUICK)
        .posterior.mean()["0.weight"]
    )
    nets = [classifier() for _ in range(3)]
    results = {}

    def run(key, work):
        results[key] = work()

    jobs = [(("p", s), lambda s=s: fitted.predict(x, samples=20, seed=s).probs) for s in range(3)]
    jobs += [
        (
            ("f", s),
            lambda s=s: BNN(nets[s]).fit((x, y), seed=s, **QUICK).posterior.mean()["0.weight"],
        )
        for s in range(2)
    ]
    jobs += [
        (
            ("l", 7),
            lambda: (
                BNN(nets[2])
                .fit(DataLoader(TensorDataset(x, y), 16, shuffle=True), seed=7, **QUICK)
                .posterior.mean()["0.weight"]
            ),
        )
    ]
    for _ in range(3):
        threads = [threading.Thread(target=run, args=fit_job) for fit_job in jobs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(torch.equal(results["p", s], expected[s]) for s in expected)
        assert all(torch.equal(results["f", s], expected_fit[s]) for s in expected_fit)
        assert torch.equal(results["l", 7], loader_fit)


def test_reading_data_in_one_thread_does_not_disturb_a_fit_in_another():
    """Data sets are read under their own random state, which is torch's global one for a moment."""
    x, y = classes()
    how = {"epochs": 40, "batch_size": 8, "progress": False}
    expected = BNN(classifier()).fit((x, y), **how).posterior.mean()["0.weight"]
    stop, net = threading.Event(), classifier()

    def read():
        while not stop.is_set():
            list(intake(Pairs(x, y))(None, 8))

    thread = threading.Thread(target=read)
    thread.start()
    try:
        ours = BNN(net).fit((x, y), **how).posterior.mean()["0.weight"]
    finally:
        stop.set()
        thread.join()
    assert torch.equal(ours, expected)


def test_validation_adds_a_column():
    x, y = classes()
    fitted = BNN(classifier()).fit((x, y), validation=(x, y), **QUICK)
    assert all("validation_nll" in row for row in fitted.history)
    assert np.isclose(
        fitted.history[-1]["validation_nll"],
        float(-fitted.predict(x, samples=16).log_prob(y).mean()),
        rtol=1e-5,
    )


@pytest.mark.parametrize(
    "name",
    [
        "dicts",
        "tied",
        "lstm",
        "transformer",
        "embedding",
        "weight_norm_old",
        "conv",
        "checkpointed",
    ],
)
def test_networks_of_every_kind_fit_and_predict(name):
    net, x = make(name, dtype=torch.float32)
    y = torch.tensor([0, 1, 1])
    fitted = BNN(net, output="logits" if name == "dicts" else None).fit((x, y), **QUICK)
    assert fitted.predict(x, samples=4).probs.shape == (4, 3, 2)


def test_wrapped_networks_are_unwrapped():
    x, y = classes()
    net = classifier()
    plain = BNN(net).fit((x, y), **QUICK).predict(x, samples=3).probs
    assert torch.equal(
        BNN(nn.DataParallel(net)).fit((x, y), **QUICK).predict(x, samples=3).probs, plain
    )
    assert torch.equal(
        BNN(torch.compile(net)).fit((x, y), **QUICK).predict(x, samples=3).probs, plain
    )


def test_a_bnn_can_be_copied():
    x, y = classes()
    fitted = BNN(classifier()).fit((x, y), **QUICK)
    assert torch.equal(
        copy.deepcopy(fitted).predict(x, samples=3).probs, fitted.predict(x, samples=3).probs
    )


def test_a_run_of_exact_keeps_its_evidence(tmp_path):
    x, y, _ = problem()
    fitted = bnn().fit((x, y), "exact", run=tmp_path / "run")
    loaded = credo.load(tmp_path / "run", nn.Linear(3, 1).double())
    assert loaded.history == fitted.history and "log_evidence" in loaded.history[-1]


def test_a_run_may_be_given_as_one_and_carries_what_is_attached(tmp_path):
    run = Run(tmp_path / "run")
    run.attach("note.json", "mine")
    fitted = BNN(classifier()).fit(classes(), run=run, **QUICK)
    assert (run.path / "note.json").read_text() == '"mine"\n'
    loaded = credo.load(run.path, classifier())
    assert torch.equal(loaded.predict(classes()[0], 3).mean, fitted.predict(classes()[0], 3).mean)
