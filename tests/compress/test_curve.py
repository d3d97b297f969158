import pytest
import torch
from torch import nn

import credo
from credo.compress import curve, score
from credo.compress.curve import dense
from credo.core.errors import SettingError

X = torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
Y = ((X[:, 0] + X[:, 1]) > 0).long()


def fitted(method, **settings):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    return credo.BNN(net, "categorical").fit(
        (X, Y), method, epochs=20, batch_size=50, lr=1e-2, progress=False, **settings
    )


def test_a_curve_goes_from_dense_to_sparse_and_chooses():
    bnn = fitted("vi")
    found = curve(bnn, (X, Y), at=(0.0, 0.5, 0.9))
    rows = found.rows()
    assert found.rule == "snr" and [r["at"] for r in rows] == [0.0, 0.5, 0.9]
    assert rows[0]["compression"] == 1.0 < rows[1]["compression"] < rows[2]["compression"]
    assert rows[0]["nll"] == pytest.approx(dense(bnn, (X, Y))["nll"])
    assert rows[2]["error"] == pytest.approx(
        1 - score(found.points[2].pruned.net, bnn, (X, Y))["accuracy"]
    )
    assert found.best(slack=1.0) is found.points[2].pruned
    least = min(r["error"] for r in rows)
    assert found.best().nonzero == min(r["nonzero"] for r in rows if r["error"] == least)
    figure = found.figure()
    assert figure["lines"][0]["y"] == [r["error"] for r in rows] and figure["log_x"]


def test_thresholds_of_a_posterior_that_prunes_by_itself():
    found = curve(fitted("sparse_vd", kl_warmup=0, kl_schedule="constant"), (X, Y))
    kept = [row["nonzero"] for row in found.rows()]
    assert found.rule == "own" and kept == sorted(kept, reverse=True)


def test_regression_counts_its_nll():
    torch.manual_seed(0)
    bnn = credo.BNN(nn.Linear(4, 1), "gaussian").fit((X, X[:, :1]), "vi", epochs=3, progress=False)
    found = curve(bnn, (X, X[:, :1]), at=(0.0, 0.5))
    assert found.points[0].error == found.points[0].metrics["nll"]


def test_nothing_to_try_is_refused():
    with pytest.raises(SettingError, match="at= is empty"):
        curve(fitted("vi"), (X, Y), at=())
