"""The teacher of known width, and its data."""

import math

import torch

from credo_reproduce.width_teacher import problem, teacher


@torch.no_grad()
def test_the_teacher_needs_every_unit():
    """Without any one of them the function moves by more than the noise."""
    for seed in range(5):
        net, x = teacher(5, seed), problem(5, 500, 10, 0.1, seed).train[0]
        whole, weights = net(x), net[2].weight.clone()
        for unit in range(5):
            net[2].weight[:, unit] = 0
            assert float((net(x) - whole).std()) > 0.1
            net[2].weight.copy_(weights)


@torch.no_grad()
def test_labels_are_the_teachers_with_noise():
    one, two = problem(5, 4000, 10, 0.1, 1), problem(5, 4000, 10, 0.1, 2)
    assert (
        one.train[0].shape == (4000, 2)
        and one.train[1].shape == (4000, 1)
        and not torch.equal(one.train[0], two.train[0])
    )
    assert float(one.train[0].abs().max()) <= 1 and not torch.equal(one.train[0][:10], one.test[0])
    noise = one.train[1] - teacher(5, 1)(one.train[0])
    # The deviation of 4,000 draws has standard error 0.1 / sqrt(8000); four of them fail once in
    # 16,000.
    assert abs(float(noise.std()) - 0.1) < 4 * 0.1 / math.sqrt(8000)
