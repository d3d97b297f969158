import torch
from torch import nn
from zoo.models import make_model
from zoo.networks import make

from credo.estimators import LIKELIHOOD
from credo.methods.ensembles.parts.member_points import equal_points, fixed_points


def test_several_points_of_mixed_types_are_families_of_their_own():
    net = nn.Sequential(nn.Linear(2, 2).double(), nn.Linear(2, 1))
    model = make_model(net, "weights")
    values = {n: v.expand(3, *v.shape) for n, v in model.values().items()}
    posterior = equal_points(
        model, values, {"log_std": torch.zeros(3)}, {"statistic": torch.ones(3, 2)}
    )
    assert posterior.atoms == 3 and len(posterior.factors) == 6
    assert posterior.realise([1], 0)[f"{LIKELIHOOD}log_std"].shape == (1,)


def test_one_members_points():
    net, _ = make("mlp")
    model = make_model(net, "last")
    parts = fixed_points(model, model.values(), {"log_std": torch.zeros(())})
    assert [part.names for part in parts] == [("0.weight", "0.bias"), (f"{LIKELIHOOD}log_std",)]
    assert fixed_points(make_model(net), make_model(net).values(), {}) == []
