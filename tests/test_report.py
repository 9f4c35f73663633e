"""The report of a model and the pages it is made of."""

from __future__ import annotations

import html as markup
import re
import shutil
import subprocess

import numpy as np
import pandas
import pytest
from sklearn.exceptions import NotFittedError

import setwise as sw
from setwise.report.page import Cell, Table, Tiles, render, write

pytest.importorskip("matplotlib")
RNG = np.random.default_rng(0)
X = pandas.DataFrame(RNG.normal(size=(120, 3)), columns=["age", "<b>weight</b>", "a_long_name" * 9])
Z = 1 + X["age"].to_numpy() * 2 + 0.5 * RNG.normal(size=120)
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


@pytest.fixture(scope="module")
def kinds():
    """Sets to learn from and sets to judge by, of two kinds each."""
    pairs = sw.Sets.random(120, 90, 2, replace=False, seed=1)
    means = sw.Mean().observe(Z, sw.Sets.random(120, 90, (2, 5), seed=0))
    ranks = sw.Rank().observe(Z, pairs)
    first, last = np.arange(60), np.arange(60, 90)
    return [o.take(first) for o in (means, ranks)], [o.take(last) for o in (means, ranks)]


@pytest.fixture(scope="module")
def model(kinds):
    learner = sw.LightGBM(n_estimators=15, num_leaves=4, min_child_samples=5, num_threads=1)
    est = sw.AggregateRegressor(learner=learner, random_state=0, validation=None, verbose=0)
    return est.fit(X, kinds[0], eval=(X, kinds[1]))


@pytest.fixture(scope="module")
def written(model, kinds, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "model.html"
    made = model.report(path, X, kinds[0], eval=(X, kinds[1]), truth=(X, Z), title="Weights & ages")
    assert made == path
    return path


def test_the_report_has_every_part(written, model, kinds):
    text = written.read_text(encoding="utf-8")
    assert "<h1>Weights &amp; ages</h1>" in text
    titles = re.findall(r"<h2>(.*?)</h2>", text)
    assert titles == [
        "In short", "Data", "Likelihood", "Calibration", "What the labels tell",
        "Rows whose targets are known", "Features", "What held-out sets say against it",
        "How it was made",
    ]  # fmt: skip
    for sentence in str(model.check(X, kinds[1])).split("\n"):
        assert markup.escape(sentence) in text
    assert f"{model.score(X, kinds[1], profile=True):.4f}".replace("-", "−") in text
    assert f"lightgbm {__import__('lightgbm').__version__}" in text


def test_it_opens_with_what_a_reader_asks_first(written, model, kinds, tmp_path):
    text = written.read_text(encoding="utf-8")
    opening = re.search(r"<h2>In short</h2>(.*?)</section>", text, re.S)[1]
    for words in (
        "<b>Is it any good?</b> It is surely better than a constant, by 60 held-out sets.",
        "Mean(): y of new sets is guessed to within",
        "Rank(tie_margin=0.0): ",
        "new labels are guessed right; a constant guesses 50%",
        "Of pairs of individuals with known targets it puts",
        "<b>For whom?</b> For rows like these 120, all but",
        "Its predictions for nine in ten of them lie between",
        "<b>What can it not know?</b> In principle nothing",
    ):
        assert words in opening, words
    bare = model.report(tmp_path / "bare.html").read_text(encoding="utf-8")
    assert "By the sets that the fit held out, it is surely better than a constant." in bare
    alone = sw.AggregateRegressor("normal", "linear", validation=None, verbose=0)
    text = alone.fit(X, kinds[0][1]).report(tmp_path / "x.html", X, kinds[0][1]).read_text()
    assert "Nobody knows: no sets were held out" in text
    assert "lie between" not in text  # ranks alone have no unit
    assert "Set labels tell targets up to an affine map." in text


def test_names_from_the_data_are_only_text(written):
    text = written.read_text(encoding="utf-8")
    assert "<b>weight</b>" not in text
    assert "&lt;b&gt;weight&lt;/b&gt;" in text


def test_nothing_outside_is_asked_for(written):
    text = written.read_text(encoding="utf-8")
    assert not re.search(r'(?:src|href)="(?!data:|#)', text)
    assert "url(http" not in text
    assert "@import" not in text
    assert "<script" not in text
    assert "default-src 'none'" in text


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
@pytest.mark.parametrize("width", [320, 390, 1200])
def test_the_page_is_not_wider_than_the_screen(written, width, tmp_path):
    """In a frame of that width, as a window of Chromium cannot be narrower than 500."""
    text = markup.escape(written.read_text(encoding="utf-8"))
    outer = tmp_path / "outer.html"
    outer.write_text(
        f'<iframe srcdoc="{text}" style="width:{width}px; height:900px; border:0" onload="'
        f"let e = this.contentDocument.documentElement;"
        f"document.body.append('[' + e.scrollWidth + ' of ' + e.clientWidth + ']')\"></iframe>",
        encoding="utf-8",
    )
    shown = subprocess.run(
        [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom",
         "--virtual-time-budget=2000", f"--user-data-dir={tmp_path / 'profile'}",
         "--window-size=1400,1000", outer.as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    ).stdout  # fmt: skip
    found = re.search(r"\[(\d+) of (\d+)\]", shown)
    assert found, shown[-300:]
    content, frame = map(int, found.groups())
    assert width - 20 <= frame <= width
    assert content <= frame


def test_without_data_the_report_says_what_is_missing(model, tmp_path):
    text = model.report(tmp_path / "bare.html").read_text(encoding="utf-8")
    assert "The data were not given" in text
    assert "During the fit the best mean log-likelihood of held-out sets was" in text


def test_without_held_out_sets_the_report_warns(tmp_path):
    triplets = sw.Triplet().observe((Z > 1).astype(int), sw.Sets.random(120, 100, 3, seed=0))
    table = X.to_numpy()
    est = sw.AggregateClassifier(
        2, sw.Linear(alpha=1.0), random_state=0, validation=None, verbose=0
    )
    est.fit(table, triplets)
    text = est.report(tmp_path / "x.html", table, triplets).read_text(encoding="utf-8")
    assert "do not tell how well the model does on new ones" in text
    assert "learned them by heart" in text
    assert "left open" in text
    assert "its coefficient times its standard deviation" in text


def test_wrong_arguments(model, kinds, tmp_path):
    path = tmp_path / "x.html"
    with pytest.raises(ValueError, match="X and observations go together"):
        model.report(path, X)
    with pytest.raises(TypeError, match="eval is a pair"):
        model.report(path, X, kinds[0], eval=kinds[1][0])
    with pytest.raises(NotFittedError, match="call fit"):
        sw.AggregateRegressor().report(path)
    with pytest.raises(FileNotFoundError, match="create it"):
        model.report(tmp_path / "nowhere" / "x.html")
    assert not path.exists()


# ---- pages


def test_a_failed_write_leaves_the_old_page(tmp_path):
    path = write(tmp_path / "x.html", "old")
    with pytest.raises(TypeError):
        write(path, None)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def shown(*blocks):
    """The blocks as they stand on a page."""
    html = render("<x>", "", [("", list(blocks))])
    return html[html.index("<main>") :]


def test_tables_set_numbers_to_the_right():
    rows = [["a", "1,200", "x"], ["b", Cell("−0.5 ± 0.1", tone="bad"), "2 to 6"]]
    html = shown(Table(["", "n", "words"], rows, "of two"))
    assert html.count('class="number') == 3
    assert '<td class="number bad">−0.5 ± 0.1</td>' in html
    assert "<caption>of two</caption>" in html


def test_text_is_escaped():
    assert "<p>&lt;i&gt; <code>a&lt;b</code> <b>c</b></p>" in shown("<i> `a<b` **c**")
    assert "<title>&lt;x&gt;</title>" in render("<x>", "", [])
    assert shown(Tiles([("3", "a < b")])).count("&lt;") == 1
    assert "<h2>a &amp; b</h2>" in render("", "", [("a & b", ["c"])])
