"""The volumes of one pod: made before its containers, kept up to date, removed with it.

<directory>/volumes/<name>     what containers see
<directory>/etc-hosts          the pod's own /etc/hosts

Files of a volume change all at once: they lie in a directory of their own, which `..data` points to; what
users see are links through it. New content goes to a new directory, and one rename of the link makes it
the present one. Readers see either the old files or the new, never both.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from devkube.kubelet.environment import ConfigurationError, DownwardContext
from devkube.kubelet.pod_types import ContainerSpec, KubeletPod, Volume, VolumeMount
from devkube.kubelet.supervisor.spec import Mount
from devkube.kubelet.volume_sources import PodReferences, PodTokens, VolumeFile, payload
from kubeloop.aio.clock import Clock

_DATA = "..data"
_NEW = "..data_tmp"
SERVICEACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
_SERVICEACCOUNT_VARIABLE = "KUBELOOP_SERVICEACCOUNT_DIR"
_VOLUME_VARIABLE = "DEVKUBE_VOLUME_"


def write_atomically(directory: Path, files: Mapping[str, VolumeFile], *, stamp: str) -> bool:
    """Make the directory have these files and no others; False if it had them already."""
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


def _fill(directory: Path, files: Mapping[str, VolumeFile]) -> None:
    for name, file in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.data)
        path.chmod(file.mode)


def _holds(directory: Path, files: Mapping[str, VolumeFile]) -> bool:
    found = {
        str(path.relative_to(directory)): path for path in directory.rglob("*") if path.is_file()
    }
    return found.keys() == files.keys() and all(
        path.read_bytes() == files[name].data and path.stat().st_mode & 0o7777 == files[name].mode
        for name, path in found.items()
    )


def _link(directory: Path, files: Mapping[str, VolumeFile]) -> None:
    wanted = {PurePosixPath(name).parts[0] for name in files}
    for entry in directory.iterdir():
        if entry.is_symlink() and entry.name != _DATA and entry.name not in wanted:
            entry.unlink()
    for name in wanted:
        if not os.path.lexists(directory / name):
            (directory / name).symlink_to(Path(_DATA) / name)


class VolumeError(Exception):
    """A volume that cannot be made, and why."""

    def __init__(self, volume: str, why: str) -> None:
        super().__init__(f'MountVolume.SetUp failed for volume "{volume}" : {why}')
        self.volume = volume


class PodVolumes:
    """One pod's volumes."""

    def __init__(self, directory: Path, *, tokens: PodTokens, clock: Clock) -> None:
        self._directory = directory
        self._tokens = tokens
        self._clock = clock

    @property
    def renew_at(self) -> float | None:
        """When `refresh` is due although nothing else changed (loop time)."""
        return self._tokens.renew_at

    async def refresh(self, facts: DownwardContext, objects: PodReferences) -> None:
        """Make every volume, or bring it up to date. Raises VolumeError."""
        pod = facts.pod
        try:
            tokens = await self._tokens.current()
        except ConfigurationError as error:
            names = [volume.name for volume in pod.spec.volumes if volume.projected is not None]
            raise VolumeError(names[0], str(error)) from error
        for volume in pod.spec.volumes:
            try:
                files = payload(volume, facts, objects, tokens)
                await asyncio.to_thread(self._make, volume, files)
            except (ConfigurationError, OSError) as error:
                raise VolumeError(volume.name, str(error)) from error

    def _make(self, volume: Volume, files: Mapping[str, VolumeFile] | None) -> None:
        place = self._place(volume)
        if files is not None:
            stamp = self._clock.now().strftime("%Y_%m_%d_%H_%M_%S")
            write_atomically(place, files, stamp=stamp)
        elif volume.empty_dir is not None:
            place.mkdir(parents=True, exist_ok=True)
            place.chmod(0o777)
        elif volume.host_path is not None:
            if not place.exists():
                place.mkdir(parents=True)
        else:
            raise ConfigurationError(
                "this kind of volume is not supported here; there are configMap, secret, emptyDir,"
                " downwardAPI, projected and hostPath"
            )

    def _place(self, volume: Volume) -> Path:
        if volume.host_path is not None:
            return Path(volume.host_path.path)
        return self._directory / "volumes" / volume.name

    def write_hosts(self, pod: KubeletPod, address: str) -> None:
        """Write the pod's hosts file."""
        lines = ["# Kubernetes-managed hosts file.", "127.0.0.1\tlocalhost", "::1\tlocalhost"]
        lines.append(f"{address}\t{pod.hostname}")
        self._directory.mkdir(parents=True, exist_ok=True)
        (self._directory / "etc-hosts").write_text("\n".join(lines) + "\n")

    def mounts(self, pod: KubeletPod, container: ContainerSpec) -> tuple[Mount, ...]:
        """Return what to mount into a container. Raises ConfigurationError."""
        volumes = {volume.name: volume for volume in pod.spec.volumes}
        found = [self._mount(mount, volumes[mount.name]) for mount in container.volume_mounts]
        if not any(mount.target == "/etc/hosts" for mount in found):
            found.append(Mount(str(self._directory / "etc-hosts"), "/etc/hosts"))
        return tuple(found)

    def _mount(self, wanted: VolumeMount, volume: Volume) -> Mount:
        source = self._place(volume)
        if wanted.sub_path:
            source = _inside(source, wanted.sub_path, create=volume.empty_dir is not None)
        generated = volume.empty_dir is None and volume.host_path is None
        return Mount(str(source), wanted.mount_path, wanted.read_only or generated)

    def variables(self, pod: KubeletPod, container: ContainerSpec) -> Iterator[tuple[str, str]]:
        """Yield variables that say where volumes are, for containers that have no mounts."""
        volumes = {volume.name: volume for volume in pod.spec.volumes}
        for mount in container.volume_mounts:
            place = str(self._place(volumes[mount.name]))
            name = mount.name.upper().replace("-", "_").replace(".", "_")
            yield f"{_VOLUME_VARIABLE}{name}", place
            if mount.mount_path.rstrip("/") == SERVICEACCOUNT:
                yield _SERVICEACCOUNT_VARIABLE, place

    def located(
        self, pod: KubeletPod, container: ContainerSpec, variables: Mapping[str, str]
    ) -> dict[str, str]:
        """Return variables that name a place below a mount point with where the volume really is.

        For containers that have no mounts: a program that gets its files' paths finds them.
        """
        volumes = {volume.name: volume for volume in pod.spec.volumes}
        places = {
            mount.mount_path.rstrip("/"): str(self._place(volumes[mount.name]))
            for mount in container.volume_mounts
        }
        return {name: _moved(value, places) for name, value in variables.items()}

    def remove(self) -> None:
        """Remove what was made."""
        shutil.rmtree(self._directory / "volumes", ignore_errors=True)
        (self._directory / "etc-hosts").unlink(missing_ok=True)


def _moved(value: str, places: Mapping[str, str]) -> str:
    for point in sorted(places, key=len, reverse=True):
        if value == point or value.startswith(f"{point}/"):
            return places[point] + value.removeprefix(point)
    return value


def _inside(source: Path, inside: str, *, create: bool) -> Path:
    path = Path(os.path.normpath(source / inside))
    if source not in path.parents:
        raise ConfigurationError(f"subPath {inside!r} must stay inside the volume")
    if create and not path.exists():
        path.mkdir(parents=True)
    # A link inside a volume that changes at once leads to the content of now.
    resolved = path.resolve()
    if source.resolve() not in resolved.parents:
        raise ConfigurationError(f"subPath {inside!r} leads out of the volume")
    return resolved
