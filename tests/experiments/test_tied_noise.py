import torch

from credo.experiments.tied_noise import C1, C2, C3, TiedNoise, _kl_slope


def small():
    torch.manual_seed(0)
    return TiedNoise((3, 4, 2), 0.5, torch.device("cpu"))


def test_gradients_are_those_of_noise_that_moves_with_the_weight():
    """One shared draw: w = theta (1 + sqrt(alpha) eps), differentiated by autograd, gives the same numbers."""
    net, x, y = small(), torch.randn(6, 3), torch.tensor([0, 1, 0, 1, 1, 0])
    net.elbo("weights").plan(net.bnn.model.shell(), x)
    net.place()
    torch.manual_seed(5)
    nll, theta, log_alpha = net.gradients("weights", x, y)
    torch.manual_seed(5)
    eps = torch.randn(len(net.theta))
    free = [net.theta.clone().requires_grad_(), net.log_alpha.clone().requires_grad_()]
    w = free[0] + (0.5 * free[1]).exp() * free[0].abs() * eps
    weights = net.family.layout.split(w)
    loss = torch.nn.functional.cross_entropy(torch.func.functional_call(net.bnn.net, weights, x), y, reduction="sum")
    expected = torch.autograd.grad(loss, free)
    torch.testing.assert_close(nll, loss.detach())
    torch.testing.assert_close(theta, expected[0], rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(log_alpha, expected[1], rtol=1e-3, atol=1e-5)


def test_without_noise_all_estimators_give_the_plain_gradient_and_rows_add_up():
    net, x, y = small(), torch.randn(6, 3), torch.tensor([0, 1, 0, 1, 1, 0])
    net.place(noise=False)
    whole = net.gradients("weights", x, y)[1]
    for estimator in ("local", "per_example"):
        torch.testing.assert_close(net.gradients(estimator, x, y, 4)[1], whole)


def test_training_lowers_the_loss_and_keeps_alpha_at_most_one():
    net, x = small(), torch.randn(200, 3)
    y = (x[:, 0] > 0).long()
    first = net.train(x, y, 1, 50, 1e-2, torch.Generator().manual_seed(0))
    last = net.train(x, y, 20, 50, 1e-2, torch.Generator().manual_seed(0))
    assert last < first and float(net.log_alpha.max()) <= 0
    assert net.error(x, y) < 0.2


def test_the_kls_slope_is_its_derivative():
    log_alpha = torch.linspace(-6, 0, 7, dtype=torch.float64, requires_grad=True)
    alpha = log_alpha.exp()
    kl = -(0.5 * log_alpha + C1 * alpha + C2 * alpha**2 + C3 * alpha**3)
    (expected,) = torch.autograd.grad(kl.sum(), log_alpha)
    torch.testing.assert_close(_kl_slope(alpha.detach()), expected)
