"""How many bytes each module of a program's imports allocates, without those that it imports in turn.

python tests/suite/import_memory.py elasti.cli.programs elasti.operator.app
"""

from __future__ import annotations

import importlib
import importlib.machinery
import json
import sys
import tracemalloc
from collections import defaultdict
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from importlib.abc import Loader  # loads tempfile, and much with it

_open: list[str] = []
_spent: dict[str, int] = defaultdict(int)
_since = 0


def _charge() -> None:
    """Charge what was allocated since the last call to the innermost module that is being loaded."""
    global _since
    now = tracemalloc.get_traced_memory()[0]
    if _open:
        _spent[_open[-1]] += now - _since
    _since = tracemalloc.get_traced_memory()[0]


class _Measured:
    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        _charge()
        _open.append(module.__name__)
        try:
            self._loader.exec_module(module)
        finally:
            _charge()
            _open.pop()

    def __getattr__(self, name: str) -> object:
        return getattr(self._loader, name)


class _Finder:
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = cast("Loader", _Measured(spec.loader))
        return spec


if __name__ == "__main__":
    sys.path.pop(0)
    # Not in the image; msgspec would load it.
    sys.modules["typing_extensions"] = None  # type: ignore[assignment]
    # The table of interned strings grows once now, and not in whichever module fills it.
    del [sys.intern(f"interned {number}") for number in range(200_000)][:]
    sys.meta_path.insert(0, _Finder())
    tracemalloc.start()
    _since = tracemalloc.get_traced_memory()[0]
    for module in sys.argv[1:]:
        importlib.import_module(module)
    print(json.dumps({"modules": sorted(sys.modules), "bytes": _spent}))
