"""How a command ends: exit codes that scripts can use, and the error that carries one."""

from __future__ import annotations

import enum
from typing import IO, Any

import click

from elasti.cli.rendering import one_line, printable


class ExitCode(enum.IntEnum):
    """The codes of every command; `main` documents them."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    NOT_ALLOWED = 4
    NO_CLUSTER = 5
    NOT_INSTALLED = 6
    TIMED_OUT = 7
    INTERRUPTED = 130


class Failure(click.ClickException):
    """An error that a person can act on: a message and a remedy, without a traceback."""

    def __init__(self, message: str, *, code: ExitCode = ExitCode.FAILED, remedy: str = "") -> None:
        # It may quote objects of the cluster, which others write.
        super().__init__(one_line(message))
        self.code = code
        self.remedy = remedy

    @property
    def exit_code(self) -> int:  # type: ignore[override]  # click has one code for each class
        """The code as click asks for it."""
        return int(self.code)

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the message, and the remedy on lines of its own."""
        super().show(file)
        if self.remedy:
            click.echo(printable(self.remedy), file=file, err=file is None)


def os_error_message(error: OSError) -> str:
    """Return the message of an operating system's error, with its file."""
    words = error.strerror or str(error)
    return f"{error.filename}: {words}" if error.filename else words
