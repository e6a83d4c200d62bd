"""What a kubelet tells people about a pod, in the words that they know."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from elasti.devcluster.kubelet.pods.state import Why

if TYPE_CHECKING:
    from collections.abc import Callable

    from elasti.devcluster.kubelet.objects.pods import Pod
    from kubeloop.objects.references import ObjectReference

_KILLING = {
    Why.LIVENESS: "Container {name} failed liveness probe, will be restarted",
    Why.STARTUP: "Container {name} failed startup probe, will be restarted",
    Why.POST_START: "FailedPostStartHook",
}


class Recorder(Protocol):
    """Takes events."""

    def normal(self, obj: ObjectReference, reason: str, message: str) -> None:
        """Record that all is as it should be."""

    def warning(self, obj: ObjectReference, reason: str, message: str) -> None:
        """Record that something is wrong."""


class Voice:
    """Tells about one pod."""

    def __init__(self, recorder: Recorder, pod: Callable[[], Pod]) -> None:
        self._recorder = recorder
        self._pod = pod

    def created(self, name: str) -> None:
        """A container was made."""
        self._normal(name, "Created", "Container created")

    def started(self, name: str) -> None:
        """A container runs."""
        self._normal(name, "Started", "Container started")

    def killing(self, name: str, why: Why) -> None:
        """A container is being stopped."""
        text = _KILLING.get(why, "Stopping container {name}")
        self._normal(name, "Killing", text.format(name=name))

    def failed(self, name: str, message: str) -> None:
        """A container could not be made or started."""
        self._warning(name, "Failed", f"Error: {message}")

    def resting(self, name: str) -> None:
        """A container rests before its next start."""
        text = f"Back-off restarting failed container {name} in pod {self._pod().title}"
        self._warning(name, "BackOff", text)

    def unhealthy(self, name: str, message: str) -> None:
        """A probe failed."""
        self._warning(name, "Unhealthy", message)

    def probe_warning(self, name: str, message: str) -> None:
        """A probe succeeded, but."""
        self._warning(name, "ProbeWarning", message)

    def hook_failed(self, name: str, reason: str, message: str) -> None:
        """A hook failed; `reason` is FailedPostStartHook or FailedPreStopHook."""
        self._warning(name, reason, message)

    def listens_everywhere(self, name: str, port: int, address: str) -> None:
        """A container bound a port of every pod."""
        text = (
            f"Container {name} listens on port {port} of all addresses (0.0.0.0); pods share this"
            f" machine's network, so it must bind $POD_IP ({address}) instead: no other pod can use"
            " the port now"
        )
        self._warning(name, "BindsAllAddresses", text)

    def failed_mount(self, message: str) -> None:
        """A volume could not be made."""
        self._warning("", "FailedMount", message)

    def no_address(self, message: str) -> None:
        """The pod has no address."""
        self._warning("", "FailedCreatePodSandBox", message)

    def _normal(self, name: str, reason: str, message: str) -> None:
        self._recorder.normal(self._pod().reference(name), reason, message)

    def _warning(self, name: str, reason: str, message: str) -> None:
        self._recorder.warning(self._pod().reference(name), reason, message)
