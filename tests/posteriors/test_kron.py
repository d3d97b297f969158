import torch
from torch import nn
from torch.distributions import MultivariateNormal
from zoo.families import MAKERS, flat, values

from credo.core.linear_map import bind
from credo.core.seeds import Ambient
from credo.posteriors import Kron


def test_density_against_the_dense_gaussian():
    family = MAKERS["kron"]()
    rows, cols = family.row_factor(), family.col_factor()
    index = torch.arange(15).reshape(3, 5)
    order = torch.cat([index[:, :4].reshape(-1), index[:, 4]])
    cov = torch.kron(rows @ rows.mT, cols @ cols.mT)[order][:, order]
    normal = MultivariateNormal(flat(family.mean()), cov)
    point = values(9)
    assert torch.allclose(family.log_prob(point), normal.log_prob(flat(point)))
    assert torch.allclose(family.entropy(), normal.entropy())


def test_start_gives_each_weight_the_asked_standard_deviation():
    _, var = Kron.start(values(), 0.3).marginals()
    assert all(torch.allclose(v.sqrt(), torch.full_like(v, 0.3)) for v in var.values())


def test_a_weight_alone_and_with_more_axes():
    family = Kron.start({"w": torch.randn(3, 2, 5, 5)}, 0.1)
    assert family.matrix.shape == (3, 50) and family.draw(Ambient())["w"].shape == (3, 2, 5, 5)


def test_no_rule_where_groups_or_transposition_split_the_columns():
    family = MAKERS["kron"]()
    draw = family.begin(Ambient())
    x = torch.zeros(2, 4).double()
    grouped = bind(nn.functional.conv1d, (None, None), {"groups": 2})[0]
    transposed = bind(nn.functional.conv_transpose1d, (None, None), {})[0]
    embedding = bind(nn.functional.embedding, (None, None), {})[0]
    for op in (grouped, transposed, embedding):
        assert family.input_map(op, x) is None
        assert (
            draw.local(op, x, "w", "b", Ambient()) is NotImplemented
            and draw.flipout(op, x, "w", "b", Ambient()) is NotImplemented
        )


def test_no_rule_for_a_bias_that_is_not_its_own():
    draw, op = MAKERS["kron"]().begin(Ambient()), bind(nn.functional.linear, (None, None), {})[0]
    x = torch.zeros(2, 4).double()
    for bias in ("other", None, torch.zeros(3)):
        assert draw.local(op, x, "w", bias, Ambient()) is NotImplemented
