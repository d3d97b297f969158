import torch

from credo_reproduce.base import make_experiment, perform
from credo_reproduce.li_regression import KINDS, clusters, truth


def test_quick_run_has_a_row_and_a_panel_per_method():
    result = perform(make_experiment("li_regression", {"quick": True}))
    assert [row.label for row in result.outcome.tables[0].rows] == [kind.label for kind in KINDS]
    assert [row.paper["learned noise"] for row in result.outcome.tables[0].rows] == [
        0.121,
        0.129,
        0.121,
        None,
    ]
    assert len(result.outcome.figures) == 4
    assert result.outcome.tables[0].rows[3].measured["sd in the gap"] == 0
    assert result.outcome.tables[0].rows[2].measured["sd in the gap"] > 0


def test_data_are_two_standardised_clusters_around_the_function():
    data = clusters(1000, 0)
    assert abs(float(data.x.mean())) < 1e-5 and abs(float(data.y.std(correction=0)) - 1) < 1e-5
    x = data.x[:, 0] * data.x_std + data.x_mean
    assert torch.allclose(data.inputs(x), data.x, atol=1e-5)
    noise = data.y[:, 0] * data.y_std + data.y_mean - truth(x)
    # The deviation of 1,000 draws of N(0, 0.1^2) has standard error 0.0022; four of them fail once
    # in 16,000.
    assert abs(float(noise.std()) - 0.1) < 4 * 0.0022
    assert int((x > 0).sum()) == 500
