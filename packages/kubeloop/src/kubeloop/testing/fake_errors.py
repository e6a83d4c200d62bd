"""Errors of API servers, for tests that inject them."""

from __future__ import annotations

from typing import Any

from kubeloop.client.errors import ApiError, Status, StatusCause, StatusDetails, error_from_status
from kubeloop.objects.meta import JsonObject


def api_error(code: int, reason: str = "", message: str = "", **details: Any) -> ApiError:
    """Build a server's refusal."""
    found = StatusDetails(**details) if details else None
    return error_from_status(
        Status(status="Failure", code=code, reason=reason, message=message, details=found)
    )


def gone(version: str) -> ApiError:
    """Build the 410 for a version that is too old."""
    return api_error(410, "Expired", f"too old resource version: {version}")


def too_large(version: str, current: int) -> ApiError:
    """Build the answer of a server that is behind the version asked for."""
    return api_error(
        504,
        "Timeout",
        f"Too large resource version: {version}, current: {current}",
        causes=(
            StatusCause(reason="ResourceVersionTooLarge", message="Too large resource version"),
        ),
        retry_after_seconds=1,
    )


def status_object(status: Status) -> JsonObject:
    """Return a Status as an ERROR event carries it."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": status.status or "Failure",
        "message": status.message,
        "reason": status.reason,
        "code": status.code,
    }
