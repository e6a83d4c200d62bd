from __future__ import annotations

import pytest

from devkube.cluster import ImagePrograms, image_names, read_program


@pytest.mark.parametrize(
    "image",
    [
        "nginx",
        "nginx:1.27",
        "docker.io/library/nginx",
        "localhost:5000/nginx:latest",
        "registry.example.com/team/nginx@sha256:0123",
        "registry.example.com/team/nginx:1@sha256:0123",
    ],
)
def test_a_program_is_found_whatever_registry_and_tag(image: str) -> None:
    assert ImagePrograms({"nginx": ("nginx",)})[image] == ("nginx",)


def test_the_most_exact_name_wins() -> None:
    programs = ImagePrograms({"web": ("any",), "web:2": ("two",), "example.com/web": ("theirs",)})
    assert programs["web:1"] == ("any",)
    assert programs["web:2"] == ("two",)
    assert programs["example.com/web:2"] == ("theirs",)
    assert programs.get("other") is None
    assert "webby" not in programs
    assert (len(programs), set(programs)) == (3, {"web", "web:2", "example.com/web"})


def test_a_port_is_not_a_tag() -> None:
    assert image_names("localhost:5000/web")[2] == "localhost:5000/web"


def test_a_program_is_read_as_a_shell_would() -> None:
    assert read_program("web=python -m 'my server'") == ("web", ("python", "-m", "my server"))


@pytest.mark.parametrize("text", ["web", "web=", "=x", "web='open"])
def test_text_that_is_not_a_program_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"IMAGE=COMMAND|closing quotation"):
        read_program(text)
