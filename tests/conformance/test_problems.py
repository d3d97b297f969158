"""The conformance problems know their own answers."""

from __future__ import annotations

import torch

from credo.conformance import conjugate, examples


def test_conjugate_answers_agree_with_each_other() -> None:
    problem = conjugate()
    design = torch.cat([problem.x, torch.ones(len(problem.x), 1, dtype=torch.float64)], 1)
    gradient = design.T @ (problem.y - design @ problem.mean) / problem.std**2 - problem.mean
    assert gradient.abs().max() < 1e-9
    assert (1 / problem.precision.diagonal() < problem.covariance.diagonal()).all()


def test_examples_run() -> None:
    for make in examples().values():
        case = make()
        assert case.net(case.x).shape == (len(case.y), 3)
