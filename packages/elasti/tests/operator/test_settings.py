"""The operator's settings."""

from __future__ import annotations

import pytest

from elasti.api.parsing import SettingsError
from elasti.operator.settings import OnResolverLoss, OperatorSettings


def test_kubeelastis_variables_are_read():
    settings = OperatorSettings.from_env(
        {
            "ELASTI_RESOLVER_NAMESPACE": "sys",
            "ELASTI_RESOLVER_PORT": "9013",
            "WATCH_NAMESPACES": "a, b,,a",
            "POLLING_INTERVAL": "45s",
            "ELASTI_ENGAGE_SETTLE": "1m",
            "ELASTI_ON_RESOLVER_LOSS": "Wait",
            "ELASTI_AUTHENTICATE": "false",
        }
    )
    assert settings.resolver_namespace == "sys"
    assert settings.resolver_admin_port == 9013
    assert settings.watch_namespaces == ("a", "b")
    assert settings.polling_interval == 45.0
    assert settings.engage_settle == 60.0
    assert settings.on_resolver_loss is OnResolverLoss.WAIT
    assert not settings.authenticate
    assert settings.callers == ("system:serviceaccount:sys:*",)


@pytest.mark.parametrize("text", ["", "0", "-3s", "soon"])
def test_a_useless_polling_interval_is_the_default(text):
    assert OperatorSettings.from_env({"POLLING_INTERVAL": text}).polling_interval == 30.0


def test_every_mistake_is_reported_at_once():
    with pytest.raises(SettingsError) as raised:
        OperatorSettings.from_env({"ELASTI_RESOLVER_PORT": "http", "ELASTI_ENGAGE_SETTLE": "soon"})
    assert "ELASTI_RESOLVER_PORT" in str(raised.value)
    assert "ELASTI_ENGAGE_SETTLE" in str(raised.value)


def test_flags_win_and_secrets_are_not_shown():
    environ = {"ELASTI_OPERATOR_PORT": "1", "PROMETHEUS_TRIGGER_AUTHORIZATION_HEADER": "hush"}
    settings = OperatorSettings.from_env(environ, port=2, leader_elect=None)
    assert settings.port == 2
    assert settings.leader_elect
    assert "hush" not in repr(settings)
