"""The algebra `o` on symbols: an op's forward and rules as source text, every literal typed.

`PYTHON` text runs on NumPy arrays (the flattened doors and pulls of `plan.py` are made of it); `NUMBA` and `C` text
runs
on scalars and is what the graph compiler fuses.  A bare `1.0` would make numba compute in float64, and so would a truth
value times a number: both are cast.
"""
from __future__ import annotations

import math
from dataclasses import dataclass


class NotSymbolic(Exception):
    """The rule uses something that has no text, so it is called instead."""


@dataclass(frozen=True, eq=False)
class Dialect:
    """How one language writes the algebra.  `call` maps a function of the algebra to a pattern."""

    lit: str
    call: dict[str, str]
    select: str
    number: str                        # a truth value as a number
    zero: str | None = None
    one: str | None = None
    once: bool = False                 # nobody finds equal parts of the text: what is used twice is computed twice


class Symbols:
    """An `o` whose values are `Symbol`s."""

    eager = True

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self.zero = Symbol(dialect.zero, self, name=True) if dialect.zero else self.lit(0)
        self.one = Symbol(dialect.one, self, name=True) if dialect.one else self.lit(1)

    def lit(self, v) -> Symbol:
        if not math.isfinite(v):
            raise NotSymbolic(f"{v} is no literal")
        return Symbol(self.dialect.lit.format(float(v)), self, name=True)

    def where(self, c, a, b) -> Symbol:
        return Symbol(self.dialect.select.format(c=c.text, a=a.number, b=b.number), self)

    def __getattr__(self, name: str):
        pattern = self.dialect.call.get(name)
        if pattern is None:
            raise NotSymbolic(name)
        truth = name in ("isnan", "isfinite", "isinf", "logical_not")
        return lambda *xs: Symbol(pattern.format(*(x.number for x in xs)), self, truth)


class Symbol:
    """A piece of source text that knows whether it is a truth value, and whether it only names a value."""

    def __init__(self, text: str, o: Symbols, truth: bool = False, name: bool = False) -> None:
        self._text, self.o, self.truth, self.spent = text, o, truth, False
        self.many = name or not o.dialect.once

    @property
    def text(self) -> str:
        """The text; where nobody finds equal parts, that of an operation only once."""
        if self.spent and not self.many:
            raise NotSymbolic(f"{self._text} twice")
        self.spent = True
        return self._text

    @property
    def number(self) -> str:
        return self.o.dialect.number.format(self.text) if self.truth else self.text

    def __neg__(self) -> Symbol:
        return Symbol(f"(-{self.number})", self.o)

    def __pow__(self, b: Symbol) -> Symbol:
        return Symbol(self.o.dialect.call["pow"].format(self.number, b.number), self.o)

    def __bool__(self) -> bool:
        raise NotSymbolic("a Python `if` on a value")


def _operator(sign: str, truth: bool = False):
    def combined(a: Symbol, b: Symbol) -> Symbol:
        if not isinstance(b, Symbol):
            raise TypeError(
                f"a rule takes its numbers from the algebra, where they have a dtype: o.lit({b}), not {b!r}"
            )
        return Symbol(f"({a.number} {sign} {b.number})", a.o, truth)
    return combined


def _swapped(b: Symbol, a) -> Symbol:
    return b + a                                                  # `2 * x` in a rule: the same refusal


def _of_truths(sign: str):
    return lambda a, b: Symbol(f"({a.text} {sign} {b.text})", a.o, True)


for _name, _sign in dict(add="+", sub="-", mul="*", truediv="/").items():
    setattr(Symbol, f"__{_name}__", _operator(_sign))
    setattr(Symbol, f"__r{_name}__", _swapped)
for _name, _sign in dict(gt=">", ge=">=", lt="<", le="<=", eq="==", ne="!=").items():
    setattr(Symbol, f"__{_name}__", _operator(_sign, truth=True))
for _name, _sign in {"and": "&", "or": "|"}.items():
    setattr(Symbol, f"__{_name}__", _of_truths(_sign))

_NUMPY = "exp log log1p expm1 sqrt tanh sin cos tan sinh cosh exp2 log2 log10 abs sign floor ceil trunc rint".split()
_NUMPY += "maximum minimum isnan logical_not".split()
_ARCS = {
    "asin": "arcsin",
    "acos": "arccos",
    "atan": "arctan",
    "asinh": "arcsinh",
    "acosh": "arccosh",
    "atanh": "arctanh",
}
_TWO = {"atan2": "arctan2", "hypot": "hypot", "fmod": "fmod"}
_POW = {"pow": "({} ** {})"}
PYTHON = Symbols(
    Dialect(
        "o.lit({!r})",
        {
            **{n: f"o.{n}({{}})" for n in (*_NUMPY, *_ARCS, "isfinite", "isinf", "erf", "positive", "sigmoid")},
            **_POW,
            **{n: f"o.{n}({{}}, {{}})" for n in ("maximum", "minimum", *_TWO)},
        },
        "o.where({c}, {a}, {b})",
        "{}",
        "o.zero",
        "o.one",
        once=True,
    )
)
NUMBA = Symbols(
    Dialect(
        "f4({!r})",
        {
            **{n: f"np.{n}({{}})" for n in _NUMPY},
            **{n: f"np.{m}({{}})" for n, m in _ARCS.items()},
            **_POW,
            **{n: f"np.{m}({{}}, {{}})" for n, m in _TWO.items()},
            "maximum": "np.maximum({}, {})",
            "positive": "np.maximum({}, f4(0))",
            "sigmoid": "(f4(1) / (f4(1) + np.exp(-{})))",
            "minimum": "np.minimum({}, {})",
            "abs": "abs({})",
            "logical_not": "(not {})",
        },
        "({a} if {c} else {b})",
        "f4({})",
    )
)
C = Symbols(
    Dialect(
        "{!r}f",
        {
            **{n: f"{n}f({{}})" for n in (*_NUMPY, *_ARCS)},
            **{n: f"{n}f({{}}, {{}})" for n in ("atan2", "hypot", "fmod")},
            "abs": "fabsf({})",
            "maximum": "fmaxf({}, {})",
            "positive": "fmaxf({}, 0.0f)",
            "sigmoid": "(1.0f / (1.0f + expf(-{})))",
            "minimum": "fminf({}, {})",
            "pow": "powf({}, {})",
            "isnan": "isnan({})",
            "logical_not": "(!{})",
            "sign": "copysignf(1.0f, {})",
        },
        "({c} ? {a} : {b})",
        "(float)({})",
    )
)


def emit(op, o: Symbols, gradient_of: str | None = None, truths: tuple[str, ...] = ()) -> str:
    """Source of an elementwise op's forward, or of one of its rules, in the names of its inputs, `y` and `g`.
    `truths` names the inputs that hold truth values."""
    names = op.reads[gradient_of] if gradient_of else op.inputs
    if op.variadic or any(n.endswith("_shape") for n in names):
        raise NotSymbolic("a rule on shapes")
    args = [Symbol(n, o, n in truths, name=True) for n in names]
    out = getattr(op, "d" + gradient_of)(o, Symbol("g", o, name=True), *args) if gradient_of else op.forward(o, *args)
    if not isinstance(out, Symbol):
        raise NotSymbolic("a rule that gives no symbol")
    return out.text if o is PYTHON else out.number
