"""Kubeconfig files: the document as typed values, reading one file, and merging several.

Each entry keeps the location where it was written, for errors. Only what this package acts on is
declared; other fields, extensions and preferences among them, are ignored. A null means the same
as a missing field, as it does to kubectl.

Files are merged the way kubectl does it. The first file that has a name owns the whole entry:
nothing of a later entry of that name is used, not even fields that the first leaves out. The first
non-empty current-context wins. Files that do not exist are skipped; files that cannot be read or
understood are errors.

Reading blocks: the files are small, local and read once, before any request.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from kubeloop.client.errors import ConfigError, CredentialError

T = TypeVar("T")


_WORDS = {
    "object": "a mapping",
    "array": "a list",
    "str": "a string",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "null": "nothing",
}


class Extension(msgspec.Struct, frozen=True):
    """Data of another program beside an entry."""

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


class ExecConfig(msgspec.Struct, frozen=True, rename="camel"):
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


class AuthInfo(msgspec.Struct, frozen=True, rename="kebab"):
    """A user's credentials. Its text form hides everything, because nearly all of it is secret."""

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
    exec: ExecConfig | None = None

    @property
    def has_credentials(self) -> bool:
        """Whether anything here could prove an identity."""
        tokens = self.token or self.token_file or self.username
        return bool(tokens or self.client_certificate or self.client_certificate_data or self.exec)

    def __repr__(self) -> str:
        return "AuthInfo(***)"


class Context(msgspec.Struct, frozen=True):
    """A cluster, a user and a namespace that go together."""

    cluster: str = ""
    user: str = ""
    namespace: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigLocation:
    """Where something is written: a file and a path in it, such as `users[2].user.exec`."""

    file: Path
    path: str

    def at(self, field: str) -> ConfigLocation:
        """Return the place of a field below this one."""
        return ConfigLocation(file=self.file, path=f"{self.path}.{field}")

    def resolve(self, name: str) -> Path:
        """Return a file that is named here; relative names are relative to the kubeconfig."""
        return (self.file.parent / name).absolute()

    def error(self, message: str) -> ConfigError:
        """Return an error with its location."""
        return ConfigError(f"{self}: {message}")

    def credential_error(self, message: str) -> CredentialError:
        """Return an error about credentials with its location."""
        return CredentialError(f"{self}: {message}")

    def __str__(self) -> str:
        return f"{self.file}: {self.path}"


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeconfigEntry(Generic[T]):
    """A named entry and the place of its content."""

    name: str
    value: T
    location: ConfigLocation


@dataclass(frozen=True, slots=True, kw_only=True)
class Kubeconfig:
    """One file's entries, or several files' merged; `files` are those that were found."""

    files: tuple[Path, ...]
    current_context: str
    contexts: dict[str, KubeconfigEntry[Context]]
    clusters: dict[str, KubeconfigEntry[Cluster]]
    users: dict[str, KubeconfigEntry[AuthInfo]]

    @property
    def source(self) -> str:
        """The files, for messages."""
        return ":".join(map(str, self.files))


class _Document(msgspec.Struct, frozen=True, rename="kebab"):
    current_context: str = ""
    contexts: tuple[dict[str, Any], ...] = ()
    clusters: tuple[dict[str, Any], ...] = ()
    users: tuple[dict[str, Any], ...] = ()
    kind: str = ""
    api_version: str = msgspec.field(default="", name="apiVersion")


def load_files(paths: Sequence[Path]) -> Kubeconfig:
    """Read and merge those of the files that exist. Raises `ConfigError`."""
    found = [config for path in paths if (config := _read_if_there(path)) is not None]
    return merge_kubeconfigs(found)


def load_file(path: Path) -> Kubeconfig:
    """Read one file, which must exist. Raises `ConfigError`."""
    config = _read_if_there(path)
    if config is None:
        raise ConfigError(f"{path}: no such file; correct the path of the kubeconfig")
    return config


def merge_kubeconfigs(configs: Sequence[Kubeconfig]) -> Kubeconfig:
    """Merge in order of precedence; of equal names the first wins whole."""
    return Kubeconfig(
        files=tuple(file for config in configs for file in config.files),
        current_context=next((c.current_context for c in configs if c.current_context), ""),
        contexts=_first_wins(config.contexts for config in configs),
        clusters=_first_wins(config.clusters for config in configs),
        users=_first_wins(config.users for config in configs),
    )


def parse_kubeconfig(content: bytes, file: Path) -> Kubeconfig:
    """Understand one file's content. Raises `ConfigError`."""
    # PyYAML takes some 20 ms to import; clients inside a cluster never need it.
    from kubeloop.client.config import kubeconfig_yaml  # noqa: PLC0415 - see above

    raw = kubeconfig_yaml.load(content, file)
    document = _convert(raw if raw is not None else {}, _Document, f"{file}")
    if (document.kind or "Config", document.api_version or "v1") != ("Config", "v1"):
        raise ConfigError(
            f"{file}: apiVersion {document.api_version!r}, kind {document.kind!r} is not a"
            " kubeconfig; expected apiVersion v1, kind Config"
        )
    return Kubeconfig(
        files=(file,),
        current_context=document.current_context,
        contexts=_entries(document.contexts, file, "contexts", "context", Context),
        clusters=_entries(document.clusters, file, "clusters", "cluster", Cluster),
        users=_entries(document.users, file, "users", "user", AuthInfo),
    )


def _read_if_there(path: Path) -> Kubeconfig | None:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or str(error)
        raise ConfigError(
            f"{path}: the kubeconfig cannot be read: {reason}; check its owner and mode, or set"
            " KUBECONFIG to another file"
        ) from error
    return parse_kubeconfig(content, path.absolute())


def _first_wins(maps: Iterable[Mapping[str, KubeconfigEntry[T]]]) -> dict[str, KubeconfigEntry[T]]:
    merged: dict[str, KubeconfigEntry[T]] = {}
    for entries in maps:
        for name, entry in entries.items():
            merged.setdefault(name, entry)
    return merged


def _entries(
    items: tuple[dict[str, Any], ...], file: Path, section: str, content: str, kind: type[T]
) -> dict[str, KubeconfigEntry[T]]:
    entries: dict[str, KubeconfigEntry[T]] = {}
    for index, item in enumerate(items):
        location = ConfigLocation(file=file, path=f"{section}[{index}]")
        name = _convert(item.get("name", ""), str, f"{location}.name")
        if name in entries:
            raise location.at("name").error(
                f"{name!r} occurs twice in this file; rename or remove one"
            )
        value = _convert(item.get(content, {}), kind, f"{location}.{content}")
        entries[name] = KubeconfigEntry(name=name, value=value, location=location.at(content))
    return entries


def _convert(raw: Any, kind: type[T], origin: str) -> T:
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(_type_message(origin, str(error))) from error


def _type_message(origin: str, message: str) -> str:
    """Turn msgspec's words, which never hold a value, into ours: place first, then the remedy."""
    fault, _, path = message.partition(" - at `")
    path = path.removesuffix("`").removeprefix("$")
    location = f"{origin}{path}" if "[" in origin else f"{origin}: {path.removeprefix('.')}"
    for word, ours in _WORDS.items():
        fault = fault.replace(f"`{word}`", ours)
    remedy = (
        "put it in quotes" if fault.startswith("Expected a string") else "check the indentation"
    )
    return f"{location.removesuffix(': ')}: {fault[:1].lower()}{fault[1:]}; {remedy}"
