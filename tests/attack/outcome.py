"""What a case is, and how many of them went well."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = ["Case", "Tally"]


class Case(NamedTuple):
    """One attempt: which part it belongs to, what came of it, and whether that is as promised."""

    part: str
    outcome: str
    good: bool
    told: str = ""  # how to repeat it, and what was said


@dataclass
class Tally:
    """Outcomes counted by part."""

    counts: dict[str, Counter[str]] = field(default_factory=dict)
    bad: list[Case] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    def add(self, case: Case) -> None:
        """Counts a case."""
        self.counts.setdefault(case.part, Counter())[case.outcome] += 1
        if not case.good:
            self.bad.append(case)

    def __str__(self) -> str:
        lines = []
        for part, found in self.counts.items():
            wrong = sum(case.part == part for case in self.bad)
            lines.append(f"{part:34} {sum(found.values()):6} cases {wrong:4} bad")
            lines += [f"    {name:40} {count:6}" for name, count in sorted(found.items())]
        return "\n".join([*lines, f"{len(self.bad)} bad"])
