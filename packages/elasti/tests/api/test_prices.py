"""The cost of released capacity, and the prices it is made of."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from elasti.api.prices import Prices, Rates, opencost_prices, prices_of

GOOD = {"cpuCoreHour": 0.03, "memoryGiBHour": 0.004, "currency": "EUR"}


def answer(**namespaces: Any) -> bytes:
    return msgspec.json.encode({"code": 200, "data": [namespaces]})


def allocation(cpu: float, cores: float, ram: float, gibs: float) -> dict[str, float]:
    return {
        "cpuCost": cpu,
        "cpuCoreHours": cores,
        "ramCost": ram,
        "ramByteHours": gibs * 2**30,
        "gpuCost": 7.0,
    }


def test_the_cost_is_hours_times_prices():
    # 2 cores for 5 h are 10 core hours: 0.30. 3 GiB for 5 h are 15 GiB hours: 0.06.
    found = prices_of(GOOD).cost("shop", 10, 15)
    assert found == pytest.approx(0.36)
    dear = Prices(Rates(0.03, 0.004), "EUR", {"shop": Rates(0.06, 0.004)})
    assert dear.cost("shop", 1, 0) == pytest.approx(0.06)
    assert dear.cost("blog", 1, 0) == pytest.approx(0.03)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"cpuCoreHour": -1}, "cpuCoreHour: -1 is not a price; write a number"),
        ({"cpuCoreHour": None}, "cpuCoreHour: None is not a price"),
        ({"memoryGiBHour": "0.1"}, "memoryGiBHour: '0.1' is not a price"),
        ({"memoryGiBHour": float("nan")}, "memoryGiBHour: nan is not a price"),
        ({"memoryGiBHour": float("inf")}, "memoryGiBHour: inf is not a price"),
        ({"memoryGiBHour": True}, "memoryGiBHour: True is not a price"),
        ({"currency": " "}, "currency: ' ' is not a currency; write one such as EUR"),
        ({"currency": 978}, "currency: 978 is not a currency"),
        ({"cpu": 1}, "cpu: the field is unknown"),
    ],
)
def test_a_wrong_price_is_named_with_its_value_and_a_remedy(changed: dict[str, Any], words: str):
    with pytest.raises(ValueError, match="; ") as raised:
        prices_of(GOOD | changed)
    assert str(raised.value).startswith(words)


def test_every_missing_field_is_named():
    with pytest.raises(ValueError, match="cpuCoreHour") as raised:
        prices_of({})
    assert len(str(raised.value).splitlines()) == 3
    with pytest.raises(ValueError, match=r"currency: \(nothing\) is not a currency"):
        prices_of(["EUR"])


def test_opencost_prices_are_those_of_each_namespace_and_the_average_elsewhere():
    body = answer(
        shop=allocation(4.0, 100.0, 1.0, 200.0),
        blog=allocation(2.0, 100.0, 0.0, 0.0),
        dev=allocation(1.0, 100.0, 1.0, 50.0),
        broken=allocation(-5.0, 1.0, 1.0, 1.0),
        __idle__=allocation(30.0, 900.0, 12.0, 900.0),
    )
    found = opencost_prices(body)
    assert found.idle == pytest.approx(42.0)
    assert set(found.namespaces) == {"shop", "dev"}
    assert found.namespaces["shop"] == pytest.approx((0.04, 0.005))
    assert found.rates == pytest.approx((5.0 / 200, 2.0 / 250))


def test_steps_of_time_are_added():
    step = {"shop": allocation(1.0, 10.0, 1.0, 10.0), "__idle__": allocation(1.0, 1.0, 1.0, 1.0)}
    found = opencost_prices(msgspec.json.encode({"data": [step, None, step]}))
    assert found.idle == pytest.approx(4.0)
    assert found.rates == pytest.approx((0.1, 0.1))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"<html>", "not a list of allocations"),
        (b'{"data": [{"shop": {"cpuCost": "1"}}]}', "not a list of allocations"),
        (b'{"data": ' + b"[" * 5000, "not a list of allocations"),
        (b'{"code": 500, "data": null}', "no namespace with a cost"),
        (b'{"data": [{"shop": {}}]}', "no namespace with a cost"),
    ],
)
def test_an_answer_that_has_no_prices_is_a_sentence(body: bytes, words: str):
    with pytest.raises(ValueError, match=words):
        opencost_prices(body)
