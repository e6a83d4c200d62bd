"""Secrets of type `kubernetes.io/service-account-token`: filled in as they are written.

The old way to a token, which manifests still use. The token is bound to the Secret: it goes with it.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

from elasti.devcluster.auth.accounts import ACCOUNTS, SECRETS, Bound

if TYPE_CHECKING:
    from elasti.devcluster.apiserver.calls import Call
    from elasti.devcluster.apiserver.storage import Store
    from elasti.devcluster.apiserver.writes import Written
    from elasti.devcluster.auth.accounts import AccountTokens
    from kubeloop.objects.meta import JsonObject

TYPE = "kubernetes.io/service-account-token"
ACCOUNT_NAME = "kubernetes.io/service-account.name"
ACCOUNT_UID = "kubernetes.io/service-account.uid"
# These tokens have no end in Kubernetes; ours end with the cluster's patience.
_SECONDS = 10 * 365 * 24 * 60 * 60


class TokenSecrets:
    """Observes Secrets and completes those that ask for a token."""

    def __init__(self, *, store: Store, tokens: AccountTokens, authority: bytes) -> None:
        self._store = store
        self._tokens = tokens
        self._authority = authority

    def observe(self, call: Call, written: Written) -> None:
        """Follow a write of a Secret, or of the account that one waits for."""
        if written.deleted or written.record is None:
            return
        if call.resource.stored_in == SECRETS:
            self._fill(written.record.key)
        elif call.resource.stored_in == ACCOUNTS and written.created:
            for record in self._store.collection(SECRETS).scan(call.namespace):
                self._fill(record.key)

    def _fill(self, key: str) -> None:
        collection = self._store.collection(SECRETS)
        record = collection.get(key)
        if record is None or record.fields.get("type") != TYPE:
            return
        secret = record.decode()
        data = secret.get("data") or {}
        account = self._account(secret)
        if account is None or data.get("token"):
            return
        metadata = secret["metadata"]
        token = self._tokens.issue(
            namespace=metadata["namespace"],
            account=account["metadata"]["name"],
            uid=account["metadata"]["uid"],
            audiences=self._tokens.audiences,
            seconds=_SECONDS,
            bound=Bound(kind="secret", name=metadata["name"], uid=metadata["uid"]),
        )
        parts = {
            "token": token.encode(),
            "ca.crt": self._authority,
            "namespace": metadata["namespace"].encode(),
        }
        secret["data"] = {**data, **{name: _text(value) for name, value in parts.items()}}
        metadata["annotations"][ACCOUNT_UID] = account["metadata"]["uid"]
        self._store.put(collection, key, secret, fields=record.fields)

    def _account(self, secret: JsonObject) -> JsonObject | None:
        metadata = secret["metadata"]
        name = (metadata.get("annotations") or {}).get(ACCOUNT_NAME)
        record = self._store.collection(ACCOUNTS).get(f"{metadata['namespace']}/{name}")
        return record.decode() if record is not None else None


def _text(value: bytes) -> str:
    return base64.b64encode(value).decode()
