"""A plain HTTPS client for the API server: what the rig itself needs, and no more.

It shares no code with the library under test, so that a test may trust it.
"""

from __future__ import annotations

import http.client
import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterator, Mapping

TIMEOUT_SECONDS = 30.0


class ApiError(Exception):
    """The server answered, and the answer was not a success."""

    def __init__(self, call: str, answer: Answer) -> None:
        super().__init__(f"{call}: {answer.status} {answer.text[:500]}")
        self.status = answer.status


@dataclass(frozen=True, slots=True)
class Answer:
    """Status and body of one response."""

    status: int
    text: str

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    @property
    def json(self) -> Any:
        return json.loads(self.text)


@dataclass(frozen=True, slots=True)
class Api:
    """Requests to one address, each on a connection of its own: restarts of the server are no news.

    Without `tls` it speaks plain HTTP.
    """

    port: int
    host: str = "127.0.0.1"
    tls: ssl.SSLContext | None = None
    token: str | None = None
    timeout: float = TIMEOUT_SECONDS

    def request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        content_type: str = "application/json",
    ) -> Answer:
        """Send one request and return the answer, whatever its status; OSError if there is none."""
        headers = {"Accept": "application/json"}
        if self.token is not None:
            headers["Authorization"] = f"Bearer {self.token}"
        if body is not None:
            headers["Content-Type"] = content_type
        connection = self._connection(self.timeout)
        try:
            payload = None if body is None else json.dumps(body)
            connection.request(method, path, payload, headers)
            response = connection.getresponse()
            return Answer(response.status, response.read().decode())
        except http.client.HTTPException as error:
            raise ConnectionError(f"{method} {path}: {error!r}") from error
        finally:
            connection.close()

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Send one request and return the decoded answer; ApiError unless it is a success."""
        answer = self.request(method, path, body)
        if not answer.ok:
            raise ApiError(f"{method} {path}", answer)
        return answer.json

    def get(self, path: str) -> Any:
        return self.call("GET", path)

    def create(self, path: str, body: Mapping[str, Any]) -> Any:
        return self.call("POST", path, body)

    def delete(self, path: str) -> Any:
        return self.call("DELETE", path)

    def healthy(self, path: str) -> bool:
        """Whether the path answers with success now; an absent server is an unhealthy one."""
        try:
            return self.request("GET", path).ok
        except OSError:
            return False

    def watch(self, path: str, version: str, timeout: float) -> Iterator[dict[str, Any]]:
        """What changes in a collection after a version, for so many seconds; ApiError if told one."""
        query = f"watch=1&resourceVersion={version}&timeoutSeconds={math.ceil(timeout)}"
        headers = {} if self.token is None else {"Authorization": f"Bearer {self.token}"}
        # A watch may hear nothing for long; it is the server that ends it in time.
        connection = self._connection(timeout + self.timeout)
        try:
            target = f"{path}{'&' if '?' in path else '?'}{query}"
            connection.request("GET", target, headers=headers)
            response = connection.getresponse()
            if response.status != http.client.OK:
                raise ApiError(f"WATCH {path}", Answer(response.status, response.read().decode()))
            for line in response:
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise ApiError(f"WATCH {path}", Answer(event["object"]["code"], line.decode()))
                yield event
        finally:
            connection.close()

    def until(
        self,
        path: str,
        condition: Callable[[list[dict[str, Any]]], bool],
        timeout: float = TIMEOUT_SECONDS,
    ) -> list[dict[str, Any]]:
        """Wait until all objects of a collection together satisfy the condition; return them."""
        listed = self.get(path)
        objects = {item["metadata"]["uid"]: item for item in listed["items"]}
        if condition(list(objects.values())):
            return list(objects.values())
        for event in self.watch(path, listed["metadata"]["resourceVersion"], timeout):
            uid = event["object"]["metadata"]["uid"]
            if event["type"] == "DELETED":
                objects.pop(uid, None)
            else:
                objects[uid] = event["object"]
            if condition(list(objects.values())):
                return list(objects.values())
        raise TimeoutError(f"{path} after {timeout:.0f} s: {json.dumps(list(objects.values()))}")

    def _connection(self, timeout: float) -> http.client.HTTPConnection:
        if self.tls is None:
            return http.client.HTTPConnection(self.host, self.port, timeout=timeout)
        return http.client.HTTPSConnection(self.host, self.port, timeout=timeout, context=self.tls)
