"""When a request is sent again, and when never."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.client.rest import RenewableToken, ScriptedTransport, answer, refusal, sender_over

from kubeloop.aio.backoff import Backoff
from kubeloop.client import request as requests
from kubeloop.client.errors import (
    ConnectionLost,
    ConnectionRefused,
    HostNotFound,
    InternalError,
    ProtocolError,
    RequestTimeout,
    ServiceUnavailable,
    Status,
    TooManyRequests,
    Unauthorized,
    error_from_status,
)
from kubeloop.client.ratelimit import RateLimit, TokenBucket
from kubeloop.client.retry import Retries, RetryPolicy
from kubeloop.testing.virtual_time import VirtualClock

pytestmark = pytest.mark.virtual_time

GET = requests.get("/api/v1/pods/x")
POST = requests.write("POST", "/api/v1/pods", b"{}")
PUT = requests.write("PUT", "/api/v1/pods/x", b"{}")
BUSY = refusal(429, "TooManyRequests", retry_after="2")
EXACT = RetryPolicy(connection_backoff=Backoff(duration=0.1, factor=2.0, cap=2.0))


def now() -> float:
    return asyncio.get_running_loop().time()


async def send(request, *outcomes, **options):
    """Send through scripted outcomes; return what was sent, and the outcome."""
    transport = ScriptedTransport(list(outcomes))
    pipeline = sender_over(transport, **({"retry": EXACT} | options))
    try:
        result = await pipeline.send(request)
    except Exception as error:
        return transport, error
    return transport, result


async def test_a_create_is_retried_where_it_was_not_processed():
    transport, result = await send(POST, BUSY, BUSY, answer(201, {}))
    assert result.status == 201
    assert transport.sent == [POST] * 3
    assert now() == 4.0


@pytest.mark.spec("R40")
async def test_retry_after_is_honoured_ten_times_at_most():
    transport, error = await send(GET, BUSY)
    assert isinstance(error, TooManyRequests)
    assert len(transport.sent) == 11
    assert now() == 20.0


async def test_a_429_that_names_no_delay_waits_a_second():
    _, result = await send(GET, refusal(429, "TooManyRequests"), answer(200, {}))
    assert result.ok
    assert now() == 1.0


async def test_date_in_retry_after_is_delay_by_clock():
    later = refusal(503, "ServiceUnavailable", retry_after="Tue, 01 Jan 2030 00:00:09 GMT")
    _, result = await send(GET, later, answer(200, {}), clock=VirtualClock())
    assert result.ok
    assert now() == 9.0


async def test_a_5xx_is_retried_only_where_it_asks_for_it():
    transport, error = await send(GET, refusal(500, "InternalError"))
    assert isinstance(error, InternalError)
    assert len(transport.sent) == 1
    asking = refusal(500, "InternalError", retry_after="3")
    transport, result = await send(GET, asking, answer(200, {}))
    assert result.ok
    assert now() == 3.0


async def test_an_html_503_that_names_a_delay_is_retried_too():
    page = answer(503, raw=b"<html>back soon", content_type="text/html", retry_after="1")
    _, result = await send(POST, page, answer(200, {}))
    assert result.ok
    _, error = await send(POST, answer(503, raw=b"<html>", content_type="text/html"))
    assert isinstance(error, ProtocolError)


async def test_a_wait_longer_than_the_policy_allows_is_not_begun():
    transport, error = await send(GET, refusal(503, "ServiceUnavailable", retry_after="500"))
    assert isinstance(error, ServiceUnavailable)
    assert error.retry_after == 500
    assert len(transport.sent) == 1
    assert now() == 0.0


async def test_the_total_time_is_bounded_too():
    slow = refusal(503, "ServiceUnavailable", retry_after="50")
    transport, error = await send(GET, slow)
    assert isinstance(error, ServiceUnavailable)
    assert len(transport.sent) == 3
    assert now() == 100.0


async def test_a_lost_connection_is_retried_for_what_is_repeatable():
    lost = ConnectionLost("gone")
    transport, result = await send(PUT, lost, lost, answer(200, {}))
    assert result.ok
    assert len(transport.sent) == 3
    assert now() == pytest.approx(0.3)


async def test_creation_is_never_sent_twice_because_connection_was_lost():
    for error in (ConnectionLost("gone"), ConnectionRefused("no"), RequestTimeout("slow")):
        transport, raised = await send(POST, error)
        assert raised is error
        assert len(transport.sent) == 1


async def test_a_connection_lost_inside_the_answer_is_not_retried():
    transport, error = await send(GET, ConnectionLost("gone", answer_begun=True))
    assert isinstance(error, ConnectionLost)
    assert len(transport.sent) == 1


async def test_connection_failures_are_retried_three_times():
    transport, error = await send(GET, ConnectionRefused("no"))
    assert isinstance(error, ConnectionRefused)
    assert len(transport.sent) == 4
    assert now() == pytest.approx(0.7)


@pytest.mark.parametrize("error", [RequestTimeout("slow"), HostNotFound("who?")])
async def test_timeouts_and_unknown_hosts_are_final(error):
    transport, raised = await send(GET, error)
    assert raised is error
    assert len(transport.sent) == 1


async def test_the_two_kinds_of_retry_are_counted_apart():
    outcomes = [ConnectionLost("x"), BUSY, ConnectionLost("x"), BUSY, answer(200, {})]
    transport, result = await send(GET, *outcomes)
    assert result.ok
    assert len(transport.sent) == 5


async def test_never_means_once():
    transport, error = await send(GET, BUSY, retry=RetryPolicy.never())
    assert isinstance(error, TooManyRequests)
    assert len(transport.sent) == 1


async def test_a_refused_login_is_renewed_once_and_names_it():
    credentials = RenewableToken("old", "new")
    transport = ScriptedTransport([refusal(401, "Unauthorized"), answer(200, {})])
    result = await sender_over(transport, credentials).send(POST)
    assert result.ok
    assert [dict(auth.headers())["Authorization"] for auth in transport.auths] == [
        "Bearer old",
        "Bearer new",
    ]
    assert credentials.refused == [{"Authorization": "Bearer old"}]


async def test_the_second_401_is_final():
    credentials = RenewableToken("one", "two", "three")
    transport = ScriptedTransport([refusal(401, "Unauthorized")])
    with pytest.raises(Unauthorized, match="does not accept our credentials"):
        await sender_over(transport, credentials).send(GET)
    assert len(transport.sent) == 2


async def test_a_login_that_cannot_be_renewed_is_not_tried_again():
    credentials = RenewableToken("only")
    transport = ScriptedTransport([refusal(401, "Unauthorized")])
    with pytest.raises(
        Unauthorized, match=r"https?://.* \(the test\); have they expired"
    ) as caught:
        await sender_over(transport, credentials).send(GET)
    assert (caught.value.code, caught.value.reason) == (401, "Unauthorized")
    assert len(transport.sent) == 1
    assert credentials.refused == [{"Authorization": "Bearer only"}]


@pytest.mark.spec("R40")
async def test_what_informers_do_is_attempted_once():
    calls = 0

    async def busy(auth):
        nonlocal calls
        calls += 1
        raise error_from_status(Status(code=429), retry_after=1.0)

    with pytest.raises(TooManyRequests):
        await sender_over(ScriptedTransport([])).once(busy)
    assert calls == 1


async def test_every_attempt_takes_a_token_of_the_rate():
    bucket = TokenBucket(RateLimit(qps=1.0, burst=1))
    now_busy = refusal(429, "TooManyRequests", retry_after="0")
    _, result = await send(GET, now_busy, now_busy, answer(200, {}), bucket=bucket)
    assert result.ok
    assert now() == pytest.approx(2.0)


async def test_a_calls_own_timeout_goes_before_the_clients():
    transport = ScriptedTransport([answer(200, {})])
    pipeline = sender_over(transport)
    await pipeline.send(GET)
    await pipeline.send(GET, timeout=3)
    assert transport.timeouts == [65.0, 3]


async def test_a_retry_that_waits_can_be_cancelled():
    transport = ScriptedTransport([BUSY])
    task = asyncio.ensure_future(sender_over(transport).send(GET))
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert now() == 1.0


@given(
    st.lists(
        st.sampled_from(["busy", "lost", "refused", "begun", "timeout", "error"]), max_size=40
    ),
    st.sampled_from([GET, POST, PUT]),
)
def test_whatever_happens_the_number_of_tries_is_bounded(events, request):
    errors = {
        "busy": ProtocolError("x", code=429, retry_after=1.0),
        "lost": ConnectionLost("x"),
        "refused": ConnectionRefused("x"),
        "begun": ConnectionLost("x", answer_begun=True),
        "timeout": RequestTimeout("x"),
        "error": ProtocolError("x", code=500),
    }
    retries = Retries(EXACT, request)
    allowed = [e for e in events if retries.delay_after(errors[e], 0.0) is not None]
    assert len(allowed) <= 13
    assert set(allowed) <= ({"busy", "lost", "refused"} if request.repeatable else {"busy"})
