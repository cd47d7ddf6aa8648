"""CTC: the loss is the sum over all ways to speak a text, and its gradient, by logits, equals differences."""

import itertools

import numpy as np
import pytest

import minigrad as mg
from minigrad.errors import GraphError
from minigrad.nn import functional as F

RNG = np.random.default_rng(0)
LOGITS = RNG.standard_normal((5, 4, 3))
TEXTS, TIMES, LENGTHS = [[1, 2], [2, 2], [1, 1], [2, 1]], [5, 4, 2, 3], [2, 2, 2, 0]    # the third cannot fit


def loss(logits, **how):
    how = {"reduction": "none", "zero_infinity": True, **how}
    return F.ctc_loss(logits.log_softmax(2), mg.tensor(TEXTS), mg.tensor(TIMES), tuple(LENGTHS), **how)


def probability(p: np.ndarray, text: list[int], blank: int) -> float:
    """Σ over every sequence of symbols that is `text` when repeats are one and blanks are left out."""
    total = 0.0
    for way in itertools.product(range(p.shape[1]), repeat=len(p)):
        spoken = [c for c, _ in itertools.groupby(way) if c != blank]
        total += np.prod(p[np.arange(len(p)), list(way)]) * (spoken == text)
    return total


@pytest.mark.parametrize("blank", [0, 2])
def test_the_loss_is_the_sum_over_all_ways(blank):
    texts = [[c if c != blank else 0 for c in text] for text in TEXTS]
    p = mg.tensor(LOGITS).softmax(2).numpy()
    got = F.ctc_loss(mg.tensor(LOGITS).log_softmax(2), mg.tensor(texts), TIMES, LENGTHS, blank, "none").numpy()
    for n, (t, s) in enumerate(zip(TIMES, LENGTHS)):
        want = probability(p[:t, n], texts[n][:s], blank)
        assert np.exp(-got[n]) == pytest.approx(want, rel=1e-12, abs=1e-300)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_the_gradient_by_logits_equals_differences(reduction):
    assert mg.gradcheck(lambda x: loss(x, reduction=reduction), mg.tensor(LOGITS, requires_grad=True))


def test_steps_after_the_end_and_texts_that_cannot_fit():
    x = mg.tensor(LOGITS, requires_grad=True)
    y = loss(x)
    y.sum().backward()
    assert y[2].item() == 0 and not x.grad[:, 2].any() and not x.grad[4:, 1].any() and x.grad[:4, 1].all()
    assert loss(x, zero_infinity=False)[2].item() == float("inf")


def test_texts_one_after_the_other_and_one_alone():
    x = mg.tensor(LOGITS).log_softmax(2)
    flat = mg.tensor([c for text, n in zip(TEXTS, LENGTHS) for c in text[:n]])
    np.testing.assert_array_equal(F.ctc_loss(x, flat, TIMES, LENGTHS, reduction="none").numpy(),
                                  loss(mg.tensor(LOGITS), zero_infinity=False).numpy())
    alone = F.ctc_loss(x[:, 0], mg.tensor(TEXTS[0]), (5,), (2,), reduction="none")
    assert alone.shape == () and alone.item() == loss(mg.tensor(LOGITS))[0].item()
    assert mg.nn.CTCLoss()(x, flat, TIMES, LENGTHS).item() == float("inf")
    assert mg.nn.CTCLoss(zero_infinity=True, reduction="sum")(x, flat, TIMES, LENGTHS).item() == pytest.approx(
        loss(mg.tensor(LOGITS), reduction="sum").item(), rel=1e-14)


def test_it_is_differentiated_once():
    x = mg.tensor(LOGITS, requires_grad=True)
    with pytest.raises(GraphError, match="second"):
        loss(x, reduction="sum").backward(create_graph=True)


@pytest.mark.parametrize(
    "bad", [
        lambda x: F.ctc_loss(x, mg.tensor(TEXTS), [6] * 4, LENGTHS),
        lambda x: F.ctc_loss(x, mg.tensor(TEXTS), TIMES, [3] * 4),
        lambda x: F.ctc_loss(x, mg.tensor(TEXTS) + 1, TIMES, LENGTHS),
        lambda x: F.ctc_loss(x, mg.tensor(TEXTS), TIMES, LENGTHS, 3),
        lambda x: F.ctc_loss(x, mg.tensor(TEXTS), TIMES[:3], LENGTHS), lambda x: F.ctc_loss(x, x, TIMES, LENGTHS),
        lambda x: F.ctc_loss(x, mg.tensor(TEXTS), TIMES, LENGTHS, reduction="most"),
    ])
def test_bad_input_is_refused(bad):
    with pytest.raises((RuntimeError, ValueError), match="ctc_loss"):
        bad(mg.tensor(LOGITS).log_softmax(2))
