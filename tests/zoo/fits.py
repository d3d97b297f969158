"""What a method's fit begins with, without fitting."""

from unittest import mock

from credo.data import intake
from credo.engine.fit_job import FitJob
from zoo.models import targets_for


class _Begun(Exception):
    pass


def begun(method, model, x, y=None):
    """The objective of a method's fit and its optimizer's maker, before the first step."""
    source = intake((x, targets_for(model, x) if y is None else y))
    fit_job = FitJob(source=source, epochs=1, batch_size=None, lr=0.1)

    def stop(elbo, fit_job, make_optimizer, *_):
        raise _Begun(elbo, make_optimizer)

    with mock.patch("credo.engine.step.train", stop):
        try:
            method.fit(model, fit_job)
        except _Begun as found:
            return found.args
    raise AssertionError(f"{method.name} does not descend on an ELBO")
