"""Small tables of published numbers: their rows as dicts, their notes, and which of them may be used for a fit.

The column `split` says it: "calib" rows may be fitted; "holdout" rows are only predicted, so `hidden()` gives the same
table with their measured numbers replaced by NaN, for which a fit must give the same constants to the last bit.
First files of the story; `device.py` and `topology.py` take their presets from here.
"""
from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import nan
from pathlib import Path
from typing import Any

Row = dict[str, Any]
FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Table:
    """Rows whose numbers are floats, texts str, and blanks None; `notes` has the source first."""

    name: str
    notes: tuple[str, ...]
    rows: tuple[Row, ...]

    def __iter__(self) -> Iterator[Row]:
        return (dict(row) for row in self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def source(self) -> str:
        return self.notes[0].removeprefix("source: ")

    def where(self, **values: Any) -> Table:
        """The rows that have these values in these columns."""
        self._check(values)
        kept = (row for row in self.rows if all(row[column] == value for column, value in values.items()))
        return Table(self.name, self.notes, tuple(kept))

    def only(self, **values: Any) -> Row:
        """The one row that has these values; ValueError, naming the values there are, if none or several do."""
        found = self.where(**values).rows
        if len(found) != 1:
            there = {column: sorted({str(row[column]) for row in self.rows}) for column in values}
            raise ValueError(f"table {self.name}: {len(found)} rows with {values}; there are {there}")
        return dict(found[0])

    def hidden(self) -> Table:
        """The same, with the numbers in columns named measured_… replaced by NaN in rows that are held out."""
        def shown(row: Row) -> Row:
            held = row.get("split") == "holdout"
            return {k: nan if held and k.startswith("measured") and v is not None else v for k, v in row.items()}

        return Table(self.name, self.notes, tuple(map(shown, self.rows)))

    def _check(self, columns: Any) -> None:
        for column in columns:
            if column not in self.rows[0]:
                raise ValueError(f"table {self.name}: no column {column!r}; there are {', '.join(self.rows[0])}")


@lru_cache
def table(name: str) -> Table:
    """The table of this name; `known()` lists them."""
    if name not in known():
        raise ValueError(f"published: no table {name!r}; there are {', '.join(known())}")
    lines = (FOLDER / f"{name}.csv").read_text(encoding="utf-8").splitlines()
    notes = tuple(line.removeprefix("#").strip() for line in lines if line.startswith("#"))
    rows = csv.DictReader(line for line in lines if not line.startswith("#"))
    return Table(name, notes, tuple({k: _value(v) for k, v in row.items()} for row in rows))


def known() -> list[str]:
    """The names of all tables."""
    return sorted(path.stem for path in FOLDER.glob("*.csv"))


def _value(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return text or None


__all__ = ["Row", "Table", "known", "table"]
