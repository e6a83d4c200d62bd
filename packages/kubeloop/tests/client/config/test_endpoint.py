from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeloop.client.config.endpoint import Endpoint
from kubeloop.client.errors import ConfigError


@pytest.mark.parametrize(
    ("url", "scheme", "host", "port", "path", "whole"),
    [
        ("https://10.0.0.1:6443", "https", "10.0.0.1", 6443, "", "https://10.0.0.1:6443"),
        ("https://api.example", "https", "api.example", 443, "", "https://api.example:443"),
        ("http://localhost", "http", "localhost", 80, "", "http://localhost:80"),
        ("HTTPS://API.example/", "https", "api.example", 443, "", "https://api.example:443"),
        ("https://[::1]:6443", "https", "::1", 6443, "", "https://[::1]:6443"),
        ("https://[2001:db8::1]", "https", "2001:db8::1", 443, "", "https://[2001:db8::1]:443"),
        (
            "https://rancher.example/k8s/clusters/c-x/",
            "https",
            "rancher.example",
            443,
            "/k8s/clusters/c-x",
            "https://rancher.example:443/k8s/clusters/c-x",
        ),
    ],
)
def test_a_url_is_taken_apart_and_put_together_again(url, scheme, host, port, path, whole):
    endpoint = Endpoint.parse(url)
    assert (endpoint.scheme, endpoint.host, endpoint.port, endpoint.path) == (
        scheme,
        host,
        port,
        path,
    )
    assert endpoint.url == str(endpoint) == whole
    assert endpoint.is_secure == (scheme == "https")


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("", "no scheme"),
        ("10.0.0.1:6443", "put https:// before it"),
        ("ftp://host", "neither https nor http"),
        ("https://", "names no host"),
        ("https:///path", "names no host"),
        ("https://host:notaport", "port"),
        ("https://host:70000", "port"),
        ("https://host:0", "port"),
        ("https://[::1", "server URL"),
        ("https://[zz::1]:1", "server URL"),
        ("https://host name", "space"),
        ("https://host\n", "control character"),
        ("https://host/?a=b", "query"),
        ("https://host/#x", "fragment"),
    ],
)
def test_url_that_cannot_be_used_is_named_with_fault(url, complaint):
    with pytest.raises(ConfigError) as caught:
        Endpoint.parse(url)
    assert complaint in str(caught.value)
    assert repr(url) in str(caught.value)


def test_password_in_server_url_is_refused_and_not_repeated():
    with pytest.raises(ConfigError, match="user name or password") as caught:
        Endpoint.parse("https://admin:hunter2@host")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("proxy", ["http://proxy:3128", "https://u:p@proxy.example"])
def test_http_and_https_proxies_are_kept(proxy):
    assert Endpoint.parse("https://host", proxy=proxy).proxy == proxy


def test_an_empty_proxy_and_an_empty_server_name_mean_none():
    endpoint = Endpoint.parse("https://host", proxy="", server_name="")
    assert endpoint.proxy is None
    assert endpoint.server_name is None


def test_a_socks_proxy_is_refused_with_the_remedy():
    with pytest.raises(ConfigError, match=r"socks5://p:1080.*not supported.*use an http://"):
        Endpoint.parse("https://host", proxy="socks5://p:1080")
    with pytest.raises(ConfigError, match=r"socks5://p: SOCKS"):
        Endpoint.parse("https://host", proxy="socks5://p")


@pytest.mark.parametrize("proxy", ["proxy:3128", "ftp://p", "http://", "http://[x", "http://p:bad"])
def test_a_bad_proxy_is_refused(proxy):
    with pytest.raises(ConfigError, match="proxy URL"):
        Endpoint.parse("https://host", proxy=proxy)


def test_a_proxys_password_is_not_repeated():
    with pytest.raises(ConfigError) as caught:
        Endpoint.parse("https://host", proxy="socks5://me:hunter2@p:1")
    assert "hunter2" not in str(caught.value)


@given(st.text())
def test_any_text_is_an_endpoint_or_a_config_error(text):
    try:
        endpoint = Endpoint.parse(text)
    except ConfigError:
        return
    assert Endpoint.parse(endpoint.url) == endpoint


@given(st.text())
def test_any_proxy_is_taken_or_a_config_error(text):
    try:
        endpoint = Endpoint.parse("https://host", proxy=f"http://{text}")
    except ConfigError:
        return
    assert endpoint.through(endpoint.proxy) == endpoint


PROXIED = {"HTTPS_PROXY": "http://proxy.example:3128"}


@pytest.mark.parametrize(
    ("server", "no_proxy", "proxied"),
    [
        ("https://api.example.com", "", True),
        ("https://api.example.com", "*", False),
        ("https://api.example.com", "example.com", False),
        ("https://api.example.com", ".example.com", False),
        ("https://api.example.com", "*.example.com", False),
        ("https://example.com", ".example.com", True),
        ("https://example.com", "example.com", False),
        ("https://notexample.com", "example.com", True),
        ("https://api.example.com:6443", "other.org, api.example.com:6443", False),
        ("https://api.example.com:6443", "api.example.com:443", True),
        ("https://10.1.2.3:6443", "10.0.0.0/8", False),
        ("https://11.1.2.3:6443", "10.0.0.0/8", True),
        ("https://10.1.2.3:6443", "10.1.2.3", False),
        ("https://10.1.2.3:6443", "10.1.2.3:443", True),
        ("https://10.1.2.3", "0.0.0.0/nonsense,,10.1.2.3", False),
        ("https://[fd00::1]", "fd00::/8", False),
        ("https://[fd00::1]", "fd00::1", False),
        ("https://[fd00::1]:6443", "[fd00::1]:6443", False),
        ("https://[fd00::1]", "fd00::2", True),
        ("https://127.0.0.1:6443", "", False),
        ("https://127.9.9.9:6443", "", False),
        ("https://[::1]:6443", "", False),
        ("https://localhost:6443", "", False),
        ("http://api.example.com", "", False),
    ],
)
def test_the_environments_proxy_is_used_as_go_programs_do(
    server: str, no_proxy: str, proxied: bool
) -> None:
    found = Endpoint.parse(server).through_environment(PROXIED | {"NO_PROXY": no_proxy})
    assert bool(found.proxy) is proxied


@pytest.mark.parametrize(
    ("environ", "proxy"),
    [
        ({"https_proxy": "proxy.example:3128"}, "http://proxy.example:3128"),
        ({"HTTPS_PROXY": "http://a", "https_proxy": "http://b"}, "http://a"),
        ({"HTTP_PROXY": "http://a"}, None),
        ({"https_proxy": "http://a", "no_proxy": "example.com"}, None),
        ({}, None),
    ],
)
def test_each_variable_has_its_meaning(environ: dict[str, str], proxy: str | None) -> None:
    assert Endpoint.parse("https://example.com").through_environment(environ).proxy == proxy


def test_a_proxy_of_the_kubeconfig_comes_first_and_a_bad_one_is_named() -> None:
    given = Endpoint.parse("https://example.com", proxy="http://given:1")
    assert given.through_environment(PROXIED) == given
    with pytest.raises(ConfigError, match=r"HTTPS_PROXY: .*SOCKS"):
        Endpoint.parse("https://example.com").through_environment({"HTTPS_PROXY": "socks5://a:1"})
