"""The kubeconfig document: its entries as typed values, each with the place it was written at.

Only what this package acts on is declared; other fields, extensions and preferences among them,
are passed over. A null means the same as a missing field, as it does to kubectl.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from kubeloop.client.errors import ConfigError, CredentialError

if TYPE_CHECKING:
    from pathlib import Path

T = TypeVar("T")


class Extension(msgspec.Struct, frozen=True):
    """Somebody's own data beside an entry."""

    name: str = ""
    extension: Any = None


class Cluster(msgspec.Struct, frozen=True, rename="kebab"):
    """How a server is reached and trusted."""

    server: str = ""
    tls_server_name: str = ""
    insecure_skip_tls_verify: bool = False
    certificate_authority: str = ""
    certificate_authority_data: str = ""
    proxy_url: str = ""
    extensions: tuple[Extension, ...] = ()


class ExecEnv(msgspec.Struct, frozen=True):
    """A variable for a plugin."""

    name: str = ""
    value: str = ""

    def __repr__(self) -> str:
        return f"ExecEnv({self.name!r}, ***)"


class Exec(msgspec.Struct, frozen=True, rename="camel"):
    """The plugin that gives a user's credentials."""

    command: str = ""
    args: tuple[str, ...] = ()
    env: tuple[ExecEnv, ...] = ()
    api_version: str = ""
    install_hint: str = ""
    provide_cluster_info: bool = False
    interactive_mode: str = ""


class AuthProvider(msgspec.Struct, frozen=True):
    """A login built into old kubectls; only its name matters, for the message."""

    name: str = ""


class User(msgspec.Struct, frozen=True, rename="kebab"):
    """Who somebody is. Its text form hides everything, because nearly all of it is secret."""

    client_certificate: str = ""
    client_certificate_data: str = ""
    client_key: str = ""
    client_key_data: str = ""
    token: str = ""
    token_file: str = msgspec.field(default="", name="tokenFile")
    username: str = ""
    password: str = ""
    as_user: str = msgspec.field(default="", name="as")
    as_uid: str = ""
    as_groups: tuple[str, ...] = ()
    as_user_extra: dict[str, tuple[str, ...]] = {}
    auth_provider: AuthProvider | None = None
    exec: Exec | None = None

    @property
    def has_credentials(self) -> bool:
        """Whether anything here could prove an identity."""
        tokens = self.token or self.token_file or self.username
        return bool(tokens or self.client_certificate or self.client_certificate_data or self.exec)

    def __repr__(self) -> str:
        return "User(***)"


class Context(msgspec.Struct, frozen=True):
    """A cluster, a user and a namespace that go together."""

    cluster: str = ""
    user: str = ""
    namespace: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where something is written: a file and a path in it, such as `users[2].user.exec`."""

    file: Path
    path: str

    def at(self, field: str) -> Place:
        """Return the place of a field below this one."""
        return Place(file=self.file, path=f"{self.path}.{field}")

    def resolve(self, name: str) -> Path:
        """Return a file that is named here; relative names are relative to the kubeconfig."""
        return (self.file.parent / name).absolute()

    def error(self, message: str) -> ConfigError:
        """Return an error that says where it is."""
        return ConfigError(f"{self}: {message}")

    def credential_error(self, message: str) -> CredentialError:
        """Return an error that says where it is, about credentials."""
        return CredentialError(f"{self}: {message}")

    def __str__(self) -> str:
        return f"{self.file}: {self.path}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry(Generic[T]):
    """A named entry and the place of its content."""

    name: str
    value: T
    place: Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Kubeconfig:
    """One file's entries, or several files' merged; `files` are those that were found."""

    files: tuple[Path, ...]
    current_context: str
    contexts: dict[str, Entry[Context]]
    clusters: dict[str, Entry[Cluster]]
    users: dict[str, Entry[User]]

    @property
    def source(self) -> str:
        """The files, for messages."""
        return ":".join(map(str, self.files))
