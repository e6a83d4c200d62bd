"""Responses that the resolver writes itself: refusals as JSON, with the time to try again."""

from __future__ import annotations

import http

import msgspec

RETRY_AFTER_SECONDS = 5


def refusal_body(status: int, words: str) -> bytes:
    """Return the JSON that says why."""
    return msgspec.json.encode({"error": words, "status": status})


def refusal_response(status: int, words: str, *, retry: bool, head_only: bool = False) -> bytes:
    """Return a whole response that says why, and when to come back; the connection ends with it."""
    body = refusal_body(status, words)
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
    """Guess what a configured body is."""
    return b"application/json" if body[:1] in (b"{", b"[") else b"text/plain"


def plain_response(status: int, body: bytes, *, close: bool, head_only: bool) -> bytes:
    """Return a whole response with a body as given."""
    connection = b"Connection: close\r\n" if close else b""
    first = f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}\r\n".encode()
    if status in (http.HTTPStatus.NO_CONTENT, http.HTTPStatus.NOT_MODIFIED):
        return first + connection + b"\r\n"
    fields = b"Content-Type: %b\r\nContent-Length: %d\r\n" % (content_type(body), len(body))
    return first + fields + connection + b"\r\n" + (b"" if head_only else body)
