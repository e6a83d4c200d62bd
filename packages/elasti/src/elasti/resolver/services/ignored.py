"""`wake.ignore`: requests of programs that must not wake a target that sleeps. Pure.

A program is known by its User-Agent. A preset is a list of agents that comes with this package (`agents.json`); a
rule has expressions of the user's own. Presets are tried first, in the order of their table.

A request with a cookie or credentials is a person's or a client's of the app, whatever its agent: it wakes. Load
balancers are the exception, since they may be configured to send a header of their own.

A rule with an unusable expression matches nothing. Requests for it wake the workload, which is the harmless
mistake.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from elasti.api.types import IgnorePreset
from elasti.resolver.proxy.upstream.interface import LocalAnswer
from elasti.safe_regex import ExpressionCompiler

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import TypeAlias

    from elasti.api.types import IgnoreRule
    from elasti.resolver.proxy.upstream.interface import RequestFacts
    from elasti.safe_regex import Finder

    AgentLists: TypeAlias = Mapping[IgnorePreset, tuple[bytes, ...]]

# Longer agents match no expression.
_LONGEST = 1024
_FIELDS = b"Content-Type: text/plain\r\nCache-Control: no-store\r\nX-Elasti-State: asleep\r\n"
_FOUND = LocalAnswer(200, fields=_FIELDS)
_LATER = LocalAnswer(503, b"asleep\n", _FIELDS + b"Retry-After: 3600\r\n")
_ANSWERS: Mapping[IgnorePreset, LocalAnswer] = {
    IgnorePreset.LOAD_BALANCERS: _FOUND,
    IgnorePreset.PROBES: _FOUND,
    IgnorePreset.UPTIME_MONITORS: _FOUND,
    IgnorePreset.LINK_PREVIEWS: _LATER,
    IgnorePreset.CRAWLERS: _LATER,
    IgnorePreset.SCRAPERS: _LATER,
}
# Their requests are ignored with credentials, too.
_TRUSTED = (IgnorePreset.LOAD_BALANCERS,)


class KnownAgent(msgspec.Struct, frozen=True, gc=False):
    """A part of a program's User-Agent, and whole ones that have it."""

    agent: str
    examples: tuple[str, ...]


class _AgentsFile(msgspec.Struct, frozen=True, gc=False):
    version: int
    presets: dict[IgnorePreset, tuple[KnownAgent, ...]]


def read_agents() -> Mapping[IgnorePreset, tuple[KnownAgent, ...]]:
    """Read the presets that come with this package."""
    data = Path(__file__).with_name("agents.json").read_bytes()
    return msgspec.json.decode(data, type=_AgentsFile).presets


def agent_lists() -> AgentLists:
    """Return each preset's agents, in lower case."""
    return {
        preset: tuple(known.agent.lower().encode() for known in agents)
        for preset, agents in read_agents().items()
    }


class IgnoredRequests:
    """The presets and rules of one Service, and how often each matched."""

    __slots__ = ("_presets", "_rules", "counts")

    def __init__(
        self,
        presets: Sequence[IgnorePreset] = (),
        rules: Sequence[IgnoreRule] = (),
        *,
        agents: AgentLists,
    ) -> None:
        expressions = ExpressionCompiler()
        self._presets = [(one, agents[one]) for one in _ANSWERS if one in presets]
        self._rules = [
            (f"rules[{index}]", find, LocalAnswer(status, body.encode(), _FIELDS))
            for index, rule in enumerate(rules)
            for status, body in [(rule.response.status, rule.response.body)]
            for find in _finders(rule, expressions)
        ]
        #: By preset, or by the place of a rule in the spec.
        self.counts: dict[str, int] = {}

    def answer(self, request: RequestFacts) -> LocalAnswer | None:
        """Return the response to a request that must not wake the target."""
        if not (self._presets or self._rules):
            return None
        agent = request.field(b"user-agent")
        if not agent:
            return None
        personal = (
            request.field(b"cookie") is not None or request.field(b"authorization") is not None
        )
        found = self._find(agent, personal=personal)
        if found is None:
            return None
        name, answer = found
        self.count(name)
        return answer

    def count(self, rule: str) -> None:
        """Count a request that matched a rule."""
        self.counts[rule] = self.counts.get(rule, 0) + 1

    def _find(self, agent: bytes, *, personal: bool) -> tuple[str, LocalAnswer] | None:
        lowered = agent.lower()
        for preset, agents in self._presets:
            if personal and preset not in _TRUSTED:
                continue
            if any(known in lowered for known in agents):
                return preset, _ANSWERS[preset]
        if personal or len(agent) > _LONGEST:
            return None
        text = agent.decode("latin-1")
        return next(((name, answer) for name, find, answer in self._rules if find(text)), None)


def _finders(rule: IgnoreRule, expressions: ExpressionCompiler) -> Iterator[Finder]:
    for expression in rule.user_agents:
        try:
            yield expressions.compile(expression)
        except ValueError:
            continue
