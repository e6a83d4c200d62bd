"""`python -m elasti`: the same as the `elasti` command."""

from __future__ import annotations

from elasti.cli.main import main

if __name__ == "__main__":
    main(prog_name="elasti")
