"""The waiting page: which requests get it, and what it shows.

Only a browser's top-level navigation gets the page; every other request is held, so none is lost. A page is our
script followed by HTML: the built-in page, or a template from a ConfigMap. The template comes after the script and
has no nonce, so it cannot run scripts, load resources or submit forms, and its placeholders are replaced with
escaped text. Visitors may be strangers: the page tells them that the target cannot start, but not why. It shows a
reference, and the log has the reason under that reference.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from elasti.api.parsing import parse_duration
from elasti.api.types import PageSpec, WakeSpec
from elasti.logger import get_logger
from elasti.resolver.projections import ListedEndpoint, ServiceKey
from elasti.resolver.proxy.upstream.interface import (
    LocalAnswer,
    RequestFacts,
    Stage,
    UpstreamAddress,
)
from elasti.resolver.services.page_source import PageSource
from elasti.resolver.services.wake import PartState, WakeLoop

# A crash-looping pod looks as if it started at each attempt.
_FAILURE_LASTS = 60.0
_ANSWER_LASTS = 60.0
# An operator that cannot act for this many seconds counts as a failure.
_UNAVAILABLE = 10.0
_ASKED_PODS = 3
_RETRY_AFTER = 5
_SOONEST = 0.001
_TEXTS = {
    Stage.ASKED: "Waking up",
    Stage.PLACED: "Finding a place to run",
    Stage.STARTING: "Starting",
    Stage.READY: "Ready",
    Stage.FAILED: "Could not be started",
    Stage.BUSY: "Many visitors are waiting",
}
_HTML_TYPES = frozenset(("text/html", "application/xhtml+xml"))
_PLACEHOLDER = re.compile(r"\{\{(\w+)\}\}")
_HERE = Path(__file__).parent
# As html.escape, which costs a third of a MiB.
_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#x27;"})
_SCRIPT = _HERE.joinpath("page.js").read_text()
_BUILT_IN = _HERE.joinpath("page.html").read_text()

_log = get_logger(__name__)


def is_navigation(request: RequestFacts) -> bool:
    """Whether a browser asks for a page to show in a tab.

    Browsers say so in Sec-Fetch fields. Without these, a client that ranks HTML first counts as a browser.
    """
    # Some proxies add `Content-Length: 0`.
    has_body = request.field(b"transfer-encoding") or request.field(b"content-length") not in (
        None,
        b"0",
    )
    if request.method != b"GET" or has_body or request.field(b"sec-purpose"):
        return False
    mode, destination = request.field(b"sec-fetch-mode"), request.field(b"sec-fetch-dest")
    if mode is not None or destination is not None:
        return mode == b"navigate" and destination == b"document"
    if request.field(b"x-requested-with") is not None:
        return False
    return _ranks_html_first((request.field(b"accept") or b"").decode("latin-1"))


def _ranks_html_first(accept: str) -> bool:
    best, best_quality = "", 0.0
    for entry in accept.split(","):
        media, *parameters = (part.strip().lower() for part in entry.split(";"))
        given = [text.removeprefix("q=") for text in parameters if text.startswith("q=")]
        try:
            quality = float(given[0]) if given else 1.0
        except ValueError:
            return False
        if quality > best_quality:
            best, best_quality = media, quality
    return best in _HTML_TYPES


class ShownService(Protocol):
    """A Service as its waiting page sees it."""

    key: ServiceKey
    wake: WakeSpec
    waker: WakeLoop

    #: Seconds that the last wake-up took; None before the first.
    last_start: float | None

    @property
    def unserved(self) -> int:
        """How many connections wait for a pod."""

    @property
    def part_states(self) -> list[PartState]:
        """How far each of `waker.parts` is."""


class ShownPort(Protocol):
    """A port as its waiting page sees it."""

    serving: list[UpstreamAddress]

    @property
    def listed(self) -> Mapping[UpstreamAddress, ListedEndpoint]:
        """The pods that have an address."""


class PortPage:
    """The waiting page of one port of a Service; a `WaitingPage`."""

    def __init__(self, service: ShownService, port: ShownPort, source: PageSource | None) -> None:
        self._service = service
        self._port = port
        self._source = source
        self._reference = ""
        self._failed_at = 0.0

    @property
    def _spec(self) -> PageSpec:
        return self._service.wake.page

    @property
    def after(self) -> float:
        """How long a navigation is held first; 0 if the visitor must click to wake the target."""
        if self._spec.require_click and self.stage() is Stage.ASLEEP:
            return 0.0
        return max(parse_duration(self._spec.after), _SOONEST)

    def offers(self, request: RequestFacts) -> bool:
        """Whether a request may get the page; starts reading its template."""
        if not is_navigation(request):
            return False
        self._template()
        return True

    def stage(self) -> Stage:
        """Return how far the wake-up is."""
        if self._port.serving:
            return Stage.READY
        if not self._port.listed and not self._service.unserved:
            # Also after a failure: the next visitor decides whether to try again.
            return Stage.ASLEEP
        if self._is_failing():
            return Stage.FAILED
        if self._port.listed:
            return Stage.STARTING
        # The page's own requests come and go; a recent answer still holds.
        answered = self._service.waker.last_answer
        now = asyncio.get_running_loop().time()
        is_recent = answered is not None and now - answered < _ANSWER_LASTS
        # Nothing looks for a place while it waits for what it needs.
        states = self._service.part_states
        waits = bool(states) and states[-1] is PartState.WAITING
        return Stage.PLACED if is_recent and not waits else Stage.ASKED

    def line(self, stage: Stage | None = None) -> bytes:
        """Return the present stage, or the one given, as a line of JSON for an open page."""
        stage = self.stage() if stage is None else stage
        if stage is Stage.FAILED and not self._reference:
            self._fail("no pod answered in time")
        line = {"stage": stage, "text": self._text(stage), "reference": self._reference}
        return msgspec.json.encode(line | {"parts": self._parts(stage)}) + b"\n"

    def recovered(self) -> None:
        """A pod serves: earlier failures are over."""
        self._reference = ""

    def _parts(self, stage: Stage) -> list[tuple[str, PartState]]:
        """Return what wakes together, with how far each is."""
        if stage is Stage.ASLEEP:
            return []  # what a former wake-up woke says nothing about the next one
        names = (part.name for part in self._service.waker.parts)
        return list(zip(names, self._service.part_states, strict=True))

    @property
    def _title(self) -> str:
        return self._spec.title or self._service.key.service

    def _text(self, stage: Stage) -> str:
        if stage is not Stage.ASLEEP:
            return _TEXTS[stage]
        took = self._service.last_start
        hint = "" if took is None else f" It takes about {max(round(took), 1)} s to start."
        return f"{self._title} is asleep to save resources.{hint}"

    def answer(self) -> LocalAnswer:
        """Return the page as a response that must not be cached."""
        stage, nonce = self.stage(), secrets.token_urlsafe(16)
        by_click = self._spec.require_click and stage is Stage.ASLEEP
        template = self._template()
        texts = {
            "title": self._title,
            "stage": self._text(stage),
            "state": stage.value,
            "reference": self._reference,
        }
        rows = (
            f'<li data-state="{state}">{escaped(f"{name}: {state}")}</li>'
            for name, state in self._parts(stage)
        )
        # A template belongs to the Service's tenant, who may style it; only the built-in page gets the nonce.
        style, images = ("'unsafe-inline'", "data:") if template else (f"'nonce-{nonce}'", "'none'")
        if not template:
            texts["nonce"] = nonce
        policy = (
            f"default-src 'none'; script-src 'nonce-{nonce}'; style-src {style}; img-src {images};"
            " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        fields = (
            "Content-Type: text/html; charset=utf-8\r\n"
            "Cache-Control: no-store\r\n"
            f"Retry-After: {_RETRY_AFTER}\r\n"
            "X-Robots-Tag: noindex\r\n"
            "Vary: Sec-Fetch-Mode, Sec-Fetch-Dest, Accept\r\n"
            f"Content-Security-Policy: {policy}\r\n"
            "X-Content-Type-Options: nosniff\r\n"
            f"X-Elasti-State: {stage}\r\n"
        )
        refresh = f'<noscript><meta http-equiv="refresh" content="{_RETRY_AFTER}"></noscript>'
        body = "".join(
            (
                '<!doctype html>\n<meta charset="utf-8">',
                "" if by_click else refresh,
                f'<script nonce="{nonce}" data-click="{str(by_click).lower()}">\n{_SCRIPT}</script>\n',
                filled(template or _BUILT_IN, texts, {"parts": "".join(rows)}),
            )
        )
        return LocalAnswer(self._spec.status, body.encode(), fields.encode())

    def _template(self) -> str:
        if self._spec.template is None or self._source is None:
            return ""
        return self._source.template(self._service.key.namespace, self._spec.template.config_map)

    def _is_failing(self) -> bool:
        now = asyncio.get_running_loop().time()
        since = self._service.waker.unavailable_since
        if since is not None and now - since > _UNAVAILABLE:
            self._fail("the operator is unreachable or cannot scale it")
        elif self._source is not None:
            pods = [entry.pod for entry in self._port.listed.values()]
            for reason in filter(None, map(self._source.failure, pods[:_ASKED_PODS])):
                self._fail(reason)
        if self._reference and now - self._failed_at > _FAILURE_LASTS:
            self._reference = ""
        return bool(self._reference)

    def _fail(self, reason: str) -> None:
        self._failed_at = asyncio.get_running_loop().time()
        if not self._reference:
            self._reference = secrets.token_hex(4)
            _log.warning(
                "target cannot start; its waiting page shows this reference",
                service=str(self._service.key),
                reference=self._reference,
                reason=reason,
            )


def escaped(text: str) -> str:
    """Return text as HTML has it, in elements and attributes."""
    return text.translate(_ESCAPES)


def filled(template: str, texts: Mapping[str, str], markup: Mapping[str, str]) -> str:
    """Replace known placeholders, by text that is escaped and by our own `markup`."""
    known = {name: escaped(text) for name, text in texts.items()} | dict(markup)
    return _PLACEHOLDER.sub(lambda found: known.get(found[1], found[0]), template)
