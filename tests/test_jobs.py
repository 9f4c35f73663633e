"""The six jobs under examples/: short, from messy tables, and close to what every label gives."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from scipy import sparse

from examples.jobs import shops, table, worlds

FOLDER = Path(table.__file__).parent
LEAST = {"towns": 0.8, "versions": 0.9, "slides": 0.9, "precincts": 0.7, "wines": 0.9, "shops": 0.9}


def test_the_scripts_are_short_and_in_the_table():
    page = table.PAGE.read_text(encoding="utf-8")
    for name in table.JOBS:
        assert len((FOLDER / f"{name}.py").read_text(encoding="utf-8").splitlines()) <= 25
        assert f"| `{name}.py`" in page


@pytest.mark.slow
@pytest.mark.parametrize("name", table.JOBS)
def test_a_job_as_it_stands_reaches_its_figure(name):
    job = table.JOBS[name]
    *tables, new, _, truth = job.world()
    assert job.score(truth, job.script.fit(*tables).predict(new)) > LEAST[name]


@pytest.mark.parametrize("name", table.JOBS)
def test_a_job_runs_with_a_linear_model(name):
    job = table.JOBS[name]
    *tables, new, _, truth = job.world()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        model = job.script.fit(*tables, learner="linear")
    assert not said
    assert job.score(truth, model.predict(new)) > LEAST[name] - 0.1


def test_the_forms_of_a_table_give_one_model():
    baskets, days, takings, new, *_ = worlds.shops()
    made = [pl.DataFrame, pa.table, lambda t: sparse.csr_matrix(np.column_stack(list(t.values())))]
    found = [shops.fit(form(baskets), days, takings).predict(form(new)) for form in made]
    np.testing.assert_allclose(found[0], found[1])
    np.testing.assert_allclose(found[0], found[2], rtol=1e-6)
