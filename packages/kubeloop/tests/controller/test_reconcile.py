from __future__ import annotations

import asyncio
import contextlib

import pytest

from kubeloop.controller.controller import Controller
from kubeloop.controller.reconcile import (
    ReconcileTimeout,
    Request,
    Result,
    TerminalError,
    call_reconciler,
)

pytestmark = pytest.mark.virtual_time

WEB = Request("default", "web")


def now() -> float:
    return asyncio.get_running_loop().time()


@pytest.mark.spec("C4")
async def test_no_answer_is_an_empty_result():
    async def reconcile(_request: Request) -> None:
        return None

    assert await call_reconciler(reconcile, WEB, None) == Result()


@pytest.mark.spec("C4")
@pytest.mark.parametrize("wrong", [30, 0, False, "later"])
async def test_a_wrong_answer_is_a_type_error(wrong):
    async def reconcile(_request: Request):
        return wrong

    said = f"reconcile returned {type(wrong).__name__}; return a Result or None"
    with pytest.raises(TypeError, match=said):
        await call_reconciler(reconcile, WEB, None)


@pytest.mark.spec("C4")
async def test_a_reconcile_that_is_not_async_is_named():
    with pytest.raises(TypeError, match="must be a coroutine function: write async def"):
        Controller("web", _plain)  # type: ignore[arg-type]


def _plain(_request: Request) -> None: ...


@pytest.mark.spec("C4")
async def test_a_reconcile_that_takes_too_long_is_cancelled_and_named():
    async def reconcile(_request: Request) -> None:
        await asyncio.sleep(1000)

    with pytest.raises(ReconcileTimeout, match="default/web took more than 5 s"):
        await call_reconciler(reconcile, WEB, 5)
    assert now() == 5


@pytest.mark.spec("C4")
async def test_a_timeout_of_the_reconciler_itself_is_not_ours():
    async def reconcile(_request: Request) -> None:
        async with asyncio.timeout(2):
            await asyncio.sleep(1000)

    with pytest.raises(TimeoutError) as caught:
        await call_reconciler(reconcile, WEB, 5)
    assert not isinstance(caught.value, ReconcileTimeout)


@pytest.mark.spec("C4")
async def test_a_reconcile_that_swallows_its_cancellation_is_reported(caplog):
    async def reconcile(_request: Request) -> Result:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(1000)
        await asyncio.sleep(60)
        return Result(requeue_after=1)

    assert await call_reconciler(reconcile, WEB, 5) == Result(requeue_after=1)
    assert now() == 65
    assert "default/web still runs 5 s after its timeout of 5 s" in caplog.text


@pytest.mark.spec("C4")
async def test_a_reconcile_that_cleans_up_quickly_is_not_reported(caplog):
    async def reconcile(_request: Request) -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            await asyncio.sleep(3)

    with pytest.raises(ReconcileTimeout):
        await call_reconciler(reconcile, WEB, 5)
    await asyncio.sleep(100)
    assert caplog.text == ""


@pytest.mark.spec("C4")
async def test_reconcile_that_awaited_something_cancelled_is_failure_not_end():
    inner = asyncio.create_task(asyncio.sleep(1000))
    asyncio.get_running_loop().call_later(1, inner.cancel)

    async def reconcile(_request: Request) -> None:
        await inner

    with pytest.raises(RuntimeError, match="awaited something cancelled"):
        await call_reconciler(reconcile, WEB, None)


@pytest.mark.spec("C4")
async def test_a_cancellation_of_the_caller_goes_through():
    async def reconcile(_request: Request) -> None:
        await asyncio.sleep(1000)

    caller = asyncio.create_task(call_reconciler(reconcile, WEB, 500))
    await asyncio.sleep(1)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller


@pytest.mark.spec("C4")
async def test_a_terminal_error_passes_unchanged():
    async def reconcile(_request: Request) -> None:
        raise TerminalError("spec.replicas is negative")

    with pytest.raises(TerminalError, match="negative"):
        await call_reconciler(reconcile, WEB, 5)
