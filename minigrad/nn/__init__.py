"""Models and their parts, under `torch.nn`'s names.  The files, in reading order: README.md in this folder."""

from minigrad.nn import functional, init, utils
from minigrad.nn.activations import (
    CELU,
    ELU,
    GELU,
    GLU,
    SELU,
    Hardshrink,
    Hardsigmoid,
    Hardswish,
    Hardtanh,
    LeakyReLU,
    LogSigmoid,
    LogSoftmax,
    Mish,
    PReLU,
    ReLU,
    ReLU6,
    Sigmoid,
    SiLU,
    Softmax,
    Softmax2d,
    Softmin,
    Softplus,
    Softshrink,
    Softsign,
    Tanh,
    Tanhshrink,
    Threshold,
)
from minigrad.nn.attention import MultiheadAttention
from minigrad.nn.containers import ModuleDict, ModuleList, ParameterDict, ParameterList, Sequential
from minigrad.nn.convolutions import Conv1d, Conv2d, ConvTranspose1d, ConvTranspose2d
from minigrad.nn.ensemble import Ensemble
from minigrad.nn.gpt import CharGPT, GPTConfig, TransformerBlock
from minigrad.nn.layers import (
    AlphaDropout,
    Bilinear,
    CosineSimilarity,
    Dropout,
    Dropout1d,
    Dropout2d,
    Embedding,
    Identity,
    Linear,
    PairwiseDistance,
)
from minigrad.nn.llama import Llama, LlamaBlock, LlamaConfig
from minigrad.nn.loss import (
    BCELoss,
    BCEWithLogitsLoss,
    CosineEmbeddingLoss,
    CrossEntropyLoss,
    CTCLoss,
    GaussianNLLLoss,
    HingeEmbeddingLoss,
    HuberLoss,
    KLDivLoss,
    L1Loss,
    MarginRankingLoss,
    MSELoss,
    MultiLabelSoftMarginLoss,
    MultiMarginLoss,
    NLLLoss,
    PoissonNLLLoss,
    SmoothL1Loss,
    SoftMarginLoss,
    TripletMarginLoss,
)
from minigrad.nn.module import Module
from minigrad.nn.moe import MoE
from minigrad.nn.norm import (
    BatchNorm1d,
    BatchNorm2d,
    GroupNorm,
    InstanceNorm1d,
    InstanceNorm2d,
    LayerNorm,
    LocalResponseNorm,
    RMSNorm,
)
from minigrad.nn.parameter import Parameter
from minigrad.nn.pooling import (
    AdaptiveAvgPool1d,
    AdaptiveAvgPool2d,
    AdaptiveMaxPool1d,
    AdaptiveMaxPool2d,
    AvgPool1d,
    AvgPool2d,
    MaxPool1d,
    MaxPool2d,
)
from minigrad.nn.positions import LearnedPositions, SinusoidalPositions
from minigrad.nn.rnn import GRU, LSTM, RNN, RNNBase
from minigrad.nn.rnn_cells import GRUCell, LSTMCell, RNNCell
from minigrad.nn.shapes import (
    CircularPad1d,
    CircularPad2d,
    ConstantPad1d,
    ConstantPad2d,
    Flatten,
    Fold,
    PixelShuffle,
    PixelUnshuffle,
    ReflectionPad1d,
    ReflectionPad2d,
    ReplicationPad1d,
    ReplicationPad2d,
    Unflatten,
    Unfold,
    Upsample,
    ZeroPad1d,
    ZeroPad2d,
)
from minigrad.nn.transformer import (
    Transformer,
    TransformerDecoder,
    TransformerDecoderLayer,
    TransformerEncoder,
    TransformerEncoderLayer,
)
from minigrad.nn.tree import ChildSumTreeLSTM
