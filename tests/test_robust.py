"""Statistics of few runs, against definitions written otherwise, SciPy, and rliable's own published examples."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import scipy.stats

from stellaris_jax.base.statistics import QUANTILES, quantile
from stellaris_jax.report.robust import (
    Difference,
    iqm,
    iqm_interval,
    paired_difference,
    performance_profile,
    probability_of_improvement,
    resampled,
    unpaired_difference,
)

RANDOM = np.random.default_rng(7)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 8, 11, 40])
def test_iqm_is_scipys_trimmed_mean(size: int) -> None:
    values = RANDOM.normal(size=(3, size))
    np.testing.assert_allclose(iqm(values, axis=1), scipy.stats.trim_mean(values, 0.25, axis=1))
    np.testing.assert_allclose(iqm(values), scipy.stats.trim_mean(values, 0.25, axis=None))


def test_figures_that_rliable_publishes() -> None:
    """Values of `tests/rliable/metrics_test.py` in google-research/rliable, whose matrices are [runs, tasks]."""
    x = np.array([[1, 2], [2, 2], [1, 1], [2, 1]])
    y = np.array([[1, 1], [2, 2], [3, 3]])
    assert (iqm(x), iqm(y)) == (1.5, 2.0)
    assert probability_of_improvement(list(x.T), list(y.T)) == pytest.approx(1 / 3)


def test_resampling_keeps_to_the_tasks() -> None:
    tasks = [np.arange(3.0), 10 + np.arange(5.0)]
    drawn = resampled(tasks, draws=4000, seed=1)
    assert drawn.shape == (4000, 8)
    assert set(np.unique(drawn[:, :3])) == {0, 1, 2} and set(np.unique(drawn[:, 3:])) == {10, 11, 12, 13, 14}
    np.testing.assert_allclose(drawn.mean(axis=0), [1] * 3 + [12] * 5, atol=0.12)
    np.testing.assert_array_equal(drawn, resampled(tasks, draws=4000, seed=1))


def test_interval_of_one_task_is_scipys_bootstrap() -> None:
    sample = RANDOM.gamma(2.0, size=30)
    value, low, high = iqm_interval([sample], draws=40_000)
    expected = scipy.stats.bootstrap(
        (sample,), lambda x, axis: scipy.stats.trim_mean(x, 0.25, axis=axis), n_resamples=40_000, method="percentile",
        rng=np.random.default_rng(3),
    ).confidence_interval  # fmt: skip
    assert value == pytest.approx(scipy.stats.trim_mean(sample, 0.25))
    assert (low, high) == pytest.approx((expected.low, expected.high), abs=0.02 * (high - low))


def test_stratified_interval_is_that_of_a_loop() -> None:
    tasks = [RANDOM.normal(0, 1, 5), RANDOM.normal(10, 2, 6), RANDOM.normal(4, 0.1, 5)]
    random, means = np.random.default_rng(11), []
    for _ in range(6000):
        pooled = sorted(x for task in tasks for x in random.choice(task, size=len(task)))
        means.append(sum(pooled[4:-4]) / 8)
    means.sort()
    _, low, high = iqm_interval(tasks, draws=20_000)
    assert (low, high) == pytest.approx((means[150], means[-150]), abs=0.05 * (high - low))


def test_profile_is_a_share_of_runs_with_the_binomials_band() -> None:
    """On one task, the number of n drawn runs above a threshold is binomial."""
    runs = np.arange(1.0, 11.0)
    share, low, high = performance_profile([runs], [0.5, 3, 7.5, 10], draws=20_000)
    np.testing.assert_allclose(share, [1, 0.7, 0.3, 0])
    quantiles = scipy.stats.binom.ppf([[0.025], [0.975]], 10, share) / 10
    np.testing.assert_allclose([low, high], quantiles)
    two = performance_profile([runs, [100.0]], [50.0])[0]
    assert two == pytest.approx([1 / 11]), "every run counts alike"


def test_probability_of_improvement_is_mann_whitneys() -> None:
    a, b = RANDOM.integers(0, 6, 9).astype(float), RANDOM.integers(0, 6, 7).astype(float)
    expected = scipy.stats.mannwhitneyu(a, b).statistic / (9 * 7)
    assert probability_of_improvement([a], [b]) == pytest.approx(expected)
    by_hand = sum((x > y) + 0.5 * (x == y) for x, y in itertools.product(a, b)) / 63
    assert probability_of_improvement([a, [1.0]], [b, [2.0]]) == pytest.approx(by_hand / 2)


@pytest.mark.filterwarnings("error")
def test_fewer_than_five_runs_have_no_interval() -> None:
    value, *ends = iqm_interval([[1.0, 2.0, 3.0, 4.0]])
    assert value == 2.5 and all(map(math.isnan, ends))
    assert np.isnan(performance_profile([[1.0, 2.0]], [0.0])[1:]).all()
    assert all(map(math.isnan, iqm_interval([])))
    assert math.isnan(unpaired_difference([1.0, 2.0, 3.0, 4.0], np.arange(9.0)).low)


def test_paired_p_value_is_scipys() -> None:
    a, b = RANDOM.normal(1, 2, 8), RANDOM.normal(0, 2, 8)
    difference = paired_difference(a, b)
    assert difference.p == pytest.approx(scipy.stats.ttest_rel(a, b).pvalue)
    assert (difference.mean, difference.pairs) == (pytest.approx(np.mean(a) - np.mean(b)), 8)


def test_many_pairs_have_the_usual_percentiles() -> None:
    over = RANDOM.exponential(size=400)
    difference = paired_difference(over, np.zeros(400), draws=20_000)
    expected = scipy.stats.bootstrap(
        (over,), np.mean, n_resamples=20_000, method="percentile", rng=np.random.default_rng(3)
    ).confidence_interval
    assert (difference.low, difference.high) == pytest.approx((expected.low, expected.high), abs=0.01)


def test_intervals_of_five_pairs_hold_what_they_promise() -> None:
    """The usual percentiles hold the mean of five normal differences 85 times in a hundred."""
    trials = np.random.default_rng(5).normal(size=(600, 5))
    held = [paired_difference(row, np.zeros(5)).within_noise for row in trials]
    assert 0.89 < np.mean(held) < 0.97


def test_what_seeds_have_in_common_cancels_out() -> None:
    common = np.array([100.0, 300, 200, 500, 400, 250])
    better = common + np.array([9.0, 11, 10, 12, 8, 10])
    assert paired_difference(better, common).within_noise is False
    assert unpaired_difference(better, common).within_noise is True


@pytest.mark.parametrize(
    ("a", "verdict"),
    [
        ([1.0], None),
        ([1.0, 2.0, 3.0], None),
        ([1.0, -2.0, 3.0], None),
        ([0.1 + 0.2 - 0.3] * 5, True),
        ([1e-3] * 5, False),
    ],
)
@pytest.mark.filterwarnings("error")
def test_few_seeds_leave_open_what_they_cannot_tell(a: list[float], verdict: bool | None) -> None:
    assert paired_difference(np.array(a) + 0.3, [0.3] * len(a)).within_noise is verdict


def test_welchs_interval_where_no_seed_is_shared() -> None:
    a, b = RANDOM.normal(5, 1, 6), RANDOM.normal(0, 3, 9)
    difference = unpaired_difference(a, b)
    expected = scipy.stats.ttest_ind(a, b, equal_var=False)
    interval = expected.confidence_interval()
    assert (difference.low, difference.high, difference.p) == pytest.approx(
        (interval.low, interval.high, expected.pvalue)
    )


def test_no_seeds_are_no_difference() -> None:
    difference = paired_difference([], [])
    assert isinstance(difference, Difference) and difference.within_noise is None and math.isnan(difference.mean)


def test_quantiles_are_those_of_scipy() -> None:
    for freedom in (*range(1, len(QUANTILES) + 3), 1000):
        assert quantile(freedom) == pytest.approx(scipy.stats.t.ppf(0.975, freedom), rel=1e-10)
