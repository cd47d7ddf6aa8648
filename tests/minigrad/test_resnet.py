"""Nets for images: their size and names, their gradients, the residual start, and that they can learn two images."""

import numpy as np
import pytest

import minigrad as mg
from minigrad import nn
from minigrad.check import gradcheck
from minigrad.nn.resnet import BasicBlock, Bottleneck, LeNet, ResNet, resnet18, resnet20, resnet50


def tiny(**how):
    mg.manual_seed(0)
    return ResNet(BasicBlock, (1, 1), 3, widths=(3, 4), channels=2, **how)


def test_sizes_and_names():
    """The numbers of parameters are the published ones; the names are torchvision's."""
    count = lambda net: sum(p.numel() for p in net.parameters())
    assert count(LeNet()) == 61_706 and count(resnet20()) == 272_474 and count(resnet18()) == 11_689_512
    names = list(resnet20().state_dict())
    assert names[0] == "conv1.weight" and names[-1] == "fc.bias"
    assert "layer2.0.downsample.1.running_var" in names and "layer1.0.downsample.0.weight" not in names


def test_shapes():
    assert LeNet()(mg.zeros(2, 1, 28, 28)).shape == (2, 10)
    assert resnet20(7)(mg.zeros(1, 3, 32, 32)).shape == (1, 7)
    deep = ResNet(Bottleneck, (1, 1), 5, widths=(4, 8), small=False)
    assert deep(mg.zeros(1, 3, 32, 32)).shape == (1, 5) and deep.layer2[0].conv2.stride == (2, 2)
    assert resnet50.__name__ == "resnet50" and deep.fc.in_features == 32
    with pytest.raises(ValueError, match="at least one"):
        ResNet(BasicBlock, (1, 0))


@pytest.mark.parametrize("block", [BasicBlock, Bottleneck])
def test_a_block_is_its_formula(block):
    mg.manual_seed(1)
    b, x = block(4, 2, 2).double().eval(), mg.randn(2, 4, 5, 5, dtype=mg.float64)
    f = nn.Sequential(b.conv1, b.bn1, nn.ReLU(), b.conv2, b.bn2)
    if block is Bottleneck:
        f = nn.Sequential(*f, nn.ReLU(), b.conv3, b.bn3)
    want = (f(x) + b.downsample(x)).relu()
    np.testing.assert_allclose(b(x).detach().numpy(), want.detach().numpy(), rtol=1e-12)
    assert gradcheck(block(2, 1).double(), mg.randn(2, 2, 3, 3, dtype=mg.float64).requires_grad_())


def test_a_block_may_start_as_the_identity():
    net = tiny(zero_init_residual=True)
    x = mg.randn(2, 3, 4, 4).abs()
    np.testing.assert_array_equal(net.layer1(x).detach().numpy(), x.numpy())


def test_two_images_are_learnt():
    for net, images in ((tiny(), mg.randn(2, 2, 6, 6)), (LeNet(), mg.randn(2, 1, 28, 28))):
        target, optimiser = mg.tensor([0, 2]), mg.optim.SGD(net.parameters(), 0.05, momentum=0.9)
        for _ in range(40):
            optimiser.zero_grad()
            loss = nn.functional.cross_entropy(net(images), target)
            loss.backward()
            optimiser.step()
        assert loss.item() < 0.05
