import torch
from zoo.models import make_model, make_posterior
from zoo.networks import make


def test_a_full_gaussian_is_one_in_double_precision():
    model = make_model(make("mlp")[0])
    family = make_posterior("full", model).factors[0]
    normal = family.conjugate_normal()
    assert normal is not None and normal.noise is None
    assert normal.mean.dtype == normal.tril.dtype == torch.float64
    torch.testing.assert_close(normal.mean, family.flat_mean.detach().double())


def test_independent_gaussians_keep_no_covariance():
    model = make_model(make("mlp")[0])
    assert make_posterior("mean_field", model).factors[0].conjugate_normal() is None
