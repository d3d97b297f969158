import pytest

from credo.core.errors import SettingError
from credo.engine.fit_job import CHAIN_WORK, Problem
from credo.methods import CSGMCMC, HMC, NUTS, SGHMC, Metropolis, Tempering
from credo.methods.sampling.parts.lengths import LEAST, LR, most_draws

SMALL, NET, LARGE = Problem(20, 6), Problem(1200, 351), Problem(2000, 20_000, 500_000)
HUGE = Problem(2000, 431_080, 2_700_000)
SAMPLERS = (HMC, NUTS, Metropolis, Tempering, SGHMC, CSGMCMC)


@pytest.mark.parametrize("kind", SAMPLERS)
@pytest.mark.parametrize("problem", [SMALL, NET, LARGE], ids=["small", "net", "large"])
def test_every_length_is_filled_in_and_warm_ups_are_shorter_where_a_gradient_is_dear(kind, problem):
    method, small = kind().for_problem(problem), kind().for_problem(SMALL)
    assert 1 <= method.num_draws <= 1000 and 0 <= method.num_warmup <= small.num_warmup
    assert method.num_draws * method.thin <= small.num_draws * small.thin


@pytest.mark.parametrize("kind", SAMPLERS)
def test_with_a_given_number_of_draws_nothing_depends_on_the_problem(kind):
    method = kind(num_draws=8)
    assert method.for_problem(LARGE) == method and not method.settles
    assert kind().settles
    assert method.usual_lr(LARGE) == kind.lr


def test_a_warm_up_of_trajectories_takes_half_of_the_budget_at_most():
    for problem in (SMALL, NET):
        method, budget = HMC().for_problem(problem), problem.num_gradients(4)
        assert 1.4 * method.num_warmup * method.max_steps <= 0.5 * budget
        depth = NUTS().for_problem(problem).max_depth
        assert method.num_warmup * (2**depth - 1) <= budget
    assert LEAST <= HMC().for_problem(LARGE).num_warmup < 2 * LEAST


@pytest.mark.parametrize("kind", [HMC, NUTS, Metropolis, Tempering])
def test_moves_on_all_data_are_refused_where_the_budget_pays_for_few(kind):
    with pytest.raises(SettingError, match="pays for 4 gradients|pays for 5 gradients|too few"):
        kind().for_problem(HUGE)
    assert kind(num_draws=8, num_warmup=2).for_problem(HUGE).num_draws == 8
    assert SGHMC().for_problem(HUGE).num_draws >= LEAST


def test_a_given_warm_up_is_kept():
    assert HMC(num_warmup=7).for_problem(NET).num_warmup == 7
    assert SGHMC(num_warmup=7).for_problem(NET).num_warmup == 7


def test_the_budget_counts_places_of_a_convolution_and_calls():
    assert Problem(1000, 100, 10_000).num_gradients(4) < Problem(1000, 100).num_gradients(4)
    assert Problem(1, 1).num_gradients(1) <= CHAIN_WORK / 4e6
    assert Problem(10**9, 10**6).num_gradients(4) == 1


def test_a_short_warm_up_fits_faster_what_is_fitted_alongside():
    method = HMC()
    count = method.for_problem(NET).num_warmup
    assert method.usual_lr(NET) == pytest.approx(LR * min(10, 1000 / count))


def test_draws_fit_in_memory():
    assert most_draws(Problem(10, 100), 4) == 1000
    assert most_draws(Problem(10, 10**6), 4) == 62
    assert most_draws(Problem(10, 10**8), 4) == 4 * LEAST


@pytest.mark.parametrize("cycles", [1, 3, 4, 7])
def test_draws_are_shared_out_among_cycles(cycles):
    for problem in (SMALL, LARGE):
        assert CSGMCMC(num_cycles=cycles).for_problem(problem).num_draws % cycles == 0
