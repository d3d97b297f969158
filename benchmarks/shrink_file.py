"""A stored LeNet-5 with fewer weights still: ``python benchmarks/shrink_file.py FILE.credo
--weights 1250 --out OUT.credo``.

In each round Laplace's approximation at the network says how well every weight is known, the
weights that stand out least from that noise go, and the rest is trained on MNIST's 60,000 training
images. Then the network is quantised and written like those of ``credo reproduce sparse_mnist``.
How many weights stay is said beforehand and nothing is chosen on the way, so that no images are
held out; the test images are looked at in the end.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch

from credo import compress
from credo.bnn import BNN
from credo.compress import Pruned
from credo_reproduce import catalogue  # noqa: F401  (registers the experiments)
from credo_reproduce.base import make_experiment
from credo_reproduce.lenets import NETS, LeNets, error
from credo_reproduce.outcome import machine
from credo_reproduce.probes import Pair

CURVED = 5000  # images behind the curvature


def fewer(start: Pruned, weights: int, data: Pair) -> Pruned:
    """Without the weights of least abs(w) / sd, by Laplace's approximation."""
    some = (data[0][:CURVED], data[1][:CURVED])
    laplace = {
        "train": False,
        "structure": "diagonal",
        "tune": "none",
        "batch_size": 100,
        "progress": False,
    }
    bnn = BNN(start.net, "categorical").fit(some, "laplace", **laplace)
    return compress.prune(bnn, "snr", share=1.0 - weights / start.counts[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("file", help="a .credo file of lenet5_caffe")
    parser.add_argument("--weights", type=int, default=1250, help="weights to keep")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--retrain", type=int, default=3, help="epochs after each round")
    parser.add_argument(
        "--finish",
        type=int,
        default=20,
        help="epochs in the end, of the weights and of the shared values",
    )
    parser.add_argument("--levels", type=int, default=12, help="shared values per tensor")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--out", required=True, help="the file to write; a record, .json, is written beside it"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    started, out, cpu = time.perf_counter(), Path(args.out), torch.device("cpu")
    settings = {
        "nets": "lenet5",
        "finish": args.finish,
        "finish_lr": 2e-3,
        "levels": args.levels,
        "files": str(out.parent),
    }
    experiment = make_experiment("sparse_mnist", settings)
    assert isinstance(experiment, LeNets)
    experiment.names()  # refuses a folder that is not there before any work
    digits, net = experiment.digits(cpu), NETS["lenet5"].make()
    pruned = compress.pruned_of(experiment.shifted(compress.decode(args.file, net)))
    bnn, left = BNN(pruned.net, "categorical"), pruned.counts[0]
    if not 1 <= args.weights <= left or args.rounds < 1:
        parser.error(
            f"--weights {args.weights} --rounds {args.rounds}: expected 1 to {left} weights, "
            "those of the file, and at least one round"
        )
    for turn in range(args.rounds):
        count = round(left * (args.weights / left) ** ((turn + 1) / args.rounds))
        pruned = compress.fine_tune(
            fewer(pruned, count, digits.both), bnn, digits.both, args.retrain, seed=args.seed
        )
        print(f"{pruned.counts[0]} weights, {time.perf_counter() - started:.0f} s", flush=True)
    tidy = compress.tidy(experiment.finished(pruned, bnn, digits.both, cpu), digits.test[0][:64])
    told, wrong = experiment.written(
        out.stem, experiment.coded(tidy, digits.both, cpu), net, digits.test
    )
    words = (
        f"--weights {args.weights} --rounds {args.rounds} --retrain {args.retrain} --finish "
        f"{args.finish} --levels {args.levels}"
    )
    record = {
        "command": f"python benchmarks/shrink_file.py {args.file} {words} --seed {args.seed} "
        f"--out {args.out}",
        "weights": tidy.counts[0],
        "error before quantisation %": error(tidy.net, digits.test),
        "error of the file %": wrong,
        "bytes": told.bytes,
        "times smaller than float32": told.ratio,
        "code length + header": told.code_bits / 8 + told.header_bytes,
        "seconds": time.perf_counter() - started,
        "machine": machine(cpu),
    }
    out.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
