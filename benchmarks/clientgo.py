"""The Go program that benchmarks compare memory with: built once, outside of the tree."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

_SOURCE = Path(__file__).resolve().parent / "clientgo"
_BUILD_TIME = 900


def clientgo_binary() -> Path | None:
    """Return the program, building it where it is not in the cache; None without Go."""
    digest = hashlib.sha256()
    for path in sorted(_SOURCE.iterdir()):
        digest.update(path.read_bytes())
    binary = _cache() / f"clientgo-{digest.hexdigest()[:16]}"
    if binary.exists():
        return binary
    go = shutil.which("go")
    if go is None:
        print("client-go is left out: no Go toolchain")
        return None
    binary.parent.mkdir(parents=True, exist_ok=True)
    built = subprocess.run(
        [go, "build", "-o", str(binary), "."],
        cwd=_SOURCE,
        timeout=_BUILD_TIME,
        capture_output=True,
        check=False,
    )
    if built.returncode:
        print(f"client-go is left out: its program does not build: {built.stderr.decode()[-300:]}")
        return None
    return binary


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "kubeloop-bench"
