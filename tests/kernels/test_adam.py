import torch

from credo.kernels.adam import adam_step, start_adam


def test_steps_are_those_of_torchs_adam():
    """Which descends: the force is minus its gradient."""
    generator = torch.Generator().manual_seed(0)
    position = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    forces = torch.randn(20, 5, 3, generator=generator, dtype=torch.float64)
    leaf = position.clone().requires_grad_()
    optimizer = torch.optim.Adam([leaf], lr=0.03)
    averages = start_adam(position)
    for index, force in enumerate(forces):
        step, averages = adam_step(averages, force, 0.03, index)
        position = position + step
        leaf.grad = -force
        optimizer.step()
        assert torch.allclose(position, leaf.detach(), atol=1e-12)
