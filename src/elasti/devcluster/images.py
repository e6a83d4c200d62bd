"""Images as names of local programs: what runs where a container says no command.

    programs = Programs({"nginx": ("nginx", "-g", "daemon off;")})
    programs.get("docker.io/library/nginx:1.27")        # the same, whatever registry and tag

The most exact name wins: the image as written, then without its tag, then its last part alone.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping


class Programs(Mapping[str, tuple[str, ...]]):
    """A mapping from images to commands that knows how images are written."""

    def __init__(self, commands: Mapping[str, tuple[str, ...]]) -> None:
        self._commands = dict(commands)

    def __getitem__(self, image: str) -> tuple[str, ...]:
        for name in names_of(image):
            if name in self._commands:
                return self._commands[name]
        raise KeyError(image)

    def __iter__(self) -> Iterator[str]:
        return iter(self._commands)

    def __len__(self) -> int:
        return len(self._commands)


def names_of(image: str) -> tuple[str, ...]:
    """Return the names by which an image may be meant, the most exact first."""
    untagged = image.partition("@")[0]
    last = untagged.rpartition("/")[2]
    repository = untagged.removesuffix(f":{last.partition(':')[2]}") if ":" in last else untagged
    return image, untagged, repository, repository.rpartition("/")[2]


def read_program(text: str) -> tuple[str, tuple[str, ...]]:
    """Read `IMAGE=COMMAND`; raises ValueError that says what is wrong."""
    image, equals, command = text.partition("=")
    words = tuple(shlex.split(command))
    if not image or not equals or not words:
        raise ValueError(f"{text!r} is not IMAGE=COMMAND, such as 'nginx=nginx -g \"daemon off;\"'")
    return image, words
