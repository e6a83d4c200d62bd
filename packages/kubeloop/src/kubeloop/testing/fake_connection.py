"""One client's connection to a fake API server: its requests, and the faults and hooks in their way."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

import msgspec

from kubeloop.client.errors import ApiError
from kubeloop.client.responses import Response
from kubeloop.testing.fake_errors import status_object

if TYPE_CHECKING:
    from kubeloop.client.auth.identity import AuthContext
    from kubeloop.client.request import Request
    from kubeloop.testing.fake_api import FakeApi


class FakeConnection:
    """A transport without a network; see `FakeClient`."""

    def __init__(self, api: FakeApi) -> None:
        self.requests: list[Request] = []
        self.faults: list[tuple[str, str, Exception]] = []
        self.on_write: Callable[[Request, bool], None] | None = None
        self._api = api

    async def send(self, request: Request, _auth: AuthContext, *, timeout: float) -> Response:
        """Answer a request; a refusal is an answer too."""
        url = f"fake://{request.target}"
        try:
            self.note(request)
            self._intercept(request, done=False)
            document = await self._api.answer(request)
            self._intercept(request, done=True)
        except ApiError as error:
            refusal = status_object(error.status)
            if error.status.details is not None:
                refusal["details"] = msgspec.to_builtins(error.status.details)
            body = msgspec.json.encode(refusal)
            return Response(status=error.code, headers=(), body=body, url=url)
        return Response(status=200, headers=(), body=msgspec.json.encode(document), url=url)

    async def open_socket(self, request: Request, *_about: object, **_options: object) -> NoReturn:
        """Refuse a command or a forwarded port."""
        raise NotImplementedError(
            f"{request}: a FakeClient runs no containers, so it has no logs, commands or ports"
        )

    async def aclose(self) -> None:
        """Nothing is open."""

    def note(self, request: Request) -> None:
        """Record a request, and raise the fault that a test put in its way."""
        self.requests.append(request)
        for fault in self.faults:
            method, part, error = fault
            if method in {"", request.method} and part in request.path:
                self.faults.remove(fault)
                raise error

    def _intercept(self, request: Request, *, done: bool) -> None:
        if self.on_write is not None and request.method != "GET":
            self.on_write(request, done)
