"""Which networks to average in the tables of classes: `python -m benchmarks.mixes [DEVICE [SETS]]`.

Eight networks learn side by side, ten trials of each set, from pairs and from triplets; every mix
of them is then averaged as the tables of classes do with `--setting best`. Prints accuracies in %,
and their means; "weights" is the mix of all eight with weights that lose least of the held-out
sets. SETS are names with commas between; decision 16 has the figures of all of them on CUDA.
"""

from __future__ import annotations

import sys
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from reproduction import classification
from reproduction.batched import Sample
from reproduction.classification import Found, average
from reproduction.runner import Cell

SETS = (
    "adult,ayi,codrna,custrev,image,isolet,magic,mpqa,phishing,phoneme,ringnorm,rt-polarity,"
    "satimage,spambase,splice,subj,twonorm,vehicle"
)
EIGHT = (  # dropout, decay, ranks
    (0.0, 0.03, True),
    (0.1, 0.03, False),
    (0.2, 0.03, False),
    (0.2, 0.3, False),
    (0.4, 0.3, True),
    (0.6, 1.0, False),
    (0.6, 1.0, True),
    (0.4, 0.3, False),
)
MIXES = (
    *("0125", "012345", "012356", "012357", "012456", "012457", "013456", "013457", "013567"),
    *("014567", "023457", "024567", "034567", "123457"),
    *("0123456", "0123457", "0123567", "01234567"),
)


def weighted(held: Tensor, test: Tensor, score: Tensor, loss: Any, seen: Sample) -> Found:
    """As `average`, with weights that minimise the loss of the held-out sets."""
    order = score.argsort().tolist()
    known, new = [held[order[0]]], [test[order[0]]]
    for r in order[1:]:
        names = classification.agreeing(sum(known[1:], known[0]), held[r])
        known.append(held[r][:, names])
        new.append(test[r][:, names])
    free = torch.zeros(len(order), device=held.device, requires_grad=True)
    solver = torch.optim.LBFGS([free], max_iter=15, line_search_fn="strong_wolfe")

    def lost() -> Tensor:
        solver.zero_grad()
        mean = torch.einsum("r,rnk->nk", free.softmax(0), torch.stack(known))
        out: Tensor = loss(
            mean.clamp_min(1e-30).log()[seen.members][None], seen.y[None], score
        ).sum()
        out.backward()
        return out

    last = solver.step(lost).detach()
    out = torch.einsum("r,rnk->nk", free.detach().softmax(0), torch.stack(new))
    return Found(out.argmax(-1).cpu().numpy(), "", float(last))


def accuracies(name: str, method: str, device: str) -> dict[str, float]:
    """Of each mix, the mean of ten trials."""
    found: dict[str, list[Found]] = {mix: [] for mix in (*MIXES, "weights")}

    def every(held: Tensor, test: Tensor, score: Tensor, *rest: Any) -> Found:
        for mix in MIXES:
            part = [int(r) for r in mix]
            found[mix].append(average(held[part], test[part], score[part], *rest))
        found["weights"].append(weighted(held, test, score, *rest))
        return found[MIXES[0]][-1]

    cells = [Cell(name, method, "best", trial) for trial in range(10)]
    with patch.multiple(classification, NETWORKS=EIGHT, average=every):
        classification.work_many(cells, device)
    data = classification.prepare(name, tuple(range(10)), device)
    z = data.z[:, data.cuts[1] :]
    history = classification.History(z, ())
    results = {m: classification.as_results(cells, z, f, 0.0, history) for m, f in found.items()}
    return {mix: float(np.mean([r.value for r in rs])) for mix, rs in results.items()}


def main() -> None:
    """All of it."""
    device, names = (sys.argv[1:] + ["cpu", SETS][len(sys.argv) - 1 :])[:2]
    console, rows = Console(width=200), []
    for name in names.split(","):
        for method in ("similarity_mle", "triplet_mle"):
            rows.append(accuracies(name, method, device))
            each = "  ".join(f"{mix} {value:.2f}" for mix, value in rows[-1].items())
            console.print(f"{name} {method}: {each}")
    for mix in rows[0]:
        console.print(f"{mix}: {np.mean([row[mix] for row in rows]):.2f}")


if __name__ == "__main__":
    main()
