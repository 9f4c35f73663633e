"""Comparisons and orders of teams, each of which is the sum of its members."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributions import Cauchy, Distribution, Normal

from setwise._given import Given
from setwise.errors import check_each
from setwise.likelihood import Aggregate, Outcome, SetSizes, Targets, evaluate, likelihood
from setwise.numerics import scatter_sum
from setwise.sets import Sets

__all__ = ["Teams"]


@dataclass(frozen=True)
class Teams(Aggregate):
    """What another aggregate (`Rank`, `Ranking`, `Choice`) says of teams: of the sums Σ wₖZₖ.

    `sizes=(2, 3)`: each set lists the two members of the first team, then the three of the second;
    there may be more teams than two. Without sizes, the signs of the members' weights tell two
    teams apart, of any size in each set: those with positive weights are the first, those with
    negative weights the second, and y = 1 if Σ wₖZₖ > 0. Weights are 1 where there are none; with
    1 over the number of members teams are compared by their means.

    y is that of the inner aggregate, for teams in place of members. Orders of teams are observed as
    levels. Sums of normal and of Cauchy targets have a closed form; other families are not known.

    >>> from setwise import Rank, Sets
    >>> Teams(Rank(), (1, 2)).observe([3.0, 5.0, 1.0], [[1, 0, 2], [0, 1, 2]]).y.tolist()
    [1.0, 0.0]
    >>> signed = Sets([[0, 1], [2, 0, 1]], weights=[[1, -1], [1, 1, -1]])
    >>> Teams(Rank()).observe([3.0, 5.0, 1.0], signed).y.tolist()
    [0.0, 0.0]

    Huang, Weng and Lin, "Generalized Bradley-Terry models and multi-class probability estimates",
    JMLR 2006. Herbrich, Minka and Graepel, "TrueSkill", NeurIPS 2006.
    """

    aggregate: Aggregate
    sizes: Sequence[int] | None = None

    symmetric = False
    not_on_command_line = "teams are compared in Python: Observations(Teams(Rank(), …), …)"

    def __post_init__(self) -> None:
        takes = self.aggregate.set_sizes(Targets())
        if self.sizes is not None:
            sizes = tuple(int(n) for n in self.sizes)
            object.__setattr__(self, "sizes", sizes)
            object.__setattr__(self, "size", sum(sizes))
            if len(sizes) < 2 or min(sizes) < 1:
                raise ValueError(
                    f"sizes are the numbers of members of two teams or more, got {sizes}"
                )
        if not takes.takes(self._number):
            raise ValueError(
                f"{self.aggregate!r} takes sets of {takes}, but there are {self._number} teams: "
                f"give as many sizes"
            )

    @property
    def _number(self) -> int:
        return 2 if self.sizes is None else len(self.sizes)

    def set_sizes(self, targets: Targets) -> SetSizes:
        return SetSizes(2) if self.sizes is None else super().set_sizes(targets)

    def outcome(self, targets: Targets, size: int | None) -> Outcome:
        return self.aggregate.outcome(targets, self._number)

    def check_y(self, sets: Sets, y: Any) -> NDArray[Any] | None:
        self.places(sets)
        return self.aggregate.check(self.teams(sets), y)

    def pointed(self, y: Given, lines: Any, columns: Sequence[str], ids: Container[Any]) -> Given:
        return y  # names of members do not tell teams

    def teams(self, sets: Sets) -> Sets:
        """Sets of teams, which are numbered one after another."""
        return Sets(np.arange(len(sets) * self._number).reshape(len(sets), self._number))

    def places(self, sets: Sets) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The number of each member's team, and the member's weight in it."""
        weights = np.ones(len(sets.indices)) if sets.weights is None else sets.weights
        if self.sizes is not None:
            team = np.tile(np.repeat(np.arange(self._number), self.sizes), len(sets))
        else:
            sides = np.stack([weights > 0, weights < 0], 1)
            of_sets = np.zeros((len(sets), 2), dtype=bool)
            np.logical_or.at(of_sets, sets.set_ids, sides)
            check_each(
                of_sets.all(1),
                lambda at: (
                    f"has only one team: {self!r} needs members of positive and of negative "
                    f"weight, as in Sets([[0, 1, 2]], weights=[[1, 1, -1]]); or give sizes="
                ),
            )
            check_each(weights != 0, lambda at: "has a member of weight 0", sets.set_ids)
            team, weights = (weights < 0).astype(np.int64), np.abs(weights)
        return sets.set_ids * self._number + team, weights

    def totals(self, z: Tensor, sets: Sets, power: int = 1) -> Tensor:
        """Σ wᵖ zₖ of each team, from what is given of each member."""
        team, weights = self.places(sets)
        by = torch.from_numpy(weights**power).to(z)
        at = torch.from_numpy(team).to(z.device)
        return scatter_sum(z * by, at, len(sets) * self._number)

    def apply(self, z: Tensor, sets: Sets, rng: np.random.Generator) -> Any:
        total, teams = self.totals(z.double(), sets), self.teams(sets)
        listed = self.aggregate.arrange(total, teams)
        if listed is teams:
            return self.aggregate.apply(total, teams, rng)
        place = np.empty((len(sets), self._number))
        place.reshape(-1)[listed.indices] = np.tile(np.arange(self._number), len(sets))
        return self.aggregate.check_y(teams, place)

    @classmethod
    def examples(cls, n_classes: int) -> list[Aggregate]:
        from setwise.aggregates.pairs import Rank

        return [cls(Rank(), (1, 2)), cls(Rank(tie_margin=1.0), (2, 1))]


@likelihood(Teams, Normal)
def _normal_teams(aggregate: Teams, distribution: Normal, sets: Sets, y: Any) -> Tensor:
    """The rule of the aggregate for the teams' sums, which are normal."""
    loc = aggregate.totals(distribution.loc, sets)
    scale = aggregate.totals(distribution.scale.square(), sets, 2).sqrt()
    return _of_teams(aggregate, Normal(loc, scale, validate_args=False), sets, y)


@likelihood(Teams, Cauchy)
def _cauchy_teams(aggregate: Teams, distribution: Cauchy, sets: Sets, y: Any) -> Tensor:
    """The rule of the aggregate for the teams' sums, which are Cauchy."""
    loc = aggregate.totals(distribution.loc, sets)
    scale = aggregate.totals(distribution.scale, sets)
    return _of_teams(aggregate, Cauchy(loc, scale, validate_args=False), sets, y)


def _of_teams(aggregate: Teams, teams: Distribution, sets: Sets, y: Any) -> Tensor:
    return evaluate(aggregate.aggregate, teams, aggregate.teams(sets), y)
