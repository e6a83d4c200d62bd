"""Reviews as an API server sends them, and an HTTPS client that trusts one authority."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from typing import Any


def review(obj: Any, *, path: str = "example.com/v1/sites", **fields: Any) -> bytes:
    *group, version, resource = path.split("/")
    request = {
        "uid": "u-1",
        "operation": "CREATE",
        "resource": {"group": "".join(group), "version": version, "resource": resource},
        "kind": {"group": "".join(group), "version": version, "kind": "Any"},
        "userInfo": {"username": "ann", "groups": ["devs"]},
        "object": obj,
        **fields,
    }
    body = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    return json.dumps(body).encode()


def patch_of(answer: Any) -> Any:
    return json.loads(base64.b64decode(answer["response"]["patch"]))


# X509_V_FLAG_NO_CHECK_TIME: tests set the server's clock.
TIMELESS = 0x200000


def trusting(authorities: bytes) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=authorities.decode())
    context.verify_flags |= TIMELESS
    return context


async def post(
    port: int,
    path: str,
    body: bytes,
    *,
    tls: ssl.SSLContext | None,
    name: str = "localhost",
    method: str = "POST",
) -> tuple[int, str]:
    """Send one request; returns status and body."""
    server_name = name if tls else None
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=tls, server_hostname=server_name
    )
    try:
        head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode())
        writer.write(body)
        await writer.drain()
        answer = await reader.read()
    finally:
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)
    head, _, rest = answer.decode().partition("\r\n\r\n")
    return int(head.split()[1]) if head else 0, rest
