"""A client, run where Services can be reached: asks as it is told, and prints what it got.

    python -m tests.e2e.cases.ask '{"host": "10.0.0.1", "port": 80, "requests": [{"path": "/"}], ...}'

`reuse` sends all on one connection, one after another; otherwise all go at once, each on its own, and
again until `seconds` have passed. `timeout` is what each may take.
Nothing is tried twice. The answers come as one JSON list, in the order of the requests.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

_SHOWN = 4096
_PAUSE = 0.02


def ask(connection: http.client.HTTPConnection, request: dict[str, Any]) -> dict[str, Any]:
    """Return an answer, or what went wrong."""
    try:
        connection.request(
            request.get("method", "GET"),
            request["path"],
            body=request.get("body"),
            headers=request.get("headers", {}),
        )
        response = connection.getresponse()
        body = response.read()
    except (OSError, http.client.HTTPException) as error:
        return {"status": 0, "error": f"{type(error).__name__}: {error}"}
    return {
        "status": response.status,
        "headers": {name.lower(): value for name, value in response.getheaders()},
        "length": len(body),
        "sha256": hashlib.sha256(body).hexdigest(),
        "text": body[:_SHOWN].decode("utf-8", "replace"),
    }


def main() -> None:
    plan = json.loads(sys.argv[1])

    def connect() -> http.client.HTTPConnection:
        return http.client.HTTPConnection(plan["host"], plan["port"], timeout=plan["timeout"])

    if plan.get("reuse"):
        one = connect()
        one.auto_open = 0
        one.connect()
        answers = [ask(one, request) for request in plan["requests"]]
    else:
        answers = []
        until = time.monotonic() + plan["seconds"]
        with ThreadPoolExecutor(len(plan["requests"])) as threads:
            while not answers or time.monotonic() < until:
                answers += threads.map(lambda request: ask(connect(), request), plan["requests"])
                time.sleep(_PAUSE)
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
