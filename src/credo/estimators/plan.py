"""Make a plan by dry runs: which random weights meet only linear maps with rules, and where the
examples lie.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from credo.core.errors import NetworkError
from credo.core.linear_map import LinearMap
from credo.core.seeds import isolated
from credo.core.shell import Shell
from credo.core.sites import Site
from credo.core.tree import num_rows, one_more, tensors
from credo.estimators.base import Estimator
from credo.estimators.placement import Plan, Replan, place, unused
from credo.posteriors import Posterior


def make_plan(
    shell: Shell,
    posterior: Posterior,
    sites: Mapping[str, Site],
    estimator: Estimator,
    x: Any,
    buffers: Mapping[str, Tensor],
    device: torch.device,
) -> Plan:
    """Probe with B and B+1 examples until every slot left meets exactly one linear map, once, along
    a known example axis.

    Weights tied, shared, used by other operations, or met without an example axis of exactly B and
    B+1 are drawn. Errors name the parameters that never reach the output. ``buffers`` are cloned
    first: a dry run leaves no trace.
    """
    probe = _Probe(shell, posterior, estimator, buffers, device)
    random = {n: s for n, s in sites.items() if n in posterior.names}
    probe.check(random, x)
    candidates = (
        {n for n, s in random.items() if s.linear and not s.aliases}
        if estimator.intercepts
        else set()
    )
    candidates -= posterior.fixed
    while candidates:
        biases = {n for n, s in random.items() if s.partner in candidates}
        plan = Plan(dict.fromkeys(candidates, 0), frozenset(biases))
        try:
            first, second = probe.watch(plan, x), probe.watch(plan, one_more(x))
        except Replan as replan:
            candidates -= {
                random[n].partner if random[n].partner in candidates else n for n in replan.names
            }
            continue
        reused = {
            random[n].partner
            for n in biases
            if max(len(first.get(n, [])), len(second.get(n, []))) > 1
        }
        axes = {
            n: None
            if n in reused
            else example_axis(first.get(n, []), second.get(n, []), num_rows(x))
            for n in candidates
        }
        candidates = {n for n, axis in axes.items() if axis is not None}
        if len(candidates) == len(axes):
            plan = Plan(
                {n: axis for n, axis in axes.items() if axis is not None}, frozenset(biases)
            )
            hidden = probe.hidden(plan, x)
            if not hidden:
                return plan
            candidates -= hidden
    return Plan()


def example_axis(first: list[torch.Size], second: list[torch.Size], size: int) -> int | None:
    """The axis of ``size`` and ``size + 1`` entries of one shape seen with as many examples; None
    where that is not one axis alone.
    """
    if len(first) != 1 or len(second) != 1 or len(first[0]) != len(second[0]):
        return None
    pairs = list(zip(first[0], second[0], strict=True))
    axes = [i for i, (a, b) in enumerate(pairs) if a == size and b == size + 1]
    return (
        axes[0]
        if len(axes) == 1 and all(a == b for i, (a, b) in enumerate(pairs) if i != axes[0])
        else None
    )


class _Probe:
    """Dry runs of one shell."""

    def __init__(
        self,
        shell: Shell,
        posterior: Posterior,
        estimator: Estimator,
        buffers: Mapping[str, Tensor],
        device: torch.device,
    ) -> None:
        self.shell, self.posterior, self.estimator, self.buffers, self.device = (
            shell,
            posterior,
            estimator,
            buffers,
            device,
        )

    def run(self, plan: Plan, x: Any, watch: Any = None, leaves: Iterable[str] = ()) -> Any:
        """One pass that leaves buffers and random state as found; the named ``leaves`` are cut off
        from the posterior.
        """
        self.shell.place({name: buffer.clone() for name, buffer in self.buffers.items()})
        with isolated(0, self.device):
            place(self.shell, self.posterior, self.estimator, plan, watch=watch)
            self.shell.place(
                {name: self.shell.placed(name).detach().requires_grad_() for name in leaves}
            )
            return self.shell(x)

    def watch(self, plan: Plan, x: Any) -> dict[str, list[torch.Size]]:
        """The input shapes at every meeting, by site."""
        seen: dict[str, list[torch.Size]] = {}

        def note(name: str, op: LinearMap, inputs: Tensor, out: Tensor) -> None:
            seen.setdefault(name, []).append(inputs.shape)

        with torch.no_grad():
            self.run(plan, x, note)
        return seen

    def hidden(self, plan: Plan, x: Any) -> set[str]:
        """Slots whose NaN reaches the output, by a use that Python did not see."""
        with torch.no_grad():
            if not _has_nan(self.run(plan, x)):
                return set()
            if _has_nan(self.run(Plan(), x)):
                raise NetworkError(
                    "The network's output is NaN on these inputs even with ordinary weights; "
                    "check the network and the data."
                )
            return {n for n in plan.example_axis if _has_nan(self.run(_only(plan, n), x))} or set(
                plan.example_axis
            )

    def check(self, random: Mapping[str, Site], x: Any) -> None:
        """Every random parameter reaches the output's gradient, and no reentrant checkpoint is in
        the way.
        """
        _refuse_embeddings(
            self.shell.module,
            {n for family in self.posterior.factors if family.atoms is None for n in family.names},
        )
        with torch.enable_grad():
            output = self.run(Plan(), x, leaves=random)
            roots = [t for t in tensors(_readable(output)) if t.requires_grad]
            refuse_reentrant(roots)
            placed = {n: self.shell.placed(n) for n in random}
            reached: set[str] = set()
            if roots and placed:
                total = torch.stack([root.float().sum() for root in roots]).sum()
                grads = torch.autograd.grad(total, list(placed.values()), allow_unused=True)
                reached = {n for n, g in zip(placed, grads, strict=True) if g is not None}
        missing = [n for n in random if n not in reached]
        if missing:
            raise unused(missing)


def _only(plan: Plan, name: str) -> Plan:
    return Plan({name: plan.example_axis[name]}, frozenset())


def _readable(output: Any) -> Any:
    """An output as a tree: objects that hold tensors as attributes are lists of these."""
    if isinstance(output, Mapping):
        return dict(output)
    return (
        list(vars(output).values())
        if hasattr(output, "__dict__") and not isinstance(output, (Tensor, tuple, list))
        else output
    )


def _has_nan(output: Any) -> bool:
    return any(bool(t.isnan().any()) for t in tensors(_readable(output)) if t.is_floating_point())


def _refuse_embeddings(net: nn.Module, random: set[str]) -> None:
    """Embeddings whose options do not go with a posterior's flat vectors, named before torch fails
    somewhere inside.
    """
    for path, module in net.named_modules():
        if not isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
            continue
        if module.sparse and module.weight.requires_grad:
            raise NetworkError(
                f"The embedding {path!r} has sparse gradients, which credo's optimizer cannot "
                "use; make it with sparse=False."
            )
        if module.max_norm is not None and f"{path}.weight".lstrip(".") in random:
            raise NetworkError(
                f"The embedding {path!r} has max_norm={module.max_norm:g}, which rewrites its "
                "weights in place; "
                "drop max_norm, or leave the embedding out with random=."
            )


def refuse_reentrant(roots: list[Tensor]) -> None:
    """An error where reentrant checkpointing is in the graph behind these tensors."""
    seen, stack = set(), [root.grad_fn for root in roots]
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node.name() == "CheckpointFunctionBackward":
            raise NetworkError(
                "The network uses reentrant gradient checkpointing, which loses the noise; pass "
                "use_reentrant=False to checkpoint()."
            )
        stack.extend(parent for parent, _ in node.next_functions)
