"""Answers: what a request gets, before it is bytes on a connection."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import msgspec
import yaml

from elasti.devcluster.apiserver.request import flag

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elasti.devcluster.apiserver.calls import Call
    from elasti.devcluster.apiserver.status import StatusError
    from elasti.devcluster.apiserver.watches import Watch


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A whole response."""

    body: bytes
    code: int = 200
    content_type: str = "application/json"
    warnings: Sequence[str] = ()
    retry_after: int | None = None

    def headers(self) -> list[tuple[str, str]]:
        """Return the response's headers."""
        result = [("Content-Type", self.content_type), ("Cache-Control", "no-cache, private")]
        result += [("Warning", f"299 - {_quoted(text)}") for text in self.warnings]
        if self.retry_after is not None:
            result.append(("Retry-After", str(self.retry_after)))
        return result


@dataclasses.dataclass(frozen=True, slots=True)
class Streaming:
    """A response that goes on: a watch."""

    watch: Watch


def _quoted(text: str) -> str:
    plain = "".join(char if char.isprintable() and char.isascii() else " " for char in text)
    escaped = plain.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def refusal(error: StatusError) -> Answer:
    """Return a refusal's answer."""
    return Answer(
        body=msgspec.json.encode(error.status), code=error.code, retry_after=error.retry_after
    )


def finished(call: Call, answer: Answer) -> Answer:
    """Return an answer as its call wants it: as YAML, or broken into lines, or as it is."""
    if call.served.warning:
        answer = dataclasses.replace(answer, warnings=[call.served.warning, *answer.warnings])
    if call.accepted.yaml:
        return as_yaml(answer)
    if flag(call.query, "pretty") and answer.content_type == "application/json":
        return dataclasses.replace(answer, body=msgspec.json.format(answer.body, indent=2) + b"\n")
    return answer


def as_yaml(answer: Answer) -> Answer:
    """Return a JSON answer as YAML."""
    text = yaml.dump(msgspec.json.decode(answer.body), Dumper=yaml.CSafeDumper, sort_keys=False)
    return dataclasses.replace(answer, body=text.encode(), content_type="application/yaml")
