"""YAML to plain data, the way Kubernetes' tools read it. Import it late: PyYAML is not light.

Dates stay strings, scalar keys become strings, and fields that are null disappear: the document
then means what its JSON form means to kubectl.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from kubeloop.client.errors import ConfigError

_TIMESTAMP = "tag:yaml.org,2002:timestamp"


class _Loader(yaml.CSafeLoader):
    """The C loader without dates."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - PyYAML's own class attribute, replaced whole
        first: [(tag, pattern) for tag, pattern in resolvers if tag != _TIMESTAMP]
        for first, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
    }


def load(content: bytes, file: Path) -> Any:
    """Return the document; None for an empty one. Raises `ConfigError` that names file and line."""
    try:
        # _Loader is a safe loader: it makes plain data only.
        return _plain(yaml.load(content, Loader=_Loader))  # noqa: S506 - see above
    except yaml.MarkedYAMLError as error:
        # PyYAML quotes aliases and tags; an unquoted password that starts with * or ! is one.
        raise ConfigError(f"{file}: {_where(error)}: {_what(error)}; correct the YAML") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{file}: not YAML text: {error}") from error
    except RecursionError as error:
        raise ConfigError(f"{file}: nested too deeply, or an alias contains itself") from error
    except (ValueError, TypeError, AttributeError, LookupError, OverflowError):
        # PyYAML's constructors let these escape for a tag that its value does not fit (!!int "").
        # They quote the value, which may be a secret, so they are not chained.
        raise ConfigError(
            f"{file}: a value does not fit the YAML tag (!!int, !!bool, ...) before it; remove the"
            " tag"
        ) from None


def _where(error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    return f"line {mark.line + 1}, column {mark.column + 1}" if mark else "YAML"


def _what(error: yaml.MarkedYAMLError) -> str:
    words = " ".join(filter(None, (error.context, error.problem)))
    return re.sub(r"'[^']{2,}'", "'...'", words)


def _plain(node: Any) -> Any:
    match node:
        case dict():
            return {_key(key): _plain(value) for key, value in node.items() if value is not None}
        case list():
            return [_plain(item) for item in node]
        case _:
            return node


def _key(key: Any) -> str:
    return key if isinstance(key, str) else str(key).lower()
