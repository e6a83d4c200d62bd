from __future__ import annotations

import pytest
from tests.certs import make_authority

from kubeloop.client.config.client_config import ClientConfig, ClientSettings
from kubeloop.client.errors import ConfigError, CredentialError

pytestmark = pytest.mark.virtual_time


@pytest.fixture(scope="module")
def authority():
    return make_authority()


@pytest.fixture
def account(tmp_path, authority):
    (tmp_path / "token").write_text("one\n")
    (tmp_path / "ca.crt").write_bytes(authority.pem)
    (tmp_path / "namespace").write_text("team\n")
    return tmp_path


def settings(account, host="10.0.0.1", port="443"):
    return ClientSettings(service_host=host, service_port=port, serviceaccount_dir=account)


async def test_the_mounted_account_is_used(account):
    config = ClientConfig.in_cluster(settings=settings(account))
    assert config.endpoint.url == "https://10.0.0.1:443"
    assert config.namespace == "team"
    assert config.source == "in-cluster"
    assert await config.credentials.headers() == {"Authorization": "Bearer one"}
    context = await config.credentials.ssl_context()
    assert context is not None
    assert len(context.get_ca_certs()) == 1


@pytest.mark.parametrize("host", ["fd00::1", "[fd00::1]"])
def test_an_ipv6_service_is_addressed_in_brackets(account, host):
    config = ClientConfig.in_cluster(settings=settings(account, host=host))
    assert config.endpoint.url == "https://[fd00::1]:443"


async def test_a_rotated_token_is_followed(account):
    config = ClientConfig.in_cluster(settings=settings(account))
    await config.credentials.headers()
    (account / "token").write_text("two!\n")
    assert await config.credentials.headers() == {"Authorization": "Bearer two!"}


async def test_a_rotated_authority_makes_a_new_context(account, authority):
    config = ClientConfig.in_cluster(settings=settings(account))
    first = await config.credentials.ssl_context()
    assert await config.credentials.ssl_context() is first
    (account / "ca.crt").write_bytes(authority.pem + make_authority("next").pem)
    second = await config.credentials.ssl_context()
    assert second is not first
    assert second is not None
    assert len(second.get_ca_certs()) == 2


async def test_a_damaged_authority_keeps_the_working_context(account, caplog):
    config = ClientConfig.in_cluster(settings=settings(account))
    first = await config.credentials.ssl_context()
    (account / "ca.crt").write_bytes(b"-----BEGIN")
    assert await config.credentials.ssl_context() is first
    assert "keeping the previous TLS material: ServiceAccount CA" in caplog.text


async def test_a_token_that_vanishes_after_a_401_is_reported(account):
    config = ClientConfig.in_cluster(settings=settings(account))
    refused = await config.credentials.headers()
    (account / "token").unlink()
    config.credentials.invalidate(refused)
    with pytest.raises(CredentialError, match=r"ServiceAccount token: cannot read .*no such file"):
        await config.credentials.headers()


def test_a_missing_namespace_means_default(account):
    (account / "namespace").unlink()
    assert ClientConfig.in_cluster(settings=settings(account)).namespace == "default"


@pytest.mark.parametrize(
    ("host", "port", "message"),
    [
        ("", "443", "not in a cluster: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT"),
        ("10.0.0.1", "", "not in a cluster"),
        ("10.0.0.1", "x", "KUBERNETES_SERVICE_PORT='x': server URL 'https://10.0.0.1:x'"),
    ],
)
def test_a_wrong_address_is_reported(account, host, port, message):
    with pytest.raises(ConfigError, match=message):
        ClientConfig.in_cluster(settings=settings(account, host=host, port=port))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("token", None, "ServiceAccount token: cannot read "),
        ("token", b"", "ServiceAccount token .*token is empty"),
        ("ca.crt", None, "ServiceAccount CA: cannot read "),
        ("ca.crt", b"x", "ServiceAccount CA .*contains no PEM certificate"),
        ("namespace", b"\xff", "ServiceAccount namespace: cannot read "),
    ],
)
def test_a_broken_account_is_reported_with_its_file(account, name, content, message):
    (account / name).unlink()
    if content is not None:
        (account / name).write_bytes(content)
    with pytest.raises(ConfigError, match=message) as caught:
        ClientConfig.in_cluster(settings=settings(account))
    assert str(account / name) in str(caught.value)
