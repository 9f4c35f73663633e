"""What the image table costs and reaches: `python -m benchmarks.images --device cuda`.

Each line is one method on one data set with the paper's schedule: how long the trials took
together and each, beginning and recording included, and the accuracy of each. The device is warmed
up before by a short run that is not counted. `--trials 1` times a single run, `--trials 10` what a
cell of the table costs.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace

import torch
from rich.console import Console
from rich.table import Table

import setwise as sw
from reproduction import images
from reproduction.runner import Cell


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--datasets", default=",".join(sw.datasets.names("images")))
    parser.add_argument("--methods", default="triplet_mle,triplet_mle_three_way,similarity_mle")
    parser.add_argument("--setting", default="protocol", choices=tuple(images.PLAN))
    parser.add_argument("--trials", type=int, default=1)
    given = parser.parse_args(arguments)
    shown = Table(title=f"images, {given.setting}, {given.trials} trial(s), {given.device}")
    for column in ("data set", "method", "seconds", "seconds a trial", "accuracy, %"):
        shown.add_column(column)
    for name in given.datasets.split(","):
        for method in given.methods.split(","):
            cells = [Cell(name, method, given.setting, trial) for trial in range(given.trials)]
            warm_up(cells, given.device)
            begin = time.perf_counter()
            results = images.work_many(cells, given.device)
            seconds = time.perf_counter() - begin
            values = " ".join(f"{r.value:.2f}" + ("*" if r.note else "") for r in results)
            shown.add_row(name, method, f"{seconds:.2f}", f"{seconds / len(cells):.2f}", values)
    Console().print(shown, "* collapsed and begun again")


def warm_up(cells: Sequence[Cell], device: str) -> None:
    """On CUDA a run of few sets: loads libraries and chooses the convolutions."""
    if device != "cuda":
        return
    (dataset, method, setting), trials = images.common(cells), [c.trial for c in cells]
    data, plan = images.prepare(dataset, device), images.PLAN[setting]
    few = data._replace(
        table=torch.cat([data.table[:2000], data.table[-100:]]), z=data.z[:2100], train=2000
    )
    images.PLAN[setting] = replace(plan, epochs=1)
    try:
        images.learn(few, images.METHODS[method], setting, trials)
    finally:
        images.PLAN[setting] = plan
    torch.cuda.synchronize()


if __name__ == "__main__":
    main()
