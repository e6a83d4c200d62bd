"""Regular expressions that users write, refused where they could stop the event loop. Pure.

Python's engine backtracks. A repetition inside a repetition, or a long row of repetitions that can
match the same text, makes one request with a long path cost seconds, and every Service of the worker
pays. So an expression may not repeat what repeats, may not refer back, and may not have more than a
few unbounded repetitions; what is left costs at most a small power of a bounded length.
"""

from __future__ import annotations

import re
import warnings
from re import _constants, _parser  # type: ignore[attr-defined] # the parsed form has no public name
from typing import Any

_REPEATS = frozenset((_constants.MAX_REPEAT, _constants.MIN_REPEAT, _constants.POSSESSIVE_REPEAT))
_REFUSED = frozenset(
    (_constants.GROUPREF, _constants.GROUPREF_EXISTS, _constants.ASSERT, _constants.ASSERT_NOT)
)
_MOST_REPEATS = 2
_BOUNDED = 64


def compile_safely(expression: str) -> re.Pattern[str]:
    """Compile an expression. Raises ValueError for one that is wrong or could be slow."""
    try:
        with warnings.catch_warnings():
            # What a later Python may read otherwise is the user's to know, not the log's.
            warnings.simplefilter("ignore")
            repeats = _count(_parser.parse(expression), inside=False)
            pattern = re.compile(expression)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"{expression!r} is not a regular expression: {error}") from error
    if repeats > _MOST_REPEATS:
        raise ValueError(
            f"{expression!r} has {repeats} unbounded repetitions; at most {_MOST_REPEATS} are"
            " allowed. Use several rules, or a path prefix"
        )
    return pattern


def _count(tree: Any, *, inside: bool) -> int:
    """Count the unbounded repetitions. Raises ValueError for one inside another."""
    repeats = 0
    for operation, argument in tree:
        if operation in _REFUSED:
            raise ValueError("back-references and look-arounds are not allowed")
        if operation in _REPEATS:
            _, most, body = argument
            if inside:
                raise ValueError("a repetition inside a repetition is not allowed")
            repeats += most == _constants.MAXREPEAT or most > _BOUNDED
            repeats += _count(body, inside=most > 1)
        else:
            for part in _parts(argument):
                repeats += _count(part, inside=inside)
    return repeats


def _parts(argument: Any) -> list[Any]:
    """Return the parsed expressions inside an operation's argument."""
    if isinstance(argument, _parser.SubPattern):
        return [argument]
    if isinstance(argument, tuple | list):
        return [part for item in argument for part in _parts(item)]
    return []
