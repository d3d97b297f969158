"""The report on a slimmed network: what it counts and measures, and where it refuses to."""

import pytest
import torch
from torch import nn
from zoo.slimming import lenet, normal

from credo.compress.slim import slim
from credo.compress.slim_report import SlimReport, report
from credo.core.errors import CredoError

CLOSE = 1e-5  # of the largest output, in float32: what sums in another order may differ by


def test_the_report_counts_and_measures():
    net, x = lenet(), normal(2, 1, 28, 28)
    found = report(net, slim(net, x), x, rounds=3)
    assert isinstance(found, SlimReport) and (found.before.parameters, found.after.parameters) == (
        431_080,
        4_136,
    )
    assert found.after.macs == 24 * 24 * 5 * 25 + 8 * 8 * 10 * 125 + 160 * 16 + 160
    assert (
        set(found.speedup) == set(found.seconds) == {1, 64}
        and found.difference <= CLOSE
        and found.whole == ()
    )
    assert (
        found.speedup[64] > 2.0
    )  # about 6 when nothing else runs: fifteen times fewer multiply-adds
    assert "431,080 ->        4,136" in str(found) and "batch 64" in str(found)


def test_the_report_is_about_the_cpu():
    net = nn.Linear(2, 2).to("meta")
    with pytest.raises(CredoError, match="measures on the CPU"):
        report(net.eval(), net, torch.zeros(1, 2))
