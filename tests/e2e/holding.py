"""Waits until resolvers hold as many connections of a Service as wanted, by their own metrics.

    python -m tests.e2e.holding SECONDS COUNT NAMESPACE SERVICE HOST:PORT...

Where they do not in time, the exit code is 1 and the words say how many they hold.
"""

from __future__ import annotations

import sys
import time
import urllib.request

PAUSE = 0.2
METRIC = "elasti_resolver_queued_count"


def held(address: str, namespace: str, service: str) -> int:
    """Return how many connections of a Service one resolver holds."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    labels = f'namespace="{namespace}",service="{service}"'
    lines = [
        line for line in text.splitlines() if line.startswith(f"{METRIC}{{") and labels in line
    ]
    return int(float(lines[0].rpartition(" ")[2])) if lines else 0


def main() -> None:
    seconds, count, namespace, service, *resolvers = sys.argv[1:]
    deadline = time.monotonic() + float(seconds)
    while (now := sum(held(one, namespace, service) for one in resolvers)) < int(count):
        if time.monotonic() > deadline:
            sys.exit(f"{now} connections are held, and not {count}")
        time.sleep(PAUSE)


if __name__ == "__main__":
    main()
