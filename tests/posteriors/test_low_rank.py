import torch
from zoo.families import values

from credo.core.seeds import Streams, generator
from credo.posteriors import LowRank


def test_start_gives_each_weight_the_asked_variance_on_average():
    family = LowRank.start({"w": torch.zeros(200, 200)}, generator(0), 0.1, rank=4)
    _, var = family.marginals()
    # Half from the diagonal, half from 4 squared factors of 40,000 weights each: the average is
    # exact to 1 %.
    assert abs(var["w"].mean().item() / 0.01 - 1) < 0.01


def test_all_parameters_move_along_the_same_factors():
    family = LowRank.start(values(), generator(0), 0.5, rank=1)
    with torch.no_grad():
        family.diagonal.raw_std.fill_(-20.0)
        draws, mean = family.draw(Streams(0, range(50))), family.mean()
    shift = torch.cat([(draws["w"] - mean["w"]).flatten(1), draws["b"] - mean["b"]], 1)
    assert torch.linalg.matrix_rank(shift, atol=1e-6) == 1


def test_the_seed_of_the_start_decides_the_factors():
    one, same, other = (LowRank.start(values(), generator(s), 0.5) for s in (0, 0, 1))
    assert torch.equal(one.factor, same.factor) and not torch.equal(one.factor, other.factor)
