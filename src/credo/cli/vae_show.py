"""``credo vae sample`` and ``credo vae report``: what a fitted model makes, and what it learned."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from credo.cli.guard import guarded, is_terminal, say
from credo.cli.vae_run import SOURCE, VaeFiles, counted, located, read_source, times
from credo.core.errors import DataError, SettingError

if TYPE_CHECKING:
    from credo.generative import VAE

_RUN = "Run directory written by credo vae fit."


@guarded
def sample(
    run: Annotated[Path, typer.Argument(help=_RUN, show_default=False)],
    n: Annotated[int, typer.Option(min=1, help="How many images.")] = 64,
    out: Annotated[
        Path, typer.Option(help="File to write: .png for one picture of all, .npy for the numbers.")
    ] = Path("samples.png"),
    noise: Annotated[
        bool, typer.Option("--noise", help="Draw each pixel too, instead of showing its mean.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the draws.")] = 0,
) -> None:
    """Draw new images from a fitted model."""
    from credo.core.atomic import write_atomic
    from credo.generative.mosaics import picture_shape

    writer = _WRITERS.get(out.suffix.lower())
    if writer is None:
        raise SettingError(f"--out {out} ends in {out.suffix!r}; expected {' or '.join(_WRITERS)}.")
    if not out.parent.is_dir():
        raise SettingError(
            f"--out {out}: the directory {out.parent} does not exist; create it first."
        )
    model = VaeFiles.read(run).load(run)
    if writer is _png and picture_shape(model.shape) is None:
        raise SettingError(
            f"The data of {run} have shape {times(model.shape)} and are no images; write numbers "
            "with --out samples.npy."
        )
    content = writer(model, n, seed, noise)
    write_atomic(out, lambda beside: beside.write_bytes(content))
    say(f"{out}: {n} samples of shape {times(model.shape)}")


@guarded
def report(
    run: Annotated[Path, typer.Argument(help=_RUN, show_default=False)],
    data: Annotated[
        str | None,
        typer.Argument(
            help=f"{SOURCE} What the run was fitted to, if not given.", show_default=False
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Page to write; report.html in the run directory if not given."),
    ] = None,
    labels: Annotated[
        Path | None, typer.Option(help=".npy file with one label per image, to colour points by.")
    ] = None,
    manifold: Annotated[
        bool,
        typer.Option(
            help="Show a plane of images, from a second model with two latent variables, which is "
            "fitted for it."
        ),
    ] = True,
    manifold_epochs: Annotated[
        int | None,
        typer.Option(
            min=1, help="Epochs of that second model; without it, as many as the run had."
        ),
    ] = None,
    draws: Annotated[
        int, typer.Option(min=1, help="Draws of z per image for log p(x); fewer are quicker.")
    ] = 100,
    seed: Annotated[int, typer.Option(min=0, help="Seed of every random choice.")] = 0,
    device: Annotated[
        str, typer.Option(help="Where the second model is fitted: cpu or cuda.")
    ] = "cpu",
) -> None:
    """Numbers and pictures of a fitted model, as one HTML page: reconstructions, samples, and what
    each latent variable does.
    """
    from credo.core.devices import check_device
    from credo.generative.mosaics import picture_shape
    from credo.generative.pictures import page
    from credo.report import require, write

    require()
    where = check_device(device)
    if out is not None and out.suffix.lower() != ".html":
        raise SettingError(f"--out {out} ends in {out.suffix!r}; expected .html.")
    files = VaeFiles.read(run)
    model = files.load(run)
    own = {} if data is None else {"source": located(data), "limit": None, "size": _size(model)}
    own |= {} if labels is None else {"labels": str(labels)}
    images = read_source(**(files.data | own))
    if images.shape != model.shape:
        raise DataError(
            f"The images have shape {times(images.shape)}; {run} was fitted to "
            f"{times(model.shape)}: give others."
        )
    x, test = (
        counted(model.likelihood, part) for part in (images.x, images.test_x) if part is not None
    )
    flat = None
    if (
        manifold
        and picture_shape(model.shape) is not None
        and not (model.latent_dim == 2 and model.code.continuous)
    ):
        flat = _flat_model(files, model, x, manifold_epochs or files.fit["epochs"], where)
    say("Measuring and drawing.")
    results = page(
        model,
        x,
        test,
        images.test_labels,
        flat,
        f"Variational autoencoder of {data or files.data['source']}",
        draws,
        seed=seed,
    )
    _print(results["tasks"][0])
    typer.echo(f"Report: {write(results, out or run / 'report.html')}")


def _size(model: VAE) -> tuple[int, ...] | None:
    """Height and width of the model's images, so that other folders and flat rows fit it; None
    where it has none.
    """
    return model.shape[-2:] if len(model.shape) > 1 else None


def _flat_model(files: VaeFiles, model: VAE, x: Any, epochs: int, device: Any) -> VAE:
    """A model with the same networks and two latent variables."""
    from credo.generative.codes import Diagonal

    code = Diagonal(2)
    second = files.with_latent(code.width, code.size).model(
        2, model.likelihood, "diagonal", "normal", model.binarise
    )
    say(
        f"Fitting a second model with two latent variables for {epochs} "
        f"epoch{'s' * (epochs != 1)}; --no-manifold leaves it out."
    )
    options: dict[str, Any] = files.fit | {"epochs": epochs}
    return second.fit(x, progress=is_terminal(), device=device, **options)


def _print(task: dict[str, Any]) -> None:
    from credo.cli.printing import print_table
    from credo.report.html import format_value

    columns = task["columns"]
    rows = [
        [row["method"], *(format_value(row[c["key"]], c.get("digits", 3)) for c in columns)]
        for row in task["rows"]
    ]
    print_table(task["title"], [task["label"], *(c["label"] for c in columns)], rows)


def _png(model: VAE, n: int, seed: int, noise: bool) -> bytes:
    from credo.generative.mosaics import samples
    from credo.report.image_figures import tiles
    from credo.report.png import png

    return png(tiles(samples(model, n, seed, noise)).pixels)


def _npy(model: VAE, n: int, seed: int, noise: bool) -> bytes:
    import io

    import numpy as np

    values = model.sample(n, seed=seed, noise=noise)
    file = io.BytesIO()
    np.save(file, model.likelihood.inputs(values.flatten(1)).reshape(values.shape).numpy())
    return file.getvalue()


_WRITERS = {".png": _png, ".npy": _npy}
