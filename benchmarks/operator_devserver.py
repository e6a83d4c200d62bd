"""The dev cluster's API server by itself, with a ledger of what the operator asks for.

Without controllers and kubelets: a benchmark of the operator needs a server, and the fewer others
share its core the better. Prints where the kubeconfigs are, serves until standard input ends.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.operator_ledger import COMPLETE, OPERATOR_USER, RECEIVED, STARTED, Clerk
from devkube.apiserver.server import ApiServer

if TYPE_CHECKING:
    from devkube.apiserver.auth import UserInfo
    from devkube.apiserver.calls import Attributes, Call
    from devkube.apiserver.registry.writer import WriteResult


class Auditor:
    """Sits among the authorizers, since every request passes there, and allows nothing by itself."""

    def __init__(self, clerk: Clerk) -> None:
        self._clerk = clerk

    async def authorize(self, user: UserInfo, attributes: Attributes) -> bool:
        """Note the request; whether it is allowed is for others to say."""
        if user.name == OPERATOR_USER and attributes.is_resource:
            self._note(RECEIVED, attributes)
            if attributes.verb == "watch":
                self._note(STARTED, attributes)
        return False

    def written(self, call: Call, _written: WriteResult) -> None:
        """Note a write that is done."""
        if call.user.name == OPERATOR_USER:
            self._note(COMPLETE, call.attributes, code=200)

    def _note(self, stage: str, attributes: Attributes, *, code: int = 0) -> None:
        self._clerk.note(
            stage,
            attributes.verb,
            resource=attributes.resource,
            subresource=attributes.subresource,
            namespace=attributes.namespace,
            name=attributes.name,
            code=code,
        )


async def serve(directory: Path) -> None:
    """Serve until standard input ends."""
    with (directory / "audit.log").open("wb") as file:
        auditor = Auditor(Clerk(file))
        async with ApiServer() as server:
            server.core.gate.authorizers.insert(0, auditor)
            server.core.observers.append(auditor.written)
            for user in ("admin", OPERATOR_USER):
                (directory / user).write_text(server.admin_kubeconfig(user))
            print(json.dumps({"url": server.url}), flush=True)
            await asyncio.to_thread(sys.stdin.read)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", type=Path, required=True)
    asyncio.run(serve(parser.parse_args().directory))


if __name__ == "__main__":
    main()
