"""`setwise kinds`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from setwise.cli.common import Mistake, print_json
from setwise.cli.config import Json
from setwise.cli.names import spelled

__all__ = ["kinds"]

SAMPLE = 64  # sets on which is asked what labels of a kind can tell


def kinds(
    aggregate: Annotated[str, typer.Argument(help="Only this one, or part of its name.")] = "",
    json: Json = False,
) -> None:
    """List what can be observed of a set, how it is computed and what it can tell."""
    found = _kinds(aggregate)
    if not found:
        raise Mistake(f"no observation has {aggregate!r} in its name; `setwise kinds` lists all")
    if json:
        print_json({"kinds": found})
    else:
        _show(found, overview=not aggregate)


def _kinds(part: str) -> list[dict[str, Any]]:
    """Aggregates of such a name with their families: how each pair is computed, what it tells."""
    import setwise.aggregates  # noqa: F401 - so that all are known
    from setwise.distributions import families
    from setwise.likelihood import aggregates, find_rule

    out = []
    for cls in aggregates():
        if spelled(part) not in spelled(cls.__name__):
            continue
        pairs = []
        for name, family in families().items():
            try:
                rule = find_rule(cls, family.distribution)
            except TypeError:
                continue
            told = _identifies(cls, name)
            pairs.append(
                {"family": family.__name__, "how": rule.how, "exact": rule.exact, "tells": told}
            )
        if pairs:
            summary = (cls.__doc__ or "").strip().split("\n")[0]
            y, members = _declared(cls)
            out.append(
                {
                    "aggregate": cls.__name__,
                    "what": summary,
                    "y": y,
                    "members": members,
                    "families": pairs,
                }
            )
    return out


def _declared(cls: Any) -> tuple[str, str]:
    """What y is and how many members a set may have, in words."""
    from setwise.checks.examples import examples
    from setwise.likelihood import Targets

    try:
        made, prefix = [cls()], ""
    except TypeError:  # it depends on what it is made of
        made, prefix = examples(cls, 3), "for example "
    if not made:
        return "as without noise", "as many members as without noise"
    return prefix + made[0].outcome(Targets(), None).words, str(made[0].set_sizes(Targets()))


def _identifies(cls: Any, family: str) -> str | None:
    """How far labels of this kind tell the targets, given enough sets; None where it depends."""
    from setwise.checks.examples import examples
    from setwise.distributions import families, resolve

    kind: Any = families()[family]
    numbers = (2, 3) if family == "categorical" else (0,)
    levels = []
    for n in numbers:
        chosen = kind(n) if n else resolve(family)
        try:
            made = [cls()]
        except TypeError:
            made = examples(cls, n or 3)
            if len(made) < 2:
                return None
        found = {_level(chosen, one) for one in made}
        if len(found) > 1:
            return None
        levels.append(found.pop())
    if len(set(levels)) == 1:
        return levels[0]
    return f"{levels[0]} (two classes), {levels[1]} (more)"


def _level(family: Any, aggregate: Any) -> str:
    import torch

    import setwise as sw
    from setwise.identifiability import identify

    sets = sw.Sets.random(SAMPLE, SAMPLE, aggregate.size or 3, replace=False, seed=0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        raw = torch.zeros(SAMPLE, len(family.outputs))
        z = family(raw, torch.zeros(len(family.shared))).sample()
    return identify(family, [aggregate.observe(z, sets, seed=0)]).level


def _show(found: list[dict[str, Any]], overview: bool) -> None:
    from rich.console import Console
    from rich.markup import escape

    console = Console(highlight=False)
    if overview:
        _overview(console, found)
    for kind in found:
        console.print(f"[bold]{kind['aggregate']}[/]")
        _indented(console, kind["what"])
        _indented(console, f"[dim]y: {escape(kind['y'])}; sets of {kind['members']}[/]")
        ways: dict[tuple[str, bool, str | None], list[str]] = {}
        for pair in kind["families"]:
            way = (pair["how"], pair["exact"], pair["tells"])
            ways.setdefault(way, []).append(pair["family"])
        for (how, exact, tells), names in ways.items():
            _indented(console, f"[cyan]{', '.join(names)}[/]")
            _indented(console, f"{how} [dim]({'exact' if exact else 'numerical'})[/]", 4)
            depends = "what it tells depends on what it is made of"
            _indented(console, f"[dim]{f'tells the targets {tells}' if tells else depends}[/]", 4)
        console.print()


def _indented(console: Any, text: str, by: int = 2) -> None:
    from rich.padding import Padding

    console.print(Padding(text, (0, 0, 0, by), expand=False))


def _short(name: str) -> str:
    """Four letters of a family's name, the last one from its second word.

    >>> _short("NegativeBinomial"), _short("Normal")
    ('NegB', 'Norm')
    """
    capitals = [i for i, letter in enumerate(name) if letter.isupper()]
    return name[:3] + name[capitals[1]] if len(capitals) > 1 else name[:4]


def _overview(console: Any, found: list[dict[str, Any]]) -> None:
    """The matrix of aggregates and families."""
    from rich.table import Table

    names = list(dict.fromkeys(p["family"] for kind in found for p in kind["families"]))
    shown = Table(box=None, padding=(0, 1, 0, 0), header_style="cyan")
    shown.add_column("")
    for name in names:
        shown.add_column(_short(name), justify="center")
    for kind in found:
        marks = {p["family"]: "●" if p["exact"] else "○" for p in kind["families"]}
        shown.add_row(f"[bold]{kind['aggregate']}[/]", *(marks.get(n, "[dim]·[/]") for n in names))
    console.print(shown)
    n = sum(len(kind["families"]) for kind in found)
    console.print(f"\n● exact   ○ numerical   · not known   [dim]{n} pairs in all[/]\n")
