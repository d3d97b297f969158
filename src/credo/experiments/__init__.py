"""Published tables and figures, one file each: expected values, seed and cost beside the code that measures them again."""

from credo.experiments.audit_table import AuditTable
from credo.experiments.base import Experiment, Say, experiments, make_experiment, perform
from credo.experiments.bayesian_vae import BayesianVAE
from credo.experiments.blundell import Blundell
from credo.experiments.continuous_bernoulli import ContinuousAgainstPlain
from credo.experiments.dark_knowledge import DarkKnowledge
from credo.experiments.dropout_rates import DropoutRates
from credo.experiments.dropout_tutorial import DropoutTutorial
from credo.experiments.elbo_variance import ElboVariance
from credo.experiments.ensembles import Ensembles
from credo.experiments.evidence_ranks import EvidenceRanks
from credo.experiments.gal_co2_solar import GalCO2Solar
from credo.experiments.graves import Graves
from credo.experiments.group_mnist import GroupMNIST
from credo.experiments.horseshoe_centring import HorseshoeCentring
from credo.experiments.iwae import IWAE
from credo.experiments.laplace_calibration import LaplaceCalibration
from credo.experiments.latent_draws import LatentDraws
from credo.experiments.latent_gradients import LatentGradients
from credo.experiments.li_regression import LiRegression
from credo.experiments.local_variance import LocalVariance
from credo.experiments.mean_field import MeanFieldFailings
from credo.experiments.outcome import Check, Outcome, Result, Row, Table
from credo.experiments.random_labels import RandomLabels
from credo.experiments.rate_gradients import RateGradients
from credo.experiments.sparse_lstm import SparseLSTM
from credo.experiments.sparse_mnist import SparseMNIST
from credo.experiments.sparse_resnet50 import SparseResNet50
from credo.experiments.sparse_vgg import SparseVGG
from credo.experiments.uci import UCI
from credo.experiments.vae_outliers import VAEOutliers
from credo.experiments.vae_tutorial import VAETutorial
from credo.experiments.vib import InformationBottleneck
from credo.experiments.weight_decay import WeightDecay
from credo.experiments.wide import Wide

__all__ = [
    "IWAE",
    "UCI",
    "AuditTable",
    "BayesianVAE",
    "Blundell",
    "Check",
    "ContinuousAgainstPlain",
    "DarkKnowledge",
    "DropoutRates",
    "DropoutTutorial",
    "ElboVariance",
    "Ensembles",
    "EvidenceRanks",
    "Experiment",
    "GalCO2Solar",
    "Graves",
    "GroupMNIST",
    "HorseshoeCentring",
    "InformationBottleneck",
    "LaplaceCalibration",
    "LatentDraws",
    "LatentGradients",
    "LiRegression",
    "LocalVariance",
    "MeanFieldFailings",
    "Outcome",
    "RandomLabels",
    "RateGradients",
    "Result",
    "Row",
    "Say",
    "SparseLSTM",
    "SparseMNIST",
    "SparseResNet50",
    "SparseVGG",
    "Table",
    "VAEOutliers",
    "VAETutorial",
    "WeightDecay",
    "Wide",
    "experiments",
    "make_experiment",
    "perform",
]
