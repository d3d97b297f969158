"""What a callback sees of the BNN that is being fitted, and that looking changes nothing."""

import pytest
import torch
from torch import nn

import credo

X = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()


def fresh():
    torch.manual_seed(0)
    return credo.BNN(nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2)))


@pytest.mark.parametrize("method", ["map", "vi", "mc_dropout", "sparse_vd", "deep_ensemble"])
def test_a_callback_sees_the_posterior_of_the_moment_and_looking_changes_nothing(method):
    settings = {"epochs": 4, "batch_size": 20, "lr": 1e-2, "progress": False}
    bnn, seen = fresh(), []

    def look(row):
        values = bnn.posterior.sample(1)["0.weight"].detach().clone()
        seen.append(
            (values, bnn.predict(X, samples=3).mean, bnn.evaluate((X, Y), samples=3)["nll"])
        )

    bnn.fit((X, Y), method, callbacks=[look], **settings)
    straight = fresh().fit((X, Y), method, **settings)
    assert torch.equal(bnn.predict(X, samples=3).mean, straight.predict(X, samples=3).mean)
    assert [r["nll"] for r in bnn.history] == [r["nll"] for r in straight.history]
    assert len(seen) == 4 and not torch.equal(seen[0][0], seen[1][0])
    assert torch.equal(seen[-1][1], bnn.predict(X, samples=3).mean), "the last look is the result"


def test_the_posterior_of_the_moment_replaces_an_earlier_one_only_if_the_fit_succeeds():
    bnn = fresh().fit((X, Y), "vi", epochs=2, progress=False)
    before, seen = bnn.predict(X, samples=3).mean, []

    def look(row):
        seen.append(bnn.predict(X, samples=3).mean)
        if row["epoch"] == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bnn.fit((X, Y), "map", epochs=3, callbacks=[look], progress=False)
    assert len(seen) == 2 and not torch.equal(seen[0], before)
    assert torch.equal(bnn.predict(X, samples=3).mean, before) and bnn.method.name == "vi"


def test_methods_that_have_no_posterior_yet_say_so():
    bnn = fresh()
    with pytest.raises(credo.CredoError, match="no posterior yet"):
        bnn.fit(
            (X, Y),
            "hmc",
            num_warmup=2,
            num_draws=2,
            num_chains=1,
            callbacks=[lambda row: bnn.posterior],
            progress=False,
        )
