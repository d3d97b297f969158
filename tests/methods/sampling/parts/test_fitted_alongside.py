import torch
from zoo.models import make_model
from zoo.networks import make

from credo.likelihoods import Gaussian
from credo.methods.sampling.parts.density import Density
from credo.methods.sampling.parts.fitted_alongside import Free


def free(lr=0.1):
    net, _ = make("mlp")
    model = make_model(net, "last", Gaussian())
    return Free(Density(model, model.values()), lr, 10)


def test_values_and_adams_averages_survive_a_record():
    one = free()
    goal = [
        torch.randn(t.shape, generator=torch.Generator().manual_seed(i), dtype=t.dtype)
        for i, t in enumerate(one.density.free)
    ]

    def step(each):
        def towards(optimizer):
            for tensor, g in zip(each.density.free, goal, strict=True):
                tensor.grad = 2 * (tensor - g)
            optimizer.step()

        each.learn(towards)

    for _ in range(3):
        step(one)
    kept = {name: tensor.clone() for name, tensor in one.record().items()}
    two = free()
    two.recall(kept)
    for _ in range(3):
        step(one)
        step(two)
    assert len(one.density.free) == 3
    assert all(torch.equal(a, b) for a, b in zip(one.density.free, two.density.free, strict=True))
    three = free()  # values without Adam's averages would go elsewhere
    three.recall({name: tensor for name, tensor in kept.items() if name.startswith("free/")})
    step(three)
    assert not torch.equal(three.density.free[0], two.density.free[0])


def test_nothing_free_is_nothing_to_learn():
    net, _ = make("mlp")
    model = make_model(net, likelihood=Gaussian(std=1.0))
    none = Free(Density(model, model.values()), 0.1, 10)
    assert not none.learns(0) and none.record() == {}
    none.recall({})
    assert free().learns(9) and not free().learns(10)
