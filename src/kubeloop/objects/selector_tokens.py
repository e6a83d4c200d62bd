"""The lexer of label selectors, with positions for messages.

`in` and `notin` are words like any other until an operator is expected, so that they may also be
keys and values, as in Kubernetes.
"""

from __future__ import annotations

import enum
import re

_PATTERN = re.compile(r"[ \t\r\n]*(?:(?P<symbol>==|!=|[=!(),<>])|(?P<word>[^ \t\r\n=!(),<>]+))?")
_OPERATORS = frozenset({"=", "==", "!=", "<", ">", "in", "notin"})


class SelectorError(ValueError):
    """A selector that cannot be read; the message names the position or the field."""


class Token(enum.Enum):
    """Tokens with one fixed text; everything else is a word or an operator."""

    END = ""
    NOT = "!"
    COMMA = ","
    OPEN = "("
    CLOSE = ")"


class Scanner:
    """One token of look-ahead over the text of a selector."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._end = 0
        self._advance()

    @property
    def position(self) -> int:
        """Where the present token begins, counted from 0."""
        return self._start

    def at(self, token: Token) -> bool:
        """Whether the present token is this one."""
        return self._literal == token.value

    def take(self, token: Token) -> bool:
        """Step over the token if it is the present one; say whether it was."""
        found = self.at(token)
        if found:
            self._advance()
        return found

    def expect(self, token: Token, wanted: str) -> None:
        """Step over the token, or raise."""
        if not self.take(token):
            raise self._unexpected(wanted)

    def expect_word(self, wanted: str) -> str:
        """Return the present word and step over it, or raise."""
        if not self._is_word:
            raise self._unexpected(wanted)
        return self._advance()

    def expect_operator(self) -> str:
        """Return the present operator and step over it, or raise."""
        if self._literal not in _OPERATORS:
            raise self._unexpected("one of = == != in notin < > ',' or the end")
        return self._advance()

    def error(self, message: str, *, position: int) -> SelectorError:
        """Return an error that shows where in the text it is."""
        return SelectorError(f"selector {self._text!r}, position {position}: {message}")

    def _unexpected(self, wanted: str) -> SelectorError:
        found = repr(self._literal) if self._literal else "the end"
        return self.error(f"found {found}, expected {wanted}", position=self._start)

    def _advance(self) -> str:
        previous = getattr(self, "_literal", "")
        match = _PATTERN.match(self._text, self._end)
        assert match is not None  # every part of the pattern is optional
        self._literal: str = match["symbol"] or match["word"] or ""
        self._is_word = match["word"] is not None
        self._end = match.end()
        self._start = self._end - len(self._literal)
        return previous
