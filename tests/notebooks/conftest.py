"""The notebooks import their helpers as neighbours; so do their tests.  What the laws of the checks run with."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "notebooks"))
pytest.register_assert_rewrite("tests.notebooks.check_laws")


@pytest.fixture
def said(capsys):
    """What a check prints about these answers."""

    def run(check, *answers) -> str:
        check(*answers)
        return capsys.readouterr().out

    return run


def pytest_generate_tests(metafunc):
    """A test that takes `right` or `wrong` runs once for each answer in the table of its module."""
    for table in ("right", "wrong"):
        if table in metafunc.fixturenames:
            rows = getattr(metafunc.module, table.upper()).items()
            pairs = [(check, answer) for check, answers in rows for answer in answers]
            names = [f"{check.__name__}-{k}" for check, answers in rows for k in range(len(answers))]
            metafunc.parametrize(table, pairs, ids=names)
