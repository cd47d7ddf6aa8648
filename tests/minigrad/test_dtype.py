"""Dtypes: PyTorch's promotion as a golden table, numbers and 0-d tensors, ints in float ops, writes."""

import operator

import numpy as np
import pytest

import minigrad as mg
from minigrad.dtype import DTYPES, as_dtype, promote
from minigrad.errors import DTypeError

try:
    BFLOAT16 = mg.bfloat16
except DTypeError:                                       # without the package ml_dtypes
    BFLOAT16 = None
PROMOTION = """
         | bool     uint8    int8     int16    int32    int64    bfloat16 float16  float32  float64
bool     | bool     uint8    int8     int16    int32    int64    bfloat16 float16  float32  float64
uint8    | uint8    uint8    int16    int16    int32    int64    bfloat16 float16  float32  float64
int8     | int8     int16    int8     int16    int32    int64    bfloat16 float16  float32  float64
int16    | int16    int16    int16    int16    int32    int64    bfloat16 float16  float32  float64
int32    | int32    int32    int32    int32    int32    int64    bfloat16 float16  float32  float64
int64    | int64    int64    int64    int64    int64    int64    bfloat16 float16  float32  float64
bfloat16 | bfloat16 bfloat16 bfloat16 bfloat16 bfloat16 bfloat16 bfloat16 float32  float32  float64
float16  | float16  float16  float16  float16  float16  float16  float32  float16  float32  float64
float32  | float32  float32  float32  float32  float32  float32  float32  float32  float32  float64
float64  | float64  float64  float64  float64  float64  float64  float64  float64  float64  float64
"""
HEAD, *ROWS = PROMOTION.strip("\n").splitlines()
ORDER = [name for name in HEAD.split()[1:] if BFLOAT16 is not None or name != "bfloat16"]
GOLDEN = {
    (row.split()[0], column): value
    for row in ROWS
    for column, value in zip(HEAD.split()[1:], row.split()[2:])
    if {row.split()[0], column} <= {*ORDER}
}


def make(dtype, shape=(2,), device="cpu"):
    return mg.ones(*shape, dtype=dtype, device=device) if shape else mg.ones((), dtype=dtype)


@pytest.mark.parametrize("a, b", GOLDEN)
def test_promotion_is_pytorchs(a, b):
    want = as_dtype(GOLDEN[a, b])
    assert promote(as_dtype(a), as_dtype(b)) == want
    for device in ("cpu", "sim:0", "meta"):
        x, y = make(a, device=device), make(b, device=device)
        assert (x + y).dtype == (y * x).dtype == mg.maximum(x, y).dtype == mg.cat([x, y]).dtype == want
        assert mg.where(x > 0, x, y).dtype == want
        assert (x == y).dtype == (x > y).dtype == mg.bool_


@pytest.mark.parametrize("a, b", GOLDEN)
def test_a_tensor_without_axes_lifts_the_category_only(a, b):
    x, y = make(a), make(b, ())
    category = lambda name: 0 if name == "bool" else 1 if "int" in name else 2
    want = b if category(b) > category(a) else a
    assert (x + y).dtype == (y + x).dtype == as_dtype(want)
    assert (make(a, ()) + y).dtype == as_dtype(GOLDEN[a, b])


@pytest.mark.parametrize("shape", [(2,), ()])
@pytest.mark.parametrize("dtype", ORDER)
def test_a_python_number_lifts_the_category_only(dtype, shape):
    x = make(dtype, shape)
    is_float, is_bool = "float" in dtype, dtype == "bool"
    assert (x * True).dtype == as_dtype(dtype)
    assert (x * 2).dtype == (2 + x).dtype == (mg.int64 if is_bool else as_dtype(dtype))
    assert (x * 2.5).dtype == (2.5 + x).dtype == (as_dtype(dtype) if is_float else mg.float32)
    for number in (np.float64(2.5), np.float32(2.5), np.int64(2), np.bool_(True)):
        assert (x * number).dtype == (x * number.item()).dtype == (number * x).dtype


@pytest.mark.parametrize("dtype", ORDER)
def test_float_ops_take_integers_in_the_default_dtype(dtype):
    x, want = make(dtype), as_dtype(dtype) if "float" in dtype else mg.float32
    for y in (x.exp(), x.sqrt(), x.log(), x.sigmoid(), x / x, x / 2, 1 / x, x.tanh(), x.softmax(0), x.sin()):
        assert y.dtype == want


def test_the_default_dtype_is_read_when_it_is_needed():
    x = mg.tensor([1, 2])
    for dtype in (mg.float64, mg.float16, mg.float32):
        mg.set_default_dtype(dtype)
        try:
            made = [
                x * 2.5,
                2.5 - x,
                x / 2,
                x.exp(),
                mg.tensor(2.5),
                mg.zeros(2),
                mg.randn(2),
                mg.full((2,), 1.5),
                x.to(float),
            ]
            made += [mg.where(x > 1, 1.5, 2), mg.arange(0.0, 1.0), mg.linspace(0, 1, 3), mg.eye(2), mg.tensor([])]
        finally:
            mg.set_default_dtype(mg.float32)
        assert {y.dtype for y in made} == {dtype}


@pytest.mark.parametrize("dtype", ORDER)
def test_reductions(dtype):
    x = make(dtype, (2, 3))
    is_float = "float" in dtype
    assert x.sum().dtype == x.sum(0).dtype == (as_dtype(dtype) if is_float else mg.int64)
    assert x.amax().dtype == x.max(1)[0].dtype == x.min().dtype == as_dtype(dtype)
    assert x.argmax().dtype == x.max(0)[1].dtype == mg.int64
    assert x.all().dtype == x.any(0).dtype == mg.bool_
    if is_float:
        assert x.mean().dtype == x.var().dtype == as_dtype(dtype)
    else:
        with pytest.raises(DTypeError, match="mean.*dtype"):
            x.mean()


def test_small_integers_add_up_without_overflow_and_wrap_in_their_own_arithmetic():
    x = mg.tensor([100, 100, 100], dtype=mg.int8)
    assert x.sum().item() == 300 and (x + x).tolist() == [-56] * 3
    assert (mg.tensor([200, 255], dtype=mg.uint8) + 1).tolist() == [201, 0]


@pytest.mark.parametrize("op", [operator.iadd, operator.imul, operator.isub])
@pytest.mark.parametrize("a", ORDER)
@pytest.mark.parametrize("b", ORDER)
def test_a_write_keeps_the_dtype_and_never_drops_a_category(op, a, b):
    if op is operator.isub and "bool" in (a, b):
        return
    category = lambda name: 0 if name == "bool" else 1 if "int" in name else 2
    x, y = make(a), make(b)
    if category(GOLDEN[a, b]) > category(a):
        with pytest.raises(DTypeError, match=f"{GOLDEN[a, b]}.*{a}"):
            op(x, y)
        assert x.tolist() == [1, 1]
    else:
        assert op(x, y) is x and x.dtype == as_dtype(a)


def test_assignment_converts():
    x = mg.tensor([1, 2, 3])
    x[0], x[1:] = 2.9, mg.tensor([-1.9, 7.0])
    assert x.tolist() == [2, -1, 7] and x.dtype == mg.int64
    assert x.copy_(mg.tensor([1.5, 2.5, -0.5])).tolist() == [1, 2, 0]


def test_conversion_is_differentiable_between_floats_and_cuts_at_integers():
    x = mg.tensor([1.5, 2.5], requires_grad=True)
    y = x.double()
    (y * mg.tensor([3.0, 4.0], dtype=mg.float64)).sum().backward()
    assert x.grad.dtype == mg.float32 and x.grad.tolist() == [3, 4]
    assert not x.long().requires_grad and not x.bool().requires_grad
    assert x.to(mg.float32) is x and x.to(mg.float32, copy=True) is not x


def test_mixed_floats_each_get_their_own_dtype_back():
    x, y = mg.ones(2, requires_grad=True), mg.ones(2, dtype=mg.float64, requires_grad=True)
    h = mg.ones((), dtype=mg.float16, requires_grad=True)
    ((x * y) * h).sum().backward()
    assert (x.grad.dtype, y.grad.dtype, h.grad.dtype) == (mg.float32, mg.float64, mg.float16)


@pytest.mark.parametrize("a, b", [("float32", "float64"), ("int64", "float32"), ("float16", "float32")])
def test_products_of_two_dtypes_are_refused(a, b):
    with pytest.raises(DTypeError, match=rf"matmul.*{a}\[2, 2\].*{b}\[2, 2\]"):
        make(a, (2, 2)) @ make(b, (2, 2))


@pytest.mark.parametrize(
    "name",
    ["complex64", "object", "str", "datetime64", "uint16", "uint32", "uint64", "longdouble", "nonsense", None, 3],
)
def test_other_dtypes_are_refused_with_the_list_of_those_there_are(name):
    if name is None:  # NumPy's float64, PyTorch's nothing
        return
    with pytest.raises(DTypeError, match="float32"):
        as_dtype(name)


def test_names_and_python_types_mean_dtypes():
    assert as_dtype(float) == mg.float32 and as_dtype(int) == mg.int64 and as_dtype(bool) == mg.bool_
    for name, dtype in DTYPES.items():
        assert as_dtype(name) is as_dtype(dtype) and as_dtype(dtype.newbyteorder()).isnative


def test_bitwise_operators_are_logical_on_truth_values_and_work_on_the_bits_of_integers():
    m, x = mg.tensor([True, False]), mg.tensor([1, 6])
    truths = [(m & True).tolist(), (m | m).tolist(), (m ^ True).tolist(), (~m).tolist()]
    assert truths == [[True, False], [True, False], [False, True], [False, True]]
    bits = [(x & 4).tolist(), (x | 1).tolist(), (x ^ x).tolist(), (~x).tolist(), (x << 1).tolist(), (m & x).tolist()]
    assert bits == [[0, 4], [1, 7], [0, 0], [-2, -7], [2, 12], [1, 0]]
    for bad in (lambda: x & 1.5, lambda: ~mg.tensor([1.0]), lambda: mg.tensor([1.0]) | x, lambda: m << m):
        with pytest.raises(DTypeError, match="integers|bits"):
            bad()


@pytest.mark.parametrize("mixed", [lambda t, a: t + a, lambda t, a: a + t, lambda t, a: t * a, lambda t, a: t.add_(a)])
def test_an_array_beside_a_tensor_is_refused_with_the_way_out(mixed):
    with pytest.raises(TypeError, match=r"(add|mul): expected a Tensor or a number .* got ndarray. .*mg.tensor"):
        mixed(mg.ones(2), np.ones(2))
