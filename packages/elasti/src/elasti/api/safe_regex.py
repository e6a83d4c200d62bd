"""Regular expressions that users write, refused where they could stop the event loop. Pure.

Validation and the resolver use the same function: what the resolver would refuse is a problem of the
spec, in status.

Python's engine backtracks. A repetition inside a repetition, or a long row of repetitions that can
match the same text, makes one request with a long path cost seconds, and every Service of the worker
pays. So an expression may not repeat what repeats, may not refer back, and may not have more than a
few unbounded repetitions; what is left costs at most a small power of a bounded length.

An expression is searched for anywhere in a value, as KubeElasti and Go do; `^` and `$` stand for its
ends. Searching from everywhere is a repetition like any other and counts as one, unless the
expression begins with `^`.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from re import _constants, _parser  # type: ignore[attr-defined] # the parsed form has no public name
from typing import Any, TypeAlias

_REPEATS = frozenset((_constants.MAX_REPEAT, _constants.MIN_REPEAT, _constants.POSSESSIVE_REPEAT))
_REFUSED = frozenset(
    (_constants.GROUPREF, _constants.GROUPREF_EXISTS, _constants.ASSERT, _constants.ASSERT_NOT)
)
_BEGINNING = (_constants.AT, _constants.AT_BEGINNING)
_ANY = (_constants.ANY, None)
_MOST_REPEATS = 2
_BOUNDED = 64


Finder: TypeAlias = Callable[[str], object]
"""None for a value in which the expression is not found; whatever engine looks for it."""


class _Refused(Exception):
    """An expression that Python's engine may spend seconds on."""


def compile_safely(expression: str) -> Finder:
    """Return what finds an expression in a value. Raises ValueError for one that is wrong or slow."""
    try:
        with warnings.catch_warnings():
            # What a later Python may read otherwise is the user's to know, not the log's.
            warnings.simplefilter("ignore")
            tree = _parser.parse(expression)
            begins = len(tree) > 0 and tree[0] == _BEGINNING
            repeats = _count(_core(tree), inside=False) + (not begins)
            pattern = re.compile(expression)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"{expression!r} is not a regular expression: {error}") from error
    except _Refused as error:
        raise ValueError(f"{expression!r} cannot be used: {error}") from None
    if repeats > _MOST_REPEATS:
        raise ValueError(
            f"{expression!r} repeats without bound too often: {_MOST_REPEATS} repetitions are allowed,"
            " one where it does not begin with '^'. Use several rules, or a path prefix"
        )
    # What begins with anything is found at the beginning or nowhere.
    return pattern.match if len(tree) > 0 and _is_anything(tree[0]) else pattern.search


def _core(tree: Any) -> Any:
    """Return an expression without the "anything" at its ends, which a search has anyway."""
    first, last = 0, len(tree)
    if last and _is_anything(tree[0]):
        first = 1
    while last > first and _is_anything(tree[last - 1]):
        last -= 1
    return tree[first:last]


def _is_anything(item: Any) -> bool:
    operation, argument = item
    return operation in _REPEATS and argument[0] == 0 and list(argument[2]) == [_ANY]


def _count(tree: Any, *, inside: bool) -> int:
    """Count the unbounded repetitions. Raises _Refused for one inside another."""
    repeats = 0
    for operation, argument in tree:
        if operation in _REFUSED:
            raise _Refused("back-references and look-arounds are not allowed")
        if operation in _REPEATS:
            _, most, body = argument
            if inside:
                raise _Refused("a repetition inside a repetition is not allowed")
            repeats += most == _constants.MAXREPEAT or most > _BOUNDED
            repeats += _count(body, inside=most > 1)
        else:
            counts = [_count(part, inside=inside) for part in _parts(argument)]
            # Of alternatives one after the other is tried; what follows each other is tried together.
            repeats += max(counts, default=0) if operation is _constants.BRANCH else sum(counts)
    return repeats


def _parts(argument: Any) -> list[Any]:
    """Return the parsed expressions inside an operation's argument."""
    if isinstance(argument, _parser.SubPattern):
        return [argument]
    if isinstance(argument, tuple | list):
        return [part for item in argument for part in _parts(item)]
    return []
