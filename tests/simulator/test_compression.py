"""Laws of gradient compression: nothing is lost for ever, what claims to be unbiased is, low ranks are exact, all ranks
get the same mean, and the bytes that are said are the bytes that travel."""

import numpy as np
import pytest

from simulator.compression import Compressor, ErrorFeedback, Float16, Int8, Payload, PowerSGD, TopK
from simulator.spawn import spawn

COMPRESSORS = {
    "float16": Float16,
    "int8": lambda: Int8(block=16),
    "int8 nearest": lambda: Int8(block=16, stochastic=False),
    "top-k": lambda: TopK(0.1),
    "power": lambda: PowerSGD(2),
}
SHAPES = [(12, 10), (40,), (4, 3, 5), (), (0,), (3, 0)]
all_of_them = pytest.mark.parametrize("name", COMPRESSORS)


def gradients(count, shape, seed=0, dtype=np.float32):
    return [np.asarray(x) for x in np.random.default_rng(seed).standard_normal((count, *shape)).astype(dtype)]


@all_of_them
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16], ids=lambda d: np.dtype(d).name)
def test_shape_and_dtype_come_back_and_nothing_given_changes(name, shape, dtype):
    (gradient,) = gradients(1, shape, dtype=dtype)
    before = gradient.copy()
    compressor = ErrorFeedback(COMPRESSORS[name]())
    for _ in range(3):
        payload = compressor.encode(gradient)
        decoded = compressor.decode(payload)
        assert decoded.shape == shape and decoded.dtype == dtype
        assert payload.nbytes == sum(part.nbytes for part in payload.parts) == payload.packed().nbytes
    np.testing.assert_array_equal(gradient, before)


@all_of_them
def test_what_was_sent_and_the_residual_are_all_gradients(name):
    """sum of decoded + residual = sum of gradients; of 50 steps, to the rounding of sums of float64."""
    compressor = ErrorFeedback(COMPRESSORS[name]())
    steps = gradients(50, (12, 10), dtype=np.float64)
    sent = sum(compressor.decode(compressor.encode(gradient)) for gradient in steps)
    scale = np.abs(steps).sum(0).max()
    np.testing.assert_allclose(sent + compressor.residual, sum(steps), rtol=0, atol=50 * 2.0**-52 * scale)


@all_of_them
def test_the_residual_stays_small(name):
    """With feedback nothing piles up: after 300 equal gradients what is missing is a few steps' worth, not a part of
    all that was given."""
    compressor = ErrorFeedback(COMPRESSORS[name]())
    (gradient,) = gradients(1, (12, 10), dtype=np.float64)
    for _ in range(300):
        compressor.encode(gradient)
    assert np.linalg.norm(compressor.residual) < 25 * np.linalg.norm(gradient)


def test_without_feedback_small_values_never_arrive():
    gradient = np.array([1.0, 1e-3, 1e-3, 1e-3])
    alone, fed = TopK(1), ErrorFeedback(TopK(1))
    sent = [sum(c.decode(c.encode(gradient)) for _ in range(5000)) for c in (alone, fed)]
    np.testing.assert_array_equal(sent[0], [5000, 0, 0, 0])
    np.testing.assert_allclose(sent[1], 5000 * gradient, atol=2)


def test_int8_is_unbiased():
    """The mean of many codings is the gradient, within five standard errors of a rounding by chance (variance of one is
    at most scale² / 4); to the nearest it is not."""
    (gradient,) = gradients(1, (64,), dtype=np.float64)
    count, scale = 4000, np.abs(gradient).max() / 127
    coder = Int8(block=64, seed=3)
    mean = sum(coder.decode(coder.encode(gradient)) for _ in range(count)) / count
    np.testing.assert_allclose(mean, gradient, rtol=0, atol=5 * scale / 2 / np.sqrt(count))
    nearest = Int8(block=64, stochastic=False)
    assert np.abs(nearest.decode(nearest.encode(gradient)) - gradient).max() > 5 * scale / 2 / np.sqrt(count)


@pytest.mark.parametrize("stochastic", [True, False])
def test_int8_errs_by_less_than_a_step_of_its_block(stochastic):
    (gradient,) = gradients(1, (100,), dtype=np.float64)
    gradient[:16] *= 1e6  # a large block does not make the others coarse
    coder = Int8(block=16, stochastic=stochastic)
    wrong = np.abs(coder.decode(coder.encode(gradient)) - gradient)
    for at in range(0, 100, 16):
        scale = np.abs(gradient[at : at + 16]).max() / 127
        assert wrong[at : at + 16].max() <= scale * (1.0 if stochastic else 0.5) * (1 + 1e-9)


def test_top_k_is_the_best_of_so_many_values():
    """What it drops has the smallest norm possible: the values under the largest k."""
    (gradient,) = gradients(1, (50,))
    for keep in (1, 7, 50, 80, 0.1, 0.5):
        coder = TopK(keep)
        payload = coder.encode(gradient)
        count = min(int(keep) if keep >= 1 else int(np.ceil(keep * 50)), 50)
        assert len(payload.parts[0]) == count and payload.nbytes == 8 * count
        dropped = gradient - coder.decode(payload)
        smallest = np.sort(np.abs(gradient))[: 50 - count]
        np.testing.assert_array_equal(np.sort(np.abs(dropped))[count:], smallest)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_power_sgd_is_exact_on_matrices_of_its_rank(rank):
    rng = np.random.default_rng(0)
    for true_rank in range(1, rank + 1):
        matrix = rng.standard_normal((20, true_rank)) @ rng.standard_normal((true_rank, 15))
        coder = PowerSGD(rank)
        payload = coder.encode(matrix)
        assert payload.nbytes == 8 * rank * (20 + 15)
        np.testing.assert_allclose(coder.decode(payload), matrix, rtol=0, atol=1e-12 * np.abs(matrix).max())


def test_power_sgd_finds_the_best_low_rank_in_a_few_steps():
    """Of a matrix that stays the same the power iteration converges to the truncated SVD (Eckart, Young 1936)."""
    rng = np.random.default_rng(1)
    u, _, v = np.linalg.svd(rng.standard_normal((20, 15)), full_matrices=False)
    matrix = u * 0.5 ** np.arange(15) @ v
    coder = PowerSGD(2)
    for _ in range(12):
        decoded = coder.decode(coder.encode(matrix))
    np.testing.assert_allclose(decoded, u[:, :2] * 0.5 ** np.arange(2) @ v[:2], atol=1e-6)


def test_power_sgd_sends_small_ones_whole():
    for shape in [(10,), (), (2, 2), (4, 3)]:
        (gradient,) = gradients(1, shape)
        coder = PowerSGD(2)
        np.testing.assert_array_equal(coder.decode(coder.encode(gradient)), gradient)


def test_ratios_are_the_bytes():
    (gradient,) = gradients(1, (64, 64))
    assert Float16().encode(gradient).ratio == 2
    assert Int8(block=256).encode(gradient).ratio == pytest.approx(4 / (1 + 4 / 256))
    assert TopK(0.01).encode(gradient).ratio == pytest.approx(64 * 64 * 4 / (41 * 8))
    assert PowerSGD(2).encode(gradient).ratio == 16


# ---- between ranks -------------------------------------------------------------------------------
def averaged(comm, name, steps, feedback):
    compressor = COMPRESSORS[name]()
    compressor = ErrorFeedback(compressor) if feedback else compressor
    told = [compressor.average(step[comm.rank], comm) for step in steps]
    return told, getattr(compressor, "residual", None)


@all_of_them
@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_ranks_get_one_mean_and_lose_nothing(name, world):
    """All ranks the same bits; mean of what the ranks say = what they get; sum of means + mean residual = mean of all
    gradients."""
    steps = [gradients(world, (12, 10), seed, np.float64) for seed in range(4)]
    ran = spawn(averaged, world, name, steps, True)
    told, residuals = zip(*ran.values)
    for step in range(len(steps)):
        assert len({told[rank][step][0].tobytes() for rank in range(world)}) == 1
        own = [told[rank][step][1] for rank in range(world)]
        # float16 adds up as float16: a rounding for each rank
        atol = 4 * world * 2.0**-11 if name == "float16" else 1e-13
        np.testing.assert_allclose(told[0][step][0], sum(own) / world, rtol=0, atol=atol)
    got = sum(told[0][step][0] for step in range(len(steps))) + sum(residuals) / world
    atol = 16 * world * 2.0**-11 if name == "float16" else 1e-12
    np.testing.assert_allclose(got, np.mean(steps, axis=1).sum(0), rtol=0, atol=atol)


def test_power_sgd_of_ranks_is_that_of_the_mean():
    """P and Q are linear in the matrix, so averaging them is averaging the matrices."""
    steps = [gradients(3, (12, 10), seed, np.float64) for seed in range(3)]
    ran = spawn(averaged, 3, "power", steps, False)
    alone = PowerSGD(2)
    for step, each in enumerate(steps):
        want = alone.decode(alone.encode(np.mean(each, axis=0)))
        np.testing.assert_allclose(ran.values[0][0][step][0], want, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "name, each",
    [
        ("float16", 12 * 10 * 2),
        ("int8", 12 * 10 + 8 * 8),
        ("top-k", 12 * (8 + 4)),
        ("power", 2 * (12 + 10) * 8),
    ],
)
def test_the_bytes_of_the_payload_are_what_travels(name, each):
    """Between two ranks each sends its payload once: all_gather of two, or all_reduce of two by a ring."""
    ran = spawn(averaged, 2, name, [gradients(2, (12, 10), 0, np.float64)], False)
    np.testing.assert_array_equal(ran.nbytes, [[0, each], [each, 0]])


# ---- what goes wrong -----------------------------------------------------------------------------
@all_of_them
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_inf_and_nan_are_seen_and_leave_no_trace(name, bad):
    """So that a gradient scaler skips the step, and the next is as if it had not been."""
    (gradient,) = gradients(1, (12, 10))
    poisoned = gradient.copy()
    poisoned[3, 4] = bad
    compressor = ErrorFeedback(COMPRESSORS[name]())
    compressor.encode(gradient)
    before = compressor.state_dict()["residual"]
    assert not np.isfinite(compressor.decode(compressor.encode(poisoned))).all()
    np.testing.assert_array_equal(compressor.residual, before)
    assert np.isfinite(compressor.decode(compressor.encode(gradient))).all()


def test_float16_overflow_is_seen_and_leaves_no_trace():
    compressor = ErrorFeedback(Float16())
    assert np.isinf(compressor.decode(compressor.encode(np.array([1e6], np.float32))))[0]
    assert compressor.residual is None


@all_of_them
def test_state_goes_on_where_it_was(name):
    steps = gradients(6, (12, 10))
    first, second = ErrorFeedback(COMPRESSORS[name]()), ErrorFeedback(COMPRESSORS[name]())
    for gradient in steps[:3]:
        first.encode(gradient)
    second.load_state_dict(first.state_dict())
    for gradient in steps[3:]:
        assert first.encode(gradient).packed().tobytes() == second.encode(gradient).packed().tobytes()
    np.testing.assert_array_equal(first.residual, second.residual)


@all_of_them
def test_the_same_seed_gives_the_same_bytes(name):
    (gradient,) = gradients(1, (12, 10))
    one, two = COMPRESSORS[name](), COMPRESSORS[name]()
    assert all(one.encode(gradient).packed().tobytes() == two.encode(gradient).packed().tobytes() for _ in range(3))


def test_bad_input_is_refused():
    with pytest.raises(TypeError, match="arrays of floats, got int64"):
        TopK(1).encode(np.arange(3))
    with pytest.raises(TypeError, match=r"got list; of a tensor, \.grad\.numpy\(\)"):
        Float16().encode([1.0])
    for keep in (0, -1, 1.5, float("nan")):
        with pytest.raises(ValueError, match="keep must be a part under 1 or a whole number"):
            TopK(keep)
    with pytest.raises(ValueError, match="block must be at least 1, got 0"):
        Int8(0)
    with pytest.raises(ValueError, match="rank must be at least 1, got 0"):
        PowerSGD(0)
    fed = ErrorFeedback(TopK(1))
    fed.encode(np.ones(3))
    with pytest.raises(ValueError, match=r"a gradient of \(4,\) after one of \(3,\)"):
        fed.encode(np.ones(4))
    power = PowerSGD(1)
    power.encode(np.ones((9, 8)))
    with pytest.raises(ValueError, match="a matrix of 7 columns after one of 8"):
        power.encode(np.ones((9, 7)))
    with pytest.raises(ValueError, match="16 bytes came, and this rank's has 8"):
        TopK(1).encode(np.ones(4, np.float32)).unpacked(np.zeros(16, np.uint8))
    with pytest.raises(ValueError, match=r"TopK keeps nothing, and was given \['q'\]"):
        TopK(1).load_state_dict({"q": 1})


def test_a_compressor_of_ones_own():
    """encode and decode are all it takes; feedback and averaging come with them."""

    class Signs(Compressor):
        """1-bit SGD without the bits: signs, and the mean magnitude."""

        def encode(self, gradient):
            scale = np.abs(gradient).mean(keepdims=True).reshape(1)
            return Payload((np.signbit(gradient), scale), gradient.shape, gradient.dtype)

        def decode(self, payload):
            negative, scale = payload.parts
            return np.where(negative, -scale, scale).astype(payload.dtype)

    steps = [gradients(2, (5,), seed, np.float64) for seed in range(3)]

    def program(comm):
        fed = ErrorFeedback(Signs())
        return sum(fed.average(step[comm.rank], comm)[0] for step in steps), fed.residual

    told = spawn(program, 2).values
    got = told[0][0] + (told[0][1] + told[1][1]) / 2
    np.testing.assert_allclose(got, np.mean(steps, axis=1).sum(0), rtol=0, atol=1e-14)
