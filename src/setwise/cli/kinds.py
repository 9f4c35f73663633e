"""`setwise kinds`."""

from __future__ import annotations

from rich.console import Console

from setwise.distributions import families
from setwise.likelihood import aggregates, find_rule

__all__ = ["kinds"]


def kinds() -> None:
    """List every aggregate and how its likelihood is computed for each family."""
    console = Console()
    for cls in aggregates():
        ways: dict[tuple[str, bool], list[str]] = {}
        for family in families().values():
            try:
                rule = find_rule(cls, family.distribution)
            except TypeError:
                continue
            ways.setdefault((rule.how, rule.exact), []).append(family.__name__)
        if not ways:
            continue
        summary = (cls.__doc__ or "").strip().split("\n")[0]
        console.print(f"[bold]{cls.__name__}[/]  {summary}")
        for (how, exact), names in ways.items():
            mark = "exact" if exact else "numerical"
            console.print(
                f"    [cyan]{', '.join(names)}[/]: {how} [dim]({mark})[/]", highlight=False
            )
