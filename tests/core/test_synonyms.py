import pytest
import torch

from credo.core.settings import describe
from credo.core.synonyms import ELSEWHERE, SYNONYMS, suggest, synonym
from credo.engine.fit_job import FIT_ARGUMENTS
from credo.methods import methods

VI = [row["name"] for row in describe(methods["vi"])]
SGLD = [row["name"] for row in describe(methods["sgld"])]
PREDICT = ["x", "num_samples", "seed", "batch_size"]


@pytest.mark.parametrize(
    ("given", "known", "right"),
    [
        ("learning_rate", FIT_ARGUMENTS, "lr"),
        ("n_epochs", FIT_ARGUMENTS, "epochs"),
        ("num_epochs", FIT_ARGUMENTS, "epochs"),
        ("max_epochs", FIT_ARGUMENTS, "epochs"),
        ("batchsize", FIT_ARGUMENTS, "batch_size"),
        ("bs", FIT_ARGUMENTS, "batch_size"),
        ("random_state", FIT_ARGUMENTS, "seed"),
        ("rng", FIT_ARGUMENTS, "seed"),
        ("num_members", ["members"], "members"),
        ("n_members", ["num_members"], "num_members"),
        ("n_samples", PREDICT, "num_samples"),
        ("n_draws", PREDICT, "num_samples"),
        ("mc_samples", VI, "train_samples"),
        ("n_draws", SGLD, "num_draws"),
        ("num_particles", ["particles"], "particles"),
        ("dropout", ["p", "layers"], "p"),
        ("burn_in", SGLD, "num_warmup"),
        ("burnin", SGLD, "num_warmup"),
        ("warmup", SGLD, "num_warmup"),
        ("tune", SGLD, "num_warmup"),
        ("chains", SGLD, "num_chains"),
        ("nEpochs", FIT_ARGUMENTS, "epochs"),
        ("num_classes", ["outputs", "depth"], "outputs"),
    ],
)
def test_names_of_other_libraries_lead_to_the_right_one(given, known, right):
    assert synonym(given, known) == right
    assert suggest(given, known).startswith(f" Did you mean {right!r}? Known: ")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("weight_decay", "Weight decay is the prior: credo.BNN"),
        ("wd", "Weight decay is the prior: credo.BNN"),
        ("loss", "credo.BNN(net, likelihood=...)"),
        ("prior", "credo.BNN(net, prior=...)"),
        ("n_samples", "bnn.predict(x, num_samples=...)"),
        ("learning_rate", "bnn.fit(data, method, lr=...)"),
    ],
)
def test_what_is_said_elsewhere_is_said_so(given, words):
    assert words in suggest(given, ["rank"]) and suggest(given, ["rank"]).endswith(" Known: rank.")


def test_any_other_name_gets_the_nearest_spelling():
    assert suggest("estimatr", VI).startswith(" Did you mean 'estimator'?")
    assert suggest("zzz", ["a", "b"]) == " Known: a, b."
    assert synonym("zzz", ["a"]) is None and synonym("learning_rate", ["a"]) is None


def test_weight_decay_of_the_text_is_the_gradient_of_the_prior():
    std, count, w = 0.3, 50, torch.tensor(0.7, requires_grad=True)
    (-torch.distributions.Normal(0.0, std).log_prob(w) / count).backward()
    assert w.grad == pytest.approx(0.7 / (count * std**2))


def test_every_line_holds_each_name_once_and_reaches_a_place():
    for row in (line.split() for line in SYNONYMS.splitlines() if line):
        plain = [name.replace("_", "") for name in row]
        assert len(set(plain)) == len(plain) > 1
    assert {"weight_decay", "likelihood", "prior"} <= set(ELSEWHERE)
