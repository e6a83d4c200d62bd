"""Warnings of a server: read from the header, logged once each."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeloop.client.responses import WarningLog, parse_warnings


@pytest.mark.parametrize(
    ("header", "texts"),
    [
        ('299 - "v1beta1 is deprecated"', ["v1beta1 is deprecated"]),
        ('299 - "unknown field \\"spec.x\\""', ['unknown field "spec.x"']),
        ('299 - "one", 299 - "two, three"', ["one", "two, three"]),
        ('299 agent "dated" "Sat, 25 Aug 2012 23:34:45 GMT"', ["dated"]),
        ('299 "an agent" "text"', ["text"]),
        ('199 - "miscellaneous"', []),
        ('299 - "never ends', []),
        ("nonsense", []),
        ("", []),
    ],
)
def test_texts_of_code_299_are_read(header, texts):
    assert parse_warnings(header) == texts


@given(st.text())
def test_no_header_breaks_the_reader(header):
    assert parse_warnings(header) == [] or "299" in header


def test_each_warning_is_logged_once(caplog):
    log = WarningLog()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            log.note(['299 - "old"', '299 - "odd"'], request="GET /x")
    assert [record.getMessage() for record in caplog.records] == [
        "API server warns about GET /x: old",
        "API server warns about GET /x: odd",
    ]


def test_a_server_that_invents_warnings_does_not_fill_the_memory(caplog):
    log = WarningLog()
    for number in range(1500):
        log.note([f'299 - "{number}"'], request="GET /x")
    assert len(caplog.records) == 1000
