import threading

import pytest
import torch
from zoo.stats import follows, has_mean

from credo.core.seeds import (
    Ambient,
    Paired,
    Streams,
    generator,
    isolated,
    mix,
    put_state,
    take_state,
)

PINNED = 2092542945012143190  # a stored run can only be resumed by the same numbers
LIKE = torch.zeros(1, dtype=torch.float64)


def test_mix_is_the_same_everywhere_and_tells_values_apart():
    assert mix(0, "a") == PINNED
    assert len({mix(a, b) for a in range(50) for b in "abcd"}) == 200
    assert mix(1, 23) != mix(12, 3) and mix("1") != mix(1) and 0 <= mix("x") < 2**63


def test_generators_repeat():
    assert torch.equal(
        torch.randn(3, generator=generator(1, "x")), torch.randn(3, generator=generator(1, "x"))
    )


def test_isolated_seeds_and_restores():
    state = torch.get_rng_state()
    with isolated(3):
        one = torch.randn(4)
        with isolated(4):
            torch.randn(1)
        two = torch.randn(4)
    assert torch.equal(state, torch.get_rng_state())
    with isolated(3):
        assert torch.equal(torch.randn(4), one) and torch.equal(torch.randn(4), two)


def test_isolated_restores_after_an_error():
    state = torch.get_rng_state()
    with pytest.raises(RuntimeError, match="inside"), isolated(0):
        torch.randn(1)
        raise RuntimeError("inside")
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("kind", ["normal", "uniform", "sign"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 5)])
def test_a_numbered_draw_is_the_same_alone_in_chunks_and_all_at_once(kind, shape):
    state = torch.get_rng_state()

    def draw(samples):
        return getattr(Streams(7, samples), kind)("key", shape, LIKE)

    whole = draw(range(6))
    assert whole.shape == (6, *shape) and whole.dtype == torch.float64
    assert torch.equal(whole, torch.cat([draw([0, 1]), draw(range(2, 6))]))
    assert all(torch.equal(whole[i], draw([i])[0]) for i in range(6))
    assert torch.equal(state, torch.get_rng_state())


def test_streams_differ_by_seed_sample_and_key():
    draws = [
        Streams(seed, [sample]).normal(key, (4,), LIKE)
        for seed in (0, 1)
        for sample in (0, 1)
        for key in ("a", "b")
    ]
    assert len({tuple(d.flatten().tolist()) for d in draws}) == 8


def test_long_streams_do_not_depend_on_the_number_of_threads():
    shape = (200_005,)
    one = Streams(0, [0, 1]).normal("w", shape, LIKE)
    torch.set_num_threads(2)
    try:
        two = Streams(0, [0, 1]).normal("w", shape, LIKE)
    finally:
        torch.set_num_threads(1)
    assert torch.equal(one, two)
    assert not torch.equal(one[0], one[1])


def test_numbers_have_their_distributions():
    from scipy.stats import norm, uniform

    stream = Streams(0, range(2000))
    follows(stream.normal("a", (5,), LIKE).flatten(), norm.cdf)
    follows(stream.uniform("b", (5,), LIKE).flatten(), uniform.cdf)
    signs = stream.sign("c", (5,), LIKE).flatten()
    assert set(signs.tolist()) == {-1.0, 1.0}
    has_mean(signs, 0.0)


def test_unnumbered_streams_have_no_leading_axis():
    assert Streams(0).normal("a", (2,), LIKE).shape == (2,) and Streams(0).lead == ()
    assert Ambient((3,)).normal("a", (2,), LIKE).shape == (3, 2)


@pytest.mark.parametrize("noise", [Ambient(), Streams(0), Streams(0, range(2))])
def test_single_numbers(noise):
    for kind in ("normal", "uniform", "sign"):
        assert getattr(noise, kind)("a", (), LIKE).shape == noise.lead


def test_two_threads_in_isolated_blocks_do_not_mix():
    """Each thread's numbers are those it would draw alone."""
    results = {}

    def work(seed):
        with isolated(seed):
            results[seed] = torch.cat([torch.randn(10) for _ in range(200)])

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed, numbers in results.items():
        with isolated(seed):
            assert torch.equal(numbers, torch.cat([torch.randn(10) for _ in range(200)]))


def test_paired_noise_is_its_mirror_image_and_stays_as_it_was():
    first = Paired()
    second = Paired(first)
    with isolated(0):
        u, other = first.uniform("a", (5,), LIKE), first.uniform("b", (5,), LIKE)
        mirror = second.uniform("a", (5,), LIKE)
        assert (
            torch.equal(mirror, 1 - u)
            and first.uniform("a", (5,), LIKE) is u
            and not torch.equal(u, other)
        )
        assert torch.equal(second.uniform("c", (2,), LIKE), 1 - first.uniform("c", (2,), LIKE)), (
            "whichever is asked first"
        )
        assert not torch.equal(Paired().uniform("a", (5,), LIKE), u)
    assert first.lead == second.lead == ()


def test_both_of_a_pair_are_uniform():
    from scipy.stats import uniform

    first = Paired()
    with isolated(1):
        follows(first.uniform("a", (5000,), LIKE), uniform.cdf)
        follows(Paired(first).uniform("a", (5000,), LIKE), uniform.cdf)


def test_a_state_put_back_draws_again():
    cpu = torch.device("cpu")
    before = torch.get_rng_state()
    try:
        state = take_state(cpu)
        first = torch.rand(3)
        put_state(cpu, state)
        assert torch.equal(first, torch.rand(3)) and not torch.equal(first, torch.rand(3))
    finally:
        torch.set_rng_state(before)
