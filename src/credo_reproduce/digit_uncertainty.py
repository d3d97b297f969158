"""Class probabilities over draws of the weights, for real, blended and rotated digits."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from credo.bnn import BNN
from credo_reproduce.outcome import Check, Row, Table
from credo_reproduce.plots import band, curves, line


def digit_probabilities(
    bnn: BNN, test: tuple[Tensor, Tensor], draws: int, samples: int
) -> tuple[Table, list[dict[str, Any]]]:
    """Real, blended and rotated digits: class probabilities over ``draws``, and how sure they are;
    ``samples``: draws behind means over many images.
    """
    x, y = test
    one, seven = (x[y == digit][0] for digit in (1, 7))
    zero, six = (x[y == digit][0] for digit in (0, 6))
    cases = {
        "real digit 7": seven,
        "real digit 0": zero,
        "blend of 0 and 6": 0.5 * (zero + six),
        "blend of 1 and 7": 0.5 * (one + seven),
        "7 turned by 90 degrees": turned(seven, 90.0),
        "1 turned by 60 degrees": turned(one, 60.0),
    }
    p = bnn.predict(torch.stack(list(cases.values())), draws)
    rows = []
    for place, label in enumerate(cases):
        top = int(p.mean[place].argmax())
        rows.append(
            Row(
                label,
                {
                    "most likely": str(top),
                    "its probability": float(p.mean[place, top]),
                    "sd over draws": float(p.std[place, top]),
                    "entropy": float(p.total[place]),
                    "mutual information": float(p.epistemic[place]),
                },
            )
        )
    groups = _mean_uncertainty(bnn, x, samples)
    rows += [
        Row(label, {"entropy": a, "mutual information": b}) for label, (a, b) in groups.items()
    ]
    note = (
        f"MC dropout, S = {draws}; nats. The last three rows are means over the first "
        f"{min(len(x), 500)} test images."
    )
    table = Table("Class probabilities over draws", list(rows[0].measured), rows, note)
    return table, [
        *(_classes(label, p.probs[:, place]) for place, label in enumerate(cases)),
        _turning(bnn, seven, draws),
    ]


def _mean_uncertainty(bnn: BNN, x: Tensor, samples: int) -> dict[str, tuple[float, float]]:
    """Mean entropy and mutual information of many real, blended and rotated images."""
    real = x[:500]
    sets = {
        "real images": real,
        "blended images": 0.5 * (real + real.roll(1, 0)),
        "rotated images": turned(real, 90.0),
    }
    out = {}
    for label, part in sets.items():
        p = bnn.predict(part, samples)
        out[label] = (float(p.total.mean()), float(p.epistemic.mean()))
    return out


def _turning(bnn: BNN, image: Tensor, draws: int) -> dict[str, Any]:
    """Probabilities of the classes along the angle, for those that ever win."""
    angles = list(range(0, 181, 6))
    p = bnn.predict(torch.stack([turned(image, float(a)) for a in angles]), draws)
    winners = sorted({int(k) for k in p.label})
    lines = [
        line(f"class {k}", angles, p.mean[:, k].tolist(), colour=i) for i, k in enumerate(winners)
    ]
    bands = [
        band(
            f"class {k}, ± 1 sd",
            angles,
            (p.mean[:, k] - p.std[:, k]).clamp(0, 1).tolist(),
            (p.mean[:, k] + p.std[:, k]).clamp(0, 1).tolist(),
            colour=i,
        )
        for i, k in enumerate(winners)
    ]
    return curves(
        "A seven, turned",
        "angle in degrees",
        "probability",
        lines,
        y_range=[0, 1],
        bands=bands,
        caption="Mean and deviation over draws, for the classes that are most likely somewhere.",
    )


def turned(rows: Tensor, degrees: float) -> Tensor:
    """Images ``(..., 784)`` turned about their centre."""
    angle = math.radians(degrees)
    flat = rows.reshape(-1, 1, 28, 28)
    matrix = torch.tensor(
        [[math.cos(angle), math.sin(angle), 0.0], [-math.sin(angle), math.cos(angle), 0.0]],
        device=rows.device,
    )
    grid = F.affine_grid(
        matrix.expand(len(flat), 2, 3), [len(flat), 1, 28, 28], align_corners=False
    )
    return F.grid_sample(flat, grid, align_corners=False).reshape(rows.shape)


def _classes(label: str, probs: Tensor) -> dict[str, Any]:
    """The probabilities ``(S, 10)`` of one image over draws: middle half, nine tenths, mean."""
    wide = probs.quantile(torch.tensor([0.05, 0.25, 0.75, 0.95], device=probs.device), 0).cpu()
    x = list(range(10))
    bands = [
        band("nine tenths of the draws", x, wide[0].tolist(), wide[3].tolist(), colour=-1),
        band("middle half", x, wide[1].tolist(), wide[2].tolist(), colour=0),
    ]
    lines = [line("mean", x, probs.mean(0).tolist(), marks=True, colour=0)]
    return curves(label, "class", "probability", lines, y_range=[0, 1], bands=bands)


def more_disagreement(table: Table) -> Check:
    """Whether draws disagree more about images that are no digits."""
    rows = {row.label: row.measured for row in table.rows}
    values = {
        label: float(rows[label]["mutual information"] or 0.0)
        for label in ("real images", "blended images", "rotated images")
    }
    told = ", ".join(f"{label} {value:.3f}" for label, value in values.items())
    holds = min(values["blended images"], values["rotated images"]) > values["real images"]
    return Check(
        "draws disagree more about images that are no digits",
        told,
        "blended and rotated above real",
        holds,
    )
