"""Regular expressions that users write, found in linear time by RE2. Pure.

Validation and the resolver use the same class: what the resolver would refuse is a problem of the spec,
in status. The syntax is Go's, as in KubeElasti: no back-references, no look-arounds. An expression is
searched for anywhere in a value; `^` and `$` stand for its ends.

Linear still means "as long as the expression is large": where its automaton does not fit into memory, RE2
follows every state for each character. So the size of the expressions of one ElastiService, whose rules may
all be tried for one request, is bounded as a whole, after repetitions are written out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

Finder: TypeAlias = Callable[[str], object]
"""None for a value in which the expression is not found."""

MOST_STATES = 2000
"""Of all expressions together: some ten milliseconds for values of 1024 characters, at worst."""
# Every expression has memory of its own, so that many small ones are not free.
_LEAST_STATES = 32
_LONGEST = 4096
# For the program and its automaton. The library's own default is 8 MiB each.
_MEMORY = 1 << 17


class ExpressionCompiler:
    """Compiles the expressions of one ElastiService, in the order of its fields."""

    def __init__(self, most_states: int = MOST_STATES) -> None:
        self._most = self._room = most_states

    def compile(self, expression: str) -> Finder:
        """Return what finds an expression in a value. Raises ValueError for one that cannot be used."""
        pattern = _compiled(expression)
        states = max(pattern.programsize, _LEAST_STATES)
        if states > self._room:
            raise ValueError(
                f"{_shown(expression)} is too large with {states} states: {self._most} are allowed for"
                " all rules of the field together. Repeat less often (x{1,100} counts a hundred"
                " times), or match by Exact or PathPrefix"
            )
        self._room -= states
        found: Finder = pattern.search
        return found


def compile_safely(expression: str, *, most_states: int = MOST_STATES) -> Finder:
    """Return what finds one expression in a value. Raises ValueError for one that cannot be used."""
    return ExpressionCompiler(most_states).compile(expression)


def _compiled(expression: str) -> Any:
    try:
        import re2  # noqa: PLC0415 -- takes 1.6 MiB, and most ElastiServices have no expressions
    except ImportError:  # installed without dependencies, or without a wheel and a compiler
        raise ValueError(
            f"{_shown(expression)} cannot be used: the package google-re2 is not installed here."
            " Install it (pip install google-re2), or match by Exact or PathPrefix"
        ) from None
    if len(expression) > _LONGEST:
        raise ValueError(f"{_shown(expression)} is longer than {_LONGEST} characters")
    options = re2.Options()
    options.max_mem = _MEMORY
    options.log_errors = False
    try:
        return re2.compile(expression, options)
    except (re2.error, UnicodeError, RecursionError) as error:
        raise ValueError(
            f"{_shown(expression)} is not a regular expression that can be used: {_words(error)}."
            " The syntax is RE2's: no back-references, no look-arounds, at most 1000 repetitions"
        ) from None


def _words(error: Exception) -> str:
    (said, *_) = error.args or ("",)
    return said.decode(errors="replace") if isinstance(said, bytes) else str(error)


def _shown(expression: str) -> str:
    return repr(expression if len(expression) <= 80 else f"{expression[:77]}...")
