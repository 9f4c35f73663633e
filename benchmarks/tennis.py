"""Strengths of 1 096 tennis players from the first half of all matches: `-m benchmarks.tennis`.

ATP matches since 2010 in order of time. Predicted are those of the second half whose players are
known. Log losses of a coin are 0.693. The penalty is one of those that are written down (the best
of them is only known afterwards), or it is chosen by matches held out at random, or by the last
half or fifth of the first half, with the spread of the noise; then all of the first half is learned
from. With a half-life, a match counts for less the longer ago it is; it and the noise are chosen by
the same held-out matches, where the last line says "chosen".
"""

from __future__ import annotations

import time
from typing import Any

import choix
import numpy as np
from rich.console import Console
from rich.table import Table
from scipy import sparse

import setwise as sw

console = Console()
HALF_LIVES = (None, 2.0, 1.0)  # years


def matches() -> tuple[Any, Any, Any, Any]:
    """Winners and losers to learn from and to predict, when the former were, and the players."""
    frame = sw.datasets.load("atp-matches", frame=True).frame
    frame = frame.sort_values("tourney_date", kind="stable")
    day = frame["tourney_date"].to_numpy().astype(int)
    years = day // 10000 + (day // 100 % 100) / 12 + (day % 100) / 365
    names = [frame[c].to_numpy(dtype=str) for c in ("winner_name", "loser_name")]
    early = np.arange(len(day)) < len(day) // 2
    players = np.unique(np.concatenate([name[early] for name in names]))
    known = np.logical_and(*(np.isin(name, players) for name in names))
    pairs = np.searchsorted(players, np.stack(names, 1)[known])
    return pairs[early[known]], pairs[~early[known]], years[known & early], players


def won(pairs: Any, weight: Any = None) -> sw.Observations:
    """The first of each pair won."""
    return sw.Observations(sw.Rank(), pairs, np.ones(len(pairs)), weight)


def main() -> None:
    """The table, and the same answer and the time beside choix."""
    train, test, when, players = matches()
    who = sparse.identity(len(players), format="csr")
    console.print(f"{len(players)} players, {len(train)} matches, {len(test)} to predict")
    shown = Table("noise", "penalty", "half-life", "held out", "log loss", "CPU s")

    def add(model: Any, how: str, half_life: float | None, score: str, began: float) -> None:
        loss = -model.score(who, won(test))
        shown.add_row(
            model.distribution, how, "none" if half_life is None else f"{half_life:g} years", score,
            f"{loss:.4f}", f"{time.process_time() - began:.1f}",
        )  # fmt: skip

    for alpha in (100.0, 1e3, 3e3, 1e4, 3e4, 5e4, 1e5):
        began = time.process_time()
        learner = sw.Linear(alpha=alpha)
        model = sw.AggregateRegressor("gumbel", learner, validation=None, verbose=0)
        add(model.fit(who, won(train)), f"{alpha:g}", None, "none", began)
    began = time.process_time()
    model = sw.AggregateRegressor("gumbel", "linear", random_state=0, verbose=0)
    model.fit(who, won(train))
    add(model, f"{model.learner_.alpha:g} by chance", None, _score(model), began)
    found = []
    for share in (0.8, 0.5):
        cut = int(share * len(train))
        for noise in ("gumbel", "cauchy"):
            for half_life in HALF_LIVES:
                began = time.process_time()
                model = sw.AggregateRegressor(noise, "linear", random_state=0, verbose=0)
                weight = _weight(when[:cut], half_life)
                model.fit(who, won(train[:cut], weight), eval=(who, won(train[cut:])))
                score = _score(model)
                model.refit(who, won(train, _weight(when, half_life)))
                add(model, f"{model.learner_.alpha:g} by time", half_life, score, began)
                found.append((share, float(score), noise, half_life, -model.score(who, won(test))))
    console.print(shown)
    for share in (0.8, 0.5):
        best = min(line for line in found if line[0] == share)
        console.print(f"chosen by the last {1 - share:.0%}: {best[2:4]}, log loss {best[4]:.4f}")
    _beside_choix(who, train, len(players))


def _weight(when: Any, half_life: float | None) -> Any:
    return None if half_life is None else 0.5 ** ((when[-1] - when) / half_life)


def _score(model: Any) -> str:
    return f"{-model.held_out_score_:.4f}"


def _beside_choix(who: Any, train: Any, n: int) -> None:
    alpha = 1000.0
    began = time.process_time()
    model = sw.AggregateRegressor("gumbel", sw.Linear(alpha=alpha), validation=None, verbose=0)
    ours = model.fit(who, won(train)).predict(who)
    between = time.process_time()
    theirs = choix.opt_pairwise(n, train.tolist(), alpha=alpha * (n - 1) / (2 * n**2))
    end = time.process_time()
    gap = np.abs((ours - ours.mean()) - (theirs - theirs.mean())).max()
    console.print(
        f"alpha={alpha:g}: largest difference to choix at alpha · (n − 1) / 2n² {gap:.1e}; CPU "
        f"seconds {between - began:.2f}, choix {end - between:.2f}"
    )


if __name__ == "__main__":
    main()
