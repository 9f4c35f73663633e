"""The command line on data as people have them: texts as labels, ids, and what does not match."""

from __future__ import annotations

import json

import numpy as np
import pytest
from command_line import call, ok

pd = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")

N = 200


def told(line):
    return json.loads(ok(f"{line} --json").stdout)


def mistake(line, *parts):
    result = call(line)
    assert result.exit_code == 2, result.output
    said = result.stderr.strip().splitlines()[-1]
    for part in parts:
        assert part in said, said


@pytest.fixture
def players(tmp_path, monkeypatch):
    """Players with ids, their strength, and games between them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    rng = np.random.default_rng(0)
    names = [f"player {i}" for i in range(N)]
    X = rng.normal(size=(N, 3)).round(3)
    z = X @ [1.0, -2.0, 0.5]
    frame = pd.DataFrame(X, columns=["serve", "age", "speed"]).assign(id=names)
    frame.to_csv("players.csv", index=False)
    frame.assign(strength=z).to_csv("truth.csv", index=False)
    pairs = np.array([rng.choice(N, 2, replace=False) for _ in range(600)])
    gap = z[pairs[:, 0]] - z[pairs[:, 1]] + 0.5 * rng.normal(size=600)
    games = pd.DataFrame(
        {"left": np.take(names, pairs[:, 0]), "right": np.take(names, pairs[:, 1])}
    )
    return games.assign(gap=gap, who=np.where(gap > 0, games.left, games.right))


FIT = "fit players.csv --id id --learner linear --sets games.csv --observe rank --rows-columns"


def order(line="evaluate model truth.csv --truth strength"):
    return told(line)["truth"]["concordance"]


def test_a_file_of_winners_and_losers_needs_no_y(players):
    won = players.gap > 0
    pd.DataFrame(
        {
            "winner_id": np.where(won, players.left, players.right),
            "loser_id": np.where(won, players.right, players.left),
        }
    ).to_csv("games.csv", index=False)
    said = ok(f"{FIT} winner_id,loser_id").output
    assert "without a column of labels: in each set the first is larger" in " ".join(said.split())
    assert "standard deviations" not in said  # the check does not take the order for a surprise
    assert order() > 0.9


@pytest.mark.parametrize(
    ("y", "options"),
    [
        (lambda g: g.who, ""),
        (lambda g: np.where(g.gap > 0, "left", "right"), ""),
        (lambda g: np.where(g.gap > 0, "A", "B"), ""),
        (lambda g: np.where(g.gap > 0, "win", "loss"), ""),
        (lambda g: np.where(g.gap > 0, "yes", "no"), ""),
        (lambda g: np.where(g.gap > 0, "home", "away"), "--positive home"),
        (lambda g: np.where(g.gap > 0, 2, 1), "--positive 2"),
        (lambda g: g.gap > 0, ""),
    ],
)
def test_the_winner_may_be_said_in_many_ways(players, y, options):
    players.assign(result=y(players)).to_csv("games.csv", index=False)
    ok(f"{FIT} left,right --y result {options}")
    assert order() > 0.9


def test_what_is_not_clear_says_which_option_makes_it_so(players):
    players.assign(result=np.where(players.gap > 0, "home", "away")).to_csv(
        "games.csv", index=False
    )
    mistake(f"{FIT} left,right --y result", "what 'home' means is not clear", "--positive home")


def test_a_winner_who_did_not_play_is_named(players):
    players.assign(result=players.left.where(players.index != 4, "p0")).to_csv(
        "games.csv", index=False
    )
    mistake(f"{FIT} left,right --y result", "games.csv, line 6, column result", "in every line")


def test_ties_ask_for_a_margin(players):
    result = np.where(players.gap.abs() < 0.5, "tie", np.where(players.gap > 0, "A", "B"))
    players.assign(result=result).to_csv("games.csv", index=False)
    line = f"{FIT} left,right --y result"
    mistake(line, "games.csv, line", "a tie", "use --observe rank:tie_margin=…")
    ok(line.replace("--observe rank", "--observe rank:tie_margin=0.5"))
    assert order() > 0.9


def test_same_and_different(players):
    z = (pd.read_csv("truth.csv").strength > 0).to_numpy()
    place = {name: i for i, name in enumerate(pd.read_csv("players.csv").id)}
    same = z[players.left.map(place)] == z[players.right.map(place)]
    players.assign(says=np.where(same, "same", "different")).to_csv("games.csv", index=False)
    line = "fit players.csv --id id --learner linear --sets games.csv --observe similarity"
    ok(f"{line} --rows-columns left,right --y says --classes 2")
    pd.read_csv("truth.csv").assign(kind=z.astype(int)).to_csv("truth.csv", index=False)
    found = told("evaluate model truth.csv --truth kind")["truth"]
    assert found["accuracy"] > 0.9
    assert found["of_the_fit"] == 1.0  # the same rows, and the report says so
    assert "these are the rows of the fit" in " ".join(
        ok("evaluate model truth.csv --truth kind").output.split()
    )


def test_class_names_come_from_the_labels(players):
    truth = pd.read_csv("truth.csv")
    kind = np.where(truth.strength > 1, "strong", np.where(truth.strength < -1, "weak", "medium"))
    pd.DataFrame({"who": truth.id, "kind": kind}).iloc[::2].to_csv("few.csv", index=False)
    line = "fit players.csv --id id --learner linear --sets few.csv --observe direct --y kind"
    assert told(f"{line} --rows-columns who")["classes"] == ["medium", "strong", "weak"]
    ok("predict model players.csv --out p.csv")
    found = pd.read_csv("p.csv")
    assert list(found.columns) == ["id", "prediction", "p_medium", "p_strong", "p_weak"]
    assert np.mean(found.prediction == kind) > 0.85
    ordered = f"{line} --rows-columns who --classes weak,medium,strong"
    assert told(ordered)["classes"] == ["weak", "medium", "strong"]
    mistake(f"{line} --rows-columns who --family normal", "--family is about numbers")


def test_slides_of_patients(tmp_path, monkeypatch):
    """Whether a patient is ill, by slides; some patients have no slides, some slides no patient."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(1)
    X = rng.normal(size=(300, 2)).round(3)
    patient = np.array([f"P{i // 5:03d}" for i in range(300)], object)
    ill = pd.Series(X[:, 0] > 1.2).groupby(patient).any()
    slides = pd.DataFrame(X, columns=["dark", "size"]).assign(patient=patient)
    slides.loc[:2, "patient"] = None
    slides.to_csv("slides.csv", index=False)
    labels = pd.DataFrame({"patient": ill.index, "ill": np.where(ill, "yes", "no")})
    labels = pd.concat(
        [labels, labels.iloc[[3]], pd.DataFrame({"patient": ["P999"], "ill": ["no"]})]
    )
    labels.to_csv("patients.csv", index=False)
    line = "fit slides.csv --sets patients.csv --observe any-positive --y ill --group patient"
    found = told(f"{line} --learner linear")
    assert found["classes"] == [0, 1]
    assert found["sets"][0]["remarks"] == [
        "left out: 1 group that is there twice, 3 rows without a group, 1 group without rows"
    ]
    shown = " ".join(ok(f"{line} --learner linear").output.split())
    assert (
        "Note: patients.csv, left out: 1 group that is there twice, 1 group without rows" in shown
    )
    quiet = " ".join(ok(f"{line} --learner linear --on-missing drop").output.split())
    assert "Note: patients" not in quiet
    assert "left out: 1 group that is there twice" in quiet
    mistake(f"{line} --on-missing error", "patients.csv, line", "there twice", "--on-missing drop")
    labels.assign(ill=labels.ill.map({"yes": "ill", "no": "well"})).to_csv(
        "patients.csv", index=False
    )
    mistake(line, "AnyPositive(positive=1): y is", "say which one", "as in --positive ")
    labels.assign(ill="yes").to_csv("patients.csv", index=False)  # two different y for one patient
    changed = pd.concat([labels, pd.DataFrame({"patient": ["P000"], "ill": ["no"]})])
    changed.assign(ill=["yes"] * len(labels) + ["no"]).to_csv("patients.csv", index=False)
    mistake(line, "patients.csv, line 64, column patient", "two different entries for group 'P000'")


def test_a_long_table_may_hold_overlapping_sets_with_counts(players):
    truth = pd.read_csv("truth.csv")
    half = pd.DataFrame({"set": "all", "row": truth.id, "n": 2})
    some = pd.DataFrame({"set": "fast", "row": truth.id[truth.speed > 0], "n": 3})
    groups = [half, some] + [
        pd.DataFrame({"set": f"club {k}", "row": truth.id[k::20], "n": 1}) for k in range(20)
    ]
    members = pd.concat(groups)
    members.to_csv("members.csv", index=False)
    means = members.assign(z=members.row.map(truth.set_index("id").strength))
    y = means.groupby("set").apply(lambda g: np.average(g.z, weights=g.n), include_groups=False)
    y.rename("strength").reset_index().to_csv("means.csv", index=False)
    found = told(
        "fit players.csv --id id --learner linear --sets means.csv --observe mean --y strength "
        "--members members.csv:count=n"
    )
    assert found["sets"][0]["sizes"] == [10, 200]
    assert order() > 0.9


def test_the_outcome_is_said_in_words(players):
    players.assign(result=(players.gap > 0).astype(int)).to_csv("games.csv", index=False)
    shown = " ".join(ok(f"{FIT} left,right --y result").output.split())
    assert "surely better than a constant, by" in shown
    assert "new labels are guessed right; a constant guesses 50%" in shown
    rng = np.random.default_rng(0)
    players.assign(result=rng.integers(0, 2, 600)).to_csv("games.csv", index=False)
    shown = " ".join(ok(f"{FIT} left,right --y result").output.split())
    assert "no better than a constant, as far as" in shown
    told_of = told(f"{FIT} left,right --y result")
    assert "no better" in told_of["verdict"]
    assert told_of["guesses"][0]["what"] == "right"
    shown = " ".join(ok(f"{FIT} left,right --y result --eval 0").output.split())
    assert "no sets were held out, so nobody knows how good it is" in shown


def test_new_rows_are_not_taken_for_those_of_the_fit(players):
    players.assign(result=(players.gap > 0).astype(int)).to_csv("games.csv", index=False)
    ok(f"{FIT} left,right --y result")
    new = pd.read_csv("truth.csv").assign(id=[f"new {i}" for i in range(N)])
    new.to_csv("new.csv", index=False)
    assert told("evaluate model new.csv --truth strength")["truth"]["of_the_fit"] == 0


def test_rows_without_names_are_known_by_their_features(players):
    frame = pd.read_csv("players.csv").drop(columns="id")
    frame.to_csv("rows.csv", index=False)
    place = {name: i for i, name in enumerate(pd.read_csv("players.csv").id)}
    games = players.assign(
        left=players.left.map(place), right=players.right.map(place), y=players.gap > 0
    )
    games.to_csv("games.csv", index=False)
    line = "fit rows.csv --learner linear --sets games.csv --observe rank --y y"
    ok(f"{line} --rows-columns left,right")
    truth = pd.read_csv("truth.csv").drop(columns="id")
    truth.iloc[::-1].to_csv("same.csv", index=False)
    assert told("evaluate model same.csv --truth strength")["truth"]["of_the_fit"] == 1.0
    truth.assign(age=truth.age + 1).to_csv("other.csv", index=False)
    assert told("evaluate model other.csv --truth strength")["truth"]["of_the_fit"] == 0.0


def test_python_and_the_command_line_read_a_file_the_same_way(players):
    import setwise as sw

    players.assign(result=(players.gap > 0).astype(int)).to_csv("games.csv", index=False)
    ok(f"{FIT} left,right --y result")
    ok("predict model players.csv --out p.csv")
    model, rows = sw.load("model"), pd.read_csv("players.csv")
    assert [c.name for c in model.encoder_.columns] == ["serve", "age", "speed"]
    shown = model.predict(rows[model.feature_names_in_])
    np.testing.assert_allclose(shown, pd.read_csv("p.csv").prediction)


def test_a_report_says_what_the_model_is_worth(players, tmp_path):
    pytest.importorskip("matplotlib")
    players.assign(result=(players.gap > 0).astype(int)).to_csv("games.csv", index=False)
    shown = ok(f"{FIT} left,right --y result --report page.html").output
    assert "page.html" in shown
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Is it any good?" in text
    assert "surely better than a constant" in text
    mistake(f"{FIT} left,right --y result --report nowhere/page.html", "there is no folder nowhere")
