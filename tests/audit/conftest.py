"""What the audits of this folder share: conjugate regression and a sampler's draws from its
posterior.
"""

import pytest

from credo import audit
from credo.conformance.problems import conjugate

#: A known trajectory length, so that no warm-up is spent on a search.
QUICK = {"num_warmup": 150, "num_draws": 400, "num_steps": 3, "progress": False}


@pytest.fixture(scope="session")
def problem():
    return conjugate()


@pytest.fixture(scope="session")
def exact(problem):
    return problem.bnn().fit((problem.x, problem.y), "exact")


@pytest.fixture(scope="session")
def truth(problem, exact):
    """1600 draws of four chains."""
    return audit.reference(exact, (problem.x, problem.y), **QUICK)
