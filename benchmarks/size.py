"""Lines of `src/setwise` by package: `python -m benchmarks.size [revision]`.

Without a revision, of the files as they are.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parent.parent
SOURCE = "src/setwise"
KINDS = ("code", "docstrings", "comments", "blank")
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def lines(text: str) -> Counter[str]:
    """The lines of a file by kind."""
    documented = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            first = node.body[0]
            documented |= set(range(first.lineno, (first.end_lineno or 0) + 1))
    found: Counter[str] = Counter()
    for number, line in enumerate(text.splitlines(), 1):
        if number in documented:
            found["docstrings"] += 1
        elif not line.strip():
            found["blank"] += 1
        else:
            found["comments" if line.lstrip().startswith("#") else "code"] += 1
    return found


def files(revision: str | None) -> dict[str, str]:
    """The texts of the Python files, by their paths in the package."""
    if revision is None:
        here = ROOT / SOURCE
        return {
            p.relative_to(here).as_posix(): p.read_text(encoding="utf-8")
            for p in here.rglob("*.py")
        }
    listed = _git("ls-tree", "-r", "--name-only", revision, SOURCE).split()
    return {
        str(PurePosixPath(name).relative_to(SOURCE)): _git("show", f"{revision}:{name}")
        for name in listed
        if name.endswith(".py")
    }


def _git(*words: str) -> str:
    done = subprocess.run(
        ["git", *words], cwd=ROOT, check=True, capture_output=True, encoding="utf-8"
    )
    return done.stdout


def by_package(revision: str | None = None) -> dict[str, Counter[str]]:
    """The lines of each package; modules beside the packages together."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for name, text in files(revision).items():
        package = name.split("/")[0] if "/" in name else "beside packages"
        found[package] += lines(text)
    return dict(sorted(found.items(), key=lambda item: -item[1].total()))


def main() -> None:
    found = by_package(sys.argv[1] if len(sys.argv) > 1 else None)
    print(f"{'':18}{'lines':>8}" + "".join(f"{kind:>12}" for kind in KINDS))
    for name, each in [*found.items(), ("all", sum(found.values(), Counter()))]:
        print(f"{name:18}{each.total():>8}" + "".join(f"{each[kind]:>12}" for kind in KINDS))


if __name__ == "__main__":
    main()
