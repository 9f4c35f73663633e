"""How the house is built: what its files may name, and how long they may be."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import setwise as sw
from setwise.likelihood import aggregates

ROOT = Path(__file__).parent.parent
SOURCE = Path(sw.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))
OURS = {cls.__name__ for cls in aggregates() if cls.__module__.startswith("setwise.")}
# tables of examples and the demonstration show aggregates by name
TABLES = ("checks/examples.py", "cli/demo", "datasets")


def _ours(module: str) -> bool:
    return module == "setwise" or module.startswith("setwise.aggregates")


def named(tree: ast.AST) -> set[str]:
    """What a file imports from the aggregates or asks the package for; texts do not count."""
    out, packages = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            packages |= {a.asname or "setwise" for a in node.names if a.name.startswith("setwise")}
        elif isinstance(node, ast.ImportFrom) and _ours(node.module or ""):
            out |= {a.name for a in node.names}
            packages |= {a.asname or a.name for a in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            base = node.value
            while isinstance(base, ast.Attribute):
                base = base.value
            if getattr(base, "id", None) in packages:
                out.add(node.attr)
    return out


def test_names_are_found():
    code = "import setwise as sw\nfrom setwise import aggregates as A\n{}"
    for text in ("sw.Rank()", "A.Rank", "sw.aggregates.Rank", "from setwise import Rank as R"):
        assert "Rank" in named(ast.parse(code.format(text))), text
    assert "Rank" not in named(ast.parse(code.format("Rank = 'Rank'")))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_files_are_short(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 400


@pytest.mark.parametrize(
    "path",
    [
        path
        for path in FILES
        if path.name != "__init__.py"
        and path.parent.name != "aggregates"
        and not str(path.relative_to(SOURCE)).startswith(TABLES)
    ],
    ids=lambda path: str(path.relative_to(SOURCE)),
)
def test_only_aggregates_name_aggregates(path):
    found = named(ast.parse(path.read_text(encoding="utf-8"))) & OURS
    assert not found, f"{path} names {found}: declare what it asks as a fact of the aggregate"


def test_a_rule_is_registered_once():
    def register():
        @sw.likelihood(Twice, sw.Normal.distribution)
        def rule(aggregate, distribution, sets, y):
            """Nothing."""

    class Twice(sw.Aggregate):
        def apply(self, z, sets, rng):
            return z

    register()
    register()  # the same lines again, as when a module is loaded anew
    with pytest.raises(ValueError, match=r"exists already: .*test_house.py:\d+ and .*:\d+ both"):

        @sw.likelihood(Twice, sw.Normal.distribution)
        def other(aggregate, distribution, sets, y):
            """Nothing else."""


def test_the_architecture_page_has_every_package():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    first = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    listed = re.findall(r"`(\w+)`", " ".join(first))
    names = {p.stem for p in SOURCE.glob("*.py")} | {p.parent.name for p in SOURCE.glob("*/*.py")}
    ours = {name for name in names if name == "_math" or not name.startswith("_")}
    assert sorted(listed) == sorted(ours)


def test_the_changelog_begins_with_this_version():
    """A release is refused where it does not."""
    version = re.search(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.M)
    first = re.search(r"^## \[(.*?)\]", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert version
    assert first
    assert first[1] == version[1]
