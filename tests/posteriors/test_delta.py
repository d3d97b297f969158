import pytest
import torch

from credo.core.errors import CredoError
from credo.core.seeds import Streams
from credo.posteriors import Delta


def test_it_is_a_point_of_its_own():
    value = torch.tensor([1.0, 2.0])
    family = Delta.start({"w": value})
    value += 1
    assert family.mean()["w"].tolist() == [1.0, 2.0] and family.atoms == 1


def test_draws_repeat_the_point_without_a_copy():
    family = Delta.start({"w": torch.ones(2, 3)})
    drawn = family.draw(Streams(0, range(4)))["w"]
    assert drawn.shape == (4, 2, 3) and drawn.data_ptr() == family.values[0].data_ptr()


def test_every_parameter_keeps_its_type():
    family = Delta.start(
        {"a": torch.ones(2, dtype=torch.float64), "b": torch.ones(2, dtype=torch.float32)}
    )
    other = Delta.from_config(family.config())
    assert [p.dtype for p in other.values] == [torch.float64, torch.float32]


def test_it_has_no_density():
    with pytest.raises(CredoError, match="point estimate has no density"):
        Delta.start({"w": torch.ones(1)}).log_prob({"w": torch.ones(1)})
