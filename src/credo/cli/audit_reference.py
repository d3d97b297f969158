"""Where ``credo audit`` gets its reference: which sampler, on which rows of the table, drawn now or
taken from a directory.
"""

from __future__ import annotations

import hashlib
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from credo.cli.assignments import parse_assignments
from credo.cli.guard import is_terminal, say
from credo.cli.run_files import RunFiles, discard
from credo.core.errors import CredoError, RunError, SettingError, nearest

if TYPE_CHECKING:
    from torch import Tensor

    from credo.bnn import BNN

#: In the directory of a reference: a digest of what its model was held at.
DIGEST = "audit.json"
_OPTIONS = {"num_chains": "--chains", "num_warmup": "--warmup", "num_draws": "--draws"}


def sampler_settings(method: str, pairs: list[str], stored: bool) -> dict[str, Any]:
    """Settings ``name=value`` of a sampler that can be ground truth; any other method is refused,
    and options of their own.
    """
    from credo.core.settings import describe
    from credo.methods import make_method, methods

    exact = {
        name: kind
        for name, kind in methods.items()
        if kind.fidelity != "approximate" and kind.is_sampler
    }
    if method not in exact:
        raise SettingError(
            f"--method {method!r} is no sampler that is exact in the limit.{nearest(method, exact)}"
        )
    settings = parse_assignments(pairs, describe(exact[method]), f"Method {method!r}")
    for name, option in _OPTIONS.items():
        if name in settings:
            raise SettingError(
                f"--set {name}={settings[name]} has an option of its own; give {option} "
                f"{settings[name]}."
            )
    make_method(method, settings)
    if settings.get("store") == "disk" and not stored:
        raise SettingError(
            "--set store=disk keeps the draws in the reference's directory; name one with "
            "--reference."
        )
    return settings


def check(bnn: BNN, run: Path, method: str, seed: int, fit: dict[str, Any]) -> None:
    """Refuse runs without a posterior to compare with, and a reference that would repeat the run's
    own chains.
    """
    own = bnn.method.name if bnn.method else "a method of its own"
    if not bnn.proper:
        raise CredoError(
            f"{run} was fitted with {own}, whose prior ({bnn.model.prior.describe()}) does not "
            "integrate to one, so there is no "
            "posterior to compare with; audit a run of --method vi, map or another with a proper "
            "prior."
        )
    if own == method and seed == fit.get("seed"):
        raise SettingError(
            f"--seed {seed} is the seed of {run} itself, and {method} would repeat its chains; "
            "choose another."
        )


def rows_of_fit(
    x: Tensor, y: Tensor, fit: dict[str, Any], run: Path, data: Path
) -> tuple[Tensor, str | None]:
    """Places ``(N,)`` of the rows that the run was fitted to, where the table has them, else of
    all, and what to tell the user.

    ``fit`` is the run's record of its data: their number, their digest, and the seed by which rows
    were held out.
    """
    import torch

    from credo.cli.fit import hold_out
    from credo.data.intake import intake

    total, count, digest = len(y), fit.get("num_data"), fit.get("data")
    every = torch.arange(total)
    if digest is None or intake((x, y)).fingerprint() == digest:
        return every, None
    if count is not None and count < total:
        training = hold_out(x, every, (total - count) / total, fit.get("seed", 0))[0][1]
        if intake((x[training], y[training])).fingerprint() == digest:
            return (
                training,
                f"{run} was fitted to {count} of the {total} rows of {data} and held out the "
                "others; so does the reference.",
            )
    differs = (
        f"{data} ({total} rows) is not the table that {run} was fitted to ({count} rows), or has "
        "its rows in another order"
    )
    return every, f"{differs}; distances are only fair on the rows of the fit."


def draw(
    files: RunFiles,
    bnn: BNN,
    pair: tuple[Tensor, Tensor],
    folder: Path | None,
    run: Path,
    **options: Any,
) -> BNN:
    """The reference of ``bnn`` on ``pair``, from ``folder`` as far as it is there; ``options`` go
    to ``credo.audit.reference``.

    A folder with the reference of a model that was held at other numbers is refused: its config
    alone would not tell.
    """
    from credo.audit import reference
    from credo.engine.run import Run

    digest = _digest(bnn)
    before = None if folder is None else Run(folder).config()
    if folder is not None and before is not None:
        _check_stored(folder, before, digest, run)
    existed = folder is not None and folder.is_dir()
    size = options["rows"] or len(pair[1])
    moves = (
        f"{options['num_chains']} chain(s) of {options['num_warmup']} + {options['num_draws']} "
        f"moves on {size} rows"
    )
    told: list[str] = []

    def tell(verb: str) -> None:
        if not told:
            told.append(f"{verb} the reference: {options['method']}, {moves}.")
            say(told[0])

    def begun(_row: dict[str, Any]) -> None:
        tell("Drawing" if before is None else "Continuing")

    directory = None if folder is None else Run(folder)
    if directory is not None:
        files.attach(directory)
        directory.attach(DIGEST, {"run": str(run), "held": digest})
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", message="The reference is no ground truth yet"
            )  # the results say so
            truth = reference(
                bnn, pair, run=directory, progress=is_terminal(), callbacks=(begun,), **options
            )
    except (CredoError, OSError):
        if folder is not None and before is None:
            discard(folder, existed=existed)
        raise
    tell("Reused")
    return truth


def _check_stored(folder: Path, config: dict[str, Any], digest: str, run: Path) -> None:
    from credo.core.atomic import read_json

    if not (folder / DIGEST).is_file():
        if config.get("complete"):
            raise RunError(
                f"{folder} holds a run that credo audit did not draw; choose another --reference."
            )
        return  # killed before its first move
    if read_json(folder / DIGEST).get("held") != digest:
        raise RunError(
            f"{folder} holds the reference of another fit: what {run} learned beside its weights "
            "(noise, prior, point parameters) "
            "is not what that reference was drawn with; choose another --reference."
        )


def _digest(bnn: BNN) -> str:
    """Of all numbers at which the reference holds what the fit estimated beside the weights."""
    import torch

    from credo.audit import weights_only

    model = weights_only(bnn)
    numbers = {
        f"net/{name}": value
        for name, value in model.net.state_dict().items()
        if name not in model.random
    }
    numbers |= {
        f"likelihood/{name}": value for name, value in model.likelihood.state_dict().items()
    }
    numbers |= {
        f"prior/{name}": value
        for name, value in torch.nn.ModuleList(bnn.model.prior.parts()).state_dict().items()
    }
    digest = hashlib.blake2b(digest_size=8)
    for name, value in sorted(numbers.items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().numpy().tobytes())
    return digest.hexdigest()
