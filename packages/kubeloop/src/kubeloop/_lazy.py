"""Façades that load nothing until a name is used (PEP 562).

The client's transport takes a sixth of a second to import, which a program that only reads an error class
or a type must not pay. Such a package lists its names with their modules, and imports the same names under
`TYPE_CHECKING`, so that people and type checkers see an ordinary package:

    if TYPE_CHECKING:
        from kubeloop.client.client import Client as Client

    _EXPORTS = homes_of({"kubeloop.client.client": "Client"})
    if not TYPE_CHECKING:  # a checker that saw it would believe in any name
        __getattr__ = lazy_attributes(__name__, _EXPORTS)

A test keeps the table and the imports in step (`packages/kubeloop/tests/test_facades.py`).
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def homes_of(modules: Mapping[str, str]) -> dict[str, str]:
    """Return the module of each name, given the names of each module."""
    return {name: module for module, names in modules.items() for name in names.split()}


def lazy_attributes(package: str, exports: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a module's `__getattr__`: it imports a name's module and keeps what it found.

    `dir()` of the module lists the names too, for those who explore it, and `import *` finds them.
    """
    own = vars(sys.modules[package])
    own["__all__"] = sorted(exports)
    own["__dir__"] = lambda: sorted({*own, *exports})

    def get_attribute(name: str) -> Any:
        module = exports.get(name)
        if module is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(module), name)
        setattr(sys.modules[package], name, value)
        return value

    return get_attribute
