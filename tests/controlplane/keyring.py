"""The files that say who is who: certificates, keys and kubeconfigs, in one directory."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

from tests.controlplane import kubeconfig
from tests.controlplane.pki import Authority, KeyPair, signing_keys

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

MASTERS = ("system:masters",)


class Keyring:
    """Makes every key of one control plane, and more on demand; `keyring["ca.crt"]` is a path."""

    def __init__(self, directory: Path, *, server_names: Sequence[str]) -> None:
        self.directory = directory
        self._authority = Authority()
        self._write("ca.crt", "ca.key", self._authority.key_pair)
        self._write("sa.pub", "sa.key", signing_keys())
        self._write("server.crt", "server.key", self._authority.server(server_names))
        self._write("admin.crt", "admin.key", self._authority.client("elasti:admin", MASTERS))
        # What the API server shows to a kubelet when it fetches logs.
        to_kubelet = self._authority.client("kube-apiserver-kubelet-client", MASTERS)
        self._write("kubelet-client.crt", "kubelet-client.key", to_kubelet)
        # And to an aggregated API, which believes it who the user is.
        front_proxy = self._authority.client("front-proxy-client", ())
        self._write("front-proxy.crt", "front-proxy.key", front_proxy)

    def __getitem__(self, name: str) -> str:
        return str(self.directory / name)

    def kubeconfig(self, name: str, *, server: str, user: str, groups: Sequence[str] = ()) -> Path:
        """Write `name`.kubeconfig: this user, by a new certificate, at this server."""
        client = self._authority.client(user, groups)
        authority = self._authority.key_pair.public
        path = self.directory / f"{name}.kubeconfig"
        path.write_text(kubeconfig.render(server=server, authority=authority, client=client))
        return path

    def server(self, name: str, addresses: Sequence[str]) -> tuple[Path, Path]:
        """Write `name`.crt and `name`.key, of another server of the cluster."""
        self._write(f"{name}.crt", f"{name}.key", self._authority.server(addresses))
        return self.directory / f"{name}.crt", self.directory / f"{name}.key"

    def tls(self, *, admin: bool) -> ssl.SSLContext:
        """A client's side of TLS: as the administrator, or as nobody (to bear a token)."""
        context = ssl.create_default_context(cafile=self["ca.crt"])
        if admin:
            context.load_cert_chain(self["admin.crt"], self["admin.key"])
        return context

    def _write(self, public: str, private: str, keys: KeyPair) -> None:
        (self.directory / public).write_bytes(keys.public)
        (self.directory / private).write_bytes(keys.private)
