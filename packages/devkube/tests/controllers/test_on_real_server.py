"""Our controllers on Kubernetes' own API server: they are programs for any server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from tests.controllers.support import NODE, Cluster, cluster_at, first_of, running
from tests.controllers.test_deployment import (
    test_a_paused_deployment_scales_but_does_not_roll_out,
    test_a_rollout_that_never_gets_ready_keeps_the_old_pods,
    test_kubectl_follows_restarts_and_undoes_rollouts,
    test_recreate_starts_no_new_pod_while_an_old_one_runs,
)
from tests.controllers.test_endpoint_slice import (
    test_a_pod_that_ends_is_listed_as_terminating_until_it_is_gone,
    test_a_service_gets_a_slice_with_its_labels_and_its_pods,
)
from tests.controllers.test_garbage_collector import (
    test_a_circle_of_owners_can_be_deleted,
    test_custom_resources_defined_later_own_and_are_owned,
    test_what_kubectl_orphans_is_adopted_by_the_next_of_the_kind,
)
from tests.controllers.test_namespace import (
    test_a_deleted_namespace_takes_everything_along,
    test_what_holds_a_namespace_up_is_told_in_its_conditions,
)
from tests.controllers.test_replica_set import (
    test_a_matching_pod_that_nobody_controls_is_adopted,
    test_a_pod_that_does_not_match_any_more_is_released_and_replaced,
)
from tests.controllers.test_scheduler import test_a_cordoned_node_takes_no_pods
from tests.controllers.test_stateful_set import (
    test_an_update_goes_from_the_highest_number_down_to_the_partition,
    test_kubectl_follows_and_undoes_an_update,
)

from devkube.controllers.manager import ControllerManager
from kubeloop.client import Client, ClientConfig, NotFound
from tests.controlplane.binaries import Binaries
from tests.controlplane.rig import ControlPlane, Options

__all__ = [
    "test_a_circle_of_owners_can_be_deleted",
    "test_a_cordoned_node_takes_no_pods",
    "test_a_deleted_namespace_takes_everything_along",
    "test_a_matching_pod_that_nobody_controls_is_adopted",
    "test_a_paused_deployment_scales_but_does_not_roll_out",
    "test_a_pod_that_does_not_match_any_more_is_released_and_replaced",
    "test_a_pod_that_ends_is_listed_as_terminating_until_it_is_gone",
    "test_a_rollout_that_never_gets_ready_keeps_the_old_pods",
    "test_a_service_gets_a_slice_with_its_labels_and_its_pods",
    "test_an_update_goes_from_the_highest_number_down_to_the_partition",
    "test_custom_resources_defined_later_own_and_are_owned",
    "test_kubectl_follows_and_undoes_an_update",
    "test_kubectl_follows_restarts_and_undoes_rollouts",
    "test_recreate_starts_no_new_pod_while_an_old_one_runs",
    "test_what_holds_a_namespace_up_is_told_in_its_conditions",
    "test_what_kubectl_orphans_is_adopted_by_the_next_of_the_kind",
]

pytestmark = [pytest.mark.controlplane, pytest.mark.differential]


@pytest.fixture(scope="session")
def bare_server(controlplane_binaries: Binaries) -> Iterator[ControlPlane]:
    """Kubernetes' own API server without controllers."""
    options = Options(controllers=False, scheduler=False)
    with ControlPlane(controlplane_binaries, options) as rig:
        yield rig


@pytest.fixture
async def cluster(bare_server: ControlPlane) -> AsyncIterator[Cluster]:
    async with Client(ClientConfig.from_kubeconfig(bare_server.kubeconfig)) as client:
        controllers = ControllerManager(client, root_ca=bare_server.ca_file.read_bytes())
        async with running(controllers.run(), "controllers") as task:
            await first_of(controllers.wait_synced(), [task])
            try:
                await client.resource("v1/nodes").get(NODE)
            except NotFound:
                bare_server.create_node(NODE)
            async with cluster_at(client, bare_server.kubeconfig) as made:
                yield made
