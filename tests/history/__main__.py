"""Checks histories of requests.

python -m tests.history FILE...

Prints what breaks a rule, and counts. Exit code 1 if anything did, 2 if a file is not a history.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.history.check import RULES, check
from tests.history.events import Call, read


def main(paths: list[str]) -> int:
    """Check each file."""
    if not paths:
        print((__doc__ or "").strip(), file=sys.stderr)
        return 2
    broken = 0
    for path in paths:
        try:
            events = read(Path(path))
        except (OSError, ValueError) as error:
            print(error, file=sys.stderr)
            return 2
        violations = check(events)
        calls = sum(isinstance(event, Call) for event in events)
        print(f"{path}: {calls} calls, {len(RULES)} rules, {len(violations)} violations")
        for one in violations:
            print(f"  {one.at:.3f} {one.rule}: {one.what}")
        broken += len(violations)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
