"""The JSONPath of printer columns: fields, indices, `[*]` and `[?(@.a=="b")]` filters. Pure."""

from __future__ import annotations

import json
import re
from typing import Any

_STEP = re.compile(
    r"""
      \.(?P<field>(?:[^.\[\]\\]|\\.)+)
    | \['(?P<quoted>[^']*)'\]
    | \[(?P<index>-?\d+)\]
    | (?P<all>\[\*\]|\.\*)
    | \[\?\(\s*@(?P<left>(?:\.[\w\-\\./]+)+)\s*(?P<sign>==|!=)\s*(?P<right>"[^"]*"|'[^']*'|[\w.\-]+)\s*\)\]
    """,
    re.VERBOSE,
)

Path = tuple[tuple[str, Any], ...]


def parse(text: str) -> Path:
    """Parse a path; ValueError for syntax that printer columns do not have."""
    text = text.strip()
    if text.startswith("{") and text.endswith("}"):
        text = text[1:-1]
    if text and text[0] not in ".[":
        text = f".{text}"
    steps: list[tuple[str, Any]] = []
    position = 0
    while position < len(text):
        found = _STEP.match(text, position)
        if found is None:
            raise ValueError(f"{text!r} is not a JSON path at {text[position:]!r}")
        steps.append(_step(found))
        position = found.end()
    return tuple(steps)


def _step(found: re.Match[str]) -> tuple[str, Any]:
    if found["field"] is not None:
        return "field", re.sub(r"\\(.)", r"\1", found["field"])
    if found["quoted"] is not None:
        return "field", found["quoted"]
    if found["index"] is not None:
        return "index", int(found["index"])
    if found["all"] is not None:
        return "all", None
    right = found["right"]
    value = right[1:-1] if right[0] in "\"'" else json.loads(right)
    return "filter", (parse(found["left"]), found["sign"] == "==", value)


def find(path: Path, value: Any) -> list[Any]:
    """Return every match."""
    found = [value]
    for kind, argument in path:
        found = [child for item in found for child in _children(kind, argument, item)]
    return found


def first(path: Path, value: Any) -> Any:
    """Return the first match, or None."""
    found = find(path, value)
    return found[0] if found else None


def _children(kind: str, argument: Any, value: Any) -> list[Any]:
    match kind:
        case "field":
            return [value[argument]] if isinstance(value, dict) and argument in value else []
        case "index":
            inside = isinstance(value, list) and -len(value) <= argument < len(value)
            return [value[argument]] if inside else []
        case "all":
            if isinstance(value, list):
                return value
            return list(value.values()) if isinstance(value, dict) else []
        case _:
            left, equal, right = argument
            items = value if isinstance(value, list) else []
            return [item for item in items if (first(left, item) == right) is equal]


def show(value: Any) -> str:
    """Show a value that is no text."""
    return json.dumps(value, separators=(",", ":"))
