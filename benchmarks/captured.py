"""Do captured steps compute what eager ones do? Fits small models on a GPU both ways.

    python benchmarks/captured.py

Prints the largest difference of predicted probabilities between ``compile=False`` and the captured
step of every method that has one; trajectories of samplers are compiled as well, and chaotic, so
theirs differ by more than rounding.
"""

import sys
import time
import warnings

import torch
from torch import nn

import credo

TRAINED = {"epochs": 8, "batch_size": 64}
FITS = {
    "map": TRAINED,
    "vi": TRAINED,
    "ivon": TRAINED,
    "deep_ensemble": TRAINED | {"num_members": 3},
    "swag": TRAINED,
    "hmc": {"num_warmup": 30, "num_draws": 10, "num_chains": 4},
    "nuts": {"num_warmup": 20, "num_draws": 5, "num_chains": 2},
}


def problem():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(256, 5, generator=generator)
    return x, (x[:, 0] > 0).long()


def predicted(method, data, compile, how):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 2))
    started = time.perf_counter()
    bnn = credo.BNN(net, "categorical")
    bnn.fit(data, method, device="cuda", progress=False, compile=compile, **how)
    seconds = time.perf_counter() - started
    return bnn.predict(data[0][:32], num_samples=20).mean.cpu(), seconds


def main():
    if not torch.cuda.is_available():
        sys.exit("benchmarks/captured.py needs a GPU.")
    warnings.simplefilter("ignore")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}\n")
    print("| method | compile | seconds | largest difference from eager |")
    print("|---|---|---:|---:|")
    data = problem()
    for method, how in FITS.items():
        eager, seconds = predicted(method, data, False, how)
        print(f"| {method} | False | {seconds:.1f} | |")
        mode = "graph" if "epochs" in how else True
        captured, seconds = predicted(method, data, mode, how)
        gap = float((captured - eager).abs().max())
        print(f"| {method} | {mode} | {seconds:.1f} | {gap:.1e} |")


if __name__ == "__main__":
    main()
