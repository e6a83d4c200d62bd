from __future__ import annotations

import os
from pathlib import Path

from kubeloop.client.config.client_config import SERVICEACCOUNT_DIR, ClientSettings


def test_an_empty_environment_gives_the_defaults():
    settings = ClientSettings.read({})
    assert settings == ClientSettings()
    assert settings.serviceaccount_dir == SERVICEACCOUNT_DIR
    assert settings.kubeconfig_paths() == ()


def test_every_variable_is_read():
    environ = {
        "KUBECONFIG": "/a",
        "KUBERNETES_SERVICE_HOST": "10.0.0.1",
        "KUBERNETES_SERVICE_PORT": "443",
        "HOME": "/home/me",
        "KUBELOOP_SERVICEACCOUNT_DIR": "/sa",
        "OTHER": "secret",
    }
    settings = ClientSettings.read(environ)
    assert settings.kubeconfig == "/a"
    assert (settings.service_host, settings.service_port) == ("10.0.0.1", "443")
    assert settings.home == Path("/home/me")
    assert settings.serviceaccount_dir == Path("/sa")
    assert settings.environ == environ
    assert "secret" not in repr(settings)


def test_without_a_mapping_the_process_environment_is_read(monkeypatch):
    monkeypatch.setenv("KUBECONFIG", "/from/the/process")
    assert ClientSettings.read().kubeconfig == "/from/the/process"


def test_an_empty_kubeconfig_variable_means_the_file_in_the_home():
    settings = ClientSettings.read({"KUBECONFIG": "", "HOME": "/home/me"})
    assert settings.kubeconfig_paths() == (Path("/home/me/.kube/config"),)


def test_a_file_list_drops_empty_and_repeated_names_in_order():
    settings = ClientSettings(kubeconfig=os.pathsep.join(["/b", "", "/a", "/b"]))
    assert settings.kubeconfig_paths() == (Path("/b"), Path("/a"))


def test_a_kubeconfig_variable_that_lists_nothing_names_no_file():
    assert ClientSettings(kubeconfig=os.pathsep, home=Path("/h")).kubeconfig_paths() == ()
