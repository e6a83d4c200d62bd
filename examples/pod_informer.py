"""A pod informer, step by step: watch every pod of a cluster and say what happens to it.

    python examples/pod_informer.py

Needs a kubeconfig (or a pod's service account). Ctrl-C stops it cleanly. Beside each step stands
what client-go calls it.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys

from kubeloop.aio.wait import until
from kubeloop.client import Client, KubeError
from kubeloop.informer import NotSynced, SharedInformerFactory
from kubeloop.objects.lazy import LazyObject
from kubeloop.objects.meta import STRUCT_ACCESS

RESYNC = 30.0
PERIOD = 10.0
log = logging.getLogger("pod_informer")


def handle_add(pod: LazyObject) -> None:
    """Say that a pod appeared."""
    log.info("handleAdd is called for Pod (key: %s)", STRUCT_ACCESS.key(pod))


def handle_update(_old: LazyObject, new: LazyObject) -> None:
    """Say that a pod changed, or was repeated by the resync."""
    log.info("handleUpdate is called for Pod (key: %s)", STRUCT_ACCESS.key(new))


def handle_delete(pod: LazyObject) -> None:
    """Say that a pod is gone."""
    log.info("handleDelete is called for Pod (key: %s)", STRUCT_ACCESS.key(pod))


def run() -> None:
    """Do the periodic work."""
    log.info("run")


async def main() -> None:
    """Watch until SIGINT or SIGTERM."""
    # The stop channel: cancelling the task ends whatever it waits for, and leaves every block.
    task = asyncio.current_task()
    assert task is not None
    for signum in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(signum, task.cancel)

    # clientcmd.BuildConfigFromFlags, kubernetes.NewForConfig
    async with Client.from_env() as client:
        # informers.NewSharedInformerFactory(client, 30 * time.Second)
        factory = SharedInformerFactory(client, resync=RESYNC)
        # factory.Core().V1().Pods().Informer()
        pods = factory.informer("v1/pods")
        # AddEventHandler(cache.ResourceEventHandlerFuncs{...})
        pods.add_handler(on_add=handle_add, on_update=handle_update, on_delete=handle_delete)
        # factory.Start(stop), and factory.Shutdown() at the end of the block
        async with factory.running():
            # cache.WaitForCacheSync(stop, informer.HasSynced)
            await factory.wait_for_sync(timeout=60)
            log.info("cache is synced")
            # wait.Until(run, 10 * time.Second, stop)
            await until(run, PERIOD)


if __name__ == "__main__":
    logging.basicConfig(stream=sys.stdout, format="%(asctime)s %(message)s", level=logging.INFO)
    try:
        asyncio.run(main())
    except asyncio.CancelledError:
        log.info("stopped")
    except (KubeError, NotSynced) as error:
        sys.exit(f"pod_informer: {error}")
