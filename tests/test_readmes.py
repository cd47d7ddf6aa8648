"""The examples in the READMEs run as they are written, each file from its first block to its last."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SKIPPED = {".venv", "node_modules"}
PAGES = [page for page in sorted(ROOT.glob("**/README.md"))
         if not SKIPPED & {*page.parts} and "```python" in page.read_text(encoding="utf-8")]


def test_there_are_some():
    assert {"README.md", "simulator/README.md"} <= {page.relative_to(ROOT).as_posix() for page in PAGES}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_examples_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scope = {"__name__": "__main__"}
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)):
        exec(compile(block, f"{page.name}, example {number}", "exec"), scope)
