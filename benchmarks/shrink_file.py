"""A stored LeNet-5 with fewer weights still: ``python benchmarks/shrink_file.py FILE.credo --weights 1150 --out OUT.credo``.

Weights of least size go in rounds, with training on MNIST's 60,000 training images after each; then the network is quantised and written like those
of ``credo reproduce sparse_mnist``. How many weights stay is said beforehand and nothing is chosen on the way, so that no images are held out; the
test images are looked at once, in the end.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch

from credo import compress
from credo.bnn import BNN
from credo.experiments import make_experiment
from credo.experiments.lenets import NETS, LeNets, error
from credo.experiments.outcome import machine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("file", help="a .credo file of lenet5_caffe")
    parser.add_argument("--weights", type=int, default=1150, help="weights to keep")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--retrain", type=int, default=3, help="epochs after each round")
    parser.add_argument("--finish", type=int, default=30, help="epochs in the end, of the weights and of the shared values")
    parser.add_argument("--levels", type=int, default=16, help="shared values per tensor")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", required=True, help="the file to write; a record, .json, is written beside it")
    args = parser.parse_args()
    torch.set_num_threads(1)
    started, out = time.perf_counter(), Path(args.out)
    settings = {"nets": "lenet5", "finish": args.finish, "finish_lr": 2e-3, "levels": args.levels, "files": str(out.parent)}
    experiment, cpu = make_experiment("sparse_mnist", settings), torch.device("cpu")
    assert isinstance(experiment, LeNets)
    digits, net = experiment.digits(cpu), NETS["lenet5"].make()
    start = compress.pruned_of(experiment.shifted(compress.decode(args.file, net)))
    bnn, left = BNN(start.net, "categorical"), start.counts[0]
    shares = [turn / args.rounds for turn in range(args.rounds + 1)]  # the first trains only: shared values are all alike in size
    counts = [round(left * (args.weights / left) ** share) for share in shares]
    pruned = start
    for pruned in compress.shrink(start, bnn, digits.both, counts, args.retrain, seed=args.seed):
        print(f"{pruned.counts[0]} weights, {time.perf_counter() - started:.0f} s", flush=True)
    tidy = compress.tidy(experiment.finished(pruned, bnn, digits.both, cpu), digits.test[0][:64])
    told, wrong = experiment.written(out.stem, experiment.coded(tidy, digits.both, cpu), net, digits.test)
    record = {
        "command": f"python benchmarks/shrink_file.py {args.file} --weights {args.weights} --rounds {args.rounds} --retrain {args.retrain} "
        f"--finish {args.finish} --levels {args.levels} --seed {args.seed} --out {args.out}",
        "weights": tidy.counts[0],
        "error before quantisation %": error(tidy.net, digits.test),
        "error of the file %": wrong,
        "bytes": told.bytes,
        "times smaller than float32": told.ratio,
        "code length + header": told.code_bits / 8 + told.header_bytes,
        "seconds": time.perf_counter() - started,
        "machine": machine(cpu),
    }  # fmt: skip
    out.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
