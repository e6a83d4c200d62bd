"""A real cluster that is up, as tests use it: kubectl, the API, `elasti`, and programs inside a node."""

from __future__ import annotations

import base64
import json
import os
import ssl
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from hack.realcluster import lifecycle
from hack.realcluster.programs import Programs
from tests.controlplane.api import Api

if TYPE_CHECKING:
    from hack.realcluster.state import State

RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
ELASTI = Path(sys.executable).with_name("elasti")


class Rig:
    """Everything blocks, and every failure of a program is an exception with what it said."""

    def __init__(self, state: State, directory: Path) -> None:
        self.state = state
        self.directory = directory
        self.api = api_of(Path(state.kubeconfig))
        self._kubectl = Programs.locate(os.environ).kubectl

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Run kubectl as the administrator; its output."""
        return run([self._kubectl, f"--kubeconfig={self.state.kubeconfig}", *arguments], stdin)

    def elasti(self, *arguments: str) -> str:
        """Run our own command line as the administrator; its output."""
        return run([str(ELASTI), *arguments, f"--kubeconfig={self.state.kubeconfig}"])

    def inside(self, place: str, *argv: str) -> str:
        """Run a program in a node's namespaces to its end; its output."""
        return run(lifecycle.inside(self.state, place, argv))

    def apply(self, *objects: dict[str, Any]) -> None:
        """Make objects so."""
        self.kubectl("apply", "-f", "-", stdin=json.dumps(_list_of(objects)))

    def namespace(self, name: str, **labels: str) -> str:
        """A Namespace, in which Pod Security `restricted` is enforced unless labels say otherwise."""
        metadata = {"name": name, "labels": {**RESTRICTED, **labels}}
        self.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        # Admission refuses pods until the controllers have made this one.
        accounts = f"/api/v1/namespaces/{name}/serviceaccounts"
        self.api.until(accounts, lambda found: any(map(_is_default, found)))
        return name


def _list_of(objects: tuple[dict[str, Any], ...]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "List", "items": list(objects)}


def _is_default(account: dict[str, Any]) -> bool:
    return bool(account["metadata"]["name"] == "default")


def run(command: list[str], stdin: str | None = None) -> str:
    """A program's output; AssertionError with all it said if it failed."""
    done = subprocess.run(command, input=stdin, check=False, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def api_of(kubeconfig: Path) -> Api:
    """The API server that a kubeconfig of ours leads to."""
    config = json.loads(kubeconfig.read_text())
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
    tls = ssl.create_default_context(cadata=authority)
    with tempfile.NamedTemporaryFile() as pair:  # Python loads a client's key from a file only
        for name in ("client-certificate-data", "client-key-data"):
            pair.write(base64.b64decode(user[name]))
        pair.flush()
        tls.load_cert_chain(pair.name)
    url = urlsplit(cluster["server"])
    assert url.hostname is not None
    assert url.port is not None
    return Api(url.port, host=url.hostname, tls=tls)
