"""Data from outside: nothing but the right bytes is ever used, and what is always there is always the same."""

import gzip
import hashlib
import http.server
import importlib
import struct
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

import minigrad as mg
from minigrad import data
from minigrad.data import arithmetic, download, text, trees
from minigrad.data.download import DownloadError, Source

mnist = importlib.import_module("minigrad.data.mnist")  # data.mnist is its function
BODY = bytes(range(256)) * 300


class Handler(http.server.BaseHTTPRequestHandler):
    """/right gives BODY, /short half of it, /wrong others, /long more, /slow dribbles, /silent nothing."""

    asked: list = []

    def do_GET(self):
        Handler.asked.append(self.path)
        kind = self.path.strip("/")
        body = {"right": BODY, "short": BODY, "wrong": BODY[::-1], "long": BODY + b"x", "slow": BODY}.get(kind)
        if kind == "silent":
            time.sleep(1.5)
            return
        if body is None:
            self.send_error(404)
            return
        self.send_response(200)
        if kind != "long":
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        try:
            if kind == "slow":
                for k in range(100):
                    self.wfile.write(body[k : k + 1])
                    self.wfile.flush()
                    time.sleep(0.05)
            self.wfile.write(body[: len(body) // 2] if kind == "short" else body)
        except OSError:
            pass

    def log_message(self, *args):
        pass


@pytest.fixture(scope="module")
def server():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as it:
        it.daemon_threads = True
        threading.Thread(target=it.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{it.server_port}"
        it.shutdown()


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    Handler.asked = []


def source(*urls):
    return Source("file.bin", urls, len(BODY), hashlib.sha256(BODY).hexdigest())


def test_a_file_is_fetched_once(server, tmp_path):
    for _ in range(2):
        path = download.fetch(source(server + "/right"), tmp_path / "new")
        assert path.read_bytes() == BODY
    assert Handler.asked == ["/right"] and [p.name for p in (tmp_path / "new").iterdir()] == ["file.bin"]


WRONG = {
    "short": "broke off|IncompleteRead|bytes read",
    "wrong": "another SHA-256",
    "long": "more than the 76800 bytes",
    "absent": "404",
    "silent": "timed out|closed connection|Remote end",
    "slow": "too slow",
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_answer_leaves_nothing_and_says_why(server, tmp_path, kind):
    clock = time.monotonic()
    with pytest.raises(DownloadError, match=WRONG[kind]) as caught:
        download.fetch(source(f"{server}/{kind}"), tmp_path, quiet_s=0.5, whole_s=0.6)
    assert f"/{kind}" in str(caught.value) and list(tmp_path.iterdir()) == []
    assert time.monotonic() - clock < 10


def test_the_next_address_is_tried(server, tmp_path):
    path = download.fetch(source(server + "/absent", server + "/wrong", server + "/right"), tmp_path)
    assert path.read_bytes() == BODY and Handler.asked == ["/absent", "/wrong", "/right"]


def test_no_network_is_one_error(tmp_path):
    with pytest.raises(DownloadError, match="file.bin could not be fetched: http"):
        download.fetch(source("http://127.0.0.1:9/right"), tmp_path)
    with pytest.raises(DownloadError, match="not a web address"):
        download.fetch(source("file:///etc/passwd"), tmp_path)


@pytest.mark.parametrize("damage", [b"", BODY[:-1], b"x" + BODY[1:]], ids=["empty", "cut off", "changed"])
def test_a_broken_file_in_the_cache_is_fetched_anew_or_refused(server, tmp_path, damage):
    file = tmp_path / "file.bin"
    file.write_bytes(damage)
    with pytest.raises(DownloadError, match="is not the right one; delete it"):
        download.fetch(source(server + "/absent"), tmp_path)
    assert file.read_bytes() == damage
    assert download.fetch(source(server + "/right"), tmp_path).read_bytes() == BODY


def test_the_cache_folder_is_the_systems(monkeypatch):
    monkeypatch.setattr(download.sys, "platform", "darwin")
    assert download.cache_folder().parts[-3:] == ("Library", "Caches", "minigrad")
    monkeypatch.setattr(download.sys, "platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", "somewhere")
    assert download.cache_folder().parts == ("somewhere", "minigrad", "cache")
    monkeypatch.setattr(download.sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", "elsewhere")
    assert download.cache_folder().parts == ("elsewhere", "minigrad")


# ---- MNIST ---------------------------------------------------------------------------------------


def idx(array, code):
    return bytes([0, 0, code, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


@pytest.mark.parametrize("kind, code", [(">u1", 8), (">i2", 11), (">i4", 12), (">f4", 13), (">f8", 14)])
def test_idx_files_are_read_whatever_their_kind(kind, code):
    array = np.arange(24).reshape(2, 3, 4).astype(kind)
    for data_ in (idx(array, code), gzip.compress(idx(array, code))):
        got = data.read_idx(data_)
        np.testing.assert_array_equal(got, array)
        assert got.dtype == array.dtype.newbyteorder("=")


WHOLE = idx(np.arange(6, dtype="u1").reshape(2, 3), 8)
MALFORMED = {
    "nothing": b"",
    "text": b"<html>",
    "unknown kind": WHOLE[:2] + b"\x07" + WHOLE[3:],
    "no axes": bytes([0, 0, 8, 0, 5]),
    "within the sizes": WHOLE[:9],
    "cut off": WHOLE[:-1],
    "too long": WHOLE + b"x",
    "broken gzip": gzip.compress(WHOLE)[:-6],
    "changed gzip": gzip.compress(WHOLE)[:12] + b"\xff\xff" + gzip.compress(WHOLE)[14:],
    "sizes beyond the file": bytes([0, 0, 8, 2]) + b"\xff" * 8 + b"abc",
}


@pytest.mark.parametrize("what", MALFORMED)
def test_other_files_are_refused(what):
    with pytest.raises(ValueError, match="read_idx"):
        data.read_idx(MALFORMED[what])


def local(monkeypatch, server, images, labels):
    files = [gzip.compress(idx(images, 8), mtime=0), gzip.compress(idx(labels, 8), mtime=0)]
    sources = tuple(
        replace(old, urls=(f"{server}/x",), nbytes=len(f), sha256=hashlib.sha256(f).hexdigest())
        for old, f in zip(mnist.SOURCES[True], files)
    )
    monkeypatch.setattr(mnist, "SOURCES", {True: sources, False: sources})
    return dict(zip((s.name for s in sources), files))


def test_mnist_from_its_files(monkeypatch, server, tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (4, 28, 28)).astype("u1")
    for name, content in local(monkeypatch, server, images, np.array([3, 1, 4, 1], "u1")).items():
        (tmp_path / name).write_bytes(content)
    x, y = data.mnist(root=tmp_path)
    assert x.shape == (4, 1, 28, 28) and x.dtype == mg.float32 and y.tolist() == [3, 1, 4, 1] and y.dtype == mg.int64
    np.testing.assert_allclose(x.numpy()[:, 0] * 255, images, rtol=1e-6)


def test_without_mnist_the_small_digits_take_its_place(monkeypatch, server, tmp_path, capsys):
    pytest.importorskip("sklearn")
    local(monkeypatch, server, np.zeros((1, 28, 28), "u1"), np.zeros(1, "u1"))
    (x, y), (xt, yt) = data.mnist(root=tmp_path), data.mnist(train=False, root=tmp_path)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2 and all("digits take its place" in line and "404" in line for line in lines)
    assert x.shape[1:] == xt.shape[1:] == (1, 28, 28) and len(x) + len(xt) == 1797 and len(y) == len(x)
    small, labels = data.digits()
    assert sorted(y.tolist() + yt.tolist()) == sorted(labels.tolist())
    assert (x.max().item(), x.dtype) == (1, mg.float32) and x[0, 0, :2].sum().item() == 0
    np.testing.assert_allclose(x.sum().item() + xt.sum().item(), 9 * small.sum().item(), rtol=1e-4)
    with pytest.raises(DownloadError):
        data.mnist(root=tmp_path, fallback=False)


# ---- text ----------------------------------------------------------------------------------------


def test_characters_go_there_and_back():
    tokens = data.CharTokenizer("to be or not to be")
    assert tokens.characters == " benort" and len(tokens) == 7
    assert tokens.decode(tokens.encode("not to be")) == "not to be" and tokens.encode("bet").tolist() == [1, 2, 6]
    with pytest.raises(ValueError, match="'x' at place 2"):
        tokens.encode("bexo")
    with pytest.raises(ValueError, match="7 is no number"):
        tokens.decode([7])
    with pytest.raises(ValueError, match="no characters"):
        data.CharTokenizer("")


@pytest.mark.parametrize("stride", [1, 3])
def test_windows_and_what_comes_next(stride):
    windows = data.TextWindows(mg.arange(12), 4, stride)
    assert len(windows) == (8 if stride == 1 else 3)
    for k, (x, y) in enumerate(windows[i] for i in range(len(windows))):
        assert x.tolist() == list(range(k * stride, k * stride + 4)) and y.tolist() == [n + 1 for n in x.tolist()]
    fast, slow = (
        data.DataLoader(windows, 2, shuffle=True, generator=mg.Generator(1), collate_fn=f)
        for f in (None, lambda b: data.default_collate(b))
    )
    for a, b in zip(fast, slow, strict=True):
        assert [t.tolist() for t in a] == [t.tolist() for t in b]
    with pytest.raises(IndexError):
        windows[len(windows)]
    with pytest.raises(ValueError, match="more numbers"):
        data.TextWindows(mg.arange(4), 4)


def test_shakespeare_or_what_takes_its_place(monkeypatch, server, tmp_path, capsys):
    monkeypatch.setattr(text, "SHAKESPEARE", replace(source(server + "/absent"), name="s.txt"))
    assert data.tiny_shakespeare(tmp_path) == data.prose()
    assert len(capsys.readouterr().err.splitlines()) == 1
    with pytest.raises(DownloadError, match="404"):
        data.tiny_shakespeare(tmp_path, fallback=False)
    line = "First Citizen:\n"
    (tmp_path / "s.txt").write_bytes(line.encode())
    whole = Source("s.txt", (), len(line), hashlib.sha256(line.encode()).hexdigest())
    monkeypatch.setattr(text, "SHAKESPEARE", whole)
    assert data.tiny_shakespeare(tmp_path) == line


def test_prose_is_long_and_splits_without_overlap():
    whole = data.prose()
    assert len(whole) > 200_000 and whole == data.prose() and "yield" in whole
    parts = data.train_and_validation(whole, 0.9)
    assert "".join(parts) == whole and abs(len(parts[0]) / len(whole) - 0.9) < 1e-4
    with pytest.raises(ValueError, match="fraction"):
        data.train_and_validation(whole, 1.0)


# ---- arithmetic ----------------------------------------------------------------------------------


@pytest.mark.parametrize("ops", ["+", "-", "+-*"])
@pytest.mark.parametrize("digits", [1, 2, 4])
def test_problems_are_right_and_differ(ops, digits):
    n = 90 if digits == 1 else 400
    problems = arithmetic.make(n, digits, ops, seed=3)
    assert len(set(problems)) == n and problems == arithmetic.make(n, digits, ops, seed=3)
    assert problems != arithmetic.make(n, digits, ops, seed=4)
    for p in problems:
        left, right = p.split("=")
        assert eval(left) == int(right)  # noqa: S307 - digits and a sign
    assert all(sign in "".join(problems) for sign in ops)


def test_all_problems_there_are():
    assert len(set(arithmetic.make(100, 1))) == 100
    with pytest.raises(ValueError, match="101 problems of 100"):
        arithmetic.make(101, 1)
    for wrong in (dict(ops="/"), dict(ops=""), dict(ops="++"), dict(digits=0)):
        with pytest.raises(ValueError, match="digits must be"):
            arithmetic.make(3, **wrong)


def test_problems_as_numbers_and_what_counts():
    problems = ["37+5=42", "1-20=-19"]
    numbers = arithmetic.encode(problems, 12)
    assert numbers.shape == (2, 12) and arithmetic.decode(numbers) == problems
    mask = arithmetic.answer_mask(problems, 12).numpy()
    for row, m, p in zip(numbers.numpy(), mask, problems):
        assert arithmetic.TOKENIZER.decode(row[m]) == arithmetic.answer(p) + arithmetic.END
    assert arithmetic.encode(problems).shape == (2, 9)
    assert [arithmetic.question(p) for p in problems] == ["37+5=", "1-20="]
    with pytest.raises(ValueError, match="do not fit into 8"):
        arithmetic.encode(problems, 8)


def test_only_the_exact_answer_scores():
    problems = arithmetic.make(4, 2)
    right = [arithmetic.answer(p) for p in problems]
    assert arithmetic.score(problems, right) == 1
    assert arithmetic.score(problems, [right[0], right[1] + "0", "", right[3][:-1]]) == 0.25
    with pytest.raises(ValueError):
        arithmetic.score(problems, right[:3])


# ---- syntax trees --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def statements():
    return data.SyntaxTrees(80, seed=1)


def test_trees_are_trees_and_the_same_for_a_seed(statements):
    for kinds, children, label in statements:
        below = [c for each in children for c in each]
        assert sorted(below) == list(range(1, len(kinds)))  # all but the root, once
        assert all(parent < c for parent, each in enumerate(children) for c in each)
        assert 12 <= len(kinds) <= 80 and 0 <= label < 4
    again = data.SyntaxTrees(80, seed=1)
    assert [t.name for t in again.trees] == [t.name for t in statements.trees]
    assert all((a.kinds == b.kinds).all() for a, b in zip(again.trees, statements.trees))
    assert [t.name for t in data.SyntaxTrees(10, seed=2).trees] != [t.name for t in statements.trees[:10]]


def test_one_statement_is_hidden_of_each_class_equally_often(statements):
    labels = [label for _, _, label in statements]
    assert np.bincount(labels).tolist() == [20] * 4
    for kinds, children, _ in statements:
        (hidden,) = np.flatnonzero(kinds.numpy() == 0)
        assert children[hidden] == [] and trees.KINDS[kinds[0].item()] in ("FunctionDef", "AsyncFunctionDef")


def test_a_tree_says_what_the_source_says():
    import ast

    function = ast.parse('def f(x):\n    "doc"\n    if x:\n        raise E\n    return x + 1').body[0]
    kinds, children = trees._numbered(function, function.body[1].body[0])
    names = [trees.KINDS[k] for k in kinds]
    assert names == "FunctionDef arguments arg If Name Hidden Return BinOp Name Add Constant".split()
    assert children == [[1, 3, 6], [2], [], [4, 5], [], [], [7], [8, 9, 10], [], [], []]
    assert trees._chosen(function, [0, 0, 5, 1], np.random.default_rng(0)) is function.body[1].body[0]
    assert trees._chosen(function, [9, 9, 0, 0], np.random.default_rng(0)) is None  # the docstring is no statement


def test_packages_as_labels():
    functions = data.SyntaxTrees(40, "package")
    assert all(functions.classes[t.label] == t.name.split(".")[0] for t in functions.trees)
    assert all((t.kinds > 0).all() for t in functions.trees)
    with pytest.raises(ValueError, match="'name'"):
        data.SyntaxTrees(3, "name")


def test_more_functions_than_there_are(monkeypatch):
    monkeypatch.setattr(trees, "PACKAGES", ("json",))
    with pytest.raises(ValueError, match="nodes that fit, not 10"):
        data.SyntaxTrees(10, "package", most_nodes=1, least_nodes=1)


def test_a_tree_lstm_can_read_them(statements):
    loader = data.DataLoader(statements, 8, collate_fn=data.tree_collate)
    forest = next(iter(loader))
    embed, net = mg.nn.Embedding(len(trees.KINDS), 6), mg.nn.ChildSumTreeLSTM(6, 5)
    h, _ = net(embed(forest.inputs), forest.children)
    assert h[forest.roots].shape == (8, 5) and forest.labels.shape == (8,)


def test_a_cache_folder_that_cannot_be_made_is_a_download_error(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DownloadError, match=r"cannot be used .* root="):
        download.fetch(Source("x", ("http://127.0.0.1:9/x",), 1, "0"), tmp_path / "file")
