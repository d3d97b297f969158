import pytest
import torch
from torch import nn

import credo
from credo.core.errors import SettingError
from credo.engine.training_loop import decays, schedules

N = 300
X = torch.randn(N, 10, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] + X[:, 1] > 0).long()


def fit(net=None, x=X, **settings):
    torch.manual_seed(0)
    given = {"epochs": 60, "batch_size": 50, "lr": 1e-2, "progress": False} | settings
    return credo.BNN(
        net or nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 2)), "categorical"
    ).fit((x, Y), "sparse_vd", **given)


def test_weights_of_inputs_without_use_are_pruned_and_accuracy_stays():
    bnn = fit()
    first = bnn.posterior.mean()["0.weight"]
    used, idle = (first[:, :2] != 0).double().mean(), (first[:, 2:] != 0).double().mean()
    assert idle < 0.1 < used
    assert bnn.history[-1]["sparsity"] > 0.8 > bnn.history[0]["sparsity"]
    assert float((bnn.predict(X, shortcut="mean").probs.argmax(-1) == Y).double().mean()) > 0.95
    assert bnn.evaluate((X, Y), 50)["accuracy"] > 0.95


def test_biases_are_points_without_a_prior():
    bnn = fit(epochs=1)
    assert (
        set(bnn.posterior.members[0].names) == {"0.weight", "2.weight"}
        and bnn.posterior.members[0].name == "sparse_vd"
    )
    assert not bnn.proper


def test_random_labels_leave_nothing():
    torch.manual_seed(1)
    bnn = credo.BNN(nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 2)), "categorical")
    bnn.fit(
        (X, torch.randint(2, (N,))), "sparse_vd", epochs=150, batch_size=50, lr=1e-2, progress=False
    )
    assert bnn.history[-1]["sparsity"] > 0.99


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.inside, self.out = (
            nn.Embedding(7, 4),
            nn.LSTM(4, 5, batch_first=True),
            nn.Linear(5, 2),
        )

    def forward(self, x):
        return self.out(self.inside(self.words(x))[0][:, -1])


@pytest.mark.parametrize("kind", ["conv", "embedding", "lstm"])
def test_all_kinds_of_weights(kind):
    torch.manual_seed(0)
    words = torch.randint(7, (N, 3))
    net, x = {
        "conv": (
            nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2)),
            torch.randn(N, 1, 4, 4),
        ),
        "embedding": (nn.Sequential(nn.Embedding(7, 4), nn.Flatten(), nn.Linear(12, 2)), words),
        "lstm": (Recurrent(), words),
    }[kind]
    bnn = fit(net, x, epochs=2)
    assert bnn.predict(x[:5], 3).probs.isfinite().all() and "sparsity" in bnn.history[-1]


def test_threshold_is_the_family_s():
    strict, loose = (
        fit(epochs=3, kl_warmup=0, kl_schedule="constant", threshold=t) for t in (-3.0, 3.0)
    )
    assert strict.history[-1]["sparsity"] > loose.history[-1]["sparsity"]


def test_the_late_schedule_and_the_line():
    late, line = schedules["late"], decays["linear"]
    assert [late(p, 0, 1) for p in (0.0, 0.25, 0.625, 1.0, 3.0)] == pytest.approx(
        [0.0, 0.0, 0.5, 1.0, 1.0]
    )
    assert [line(p) for p in (0.0, 0.5, 1.0)] == [1.0, 0.5, 0.0]


def test_an_update_would_forget_and_is_refused():
    with pytest.raises(SettingError, match="update would forget the earlier data"):
        fit(epochs=1).update((X, Y))
