"""The error function and its inverse on raw arrays of any device, as NumPy has neither.

After `device.py`, before `algebra.py`, which offers them to the ops as `o.erf` and `o.erfinv`.
"""
from __future__ import annotations

import math

# erf in double precision: W. J. Cody, "Rational Chebyshev approximations for the error function",
# Math. Comp. 23 (1969): |x| ≤ 0.46875, then erfc up to 4, then erfc beyond.
_A = (1.85777706184603153e-1, 3.16112374387056560, 1.13864154151050156e2, 3.77485237685302021e2,
      3.20937758913846947e3)
_B = (1.0, 2.36012909523441209e1, 2.44024637934444173e2, 1.28261652607737228e3,
      2.84423683343917062e3)
_C = (2.15311535474403846e-8, 5.64188496988670089e-1, 8.88314979438837594, 6.61191906371416295e1,
      2.98635138197400131e2, 8.81952221241769090e2, 1.71204761263407058e3, 2.05107837782607147e3,
      1.23033935479799725e3)
_D = (1.0, 1.57449261107098347e1, 1.17693950891312499e2, 5.37181101862009858e2,
      1.62138957456669019e3, 3.29079923573345963e3, 4.36261909014324716e3, 3.43936767414372164e3,
      1.23033935480374942e3)
_P = (1.63153871373020978e-2, 3.05326634961232344e-1, 3.60344899949804439e-1,
      1.25781726111229246e-1, 1.60837851487422766e-2, 6.58749161529837803e-4)
_Q = (1.0, 2.56852019228982242, 1.87295284992346725, 5.27905102951428412e-1,
      6.05183413124413191e-2, 2.33520497626869185e-3)
# erf in single precision: one rational function of x on [-4, 4], where it reaches ±1 (as Eigen).
_ODD = (-2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06, -5.69250639462346e-05,
        -7.34990630326855e-04, -2.95459980854025e-03, -1.60960333262415e-02)
_EVEN = (-1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03,
         -7.37332916720468e-03, -1.42647390514189e-02)


def _polynomial(x, coefficients: tuple[float, ...]):
    """The polynomial with these coefficients, the highest power first (Horner)."""
    y = x * coefficients[0] + coefficients[1]
    for c in coefficients[2:]:
        y = y * x + c
    return y


def erf(xp, x):
    """2/√π ∫₀ˣ exp(-t²) dt, to an ulp or two of float64, and of float32 for narrower inputs."""
    if x.dtype.itemsize == 8:
        a = xp.minimum(xp.absolute(x), 6.0)                 # erf(6) is 1 in double precision
        near = _near(xp.minimum(a, 0.46875))
        tail = _tail(xp, xp.maximum(a, 0.46875))
        return xp.copysign(xp.where(a <= 0.46875, near, 1.0 - tail), x)
    wide = x.astype("f4") if x.dtype.itemsize < 4 else x
    a = xp.maximum(xp.minimum(wide, 4.0), -4.0)
    y = a * _polynomial(a * a, _ODD) / _polynomial(a * a, _EVEN)
    return xp.maximum(xp.minimum(y, 1.0), -1.0).astype(x.dtype)


def erfc(xp, x):
    """1 - erf(x), without losing the tail: erfc(10) is 2e-45."""
    a = xp.minimum(xp.absolute(x.astype("f8")), 27.5)       # erfc(27.5) is 0 in double precision
    near = 1.0 - _near(xp.minimum(a, 0.46875))
    tail = xp.where(a <= 0.46875, near, _tail(xp, xp.maximum(a, 0.46875)))
    return xp.where(x < 0, 2.0 - tail, tail).astype(x.dtype)


def _near(a):
    """erf on [0, 0.46875]."""
    return a * _polynomial(a * a, _A) / _polynomial(a * a, _B)


def _tail(xp, a):
    """erfc on [0.46875, ∞); exp(-a²) in two factors, as a² itself is rounded."""
    middle = _polynomial(xp.minimum(a, 4.0), _C) / _polynomial(xp.minimum(a, 4.0), _D)
    s = 1.0 / (a * a)
    far = (1 / math.sqrt(math.pi) - s * _polynomial(s, _P) / _polynomial(s, _Q)) / a
    cut = xp.floor(a * 16.0) / 16.0
    return xp.exp(-cut * cut) * xp.exp(-(a - cut) * (a + cut)) * xp.where(a <= 4.0, middle, far)


def erfinv(xp, x):
    """The x whose erf is given, in (-1, 1): Giles's approximation (2010), then Newton's steps."""
    full = x.astype("f8")
    inside = xp.absolute(full) < 1
    y = xp.where(inside, full, 0.0)
    w = -xp.log((1.0 - y) * (1.0 + y))
    near = _polynomial(xp.minimum(w, 5.0) - 2.5, (
        2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087,
        -0.00125372503, -0.00417768164, 0.246640727, 1.50140941))
    far = _polynomial(xp.sqrt(xp.maximum(w, 5.0)) - 3.0, (
        -0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773,
        -0.0076224613, 0.00943887047, 1.00167406, 2.83297682))
    a = xp.absolute(xp.where(w < 5.0, near, far) * y)
    far = xp.absolute(y) > 0.5                              # there Newton's steps on log erfc
    rest = xp.where(far, 1.0 - xp.absolute(y), 1.0)
    for _ in range(3):
        tail = erfc(xp, a)
        off = xp.where(far, tail * xp.log(rest / tail), erf(xp, a) - xp.absolute(y))
        a = a - off * xp.exp(a * a) * (math.sqrt(math.pi) / 2)
    ends = xp.where(full == 1, math.inf, xp.where(full == -1, -math.inf, math.nan))
    return xp.where(inside, xp.copysign(a, y), ends).astype(x.dtype)
