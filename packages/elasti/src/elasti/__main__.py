"""The `elasti` command, and `python -m elasti`."""

from __future__ import annotations

import importlib
import sys

_PROGRAMS = ("operator", "resolver")


def main() -> None:
    """Start a program of an installation as pods do, or run any command."""
    failed: BaseException | None = None
    if len(sys.argv) == 2 and sys.argv[1] in _PROGRAMS:
        programs = importlib.import_module("elasti.cli.programs")
        try:
            getattr(programs, f"run_{sys.argv[1]}")()
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 -- its command says it in words
            failed = error
        else:
            return
    importlib.import_module("elasti.cli.main").main(prog_name="elasti", obj=failed)


if __name__ == "__main__":
    main()
