import os
import socket
import time

import pytest
import torch
from torch import nn
from torch.distributions import LogNormal, Normal, StudentT
from zoo.models import make_model, make_posterior
from zoo.networks import Checkpointed, make
from zoo.stats import same_mean

from credo.core.errors import SettingError
from credo.core.seeds import isolated
from credo.engine.elbo import Elbo
from credo.estimators import estimators
from credo.likelihoods import Gaussian
from credo.posteriors import Delta
from credo.priors import Learned, Optimal

Y = torch.randn(3, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def make_elbo(name="mlp", kind="mean_field", estimator="local", random="all", prior=None, **how):
    net, x = make(name)
    model = make_model(net, random, Gaussian(std=0.5), prior)
    return Elbo(model, make_posterior(kind, model), estimators[estimator], **how), x


def values(elbo, x, n, seed=0):
    with torch.no_grad(), isolated(seed):
        pairs = [elbo(x, Y) for _ in range(n)]
    return torch.stack([a for a, _ in pairs]), torch.stack([b for _, b in pairs])


@pytest.mark.parametrize("kind", ["mean_field", "low_rank", "full", "kron"])
def test_nll_is_summed_over_examples_and_kl_over_weights(kind):
    elbo, x = make_elbo(kind=kind)
    posterior = elbo.posterior
    with torch.no_grad():
        weights = posterior.sample(4000, seed=1)
        outputs = torch.vmap(lambda w: torch.func.functional_call(elbo.model.net, w, x))(weights)
        direct = -Normal(outputs, 0.5).log_prob(Y).sum((-2, -1))
        nll, kl = values(elbo, x, 2000)
        expected = sum(
            f.kl(p) for f, p in zip(posterior.factors, elbo.terms(0).priors, strict=True)
        )
    same_mean(nll, direct)
    assert torch.allclose(kl, expected.expand(2000), rtol=1e-12)


def test_more_draws_average():
    elbo, x = make_elbo(train_samples=3)
    single, _ = make_elbo(train_samples=1)
    nll, kl = values(elbo, x, 1)
    singles, kls = values(single, x, 3)
    # same seed, same order of draws; a plan made first does not count, because dry runs restore the
    # random state
    assert torch.allclose(nll[0], singles.mean()) and torch.allclose(kl[0], kls[0])


@pytest.mark.parametrize("train_samples", [1, 3])
def test_batch_norm_buffers_are_credos_own_and_averaged_over_draws(train_samples):
    elbo, x = make_elbo("batchnorm", train_samples=train_samples)
    net = elbo.model.net
    elbo.model.shell().train(True)
    before = {n: b.clone() for n, b in net.named_buffers()}
    expected = []
    with isolated(0):
        elbo(x, Y)
    shell = elbo.model.shell()
    with isolated(0):
        for _ in range(train_samples):
            version = {n: b.clone() for n, b in before.items()}
            shell.place(version)
            elbo._pass(shell, elbo.posterior, elbo.terms(0), elbo.plan(shell, x), x, Y, 0)
            expected.append(version)
    ours = elbo.buffers_.tensors()
    assert torch.allclose(
        ours["1.running_mean"], torch.stack([v["1.running_mean"] for v in expected]).mean(0)
    )
    assert (
        not torch.equal(ours["1.running_mean"], before["1.running_mean"])
        and int(ours["1.num_batches_tracked"]) == 1
    )
    assert all(torch.equal(b, before[n]) for n, b in net.named_buffers())


class Reassigning(nn.Module):
    """A running average kept by assignment instead of in place."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 2)
        self.register_buffer("average", torch.zeros(5))

    def forward(self, x):
        if self.training:
            self.average = 0.5 * self.average + 0.5 * x.detach().mean(0)
        return self.layer(x - self.average)


@pytest.mark.parametrize("train_samples", [1, 2])
def test_buffers_replaced_by_assignment_are_kept(train_samples):
    net = Reassigning().double()
    x = torch.ones(3, 5).double()
    model = make_model(net, likelihood=Gaussian(std=0.5))
    elbo = Elbo(model, make_posterior("mean_field", model), estimators["local"], train_samples)
    model.shell().train(True)
    for _ in range(2):
        elbo(x, Y)
    assert torch.allclose(elbo.buffers_.tensors()["average"], torch.full((5,), 0.75).double())
    assert torch.equal(net.average, torch.zeros(5).double())


def test_point_parameters_have_no_penalty_unless_a_prior_is_named():
    elbo, x = make_elbo(random="weights", prior=Normal(0.0, 1.0))
    assert isinstance(elbo.posterior.factors[1], Delta) and elbo.terms(0).priors[1] is None
    named, _ = make_elbo(
        random="weights", prior={"*.bias": Normal(0.0, 2.0), "*": Normal(0.0, 1.0)}
    )
    (_, kl), (_, more) = values(elbo, x, 1), values(named, x, 1)
    biases = [v for n, v in named.posterior.mean().items() if n.endswith("bias")]
    assert torch.allclose(more - kl, -sum(Normal(0.0, 2.0).log_prob(b).sum() for b in biases))


def test_a_prior_without_closed_form_is_sampled():
    elbo, x = make_elbo(prior=StudentT(3.0))
    _, kl = values(elbo, x, 3)
    assert elbo.terms(0).folds == [None] and len(set(kl.tolist())) == 3


def test_plans_are_kept_by_mode_and_structure():
    elbo, x = make_elbo()
    shell = elbo.model.shell()
    one = elbo.plan(shell, x)
    assert elbo.plan(shell, torch.cat([x, x])) is one
    shell.train(False)
    assert elbo.plan(shell, x) is not one and len(elbo._plans) == 2


def test_autocast_gives_single_precision_nll():
    net, x = make("mlp", dtype=torch.float32)
    model = make_model(net, likelihood=Gaussian(std=0.5))
    elbo = Elbo(
        model, make_posterior("mean_field", model), estimators["local"], autocast=torch.bfloat16
    )
    nll, kl = elbo(x, Y.float())
    (nll + kl).backward()
    assert nll.dtype == torch.float32 and all(
        torch.isfinite(p.grad).all() for p in elbo.posterior.parameters()
    )


@pytest.mark.parametrize("estimator", ["weights", "local", "flipout"])
def test_checkpointed_networks_train_like_plain_ones(estimator):
    _, x = make("checkpointed")
    grads = []
    for use in (True, False):
        with isolated(0):
            net = Checkpointed(use).double()
        model = make_model(net, likelihood=Gaussian(std=0.5))
        elbo = Elbo(
            model, make_posterior("low_rank", model), estimators[estimator], train_samples=1
        )
        with isolated(1):
            sum(elbo(x, Y)).backward()
        grads.append([p.grad for p in elbo.posterior.parameters()])
    assert all(torch.allclose(a, b, rtol=1e-12, atol=1e-13) for a, b in zip(*grads, strict=True))


def test_the_module_holds_posterior_likelihood_and_buffers_but_not_the_network():
    elbo, _ = make_elbo("batchnorm")
    kinds = {name.split(".")[0] for name, _ in [*elbo.named_parameters(), *elbo.named_buffers()]}
    assert kinds <= {"posterior", "likelihood", "buffers_"}
    assert sum(p.numel() for p in elbo.posterior.parameters()) == 2 * sum(
        p.numel() for p in elbo.model.net.parameters()
    )


def _data():
    net, _ = make("mlp")
    generator = torch.Generator().manual_seed(3)
    return (
        net,
        torch.randn(8, 5, generator=generator, dtype=torch.float64),
        torch.randn(8, 2, generator=generator, dtype=torch.float64),
    )


def _gradients(kind, rows, ddp):
    net, x, y = _data()
    model = make_model(net, likelihood=Gaussian(std=0.5))
    elbo = Elbo(model, make_posterior(kind, model), estimators["weights"])
    module = nn.parallel.DistributedDataParallel(elbo) if ddp else elbo
    with isolated(7):
        nll, kl = module(x[rows], y[rows])
    (nll / len(y[rows]) + kl / 8).backward()
    return [p.grad for p in elbo.posterior.parameters()]


def _worker(rank, port, folder):
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    for kind in ("delta", "mean_field"):
        grads = _gradients(kind, slice(4 * rank, 4 * rank + 4), ddp=True)
        if rank == 0:
            torch.save(grads, os.path.join(folder, kind))
    torch.distributed.barrier()
    time.sleep(1.0 - rank)  # the first process holds the store
    os._exit(0)  # threads of gloo may abort a process that tears itself down


def test_two_processes_give_the_gradient_of_the_whole_batch(tmp_path):
    """DDP averages gradients of mean losses over equal halves; the same noise in both makes the sum
    exact.
    """
    import subprocess
    import sys

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    code = (
        "import sys, runpy; sys.path.insert(0, sys.argv[1]); space = runpy.run_path(sys.argv[2]);"
        "space['_worker'](int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])"
    )
    tests = os.path.dirname(os.path.dirname(__file__))
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", code, tests, __file__, str(rank), str(port), str(tmp_path)]
        )
        for rank in (0, 1)
    ]
    try:
        assert [worker.wait(timeout=100) for worker in workers] == [0, 0]
    finally:
        for worker in workers:
            worker.kill()
    for kind in ("delta", "mean_field"):
        halves = torch.load(tmp_path / kind)
        whole = _gradients(kind, slice(None), ddp=False)
        assert all(
            torch.allclose(a, b, rtol=1e-12, atol=1e-14) for a, b in zip(halves, whole, strict=True)
        )


def test_a_prior_named_for_one_point_parameter_leaves_the_others_free():
    import credo

    x = torch.randn(20, 2, generator=torch.Generator().manual_seed(0))
    net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
    prior = {"*.weight": Normal(0.0, 1.0), "0.bias": Normal(0.0, 1e-3)}
    fitted = credo.BNN(net, "gaussian", prior=prior, random="weights").fit(
        (x, x[:, 0] + 3.0), epochs=400, progress=False
    )
    mean = fitted.posterior.mean()
    assert mean["0.bias"].abs().max() < 0.05 and mean["2.bias"].abs().item() > 0.3


def test_it_leaves_out_what_the_optimizer_knows_but_not_the_priors_of_points():
    prior = {"*.bias": Normal(0.0, 2.0), "*": Normal(0.0, 1.0)}
    elbo, x = make_elbo(random="weights", prior=prior, kl="optimizer")
    closed, _ = make_elbo(random="weights", prior=prior)
    biases = [v for n, v in elbo.posterior.mean().items() if n.endswith("bias")]
    (_, kl), (_, whole) = values(elbo, x, 1), values(closed, x, 1)
    assert torch.allclose(kl[0], -sum(Normal(0.0, 2.0).log_prob(b).sum() for b in biases))
    assert torch.allclose(elbo.divergence(), whole[0])


def test_a_prior_with_closed_form_updates_settles_on_the_posterior():
    net, x = make("mlp")
    model = make_model(net, likelihood=Gaussian(std=0.5))
    model.prior = Optimal().fresh(model.sites)
    elbo = Elbo(model, make_posterior("mean_field", model), estimators["local"])
    elbo(x, Y)
    with torch.no_grad():
        elbo.posterior.factors[0].flat_mean += 1.0
    before = float(model.prior.values()["all"]["loc"])
    elbo.after_fit()
    assert abs(float(model.prior.values()["all"]["loc"]) - before - 1.0) < 1e-12


def test_what_is_learned_of_the_prior_is_a_parameter_and_its_hyperprior_part_of_the_kl():
    net, x = make("mlp")
    model = make_model(net, likelihood=Gaussian(std=0.5))
    plain, held = (
        Learned(Normal(0.0, 1.0), learn=("scale",), hyperprior=hyper).fresh(model.sites)
        for hyper in (None, {"scale": LogNormal(0.0, 0.5)})
    )
    kls = []
    for prior in (plain, held):
        model.prior = prior
        elbo = Elbo(model, make_posterior("mean_field", model), estimators["local"])
        assert [n for n, _ in elbo.named_parameters() if n.startswith("prior_parts")] == [
            "prior_parts.0.scale@all"
        ]
        kls.append(values(elbo, x, 1)[1][0])
    assert torch.allclose(kls[1] - kls[0], -LogNormal(0.0, 0.5).log_prob(torch.ones(())).double())


def test_the_optimal_prior_needs_a_gaussian_posterior():
    """Anything else would leave it where it starts, unsaid; a point alone would pull it into a
    collapse.
    """
    net, _ = make("mlp")
    model = make_model(net, likelihood=Gaussian(std=0.5))
    model.prior = Optimal().fresh(model.sites)
    for kind in ("delta", "flow"):
        with pytest.raises(SettingError, match=f"has the family '{kind}': use Learned"):
            Elbo(model, make_posterior(kind, model), estimators["weights"])
