"""Responses that the resolver writes itself: refusals as JSON, with the time to try again."""

from __future__ import annotations

import http

import msgspec

RETRY_AFTER_SECONDS = 5


def refusal_response(status: int, words: str, *, retry: bool, close: bool = True) -> bytes:
    """Return a whole response that says why, and when to come back."""
    body = msgspec.json.encode({"error": words, "status": status})
    lines = [
        f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
    ]
    if retry:
        lines.append(f"Retry-After: {RETRY_AFTER_SECONDS}")
    if close:
        lines.append("Connection: close")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def plain_response(status: int, body: bytes) -> bytes:
    """Return a whole response with a body as given; the connection stays open."""
    phrase = http.HTTPStatus(status).phrase
    content_type = b"application/json" if body[:1] in b"{[" and body else b"text/plain"
    if status == http.HTTPStatus.NO_CONTENT:
        return f"HTTP/1.1 {status} {phrase}\r\n\r\n".encode()
    head = f"HTTP/1.1 {status} {phrase}\r\nContent-Length: {len(body)}\r\n".encode()
    return head + b"Content-Type: " + content_type + b"\r\n\r\n" + body
