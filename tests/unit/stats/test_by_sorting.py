"""The same figures as numpy's own, to the bit, and without what they import."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from stepscope.stats.spans import distinct, median

WHOLE = 1_700_000_000_000_000_001
"""A time in ns that no float64 holds."""


@pytest.mark.parametrize("values", [[], [3], [2, 1, 2, 1], [WHOLE, WHOLE + 1, WHOLE], [[2, 1], [1, 3]]])
@pytest.mark.parametrize("dtype", [np.int64, np.uint64, np.float64])
def test_distinct_is_as_unique(values: list[int], dtype: type[np.generic]) -> None:
    given = np.array(values, dtype=dtype)
    found, expected = distinct(given), np.unique(given)
    assert found.dtype == expected.dtype
    assert found.tolist() == expected.tolist()


@pytest.mark.parametrize(
    "values",
    [
        [1.5],
        [3, 1, 2],
        [4, 1, 3, 2],
        [WHOLE, WHOLE + 3],
        [0.1, 0.2, 0.7, 0.4],
        [-np.inf, 1.0, np.inf],
        [1.0, np.nan, 2.0],
    ],
)
def test_median_is_as_numpy_s(values: list[float]) -> None:
    np.testing.assert_array_equal(median(values), float(np.median(values)))
    np.testing.assert_array_equal(median(np.array(values)), float(np.median(np.array(values))))


def test_median_of_many_and_of_none() -> None:
    rng = np.random.default_rng(0)
    for size in range(1, 60):
        values = rng.normal(size=size)
        assert median(values) == float(np.median(values))
    assert np.isnan(median([]))


def test_neither_imports_masked_arrays() -> None:
    script = (
        "import sys, numpy as np\nfrom stepscope.stats.spans import distinct, median\n"
        "distinct(np.arange(3)); median([0.5, 1.5])\nsys.exit('numpy.ma' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
