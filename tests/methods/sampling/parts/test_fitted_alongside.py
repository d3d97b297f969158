import torch
from zoo.models import make_model
from zoo.networks import make

from credo.likelihoods import Gaussian
from credo.methods.sampling.parts.density import Density
from credo.methods.sampling.parts.fitted_alongside import FittedAlongside


def fitted(lr=0.1):
    net, _ = make("mlp")
    model = make_model(net, "last", Gaussian())
    return FittedAlongside(Density(model, model.values()), lr, 10)


def test_values_and_adams_averages_survive_a_checkpoint():
    one = fitted()
    goal = [
        torch.randn(t.shape, generator=torch.Generator().manual_seed(i), dtype=t.dtype)
        for i, t in enumerate(one.tensors)
    ]

    def step(each):
        def towards(optimizer):
            for tensor, g in zip(each.tensors, goal, strict=True):
                tensor.grad = 2 * (tensor - g)
            optimizer.step()

        assert each.step(0, towards)

    for _ in range(3):
        step(one)
    stored = {name: tensor.clone() for name, tensor in one.named_tensors().items()}
    two = fitted()
    two.restore(stored)
    for _ in range(3):
        step(one)
        step(two)
    assert len(one.tensors) == 3
    assert all(torch.equal(a, b) for a, b in zip(one.tensors, two.tensors, strict=True))
    three = fitted()  # values without Adam's averages would go elsewhere
    three.restore({name: tensor for name, tensor in stored.items() if name.startswith("free/")})
    step(three)
    assert not torch.equal(three.tensors[0], two.tensors[0])


def test_nothing_to_fit_takes_no_steps():
    def refuse(optimizer):
        raise AssertionError("a step was taken")

    net, _ = make("mlp")
    model = make_model(net, likelihood=Gaussian(std=1.0))
    none = FittedAlongside(Density(model, model.values()), 0.1, 10)
    assert not none.step(0, refuse) and none.named_tensors() == {}
    none.restore({})
    assert fitted().step(9, lambda optimizer: None) and not fitted().step(10, refuse)
