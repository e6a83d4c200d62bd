"""Print how many modules of each package are in import cycles; fail if elasti has any.

Imports for types alone count: a reader follows them as any other.
"""

from __future__ import annotations

import sys

import grimp

PACKAGES = ("kubeloop", "devkube", "elasti")
ACYCLIC = ("elasti",)


def modules_in_cycles(package: str) -> list[str]:
    """Return the modules that import themselves through others."""
    graph = grimp.build_graph(package, cache_dir=None)
    return sorted(
        module
        for module in graph.modules
        if any(
            module in graph.find_upstream_modules(imported)
            for imported in graph.find_modules_directly_imported_by(module)
        )
    )


def main() -> int:
    """Print the counts, and the modules where there should be none."""
    wrong = []
    for package in PACKAGES:
        found = modules_in_cycles(package)
        print(f"{package}: {len(found)} modules in import cycles")
        if package in ACYCLIC:
            wrong += found
    print(*wrong, sep="\n", end="\n" if wrong else "")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
