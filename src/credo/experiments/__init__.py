"""Published tables and figures, one file each: expected values, seed and cost beside the code that measures them again."""

from credo.experiments.base import Experiment, Say, experiments, make_experiment, perform
from credo.experiments.blundell import Blundell
from credo.experiments.elbo_variance import ElboVariance
from credo.experiments.graves import Graves
from credo.experiments.li_regression import LiRegression
from credo.experiments.local_variance import LocalVariance
from credo.experiments.mean_field import MeanFieldFailings
from credo.experiments.outcome import Check, Outcome, Result, Row, Table

__all__ = [
    "Blundell",
    "Check",
    "ElboVariance",
    "Experiment",
    "Graves",
    "LiRegression",
    "LocalVariance",
    "MeanFieldFailings",
    "Outcome",
    "Result",
    "Row",
    "Say",
    "Table",
    "experiments",
    "make_experiment",
    "perform",
]
