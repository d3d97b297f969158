"""Images made by a fitted model, as entries of a report: plain values that any page can draw.

An entry holds a grid of images, ``pixels`` in base64 with one byte per pixel, which is all that a
screen shows. Likelihoods that count in levels are shown by their level's share of white.
``image_shape``: what flat data are images of, (H, W) or (3, H, W). ``shades``: the values shown as
black and as white.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from credo.core.errors import DataError, SettingError
from credo.core.settings import positive
from credo.data.checks import check_inputs
from credo.data.image_sets import evenly
from credo.generative.autoencoders import VAE
from credo.generative.latent_model import LatentModel
from credo.generative.latent_queries import centre
from credo.generative.priors import StandardNormal

MAX_DATA = 2000  # data that a picture is made of
WEIGHT_DRAWS = 10  # draws of random weights that a picture averages over
UNIT = (0.0, 1.0)
Shades = tuple[float, float]


def reconstructions(
    model: LatentModel,
    x: Any,
    title: str = "Reconstructions",
    columns: int = 10,
    blocks: int = 3,
    seed: int = 0,
    image_shape: Sequence[int] | None = None,
    shades: Shades = UNIT,
) -> dict[str, Any]:
    """Data above their reconstructions, ``blocks`` times ``columns`` of them, evenly spread over
    ``x``.
    """
    chosen = evenly_chosen(x, positive("columns", columns, 1) * positive("blocks", blocks, 1))
    columns = min(columns, len(chosen))
    blocks = len(chosen) // columns  # a row that is not full would shift the one below it
    chosen = chosen[: blocks * columns]
    made = model.reconstruct(chosen, samples=WEIGHT_DRAWS, seed=seed).cpu().reshape(chosen.shape)
    shown = torch.stack(
        [part.to(made).unflatten(0, (blocks, columns)) for part in (chosen, made)], 1
    ).flatten(0, 2)
    drawn = " The model saw a binary draw of each image." if model.binarise else ""
    return _mosaic(
        model,
        shown,
        2 * blocks,
        columns,
        title,
        "In every pair of rows: the data above, below what the decoder makes of the centre of "
        f"their q(z|x).{drawn}",
        image_shape,
        shades,
        block=2,
        row_labels=["data", "model"] * blocks,
    )


def samples(
    vae: VAE,
    n: int = 100,
    seed: int = 0,
    noise: bool = False,
    image_shape: Sequence[int] | None = None,
    shades: Shades = UNIT,
) -> dict[str, Any]:
    """``n`` images from the model: E[x given z] with z from the prior, or x itself where ``noise``
    is drawn too.
    """
    columns = math.ceil(math.sqrt(positive("n", n, 1)))
    shown = "each pixel is drawn" if noise else "shown is the mean of each pixel"
    return _mosaic(
        vae,
        vae.sample(n, seed=seed, noise=noise),
        math.ceil(n / columns),
        columns,
        "Samples from the model",
        f"Images nobody took: z is drawn from the prior and decoded; {shown}.",
        image_shape,
        shades,
    )


def manifold(
    vae: VAE,
    side: int = 20,
    x: Any = None,
    seed: int = 0,
    image_shape: Sequence[int] | None = None,
    shades: Shades = UNIT,
) -> dict[str, Any]:
    """What each place of a two-dimensional latent space decodes to, on a grid of ``side`` by
    ``side`` places.

    Under the standard normal prior they are the quantiles (i + 1/2) / side of each variable, so
    equal steps hold equal prior mass. Under another prior the grid is even, over the range of the
    encoded ``x``, which is then needed. Fails where there are not two continuous latent variables.
    """
    if vae.latent_dim != 2 or not vae.code.continuous:
        kind = "continuous" if vae.code.continuous else "categorical"
        raise SettingError(
            f"A manifold needs two continuous latent variables; this model has {vae.latent_dim} "
            f"{kind}: fit one with latent_dim=2."
        )
    steps = (torch.arange(positive("side", side, 1), dtype=torch.float64) + 0.5) / side
    if isinstance(vae.prior, StandardNormal):
        places = torch.special.ndtri(steps).expand(2, side)
        how = "Steps along either axis hold equal prior mass."
    elif x is None:
        raise SettingError(
            f"Under the {vae.prior.name} prior the manifold's range is that of encoded data; pass "
            "them as x."
        )
    else:
        means = centre(vae.encode(evenly_chosen(x, MAX_DATA), seed=seed)).double().cpu()
        low, high = means.amin(0), means.amax(0)
        places = low[:, None] + (high - low)[:, None] * steps
        how = "The grid spans the range of the encoded data."
    z = torch.stack([places[0].repeat(side), places[1].flip(0).repeat_interleave(side)], -1)
    return _mosaic(
        vae,
        vae.decode(z, samples=WEIGHT_DRAWS, seed=seed),
        side,
        side,
        "The latent space of two variables",
        f"Every image is decoded from one place of the plane. {how}",
        image_shape,
        shades,
        x_label="first latent variable",
        y_label="second latent variable",
    )


def traversals(
    vae: VAE,
    x: Any,
    dims: int = 6,
    steps: int = 11,
    data: int = 2,
    seed: int = 0,
    image_shape: Sequence[int] | None = None,
    shades: Shades = UNIT,
) -> dict[str, Any]:
    """One datum per block; each row moves one latent variable and leaves the others at the centre
    of q(z given x).

    A continuous variable goes from -3 to 3 standard deviations of the prior N(0, 1), or, under
    another prior, of the encoded ``x`` about their mean; a categorical one takes each value in
    turn. Rows are those of the largest mean KL, the largest first (see :func:`information`).
    """
    if positive("steps", steps, 1) < 2:
        raise SettingError(f"steps={steps} is not valid; expected at least 2, one for either end.")
    data_used = evenly_chosen(x, MAX_DATA)
    q = vae.encode(data_used, seed=seed)
    values, what = information(vae, q)
    chosen = values.argsort(descending=True)[: positive("dims", dims, 1)].tolist()
    centres = centre(q).cpu()
    starts = centres[torch.as_tensor(evenly(len(data_used), positive("data", data, 1)))]
    moves, labels, how = _moves(vae, centres, steps)
    z = (
        starts[:, None, None]
        .repeat(1, len(chosen), len(labels), 1)
        .unflatten(-1, (vae.latent_dim, -1))
    )
    for row, variable in enumerate(chosen):
        z[:, row, :, variable] = moves[variable].to(z)
    names = [f"z{variable + 1} ({values[variable]:.2f})" for variable in chosen]
    return _mosaic(
        vae,
        vae.decode(z.flatten(3).flatten(0, 2), samples=WEIGHT_DRAWS, seed=seed),
        len(starts) * len(chosen),
        len(labels),
        "One latent variable at a time",
        f"Each block is one datum and each row one latent variable of it, which {how}; the others "
        f"stay as encoded. In brackets: {what}.",
        image_shape,
        shades,
        block=len(chosen),
        row_labels=names * len(starts),
        column_labels=labels,
    )


def information(vae: VAE, q: Distribution) -> tuple[Tensor, str]:
    """How much each latent variable says, ``(latent_dim,)``, and in which unit: its mean KL in
    nats, where the KL is a sum over them.

    Where it has no closed form per variable, the variance over data of the mean of q.
    """
    with vae.placed(None) as net:
        kl = net.prior.divergence(q)
    if kl is not None and kl.shape[-1] == vae.latent_dim:
        return kl.mean(0).cpu(), "its mean KL in nats"
    return activity(vae, q), "the variance of its mean over the data"


def activity(vae: VAE, q: Distribution) -> Tensor:
    """Variance over data of the mean of q for each latent variable, ``(latent_dim,)``, summed over
    categories (Burda et al. 2016).
    """
    return q.mean.var(0, correction=0).unflatten(-1, (vae.latent_dim, -1)).sum(-1).cpu()


def picture_shape(
    shape: Sequence[int], image_shape: Sequence[int] | None = None
) -> tuple[int, int, int] | None:
    """(C, H, W) of data of a shape, None where they are no images: (H, W), (1, H, W) and (3, H, W)
    are, rows only if ``image_shape`` says so.
    """
    given = tuple(shape if image_shape is None else image_shape)
    if math.prod(given) != math.prod(shape):
        raise DataError(
            f"image_shape={given} has {math.prod(given)} pixels, but the data have "
            f"{math.prod(shape)} numbers each."
        )
    if len(given) == 2:
        return (1, given[0], given[1])
    if len(given) == 3 and given[0] in (1, 3):
        return (given[0], given[1], given[2])
    return None


def evenly_chosen(x: Any, most: int) -> Tensor:
    """At most so many of the data, evenly spread over them: data sorted by label are common."""
    tensor = check_inputs(x)
    if not isinstance(tensor, Tensor):
        raise DataError(f"The data are a {type(x).__name__}; expected one tensor or array.")
    return tensor[torch.as_tensor(evenly(len(tensor), most), device=tensor.device)].cpu()


def _moves(vae: VAE, centres: Tensor, steps: int) -> tuple[Tensor, list[str], str]:
    """Values of each latent variable ``(latent_dim, steps, numbers)``, their labels, and what they
    are in words.
    """
    if not vae.code.continuous:
        hot = torch.eye(vae.code.size // vae.latent_dim).expand(vae.latent_dim, -1, -1)
        return (
            hot,
            [str(value + 1) for value in range(hot.shape[1])],
            "takes each of its values in turn",
        )
    line = torch.linspace(-3, 3, steps)
    labels = ["-3", *[""] * (steps - 2), "3"]
    if steps % 2:
        labels[steps // 2] = "0"
    if isinstance(vae.prior, StandardNormal):
        return (
            line.expand(vae.latent_dim, steps)[..., None],
            labels,
            "moves from -3 to 3 standard deviations of its prior",
        )
    deviations = centres.std(0, correction=0)[:, None] * line
    return (
        (centres.mean(0)[:, None] + deviations)[..., None],
        labels,
        "moves from -3 to 3 standard deviations of the encoded data",
    )


def _mosaic(
    model: LatentModel,
    values: Tensor,
    rows: int,
    columns: int,
    title: str,
    caption: str,
    image_shape: Sequence[int] | None,
    shades: Shades,
    **more: Any,
) -> dict[str, Any]:
    shape = picture_shape(model.shape, image_shape)
    if shape is None:
        raise DataError(
            f"The data have shape {model.shape} each, which is no image; pass image_shape=(H, W) "
            "where they are images in rows."
        )
    low, high = shades
    if not low < high:
        raise SettingError(
            f"shades={shades!r} is not valid; expected the value of black below that of white."
        )
    grey = (model.likelihood.inputs(values.flatten(1).cpu().float()) - low) / (high - low)
    pixels = (grey.clamp(0, 1) * 255).round().to(torch.uint8)
    size = {
        "rows": rows,
        "columns": columns,
        "channels": shape[0],
        "height": shape[1],
        "width": shape[2],
    }
    text = base64.b64encode(pixels.numpy().tobytes()).decode()
    return {"kind": "mosaic", "title": title, "caption": caption, **size, "pixels": text, **more}
