"""A directory whose files change all at once.

The files lie in a directory of their own, which `..data` points to; what people see are links through
it. New content goes to a new directory, and one rename of the link makes it the present one. Readers
see either the old files or the new, never both.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elasti.devcluster.kubelet.volumes.payloads import File

_DATA = "..data"
_NEW = "..data_tmp"


def write(directory: Path, files: Mapping[str, File], *, stamp: str) -> bool:
    """Make the directory have these files and no others; False where it had them already."""
    directory.mkdir(parents=True, exist_ok=True)
    data = directory / _DATA
    if data.is_symlink() and _holds(directory / data.readlink(), files):
        return False
    before = data.readlink() if data.is_symlink() else None
    fresh = Path(tempfile.mkdtemp(prefix=f"..{stamp}.", dir=directory))
    fresh.chmod(0o755)
    _fill(fresh, files)
    new = directory / _NEW
    new.unlink(missing_ok=True)
    new.symlink_to(fresh.name)
    new.rename(data)
    _link(directory, files)
    if before is not None:
        shutil.rmtree(directory / before, ignore_errors=True)
    return True


def _fill(directory: Path, files: Mapping[str, File]) -> None:
    for name, file in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.data)
        path.chmod(file.mode)


def _holds(directory: Path, files: Mapping[str, File]) -> bool:
    found = {
        str(path.relative_to(directory)): path for path in directory.rglob("*") if path.is_file()
    }
    return found.keys() == files.keys() and all(
        path.read_bytes() == files[name].data and path.stat().st_mode & 0o7777 == files[name].mode
        for name, path in found.items()
    )


def _link(directory: Path, files: Mapping[str, File]) -> None:
    wanted = {PurePosixPath(name).parts[0] for name in files}
    for entry in directory.iterdir():
        if entry.is_symlink() and entry.name != _DATA and entry.name not in wanted:
            entry.unlink()
    for name in wanted:
        if not os.path.lexists(directory / name):
            (directory / name).symlink_to(Path(_DATA) / name)
