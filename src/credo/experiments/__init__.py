"""Published tables and figures, one file each: expected values, seed and cost beside the code that measures them again."""

from credo.experiments.base import Experiment, Say, experiments, make_experiment, perform
from credo.experiments.blundell import Blundell
from credo.experiments.dropout_rates import DropoutRates
from credo.experiments.dropout_tutorial import DropoutTutorial
from credo.experiments.elbo_variance import ElboVariance
from credo.experiments.gal_co2_solar import GalCO2Solar
from credo.experiments.graves import Graves
from credo.experiments.li_regression import LiRegression
from credo.experiments.local_variance import LocalVariance
from credo.experiments.mean_field import MeanFieldFailings
from credo.experiments.outcome import Check, Outcome, Result, Row, Table
from credo.experiments.rate_gradients import RateGradients
from credo.experiments.weight_decay import WeightDecay

__all__ = [
    "Blundell",
    "Check",
    "DropoutRates",
    "DropoutTutorial",
    "ElboVariance",
    "Experiment",
    "GalCO2Solar",
    "Graves",
    "LiRegression",
    "LocalVariance",
    "MeanFieldFailings",
    "Outcome",
    "RateGradients",
    "Result",
    "Row",
    "Say",
    "Table",
    "WeightDecay",
    "experiments",
    "make_experiment",
    "perform",
]
