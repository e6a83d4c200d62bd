"""A log line has what went wrong under `error`, and why under `reason`: one search finds it in every program."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
OTHER_WORDS = frozenset(
    {"why", "because", "err", "exc", "exception", "failure", "problem", "message", "msg", "text"}
)
_LEVELS = frozenset({"debug", "info", "warning", "error", "exception", "critical", "log"})
_BINDS = frozenset({"bind", "bound"})


def other_keys(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the key of each that has another word for an error or a reason."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        where, _, name = ast.unparse(node.func).rpartition(".")
        if where.rpartition(".")[2].strip("_").lower() in ("log", "logger"):
            logs = name in _LEVELS
        else:
            logs = name in _BINDS and not where
        if not logs:
            continue
        # An Event is logged under its reason, with its message.
        is_event = bool(node.args) and not isinstance(node.args[0], ast.Constant)
        for key in _keys(node):
            if key in OTHER_WORDS and not (is_event and key == "message"):
                yield node.lineno, key


def _keys(call: ast.Call) -> Iterator[str]:
    for keyword in call.keywords:
        if keyword.arg not in (None, "extra"):
            yield keyword.arg or ""
            continue
        # `**{...}` of our own, and `extra={...}` of the standard library.
        for found in ast.walk(keyword.value):
            if isinstance(found, ast.Dict):
                yield from (str(key.value) for key in found.keys if isinstance(key, ast.Constant))


def test_log_lines_have_the_keys_error_and_reason_only():
    sources = sorted(ROOT.glob("packages/*/src/**/*.py"))
    assert len({path.relative_to(ROOT).parts[1] for path in sources}) == 4
    found = [
        f"{path.relative_to(ROOT)}:{line}: {key}="
        for path in sources
        for line, key in other_keys(path.read_text(encoding="utf-8"))
    ]
    assert not found, f"use error= or reason=: {found}"


def test_the_check_sees_every_way_to_give_a_key():
    lines = (
        '_log.warning("failed", why=why)',
        'self._log.info("failed", **{"exc": error} if error else {})',
        '_LOG.error("%s failed", name, extra={"message": text})',
        "bind(err=error)",
        'with bound(problem="none"):\n    pass',
    )
    keys = [[key for _, key in other_keys(line)] for line in lines]
    assert keys == [["why"], ["exc"], ["message"], ["err"], ["problem"]]
    fine = (
        'self.failed(why=why)\n_log.warning(str(reason), message=message)\n_log.error("x", error=e)'
    )
    assert not list(other_keys(fine))
