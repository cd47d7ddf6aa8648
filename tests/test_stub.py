"""The stub of Tensor says what the table of methods says."""

from tests.stub_writer import STUB, stub


def test_the_stub_is_what_the_table_says():
    assert STUB.read_text(encoding="utf-8") == stub(), "run: python run.py -m tests.stub_writer"
