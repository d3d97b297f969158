import torch

from credo.data.source import Arrays, Source
from credo.engine.fit_job import FitJob, Fitted
from credo.posteriors import Delta, Posterior


def source():
    return Source(Arrays(torch.zeros(4, 2), torch.zeros(4)), 4)


def test_jobs_do_not_share_their_history():
    one, two = (FitJob(source(), 1, None, 0.1) for _ in range(2))
    one.history.append({"epoch": 0})
    assert two.history == [] and one.seed == 0 and one.run is None and one.checkpoint_seconds > 0


def test_fitted_holds_posterior_and_buffers():
    posterior = Posterior([Delta.start({"w": torch.ones(1)})])
    fitted = Fitted(posterior, {"b": torch.ones(2)})
    assert fitted.posterior is posterior and set(fitted.buffers) == {"b"}
