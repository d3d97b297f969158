"""``credo vae fit``: images in, a run directory out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from credo.cli.assignments import FIT_OPTIONS, parse_assignments
from credo.cli.guard import guarded, is_terminal, say
from credo.cli.run_files import check_directory, discard, parse_sizes
from credo.cli.vae_run import (
    FILE,
    SOURCE,
    VaeFiles,
    counted,
    default_hidden,
    describe_nets,
    located,
    make_likelihood,
    read_source,
    times,
)
from credo.core.errors import CredoError, DataError, RunError, SettingError
from credo.core.settings import positive

if TYPE_CHECKING:
    from credo.data.image_sets import Images
    from credo.generative import VAE
    from credo.likelihoods import Likelihood

_WATCHED = 1000  # held-out images whose bound is measured after every epoch


@guarded
def fit(
    data: Annotated[str, typer.Argument(help=SOURCE, show_default=False)],
    out: Annotated[Path, typer.Option(help="Run directory to write.")] = Path("run"),
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in --out, with the same options.")
    ] = False,
    latent: Annotated[
        int, typer.Option(min=1, help="Latent variables: the numbers an image is encoded in.")
    ] = 20,
    likelihood: Annotated[
        str | None,
        typer.Option(
            help="Distribution of a pixel; bernoulli if all are 0 or 1, else "
            "continuous_bernoulli, if not given."
        ),
    ] = None,
    binarise: Annotated[
        bool,
        typer.Option(
            "--binarise",
            help="Draw black and white images from the grey values at every step; needs the "
            "bernoulli likelihood.",
        ),
    ] = False,
    net: Annotated[
        str, typer.Option(help="Networks: mlp (dense layers) or conv (convolutions).")
    ] = "mlp",
    hidden: Annotated[
        str | None,
        typer.Option(
            help="mlp: sizes of the hidden layers, 500,500 if not given. conv: channels, then a "
            "dense layer: 32,64,256."
        ),
    ] = None,
    posterior: Annotated[
        str,
        typer.Option(
            help="Distribution of an image's code, q(z|x): diagonal, full, flow or categorical."
        ),
    ] = "diagonal",
    prior: Annotated[
        str | None,
        typer.Option(
            help="Prior of the codes, p(z): normal, mixture or vamp; uniform for categorical codes."
        ),
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(min=1, help="Passes over the data; without it 20, but at least 2,000 steps."),
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Images per step.")] = 100,
    lr: Annotated[float, typer.Option(help="Learning rate.")] = 1e-3,
    method: Annotated[
        str,
        typer.Option(
            help="mle for plain weights; vi and others give the decoder's weights a posterior."
        ),
    ] = "mle",
    seed: Annotated[int, typer.Option(min=0, help="Seed of every random choice.")] = 0,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Use at most so many training images.")
    ] = None,
    size: Annotated[
        str | None,
        typer.Option(
            metavar="HEIGHT,WIDTH",
            help="Size to give the images of a folder, or to read the flat rows of an array in.",
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="A setting of the bound (such as beta=4) or of the method; repeat the option for "
            "more.",
        ),
    ] = None,
) -> None:
    """Fit a variational autoencoder to images and write a run directory.

    Where the data have no test images of their own, a tenth of them is held out. Settings of the
    bound for --set: bound (elbo or iwae), draws, gradient, beta, kl_schedule, kl_warmup, free_bits,
    temperature; those of the method: credo methods NAME.
    """
    from credo.core.devices import check_device
    from credo.generative.codes import codes

    settings = _settings(set_ or [], method)
    where = check_device(device)
    positive("lr", lr, 1e-3)
    code = codes[posterior](latent)
    usual = default_hidden(net)
    sizes = usual if hidden is None else parse_sizes(hidden, "--hidden")
    existed = check_directory(out, resume)
    source = {"source": located(data), "size": _height_width(size), "labels": None, "limit": limit}
    images = read_source(**source)
    name, why = (likelihood, "") if likelihood else _choice(images, binarise)
    chosen = make_likelihood(name, images.levels)
    x, test = (counted(chosen, part) for part in (images.x, images.test_x) if part is not None)
    outputs = chosen.num_outputs(_checked(chosen, x, binarise))
    fitted = {"epochs": epochs, "batch_size": batch_size, "lr": lr, "seed": seed}
    files = VaeFiles(
        *describe_nets(net, sizes, images.shape, code.width, code.size, outputs), source, fitted
    )
    if resume and (out / FILE).is_file() and VaeFiles.read(out) != files:
        raise RunError(
            f"{out} was fitted to other data, with other networks or another length of training; "
            "resume with "
            "the same options."
        )
    model = files.model(latent, chosen, posterior, prior, binarise)
    if why:
        say(f"Likelihood: {name}, because {why}.")
    _train(
        model,
        files,
        x,
        test[:: max(1, len(test) // _WATCHED)],
        out,
        existed,
        resume,
        method=method,
        device=where,
        **settings,
    )
    found = f"bound {model.history[-1]['bound']:.2f} nats per datum"
    say(
        f"{out}: {latent} latent variables, {len(x)} data of shape {times(images.shape)}, "
        f"{found}. Next: credo vae report {out}"
    )


def _settings(pairs: list[str], method: str) -> dict[str, Any]:
    """Settings of the bound and of the method, checked; where both have a name it is the
    bound's.
    """
    from credo.core.settings import describe
    from credo.generative import Bound
    from credo.methods import make_method, methods

    rows = describe(Bound)
    known = {row["name"] for row in rows}
    rows += [row for row in describe(methods[method]) if row["name"] not in known]
    settings = parse_assignments(pairs, rows, f"The bound or the method {method!r}", FIT_OPTIONS)
    Bound(**{name: value for name, value in settings.items() if name in known})
    make_method(method, {name: value for name, value in settings.items() if name not in known})
    return settings


def _height_width(text: str | None) -> list[int] | None:
    sizes = None if text is None else parse_sizes(text, "--size")
    if sizes is not None and len(sizes) != 2:
        raise SettingError(f"--size {text!r} is not valid; expected HEIGHT,WIDTH such as 28,28.")
    return None if sizes is None else list(sizes)


def _choice(images: Images, binarise: bool) -> tuple[str, str]:
    """A likelihood that suits the pixels, and why."""
    if binarise:
        return "bernoulli", "--binarise draws 0 or 1"
    if images.binary:
        return "bernoulli", "all pixels are 0 or 1"
    return (
        "continuous_bernoulli",
        "the pixels are grey (--binarise draws black and white images from them)",
    )


def _checked(likelihood: Likelihood, x: Any, binarise: bool) -> Any:
    """The data as targets, refused where the likelihood cannot have made them."""
    import torch

    flat = torch.as_tensor(x).flatten(1)
    try:
        return flat if binarise else likelihood.check_targets(flat)
    except DataError as error:
        raise DataError(
            f"{error} Leave out --likelihood to have one chosen; for bernoulli --binarise draws 0 "
            "and 1 from grey values."
        ) from error


def _train(
    model: VAE,
    files: VaeFiles,
    x: Any,
    watched: Any,
    out: Path,
    existed: bool,
    resume: bool,
    **options: Any,
) -> None:
    from credo.engine.run import Run

    run = Run(out)
    files.attach(run)
    try:
        model.fit(x, validation=watched, run=run, progress=is_terminal(), **files.fit, **options)
    except (CredoError, OSError):
        if not resume:
            discard(out, existed=existed)
        raise
