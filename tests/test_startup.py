"""Importing the package, and asking the command line for help, loads nothing that is heavy."""

import subprocess
import sys

import pytest

import setwise as sw

HEAVY = ("torch", "sklearn", "lightgbm", "scipy", "pandas", "matplotlib", "numpy")


def loaded(code):
    """Which heavy packages a new interpreter has loaded after running this code."""
    code += f"\nimport sys\nprint('loaded', *(m for m in {HEAVY} if m in sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return run.stdout.splitlines()[-1].split()[1:]


def test_the_import_is_light():
    assert loaded("import setwise; setwise.__version__; dir(setwise)") == []


@pytest.mark.parametrize(
    "words", ["--help", "--version", "fit --help", "predict --help", "evaluate --help"]
)
def test_help_is_light(words):
    code = f"from setwise.cli import app\ntry: app({words.split()})\nexcept SystemExit: pass"
    assert loaded(code) == []


def test_what_only_some_need_is_loaded_when_asked_for():
    code = "import setwise\nsetwise.AggregateRegressor, setwise.Linear, setwise.Max\n"
    assert "matplotlib" not in loaded(code)
    code += "import sys; assert not {f'setwise.{m}' for m in ('checks', 'plots', 'datasets')} & "
    assert loaded(code + "set(sys.modules)")


def test_every_public_name_is_there():
    for name in sw.__all__:
        assert getattr(sw, name) is getattr(sw, name), name
    assert set(sw.__all__) <= set(dir(sw))
    with pytest.raises(AttributeError, match="has no attribute 'Maxx'"):
        sw.Maxx  # noqa: B018


@pytest.mark.parametrize(
    "code",
    [
        "from setwise.likelihood import find_rule\nfrom torch.distributions import Normal\n"
        "from setwise.aggregates.order_statistics import Max\nfind_rule(Max, Normal)",
        "from setwise.likelihood import rules\nassert len(rules()) > 50",
        "from setwise.likelihood import aggregates\nassert len(aggregates()) > 20",
        "import setwise.likelihood\nimport setwise\nassert setwise.likelihood.__name__ == "
        "'likelihood' and callable(setwise.likelihood)",
        "from setwise import *\nMax, AggregateRegressor, plots",
    ],
)
def test_whatever_is_imported_first(code):
    subprocess.run([sys.executable, "-c", code], check=True)


def test_functions_that_mention_the_package_travel_to_other_processes():
    # What runs as a script or in a notebook is pickled by value, the modules it mentions by name.
    cloudpickle = pytest.importorskip("cloudpickle")
    assert cloudpickle.loads(cloudpickle.dumps(sw)) is sw
