from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeloop.objects.quantities import Notation, Quantity

_quantities = st.builds(
    Quantity, st.integers(-(2**63 - 1) * 10**9, (2**63 - 1) * 10**9), st.sampled_from(Notation)
)


@given(_quantities)
def test_canonical_text_parses_to_same_amount_and_to_itself(quantity: Quantity) -> None:
    again = Quantity.parse(str(quantity))
    assert again == quantity
    assert str(again) == str(quantity)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("0", "0"),
        ("0Mi", "0"),
        ("100m", "100m"),
        ("0.1", "100m"),
        ("1500m", "1500m"),
        ("1.0", "1"),
        ("1000m", "1"),
        ("1000k", "1M"),
        ("0.5Gi", "512Mi"),
        ("1.5Gi", "1536Mi"),
        ("1024Ki", "1Mi"),
        ("1000Ki", "1000Ki"),
        ("0.5Ki", "512"),
        ("0.0001Ki", "102400u"),
        ("1024", "1024"),
        ("1e3", "1e3"),
        ("12e4", "120e3"),
        ("1E3", "1e3"),
        ("1E", "1E"),
        ("100e-1", "10"),
        ("1e-10", "1e-9"),
        ("0.1n", "1n"),
        ("-0.1n", "-1n"),
        ("-1Gi", "-1Gi"),
        ("+5", "5"),
        (".5", "500m"),
        ("5.", "5"),
        ("9999Ei", "9223372036854775807"),
    ],
)
def test_quantities_have_the_canonical_text_of_kubernetes(text: str, canonical: str) -> None:
    assert str(Quantity.parse(text)) == canonical


@pytest.mark.parametrize(
    "text", ["", "m", "1 Gi", "1gi", "1K", "--1", "1.2.3", "1e", "1e3m", "1e1000", "nan", "1Mib"]
)
def test_anything_but_a_quantity_is_refused_with_what_is_legal(text: str) -> None:
    with pytest.raises(ValueError, match=r"quantity .* optional suffix"):
        Quantity.parse(text)


def test_equal_amounts_are_equal_in_any_notation() -> None:
    assert Quantity.parse("1Ki") == Quantity.parse("1024") == Quantity.parse("1024e0")
    assert len({Quantity.parse("1000m"), Quantity.parse("1"), Quantity.parse(1)}) == 1
    assert Quantity.parse("1") != 1


def test_quantities_are_ordered_and_added_exactly() -> None:
    assert Quantity.parse("999m") < Quantity.parse("1") <= Quantity.parse("1e0")
    total = Quantity.parse("0.1") + Quantity.parse("0.2")
    assert total == Quantity.parse("300m")
    assert str(Quantity.parse("1Gi") - Quantity.parse("512Mi")) == "512Mi"
    assert -Quantity.parse("1") < Quantity.parse("0")
    assert not Quantity.parse("0")


@pytest.mark.parametrize(("text", "units"), [("1500m", 2), ("-1500m", -2), ("2", 2), ("1n", 1)])
def test_whole_units_are_rounded_away_from_zero(text: str, units: int) -> None:
    assert int(Quantity.parse(text)) == units


def test_a_float_is_the_nearest_one() -> None:
    assert float(Quantity.parse("2500m")) == 2.5
