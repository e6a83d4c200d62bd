"""What answers mean: typed refusals, plain-text ones, and what is not Kubernetes."""

from __future__ import annotations

import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.client.rest import answer, refusal

from kubeloop.client.errors import (
    AlreadyExists,
    ApiError,
    BadRequest,
    Conflict,
    Forbidden,
    Gone,
    InternalError,
    Invalid,
    KubeError,
    MethodNotAllowed,
    NotFound,
    ProtocolError,
    ServerTimeout,
    ServiceUnavailable,
    Status,
    TooManyRequests,
    Unauthorized,
    error_from_status,
)
from kubeloop.client.responses import (
    Response,
    error_from_response,
    parse_retry_after,
    undecodable,
)

NOW = dt.datetime(2030, 1, 1, 12, 0, 0, tzinfo=dt.UTC)


def error_of(response) -> KubeError:
    return error_from_response(response, now=NOW)


@pytest.mark.parametrize(
    ("code", "reason", "kind"),
    [
        (400, "BadRequest", BadRequest),
        (401, "Unauthorized", Unauthorized),
        (403, "Forbidden", Forbidden),
        (404, "NotFound", NotFound),
        (405, "MethodNotAllowed", MethodNotAllowed),
        (409, "Conflict", Conflict),
        (409, "AlreadyExists", AlreadyExists),
        (410, "Expired", Gone),
        (422, "Invalid", Invalid),
        (429, "TooManyRequests", TooManyRequests),
        (500, "InternalError", InternalError),
        (500, "ServerTimeout", ServerTimeout),
        (503, "ServiceUnavailable", ServiceUnavailable),
        (504, "Timeout", ServerTimeout),
        (504, "", ServerTimeout),
        (418, "Teapot", ApiError),
    ],
)
def test_a_status_becomes_the_error_of_its_reason(code, reason, kind):
    error = error_of(refusal(code, reason, "because"))
    assert type(error) is kind
    assert isinstance(error, ApiError)
    assert (error.code, error.reason, str(error)) == (code, reason, "because")


def test_the_causes_of_an_invalid_object_are_kept():
    body = {
        "kind": "Status",
        "code": 422,
        "reason": "Invalid",
        "details": {"name": "web", "causes": [{"field": "spec.x", "reason": "FieldValueInvalid"}]},
    }
    error = error_of(answer(422, body))
    assert isinstance(error, Invalid)
    assert [cause.field for cause in error.causes] == ["spec.x"]


def test_a_status_without_code_has_the_one_of_http():
    error = error_of(answer(404, {"kind": "Status", "status": "Failure"}))
    assert isinstance(error, NotFound)
    assert error.code == 404


@pytest.mark.parametrize(
    ("code", "text", "kind"),
    [
        (404, b"404 page not found\n", NotFound),
        (429, b"Too many requests, please try again later.\n", TooManyRequests),
        (503, b"error trying to reach service: dial tcp", ServiceUnavailable),
        (403, b"forbidden", Forbidden),
    ],
)
def test_a_refusal_in_plain_text_is_typed_by_its_code(code, text, kind):
    error = error_of(answer(code, raw=text, content_type="text/plain; charset=utf-8"))
    assert type(error) is kind
    assert text.decode().strip() in str(error)
    assert "https://server:6443/api/v1/pods" in str(error)


def test_a_refusal_without_a_body_is_typed_by_its_code():
    error = error_of(answer(401, raw=b"", content_type=""))
    assert type(error) is Unauthorized
    assert "Unauthorized (HTTP 401 from https://server:6443" in str(error)


def test_429_is_too_many_requests_from_any_server():
    html = answer(429, raw=b"<html>slow down</html>", content_type="text/html", retry_after="7")
    error = error_of(html)
    assert isinstance(error, TooManyRequests)
    assert error.retry_after == 7


@pytest.mark.parametrize(
    ("response", "told"),
    [
        (
            answer(502, raw=b"<html><h1>Bad Gateway</h1>", content_type="text/html"),
            ["HTTP 502", "<h1>Bad Gateway", "text/html", "load balancer"],
        ),
        (answer(403, raw=b"<!DOCTYPE html>login"), ["HTTP 403", "login page"]),
        (answer(500, raw=b'{"kind": "Stat'), ["HTTP 500", '{"kind": "Stat', "cut short"]),
        (answer(400, {"error": "no"}), ["HTTP 400", "another kind of API"]),
        (
            answer(302, raw=b"", location="https://login.example/"),
            ["HTTP 302", "an empty body", "redirects to https://login.example/"],
        ),
        (answer(407, raw=b"<html>", content_type="text/html"), ["proxy-url"]),
    ],
)
def test_a_foreign_response_is_reported_with_a_remedy(response, told):
    error = error_of(response)
    assert type(error) is ProtocolError
    assert error.code == response.status
    for part in ["https://server:6443/api/v1/pods", *told]:
        assert part in str(error)


def test_only_the_first_characters_of_a_body_are_shown():
    error = error_of(answer(500, raw=b"x" * 100_000, content_type="text/html"))
    assert len(str(error)) < 600
    assert "100000 bytes" in str(error)


def test_a_success_that_is_html_is_explained():
    error = undecodable(answer(raw=b"<html>please log in", content_type="text/html"), ValueError())
    assert "HTTP 200" in str(error)
    assert "please log in" in str(error)
    assert "login page" in str(error)


def test_a_success_that_is_cut_short_is_explained():
    error = undecodable(answer(raw=b'{"metadata": {'), ValueError("Input data was truncated"))
    assert "Input data was truncated" in str(error)
    assert "cut short" in str(error)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("0", 0.0),
        ("7", 7.0),
        (" 7 ", 7.0),
        ("Tue, 01 Jan 2030 12:00:30 GMT", 30.0),
        ("Tue, 01 Jan 2030 13:00:30 +0100", 30.0),
        ("Tue, 01 Jan 2030 11:59:00 GMT", 0.0),
        ("", None),
        ("soon", None),
        ("-5", None),
        ("1.5", None),
        ("²", None),
    ],
)
def test_retry_after_is_read_as_seconds_or_as_a_date(value, seconds):
    assert parse_retry_after(value, now=NOW) == seconds


@given(st.text())
def test_retry_after_never_fails_whatever_comes(value):
    delay = parse_retry_after(value, now=NOW)
    assert delay is None or delay >= 0


def test_the_header_goes_before_the_delay_inside_the_status():
    body = {"kind": "Status", "code": 503, "details": {"retryAfterSeconds": 9}}
    with_header = error_of(answer(503, body, retry_after="2"))
    without = error_of(answer(503, body))
    assert isinstance(with_header, ServiceUnavailable)
    assert isinstance(without, ServiceUnavailable)
    assert (with_header.retry_after, without.retry_after) == (2.0, 9.0)


@given(st.binary(), st.integers(300, 599), st.sampled_from(["text/plain", "text/html", ""]))
def test_every_answer_that_is_not_a_success_is_some_error(body, code, content_type):
    assert isinstance(error_of(answer(code, raw=body, content_type=content_type)), KubeError)


TOKEN = "s3cr3t-token-of-some-length"


@pytest.mark.parametrize(
    "echo",
    [
        f"GET /api HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {TOKEN}\r\n\r\n",
        f"bad request: {{'Authorization': 'Basic {TOKEN}'}}",
        f"unknown credential Bearer {TOKEN}",
        f"unknown credential eyJ{TOKEN}.{TOKEN}.{TOKEN}",
    ],
)
@pytest.mark.parametrize("kind", ["text/plain", "application/octet-stream"])
def test_server_that_echoes_our_token_puts_it_into_no_message(echo, kind):
    response = Response(
        status=400, headers=(("content-type", kind),), body=echo.encode(), url="https://a"
    )
    error = error_from_response(response, now=NOW)
    assert TOKEN not in str(error)
    assert "[redacted]" in str(error)


def test_escapes_of_a_server_reach_no_terminal():
    status = Status(
        code=403, reason="Forbidden", message="no\x1b]0;pwned\x07\x9b2J\u202e\r\n\tallowed"
    )
    assert str(error_from_status(status)) == "no\\x1b]0;pwned\\x07\\x9b2J\\u202e\\r\n\tallowed"


def test_words_that_only_look_like_credentials_stay():
    message = "basic authentication is disabled; use a bearer token"
    assert str(error_from_status(Status(code=401, message=message))) == message
