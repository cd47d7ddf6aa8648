"""Adding an elementwise op touches one file and brings its own tests: one is written here, and everything else follows."""
import importlib.util
import sys

import numpy as np
import pytest

import minigrad as mg
from minigrad.check import LAWS, Trial, check_op
from minigrad.ops import CATALOGUE, derived
from minigrad.ops.symbols import C, NUMBA, emit
from minigrad.tensor import INTERNAL

SOURCE = '''
"""The whole of a new op: sinh."""
import numpy as np

from minigrad.ops.op import Elementwise, op


@op
class Sinh(Elementwise):
    """(exp(x) - exp(-x)) / 2"""

    functional = method = "sinh"
    onnx, reference, takes, ops_per_element = "Sinh", np.sinh, "float", 18

    def forward(self, o, x):
        return (o.exp(x) - o.exp(-x)) * o.lit(0.5)

    def dx(self, o, g, x):
        return g * ((o.exp(x) + o.exp(-x)) * o.lit(0.5))
'''
WRONG = SOURCE.replace("Sinh", "Wrong").replace('"sinh"', '"wrong"')


def module_of(source, folder, name):
    """The module that a student would add to `minigrad/ops/`."""
    path = folder / f"{name}.py"
    path.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def sinh(tmp_path_factory):
    """The op, entered in the catalogue for the time of these tests."""
    before = list(CATALOGUE)
    try:
        yield module_of(SOURCE, tmp_path_factory.mktemp("ops"), "sinh_op").Sinh
    finally:
        CATALOGUE[:] = before
        sys.modules.pop("sinh_op", None)


def test_its_function_and_method_come_from_the_tables(sinh):
    assert derived("functional")["sinh"] is derived("method")["sinh"]
    x = mg.tensor([0.5, -1.0], requires_grad=True)
    np.testing.assert_allclose(derived("functional")["sinh"](x).detach().numpy(), np.sinh([0.5, -1.0]), rtol=1e-6)


def test_its_tests_come_from_its_declaration(sinh):
    """Shapes that broadcast, empty, 0-d and strided; every law: dtypes, infer, meta, gradient, second derivative, saves, door, sim, source."""
    assert sinh in CATALOGUE and check_op(sinh) == len(sinh.samples()) >= 5
    assert {"gradient", "second", "infer", "meta", "sim", "source", "saves", "door"} <= LAWS.keys()


def test_its_text_for_compilers(sinh):
    assert emit(sinh.of(), NUMBA) == "((np.exp(x) - np.exp((-x))) * f4(0.5))" and "expf" in emit(sinh.of(), C, "x")


def test_it_saves_what_its_rule_names_and_knows_its_cost(sinh):
    x = mg.tensor([1.0, 2.0], requires_grad=True)
    y = derived("functional")["sinh"](x)
    assert y.grad_fn.saved == (x.array,) and y.grad_fn.name() == "SinhBackward"
    assert sinh.of().flops(y.aval, x.aval) == 36 and sinh.of().bytes(y.aval, x.aval) == 16


@pytest.mark.parametrize("fault, law", [
    (lambda s: s.replace("(o.exp(x) + o.exp(-x))", "(o.exp(x) - o.exp(-x))"), "gradient"),
    (lambda s: s.replace("return g * (", "return (o.exp(x) + g - g) * ("), "gradient"),
    (lambda s: s.replace("- o.exp(-x)) * o.lit(0.5)\n", "- o.exp(-x)) * o.lit(0.4)\n"), "reference"),
    (lambda s: s.replace("* o.lit(0.5))", "* np.float64(0.5))"), "gradient"),
    (lambda s: s.replace("- o.exp(-x)) * o.lit(0.5)", "- o.exp(-x)) * np.float64(0.5)"), "dtype"),
    (lambda s: s.replace("return g * (", "return 2 * g * (").replace("* o.lit(0.5))", "* o.lit(0.25))"), "gradient"),
    (lambda s: s.replace("return (o.exp(x) -", "return (np.exp(np.asarray(x)) -"), "sim"),
    (lambda s: s.replace("return g * (", "return g * 1.0 * (").replace("* o.lit(0.5))", "* np.ones((), 'f8'))"), "gradient"),
    (lambda s: s.replace("    def dx", "    def out_dtype(self, avals): return np.dtype('f8')\n\n    def dx"), "infer"),
])
def test_a_fault_in_it_is_found(fault, law, tmp_path):
    """The generated tests are not a formality: each of these breaks the law it should."""
    before, source = list(CATALOGUE), fault(WRONG)
    assert source != WRONG
    try:
        cls = module_of(source, tmp_path, "wrong_op").Wrong
        with pytest.raises((AssertionError, TypeError), match="Wrong|Symbol|o.lit|sim:0|tolerance"):
            for sample in cls.samples():
                LAWS[law](Trial(sample))
    finally:
        CATALOGUE[:] = before
        sys.modules.pop("wrong_op", None)


@pytest.mark.parametrize("rule, words", [
    ("def dx(self, o, g, z):\n        return g", r"reads \['z'\]"), ("def dx(self, o, g, mean):\n        return g", r"reads \['mean'\]"),
])
def test_a_rule_that_reads_what_is_not_there_is_refused_at_once(rule, words, tmp_path):
    head, _ = WRONG.split("    def dx")
    before = list(CATALOGUE)
    with pytest.raises(TypeError, match=f"Wrong.dx {words}"):
        module_of(f"{head}    {rule}\n", tmp_path, "wrong_op")
    assert CATALOGUE == before
    sys.modules.pop("wrong_op", None)


def test_user_code_is_not_taken_for_the_librarys(sinh):
    """An op defined outside the package: `made_at` still names the line that called it."""
    y = derived("functional")["sinh"](mg.tensor([1.0], requires_grad=True))
    assert y.made_at.startswith(__file__) and __file__ not in INTERNAL
