"""The weight of the KL is tried on held-out rows where it is left open."""

import pytest
import torch
from torch import nn

import credo
from credo.methods import IVON, VI
from credo.methods.variational.parts.tempered import BETAS, tempered

pytestmark = pytest.mark.filterwarnings("ignore::credo.core.errors.FindingWarning")
DIGITS = credo.data.load("digits")
X = torch.as_tensor(DIGITS["x"]).float() / 16
Y = torch.as_tensor(DIGITS["y"]).long()
SHORT = {"progress": False, "batch_size": 60}


def bnn():
    torch.manual_seed(0)
    return credo.BNN(credo.nets.mlp(64, (20,), 10))


def test_only_an_open_weight_is_tried_and_no_other_prior():
    assert tempered(VI()) == {"prior": (), "beta": BETAS}
    assert tempered(IVON(beta=1.0)) == {"prior": (), "beta": ()}
    assert VI().kl_weight == 1.0 and VI(beta=0.5).kl_weight == 0.5


@pytest.mark.parametrize("method", ["vi", "ivon"])
def test_a_smaller_weight_predicts_better_where_weights_are_many(method):
    fitted = bnn().fit((X[:100], Y[:100]), method, **SHORT)
    chosen, tried = fitted.trial["chosen"], fitted.trial["tried"]
    assert chosen["beta"] in BETAS and chosen["prior_std"] == 1.0
    assert fitted.method.kl_weight == chosen["beta"]
    assert chosen["held_out_nll"] < tried[0]["held_out_nll"]
    given = bnn().fit((X[:100], Y[:100]), method, beta=1.0, **SHORT)
    assert given.trial is None and given.method.kl_weight == 1.0
    test = X[1000:], Y[1000:]
    assert fitted.evaluate(test)["nll"] < given.evaluate(test)["nll"]


def test_linear_models_keep_the_whole_kl():
    x = torch.randn(100, 3, generator=torch.Generator().manual_seed(0))
    fitted = credo.BNN(nn.Linear(3, 1), "gaussian").fit((x, x[:, :1]), "vi", progress=False)
    assert fitted.trial is None and fitted.method.kl_weight == 1.0
