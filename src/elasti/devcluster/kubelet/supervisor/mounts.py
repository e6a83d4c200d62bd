"""A container's view of the file system: the host's, with volumes bound into it.

A mount point that the host lacks must not be made on the host. So the deepest directory that exists
is replaced, in the container's mount namespace only, by an empty one that shows the same entries,
and the mount point is made there. For the root itself that is a new root.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from elasti.devcluster.kubelet import linux

if TYPE_CHECKING:
    from collections.abc import Iterable

    from elasti.devcluster.kubelet.supervisor.spec import Mount

_PROC_FLAGS = linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC
# Flags of a mount that a user namespace may not take away when it mounts again.
_KEPT = (
    (os.ST_NOSUID, linux.MS_NOSUID),
    (os.ST_NODEV, linux.MS_NODEV),
    (os.ST_NOEXEC, linux.MS_NOEXEC),
)


def make_private() -> None:
    """Keep the mounts of this mount namespace from spreading."""
    linux.mount("none", "/", flags=linux.MS_REC | linux.MS_PRIVATE)


def mount_proc() -> None:
    """Show this PID namespace's processes in /proc; where that is forbidden, the outer ones stay."""
    try:
        linux.mount("proc", "/proc", kind="proc", flags=_PROC_FLAGS)
    except PermissionError:
        return


def bind_all(mounts: Iterable[Mount]) -> None:
    """Bind volumes, outer mount points before inner ones."""
    ordered = sorted(mounts, key=lambda mount: len(Path(mount.target).parts))
    _prepare_root(mount.target for mount in ordered)
    own: set[Path] = set()
    for mount in ordered:
        _bind(mount, own)


def _prepare_root(targets: Iterable[str]) -> None:
    if any(_deepest_existing(Path(target)) == Path("/") for target in targets):
        _replace_root()


def _bind(mount: Mount, own: set[Path]) -> None:
    target = _mount_point(mount, own)
    linux.mount(mount.source, str(target), flags=linux.MS_BIND | linux.MS_REC)
    if mount.read_only:
        flags = linux.MS_BIND | linux.MS_REMOUNT | linux.MS_RDONLY
        present = os.statvfs(target).f_flag
        flags |= sum(flag for seen, flag in _KEPT if present & seen)
        linux.mount("none", str(target), flags=flags)


def _mount_point(mount: Mount, own: set[Path]) -> Path:
    """Return the place to mount at, made where it is missing; `own` are directories not the host's."""
    target = Path(os.path.realpath(mount.target))
    if not target.exists():
        parent = _deepest_existing(target)
        if parent not in own:
            _shadow(parent)
            own.add(parent)
        _make_place(target, directory=Path(mount.source).is_dir())
        own.update(place for place in target.parents if parent in place.parents)
    return target


def _deepest_existing(path: Path) -> Path:
    path = Path(os.path.realpath(path))
    while not path.is_dir():
        if path.exists():
            return path
        path = path.parent
    return path


def _make_place(path: Path, *, directory: bool) -> None:
    if directory:
        path.mkdir(parents=True, exist_ok=True)
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def _shadow(directory: Path) -> None:
    """Cover a directory with an empty one that shows its entries."""
    if directory == Path("/"):
        return  # the root is a new one already
    with tempfile.TemporaryDirectory() as stash:
        linux.mount(str(directory), stash, flags=linux.MS_BIND | linux.MS_REC)
        linux.mount("tmpfs", str(directory), kind="tmpfs", flags=linux.MS_NOSUID)
        _show_entries(Path(stash), directory)
        linux.unmount(stash, flags=linux.MNT_DETACH)


def _show_entries(source: Path, target: Path) -> None:
    for entry in source.iterdir():
        place = target / entry.name
        if entry.is_symlink():
            place.symlink_to(entry.readlink())
        else:
            _make_place(place, directory=entry.is_dir())
            linux.mount(str(entry), str(place), flags=linux.MS_BIND | linux.MS_REC)


def _replace_root() -> None:
    """Go to a new root directory that shows the entries of the old one."""
    root = Path(tempfile.mkdtemp())
    linux.mount("tmpfs", str(root), kind="tmpfs")
    _show_entries(Path("/"), root)
    os.chdir(root)
    linux.pivot_root(".", ".")
    linux.unmount(".", flags=linux.MNT_DETACH)
    os.chdir("/")
    # The new root shows the directory that it was made in, and in that a copy of itself.
    linux.unmount(str(root), flags=linux.MNT_DETACH)
    root.rmdir()
