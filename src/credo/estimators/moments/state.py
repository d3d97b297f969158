"""What runs through the network instead of numbers: a mean with a variance, or with a covariance
between one example's units.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import resolve_name

from credo.core.errors import NetworkError
from credo.estimators.placement import METADATA, reads
from credo.posteriors import Family
from credo.posteriors.covariance_rules import check_units


class Moments(Tensor):
    """A random tensor known by two moments.

    The tensor itself is the mean, so shapes and types read as usual.

    ``var_or_cov`` is the variance in the shape of the mean, or the covariance ``(B, D, D)`` between
    the D units of each of B examples (then ``full`` is set). ``sources`` names the random
    parameters it depends on. The mean is read by ``expected``, because ``mean`` is the reduction
    that networks call. Made by :func:`make_moments`.
    """

    var_or_cov: Tensor
    full: bool
    sources: frozenset[str]
    overwritten: bool = False

    @property
    def expected(self) -> Tensor:
        """The mean as a plain tensor."""
        with torch._C.DisableTorchFunctionSubclass():
            return self.as_subclass(Tensor)

    @property
    def spread(self) -> Tensor:
        """What ``var_or_cov`` was called before; the name goes with the next release."""
        return self.var_or_cov

    @property
    def variance(self) -> Tensor:
        """The variance of every element, in the shape of the mean."""
        return (
            self.var_or_cov.diagonal(dim1=-2, dim2=-1).reshape(self.shape)
            if self.full
            else self.var_or_cov
        )

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return (
            f"Moments(shape={tuple(self.shape)}, {'full' if self.full else 'diagonal'}, "
            f"mean={self.expected!r})"
        )

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the rule of the operation; without one, an error that names it."""
        return dispatch(func, args, kwargs or {})


def make_moments(mean: Tensor, var_or_cov: Tensor, full: bool, sources: frozenset[str]) -> Moments:
    """Both moments (see :class:`Moments`) as one object that runs through a network."""
    out = mean.as_subclass(Moments)
    out.var_or_cov, out.full, out.sources = var_or_cov, full, sources
    return out


class RandomWeight(Tensor):
    """Stands in the place of a random parameter: NaN, so that a use Python does not see shows in
    the output.
    """

    site: str
    family: Family
    full: bool

    def marginals(self) -> tuple[Tensor, Tensor]:
        """Mean and variance of its elements."""
        gaussian = self.family.as_gaussian()
        if gaussian is None:
            raise NetworkError(
                f"Moments of {self.site!r} outside a linear map need a Gaussian posterior, not "
                f"{self.family.name}."
            )
        mean, var = gaussian.marginals()
        return mean[self.site], var[self.site]

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"RandomWeight({self.site!r}, shape={tuple(self.shape)})"

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """As for :class:`Moments`."""
        return dispatch(func, args, kwargs or {})


def make_weight(site: str, family: Family, like: Tensor, full: bool) -> RandomWeight:
    """The stand-in of one parameter of ``family``; it takes no memory."""
    nan = torch.full((), float("nan"), dtype=like.dtype, device=like.device)
    weight = nan.expand(family.shapes[site]).as_subclass(RandomWeight)
    weight.site, weight.family, weight.full = site, family, full
    return weight


@dataclass(frozen=True)
class Rule:
    """How one operation acts on moments; ``diagonal`` and ``full`` say in a word how exactly, given
    Gaussian inputs.
    """

    name: str
    apply: Callable[..., Any]
    diagonal: str
    full: str


RULES: dict[Any, Rule] = {}


def rule(
    *functions: Any, name: str, diagonal: str, full: str
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: the rule of these torch functions, called as ``apply(function, *args,
    **kwargs)``.
    """

    def add(apply: Callable[..., Any]) -> Callable[..., Any]:
        for function in dict.fromkeys(functions):  # some names of torch are one object
            if function in RULES:
                raise ValueError(f"{resolve_name(function)} has two rules")
            RULES[function] = Rule(name, apply, diagonal, full)
        return apply

    return add


def table() -> str:
    """The rules as a Markdown table: operations, and how exact each is in both modes."""
    seen = {entry.name: entry for entry in RULES.values()}
    lines = ["| operation | diagonal | full covariance |", "|---|---|---|"]
    return "\n".join([*lines, *(f"| {e.name} | {e.diagonal} | {e.full} |" for e in seen.values())])


_MORE = ("is_leaf", "is_quantized", "is_meta", "itemsize", "nbytes", "grad_fn", "is_mps", "is_cpu")
_READS = METADATA | {
    *(reads(name) for name in _MORE),
    torch.is_floating_point,
    torch.is_complex,
    torch.numel,
    Tensor.__len__,
    Tensor.is_contiguous,
    Tensor.stride,
}


_AUGMENTED = ("__iadd__", "__isub__", "__imul__", "__itruediv__")


def dispatch(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Reads are free, operations go by their rule, and all others raise :class:`NetworkError`."""
    if func in _READS:
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)
    if func not in RULES:
        raise refusal(func, "there is no rule for it")
    for value in args:
        if isinstance(value, Moments) and value.overwritten:
            raise refusal(
                func,
                "its input was overwritten in place before",
                "use the result of the in-place operation, or a copy",
            )
    out = RULES[func].apply(func, *args, **kwargs)
    if isinstance(args[0], Moments) and _writes(func, kwargs):
        args[
            0
            # moments are not written in place: whoever still holds the old ones must not use them
        ].overwritten = True
    return out


def _writes(func: Any, kwargs: dict[str, Any]) -> bool:
    name = getattr(func, "__name__", "")
    return (
        bool(kwargs.get("inplace"))
        or (name.endswith("_") and not name.endswith("__"))
        or name in _AUGMENTED
    )


def refusal(func: Any, why: str, instead: str | None = None) -> NetworkError:
    """The error for an operation that moments cannot pass: which one, in which module, why, and
    what to do.
    """
    instead = instead or "write the network with the operations listed in docs/moments.md"
    return NetworkError(
        f"Moments cannot pass {_name(func)}{_where()}: {why}; {instead}, or draw samples instead "
        "of moments."
    )


def _name(func: Any) -> str:
    return (
        func
        if isinstance(func, str)
        else (resolve_name(func) or getattr(func, "__name__", str(func)))
    )


def _where() -> str:
    """The innermost module whose ``forward`` is running, with its path from the outermost: found
    only once an error is due.
    """
    modules: list[nn.Module] = []
    frame = inspect.currentframe()
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, nn.Module) and frame.f_code.co_name == "forward":
            modules.append(owner)
        frame = frame.f_back
    if not modules:
        return ""
    paths = {module: path for path, module in modules[-1].named_modules()}
    path = paths.get(modules[0])
    return f" in {type(modules[0]).__name__}" + (f" {path!r}" if path else "")


def lift(value: Any, func: Any) -> Moments:
    """A random parameter met outside a linear map, as moments of its elements, in diagonal mode
    only.
    """
    if isinstance(value, RandomWeight):
        if value.full:
            raise refusal(
                func, f"the random parameter {value.site!r} meets it", "use the diagonal mode"
            )
        return make_moments(*value.marginals(), False, frozenset([value.site]))
    return value


def split(x: Moments) -> tuple[Tensor, Tensor]:
    """Full mode: mean ``(B, D)`` and covariance ``(B, D, D)``."""
    return x.expected.flatten(1), x.var_or_cov


def with_covariance(mean: Tensor, cov: Tensor, sources: frozenset[str]) -> Moments:
    """Moments with a covariance, refused above the size that memory allows."""
    check_units(mean)
    return make_moments(mean, cov, True, sources)


def like(x: Moments, mean: Tensor, var_or_cov: Tensor) -> Moments:
    """New numbers in the mode and with the sources of ``x``."""
    return (
        with_covariance(mean, var_or_cov, x.sources)
        if x.full
        else make_moments(mean, var_or_cov, False, x.sources)
    )


def is_random(value: Any) -> bool:
    """Whether it carries moments."""
    return isinstance(value, (Moments, RandomWeight))
