"""A table of modules: how each is made, what it is given, and which function it is.

Generated tests read it: `test_modules.py`, and beside PyTorch `tests/parity/test_modules.py`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class Row:
    """`getattr(nn, kind)(*args, **kwargs)` on `inputs`, each a text: a kind of number and a shape."""

    kind: str
    args: tuple
    inputs: tuple[str, ...]
    function: Callable                 # (F, module, *inputs)
    kwargs: dict = field(default_factory=dict)
    random: bool = False               # differs from run to run in training

    def make(self, nn):
        return getattr(nn, self.kind)(*self.args, **self.kwargs)

    def arrays(self, seed: int = 0) -> list[np.ndarray]:
        return [drawn(text, np.random.default_rng(seed + k)) for k, text in enumerate(self.inputs)]

    def __str__(self) -> str:
        said = [*map(str, self.args), *(f"{k}={v}" for k, v in self.kwargs.items())]
        return f"{self.kind}({', '.join(said)}) on {self.inputs[0]}"


DRAW = {
    "normal": lambda r, s: r.standard_normal(s),
    "apart": lambda r, s: r.permutation(int(np.prod(s))).reshape(s) * 0.31 - 2.0,
    "probability": lambda r, s: r.uniform(0.05, 0.95, s),
    "logs": lambda r, s: np.log(r.dirichlet(np.ones(s[-1]), s[:-1])),
    "shares": lambda r, s: r.dirichlet(np.ones(s[-1]), s[:-1]),
    "positive": lambda r, s: r.uniform(0.5, 2, s),
    "counts": lambda r, s: r.integers(0, 5, s).astype(float),
    "sign": lambda r, s: r.choice([-1.0, 1.0], s),
    "truth": lambda r, s: r.integers(0, 2, s).astype(float),
    "class": lambda r, s: r.integers(0, 3, s),
}


def drawn(text: str, rng: np.random.Generator) -> np.ndarray:
    """The array of a text such as "normal 2,3"."""
    kind, _, shape = text.partition(" ")
    return np.asarray(DRAW[kind](rng, tuple(int(n) for n in shape.split(",") if n)))


def plain(name: str, *shown: str) -> Callable:
    """F.name(x, and these attributes of the module)."""
    return lambda F, m, *xs: getattr(F, name)(*xs, *(getattr(m, each) for each in shown))


def row(kind: str, args, inputs, function, **kwargs) -> Row:
    inputs = (inputs,) if isinstance(inputs, str) else tuple(inputs)
    return Row(kind, args if isinstance(args, tuple) else (args,), inputs, function, kwargs)


X = "normal 2,6,5"
ACTIVATIONS = [
    row("ReLU", (), X, plain("relu")),
    row("ReLU6", (), X, plain("relu6")),
    row("SiLU", (), X, plain("silu")),
    row("Mish", (), X, plain("mish")),
    row("SELU", (), X, plain("selu")),
    row("Hardswish", (), X, plain("hardswish")),
    row("Hardsigmoid", (), X, plain("hardsigmoid")),
    row("Tanh", (), X, plain("tanh")),
    row("Sigmoid", (), X, plain("sigmoid")),
    row("LogSigmoid", (), X, plain("logsigmoid")),
    row("Softsign", (), X, plain("softsign")),
    row("Tanhshrink", (), X, plain("tanhshrink")),
    row("GELU", (), X, plain("gelu")),
    row("GELU", (), X, lambda F, m, x: F.gelu(x, approximate="tanh"), approximate="tanh"),
    row("Softplus", (), X, plain("softplus")),
    row("Softplus", 2.0, X, plain("softplus", "beta")),
    row("LeakyReLU", 0.2, X, plain("leaky_relu", "negative_slope")),
    row("ELU", 0.7, X, plain("elu", "alpha")),
    row("CELU", 0.5, X, plain("celu", "alpha")),
    row("Hardtanh", (-0.5, 0.8), X, lambda F, m, x: F.hardtanh(x, -0.5, 0.8)),
    row("Threshold", (0.1, -2.0), X, plain("threshold", "threshold", "value")),
    row("Hardshrink", 0.3, X, plain("hardshrink", "lambd")),
    row("Softshrink", 0.3, X, plain("softshrink", "lambd")),
    row("PReLU", (), X, plain("prelu", "weight")),
    row("PReLU", (6, 0.1), X, plain("prelu", "weight")),
    row("Softmax", 1, X, plain("softmax", "dim")),
    row("LogSoftmax", 1, X, plain("log_softmax", "dim")),
    row("Softmin", 1, X, plain("softmin", "dim")),
    row("Softmax2d", (), "normal 2,3,2,2", lambda F, m, x: F.softmax(x, 1)),
    row("GLU", 1, X, plain("glu", "dim")),
]
W = ("weight", "bias")
HOW = ("stride", "padding", "dilation", "groups")
IMAGE = "normal 2,4,6,5"
CONVOLUTIONS = [
    row("Conv1d", (6, 4, 3), X, plain("conv1d", *W)),
    row("Conv1d", (6, 4, 3), "normal 6,5", plain("conv1d", *W)),
    row("Conv1d", (6, 4, 2), X, plain("conv1d", *W, *HOW), stride=2, padding=1, dilation=2, groups=2),
    row("Conv2d", (4, 6, 3), IMAGE, plain("conv2d", *W)),
    row("Conv2d", (4, 6, (3, 2)), IMAGE, plain("conv2d", *W, *HOW),
        stride=(2, 1), padding=(1, 2), groups=2, bias=False),
    row("Conv2d", (4, 6, (3, 2)), IMAGE, plain("conv2d", *W, *HOW), padding="same", dilation=2),
    row("Conv2d", (4, 6, 3), IMAGE, plain("conv2d", *W, *HOW), padding="valid"),
    *(
        row("Conv2d", (4, 6, 3), IMAGE,
            lambda F, m, x, way=way: F.conv2d(F.pad(x, (2, 2, 1, 1), way), m.weight, m.bias),
            padding=(1, 2), padding_mode=way)
        for way in ("reflect", "replicate", "circular")
    ),
    row("Conv1d", (6, 4, 2), X, lambda F, m, x: F.conv1d(F.pad(x, (0, 1), "circular"), m.weight, m.bias),
        padding="same", padding_mode="circular"),
    row("ConvTranspose1d", (6, 4, 3), X, plain("conv_transpose1d", *W)),
    row("ConvTranspose1d", (6, 4, 3), X, lambda F, m, x: F.conv_transpose1d(x, m.weight, None, 3, 1, 2, 2, 2),
        stride=3, padding=1, output_padding=2, groups=2, bias=False, dilation=2),
    row("ConvTranspose2d", (4, 6, 3), IMAGE, plain("conv_transpose2d", *W)),
    row("ConvTranspose2d", (4, 6, (3, 2)), IMAGE,
        lambda F, m, x: F.conv_transpose2d(x, m.weight, m.bias, (2, 1), (1, 0), (1, 0), 2),
        stride=(2, 1), padding=(1, 0), output_padding=(1, 0), groups=2),
]
POOLING = [
    row("MaxPool1d", 2, "apart 2,3,6", lambda F, m, x: F.max_pool1d(x, 2)),
    row("MaxPool1d", 3, "apart 2,3,6", lambda F, m, x: F.max_pool1d(x, 3, 2, 1), stride=2, padding=1),
    row("MaxPool2d", 2, "apart 2,3,5,6", lambda F, m, x: F.max_pool2d(x, 2)),
    row("MaxPool2d", ((3, 2),), "apart 2,3,5,6", lambda F, m, x: F.max_pool2d(x, (3, 2), 2, 1, ceil_mode=True),
        stride=2, padding=1, ceil_mode=True),
    row("AvgPool1d", 2, X, lambda F, m, x: F.avg_pool1d(x, 2)),
    row("AvgPool1d", 3, X, lambda F, m, x: F.avg_pool1d(x, 3, 2, 1, False, False),
        stride=2, padding=1, count_include_pad=False),
    row("AvgPool2d", 2, IMAGE, lambda F, m, x: F.avg_pool2d(x, 2)),
    row("AvgPool2d", ((3, 2),), IMAGE, lambda F, m, x: F.avg_pool2d(x, (3, 2), 2, 1, divisor_override=5),
        stride=2, padding=1, divisor_override=5),
    row("AdaptiveAvgPool1d", 2, X, lambda F, m, x: F.adaptive_avg_pool1d(x, 2)),
    row("AdaptiveAvgPool2d", ((2, None),), IMAGE, lambda F, m, x: F.adaptive_avg_pool2d(x, (2, None))),
    row("AdaptiveMaxPool1d", 2, "apart 2,3,5", lambda F, m, x: F.adaptive_max_pool1d(x, 2)),
    row("AdaptiveMaxPool2d", 2, "apart 2,3,5,6", lambda F, m, x: F.adaptive_max_pool2d(x, 2)),
]
SHAPES = [
    row("Flatten", (), IMAGE, lambda F, m, x: x.reshape(2, -1)),
    row("Flatten", (2, 3), IMAGE, lambda F, m, x: x.reshape(2, 4, 30)),
    row("Unflatten", (1, (2, 3)), X, lambda F, m, x: x.reshape(2, 2, 3, 5)),
    row("Unfold", (2,), IMAGE, lambda F, m, x: F.unfold(x, 2)),
    row("Unfold", ((3, 2),), IMAGE, lambda F, m, x: F.unfold(x, (3, 2), 1, 1, 2), padding=1, stride=2),
    row("Fold", ((3, 4), 2), "normal 2,8,6", lambda F, m, x: F.fold(x, (3, 4), 2)),
    row("PixelShuffle", 2, IMAGE, lambda F, m, x: F.pixel_shuffle(x, 2)),
    row("PixelUnshuffle", 2, "normal 2,1,4,6", lambda F, m, x: F.pixel_unshuffle(x, 2)),
    row("ZeroPad1d", ((1, 2),), X, lambda F, m, x: F.pad(x, (1, 2))),
    row("ZeroPad2d", 1, IMAGE, lambda F, m, x: F.pad(x, (1, 1, 1, 1))),
    row("ConstantPad1d", (2, 0.5), X, lambda F, m, x: F.pad(x, (2, 2), value=0.5)),
    row("ConstantPad2d", ((1, 0, 2, 1), 0.5), IMAGE, lambda F, m, x: F.pad(x, (1, 0, 2, 1), value=0.5)),
    row("ReflectionPad1d", 2, X, lambda F, m, x: F.pad(x, (2, 2), "reflect")),
    row("ReflectionPad2d", ((1, 2, 1, 0),), IMAGE, lambda F, m, x: F.pad(x, (1, 2, 1, 0), "reflect")),
    row("ReplicationPad1d", 2, X, lambda F, m, x: F.pad(x, (2, 2), "replicate")),
    row("ReplicationPad2d", 2, IMAGE, lambda F, m, x: F.pad(x, (2, 2, 2, 2), "replicate")),
    row("CircularPad1d", 2, X, lambda F, m, x: F.pad(x, (2, 2), "circular")),
    row("CircularPad2d", 2, IMAGE, lambda F, m, x: F.pad(x, (2, 2, 2, 2), "circular")),
    row("Upsample", (), X, lambda F, m, x: F.interpolate(x, scale_factor=2.5), scale_factor=2.5),
    row("Upsample", (), IMAGE, lambda F, m, x: F.interpolate(x, (4, 9)), size=(4, 9)),
    row("Upsample", (), X, lambda F, m, x: F.interpolate(x, 7, mode="linear", align_corners=True),
        size=7, mode="linear", align_corners=True),
    row("Upsample", (), IMAGE, lambda F, m, x: F.interpolate(x, scale_factor=(1.7, 0.6), mode="bilinear"),
        scale_factor=(1.7, 0.6), mode="bilinear"),
]
NORMS = [
    row("BatchNorm1d", 6, X, lambda F, m, x: F.batch_norm(x, None, None, m.weight, m.bias, True)),
    row("BatchNorm1d", 6, "normal 4,6", lambda F, m, x: F.batch_norm(x, None, None, None, None, True),
        affine=False, track_running_stats=False),
    row("BatchNorm2d", 4, IMAGE, lambda F, m, x: F.batch_norm(x, None, None, m.weight, m.bias, True), momentum=None),
    row("LayerNorm", 5, X, lambda F, m, x: F.layer_norm(x, (5,), m.weight, m.bias)),
    row("LayerNorm", ((6, 5),), X,
        lambda F, m, x: F.layer_norm(x, (6, 5), eps=1e-3), elementwise_affine=False, eps=1e-3),
    row("GroupNorm", (2, 6), X, lambda F, m, x: F.group_norm(x, 2, m.weight, m.bias)),
    row("GroupNorm", (3, 6), X, lambda F, m, x: F.group_norm(x, 3, None, None, 1e-3), eps=1e-3, affine=False),
    row("InstanceNorm1d", 6, X, lambda F, m, x: F.instance_norm(x)),
    row("InstanceNorm1d", 6, X, lambda F, m, x: F.instance_norm(x, weight=m.weight, bias=m.bias),
        affine=True, track_running_stats=True),
    row("InstanceNorm2d", 4, IMAGE, lambda F, m, x: F.instance_norm(x, weight=m.weight, bias=m.bias), affine=True),
    row("LocalResponseNorm", 3, IMAGE, lambda F, m, x: F.local_response_norm(x, 3, 0.01), alpha=0.01),
    row("RMSNorm", 5, X, lambda F, m, x: F.rms_norm(x, (5,), m.weight)),
    row("RMSNorm", ((6, 5),), X, lambda F, m, x: F.rms_norm(x, (6, 5), eps=1e-3),
        eps=1e-3, elementwise_affine=False),
]
OTHERS = [
    row("Identity", (), X, lambda F, m, x: x),
    row("Linear", (5, 3), X, plain("linear", *W)),
    row("Linear", (5, 3), "normal 5", plain("linear", *W), bias=False),
    row("Bilinear", (5, 4, 3), ("normal 2,5", "normal 2,4"), plain("bilinear", *W)),
    row("CosineSimilarity", 2, (X, "normal 2,6,5"), plain("cosine_similarity", "dim")),
    row("PairwiseDistance", 1.5, (X, "normal 2,6,5"), lambda F, m, a, b: F.pairwise_distance(a, b, 1.5)),
    row("Embedding", (3, 4), "class 2,5", plain("embedding", "weight")),
]
RANDOM = [
    Row("Dropout", (0.4,), (X,), lambda F, m, x: F.dropout(x, 0.4), random=True),
    Row("Dropout1d", (0.4,), (X,), lambda F, m, x: F.dropout1d(x, 0.4), random=True),
    Row("Dropout2d", (0.4,), (IMAGE,), lambda F, m, x: F.dropout2d(x, 0.4), random=True),
    Row("AlphaDropout", (0.4,), (X,), lambda F, m, x: F.alpha_dropout(x, 0.4, True), random=True),
]
PAIR = ("normal 4,3", "normal 4,3")
LOSSES = [
    row("MSELoss", (), PAIR, plain("mse_loss")),
    row("L1Loss", (), PAIR, plain("l1_loss")),
    row("HuberLoss", (), PAIR, lambda F, m, *xs: F.huber_loss(*xs, delta=0.6), delta=0.6),
    row("SmoothL1Loss", (), PAIR, lambda F, m, *xs: F.smooth_l1_loss(*xs, beta=0.6), beta=0.6),
    row("KLDivLoss", (), ("logs 4,3", "shares 4,3"), lambda F, m, *xs: F.kl_div(*xs, reduction="batchmean"),
        reduction="batchmean"),
    row("KLDivLoss", (), ("logs 4,3", "logs 4,3"), lambda F, m, *xs: F.kl_div(*xs, reduction="sum", log_target=True),
        reduction="sum", log_target=True),
    row("CrossEntropyLoss", (), ("normal 4,3", "class 4"), plain("cross_entropy")),
    row("CrossEntropyLoss", (), ("normal 2,3,4", "class 2,4"),
        lambda F, m, *xs: F.cross_entropy(*xs, label_smoothing=0.1), label_smoothing=0.1),
    row("NLLLoss", (), ("logs 4,3", "class 4"), plain("nll_loss")),
    row("NLLLoss", (), ("normal 2,3,4", "class 2,4"), lambda F, m, *xs: F.nll_loss(*xs, reduction="none"),
        reduction="none"),
    row("BCELoss", (), ("probability 4,3", "probability 4,3"), plain("binary_cross_entropy")),
    row("BCEWithLogitsLoss", (), ("normal 4,3", "probability 4,3"), plain("binary_cross_entropy_with_logits")),
    row("PoissonNLLLoss", (), ("normal 4,3", "counts 4,3"), lambda F, m, *xs: F.poisson_nll_loss(*xs, full=True),
        full=True),
    row("GaussianNLLLoss", (), (*PAIR, "positive 4,3"), lambda F, m, *xs: F.gaussian_nll_loss(*xs, full=True),
        full=True),
    row("MarginRankingLoss", 0.3, ("normal 4", "normal 4", "sign 4"),
        lambda F, m, *xs: F.margin_ranking_loss(*xs, margin=0.3)),
    row("CosineEmbeddingLoss", 0.3, (*PAIR, "sign 4"), lambda F, m, *xs: F.cosine_embedding_loss(*xs, margin=0.3)),
    row("HingeEmbeddingLoss", 0.8, ("normal 4,3", "sign 4,3"),
        lambda F, m, *xs: F.hinge_embedding_loss(*xs, margin=0.8)),
    row("SoftMarginLoss", (), ("normal 4,3", "sign 4,3"), plain("soft_margin_loss")),
    row("MultiMarginLoss", (2, 0.7), ("normal 4,3", "class 4"), lambda F, m, *xs: F.multi_margin_loss(*xs, 2, 0.7)),
    row("MultiLabelSoftMarginLoss", (), ("normal 4,3", "truth 4,3"), plain("multilabel_soft_margin_loss")),
    row("TripletMarginLoss", (), (*PAIR, "normal 4,3"), lambda F, m, *xs: F.triplet_margin_loss(*xs, swap=True),
        swap=True),
]
ROWS = [*ACTIVATIONS, *CONVOLUTIONS, *POOLING, *SHAPES, *NORMS, *OTHERS, *LOSSES]
