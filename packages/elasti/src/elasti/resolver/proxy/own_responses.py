"""Responses of our own. Refusals are JSON and state when the client can try again."""

from __future__ import annotations

import http

import msgspec

RETRY_AFTER_SECONDS = 5


def refusal_body(status: int, message: str) -> bytes:
    """Return the JSON body of a refusal."""
    return msgspec.json.encode({"error": message, "status": status})


def refusal_response(status: int, message: str, *, retry: bool, head_only: bool = False) -> bytes:
    """Return a refusal. The connection ends with it."""
    body = refusal_body(status, message)
    lines = [
        f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
    ]
    if retry:
        lines.append(f"Retry-After: {RETRY_AFTER_SECONDS}")
    lines.append("Connection: close")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + (b"" if head_only else body)


def content_type(body: bytes) -> bytes:
    """Guess the type of a configured body."""
    return b"application/json" if body[:1] in (b"{", b"[") else b"text/plain"


def plain_response(
    status: int, body: bytes, *, close: bool, head_only: bool, fields: bytes = b""
) -> bytes:
    """Return a response with this body. `fields` are whole lines; without them the type is guessed."""
    connection = b"Connection: close\r\n" if close else b""
    first = f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}\r\n".encode()
    if status in (http.HTTPStatus.NO_CONTENT, http.HTTPStatus.NOT_MODIFIED):
        return first + connection + b"\r\n"
    fields = fields or b"Content-Type: %b\r\n" % content_type(body)
    fields += b"Content-Length: %d\r\n" % len(body)
    return first + fields + connection + b"\r\n" + (b"" if head_only else body)
