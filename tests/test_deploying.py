"""The web service of docs/deploying.md answers as the model does."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest

import setwise as sw
from docs.pictures import DOCS

pytest.importorskip("httpx")
testclient = pytest.importorskip("fastapi.testclient")

APP = re.search(
    r'^```py title="app.py"\n(.*?)^```', (DOCS / "deploying.md").read_text("utf-8"), re.S | re.M
)


def test_the_service_of_the_page(tmp_path, monkeypatch):
    assert APP is not None
    assert len([line for line in APP[1].splitlines() if line]) <= 15
    rng = np.random.default_rng(0)
    people = pd.DataFrame({"age": rng.normal(40, 9, 300), "years_of_school": np.arange(300) % 9})
    people.loc[::20, "age"] = np.nan
    means = sw.Mean().observe(people["age"].fillna(40), np.arange(300).reshape(-1, 3))
    model = sw.AggregateRegressor(learner="linear", random_state=0, verbose=0).fit(people, means)
    model.save(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    space = {"__name__": "app"}
    exec(compile(APP[1], "app.py", "exec", dont_inherit=True), space)
    client = testclient.TestClient(space["app"])
    rows = [{"age": 30.5, "years_of_school": 3}, {"years_of_school": 8}]
    for some in (rows, rows[1:]):  # in the second one every age is missing
        answer = client.post("/predict", json=some)
        assert answer.status_code == 200
        wanted = model.predict(pd.DataFrame(some, columns=people.columns, dtype=float))
        np.testing.assert_allclose(answer.json(), wanted)
    wrong = client.post("/predict", json=[{"age": "old", "years_of_school": 1}])
    assert wrong.status_code == 422
    assert "age" in wrong.text
