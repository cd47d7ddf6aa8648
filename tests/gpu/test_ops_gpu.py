"""Every op of the catalogue on a real GPU through CuPy.  Never run yet: nobody here has had one.

Whoever has a GPU for an hour runs `python3 run.py test gpu` and records what comes of it in docs/status.md.
"""

import zlib

import pytest

import minigrad as mg
from minigrad.laws import Trial, on_device
from minigrad.ops import CATALOGUE

if not mg.cuda_is_available():
    pytest.skip("no GPU with CuPy here", allow_module_level=True)
SAMPLES = [s for cls in CATALOGUE for s in cls.samples() if "sim" not in s.skip]


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_the_gpu_gives_what_the_host_gives(sample):
    trial = Trial(sample, seed=zlib.crc32(str(sample).encode()))
    on_device(trial, mg.device("cuda:0"), rtol=1e-9)      # float64; sums may be added in another order


def test_a_training_step_copies_nothing_back_and_forth():
    net = mg.nn.Sequential(mg.nn.Linear(8, 16), mg.nn.ReLU(), mg.nn.Linear(16, 3)).to("cuda:0")
    x = mg.randn(4, 8, device="cuda:0")
    loss = net(x).square().mean()
    loss.backward()
    mg.optim.Adam(net.parameters(), lr=0.01).step()
    assert str(net[0].weight.grad.device) == "cuda:0"
