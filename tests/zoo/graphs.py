"""CUDA graphs played on a CPU: operations are noted while a graph is captured, and run again on the
same memory when it is replayed.
"""

from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from credo.core.tree import tensors


class _Noting(TorchDispatchMode):
    def __init__(self, noted):
        super().__init__()
        self.noted = noted

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.noted.append((func, args, kwargs or {}, out))
        return out


class Graph:
    """What ``torch.cuda.CUDAGraph`` is to a captured step."""

    def __init__(self):
        self.noted = []

    @torch.no_grad()
    def replay(self):
        """Every operation again; what it gave the first time gets the new numbers."""
        for func, args, kwargs, out in self.noted:
            again = func(*args, **kwargs)
            for old, new in zip(tensors(out), tensors(again), strict=True):
                if old.data_ptr() != new.data_ptr():
                    old.copy_(new)


def play(monkeypatch):
    """Put the playthings in place of ``torch.cuda``'s own; the list of what is called, in order."""
    calls = []

    def stream(name):
        return SimpleNamespace(
            name=name, wait_stream=lambda other: calls.append(f"{name} waits for {other.name}")
        )

    @contextmanager
    def capture(graph, stream):
        calls.append(f"capture on {stream.name}")
        with _Noting(graph.noted):
            yield
        calls.append("captured")

    @contextmanager
    def on(stream):
        calls.append(f"on {stream.name}")
        yield
        calls.append(f"off {stream.name}")

    fakes = {
        "Stream": lambda: stream("side"),
        "current_stream": lambda: stream("main"),
        "stream": on,
        "CUDAGraph": Graph,
        "graph": capture,
        "get_rng_state": lambda device: torch.get_rng_state(),
        "set_rng_state": lambda state, device: torch.set_rng_state(state),
        "device": lambda device: nullcontext(),
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    return calls
