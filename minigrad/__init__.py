"""minigrad: a small define-by-run engine with PyTorch's names.  The files, in reading order: README.md in this
folder."""
import os as _os  # noqa: I001
import sys as _sys
from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING

if "numpy" not in _sys.modules:
    # BLAS reads this when it loads.  Its threads then wait for more work 2^18 cycles long (80 µs), not 2^26, and leave
    # their core to lanes (`lanes.py`): a step of char-GPT took 184 ms instead of 215.
    _os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "18")

from minigrad import methods, autograd, dtype as _dtype  # noqa: F401, I001
from minigrad.aval import Aval
from minigrad.autograd import enable_grad, inference_mode, is_anomaly_enabled, no_grad, observe, set_grad_enabled
from minigrad.check import gradcheck, gradgradcheck
from minigrad.create import (
    Generator,
    arange,
    as_tensor,
    empty,
    empty_like,
    eye,
    from_numpy,
    full,
    full_like,
    get_rng_state,
    inf,
    linspace,
    manual_seed,
    nan,
    ones,
    ones_like,
    pi,
    rand,
    rand_like,
    randint,
    randn,
    randn_like,
    randperm,
    set_rng_state,
    tensor,
    zeros,
    zeros_like,
)
from minigrad.sampling import (
    bernoulli, can_cast, from_dlpack, is_floating_point, is_tensor, logspace, multinomial, normal, numel, poisson,
    promote_types, randint_like, result_type, tril_indices, triu_indices,
)
from minigrad.device import Device, cuda_is_available, device
from minigrad.dtype import (
    bool_,
    double,
    float16,
    float32,
    float64,
    get_default_dtype,
    half,
    int8,
    int16,
    int32,
    int64,
    long,
    set_default_dtype,
    uint8,
)
from minigrad.function import Function
from minigrad.ops import derived as _derived

from minigrad.ops.fused import log_softmax, logsumexp, softmax
from minigrad.ops.index import gather
from minigrad.ops.matmul import matmul
from minigrad.ops.public import FUNCTIONS as _FUNCTIONS
from minigrad.ops.reduce_functions import all, amax, amin, any, argmax, argmin, max, mean, min, sum, var
from minigrad.ops.shape import cat, clone, stack
from minigrad.ops.views import flatten, permute, reshape, squeeze, t, transpose, unsqueeze
from minigrad.methods import clamp, norm, pow, where
from minigrad.tensor import Node, Tensor, is_grad_enabled, is_inference, is_inference_mode_enabled
from minigrad import jacobians, nn, saved
from minigrad.ops import linalg, special
from minigrad.save import load, save

autograd.Function, autograd.gradcheck, autograd.gradgradcheck = Function, gradcheck, gradgradcheck
autograd.graph = _sys.modules[f"{__name__}.autograd.graph"] = saved
autograd.functional = _sys.modules[f"{__name__}.autograd.functional"] = jacobians
bool = bool_
for _name, _op in {**_derived("functional"), **_FUNCTIONS}.items():  # every op under its own name
    globals().setdefault(_name, _op)
for _name in (                                          # PyTorch has these in both places
        "adaptive_avg_pool1d adaptive_max_pool1d alpha_dropout avg_pool1d batch_norm bilinear "
        "binary_cross_entropy_with_logits celu channel_shuffle conv1d conv2d conv_transpose1d conv_transpose2d "
        "cosine_embedding_loss ctc_loss "
        "dropout embedding embedding_bag group_norm hardshrink hinge_embedding_loss instance_norm kl_div layer_norm "
        "margin_ranking_loss max_pool1d max_pool2d pairwise_distance pixel_shuffle pixel_unshuffle poisson_nll_loss "
        "prelu rms_norm rrelu selu threshold triplet_margin_loss").split():
    globals().setdefault(_name, getattr(nn.functional, _name))


if _TYPE_CHECKING:
    from minigrad import amp, data, memory, optim, profiler, search, utils, viz
    from minigrad.amp import GradScaler
    from minigrad.comparison import compare
    from minigrad.profiler import profile
_LATER = ("amp", "data", "memory", "optim", "profiler", "search", "utils", "viz")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER, "GradScaler", "compare", "draw", "profile"})


def __getattr__(name: str):
    """What few programs or none need at once loads when it is first asked for: `import minigrad` stays fast."""
    if name == "draw":
        return _import_module(f"{__name__}.viz").draw
    if name == "GradScaler":
        return _import_module(f"{__name__}.amp").GradScaler
    if name == "profile":
        return _import_module(f"{__name__}.profiler").profile
    if name == "compare":
        return _import_module(f"{__name__}.comparison").compare
    if name in _LATER:
        return _import_module(f"{__name__}.{name}")
    if name == "bfloat16":                              # where the package ml_dtypes is
        return _dtype.bfloat16
    raise AttributeError(f"module 'minigrad' has no attribute {name!r}")


_ip = getattr(_sys.modules.get("IPython"), "get_ipython", lambda: None)()
if _ip is not None:                                    # a notebook: a tensor shown in a cell draws its graph
    _ip.display_formatter.mimebundle_formatter.for_type_by_name(
        "minigrad.tensor", "Tensor", lambda t: _import_module(f"{__name__}.viz.show").bundle(t))
