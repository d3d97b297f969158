"""Pictures and numbers of a fitted model, as plain values for a report: ``page`` puts all of them
together for ``credo.report.write``.

Every entry has the ``kind`` of figure it is: "mosaic", "scatter" or "curves".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from credo.core.errors import DataError, SettingError
from credo.core.settings import positive
from credo.data.image_sets import evenly
from credo.generative.autoencoders import VAE
from credo.generative.mosaics import (
    MAX_DATA,
    UNIT,
    WEIGHT_DRAWS,
    activity,
    evenly_chosen,
    manifold,
    picture_shape,
    reconstructions,
    samples,
    traversals,
)

__all__ = ["curves", "embedding", "manifold", "page", "reconstructions", "samples", "traversals"]

# variance of a mean above which a latent variable counts as used, the threshold of Burda et al.
# (2016)
ACTIVE = 0.01
_LABELS = 30  # kinds of labels that a legend can name


def embedding(
    vae: VAE, x: Any, y: Any = None, title: str | None = None, seed: int = 0
) -> dict[str, Any]:
    """Where q(z given x) puts the data, coloured by label ``y`` ``(N,)``: at most 2,000 of them,
    evenly spread over ``x``.

    Two latent numbers are shown as they are, one against its standard deviation, more by t-SNE of
    the means of q. Fails on fewer than three data.
    """
    if y is not None and len(y) != len(x):
        raise DataError(f"There are {len(y)} labels for {len(x)} data; give one label per datum.")
    shown = evenly_chosen(x, MAX_DATA)
    if len(shown) < 3:
        raise DataError(f"{len(shown)} data are too few to show how they lie; give at least 3.")
    q = vae.encode(shown, seed=seed)
    means = q.mean.double().cpu().numpy()
    if vae.code.size == 1:
        points, axes = (
            np.hstack([means, q.variance.sqrt().double().cpu().numpy()]),
            ("mean of q(z|x)", "standard deviation of q(z|x)"),
        )
        how = "Mean and standard deviation of q(z|x) for each datum."
    elif vae.code.size == 2:
        points, axes = means, ("first latent variable", "second latent variable")
        how = "The mean of q(z|x) for each datum."
    else:
        points, axes = _tsne(means, seed), ("t-SNE, first axis", "t-SNE, second axis")
        how = (
            f"The means of q(z|x), {vae.code.size} numbers each, drawn in two dimensions by "
            "t-SNE: neighbours stay neighbours, while "
            "distances between groups and the axes have no meaning."
        )
    groups, note = _grouped(points, None if y is None else np.asarray(y)[evenly(len(x), MAX_DATA)])
    return {
        "kind": "scatter",
        "title": title
        or f"{len(shown):,} data in the space of {vae.latent_dim} latent "
        f"variable{'s' * (vae.latent_dim != 1)}",
        "caption": f"{how}{note}",
        "x_label": axes[0],
        "y_label": axes[1],
        "bare": vae.code.size > 2,
        "groups": groups,
    }


def curves(history: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The bound on log p(x), and the latent KL where there is any, per epoch and in nats per datum;
    with held-out data where they were watched.
    """
    rows = [row for row in history if "bound" in row]
    if not rows:
        return []
    epochs = [row["epoch"] + 1 for row in rows]
    lines = [{"name": "training data", "x": epochs, "y": [round(row["bound"], 3) for row in rows]}]
    if all("validation_nll" in row for row in rows):
        lines.append(
            {
                "name": "held-out data",
                "x": epochs,
                "y": [round(-row["validation_nll"], 3) for row in rows],
            }
        )
    entries = [_curve("The bound while training", "bound (nats per datum)", lines, _BOUND)]
    kl = [round(row["latent_kl"], 3) for row in rows]
    if any(kl):
        line = {"name": "training data", "x": epochs, "y": kl, "colour": 2}
        entries.append(
            _curve("The latent KL while training", "KL[q(z|x), p(z)] (nats per datum)", [line], _KL)
        )
    return entries


def page(
    vae: VAE,
    train: Any,
    test: Any = None,
    labels: Any = None,
    flat: VAE | None = None,
    title: str = "Variational autoencoder",
    k: int = 100,
    limit: int = 500,
    seed: int = 0,
    image_shape: Sequence[int] | None = None,
) -> dict[str, Any]:
    """What ``credo.report.write`` takes: a table of numbers, how training went, and all pictures.

    ``labels``: of the test data, or of the training data where there are none. ``flat``: a second
    model with two latent variables, for the manifold; one that has two itself needs none. ``k``:
    draws of importance sampling, for at most ``limit`` data each of train and test, evenly spread.
    Data that are no images (see ``picture_shape``) get no pictures, and the page says so.
    """
    if not isinstance(vae, VAE):
        raise SettingError(
            f"A page is about a VAE; a {type(vae).__name__} has no p(x): use "
            "reconstructions(model, x) alone."
        )
    positive("limit", limit, 1)
    shown_data = train if test is None else test
    rows = [_row("training data", vae, evenly_chosen(train, limit), k, seed)]
    rows += [] if test is None else [_row("test data", vae, evenly_chosen(test, limit), k, seed)]
    rows += (
        []
        if flat is None
        else [
            _row("test data, two latent variables", flat, evenly_chosen(shown_data, limit), k, seed)
        ]
    )
    shape = picture_shape(vae.shape, image_shape)
    pictured = _pictures(vae, train, test, flat, image_shape, seed) if shape is not None else []
    absent = (
        ""
        if shape is not None
        else f"The data have shape {vae.shape} each and are no images, so reconstructions, "
        "samples and traversals are left out; "
        "where they are images in rows, say of which height and width."
    )
    numbers = {
        "title": "In numbers",
        "description": f"Measured on at most {limit:,} data of each kind, evenly spread; log p(x) "
        f"from {k:,} draws of z per datum.",
        "label": "data",
        "columns": _COLUMNS,
        "rows": rows,
        "curves": curves(vae.history),
    }
    views = {
        "title": "In pictures",
        "description": absent,
        "columns": [],
        "rows": [],
        "mosaic": pictured,
        "scatter": [
            embedding(model, shown_data, labels, seed=seed)
            for model in (vae, flat)
            if model is not None and len(shown_data) > 2
        ],
    }
    return {"title": title, "subtitle": _about(vae), "tasks": [numbers, views]}


def _pictures(
    vae: VAE, train: Any, test: Any, flat: VAE | None, image_shape: Sequence[int] | None, seed: int
) -> list[dict[str, Any]]:
    like: dict[str, Any] = {"image_shape": image_shape, "shades": _shades(vae, train), "seed": seed}
    entries = [reconstructions(vae, train, "Reconstructions of training data", **like)]
    if test is not None:
        entries.append(reconstructions(vae, test, "Reconstructions of test data", **like))
    entries += [samples(vae, **like), traversals(vae, train if test is None else test, **like)]
    plane = vae if flat is None else flat
    if flat is not None or (vae.latent_dim == 2 and vae.code.continuous):
        entries.append(manifold(plane, x=train, **like))
    if flat is not None:
        entries[-1]["caption"] += (
            " From a second model, fitted to the same data with two latent variables."
        )
    return entries


def _shades(vae: VAE, x: Any) -> tuple[float, float]:
    """Black and white: 0 and 1, or the range of data that leave it."""
    values = vae.likelihood.inputs(evenly_chosen(x, MAX_DATA).flatten(1))
    low, high = float(values.min()), float(values.max())
    return UNIT if low >= 0 and high <= 1 else (low, high)


def _row(name: str, vae: VAE, x: Any, k: int, seed: int) -> dict[str, Any]:
    options: dict[str, Any] = {"samples": WEIGHT_DRAWS, "seed": seed}
    active = activity(vae, vae.encode(x, seed=seed)) > ACTIVE
    return {
        "method": name,
        "count": len(x),
        "elbo": round(float(vae.elbo(x, **options).double().mean()), 3),
        "latent_kl": round(float(vae.latent_kl(x, **options).double().mean()), 3),
        "log_marginal": round(float(vae.log_marginal(x, k, **options).mean()), 3),
        "active": f"{int(active.sum())} of {vae.latent_dim}",
    }


def _about(vae: VAE) -> str:
    method, epochs = vae.bnn.method, len(vae.history)
    fitted = (
        f" Fitted by {method.name} in {epochs} epoch{'s' * (epochs != 1)}."
        if method is not None and epochs
        else ""
    )
    return (
        f"{vae.latent_dim} latent variable{'s' * (vae.latent_dim != 1)} with a {vae.code.name} "
        f"q(z|x) and a {vae.prior.name} prior; "
        f"{vae.likelihood.name} likelihood for data of shape "
        f"{' x '.join(map(str, vae.shape))}.{fitted}"
    )


def _tsne(means: np.ndarray, seed: int) -> np.ndarray:
    from sklearn.manifold import TSNE

    perplexity = min(
        30.0, (len(means) - 1) / 3
    )  # the neighbours it looks at must be fewer than there are
    return TSNE(perplexity=perplexity, init="pca", random_state=seed).fit_transform(means)


def _grouped(points: np.ndarray, labels: np.ndarray | None) -> tuple[list[dict[str, Any]], str]:
    """One group per label; too many kinds of labels are not told apart, and the note says so."""
    kinds = [] if labels is None else np.unique(labels)
    if labels is None or len(kinds) > _LABELS:
        note = (
            ""
            if labels is None
            else f" There are {len(kinds)} different labels, too many to tell apart by colour."
        )
        return [_group("data", points)], note
    return [
        _group(str(kind), points[labels == kind]) for kind in kinds
    ], " Colours are the labels, which the model never saw."


def _group(name: str, points: np.ndarray) -> dict[str, Any]:
    x, y = np.round(points.astype(float), 3).T.tolist()
    return {"name": name, "x": x, "y": y}


def _curve(title: str, label: str, lines: list[dict[str, Any]], caption: str) -> dict[str, Any]:
    return {
        "kind": "curves",
        "title": title,
        "x_label": "epoch",
        "y_label": label,
        "lines": lines,
        "caption": caption,
    }


_BOUND = (
    "The lower bound on log p(x) that training maximises, after every pass over the data. "
    "Held-out data that fall behind while the training data still rise mean overfitting."
)
_KL = "How much q(z|x) says about a datum beyond the prior. Near zero the decoder ignores z."
_COLUMNS = [
    {"key": "count", "label": "how many", "digits": 0},
    {
        "key": "elbo",
        "label": "ELBO",
        "digits": 2,
        "help": "Lower bound on log p(x): E_q[log p(x|z)] - KL[q(z|x), p(z)], nats per datum.",
    },
    {
        "key": "latent_kl",
        "label": "latent KL",
        "digits": 2,
        "help": "KL[q(z|x), p(z)], nats per datum: what z says about x.",
    },
    {
        "key": "log_marginal",
        "label": "log p(x)",
        "digits": 2,
        "help": "By importance sampling, nats per datum: a tighter lower bound, whose distance "
        "from the ELBO says how good q(z|x) is.",
    },
    {
        "key": "active",
        "label": "active variables",
        "help": "Latent variables whose mean of q(z|x) varies over the data, with variance above "
        f"{ACTIVE}.",
    },
]
