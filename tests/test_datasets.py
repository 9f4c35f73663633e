"""Data sets: the registry, the folders looked in, and downloads from a local server."""

import gzip
import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

import setwise as sw
from setwise import datasets
from setwise.datasets import ChecksumError, DatasetError, DownloadError
from setwise.datasets.build import check
from setwise.datasets.folders import cache_folder
from setwise.datasets.registry import TABLES, File, Info, registry
from setwise.datasets.tables import encode, read_table, write_table

REAL = os.environ.get("SETWISE_DATA", "")
LARGE = {"covertype"}
needs_data = pytest.mark.skipif(not REAL, reason="SETWISE_DATA names no folder of data sets")


@pytest.fixture(autouse=True)
def _empty_house(tmp_path, monkeypatch):
    """No data folder, an empty cache, no proxy."""
    monkeypatch.delenv("SETWISE_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture
def real(monkeypatch):
    monkeypatch.setenv("SETWISE_DATA", REAL)


# ---- the registry


def test_every_entry_is_complete():
    for name, one in registry().items():
        assert name == one.name == name.lower()
        assert one.task in {"regression", "binary", "multiclass", "images", "text", "aggregate"}
        assert one.rows > 0, name
        assert one.licence, name
        assert one.source, name
        assert one.citation, name
        assert one.files or one.embedded, name
        assert (one.features is None) == (one.task == "text"), name
        if one.task == "aggregate":
            assert one.aggregate in dir(sw)
            assert one.sets, name
        elif one.task == "regression":
            assert one.classes is None
            assert one.embedded or len(one.target_range) == 2, name
        else:
            assert one.classes == (2 if one.task in ("binary", "text") else one.classes) >= 2
            assert not one.class_counts or sum(one.class_counts.values()) == one.rows, name
        assert one.partial == (one.full_rows is not None), name
        assert not one.partial or one.note.startswith("PARTIAL"), name
        for file in one.files:
            assert not Path(file.path).is_absolute()
            assert ".." not in file.path
            if name != "susy":  # not obtained: only its address is known
                assert len(file.sha256) == 64, name
                assert file.bytes > 0, name
    paths = [file.path for one in registry().values() for file in one.files]
    assert len(paths) == len(set(paths))


def test_tables_of_the_paper():
    sizes = {table: len(datasets.names(table)) for table in TABLES}
    assert sizes == {
        "images": 3, "uci": 6, "varying-k": 6, "binary": 20, "multiclass": 10, "regression": 20
    }  # fmt: skip
    assert datasets.names("uci") == datasets.names("varying-k")
    assert {n for t in TABLES for n in datasets.names(t)} <= set(datasets.names())
    with pytest.raises(ValueError, match="expected one of images, uci"):
        datasets.names("table 3")


def test_every_set_of_the_paper_can_be_downloaded_or_is_embedded():
    for one in registry().values():
        if one.tables:
            assert one.download or one.embedded, one.name


def test_statistics_printed_in_the_paper():
    """Printed counts are up to three rows short of the data, or four fifths of them."""
    different = {"abalone", "satimage", "ayi"}  # see their notes; the abalone count is diabetes's
    for one in registry().values():
        if not one.paper:
            continue
        rows = one.full_rows or one.rows
        agrees = 0 <= rows - one.paper["n"] <= 3 or one.paper["n"] == rows * 4 // 5
        assert agrees == (one.name not in different), one.name
        if one.task != "text" and one.name != "splice":  # splice: 60 letters, 240 one-hot columns
            assert one.features == one.paper["d"], one.name
        if "c" in one.paper:
            assert one.classes == one.paper["c"]
        if "max" in one.paper and one.target_range:
            scaled = np.array(one.target_range) * one.target_scale
            np.testing.assert_allclose(
                scaled, [one.paper["min"], one.paper["max"]], rtol=2e-3, atol=0.01
            )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("fmnist", "fashion-mnist"),
        ("artificial-character", "artificial-characters"),
        ("space-ga100", "space-ga"),
        ("Wine_Quality", "wine-quality"),
        (" breast cancer ", "breast-cancer"),
    ],
)
def test_other_names(name, expected):
    assert datasets.info(name).name == expected


def test_unknown_name_suggests():
    with pytest.raises(ValueError, match=r"'abalon'.*did you mean abalone.*available\(\)"):
        datasets.load("abalon")
    with pytest.raises(ValueError, match="no data set is called 'qqqq': sw"):
        datasets.load("qqqq")


def test_available_says_where(tmp_path, monkeypatch):
    monkeypatch.setenv("SETWISE_DATA", str(tmp_path))
    (tmp_path / "tabular").mkdir()
    (tmp_path / "tabular/abalone.csv.gz").touch()
    (cache_folder() / "tabular").mkdir(parents=True)
    (cache_folder() / "tabular/airfoil.csv.gz").touch()
    listed = datasets.available()
    where = {one.name: one.where for one in listed}
    assert where["abalone"] == "local folder"
    assert where["airfoil"] == "cache"
    assert where["letter"] == "download"
    assert where["digits"] == "embedded"
    assert where["musk1"] == "embedded"
    assert where["musk2"] == "missing"
    lines = str(listed).splitlines()
    assert len(lines) == 1 + len(datasets.names())
    for word in ("name", "size", "licence", "citation"):
        assert word in lines[0]
    codrna = next(line for line in lines if line.startswith("codrna"))
    assert "partial" in codrna
    assert "MB" in codrna
    assert "Uzilov" in codrna
    assert [one.name for one in datasets.available("images")] == [
        "mnist",
        "fashion-mnist",
        "kmnist",
    ]


# ---- always there


@pytest.mark.parametrize(
    ("name", "shape", "classes"),
    [
        ("digits", (1797, 64), 10),
        ("diabetes", (442, 10), 0),
        ("breast-cancer", (569, 30), 2),
        ("wine", (178, 13), 3),
    ],
)
def test_embedded(name, shape, classes):
    data = datasets.load(name, download=False)
    assert data.X.shape == shape
    assert data.X.dtype == np.float64
    assert len(data.classes) == classes
    assert len(data.feature_names) == shape[1]
    assert data.origin == "scikit-learn"
    assert not data.partial
    if classes:
        assert np.unique(data.z).tolist() == list(range(classes))


def test_frame():
    frame = datasets.load("diabetes", frame=True).frame
    assert list(frame.columns)[-1] == "target"
    assert frame.shape == (442, 11)
    assert datasets.load("diabetes").frame is None


# ---- the real files


@needs_data
@pytest.mark.usefixtures("real")
@pytest.mark.parametrize("name", [n for n in datasets.names() if registry()[n].files])
def test_load_real(name):
    one = datasets.info(name)
    if not (Path(REAL) / one.files[0].path).is_file():
        pytest.skip(f"{one.files[0].path} is not in SETWISE_DATA")
    if name in LARGE:
        with gzip.open(Path(REAL) / one.files[0].path, "rt") as stream:
            assert len(next(stream).split(",")) == one.features + 1
        return
    data = datasets.load(name, download=False)
    assert data.task == one.task
    assert len(data.X) == one.rows
    assert data.partial == one.partial
    assert len(data.classes) == (one.classes or 0)
    if one.task == "images":
        assert data.X.shape == (one.rows, 28, 28)
        assert data.X_test.shape == (one.test_rows, 28, 28)
        assert data.X.dtype == data.X_test.dtype == np.uint8
        assert len(data.z) == one.rows
        assert len(data.z_test) == one.test_rows
        assert np.bincount(data.z_test).min() >= 800
    elif one.task == "text":
        assert all(isinstance(sentence, str) and sentence.strip() for sentence in data.X)
    else:
        assert data.X.dtype == np.float64
        assert data.X.shape == (one.rows, one.features)
        assert len(set(data.feature_names)) == one.features
    if one.task == "aggregate":
        observed = sw.Observations(getattr(sw, data.aggregate)(), data.sets, data.y)
        assert len(observed.sets) == one.sets
        assert data.sets.indices.max() == one.rows - 1
    elif one.task != "images":
        check(data)
    if one.paper.keys() >= {"min", "max"}:
        np.testing.assert_allclose(data.z.min(), one.paper["min"], rtol=2e-3, atol=0.02)
        np.testing.assert_allclose(data.z.max(), one.paper["max"], rtol=2e-3, atol=0.02)


@needs_data
@pytest.mark.usefixtures("real")
def test_registry_agrees_with_the_manifest():
    manifest = json.loads((Path(REAL) / "MANIFEST.json").read_text())
    for part in ("images", "tabular", "text", "aggregate"):
        for entry in manifest[part]:
            one = datasets.info(entry["name"])
            for file, known in zip(entry.get("files", [entry]), one.files, strict=True):
                assert known == File(file["file"], file["bytes"], file["sha256"])
            assert one.licence == entry["licence"]
            assert one.target_scale == entry.get("target_scale_in_paper", 1.0)
            assert one.partial == entry.get("partial", False)


@needs_data
@pytest.mark.usefixtures("real")
def test_embedded_diabetes_is_the_file():
    data = datasets.load("diabetes")
    table = read_table(Path(REAL) / "tabular/diabetes.csv.gz")
    rows = np.stack([table[n] for n in data.feature_names], 1)
    np.testing.assert_allclose(data.X, rows, rtol=1e-12)  # versions of scikit-learn differ by that
    np.testing.assert_array_equal(data.z, table["target"])


@needs_data
@pytest.mark.usefixtures("real")
def test_voters_add_up():
    data = datasets.load("senc")
    assert data.sets.individuals.tolist() == data.y.sum(1).tolist()
    assert data.sets.indices.tolist() == list(range(len(data.z)))
    assert data.sets.counts.tolist() == data.z.sum(1).tolist()
    assert data.z[data.sets[0]].sum(0).tolist() == data.y[0].tolist()
    assert data.feature_names[:3] == ("race=black", "race=natam", "race=white")


@needs_data
@pytest.mark.usefixtures("real")
def test_matches_list_the_winner_first():
    data = datasets.load("atp-matches", frame=True)
    assert data.sets[7].tolist() == [14, 15]
    ranks = data.X[:, data.feature_names.index("rank")]
    np.testing.assert_array_equal(ranks[0::2], data.frame["winner_rank"])
    np.testing.assert_array_equal(ranks[1::2], data.frame["loser_rank"])
    assert (ranks[0::2] < ranks[1::2]).mean() > 0.6  # the better placed player mostly wins


# ---- tables


def test_table_round_trip(tmp_path, rng):
    table = {
        "number": rng.normal(size=50) * 10.0 ** rng.integers(-200, 200, 50),
        "word": np.array(["a,b", 'say "x"', "two\nlines", "é", "1"] * 10, object),
        "target": np.arange(50.0),
    }
    with (tmp_path / "t.csv.gz").open("wb") as stream:
        write_table(stream, table)
    back = read_table(tmp_path / "t.csv.gz")
    assert list(back) == list(table)
    for name, values in table.items():
        np.testing.assert_array_equal(back[name], values)


def test_encode_numbers_that_stand_for_categories():
    X, names = encode(
        {"month": np.array([1.0, 12.0, 2.0]), "t": np.array([5.0, 6.0, 7.0])}, ["month"]
    )
    assert names == ["month=1", "month=2", "month=12", "t"]
    np.testing.assert_array_equal(X, [[1, 0, 0, 5], [0, 0, 1, 6], [0, 1, 0, 7]])


@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b[:-30] + b"x" * 30])
def test_damaged_converted_file(damage):
    """A converted file has no known SHA-256: gzip's own check must catch what happens to it."""
    path = cache_folder() / "tabular/airfoil.csv.gz"
    path.parent.mkdir(parents=True)
    rng = np.random.default_rng(0)
    with path.open("wb") as stream:
        write_table(stream, {"a": rng.normal(size=500), "target": rng.normal(size=500)})
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ChecksumError, match=r"airfoil.csv.gz has been altered or is incomplete"):
        datasets.load("airfoil", download=False)


# ---- folders


def idx(array):
    head = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
    return gzip.compress(head + array.astype(np.uint8).tobytes(), mtime=0)


def small_images(rng, base="http://127.0.0.1:9/"):
    """An image set of twelve and five pictures: its entry, and the contents of its files."""
    parts = {
        "t10k-images-idx3-ubyte.gz": idx(rng.integers(0, 256, (5, 28, 28))),
        "t10k-labels-idx1-ubyte.gz": idx(np.arange(5)),
        "train-images-idx3-ubyte.gz": idx(rng.integers(0, 256, (12, 28, 28))),
        "train-labels-idx1-ubyte.gz": idx(np.arange(12) % 10),
    }
    files = tuple(
        File(f"images/mnist/{name}", len(raw), hashlib.sha256(raw).hexdigest())
        for name, raw in parts.items()
    )
    return replace(datasets.info("mnist"), files=files, download={"bases": [base]}), parts


def put(folder, info, parts):
    for file, raw in zip(info.files, parts.values(), strict=True):
        path = Path(folder) / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(raw)


@pytest.fixture
def registered(monkeypatch):
    """Replaces entries of the registry for one test."""

    def register(info: Info) -> Info:
        monkeypatch.setitem(registry(), info.name, info)
        return info

    return register


def test_local_folder_before_cache(tmp_path, rng, monkeypatch, registered):
    info, parts = small_images(rng)
    registered(info)
    put(tmp_path / "data", info, parts)
    put(cache_folder(), info, dict.fromkeys(parts, b"never read"))
    monkeypatch.setenv("SETWISE_DATA", str(tmp_path / "data"))
    data = datasets.load("mnist")
    assert data.X.shape == (12, 28, 28)
    assert data.z_test.tolist() == [0, 1, 2, 3, 4]
    assert data.origin.startswith(str(tmp_path / "data"))
    monkeypatch.delenv("SETWISE_DATA")
    with pytest.raises(ChecksumError):  # the cache was there all the time
        datasets.load("mnist")


def test_altered_file(tmp_path, rng, monkeypatch, registered):
    info, parts = small_images(rng)
    registered(info)
    put(tmp_path, info, parts | {"train-labels-idx1-ubyte.gz": idx(np.ones(12))})
    monkeypatch.setenv("SETWISE_DATA", str(tmp_path))
    with pytest.raises(ChecksumError, match=r"train-labels.*altered.*expected SHA-256 .* got .*"):
        datasets.load("mnist")


def test_manifest_of_the_folder_may_know_newer_files(tmp_path, rng, monkeypatch, registered):
    info, parts = small_images(rng)
    registered(info)
    newer = idx(np.ones(12))
    put(tmp_path, info, parts | {"train-labels-idx1-ubyte.gz": newer})
    entry = {"file": info.files[3].path, "sha256": hashlib.sha256(newer).hexdigest()}
    manifest = tmp_path / "MANIFEST.json"
    manifest.write_text(json.dumps({"about": "text", "images": [{"files": [entry]}]}))
    monkeypatch.setenv("SETWISE_DATA", str(tmp_path))
    assert datasets.load("mnist").z.tolist() == [1] * 12
    manifest.write_text("{")
    with pytest.raises(DatasetError, match=r"MANIFEST.json cannot be read"):
        datasets.load("mnist")


# ---- downloads


class Server:
    """Serves `pages`: path -> bytes, or a function that answers the request itself."""

    def __init__(self):
        self.pages, self.asked = {}, []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                server.asked.append(self.path)
                page = server.pages.get(self.path)
                if callable(page):
                    page(self)
                elif page is None:
                    self.send_error(404)
                else:
                    answer(self, page)

            def log_message(self, *_):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.base = f"http://127.0.0.1:{self.http.server_address[1]}"
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.02,))
        self.thread.start()

    def close(self):
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()


def answer(handler, body, length=None):
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(body) if length is None else length))
    handler.end_headers()
    handler.wfile.write(body)


@pytest.fixture
def server():
    server = Server()
    yield server
    server.close()


def kept():
    """The files in the cache."""
    return sorted(p.name for p in cache_folder().rglob("*") if p.is_file())


@pytest.fixture
def images(server, rng, registered):
    """An image set that the server has whole."""
    info, parts = small_images(rng, server.base + "/")
    server.pages.update({f"/{name}": raw for name, raw in parts.items()})
    registered(info)
    return parts


def test_download_images_once(server, images):
    data = datasets.load("mnist")
    assert data.X.shape == (12, 28, 28)
    assert kept() == sorted(images)
    datasets.load("mnist")
    assert len(server.asked) == 4


def test_download_from_the_second_place(server, images, registered):
    info = datasets.info("mnist")
    registered(replace(info, download={"bases": [server.base + "/gone/", server.base + "/"]}))
    assert datasets.load("mnist").z[:3].tolist() == [0, 1, 2]


@pytest.mark.parametrize("length", ["too long", "none"])
def test_truncated_download(server, images, length):
    name = "train-images-idx3-ubyte.gz"
    raw = images[name]

    def half(handler):
        if length == "none":
            handler.send_response(200)
            handler.end_headers()
            handler.wfile.write(raw[:3000])
        else:
            answer(handler, raw[:3000], len(raw))

    server.pages[f"/{name}"] = half
    with pytest.raises(
        DownloadError, match=r"train-images.*(ended after 3000 of|not the expected)"
    ):
        datasets.load("mnist")
    assert name not in kept()
    assert not [n for n in kept() if n.endswith(".part")]
    server.pages[f"/{name}"] = raw  # the next attempt takes up what is missing
    assert datasets.load("mnist").X.shape == (12, 28, 28)


def test_wrong_checksum_of_a_download(server, images):
    server.pages["/t10k-images-idx3-ubyte.gz"] = b"an error page, say"
    with pytest.raises(DownloadError, match="not the expected file"):
        datasets.load("mnist")
    assert kept() == []


def test_interrupted_write_leaves_nothing(images, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("os.fsync", stop)
    with pytest.raises(KeyboardInterrupt):
        datasets.load("mnist")
    assert kept() == []


def test_killed_download_is_not_taken_for_whole(server, images):
    """A process is killed in the middle of a file; the next one starts that file again."""
    name = "t10k-images-idx3-ubyte.gz"
    raw, reached = images[name], threading.Event()

    def stall(handler):
        answer(handler, raw[:2000], len(raw))
        reached.set()
        time.sleep(0.5)

    server.pages[f"/{name}"] = stall
    code = (
        "import sys, pathlib; from setwise.datasets.download import _save\n"
        "_save(sys.argv[1], pathlib.Path(sys.argv[2]), '')"
    )
    target = cache_folder() / "images/mnist" / name
    process = subprocess.Popen([sys.executable, "-c", code, f"{server.base}/{name}", str(target)])
    assert reached.wait(60)
    process.send_signal(signal.SIGKILL if hasattr(signal, "SIGKILL") else signal.SIGTERM)
    process.wait()
    assert name not in kept()
    server.pages[f"/{name}"] = raw
    assert datasets.load("mnist").X_test.shape == (5, 28, 28)


def test_concurrent_callers(server, images):
    wait = threading.Barrier(4, timeout=30)
    raw = images["t10k-images-idx3-ubyte.gz"]

    def slow(handler):
        wait.wait()  # all four callers are in the middle of the same file
        answer(handler, raw)

    server.pages["/t10k-images-idx3-ubyte.gz"] = slow
    with ThreadPoolExecutor(4) as pool:
        loaded = list(pool.map(lambda _: datasets.load("mnist"), range(4)))
    assert all((data.X == loaded[0].X).all() for data in loaded)
    assert kept() == sorted(images)


def test_offline_error_says_what_was_tried(tmp_path, rng, monkeypatch, registered):
    info, _ = small_images(rng)  # nobody listens there
    registered(info)
    with pytest.raises(DownloadError) as caught:
        datasets.load("mnist")
    message = str(caught.value)
    for words in (
        "'mnist'", "SETWISE_DATA is not set", f"not in the cache {cache_folder()}",
        "http://127.0.0.1:9/t10k-images-idx3-ubyte.gz: ", "Set the environment variable",
        "images/mnist/train-images-idx3-ubyte.gz",
    ):  # fmt: skip
        assert words in message
    monkeypatch.setenv("SETWISE_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(DownloadError, match="nowhere is not a folder"):
        datasets.load("mnist", download=False)
    with pytest.raises(DownloadError, match="no place to download it from is known"):
        datasets.load("musk2")


# ---- tables that are converted


def entry(name, rows, **changes):
    """An entry of the registry for a small table."""
    return replace(
        datasets.info(name), rows=rows, class_counts={}, full_rows=None, partial=False, **changes
    )


def test_delimited_table(server, registered):
    server.pages["/w.csv"] = b'"a";"b";"quality"\n1;2.5;3\n4;5;6\n'
    how = {"url": server.base + "/w.csv", "delimiter": ";"}
    registered(entry("wine-white", 2, features=2, target_range=(3.0, 6.0), download=how))
    data = datasets.load("wine-white")
    assert data.feature_names == ("a", "b")
    np.testing.assert_array_equal(data.X, [[1, 2.5], [4, 5]])
    assert data.z.tolist() == [3.0, 6.0]
    assert datasets.load("wine-white").X.tolist() == data.X.tolist()
    assert server.asked == ["/w.csv"]


def test_table_in_an_archive_with_columns_to_drop(server, registered):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("day.csv", "no,season,temp,cnt\n1,1,0.5,1000\n2,3,0.25,2000\n")
    server.pages["/b.zip"] = packed.getvalue()
    how = {"url": server.base + "/b.zip", "members": ["day.csv"], "drop": [0]}
    registered(entry("bike-sharing", 2, features=3, target_range=(1000.0, 2000.0), download=how))
    data = datasets.load("bike-sharing")
    assert data.feature_names == ("season=1", "season=3", "temp")
    assert data.z.tolist() == [1.0, 2.0]  # thousands, as in the paper


def test_rows_with_missing_values_are_dropped(server, registered):
    server.pages["/a"] = b"39, Private, ?, <=50K\n50, State-gov, 2, >50K\n38, Private, 1, <=50K\n\n"
    how = {"url": server.base + "/a", "columns": ["age", "class", "n", "target"], "missing": ["?"]}
    registered(entry("adult", 2, features=4, download=how))
    data = datasets.load("adult")
    assert data.classes == ("<=50K", ">50K")
    np.testing.assert_array_equal(data.X[:, 0], [50, 38])


def test_head_of_a_large_file_is_all_that_is_read(server, registered):
    raw = gzip.compress(b"".join(b"%d.0,%d.5,2.0\n" % (i % 2, i) for i in range(200_000)), 1)
    enough = threading.Event()

    def withhold(handler):
        answer(handler, raw[: len(raw) // 2], len(raw))
        enough.wait(30)

    server.pages["/s.gz"] = withhold
    how = {"url": server.base + "/s.gz", "columns": ["target", "a", "b"], "head": 1000}
    registered(entry("susy", 1000, features=2, download=how | {"target": "target"}))
    data = datasets.load("susy")
    enough.set()
    assert data.X.shape == (1000, 2)
    assert data.X[-1].tolist() == [999.5, 2.0]
    assert np.bincount(data.z).tolist() == [500, 500]


@pytest.mark.parametrize("kind", ["label text", "text label"])
def test_sentences(server, registered, kind):
    text = '0 bad , "very" bad\n1 na\xefve fun\n\n1 good\n'
    if kind == "text label":
        text = 'bad , "very" bad \t0\r\nna\xefve fun\t1\r\ngood\t1\r\n'
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("s.txt", text.encode("latin-1" if kind == "label text" else "utf-8"))
    server.pages["/t.zip"] = packed.getvalue()
    how = {"url": server.base + "/t.zip", "members": ["s.txt"], "lines": kind}
    registered(entry("subj", 3, download=how))
    data = datasets.load("subj")
    assert data.X.tolist() == ['bad , "very" bad', "naïve fun", "good"]
    assert data.z.tolist() == [0, 1, 1]


def test_what_came_is_another_table(server, registered):
    server.pages["/w.csv"] = b"a,b,quality\n1,2,3\n4,5,60\n"
    how = {"url": server.base + "/w.csv"}
    registered(entry("wine-red", 5, features=11, target_range=(3.0, 8.0), download=how))
    with pytest.raises(
        DownloadError, match="5 rows expected, 2 came; 11 features expected, 2 came"
    ):
        datasets.load("wine-red")
    server.pages["/w.csv"] = b"<html>moved</html>"
    with pytest.raises(DownloadError):
        datasets.load("wine-red")
    assert kept() == []


# ---- OpenML, through scikit-learn


ARFF = """@relation x
@attribute Sex {F,I,M}
@attribute Length numeric
@attribute Power numeric
@attribute rings {1,2,29}
@data
M,0.5,1,1
F,0.25,?,29
I,0.125,3,29
I,0.125,3,29
F,1,2,2
"""

SPARSE = """@relation x
@attribute a numeric
@attribute b numeric
@attribute y {-1,1}
@data
{0 1.5,2 1}
{1 2}
{0 3}
"""


@pytest.fixture
def openml(server, monkeypatch):
    """OpenML's own addresses lead to the server; returns a function that fills it."""
    real = urllib.request.urlopen

    def local(request, *args, **options):
        path = request.full_url.split("/", 3)[3]
        moved = urllib.request.Request(
            f"{server.base}/{path}", headers=dict(request.header_items())
        )
        return real(moved, *args, **options)

    monkeypatch.setattr("sklearn.datasets._openml.urlopen", local)

    def fill(number, arff, features, target, form="ARFF", md5=None):
        listed = [
            {
                "index": str(i), "name": name, "data_type": kind, "is_target": "false",
                "is_ignore": "false", "is_row_identifier": "false", "number_of_missing_values": "0",
            } | ({"is_target": "true"} if name == target else {})
            for i, (name, kind) in enumerate(features)
        ]  # fmt: skip
        about = {
            "id": str(number), "name": "x", "version": "1", "format": form, "status": "active",
            "description": "", "file_id": "77", "default_target_attribute": target,
            "url": "https://www.openml.org/data/v1/download/77/x.arff",
            "md5_checksum": md5 or hashlib.md5(arff.encode()).hexdigest(),
        }  # fmt: skip
        quality = [{"name": "NumberOfInstances", "value": str(arff.count("\n") - 6)}]
        api = "/api/v1/json/data"
        server.pages |= {
            f"{api}/{number}": json.dumps({"data_set_description": about}).encode(),
            f"{api}/features/{number}": json.dumps({"data_features": {"feature": listed}}).encode(),
            f"{api}/qualities/{number}": json.dumps(
                {"data_qualities": {"quality": quality}}
            ).encode(),
            "/data/v1/download/77": arff.encode(),
            "/data/v1/download/77/x.arff": arff.encode(),
        }

    return fill


DENSE = [("Sex", "nominal"), ("Length", "numeric"), ("Power", "numeric"), ("rings", "nominal")]


def test_openml_table(server, openml, registered):
    openml(183, ARFF, DENSE, "rings")
    registered(entry("abalone", 3, features=5, target_range=(1.0, 29.0),
                     download={"openml": 183, "unique": True}))  # fmt: skip
    data = datasets.load("abalone")
    assert data.feature_names == ("Sex=F", "Sex=I", "Sex=M", "Length", "Power")
    assert data.z.tolist() == [1.0, 29.0, 2.0]  # without the missing value, without the repetition
    assert data.X[0].tolist() == [0, 0, 1, 0.5, 1]
    asked = len(server.asked)
    assert datasets.load("abalone").X.tolist() == data.X.tolist()
    assert len(server.asked) == asked
    assert kept() == ["abalone.csv.gz"]


def test_openml_other_target_and_merged_classes(openml, registered):
    openml(198, ARFF, DENSE, "rings")
    registered(entry("elevator", 5, features=4, target_range=(0.125, 1.0),
                     download={"openml": 198, "target": "Length", "drop": [1]}))  # fmt: skip
    data = datasets.load("elevator")
    assert data.feature_names == ("Sex=F", "Sex=I", "Sex=M", "rings")
    assert data.z.tolist() == [0.5, 0.25, 0.125, 0.125, 1.0]
    openml(36, ARFF, DENSE, "Sex")
    registered(entry("image", 4, features=3, download={
        "openml": 36, "merge": {"F": "1", "M": "1", "I": "-1"}}))  # fmt: skip
    data = datasets.load("image")
    assert data.classes == ("-1", "1")
    assert data.z.tolist() == [1, 0, 0, 1]


def test_openml_sparse(openml, registered):
    openml(351, SPARSE, [("a", "numeric"), ("b", "numeric"), ("y", "nominal")], "y", "Sparse_ARFF")
    registered(entry("codrna", 3, features=2, download={"openml": 351}))
    data = datasets.load("codrna")
    np.testing.assert_array_equal(data.X, [[1.5, 0], [0, 2], [3, 0]])
    assert data.z.tolist() == [1, 0, 0]  # the first class is what a sparse table leaves out
    assert data.classes == ("-1", "1")


def test_openml_gives_the_full_set(openml, registered):
    openml(351, SPARSE, [("a", "numeric"), ("b", "numeric"), ("y", "nominal")], "y", "Sparse_ARFF")
    partial = replace(datasets.info("codrna"), features=2, full_rows=3, download={"openml": 351})
    registered(partial)
    with pytest.raises(DownloadError, match=r"about .* rows of each class expected"):
        datasets.load("codrna")
    registered(replace(partial, paper={"neg": 2, "pos": 1}))
    data = datasets.load("codrna")
    assert partial.partial
    assert not data.partial
    assert data.note == ""


def test_openml_altered_on_the_way(openml, registered):
    openml(183, ARFF, DENSE, "rings", md5="0" * 32)
    registered(entry("abalone", 4, features=5, target_range=(1.0, 29.0), download={"openml": 183}))
    with pytest.raises(DownloadError, match=r"OpenML data set 183: .*md5"):
        datasets.load("abalone")
    assert kept() == []


def test_openml_out_of_reach(monkeypatch):
    def unplugged(*_, **__):
        raise urllib.error.URLError("no route to host")

    monkeypatch.setattr("sklearn.datasets._openml.urlopen", unplugged)
    monkeypatch.setattr("sklearn.datasets._openml.time.sleep", lambda _: None)
    with pytest.raises(DownloadError, match="OpenML data set 6: no route to host"):
        datasets.load("letter")


# ---- text


SENTENCES = ["a fine day", "a fine evening", "rain all day", "rain and snow", "snow in the evening"]


def test_text_features_are_fitted_on_the_training_part():
    alone = datasets.text_features(SENTENCES, n=3)[0]
    train, others, more = datasets.text_features(SENTENCES, ["a fine snow", "xyz"], SENTENCES, n=3)
    np.testing.assert_array_equal(train, alone)
    assert others.shape == (2, 3)
    np.testing.assert_allclose(more, train, atol=1e-12)
    np.testing.assert_array_equal(others[1], 0)  # nothing of it was seen in training


def test_text_features_settings():
    words = datasets.text_features(SENTENCES, n=2, analyzer="word", ngram_range=(1, 1), min_df=1)[0]
    assert words.shape == (5, 2)
    with pytest.raises(ValueError, match="n=100 dimensions cannot be made of 5 sentences"):
        datasets.text_features(SENTENCES)


@needs_data
@pytest.mark.usefixtures("real")
def test_text_features_tell_the_classes():
    from sklearn.linear_model import LogisticRegression

    data = datasets.load("ayi")
    order = np.random.default_rng(0).permutation(len(data.X))
    train, test = order[:2400], order[2400:]
    A, B = datasets.text_features(data.X[train], data.X[test])
    model = LogisticRegression(C=100.0, max_iter=1000).fit(A, data.z[train])
    assert A.shape == (2400, 100)
    assert model.score(B, data.z[test]) > 0.7
