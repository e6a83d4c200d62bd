"""Comparing resource versions, where that is allowed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeloop.objects.meta import compare_versions

numbers = st.integers(1, 10**40)


@pytest.mark.spec("S10")
@given(numbers, numbers)
def test_versions_of_any_length_compare_as_numbers(left, right):
    result = compare_versions(str(left), str(right))
    assert (result > 0, result < 0) == (left > right, left < right)


@pytest.mark.spec("S10")
@pytest.mark.parametrize(
    "malformed", ["", "0", "01", "-1", "1a", "a", " 1", "1 ", "1\n", "1.0", "²"]
)
def test_malformed_versions_are_errors_on_either_side(malformed):
    for pair in ((malformed, "5"), ("5", malformed)):
        with pytest.raises(ValueError, match="not a positive decimal number"):
            compare_versions(*pair)
