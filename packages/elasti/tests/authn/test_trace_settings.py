"""OpenTelemetry's variables."""

from __future__ import annotations

import pytest

from elasti.api.parsing import SettingsError
from elasti.operator.settings import OperatorSettings
from elasti.resolver.settings import ResolverSettings

BASE = "OTEL_EXPORTER_OTLP_ENDPOINT"
URL = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"


@pytest.mark.parametrize("settings", [OperatorSettings, ResolverSettings])
@pytest.mark.parametrize(
    ("environ", "url"),
    [
        ({}, ""),
        ({"OTEL_SERVICE_NAME": "x"}, ""),
        ({BASE: "http://c:4318"}, "http://c:4318/v1/traces"),
        ({BASE: "http://c:4318/"}, "http://c:4318/v1/traces"),
        ({URL: "https://c/here", BASE: "http://other"}, "https://c/here"),
        ({BASE: "http://c:4318", "OTEL_SDK_DISABLED": "true"}, ""),
    ],
)
def test_an_endpoint_turns_it_on(
    settings: type[OperatorSettings | ResolverSettings], environ: dict[str, str], url: str
):
    assert settings.from_env(environ).traces_url == url


def test_resource_headers_and_timeout():
    found = OperatorSettings.from_env(
        {
            BASE: "http://c:4318/api-token",
            "OTEL_EXPORTER_OTLP_HEADERS": "api-key=s%3Decret, x-tenant=shop",
            "OTEL_EXPORTER_OTLP_TIMEOUT": "2500",
            "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment=prod",
            "OTEL_SERVICE_NAME": "mine",
        }
    )
    assert found.otlp_headers == {"api-key": "s=ecret", "x-tenant": "shop"}
    assert (found.otlp_timeout, found.otel_service) == (2500, "mine")
    assert found.otel_resource == {"deployment.environment": "prod"}
    assert "s=ecret" not in repr(found)
    assert "api-token" not in repr(found)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (BASE, "secret:4317"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "10s"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "secret"),
    ],
)
def test_what_cannot_be_used_is_named(name: str, value: str):
    with pytest.raises(SettingsError, match=name) as raised:
        OperatorSettings.from_env({BASE: "http://c:4318", name: value})
    assert "secret" not in str(raised.value)
