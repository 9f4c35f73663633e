"""What to fit, from options or from one YAML or TOML file."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from setwise.cli.common import Mistake, split
from setwise.cli.names import value

__all__ = ["Command", "FitSpec", "SetsSpec", "read_config", "sets_specs"]

# A wrong date or a number of thousands of digits is a ValueError, and so are letters of no code.
UNREADABLE = (OSError, ValueError, RecursionError)
MEMBERSHIP = ("group", "members", "rows_columns")
# What a configuration may give for a field, by the field's type.
ACCEPTED: dict[str, Any] = {
    "str": str, "Path": str, "Path | None": str, "list[str]": (str, int, list),
    "dict[str, Any]": dict, "float": (int, float), "int": int,
}  # fmt: skip


@dataclass
class SetsSpec:
    """One file of sets: what was observed of them, and which rows each one holds."""

    file: Path
    observe: str = ""
    y: list[str] = field(default_factory=list)
    group: list[str] = field(default_factory=list)
    members: str = ""
    rows_columns: list[str] = field(default_factory=list)
    weight: str = ""
    noise: str = ""
    effect: str = ""
    positive: str = ""

    def check(self) -> None:
        """Raises unless the observation and its rows are each given exactly once."""
        if not self.observe:
            raise Mistake(f"say what was observed of the sets of {self.file}, as in --observe mean")
        given = [name for name in MEMBERSHIP if getattr(self, name)]
        if len(given) != 1:
            said = " and ".join(f"--{name.replace('_', '-')}" for name in given) or "none of them"
            raise Mistake(
                f"say which rows the sets of {self.file} hold, with one of --group, --members and "
                f"--rows-columns; got {said}"
            )


@dataclass
class FitSpec:
    """All options of `setwise fit`."""

    rows: Path | None = None
    sets: list[SetsSpec] = field(default_factory=list)
    out: Path = Path("model")
    id: str = ""
    features: list[str] = field(default_factory=list)
    drop: list[str] = field(default_factory=list)
    categories: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    on_missing: str = ""
    classes: list[str] = field(default_factory=list)
    family: str = ""
    learner: str = "auto"
    set: dict[str, Any] = field(default_factory=dict)
    eval: float = 0.2
    memory: str = ""
    seed: int = 0

    def update(self, options: Mapping[str, Any]) -> None:
        """Options given on the command line replace those of the file."""
        if options["learner"]:  # the file's options are those of the file's learner
            self.set = {}
        self.set |= _learner_options(options["set"] or ())
        for f in fields(self):
            given = options.get(f.name)
            if f.name != "set" and given not in (None, "", []):
                setattr(self, f.name, split(given) if f.type == "list[str]" else given)


# ---- one file for everything


def read_config(path: Path) -> FitSpec:
    """The specification in a YAML or TOML file; its paths are relative to that file."""
    if not path.is_file():
        raise Mistake(f"{path}: there is no such file")
    if path.suffix.lower() == ".toml":
        try:
            found: Any = tomllib.loads(path.read_text(encoding="utf-8"))
        except UNREADABLE as error:
            raise Mistake(f"{path}: this is not valid TOML: {error}") from None
    elif path.suffix.lower() in (".yaml", ".yml"):
        found = _yaml(path)
    else:
        raise Mistake(f"{path}: the name of a configuration ends in .yaml, .yml or .toml")
    if not isinstance(found, dict):
        raise Mistake(f"{path}: expected names and values, as in `rows: rows.csv`")
    listed = found.pop("sets", [])
    if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
        raise Mistake(f"{path}: `sets` is a list of files, each with `file`, `observe`, `y`, …")
    made = FitSpec(**_checked(FitSpec, found, path))
    for i, one in enumerate(listed):
        if "file" not in one:
            raise Mistake(f"{path}: number {i + 1} of `sets` has no `file`")
        made.sets.append(SetsSpec(**_checked(SetsSpec, one, path)))
    return made


def _yaml(path: Path) -> Any:
    try:
        import yaml  # type: ignore[import-untyped, unused-ignore]
    except ImportError:
        raise Mistake("YAML needs PyYAML: pip install pyyaml, or write the file in TOML") from None
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, *UNREADABLE) as error:
        raise Mistake(f"{path}: this is not valid YAML: {error}") from None


def _checked(cls: type, found: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The values found, checked and converted to the types of the fields."""
    kinds = {f.name: str(f.type) for f in fields(cls)}
    out: dict[str, Any] = {}
    for given, content in found.items():
        name = str(given).replace("-", "_")
        if name not in kinds:
            known = ", ".join(n.replace("_", "-") for n in kinds)
            raise Mistake(f"{path}: unknown name {given!r}; known are {known}")
        out[name] = _coerced(kinds[name], name, content, path)
    return out


def _coerced(kind: str, name: str, content: Any, path: Path) -> Any:
    if isinstance(content, bool) or not isinstance(content, ACCEPTED[kind]):
        raise Mistake(f"{path}: `{name}` is of type {type(content).__name__}, expected {kind}")
    if kind.startswith("Path"):
        return path.parent / content
    if name == "members":
        return str(path.parent / content)
    if kind == "list[str]":
        return [str(v) for v in content] if isinstance(content, list) else split(str(content))
    return float(content) if kind == "float" else content


# ---- options that belong to one file of sets


class Command(TyperCommand):
    """A command that remembers the order of its options: those after a --sets belong to it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keeps the options as given, before they are sorted by name."""
        ctx.meta["order"] = [a.partition("=")[0] for a in args if a.startswith("--")]
        return super().parse_args(ctx, args)


def sets_specs(order: Sequence[str], options: Mapping[str, Any]) -> list[SetsSpec]:
    """For each --sets file the options that follow it.

    Options before the first --sets hold for every file that does not say otherwise.

    >>> order = ["--sets", "--observe", "--sets", "--observe"]
    >>> options = {"sets": ["a.csv", "b.csv"], "observe": ["mean", "rank"]}
    >>> [(str(s.file), s.observe) for s in sets_specs(order, options)]
    [('a.csv', 'mean'), ('b.csv', 'rank')]
    """
    types = {f.name: f.type for f in fields(SetsSpec)}
    waiting = {name: iter(options.get(name) or ()) for name in types}
    common: dict[str, Any] = {}
    own: list[dict[str, Any]] = []
    for option in order:
        name = option.removeprefix("--").replace("-", "_")
        if name == "sets":
            own.append({})
        elif name in waiting:
            target = own[-1] if own else common
            if name in target:
                raise Mistake(f"{option} is given twice for one --sets")
            content = next(waiting[name])
            target[name] = split(content) if types[name] == "list[str]" else content
    if common and not own:
        raise Mistake(
            f"--{next(iter(common)).replace('_', '-')} is about sets: give --sets as well"
        )
    made = []
    for file, mine in zip(options["sets"] or (), own, strict=True):
        settled = any(name in mine for name in MEMBERSHIP)
        rest = {k: v for k, v in common.items() if not (settled and k in MEMBERSHIP)}
        made.append(SetsSpec(Path(file), **{**rest, **mine}))
    return made


def _learner_options(given: Sequence[str]) -> dict[str, Any]:
    """Options of the learner from texts such as n_estimators=300."""
    out = {}
    for text in given:
        name, equals, content = text.partition("=")
        if not equals or not name.strip():
            raise Mistake(f"--set {text}: expected name=value, as in --set n_estimators=300")
        out[name.strip()] = value(content)
    return out


# ---- the options that `fit` and `evaluate` share

SetsFiles = Annotated[
    list[Path] | None,
    typer.Option("--sets", help="File of sets, one per line; may be given several times."),
]
Observe = Annotated[
    list[str] | None,
    typer.Option(help="What was observed: mean, rank:tie_margin=0.5, … (see setwise kinds)."),
]
Y = Annotated[list[str] | None, typer.Option(help="Column(s) of the sets file with the label.")]
Group = Annotated[
    list[str] | None, typer.Option(help="Column of both files: rows with a value are that set.")
]
Members = Annotated[
    list[str] | None,
    typer.Option(help="File with a line per member: m.csv or m.csv:set=bag,row=id,weight=w."),
]
RowsColumns = Annotated[
    list[str] | None, typer.Option(help="Columns of the sets file that name the members: a,b,c.")
]
Weight = Annotated[list[str] | None, typer.Option(help="Column of the sets file: a set's weight.")]
Noise = Annotated[
    list[str] | None, typer.Option(help="Noise on the labels: flip=0.1, normal=2 or laplace=0.5.")
]
Effect = Annotated[
    list[str] | None, typer.Option(help="Members of a set are alike: learned, or how much: 0.6.")
]
Positive = Annotated[
    list[str] | None, typer.Option(help="Which of two labels stands for yes: ill, same, model_a.")
]
OnMissing = Annotated[
    str,
    typer.Option(help="What matches nothing (rows without a group, …): drop (default) or error."),
]
Id = Annotated[str, typer.Option(help="Column of the rows file that names a row; else 0, 1, 2, …")]
Trusted = Annotated[
    bool, typer.Option("--trusted", help="Read files of the model that cannot be checked.")
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object instead of words.")]
