"""Builds the packages and checks them as a stranger would meet them: `make dist`.

The source package must hold every file that belongs to it, the wheel every file of the library and
nothing else. twine judges the metadata. At last the wheel is installed, without extras, into a new
environment, where the example of the README, `setwise kinds` and `setwise demo` must run.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
APART = (".ci/", ".github/")  # of no use outside the repository


def main() -> None:
    """Builds into dist/ and checks what is there."""
    version = (ROOT / "pyproject.toml").read_text(encoding="utf-8").split('\nversion = "')[1]
    version = version.partition('"')[0]
    for name in ("src/setwise/__init__.py", "CITATION.cff"):
        if version not in (ROOT / name).read_text(encoding="utf-8"):
            sys.exit(f"{name} does not name version {version} of pyproject.toml")
    dist = ROOT / "dist"
    for old in dist.glob("setwise-*"):
        old.unlink()
    os.environ.setdefault("PIP_CONSTRAINT", str(ROOT / "constraints.txt"))
    run(sys.executable, "-m", "build", "--outdir", dist, ROOT)
    (source,), (wheel,) = dist.glob("*.tar.gz"), dist.glob("*.whl")
    check_source(source, f"setwise-{version}/")
    check_wheel(wheel)
    run(sys.executable, "-m", "twine", "check", "--strict", source, wheel)
    with tempfile.TemporaryDirectory() as folder:
        try_out(wheel, Path(folder))
    print(f"{source.name} and {wheel.name} are as they should be")


def run(*command: str | Path, **options: object) -> str:
    """Runs a command, which must succeed; returns what it printed."""
    print("$", *(Path(part).name if Path(part).is_absolute() else part for part in command))
    done = subprocess.run([*map(str, command)], text=True, stdout=subprocess.PIPE, **options)  # type: ignore[call-overload]
    if done.returncode:
        sys.exit(f"{done.stdout}\nfailed with status {done.returncode}")
    return str(done.stdout)


def tracked() -> set[str]:
    """The files under version control, or new and not ignored."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    found = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=True).stdout
    return {name for name in found.splitlines() if (ROOT / name).is_file()}


def check_source(path: Path, top: str) -> None:
    """Exits unless the source package is complete."""
    with tarfile.open(path) as archive:
        packed = {name.removeprefix(top) for name in archive.getnames()}
    missing = {name for name in tracked() if not name.startswith(APART)} - packed
    if missing:
        sys.exit(f"{path.name} misses {sorted(missing)}")


def check_wheel(path: Path) -> None:
    """Exits unless the wheel holds the library, its notes, and nothing else."""
    with zipfile.ZipFile(path) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    wanted = {n.removeprefix("src/") for n in tracked() if n.startswith("src/setwise/")}
    if packed != wanted:
        sys.exit(f"{path.name} differs from src/ in {sorted(packed ^ wanted)}")


def try_out(wheel: Path, folder: Path) -> None:
    """Installs the wheel into a new environment and runs what a newcomer runs first."""
    venv.create(folder / "env", with_pip=True)
    here = folder / "env" / ("Scripts" if os.name == "nt" else "bin")
    run(here / "python", "-m", "pip", "install", "--quiet", wheel)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    example = re.search(r"^```python\n(.*?)^```", readme, re.DOTALL | re.MULTILINE)
    assert example is not None
    print(run(here / "python", "-W", "error", "-c", example[1], cwd=folder))
    kinds = run(here / "setwise", "kinds", cwd=folder)
    table = run(here / "setwise", "demo", "--quick", cwd=folder)
    if "Uncoupled" not in kinds or "every" not in table:
        sys.exit(f"kinds and demo do not print their tables:\n{kinds}\n{table}")


if __name__ == "__main__":
    main()
