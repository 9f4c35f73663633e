"""Writes the table of five sets of bags into docs/tutorials/musk.md: `python -m benchmarks.bags`.

It reads what `python -m benchmarks.defaults bags` has measured; a figure of fewer than ten folds
is left out.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks import defaults

PAGE = Path(__file__).parents[1] / "docs" / "tutorials" / "musk.md"
BEGIN = "<!-- What follows is written by `python -m benchmarks.bags`. -->\n"
END = "<!-- End of what is written. -->\n"
NAMES = ("musk1", "musk2", "fox", "tiger", "elephant")
OURS = {"auto": '`learner="auto"`, the default', "linear": "`Linear()`"}
OURS |= {"lightgbm": "`LightGBM()`", "network": "`Network()`"}
# Ilse, Tomczak & Welling (2018), Attention-based deep multiple instance learning, table 1: five
# times ten folds; the SVM is that of Andrews and others (2002), the networks of Wang and others
# (2018) and their own.
PUBLISHED = {
    "mi-SVM": (0.874, 0.836, 0.582, 0.784, 0.822),
    "mi-Net": (0.889, 0.858, 0.613, 0.824, 0.858),
    "attention": (0.892, 0.858, 0.615, 0.839, 0.868),
}


def table(found: dict[defaults.Fit, defaults.Found]) -> str:
    """Ours with the standard errors of ten folds, and what others have published."""
    cells = defaults.means(found)
    lines = ["| | MUSK1 | MUSK2 | fox | tiger | elephant |", "|---|---|---|---|---|---|"]
    for learner, name in OURS.items():
        row = [cells.get((data, "bags"), {}).get(learner, ()) for data in NAMES]
        if any(len(values) == 10 for values in row):
            shown = [ours(values) if len(values) == 10 else "" for values in row]
            lines.append(f"| {name} | " + " | ".join(shown) + " |")
    for name, figures in PUBLISHED.items():
        lines.append(f"| {name}, published | " + " | ".join(f"{v:.3f}" for v in figures) + " |")
    return "\n".join(lines) + "\n"


def ours(values: defaults.np.ndarray) -> str:
    """The mean of ten folds and its standard error."""
    return f"{values.mean():.3f} ± {values.std(ddof=1) / 10**0.5:.3f}"


def publish(text: str, page: Path = PAGE) -> None:
    """Puts the table between its marks."""
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    page.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")


def main() -> None:
    """Reads the folder of results and writes the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bags")
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder of results")
    publish(table(defaults.read(parser.parse_args().out / "defaults-bags.csv")))


if __name__ == "__main__":
    main()
