import pytest
import torch
from zoo.models import make_model, make_posterior
from zoo.networks import make

from credo.core.errors import SettingError
from credo.data.source import Arrays, Source
from credo.engine.fit_job import FitJob, FitOptions
from credo.engine.model import Fitted
from credo.methods import make_method
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


@pytest.mark.parametrize(
    ("options", "method", "message"),
    [
        ({"epochs": 3}, "hmc", "epochs=3: hmc counts moves"),
        ({"epochs": 0}, "vi", "epochs=0 is not valid"),
        ({"batch_size": 2.5}, "vi", "batch_size=2.5"),
        ({"lr": float("inf")}, "vi", "lr=inf"),
        ({"seed": 0.5}, "vi", "seed=0.5"),
    ],
)
def test_what_no_fit_can_do_is_refused(options, method, message):
    with pytest.raises(SettingError, match=message):
        FitOptions(**options).check(make_method(method, {}))


def test_a_fit_is_described_by_model_method_and_what_it_is_given():
    net, _ = make("mlp")
    model, method = make_model(net), make_method("vi", {})
    fit_job = FitJob.of(FitOptions(epochs=2, batch_size=3), method, source(), model)
    config = fit_job.config(model, model.prior, method)
    assert config["method"] == "vi"
    assert config["fit"]["batch_size"] == 3 and config["fit"]["lr"] == method.lr
    assert config["fit"]["data"] is None, "without a run nothing is digested"
    fitted = Fitted(make_posterior("mean_field", model), model.buffers())
    kinds = {name.partition("/")[0] for name in fitted.numbers(model)}
    assert "posterior" in kinds and fitted.config()["posterior"]
