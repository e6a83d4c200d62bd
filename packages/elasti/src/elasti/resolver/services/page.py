"""The waiting page: who gets it, what it says, and where a page of a user's own comes from.

Only a top-level navigation of a browser gets it; every other request is held, so that none is lost. A page is our
script and then HTML: the built-in one, or a template from a ConfigMap. Whatever is in a template comes after
the script and has no nonce, so it runs no script, loads nothing and sends no form; what replaces its placeholders
is escaped. The page tells strangers that a target cannot start, never why: the log has the reason, and the
reference that the page shows.
"""

from __future__ import annotations

import asyncio
import html
import importlib.resources
import re
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import TYPE_CHECKING

import msgspec
import structlog

from elasti.api.parsing import parse_duration
from elasti.resolver.proxy.upstream.interface import LocalAnswer, RequestFacts, Stage
from kubeloop.aio.tasks import finish
from kubeloop.client.errors import KubeError
from kubeloop.objects.core import PODS
from kubeloop.objects.meta import SlimMeta

if TYPE_CHECKING:
    from elasti.api.types import PageConfigMap, PageSpec
    from elasti.resolver.projections import PodName
    from elasti.resolver.services.service import WakeablePort, WakeableService
    from kubeloop.client import Client

CONFIG_MAPS = "v1/configmaps"
# Templates and pods are read again after so many seconds, while a page is shown.
_FRESH = 5.0
_REMEMBERED = 256
_TIMEOUT = 5.0
# A pod that fails and is tried again looks as if it started, each time.
_FAILURE_LASTS = 60.0
_ANSWER_LASTS = 60.0
# An operator that cannot act for so many seconds will not within the next.
_UNAVAILABLE = 10.0
_ASKED_PODS = 3
_RETRY_AFTER = 5
_SOONEST = 0.001
_CANNOT_START = frozenset(
    ("CrashLoopBackOff", "CreateContainerConfigError", "CreateContainerError", "ErrImageNeverPull",
     "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "RunContainerError")
)  # fmt: skip
_TEXTS = {
    Stage.ASLEEP: "Asleep",
    Stage.ASKED: "Waking up",
    Stage.PLACED: "Finding a place to run",
    Stage.STARTING: "Starting",
    Stage.READY: "Ready",
    Stage.FAILED: "Could not be started",
    Stage.BUSY: "Many are waiting",
}
_HTML_TYPES = frozenset(("text/html", "application/xhtml+xml"))
_PLACEHOLDER = re.compile(r"\{\{(\w+)\}\}")
_HERE = importlib.resources.files(__package__)
_SCRIPT = _HERE.joinpath("page.js").read_text()
_BUILT_IN = _HERE.joinpath("page.html").read_text()

_log = structlog.get_logger(__name__)


def is_navigation(request: RequestFacts) -> bool:
    """Whether a browser asks for a page to show in a tab.

    Browsers say so; of clients that do not say what they want it for, the one that ranks HTML first.
    """
    # Some proxies say that there is a body of no bytes.
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


class _ConfigMap(msgspec.Struct, gc=False):
    metadata: SlimMeta
    data: dict[str, str] | None = None


class _Waiting(msgspec.Struct, gc=False):
    reason: str = ""


class _ContainerState(msgspec.Struct, gc=False):
    waiting: _Waiting | None = None


class _ContainerStatus(msgspec.Struct, gc=False):
    state: _ContainerState = msgspec.field(default_factory=_ContainerState)


class _StartingStatus(msgspec.Struct, rename="camel", gc=False):
    container_statuses: tuple[_ContainerStatus, ...] | None = None
    init_container_statuses: tuple[_ContainerStatus, ...] | None = None


class _StartingPod(msgspec.Struct, gc=False):
    metadata: SlimMeta
    status: _StartingStatus = msgspec.field(default_factory=_StartingStatus)


class PageSource:
    """Reads what pages need of the API server: templates, and what keeps pods from starting.

    Nothing waits for it: what was read last is returned at once, and read again where that is old.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._known: OrderedDict[Hashable, str] = OrderedDict()
        self._read_at: dict[Hashable, float] = {}
        self._reading: set[asyncio.Task[None]] = set()

    def template(self, namespace: str, place: PageConfigMap) -> str:
        """Return the HTML of a ConfigMap; empty where there is none that can be used, or not yet."""
        return self._latest((namespace, place), lambda: self._template(namespace, place))

    def failure(self, pod: PodName) -> str:
        """Return what keeps a pod from starting; empty where nothing is known to."""
        return self._latest(pod, lambda: self._failure(pod))

    async def aclose(self) -> None:
        """Stop reading."""
        await finish(self._reading)

    def _latest(self, key: Hashable, read: Callable[[], Awaitable[str]]) -> str:
        loop = asyncio.get_running_loop()
        if loop.time() - self._read_at.get(key, -_FRESH) >= _FRESH:
            self._read_at[key] = loop.time()
            self._known.setdefault(key, "")
            while len(self._known) > _REMEMBERED:
                del self._read_at[self._known.popitem(last=False)[0]]
            task = loop.create_task(self._keep(key, read))
            self._reading.add(task)
            task.add_done_callback(self._reading.discard)
        return self._known.get(key, "")

    async def _keep(self, key: Hashable, read: Callable[[], Awaitable[str]]) -> None:
        try:
            self._known[key] = await read()
        except (KubeError, ValueError, msgspec.MsgspecError) as error:
            self._known[key] = ""
            # No warning: it is repeated, and the ElastiService's condition says it once.
            _log.info("reading for a waiting page failed", read=str(key), error=str(error))

    async def _template(self, namespace: str, place: PageConfigMap) -> str:
        maps = self._client.resource(CONFIG_MAPS, _ConfigMap)
        found = await maps.get(place.name, namespace=namespace, timeout=_TIMEOUT)
        return place.text_in(found.data)

    async def _failure(self, pod: PodName) -> str:
        pods = self._client.resource(PODS, _StartingPod)
        status = (await pods.get(pod.name, namespace=pod.namespace, timeout=_TIMEOUT)).status
        containers = (status.init_container_statuses or ()) + (status.container_statuses or ())
        waiting = (container.state.waiting for container in containers)
        return next((w.reason for w in waiting if w is not None and w.reason in _CANNOT_START), "")


class PortPage:
    """The waiting page of one port of a Service; a `WaitingPage`."""

    def __init__(
        self, service: WakeableService, port: WakeablePort, source: PageSource | None
    ) -> None:
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
        """How long a navigation is held first; not at all where a click shall begin the wake-up."""
        if self._spec.require_click and self.stage() is Stage.ASLEEP:
            return 0.0
        return max(parse_duration(self._spec.after), _SOONEST)

    def offers(self, request: RequestFacts) -> bool:
        """Whether a request may get the page; its template is read meanwhile."""
        if not is_navigation(request):
            return False
        self._template()
        return True

    def stage(self) -> Stage:
        """Return how far the wake-up is."""
        if self._port.serving:
            return Stage.READY
        if self._is_failing():
            return Stage.FAILED
        if self._port.listed:
            return Stage.STARTING
        if not self._service.unserved:
            return Stage.ASLEEP
        # The page's own requests come and go; what was answered a moment ago still holds.
        answered = self._service.waker.last_answer
        now = asyncio.get_running_loop().time()
        is_recent = answered is not None and now - answered < _ANSWER_LASTS
        return Stage.PLACED if is_recent else Stage.ASKED

    def line(self, stage: Stage | None = None) -> bytes:
        """Return what an open page is told."""
        stage = self.stage() if stage is None else stage
        if stage is Stage.FAILED and not self._reference:
            self._fail("no pod answered in time")
        told = {"stage": stage, "text": _TEXTS[stage], "reference": self._reference}
        return msgspec.json.encode(told) + b"\n"

    def answer(self) -> LocalAnswer:
        """Return the page as a response that no cache keeps."""
        stage, nonce = self.stage(), secrets.token_urlsafe(16)
        by_click = self._spec.require_click and stage is Stage.ASLEEP
        template = self._template()
        texts = {
            "title": self._spec.title or self._service.key.service,
            "stage": _TEXTS[stage],
            "state": stage.value,
            "reference": self._reference,
        }
        # A template is of the Service's own tenant, who may style it; only ours gets the nonce.
        style, images = ("'unsafe-inline'", "data:") if template else (f"'nonce-{nonce}'", "'none'")
        if not template:
            texts["nonce"] = nonce
        policy = (
            f"default-src 'none'; script-src 'nonce-{nonce}'; style-src {style}; img-src {images};"
            " connect-src 'self'; base-uri 'none'; form-action 'none'"
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
                filled(template or _BUILT_IN, texts),
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
            self._fail("the operator cannot scale it, or is not to be reached")
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
                "target cannot start; its waiting page shows the reference",
                service=str(self._service.key),
                reference=self._reference,
                reason=reason,
            )


def filled(template: str, texts: dict[str, str]) -> str:
    """Replace the placeholders that are known, escaped for text and for attributes."""
    return _PLACEHOLDER.sub(
        lambda found: html.escape(texts[found[1]]) if found[1] in texts else found[0], template
    )
