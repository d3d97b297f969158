import pytest
import torch
from zoo.stats import follows

from credo.core.counter import counter_normal, counter_uniform

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@needs_gpu
def test_rows_depend_on_their_own_key_alone():
    from scipy.stats import norm

    device = torch.device("cuda")
    whole = counter_normal(40, [5, 6, 7], (1000, 3), device)
    assert whole.shape == (3, 1000, 3)
    assert torch.equal(whole[1], counter_normal(40, [6], (1000, 3), device)[0])
    follows(whole.flatten().cpu().double(), norm.cdf)


@needs_gpu
def test_uniform_rows_likewise():
    from scipy.stats import uniform

    device = torch.device("cuda")
    whole = counter_uniform(40, [5, 6, 7], (1000, 3), device)
    assert whole.shape == (3, 1000, 3) and float(whole.min()) >= 0 and float(whole.max()) < 1
    assert torch.equal(whole[1], counter_uniform(40, [6], (1000, 3), device)[0])
    follows(whole.flatten().cpu().double(), uniform.cdf)


def test_without_triton_it_says_so(monkeypatch):
    import builtins

    from credo.core import counter

    real = builtins.__import__

    def refuse(name, *args, **kwargs):
        if name.startswith("triton"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    counter._kernel.cache_clear()
    try:
        assert counter_normal(0, [0], (2,), torch.device("cpu")) is None
        assert counter_uniform(0, [0], (2,), torch.device("cpu")) is None
    finally:
        counter._kernel.cache_clear()
