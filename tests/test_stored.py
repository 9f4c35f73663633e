"""Rows in files are learned from as rows in memory are."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import setwise as sw
from setwise.stored import FileRows, Ranges
from setwise.stored.files import bytes_of

N, SIZE = 3000, 5
MEMORY = 200_000  # bytes, of which a part takes a thirty-second: several parts


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(0)
    out = pd.DataFrame({
        "area": np.repeat([f"a{i}" for i in range(N // SIZE)], SIZE),
        "x": rng.integers(0, 32, N) / 32,
        "y": rng.normal(size=N),
        "job": rng.choice(["clerk", "doctor", "nurse"], N),
        "retired": rng.random(N) < 0.3,
    })  # fmt: skip
    out.loc[::9, "y"] = np.nan
    return out


@pytest.fixture(scope="module")
def z(frame):
    noise = np.random.default_rng(1).normal(size=N)
    return (2 * frame.x + frame.y.fillna(0) + (frame.job == "nurse") + noise).to_numpy()


def written(folder, frame, kind="parquet", n=3):
    for i, rows in enumerate(np.array_split(np.arange(len(frame)), n)):
        part = frame.iloc[rows]
        if kind == "parquet":
            part.to_parquet(folder / f"{i}.parquet", row_group_size=400)
        elif kind == "csv":
            part.to_csv(folder / f"{i}.csv", index=False)
        else:
            part.reset_index(drop=True).to_feather(folder / f"{i}.feather")
    return sw.Files(folder, memory=MEMORY, scratch=folder)


@pytest.fixture
def rows(tmp_path, frame):
    return written(tmp_path, frame)


def fitted(X, observations, learner, family="normal", **more):
    options = {"learner": learner, "random_state": 0, "verbose": 0, "validation": None, **more}
    return sw.AggregateRegressor(family, **options).fit(X, observations)


def means(labels, frame, z):
    return sw.Observations.from_groups(sw.Mean(), labels, pd.Series(z).groupby(frame.area).mean())


# ---- tables


@pytest.mark.parametrize("kind", ["parquet", "csv", "feather"])
def test_columns_are_read_as_those_of_a_frame(tmp_path, frame, kind):
    rows = written(tmp_path, frame, kind)
    assert rows.shape == frame.shape
    table = FileRows(rows)
    known = sw.Encoder.of(frame)
    assert table.encoder.facts() == known.facts()
    whole = known.encode(frame)
    found = np.concatenate([batch.values for batch in table.batches()])
    np.testing.assert_allclose(found, whole.values, atol=1e-12)
    mean, deviation = table.moments()
    np.testing.assert_allclose(mean, whole.dense().mean(0), atol=1e-12)
    np.testing.assert_allclose(deviation, whole.dense().std(0), atol=1e-12)
    some = np.array([2999, 3, 1500, 3])
    np.testing.assert_allclose(table.take(some).values, whole.values[some])
    np.testing.assert_allclose(table.only(np.array([5, 2000])).take(np.array([1])).values,
                               whole.values[[2000]])  # fmt: skip


def test_columns_may_be_chosen_and_dropped(rows):
    assert rows.drop("area", "y").names == ["x", "job", "retired"]
    assert rows[["job", "x"]].names == ["job", "x"]
    assert rows["job"].to_pylist()[:2] == rows.read()["job"].to_pylist()[:2]
    with pytest.raises(ValueError, match="has no column 'z'; it has"):
        rows.drop("z")
    with pytest.raises(ValueError, match="has no column 'z'"):
        rows["z"]


def test_categories_by_name_and_texts_that_mean_nothing(tmp_path):
    pd.DataFrame({"zone": [1, 2, 1, 3], "x": ["1.5", "?", "2", "3"]}).to_csv(
        tmp_path / "r.csv", index=False
    )
    rows = sw.Files(tmp_path, categories=["zone"], missing=["?"])
    zone, x = FileRows(rows).encoder.columns
    assert (zone.kind, x.kind) == ("category", "number")
    assert zone.categories == ("1", "2", "3")


def test_whole_numbers_at_first_and_others_later(tmp_path):
    n = 400_000  # more than pyarrow looks at to find the type of a column
    pd.DataFrame({"x": [1] * n + [0.5]}).to_csv(tmp_path / "r.csv", index=False)
    assert FileRows(sw.Files(tmp_path / "r.csv")).moments()[0] == pytest.approx((n + 0.5) / (n + 1))


@pytest.mark.parametrize("separator", [";", "\t"])
def test_separators(tmp_path, separator):
    pd.DataFrame({"a": [1.5, 2], "b": ["u", "v"]}).to_csv(
        tmp_path / "r.csv", index=False, sep=separator
    )
    assert sw.Files(tmp_path / "*.csv").names == ["a", "b"]


def test_folders_that_name_a_column(tmp_path):
    table = pa.table({"year": ["2023", "2024", "2024"], "x": [1.0, 2.0, 3.0]})
    pq.write_to_dataset(table, tmp_path, partition_cols=["year"])
    rows = sw.Files(tmp_path)
    assert sorted(rows.names) == ["x", "year"]
    assert rows["year"].sets().sizes.tolist() == [1, 2]


def test_files_that_are_no_table(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such file, or no table in it"):
        sw.Files(tmp_path)
    (tmp_path / "a.csv").write_text("x\n1\n")
    (tmp_path / "b.parquet").write_text("")
    with pytest.raises(ValueError, match=r"files of one format .*\.csv.*parquet"):
        sw.Files(tmp_path)
    with pytest.raises(ValueError, match='memory is a number of bytes, or a text such as "2GB"'):
        bytes_of("2 apples")


@pytest.mark.parametrize("text", ["area;x\na;1\n", "area\na\n"])
def test_a_file_that_lacks_a_column_is_not_read_as_missing_values(tmp_path, text):
    (tmp_path / "0.csv").write_text("area,x\na,1\n")
    (tmp_path / "1.csv").write_text(text)
    rows = sw.Files(tmp_path)
    for told in (lambda: rows["x"].to_numpy(), rows.read, lambda: FileRows(rows)):
        with pytest.raises(ValueError, match=r"1\.csv has no column '(x|area)', which the files"):
            told()
    (tmp_path / "1.csv").write_text("")
    with pytest.raises(ValueError, match=r"1\.csv: the file is empty"):
        sw.Files(tmp_path)


def test_columns_that_a_model_needs(rows, frame, z):
    model = fitted(rows[["x", "y"]], means(rows["area"], frame, z), "linear")
    with pytest.raises(ValueError, match=r"no column 'y', which the model was fitted with; it has"):
        model.predict(rows[["x", "job"]])


# ---- sets


def test_groups_that_follow_one_another_take_two_numbers_each(rows, frame, z):
    sets = sw.Sets.from_groups(rows["area"])
    assert isinstance(sets, Ranges)
    here = sw.Sets.from_groups(frame.area)
    assert sets.names.tolist() == here.names.tolist()
    seen = means(rows["area"], frame, z)
    assert "indices" not in seen.sets.__dict__
    assert np.array_equal(seen.sets.indices, here.indices)


def test_groups_in_any_order(tmp_path, frame, z):
    mixed = frame.sample(frac=1, random_state=0).reset_index(drop=True)
    rows = written(tmp_path, mixed)
    here, there = sw.Sets.from_groups(mixed.area), sw.Sets.from_groups(rows["area"])
    assert np.array_equal(here.indices, there.indices)
    assert here.names.tolist() == there.names.tolist()


def test_groups_without_y_and_rows_without_group(tmp_path):
    table = pd.DataFrame({"g": ["a", "a", None, "b", "b", "c"], "x": range(6)})
    table.to_parquet(tmp_path / "r.parquet")
    rows, y = sw.Files(tmp_path), {"a": 1.0, "c": 3.0}
    here = sw.Observations.from_groups(sw.Mean(), table.g, y)
    there = sw.Observations.from_groups(sw.Mean(), rows["g"], y)
    assert here.left_out == there.left_out
    assert there.left_out
    assert there.sets.indices.tolist() == here.sets.indices.tolist() == [0, 1, 5]
    assert there.y.tolist() == here.y.tolist()
    with pytest.raises(ValueError, match="row 2 has no group label"):
        sw.Sets.from_groups(rows["g"])


# ---- the same models

FAMILIES = {
    "normal": (sw.Normal(), sw.Mean()),
    "a scale for each row": (sw.Normal(scale="predicted"), sw.Mean()),
    "counts": (sw.Poisson(), sw.Sum()),
    "the largest": (sw.Gumbel(), sw.Max()),
    "noisy": (sw.Normal(), sw.Noisy(sw.Mean(), normal=0.5)),
}


@pytest.mark.parametrize("case", FAMILIES)
@pytest.mark.parametrize("alpha", [0.0, 5.0])
def test_linear(rows, frame, z, case, alpha):
    family, aggregate = FAMILIES[case]
    targets = np.random.default_rng(0).poisson(np.exp(z / 4)) if case == "counts" else z
    y = aggregate.observe(targets, np.arange(N).reshape(-1, SIZE), seed=0).y
    learner = sw.Linear(alpha, tol=1e-8)
    labels = dict(zip(frame.area.unique(), y, strict=True))
    here = fitted(
        frame.drop(columns="area"),
        sw.Observations.from_groups(aggregate, frame.area, labels), learner, family,
    )  # fmt: skip
    there = fitted(
        rows.drop("area"),
        sw.Observations.from_groups(aggregate, rows["area"], labels), learner, family,
    )  # fmt: skip
    tolerance = 1e-8 if case in ("normal", "noisy") else 1e-7  # that of Newton's method
    np.testing.assert_allclose(there.model_.coef, here.model_.coef, atol=tolerance)
    np.testing.assert_allclose(there.model_.penalty, here.model_.penalty, rtol=1e-6)
    np.testing.assert_allclose(there.shared_, here.shared_, atol=tolerance)
    assert there.encoder_.facts() == here.encoder_.facts()
    assert "independent: rows are read in parts" in there.overlap_


@pytest.mark.parametrize("learner", [sw.XGBoost(n_estimators=10), sw.LightGBM(n_estimators=10)])
@pytest.mark.parametrize("validation", [None, "auto"])
def test_trees(rows, frame, z, learner, validation):
    here = fitted(frame.drop(columns="area"), means(frame.area, frame, z), learner)
    there = fitted(rows.drop("area"), means(rows["area"], frame, z), learner, validation=validation)
    X = frame.drop(columns="area")
    if validation is None:
        assert np.array_equal(there.predict(X), here.predict(X))
    else:
        assert there.validation_ == "rows"
        assert np.corrcoef(there.predict(X), here.predict(X))[0, 1] > 0.9


def test_trees_leave_rows_out_that_no_set_names(rows, frame, z):
    some = means(frame.area, frame, z).take(slice(100, 300))
    learner = sw.LightGBM(n_estimators=5)
    here = fitted(frame.drop(columns="area"), some, learner)
    there = fitted(rows.drop("area"), some, learner)
    X = frame.drop(columns="area")
    assert np.array_equal(there.predict(X), here.predict(X))


def test_network(rows, frame, z):
    learner = sw.Network(hidden=[16], epochs=30, lr=0.01)
    here = fitted(frame.drop(columns="area"), means(frame.area, frame, z), learner)
    there = fitted(rows.drop("area"), means(rows["area"], frame, z), learner)
    one, two = here.predict(frame.drop(columns="area")), there.predict(rows.drop("area"))
    assert np.corrcoef(one, two)[0, 1] > 0.97
    assert there.score(rows.drop("area"), means(rows["area"], frame, z)) == pytest.approx(
        here.score(frame.drop(columns="area"), means(frame.area, frame, z)), abs=0.05
    )


PAIRS = sw.Sets.random(N, 4000, 2, seed=0)


@pytest.mark.parametrize(
    "learner", [sw.Linear(tol=1e-9), sw.XGBoost(n_estimators=8), sw.LightGBM(n_estimators=8)]
)
def test_row_numbers_and_several_kinds(rows, frame, z, learner):
    both = [
        sw.Rank().observe(z, PAIRS),
        sw.Direct().observe(z, np.arange(0, N, 300)[:, None]),
    ]
    here = fitted(frame.drop(columns="area"), both, learner, overlap="independent")
    there = fitted(rows.drop("area"), both, learner)
    named = frame.iloc[np.unique(PAIRS.indices)]
    np.testing.assert_allclose(
        there.predict(named.drop(columns="area")), here.predict(named.drop(columns="area")),
        atol=1e-6,
    )  # fmt: skip


def test_a_membership_table(tmp_path, rows, frame, z):
    sets = sw.Sets.random(N, 300, (2, 6), seed=0)
    pd.DataFrame({"bag": sets.set_ids, "row": sets.indices}).to_parquet(tmp_path / "m.pq")
    table = sw.Files(tmp_path / "m.pq")
    found = sw.Sets.from_frame(table, set="bag", row="row")
    assert np.array_equal(found.indices, sets.indices)
    assert np.array_equal(found.offsets, sets.offsets)


def test_whole_numbers_of_csv_files_name_sets_and_rows(tmp_path):
    bags = [2**60, 2**60 + 1, 2**60]  # as floating-point numbers they would be the same
    table = pd.DataFrame({"bag": bags, "row": [4, 0, 5], "weight": [1.0, 2.0, 0.5]})
    table.to_csv(tmp_path / "m.csv", index=False)
    found = sw.Sets.from_frame(sw.Files(tmp_path / "m.csv"), row="row", weight="weight")
    assert found.indices.tolist() == [4, 5, 0]
    assert found.names.tolist() == sw.Files(tmp_path)["bag"].sets().names.tolist() == bags[:2]
    (tmp_path / "m.csv").write_text("x\n" + "1\n" * 400_000 + "0.5\n")
    assert sw.Files(tmp_path)[["x"]].read()["x"].to_pylist()[-1] == 0.5


def test_the_index_of_a_frame_is_no_column(tmp_path):
    pd.DataFrame({"x": [1, 2, 3]}).drop(index=1).to_parquet(tmp_path / "r.parquet")
    assert sw.Files(tmp_path).names == ["x"]


def test_classes(rows, frame, z):
    labels = frame.job.map({"clerk": 0, "doctor": 1, "nurse": 2}).to_numpy()
    groups = np.arange(N).reshape(-1, SIZE)
    seen = sw.Counts().observe(labels, groups)
    kept = {"learner": "linear", "verbose": 0, "random_state": 0, "validation": None}
    here = sw.AggregateClassifier(3, **kept).fit(frame.drop(columns="area"), seen)
    there = sw.AggregateClassifier(3, **kept).fit(rows.drop("area"), seen)
    assert (there.predict(rows.drop("area")) == labels).mean() > 0.99
    np.testing.assert_allclose(there.model_.coef, here.model_.coef, atol=1e-4)


def test_held_out_sets_choose(rows, frame, z):
    seen = means(rows["area"], frame, z)
    there = fitted(rows.drop("area"), seen, "auto", validation="auto")
    tried = [row["learner"] for row in there.leaderboard_]
    assert {name.partition("(")[0] for name in tried} >= {"Linear", "LightGBM", "Network", "Blend"}
    assert there.validation_ == "rows"
    assert there.held_out_score_ > there.constant_score_
    assert there.data_["in_sets"] == N


def test_ensembles_draw_sets_again(rows, frame, z):
    seen = means(rows["area"], frame, z)
    model = fitted(rows.drop("area"), seen, sw.Ensemble("linear", n=4))
    assert np.corrcoef(model.predict(rows.drop("area")), z)[0, 1] > 0.7
    assert (model.predict(frame.iloc[:5].drop(columns="area"), return_std=True)[1] > 0).all()


# ---- afterwards


def test_predictions(rows, frame, z, tmp_path):
    seen = means(rows["area"], frame, z)
    X = rows.drop("area")
    model = fitted(X, seen, "linear")
    whole = frame.drop(columns="area")
    np.testing.assert_allclose(model.predict(X), model.predict(whole))
    for sets in (seen.sets, PAIRS):
        for aggregate in (sw.Mean(), sw.Max()):
            np.testing.assert_allclose(
                model.predict_aggregate(X, sets, aggregate),
                model.predict_aggregate(whole, sets, aggregate),
                atol=0.2 if aggregate == sw.Max() else 1e-9,
            )
    assert model.score(X, seen) == pytest.approx(model.score(whole, seen))
    assert model.diagnose(X, seen) == []
    model.save(tmp_path / "model")
    again = sw.load(tmp_path / "model")
    np.testing.assert_allclose(again.predict(X), model.predict(X))
    assert "Linear" in str(model.summary())
    with pytest.raises(ValueError, match="standard errors need the rows"):
        model.predict(whole, return_std=True)


def test_unknown_categories_count_as_missing(rows, frame, z, tmp_path):
    model = fitted(rows.drop("area"), means(rows["area"], frame, z), "linear")
    new = frame.head(10).drop(columns="area").assign(job="pilot")
    (tmp_path / "new").mkdir()
    new.to_parquet(tmp_path / "new" / "r.parquet")
    with pytest.warns(UserWarning, match="10 values of column 'job' are categories that the fit"):
        found = model.predict(sw.Files(tmp_path / "new"))
    with pytest.warns(UserWarning, match="10 values"):
        np.testing.assert_allclose(found, model.predict(new))


def test_what_needs_rows_in_memory_says_so(rows, frame, z):
    seen = means(rows["area"], frame, z)
    with pytest.raises(TypeError, match=r"CatBoost\(\) needs rows in memory: read them first"):
        fitted(rows.drop("area"), seen, "catboost")
    with pytest.raises(ValueError, match="overlap='joint' needs rows in memory"):
        fitted(rows.drop("area"), seen, "linear", overlap="joint")


def test_folds_of_rows_in_files(rows, frame, z):
    linear = sw.AggregateRegressor(learner=sw.Linear(1.0), verbose=0, validation=None)
    validate, whole = sw.model_selection.cross_validate, frame.drop(columns="area")
    here = validate(linear, whole, means(frame.area, frame, z), cv=2)
    there = validate(linear, rows.drop("area"), means(rows["area"], frame, z), cv=2)
    np.testing.assert_allclose(there["test_score"], here["test_score"], rtol=1e-6)


def test_pictures_of_rows_in_files_need_some_in_memory(rows, frame, z, tmp_path):
    X, seen = rows.drop("area"), means(rows["area"], frame, z)
    model = fitted(X, seen, "linear")
    for told in (
        lambda: model.permutation_importance(X, seen),
        lambda: model.report(tmp_path / "page.html", X, seen),
    ):
        with pytest.raises(TypeError, match=r"rows in memory are expected here, got Files.*X.read"):
            told()
    assert model.permutation_importance(X.read(), seen, n_repeats=1).importances_mean.shape == (4,)


def test_copies_are_gone_after_a_fit(rows, frame, z, tmp_path):
    for learner in ("linear", sw.XGBoost(n_estimators=3)):
        fitted(rows.drop("area"), means(rows["area"], frame, z), learner)
    import gc

    gc.collect()
    assert not [*tmp_path.glob("setwise-*")]
