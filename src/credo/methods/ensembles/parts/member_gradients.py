"""Gradients of every member's negative log-likelihood: of all in one vmapped pass, or one member
after another.

Both ways give the same numbers up to the order in which floating-point sums are taken. What the
network draws by itself while it trains (dropout) comes from another stream when all pass at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import torch
from torch import Tensor, nn

from credo.core.errors import SettingError
from credo.core.recorded_pass import RecordedPass
from credo.core.seeds import put_state, take_state
from credo.core.shell import plain_attention
from credo.core.tree import Structure, flatten, map_leaves, stack, take, unflatten
from credo.core.vectorise import Undo, VmapOrLoop
from credo.methods.ensembles.parts.members import Members
from credo.methods.ensembles.parts.stacked_linear import StackedLinear
from credo.posteriors import Params


def vmap_pays(net: nn.Module) -> bool:
    """Whether a pass of all members at once is the faster one: not with convolutions, which vmap
    turns into grouped ones.
    """
    return not any(isinstance(module, nn.modules.conv._ConvNd) for module in net.modules())


@final
class MemberGradients:
    """``add(x, y, share)`` adds gradients to the members' parameters.

    ``vectorise``: whether to try all members at once; None where that pays.
    """

    def __init__(self, members: Members, vectorise: bool | None = None) -> None:
        self.members = members
        at_once = vmap_pays(members.model.net) if vectorise is None else vectorise
        self.vectorised = VmapOrLoop(
            "Training member by member", looped=members.count == 1 or not at_once
        )
        self.recorded: RecordedPass | None = None

    def add(self, x: Any, y: Tensor, share: float, at_inputs: bool = False) -> tuple[Tensor, Any]:
        """Add the gradient of ``share`` times every member's nll on its own batch, ``x`` and ``y``
        ``(K, B, ...)``; returns the nll ``(K,)`` and, with ``at_inputs``, the gradient at x.
        """
        if self.recorded is not None:
            return self._at_once(x, y, share, at_inputs)
        return self.vectorised(
            lambda: self._at_once(x, y, share, at_inputs),
            lambda: self._in_turn(x, y, share, at_inputs),
            self._snapshot,
            stacklevel=4,
        )

    def record(self) -> None:
        """From now on passes are recorded and replayed, of all members at once or of the only
        one.
        """
        members = self.members
        if self.vectorised.looped and members.count > 1:
            raise SettingError(
                "compile=True records passes of all members at once, and these take turns "
                "(convolutions, or vectorise=False); on a CPU use "
                "compile=False, or vectorise=True."
            )
        learned = [leaf.detach() for leaf in members.learned()]
        self.recorded = RecordedPass([*learned, *members.buffers_().values()])

    def compute(
        self,
        tensors: Sequence[Tensor],
        structure: Structure,
        share: float,
        at_inputs: bool = False,
        single: bool = False,
    ) -> list[Tensor]:
        """nll ``(K,)``, gradients of ``share`` times it, buffers after the pass, and with
        ``at_inputs`` the gradients at the inputs.

        A function of tensors alone, which can be recorded. ``tensors``: parameters of networks and
        likelihood, buffers, the leaves of the inputs, targets; ``structure``: of the inputs;
        ``single``: all without the axis K.
        """
        members = self.members
        networks, learned = len(members.names), len(members.names) + len(members.noise_names)
        leaves = [value.detach().requires_grad_() for value in tensors[:learned]]
        *inputs, y = tensors[learned + len(members.buffer_names) :]
        inputs = _differentiable(inputs) if at_inputs else inputs
        tables = (
            dict(zip(members.names, leaves, strict=False)),
            dict(zip(members.noise_names, leaves[networks:], strict=True)),
            dict(zip(members.buffer_names, tensors[learned:], strict=False)),
        )
        wanted = [*leaves, *(leaf for leaf in inputs if at_inputs and _is_real(leaf))]
        with torch.enable_grad(), plain_attention(), StackedLinear():
            stacked = self._only if members.count == 1 else _mapped(self._nll)
            run = self._nll if single else stacked
            nll, after = run(*tables, unflatten(inputs, structure), y)
            # A parameter that this pass does not reach still feels its prior and its momentum: its
            # gradient is zero.
            found = iter(
                torch.autograd.grad(
                    nll.sum() * share, wanted, allow_unused=True, materialize_grads=True
                )
            )
        grads = [next(found).contiguous() for _ in leaves]  # as an optimizer wants them
        out = [nll.detach(), *grads, *(after[name].detach() for name in members.buffer_names)]
        if at_inputs:
            out += [next(found) if _is_real(leaf) else leaf for leaf in inputs]
        return out

    def _at_once(self, x: Any, y: Tensor, share: float, at_inputs: bool) -> tuple[Tensor, Any]:
        members = self.members
        inputs, structure = flatten(x)

        def compute(*tensors: Tensor) -> list[Tensor]:
            return self.compute(tensors, structure, share, at_inputs)

        if self.recorded is None:
            learned = (leaf.detach() for leaf in members.learned())
            found = compute(*learned, *members.buffers_().values(), *inputs, y)
        else:
            found = self.recorded((structure, share, at_inputs), compute, [*inputs, y])
        grads = 1 + len(members.learned())
        for leaf, grad in zip(members.learned(), found[1:grads], strict=True):
            leaf.grad = grad if leaf.grad is None else leaf.grad + grad
        last = grads + len(members.buffer_names)
        members.take_buffers(found[grads:last])
        return found[0], unflatten(found[last:], structure) if at_inputs else None

    def _in_turn(self, x: Any, y: Tensor, share: float, at_inputs: bool) -> tuple[Tensor, Any]:
        """Each member is differentiated before the next is placed: layers recomputed in the
        backward pass must find their weights.
        """
        tables = (self.members.values(), self.members.likelihood_params())
        grads = [
            {n: torch.zeros_like(t) if t.grad is None else t.grad for n, t in table.items()}
            for table in tables
        ]
        nlls, slopes = [], []
        for k in range(self.members.count):
            own = [
                {n: t.detach()[k].requires_grad_() for n, t in table.items()} for table in tables
            ]
            inputs = _differentiable(take(x, k)) if at_inputs else take(x, k)
            buffers = {n: b[k] for n, b in self.members.buffers_().items()}
            nll, after = self._nll(own[0], own[1], buffers, inputs, y[k])
            (nll * share).backward()
            with torch.no_grad():
                for name, buffer in buffers.items():
                    buffer.copy_(after[name])
                for table, part in zip(grads, own, strict=True):
                    for name, leaf in part.items():
                        table[name][k] += 0 if leaf.grad is None else leaf.grad
            nlls.append(nll.detach())
            slopes.append(_grads(inputs) if at_inputs else None)
        for table, total in zip(tables, grads, strict=True):
            for name, parameter in table.items():
                parameter.grad = total[name]
        return torch.stack(nlls), stack(slopes) if at_inputs else None

    def _nll(
        self, values: Params, likelihood_params: Params, buffers: Params, x: Any, y: Tensor
    ) -> tuple[Tensor, Params]:
        """One member's summed nll, and its buffers after the pass."""
        model = self.members.model
        shell = model.shell()
        shell.place(values)
        shell.place(buffers)
        likelihood = self.members.member_likelihood(likelihood_params)
        nll = -likelihood.log_prob(model.outputs(shell, x), y).sum()
        return nll, {name: shell.placed(name) for name in buffers}

    def _only(
        self, values: Params, likelihood_params: Params, buffers: Params, x: Any, y: Tensor
    ) -> tuple[Tensor, Params]:
        """``_nll`` of the only member, with the leading axes that vmap would give it."""
        own = [
            {name: tensor[0] for name, tensor in table.items()}
            for table in (values, likelihood_params, buffers)
        ]
        nll, after = self._nll(own[0], own[1], own[2], take(x, 0), y[0])
        return nll.unsqueeze(0), {name: tensor.unsqueeze(0) for name, tensor in after.items()}

    def _snapshot(self) -> Undo:
        """Buffers, gradients (a pass may fail in the middle of its backward) and random state."""
        device = self.members.model.device
        buffers = [(b, b.clone()) for b in self.members.buffers_().values()]
        grads = [(p, None if p.grad is None else p.grad.clone()) for p in self.members.parameters()]
        state = take_state(device)

        def undo() -> None:
            for buffer, value in buffers:
                buffer.copy_(value)
            for parameter, grad in grads:
                parameter.grad = grad
            put_state(device, state)

        return undo


def _mapped(nll: Any) -> Any:
    return torch.vmap(nll, randomness="different")


def _differentiable(x: Any) -> Any:
    """Inputs whose gradients are wanted."""
    return map_leaves(lambda t: t.detach().requires_grad_() if _is_real(t) else t, x)


def _grads(x: Any) -> Any:
    return map_leaves(
        lambda t: (torch.zeros_like(t) if t.grad is None else t.grad) if _is_real(t) else t, x
    )


def _is_real(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.is_floating_point()
