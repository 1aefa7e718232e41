"""Modules: trees of parameters, and the layers that networks are made of.

In: tensors. Out: ``Module``, the layers, and ``init`` with the initialisers.
After ``functional`` and ``random``; before ``optimizer``.
"""

from . import init
from .activation import (
    CELU,
    ELU,
    GELU,
    GLU,
    SELU,
    Hardtanh,
    HSigmoid,
    HSwish,
    LeakyReLU,
    LogSigmoid,
    LogSoftmax,
    PReLU,
    ReLU,
    ReLU6,
    Sigmoid,
    SiLU,
    Softmax,
    Softplus,
    Softsign,
    Tanh,
)
from .attention import MultiHeadAttention
from .conv import Conv1d, Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
from .linear import Dropout, Embedding, Flatten, Identity, Linear
from .loss import (
    BCELoss,
    BCEWithLogitsLoss,
    CosineEmbeddingLoss,
    CrossEntropyLoss,
    CTCLoss,
    HingeLoss,
    HuberLoss,
    KLDivLoss,
    L1Loss,
    MSELoss,
    NLLLoss,
    SmoothL1Loss,
    TripletMarginLoss,
)
from .module import HookHandler, Module
from .normalization import (
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    GroupNorm,
    InstanceNorm,
    LayerNorm,
    RMSNorm,
    SyncBatchNorm,
)
from .padding import Pad, PixelShuffle, ZeroPad
from .pooling import (
    AdaptiveAvgPool1d,
    AdaptiveAvgPool2d,
    AdaptiveAvgPool3d,
    AdaptiveMaxPool1d,
    AdaptiveMaxPool2d,
    AdaptiveMaxPool3d,
    AvgPool1d,
    AvgPool2d,
    AvgPool3d,
    MaxPool1d,
    MaxPool2d,
    MaxPool3d,
)
from .rnn import GRU, LSTM, RNN, GRUCell, LSTMCell, RNNCell
from .sequential import Sequential
from .transformer import (
    Transformer,
    TransformerDecoder,
    TransformerDecoderLayer,
    TransformerEncoder,
    TransformerEncoderLayer,
)

__all__ = [
    "Module", "HookHandler", "Sequential", "Identity", "init",
    "Linear", "Embedding", "Dropout", "Flatten",
    "Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d",
    "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "SyncBatchNorm",
    "LayerNorm", "RMSNorm", "GroupNorm", "InstanceNorm",
    "MaxPool1d", "MaxPool2d", "MaxPool3d", "AvgPool1d", "AvgPool2d", "AvgPool3d",
    "AdaptiveMaxPool1d", "AdaptiveMaxPool2d", "AdaptiveMaxPool3d",
    "AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "AdaptiveAvgPool3d",
    "ReLU", "ReLU6", "LeakyReLU", "PReLU", "ELU", "CELU", "SELU", "GELU", "SiLU", "GLU",
    "Sigmoid", "LogSigmoid", "HSigmoid", "HSwish", "Hardtanh", "Tanh", "Softplus", "Softsign",
    "Softmax", "LogSoftmax",
    "RNNCell", "LSTMCell", "GRUCell", "RNN", "LSTM", "GRU",
    "MultiHeadAttention", "TransformerEncoderLayer", "TransformerDecoderLayer",
    "TransformerEncoder", "TransformerDecoder", "Transformer",
    "Pad", "ZeroPad", "PixelShuffle",
    "L1Loss", "MSELoss", "SmoothL1Loss", "HuberLoss", "CrossEntropyLoss", "BCELoss", "BCEWithLogitsLoss",
    "NLLLoss", "KLDivLoss", "HingeLoss", "TripletMarginLoss", "CosineEmbeddingLoss", "CTCLoss",
]  # fmt: skip
