"""Every notebook keeps the rhythm of the course, and its saved outputs say nothing of a machine."""

import json
import re
from pathlib import Path

import pytest

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
PATHS = sorted(NOTEBOOKS.glob("*.ipynb"))
LINES = 15
OF_A_MACHINE = re.compile(
    r"0x[0-9a-fA-F]{6,}|ipykernel|/tmp/|/home/|/root/|/Users/|site-packages|[A-Z]:\\\\"
)

each_notebook = pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)


def cells(path: Path, kind: str) -> list[dict]:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    return [cell for cell in notebook["cells"] if cell["cell_type"] == kind]


def source(cell: dict) -> str:
    return "".join(cell["source"])


def prose(path: Path) -> str:
    return "\n".join(source(cell) for cell in cells(path, "markdown"))


def heading(path: Path, words: str) -> bool:
    return bool(re.search(rf"^#+ .*{words}", prose(path), re.MULTILINE))


def test_there_are_notebooks_and_the_list_names_them_in_order():
    listed = re.findall(
        r"\]\((\w+\.ipynb)\)", (NOTEBOOKS / "README.md").read_text(encoding="utf-8")
    )
    assert listed == [path.name for path in PATHS] != []


@each_notebook
def test_it_begins_with_a_question(path):
    first = source(cells(path, "markdown")[0])
    assert first.startswith(f"# {path.stem[:2]} · ")
    assert "**The question.**" in first and "?" in first


@each_notebook
def test_a_prediction_comes_before_each_run(path):
    code = [source(cell) for cell in cells(path, "code")]
    runs = [k for k, text in enumerate(code) if text.startswith("# run")]
    assert len(runs) >= 5
    for k in runs:
        assert code[k - 1].startswith("# predict"), f"before {code[k][:60]!r}"
        guesses = re.findall(r"\bmy_\w+", code[k - 1])
        assert guesses and "None" in code[k - 1]
        assert all(guess in code[k] for guess in guesses), f"the run shows none of {guesses}"


@each_notebook
def test_cells_are_short(path):
    for cell in cells(path, "code"):
        lines = source(cell).splitlines()
        assert len(lines) <= LINES, f"{len(lines)} lines: {lines[0]}"


@each_notebook
def test_three_checks_or_more_none_of_them_answered(path):
    checks = [
        cell for cell in cells(path, "code") if re.search(r"^check_\w+\(", source(cell), re.M)
    ]
    open_ones = [c for c in checks if "not answered yet" in json.dumps(c["outputs"])]
    assert len(open_ones) >= 3
    for cell in open_ones:
        assert re.search(r"\bNone\b|^    \.\.\.", source(cell), re.MULTILINE)


@each_notebook
def test_formulas_a_picture_things_to_break_pytorch_a_summary_and_sources(path):
    assert "$$" in prose(path)
    pictures = [
        o
        for cell in cells(path, "code")
        for o in cell["outputs"]
        if "image/svg+xml" in o.get("data", {})
    ]
    assert pictures
    for words in ("Break it", "The same in PyTorch", "Summary", "Read more"):
        assert heading(path, words), words
    shown = prose(path).split("The same in PyTorch")[1]
    assert "```python\nimport torch" in shown
    assert not any("torch" in source(cell) for cell in cells(path, "code")), "shown, not executed"
    sources = re.findall(
        r"^- .*(?:\n  .*)*\b(?:19|20)\d\d\b", prose(path).split("Read more")[1], re.M
    )
    assert len(sources) >= 3


@each_notebook
def test_outputs_are_saved_complete_and_say_nothing_of_a_machine(path):
    counts = [cell["execution_count"] for cell in cells(path, "code")]
    assert counts == list(range(1, len(counts) + 1)), "run it: run.py -m notebooks.execute"
    for cell in cells(path, "code"):
        for output in cell["outputs"]:
            assert output["output_type"] != "error", source(cell)[:60]
            found = OF_A_MACHINE.search(json.dumps(output, ensure_ascii=False))
            assert not found, f"{found} in the output of {source(cell)[:60]!r}"


@each_notebook
def test_pictures_have_words_and_need_no_network(path):
    for cell in cells(path, "code"):
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "image/svg+xml" in data:
                svg = "".join(data["image/svg+xml"]).replace("http://www.w3.org/2000/svg", "")
                assert "".join(data["text/plain"]).strip()
                assert "http" not in svg and "<script" not in svg


@each_notebook
def test_saved_metadata_is_the_same_everywhere(path):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    assert notebook["metadata"]["language_info"] == {"name": "python"}
    assert all(set(cell["metadata"]) <= {"tags"} for cell in notebook["cells"])
    names = [cell["id"] for cell in notebook["cells"]]
    assert len(set(names)) == len(names)


def test_the_engine_of_notebook_02_has_as_many_lines_as_it_says():
    path = NOTEBOOKS / "02_autodiff.ipynb"
    parts = [text for text in map(source, cells(path, "code")) if text.startswith("# engine")]
    lines = sum(bool(line.strip()) for text in parts for line in text.splitlines())
    assert lines <= 60 and f"the five parts have {lines} lines" in prose(path) and len(parts) == 5
