import pytest
import torch
from torch.utils.data import Dataset

from credo.core.errors import DataError
from credo.data import intake
from credo.data.source import Replay, check_batch


class Noisy(Dataset):
    """Augments with torch's global generator, as torchvision transforms do."""

    def __len__(self):
        return 7

    def __getitem__(self, row):
        return row + torch.rand(2), row


def seen(source, generator=None, batch_size=3):
    return [y.tolist() for _, y in source(generator, batch_size)]


def test_in_order_without_a_generator_and_the_last_batch_is_kept():
    source = intake((torch.arange(7.0)[:, None], torch.arange(7)))
    assert seen(source) == [[0, 1, 2], [3, 4, 5], [6]]
    assert seen(source, None, None) == [[0, 1, 2, 3, 4, 5, 6]]


@pytest.mark.parametrize(
    "data", [(torch.arange(7.0), torch.arange(7)), Noisy()], ids=["arrays", "dataset"]
)
def test_a_generator_permutes_repeatably_and_moves_on(data):
    source = intake(data)
    generator = torch.Generator().manual_seed(1)
    first, second = seen(source, generator), seen(source, generator)
    assert first != second
    assert sorted(row for batch in first for row in batch) == list(range(7))
    assert first == seen(source, torch.Generator().manual_seed(1))


def test_rows_of_x_and_y_stay_together_in_trees():
    x = {"a": torch.arange(9), "b": (torch.arange(9) * 2,)}
    for part, y in intake((x, torch.arange(9)))(torch.Generator().manual_seed(0), 4):
        assert torch.equal(part["a"], y)
        assert torch.equal(part["b"][0], 2 * y)


def test_augmentation_repeats_and_leaves_the_global_generator_alone():
    source = intake(Noisy())
    before = torch.get_rng_state()
    runs = [
        torch.cat([x for x, _ in source(torch.Generator().manual_seed(3), 4)]) for _ in range(2)
    ]
    assert torch.equal(runs[0], runs[1])
    assert torch.equal(before, torch.get_rng_state())


def test_example_and_targets():
    source = intake(Noisy())
    assert source.example().shape == (2, 2)
    assert source.targets().tolist() == list(range(7))
    assert source.arrays() is None


def test_replay_gives_a_one_shot_iterator_again_even_after_a_partial_pass():
    replay = Replay(iter(range(4)))
    assert next(iter(replay)) == 0
    assert list(replay) == list(replay) == [0, 1, 2, 3]


def test_batches_that_are_not_pairs_or_not_finite_are_named():
    with pytest.raises(DataError, match="Batch 3 is a tuple of 3; expected a pair"):
        check_batch((1, 2, 3), 3, None)
    with pytest.raises(DataError, match="Batch 1: x has NaN at row 1"):
        list(
            intake(
                [(torch.zeros(2), torch.zeros(2)), (torch.tensor([0, torch.nan]), torch.zeros(2))]
            )()
        )
    with pytest.raises(DataError, match="batch_size=0"):
        seen(intake(Noisy()), None, 0)


def test_the_fingerprint_sees_values_types_and_shapes():
    x, y = torch.arange(6.0).reshape(3, 2), torch.arange(3)
    same = intake((x.clone(), y.clone())).fingerprint()
    assert intake((x, y)).fingerprint() == same
    others = [(x + 1, y), (x.double(), y), (x.reshape(3, 2, 1), y), (x, y + 1), ({"a": x}, y)]
    assert same not in {intake(other).fingerprint() for other in others}
    assert intake([(x, y)]).fingerprint() is None
