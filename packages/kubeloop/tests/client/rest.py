"""What the REST tests share: clients of a scripted server, and a transport without sockets."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import msgspec
from tests.testing.scripted_server import ScriptedServer

from kubeloop.client.auth.credentials import Anonymous, Credentials
from kubeloop.client.auth.identity import AuthContext, Identity
from kubeloop.client.client import Client
from kubeloop.client.config.client_config import ClientConfig
from kubeloop.client.config.endpoint import Endpoint
from kubeloop.client.pipeline import RequestPipeline
from kubeloop.client.request import Request
from kubeloop.client.responses import Response
from kubeloop.objects.meta import JsonObject, ObjectMeta


class Pod(msgspec.Struct, rename="camel", omit_defaults=True):
    """A pod as some caller sees it."""

    api_version: str = "v1"
    kind: str = "Pod"
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    spec: dict[str, Any] | None = None


def pod(name: str = "web-0", namespace: str = "default", version: str = "1") -> JsonObject:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "resourceVersion": version},
    }


def pod_list(*names: str, version: str = "10", token: str = "") -> JsonObject:
    metadata = {"resourceVersion": version} | ({"continue": token} if token else {})
    return {
        "apiVersion": "v1",
        "kind": "PodList",
        "metadata": metadata,
        "items": [pod(name) for name in names],
    }


def config_for(
    url: str, credentials: Credentials | None = None, *, prefix: str = "", **fields: Any
) -> ClientConfig:
    return ClientConfig(
        endpoint=Endpoint.parse(url + prefix),
        credentials=credentials or Anonymous(),
        source="the test",
        **fields,
    )


def client_of(
    server: ScriptedServer,
    credentials: Credentials | None = None,
    *,
    prefix: str = "",
    impersonate: Any = None,
    **options: Any,
) -> Client:
    config = config_for(server.url, credentials, prefix=prefix, impersonate=impersonate)
    return Client(config, **options)


class RenewableToken:
    """Credentials with one token after another; each 401 moves on."""

    def __init__(self, *tokens: str) -> None:
        self._tokens = list(tokens)
        self.refused: list[Mapping[str, str] | None] = []

    async def headers(self) -> Mapping[str, str]:
        return {"Authorization": f"Bearer {self._tokens[0]}"}

    async def ssl_context(self) -> None:
        return None

    def invalidate(self, refused: Mapping[str, str] | None = None) -> None:
        self.refused.append(refused)
        if len(self._tokens) > 1:
            self._tokens.pop(0)


Outcome = Response | Exception


@dataclasses.dataclass
class ScriptedTransport:
    """A transport that answers from a list; the last outcome repeats."""

    outcomes: list[Outcome]
    on_send: Callable[[], None] = lambda: None
    sent: list[Request] = dataclasses.field(default_factory=list)
    auths: list[AuthContext] = dataclasses.field(default_factory=list)
    timeouts: list[float] = dataclasses.field(default_factory=list)

    async def send(self, request: Request, auth: AuthContext, *, timeout: float) -> Response:
        self.sent.append(request)
        self.auths.append(auth)
        self.timeouts.append(timeout)
        self.on_send()
        outcome = self.outcomes.pop(0) if len(self.outcomes) > 1 else self.outcomes[0]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def open_socket(self, *_about: Any, **_options: Any) -> NoReturn:
        raise AssertionError("no WebSocket is scripted")

    async def aclose(self) -> None:
        pass


def sender_over(
    transport: ScriptedTransport, credentials: Credentials | None = None, **options: Any
) -> RequestPipeline:
    config = config_for("http://127.0.0.1:1", credentials)
    return RequestPipeline(identity=Identity(config), transport=transport, timeout=65.0, **options)


def answer(
    status: int = 200,
    body: object = None,
    *,
    raw: bytes | None = None,
    content_type: str = "application/json",
    **headers: str,
) -> Response:
    lines = [("content-type", content_type)]
    lines += [(name.replace("_", "-"), value) for name, value in headers.items()]
    data = msgspec.json.encode(body) if raw is None else raw
    return Response(
        status=status, headers=tuple(lines), body=data, url="https://server:6443/api/v1/pods"
    )


def refusal(code: int, reason: str, message: str = "", **headers: Any) -> Response:
    status = {
        "kind": "Status",
        "status": "Failure",
        "code": code,
        "reason": reason,
        "message": message,
    }
    return answer(code, status, **headers)
