"""Kubeconfig files: reading one, and merging several the way kubectl does.

The first file that has a name owns the whole entry: nothing of a later entry of that name is
used, not even fields that the first leaves out. The first non-empty current-context wins. Files
that do not exist are skipped; files that cannot be read or understood are errors.

Reading blocks: the files are small, local and read once, before any request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from kubeloop.client.errors import ConfigError
from kubeloop.client.kubeconfig import Cluster, Context, Entry, Kubeconfig, Place, User

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

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
    return merge(found)


def load_file(path: Path) -> Kubeconfig:
    """Read one file, which must exist. Raises `ConfigError`."""
    config = _read_if_there(path)
    if config is None:
        raise ConfigError(f"{path}: no such file; correct the path of the kubeconfig")
    return config


def merge(configs: Sequence[Kubeconfig]) -> Kubeconfig:
    """Merge in order of precedence; of equal names the first wins whole."""
    return Kubeconfig(
        files=tuple(file for config in configs for file in config.files),
        current_context=next((c.current_context for c in configs if c.current_context), ""),
        contexts=_first_wins(config.contexts for config in configs),
        clusters=_first_wins(config.clusters for config in configs),
        users=_first_wins(config.users for config in configs),
    )


def parse(content: bytes, file: Path) -> Kubeconfig:
    """Understand one file's content. Raises `ConfigError`."""
    # PyYAML takes some 20 ms to import; clients inside a cluster never need it.
    from kubeloop.client import kubeconfig_yaml  # noqa: PLC0415 - see above

    raw = kubeconfig_yaml.load(content, file)
    document = _convert(raw if raw is not None else {}, _Document, f"{file}")
    _check_kind(document, file)
    return Kubeconfig(
        files=(file,),
        current_context=document.current_context,
        contexts=_entries(document.contexts, file, "contexts", "context", Context),
        clusters=_entries(document.clusters, file, "clusters", "cluster", Cluster),
        users=_entries(document.users, file, "users", "user", User),
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
    return parse(content, path.absolute())


def _first_wins(maps: Iterable[Mapping[str, Entry[T]]]) -> dict[str, Entry[T]]:
    merged: dict[str, Entry[T]] = {}
    for entries in maps:
        for name, entry in entries.items():
            merged.setdefault(name, entry)
    return merged


def _check_kind(document: _Document, file: Path) -> None:
    if (document.kind or "Config", document.api_version or "v1") != ("Config", "v1"):
        raise ConfigError(
            f"{file}: apiVersion {document.api_version!r}, kind {document.kind!r} is not a"
            " kubeconfig; expected apiVersion v1, kind Config"
        )


def _entries(
    items: tuple[dict[str, Any], ...], file: Path, section: str, content: str, kind: type[T]
) -> dict[str, Entry[T]]:
    entries: dict[str, Entry[T]] = {}
    for index, item in enumerate(items):
        place = Place(file=file, path=f"{section}[{index}]")
        name = _convert(item.get("name", ""), str, f"{place}.name")
        if name in entries:
            raise place.at("name").error(
                f"{name!r} occurs twice in this file; rename or remove one"
            )
        value = _convert(item.get(content, {}), kind, f"{place}.{content}")
        entries[name] = Entry(name=name, value=value, place=place.at(content))
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
    place = f"{origin}{path}" if "[" in origin else f"{origin}: {path.removeprefix('.')}"
    for word, ours in _WORDS.items():
        fault = fault.replace(f"`{word}`", ours)
    remedy = (
        "put it in quotes" if fault.startswith("Expected a string") else "check the indentation"
    )
    return f"{place.removesuffix(': ')}: {fault[:1].lower()}{fault[1:]}; {remedy}"
