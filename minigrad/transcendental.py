"""The error and the gamma function with their kin, and functions of matrices, on raw arrays of any device: what NumPy
has not.

After `device.py`, before `algebra.py`, which offers them to the ops as `o.erf`, `o.lgamma`, ….
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
    cut = xp.floor(a * 16.0) / 16.0
    return xp.exp(-cut * cut) * xp.exp(-(a - cut) * (a + cut)) * _scaled_tail(xp, a)


def _scaled_tail(xp, a):
    """exp(a²) erfc(a) on [0.46875, ∞)."""
    middle = _polynomial(xp.minimum(a, 4.0), _C) / _polynomial(xp.minimum(a, 4.0), _D)
    s = 1.0 / (a * a)
    far = (1 / math.sqrt(math.pi) - s * _polynomial(s, _P) / _polynomial(s, _Q)) / a
    return xp.where(a <= 4.0, middle, far)


def erfcx(xp, x):
    """exp(x²) erfc(x): erfc without its decay, so that logarithms of tails do not underflow."""
    wide = x.astype("f8")
    a = xp.maximum(wide, 0.46875)
    low = xp.minimum(wide, 0.46875)
    left = xp.exp(low * low) * erfc(xp, low)                # 2 exp(x²) far to the left, which overflows as it should
    return xp.where(wide >= 0.46875, _scaled_tail(xp, a), left).astype(x.dtype)


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


# ---- the gamma function: shifted up to where its asymptotic series is exact (Abramowitz and Stegun 6.1.41, 6.3.18)
_FAR = 10.0                                                 # from here on the series below reach double precision
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510, 43867 / 798)   # B₂, B₄, …


def lgamma(xp, x):
    """log |Γ(x)|; infinite at 0, -1, -2, …."""
    wide = x.astype("f8")
    left = wide < 0.5
    a = xp.where(left, 1.0 - wide, wide)
    product, shifted = xp.ones_like(a), a
    for _ in range(10):
        low = shifted < _FAR
        product = xp.where(low, product * shifted, product)
        shifted = xp.where(low, shifted + 1.0, shifted)
    r = 1.0 / shifted
    series = _polynomial(r * r, tuple(b / (2 * k * (2 * k - 1)) for k, b in _numbered(7))) * r
    y = (shifted - 0.5) * xp.log(shifted) - shifted + 0.5 * math.log(2 * math.pi) + series - xp.log(product)
    y = xp.where(a == math.inf, math.inf, y)
    sine = xp.absolute(xp.sin(math.pi * (wide - xp.rint(wide))))
    pole = left & (sine == 0)
    mirrored = math.log(math.pi) - xp.log(xp.where(pole | (sine == 0), 1.0, sine)) - y      # Γ(x) Γ(1-x) = π / sin πx
    y = xp.where(left, xp.where(pole, math.inf, mirrored), y)
    return xp.where(wide == -math.inf, math.inf, y).astype(x.dtype)


def _numbered(n: int) -> list:
    """(k, B₂ₖ) for k = n … 1: the highest power first."""
    return [(k, _BERNOULLI[k - 1]) for k in range(n, 0, -1)]


def digamma(xp, x):
    """The derivative of log Γ(x): ∓infinity at ±0, NaN at -1, -2, …."""
    wide = x.astype("f8")
    left = wide <= 0
    a = xp.where(left, 1.0 - wide, wide)
    total, shifted = xp.zeros_like(a), a
    for _ in range(10):
        low = shifted < _FAR
        total = xp.where(low, total - 1.0 / shifted, total)
        shifted = xp.where(low, shifted + 1.0, shifted)
    r = 1.0 / (shifted * shifted)
    y = total + xp.log(shifted) - 0.5 / shifted - _polynomial(r, tuple(b / (2 * k) for k, b in _numbered(7))) * r
    turn = wide - xp.rint(wide)
    whole = turn == 0
    slope = math.pi / xp.tan(math.pi * xp.where(whole, 0.5, turn))
    y = xp.where(left, xp.where(whole, math.nan, y - slope), y)
    return xp.where(wide == 0, xp.copysign(math.inf, -wide), y).astype(x.dtype)


def polygamma(xp, n: int, x):
    """The n-th derivative of `digamma`, n from 1: n! Σ 1 / (x + k)ⁿ⁺¹, with the sign of (-1)ⁿ⁺¹."""
    wide = x.astype("f8")
    pole = (wide <= 0) & (wide == xp.floor(wide))
    a = xp.where(pole, 1.0, wide)
    if n == 1:                                              # ψ₁(x) + ψ₁(1 - x) = (π / sin πx)²
        left = a <= 0
        sine = xp.where(left, xp.sin(math.pi * xp.where(left, a, 0.5)), 1.0)
        y = _hurwitz(xp, 2, xp.where(left, 1.0 - a, a))
        y = xp.where(left, (math.pi / sine) ** 2 - y, y)
    else:                                                   # terms of negative numbers are a difference of two sums
        left = a < 0
        part = xp.where(left, a - xp.floor(a), a)
        near, all_ = (_hurwitz(xp, n + 1, xp.where(left, 1.0 - v, 1.0)) for v in (part, a))
        y = _hurwitz(xp, n + 1, part) + (-1.0) ** (n + 1) * (near - all_)
    return (xp.where(pole, math.inf, y) * (math.factorial(n) * (-1.0) ** (n + 1))).astype(x.dtype)


def _hurwitz(xp, s: int, a):
    """Σ 1 / (a + k)ˢ of a > 0: terms up to where Euler and Maclaurin's formula takes over."""
    total, shifted = xp.zeros_like(a), a
    for _ in range(int(_FAR)):
        low = shifted < _FAR
        total = xp.where(low, total + shifted**-s, total)
        shifted = xp.where(low, shifted + 1.0, shifted)
    total = total + shifted ** (1 - s) / (s - 1) + 0.5 * shifted**-s
    factor, power = float(s), shifted ** (-s - 1)
    for k, b in reversed(_numbered(9)):
        total = total + b / math.factorial(2 * k) * factor * power
        factor, power = factor * (s + 2 * k - 1) * (s + 2 * k), power / (shifted * shifted)
    return total


# ---- of matrices ----------------------------------------------------------------------------------------------------
def pinv(xp, x, rtol: float, atol: float):
    """The pseudo-inverse; singular values up to max(atol, rtol · the largest) count as 0."""
    u, s, vt = xp.linalg.svd(x, full_matrices=False)
    top = s[..., :1]
    kept = s > xp.maximum(top * rtol, xp.full_like(top, atol))
    inverse = kept / xp.where(kept, s, xp.ones_like(s))
    return (vt.swapaxes(-1, -2) * inverse[..., None, :]) @ u.swapaxes(-1, -2)


def matrix_exp(x, unit, squarings: int):
    """exp of matrices, `unit` being the unit matrix: scaled down by a power of two, Taylor's series, squared up again
    (Moler and Van Loan 2003)."""
    small = x * 0.5**squarings
    y = term = x * 0 + unit
    for k in range(1, 19):                                  # 0.5¹⁸ / 18! is below the rounding of float64
        term = (term @ small) * (1 / k)
        y = y + term
    for _ in range(squarings):
        y = y @ y
    return y


__all__ = ["digamma", "erf", "erfc", "erfcx", "erfinv", "lgamma", "pinv", "polygamma"]
