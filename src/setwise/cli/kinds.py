"""`setwise kinds`."""

from __future__ import annotations

from collections import defaultdict
from typing import Annotated, Any

import typer

from setwise._subclasses import spelled
from setwise.cli.common import Mistake, as_json
from setwise.cli.config import Json

__all__ = ["kinds"]

SAMPLE = 64  # sets, and rows, to find out what labels of a kind identify


def kinds(
    aggregate: Annotated[str, typer.Argument(help="Only this one, or part of its name.")] = "",
    json: Json = False,
) -> None:
    """List what can be observed of a set, how it is computed and what it can tell."""
    found = _kinds(aggregate)
    if not found:
        raise Mistake(f"no observation has {aggregate!r} in its name; `setwise kinds` lists all")
    if json:
        typer.echo(as_json({"kinds": found}))
    else:
        _show(found, overview=not aggregate)


def _kinds(part: str) -> list[dict[str, Any]]:
    """Aggregates with `part` in their name: for each family how it is computed, what it tells."""
    from setwise.checks.examples import has_rule
    from setwise.distributions import families
    from setwise.likelihood import aggregates, find_rule

    out = []
    for cls in aggregates():
        known = [f for f in families().values() if has_rule(cls, f)]
        if spelled(part) not in spelled(cls.__name__) or not known:
            continue
        rules = [find_rule(cls, f.distribution) for f in known]
        y, members = _declared(cls)
        out.append(
            {
                "aggregate": cls.__name__,
                "what": (cls.__doc__ or "").strip().split("\n")[0],
                "y": y,
                "members": members,
                "families": [
                    {"family": f.__name__, "how": rule.how, "exact": rule.exact,
                     "tells": _identifies(cls, f)}
                    for f, rule in zip(known, rules, strict=True)
                ],
            }
        )  # fmt: skip
    return out


def _declared(cls: Any) -> tuple[str, str]:
    """What y is and how many members a set may have, in words."""
    from setwise.likelihood import Targets

    made, alone = _examples(cls, 3)
    if not made:
        return "as of the aggregate inside", "as many members as that takes"
    words = made[0].outcome(Targets(), None).words
    return words if alone else f"for example {words}", str(made[0].set_sizes(Targets()))


def _examples(cls: Any, n_classes: int) -> tuple[list[Any], bool]:
    """Aggregates of this class, and whether there is only one, made without arguments."""
    from setwise.checks.examples import examples

    try:
        return [cls()], True
    except TypeError:
        return examples(cls, n_classes), False


def _identifies(cls: Any, family: Any) -> str | None:
    """How far labels of this kind identify the targets; None where it depends on arguments."""
    from setwise.distributions import Categorical, resolve

    levels = []
    for n in (2, 3) if family is Categorical else (3,):
        chosen = Categorical(n) if family is Categorical else resolve(family.__name__)
        made, alone = _examples(cls, n)
        found = {_level(chosen, one) for one in made}
        if len(found) != 1 or (len(made) < 2 and not alone):
            return None
        levels.append(found.pop())
    if len(set(levels)) == 1:
        return levels[0]
    return f"{levels[0]} (two classes), {levels[1]} (more)"


def _level(family: Any, aggregate: Any) -> str:
    import torch

    import setwise as sw
    from setwise.checks.examples import simulate
    from setwise.identifiability import identify

    sets = sw.Sets.random(SAMPLE, SAMPLE, aggregate.size or 3, replace=False, seed=0)
    d = family(torch.zeros(SAMPLE, len(family.outputs)), torch.zeros(len(family.shared)))
    z = simulate(family, d, 1, seed=0)[0]
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
        ways = defaultdict(list)
        for pair in kind["families"]:
            ways[pair["how"], pair["exact"], pair["tells"]].append(pair["family"])
        for (how, exact, tells), names in ways.items():
            _indented(console, f"[cyan]{', '.join(names)}[/]")
            _indented(console, f"{how} [dim]({'exact' if exact else 'numerical'})[/]", 4)
            depends = "how far it determines the targets depends on its arguments"
            _indented(
                console, f"[dim]{f'determines the targets {tells}' if tells else depends}[/]", 4
            )
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
