"""`mg.special`: the functions of mathematics under the names of that module of PyTorch.  After `public.py`."""

from __future__ import annotations

from minigrad.ops import derived
from minigrad.ops.arithmetic import round
from minigrad.ops.exponential import logit
from minigrad.ops.fused import log_softmax, logsumexp, softmax
from minigrad.ops.gamma import entr, mvlgamma as multigammaln, ndtr, ndtri, polygamma, xlog1py

_table = derived("functional")
digamma = psi = _table["digamma"]
erf, erfc, erfcx, erfinv, log_ndtr = (_table[name] for name in ("erf", "erfc", "erfcx", "erfinv", "log_ndtr"))
exp2, expm1, log1p, sinc, xlogy = (_table[name] for name in ("exp2", "expm1", "log1p", "sinc", "xlogy"))
gammaln, expit = _table["lgamma"], _table["sigmoid"]

__all__ = [
    "digamma", "entr", "erf", "erfc", "erfcx", "erfinv", "exp2", "expit", "expm1", "gammaln", "log1p", "log_ndtr",
    "log_softmax", "logit", "logsumexp", "multigammaln", "ndtr", "ndtri", "polygamma", "psi", "round", "sinc",
    "softmax", "xlog1py", "xlogy",
]  # fmt: skip
