"""Runs notebooks again and saves them with their outputs: `run.py -m notebooks.execute [01 …]`.

Without a name, all of them.  What differs from run to run or from machine to machine is taken out,
so a notebook changes only where its text or its results did.  Cells are named by what they hold.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"), "1"
)
METADATA = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def chosen(names: list[str]) -> list[Path]:
    """The notebooks whose file names begin with one of these."""
    found = sorted(HERE.glob("*.ipynb"))
    wanted = [
        path
        for path in found
        if not names or any(path.name.startswith(Path(n).stem) for n in names)
    ]
    if not wanted:
        sys.exit(
            f"execute: no notebook begins with {names}; there are {[path.stem for path in found]}"
        )
    return wanted


def execute(path: Path) -> float:
    """Run one notebook in a fresh kernel and save it; the seconds it took."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    began = time.monotonic()
    NotebookClient(
        notebook,
        timeout=120,
        kernel_name="python3",
        resources={"metadata": {"path": str(HERE)}},
        coalesce_streams=True,
    ).execute()
    tidy(notebook)
    partial = path.with_suffix(".part")
    nbformat.write(notebook, partial)
    partial.replace(path)
    return time.monotonic() - began


def tidy(notebook) -> None:
    """Keep tags, source and outputs; nothing of when and where it ran."""
    notebook.metadata = METADATA
    seen: dict[str, int] = {}
    for cell in notebook.cells:
        digest = hashlib.sha256(cell.source.encode()).hexdigest()[:8]
        seen[digest] = seen.get(digest, 0) + 1
        cell.id = digest if seen[digest] == 1 else f"{digest}-{seen[digest]}"
        cell.metadata = {"tags": cell.metadata["tags"]} if cell.metadata.get("tags") else {}
        for output in cell.get("outputs", []):
            if "metadata" in output:
                output.metadata = {}


if __name__ == "__main__":
    os.environ.update(ONE_THREAD, PYTHONHASHSEED="0")
    for path in chosen(sys.argv[1:]):
        print(f"{path.name}: {execute(path):.1f} s", flush=True)
