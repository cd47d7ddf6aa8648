"""Nets for images: LeNet (LeCun et al. 1998), ResNets (He et al. 2016) with torchvision's names.  After `models.py`.

`resnet20` and its kin are those for small images: a stem of one 3 × 3 convolution, three stages of width 16, 32, 64.
`resnet18`, `34`, `50` have four stages and, unless `small`, the stem for photographs, which shrinks them fourfold.
"""

from __future__ import annotations

from collections.abc import Sequence

from minigrad.nn import functional as F, init
from minigrad.nn.activations import ReLU
from minigrad.nn.containers import Sequential
from minigrad.nn.convolutions import Conv2d
from minigrad.nn.layers import Identity, Linear
from minigrad.nn.module import Module
from minigrad.nn.norm import BatchNorm2d
from minigrad.nn.pooling import AdaptiveAvgPool2d, MaxPool2d
from minigrad.ops.views import flatten
from minigrad.tensor import Tensor


class LeNet(Module):
    """Images (N, channels, 28, 28) to logits (N, num_classes): two convolutions, three dense layers; 61,706 parameters.

    With ReLU and the largest of each window, in place of the sigmoids and means of 1998."""

    def __init__(self, num_classes: int = 10, channels: int = 1) -> None:
        self.conv1 = Conv2d(channels, 6, 5, padding=2)
        self.conv2 = Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc3 = Linear(400, 120), Linear(120, 84), Linear(84, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.fc1(flatten(x, 1)))
        return self.fc3(F.relu(self.fc2(x)))


def conv(inputs: int, outputs: int, size: int, stride: int = 1) -> Conv2d:
    """A convolution that keeps the size at stride 1; without bias, as a batch norm follows."""
    return Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)


class Block(Module):
    """A residual block: relu(x + f(x)), with x brought to the shape of f(x) by `downsample` where it differs."""

    expansion = 1                                     # channels out, as a multiple of `planes`

    def __init__(self, inplanes: int, planes: int, stride: int = 1) -> None:
        outputs = planes * self.expansion
        self.relu = ReLU()
        fits = stride == 1 and inplanes == outputs
        self.downsample = None if fits else Sequential(conv(inplanes, outputs, 1, stride), BatchNorm2d(outputs))

    def residual(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    @property
    def last_norm(self) -> BatchNorm2d:
        """The batch norm at the end of f."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        short = x if self.downsample is None else self.downsample(x)
        return self.relu(self.residual(x) + short)


class BasicBlock(Block):
    """Two 3 × 3 convolutions."""

    def __init__(self, inplanes: int, planes: int, stride: int = 1) -> None:
        self.conv1, self.bn1 = conv(inplanes, planes, 3, stride), BatchNorm2d(planes)
        self.conv2, self.bn2 = conv(planes, planes, 3), BatchNorm2d(planes)
        super().__init__(inplanes, planes, stride)

    def residual(self, x: Tensor) -> Tensor:
        return self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))

    @property
    def last_norm(self) -> BatchNorm2d:
        return self.bn2


class Bottleneck(Block):
    """1 × 1 to fewer channels, 3 × 3, 1 × 1 to four times as many; the stride is at the 3 × 3."""

    expansion = 4

    def __init__(self, inplanes: int, planes: int, stride: int = 1) -> None:
        self.conv1, self.bn1 = conv(inplanes, planes, 1), BatchNorm2d(planes)
        self.conv2, self.bn2 = conv(planes, planes, 3, stride), BatchNorm2d(planes)
        self.conv3, self.bn3 = conv(planes, 4 * planes, 1), BatchNorm2d(4 * planes)
        super().__init__(inplanes, planes, stride)

    def residual(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x))))))
        return self.bn3(self.conv3(x))

    @property
    def last_norm(self) -> BatchNorm2d:
        return self.bn3


class ResNet(Module):
    """Images (N, channels, H, W) to logits (N, num_classes).

    `layers`: blocks of each stage; `widths`: their planes, each stage but the first halving the image.  `small`: a stem
    of one 3 × 3 convolution, else 7 × 7 at stride 2 and pooling.  `zero_init_residual`: each block starts as the
    identity."""

    def __init__(
        self,
        block: type[Block],
        layers: Sequence[int],
        num_classes: int = 10,
        zero_init_residual: bool = False,
        widths: Sequence[int] = (64, 128, 256, 512),
        small: bool = True,
        channels: int = 3,
    ) -> None:
        if len(layers) > len(widths) or min(layers, default=0) < 1:
            raise ValueError(f"ResNet: {list(layers)} blocks in stages of width {list(widths)}: at least one in each")
        self.conv1 = conv(channels, widths[0], 3) if small else conv(channels, widths[0], 7, 2)
        self.bn1, self.relu = BatchNorm2d(widths[0]), ReLU()
        self.maxpool = Identity() if small else MaxPool2d(3, 2, 1)
        inplanes = widths[0]
        for k, (count, planes) in enumerate(zip(layers, widths)):
            first = block(inplanes, planes, 2 if k else 1)
            inplanes = planes * block.expansion
            rest = [block(inplanes, planes) for _ in range(count - 1)]
            self.add_module(f"layer{k + 1}", Sequential(first, *rest))
        self.avgpool, self.fc = AdaptiveAvgPool2d((1, 1)), Linear(inplanes, num_classes)
        self.stages = len(layers)
        for module in self.modules():
            if isinstance(module, Conv2d):
                init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if isinstance(module, Block) and zero_init_residual:
                init.zeros_(module.last_norm.weight)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for k in range(self.stages):
            x = self.get_submodule(f"layer{k + 1}")(x)
        return self.fc(flatten(self.avgpool(x), 1))


def resnet20(num_classes: int = 10, **how) -> ResNet:
    """The small-image net of 20 layers; 272,474 parameters with `channels=3` and shortcuts by convolution."""
    return ResNet(BasicBlock, (3, 3, 3), num_classes, widths=(16, 32, 64), **how)


def resnet32(num_classes: int = 10, **how) -> ResNet:
    """The small-image net of 32 layers."""
    return ResNet(BasicBlock, (5, 5, 5), num_classes, widths=(16, 32, 64), **how)


def resnet18(num_classes: int = 1000, small: bool = False, **how) -> ResNet:
    """18 layers, for photographs unless `small`."""
    return ResNet(BasicBlock, (2, 2, 2, 2), num_classes, small=small, **how)


def resnet34(num_classes: int = 1000, small: bool = False, **how) -> ResNet:
    """34 layers, for photographs unless `small`."""
    return ResNet(BasicBlock, (3, 4, 6, 3), num_classes, small=small, **how)


def resnet50(num_classes: int = 1000, small: bool = False, **how) -> ResNet:
    """50 layers of bottlenecks, for photographs unless `small`."""
    return ResNet(Bottleneck, (3, 4, 6, 3), num_classes, small=small, **how)
