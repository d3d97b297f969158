import torch

from credo.nets import lstm_classifier


def test_reads_the_last_position_of_any_length():
    net = lstm_classifier(in_features=3, hidden=8, outputs=4, layers=2)
    assert net(torch.randn(2, 5, 3)).shape == net(torch.randn(2, 9, 3)).shape == (2, 4)


def test_order_matters():
    torch.manual_seed(0)
    net = lstm_classifier(vocab=10)
    x = torch.arange(6)[None]
    assert not torch.allclose(net(x), net(x.flip(1)))
