"""Settings from KubeElasti's variables."""

from __future__ import annotations

import pytest

from elasti.api.parsing import SettingsError
from elasti.resolver.settings import ResolverSettings


def test_defaults_are_the_charts():
    settings = ResolverSettings.from_env({})
    assert (settings.shared_port, settings.admin_port, settings.header_for_host) == (
        0,
        8013,
        "Host",
    )
    assert (
        settings.operator
        == "http://elasti-operator-controller-service.elasti.svc.cluster.local:8013"
    )
    assert settings.callers == ("system:serviceaccount:elasti:*",)


def test_kubeelastis_variables_keep_their_meaning():
    settings = ResolverSettings.from_env(
        {
            "ELASTI_OPERATOR_NAMESPACE": "ops",
            "ELASTI_OPERATOR_SERVICE_NAME": "op",
            "ELASTI_OPERATOR_PORT": "9000",
            "KUBERNETES_CLUSTER_DOMAIN": "k8s.corp",
            "HEADER_FOR_HOST": "X-Envoy-Decorator-Operation",
            "REQ_TIMEOUT": "120",
            "QUEUE_SIZE": "50000",
            "MAX_IDLE_PROXY_CONNS_PER_HOST": "500",
            "WATCH_NAMESPACES": "a, b,,a",
            "ELASTI_ENGAGE_SETTLE": "1m",
        }
    )
    assert settings.operator == "http://op.ops.svc.k8s.corp:9000"
    assert (settings.hold_timeout, settings.max_held, settings.idle_per_pod) == (120, 50000, 500)
    assert settings.watch_namespaces == ("a", "b")
    assert settings.engage_settle == 60.0


def test_clients_are_bounded_by_address_except_in_some_networks():
    variables = {
        "ELASTI_MAX_CONNECTIONS_PER_CLIENT": "500",
        "ELASTI_UNLIMITED_CLIENTS": "10.0.0.0/8, fd00::/8,192.0.2.1",
    }
    settings = ResolverSettings.from_env(variables)
    assert settings.client_connections == 500
    found = [str(network) for network in settings.unlimited_clients]
    assert found == ["10.0.0.0/8", "fd00::/8", "192.0.2.1/32"]
    with pytest.raises(
        SettingsError, match=r"10\.0\.0\.1/8 has host bits set; write networks such as"
    ):
        ResolverSettings.from_env({"ELASTI_UNLIMITED_CLIENTS": "10.0.0.1/8"})


def test_flags_win():
    assert (
        ResolverSettings.from_env({"ELASTI_RESOLVER_PORT": "1"}, admin_port=2, host=None).admin_port
        == 2
    )


def test_every_mistake_is_reported_at_once():
    with pytest.raises(SettingsError) as error:
        ResolverSettings.from_env(
            {"QUEUE_SIZE": "0", "ELASTI_RESOLVER_PORT": "x", "REQ_TIMEOUT": "soon"}
        )
    for part in ("QUEUE_SIZE: '0'", "ELASTI_RESOLVER_PORT: 'x'", "REQ_TIMEOUT: 'soon'"):
        assert part in str(error.value)
