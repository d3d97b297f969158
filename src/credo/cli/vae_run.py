"""What ``credo vae`` keeps in a run directory beside the posterior: the descriptions of both
networks, and where the data came from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from credo.core.errors import RunError, SettingError, nearest

if TYPE_CHECKING:
    import numpy as np
    from torch import nn

    from credo.data.image_sets import Images
    from credo.engine.run import Run
    from credo.generative import VAE
    from credo.likelihoods import Likelihood

FILE = "vae.json"
# of a continuous Bernoulli's parameter: pixels that are exactly black would otherwise draw all of
# the effort
LIMIT = 16.0
SOURCE = (
    "Name of a data set (digits comes with credo), folder of PNG or JPEG files, or array file: "
    ".npy, .npz, .safetensors."
)
_KEYS = {"encoder": dict, "decoder": dict, "data": dict, "fit": dict}


@final
@dataclass(frozen=True)
class VaeFiles:
    """Networks as ``{"name", "args"}``, the data as ``{"source", "size", "labels", "limit"}``, and
    epochs, batch size, rate and seed of the fit.
    """

    encoder: dict[str, Any]
    decoder: dict[str, Any]
    data: dict[str, Any]
    fit: dict[str, Any]

    def build(self, seed: int = 0) -> tuple[nn.Module, nn.Module]:
        """Encoder and decoder, initialised from ``seed``; the global random state is left as
        found.
        """
        import torch

        from credo.nets.catalogue import catalogue

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            encoder, decoder = (
                catalogue[part["name"]](**part["args"]) for part in (self.encoder, self.decoder)
            )
            return encoder, decoder

    def model(
        self, latent: int, likelihood: Likelihood, posterior: str, prior: str | None, binarise: bool
    ) -> VAE:
        """A model of these networks, not fitted yet."""
        from credo.generative import VAE

        networks = self.build(self.fit["seed"])
        return VAE(
            *networks, latent, likelihood, posterior=posterior, prior=prior, binarise=binarise
        )

    def with_latent(self, width: int, size: int) -> VaeFiles:
        """The same networks for an encoder of ``width`` outputs and a decoder of ``size``
        inputs.
        """
        encoder = self.encoder | {"args": self.encoder["args"] | {"outputs": width}}
        decoder = self.decoder | {"args": self.decoder["args"] | {"latent_dim": size}}
        return replace(self, encoder=encoder, decoder=decoder)

    def attach(self, run: Run) -> None:
        """Keep the file beside a run, from the moment its directory exists."""
        run.attach(FILE, asdict(self))

    @staticmethod
    def read(run: Path) -> VaeFiles:
        """The file of a run; refuses a directory that ``credo vae fit`` did not write."""
        from credo.core.atomic import read_json
        from credo.nets.catalogue import present_args

        if not (run / FILE).is_file():
            what = "does not exist" if not run.exists() else f"has no {FILE}"
            raise RunError(f"{run} {what}; expected a run directory written by credo vae fit.")
        found = read_json(run / FILE)
        if not isinstance(found, dict) or any(
            not isinstance(found.get(key), kind) for key, kind in _KEYS.items()
        ):
            raise RunError(f"{run / FILE} does not describe a run of credo vae; fit it again.")
        for part in (found["encoder"], found["decoder"]):
            part["args"] = present_args(part["name"], part["args"])
        return VaeFiles(**{key: found[key] for key in _KEYS})

    def load(self, run: Path) -> VAE:
        """The fitted model; refuses a run that was never finished."""
        from credo.engine.run import Run
        from credo.generative import load

        if not (Run(run).config() or {}).get("complete"):
            raise RunError(
                f"The run in {run} is not finished; give credo vae fit the same options and "
                "--resume."
            )
        return load(run, *self.build())


def read_source(
    source: str, size: Sequence[int] | None, labels: str | None, limit: int | None
) -> Images:
    """Images with a tenth of them held out where the source has no test images; the same tenth
    every time.
    """
    from credo.data.image_sets import read_images

    shape = None if size is None else (size[0], size[1])
    return read_images(source, shape, labels).held_out().limited(limit)


def located(data: str) -> str:
    """A path in full, so that the data are found from other directories too; a data set's name as
    it is.
    """
    from credo.data import names

    return data if data in names() or not Path(data).exists() else str(Path(data).resolve())


def describe_nets(
    net: str, hidden: Sequence[int], shape: Sequence[int], width: int, size: int, outputs: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Encoder and decoder of a kind: data of ``shape`` to ``width`` numbers, codes of ``size``
    numbers to ``outputs``.
    """
    return _NETS[net](hidden, list(shape), width, size, outputs)


def default_hidden(net: str) -> tuple[int, ...]:
    """Layer sizes where none are given; an unknown kind of network is refused."""
    if net not in _HIDDEN:
        raise SettingError(f"--net {net!r} is not known.{nearest(net, _HIDDEN)}")
    return _HIDDEN[net]


def counted(likelihood: Likelihood, x: np.ndarray) -> np.ndarray:
    """Pixels in [0, 1] as the likelihood counts them: themselves, or whole levels."""
    import torch

    top = 1.0 / float(likelihood.inputs(torch.ones(1, 1)))
    return x if top == 1.0 else (x * top).round()


def make_likelihood(name: str, levels: int) -> Likelihood:
    """A likelihood by name; one that counts levels gets as many as the pixels have, one that can be
    bounded is.
    """
    import inspect

    from credo.likelihoods import likelihoods

    kind = likelihoods[name]
    known = inspect.signature(kind).parameters
    return kind(
        **{key: value for key, value in (("levels", levels), ("limit", LIMIT)) if key in known}
    )


def times(shape: Sequence[int]) -> str:
    """``8 x 8``."""
    return " x ".join(map(str, shape))


def _mlp(
    hidden: Sequence[int], shape: list[int], width: int, size: int, outputs: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    encoder = {"shape": shape, "outputs": width, "hidden": list(hidden)}
    decoder = {"latent_dim": size, "outputs": outputs, "hidden": list(hidden)[::-1]}
    return {"name": "mlp_encoder", "args": encoder}, {"name": "mlp_decoder", "args": decoder}


def _conv(
    hidden: Sequence[int], shape: list[int], width: int, size: int, outputs: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    import math

    if len(hidden) < 2:
        raise SettingError(
            "--net conv needs channels and then the size of a dense layer in --hidden, such as "
            f"32,64,256; got {hidden}."
        )
    if len(shape) < 2:
        raise SettingError(
            f"--net conv needs images; the data have shape {tuple(shape)} each: use --net mlp, or "
            "--size HEIGHT,WIDTH."
        )
    *channels, dense = hidden
    encoder = {"shape": shape, "outputs": width, "widths": channels, "hidden": dense}
    decoder = {
        "latent_dim": size,
        "shape": shape,
        "per_pixel": outputs // math.prod(shape),
        "widths": channels[::-1],
        "hidden": dense,
    }
    return {"name": "conv_encoder", "args": encoder}, {"name": "conv_decoder", "args": decoder}


_NETS = {"mlp": _mlp, "conv": _conv}
_HIDDEN = {"mlp": (500, 500), "conv": (32, 64, 256)}
