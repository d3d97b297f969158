"""Networks as codes: what they stand for, what is refused, and how books are rounded."""

import pytest
import torch
from torch import nn
from zoo.sparse import generator, with_batchnorm

from credo.compress.quantised import Coded, Quantised, Raw, rounded_book
from credo.core.errors import CredoError, NetworkError, SettingError


def test_codes_stand_for_zero_and_the_values_of_the_book():
    coded = Coded(torch.tensor([[0, 2], [1, 0]]), torch.tensor([-0.5, 0.25]))
    assert torch.equal(coded.tensor(), torch.tensor([[0.0, 0.25], [-0.5, 0.0]]))
    assert (coded.numel, coded.nonzero, coded.shape) == (4, 2, (2, 2))
    assert coded.codes.dtype == torch.int32 and coded.book.dtype == torch.float32


def test_a_quantised_tensor_is_its_own_book():
    values = torch.tensor([[0.5, -0.0, 0.5], [-2.0, 0.0, 1.5]])
    coded = Coded.of(values)
    assert coded.book.tolist() == [-2.0, 0.5, 1.5]
    assert torch.equal(coded.tensor(), values)
    assert Coded.of(torch.zeros(3)).book.numel() == 0 and Coded.of(torch.zeros(0, 2)).numel == 0


@pytest.mark.parametrize(
    "book", [[0.5, 0.25], [0.5, 0.5], [0.0, 1.0], [float("nan")], [float("inf")]]
)
def test_a_book_that_is_not_ascending_finite_and_free_of_zero_is_refused(book):
    with pytest.raises(CredoError, match="Coded.of"):
        Coded(torch.zeros(2, dtype=torch.int32), torch.tensor(book))


@pytest.mark.parametrize("codes", [[3], [-1]])
def test_codes_outside_the_book_are_refused(codes):
    with pytest.raises(CredoError, match="a book of 2 values has the codes 0 to 2"):
        Coded(torch.tensor(codes), torch.tensor([1.0, 2.0]))


def test_values_in_place_of_codes_and_complex_tensors_are_refused():
    with pytest.raises(CredoError, match="torch.float32"):
        Coded(torch.zeros(2), torch.tensor([1.0]))
    with pytest.raises(CredoError, match="one axis"):
        Coded(torch.zeros(2, dtype=torch.int32), torch.tensor(1.0))
    with pytest.raises(CredoError, match="complex"):
        Raw(torch.zeros(2, dtype=torch.complex64))


def test_filling_makes_a_copy_in_evaluation_mode_and_leaves_the_network_alone():
    net, quantised = with_batchnorm()
    before = {n: t.clone() for n, t in net.state_dict().items()}
    filled = quantised.fill(net.train())
    assert net.training and not filled.training
    assert all(torch.equal(before[n], t) for n, t in net.state_dict().items())
    assert all(torch.equal(quantised.state()[n], t) for n, t in filled.state_dict().items())
    assert quantised.numel == sum(t.numel() for t in before.values())
    assert quantised.nonzero == sum(int(t.count_nonzero()) for t in filled.state_dict().values())
    assert quantised.values("1.num_batches_tracked").dtype == torch.float32


def test_another_network_is_refused_by_name_and_by_shape():
    net, quantised = with_batchnorm()
    with pytest.raises(
        NetworkError, match="they lack 'weight', 'bias' and have besides '0.weight'"
    ):
        quantised.fill(nn.Linear(2, 2))
    other = nn.Sequential(nn.Conv2d(1, 4, 2), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 3))
    with pytest.raises(
        NetworkError,
        match=r"'0.weight' was coded with the shape \(4, 1, 3, 3\); the network has \(4, 1, 2, 2\)",
    ):
        quantised.fill(other)
    with pytest.raises(NetworkError, match="No tensor 'x'"):
        quantised.values("x")
    assert list(Quantised({})) == []


@pytest.mark.parametrize("bits", range(6, 17))
def test_a_rounded_book_is_the_nearest_number_of_that_many_bits(bits):
    values = torch.randn(2000, generator=generator(), dtype=torch.float64)
    rounded = rounded_book(values, bits)
    largest = ((rounded - values) / values).abs().max()
    assert largest <= 2.0 ** -(bits - 5)
    assert bool((rounded.half().view(torch.int16) & ((1 << (16 - bits)) - 1) == 0).all())
    assert torch.equal(rounded_book(rounded, bits), rounded)


def test_sixteen_bits_round_as_float16_does():
    values = torch.randn(2000, generator=generator())
    assert torch.equal(rounded_book(values), values.half().float())


def test_what_no_float16_holds_is_refused():
    with pytest.raises(SettingError, match="beyond 65504"):
        rounded_book(torch.tensor([1e6]))
    with pytest.raises(SettingError, match="nearer to zero"):
        rounded_book(torch.tensor([1e-9]))
    with pytest.raises(SettingError, match="from 6 to 16"):
        rounded_book(torch.tensor([1.0]), 5)
