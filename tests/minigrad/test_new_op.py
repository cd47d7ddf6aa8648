"""Adding an elementwise op touches one file and brings its own tests: one is written here, and the rest follows."""

import importlib.util
import sys

import numpy as np
import pytest

import minigrad as mg
from minigrad.laws import LAWS, Trial, check_op
from minigrad.ops import CATALOGUE, derived
from minigrad.ops.symbols import NUMBA, C, emit
from minigrad.tensor import INTERNAL

SOURCE = '''
"""The whole of a new op."""
import numpy as np

from minigrad.ops.op import Elementwise, NoOnnx, op


@op
class Bump(Elementwise):
    """exp(-x * x)"""

    functional = method = "bump"
    onnx, takes, ops_per_element = NoOnnx("written as Mul and Exp"), "float", 10

    def forward(self, o, x):
        return o.exp(-(x * x))

    def dx(self, o, g, x, y):
        return g * (x * y * o.lit(-2))

    @staticmethod
    def reference(x):
        return np.exp(-x ** 2)
'''
WRONG = SOURCE.replace("Bump", "Wrong").replace('"bump"', '"wrong"')


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
def bump(tmp_path_factory):
    """The op, entered in the catalogue for the time of these tests."""
    before = list(CATALOGUE)
    try:
        yield module_of(SOURCE, tmp_path_factory.mktemp("ops"), "bump_op").Bump
    finally:
        CATALOGUE[:] = before
        sys.modules.pop("bump_op", None)


def test_its_function_and_method_come_from_the_tables(bump):
    assert derived("functional")["bump"] is derived("method")["bump"]
    x = mg.tensor([0.5, -1.0], requires_grad=True)
    np.testing.assert_allclose(derived("functional")["bump"](x).detach().numpy(), np.exp([-0.25, -1.0]), rtol=1e-6)


def test_its_tests_come_from_its_declaration(bump):
    """On shapes that broadcast, empty, 0-d and strided, every law holds, from dtypes to generated source."""
    assert bump in CATALOGUE and check_op(bump) == len(bump.samples()) >= 5
    assert {"gradient", "second", "infer", "meta", "sim", "source", "saves", "door"} <= LAWS.keys()


def test_its_text_for_compilers(bump):
    assert emit(bump.of(), NUMBA) == "np.exp((-(x * x)))"
    assert emit(bump.of(), C, "x") == "(g * ((x * y) * -2.0f))" and "expf" in emit(bump.of(), C)


def test_it_saves_what_its_rule_names_and_knows_its_cost(bump):
    x = mg.tensor([1.0, 2.0], requires_grad=True)
    y = derived("functional")["bump"](x)
    assert y.grad_fn.saved == (x.array, y.array) and y.grad_fn.name() == "BumpBackward"
    assert bump.of().flops(y.aval, x.aval) == 20 and bump.of().bytes(y.aval, x.aval) == 16


@pytest.mark.parametrize(
    "fault, law",
    [
        (lambda s: s.replace("o.lit(-2)", "o.lit(2)"), "gradient"),
        (lambda s: s.replace("return g * (", "return g - g + ("), "gradient"),
        (lambda s: s.replace("o.exp(-(x * x))", "o.exp(-(x * x * x))"), "reference"),
        (lambda s: s.replace("o.lit(-2)", "-2"), "gradient"),
        (lambda s: s.replace("return g * (x * y * o.lit(-2))", "return -2 * g * x * y"), "gradient"),
        (lambda s: s.replace("o.lit(-2)", "np.float64(-2)"), "gradient"),
        (lambda s: s.replace("o.exp(-(x * x))", "o.exp(-(x * x)) * np.float64(1)"), "dtype"),
        (lambda s: s.replace("o.exp(-(x * x))", "np.exp(-np.asarray(x) ** 2)"), "sim"),
        (lambda s: s.replace("    def dx", "    def out_dtype(self, a): return np.dtype('f8')\n\n    def dx"), "infer"),
    ],
)
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


@pytest.mark.parametrize(
    "rule, words",
    [
        ("def dx(self, o, g, z):\n        return g", r"reads \['z'\]"),
        ("def dx(self, o, g, mean):\n        return g", r"reads \['mean'\]"),
    ],
)
def test_a_rule_that_reads_what_is_not_there_is_refused_at_once(rule, words, tmp_path):
    head, _ = WRONG.split("    def dx")
    before = list(CATALOGUE)
    with pytest.raises(TypeError, match=f"Wrong.dx {words}"):
        module_of(f"{head}    {rule}\n", tmp_path, "wrong_op")
    assert CATALOGUE == before
    sys.modules.pop("wrong_op", None)


def test_user_code_is_not_taken_for_the_librarys(bump):
    """An op defined outside the package: `made_at` still names the line that called it."""
    y = derived("functional")["bump"](mg.tensor([1.0], requires_grad=True))
    assert y.made_at.startswith(__file__) and __file__ not in INTERNAL
