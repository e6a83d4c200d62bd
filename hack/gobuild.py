"""Build pinned Go programs once, into a cache outside the tree.

A `Toolset` is some programs and the go.mod files that pin them. Its directory's name holds a digest of
all that decides what is built: a new pin is a new directory, so a program there is never of another
version. A program appears there by a rename, so it is whole or absent, whatever interrupts the build.

Environment: ELASTI_CACHE, the cache's root (default: `elasti` in XDG_CACHE_HOME or ~/.cache).
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import FrameType

HEARTBEAT_SECONDS = 20.0
STRIPPED = "-s -w"


class BuildError(Exception):
    """The build cannot go on; the text says what to do about it."""


@dataclass(frozen=True, slots=True)
class Program:
    """One program: its file name, the directory of the go.mod that pins it, its main package."""

    name: str
    module: Path
    package: str
    linker_flags: str = STRIPPED
    tags: str = ""


@dataclass(frozen=True, slots=True)
class Toolset:
    """Programs that are built together, of one release."""

    name: str
    """The directory in the cache that has its versions."""
    title: str
    release: str
    programs: Sequence[Program]
    instead: str = ""
    """What else you can do without Go; follows "install Go" in the message."""

    @property
    def modules(self) -> list[Path]:
        """The directories of its go.mod files, each once."""
        return list(dict.fromkeys(program.module for program in self.programs))

    def directory(self, env: Mapping[str, str]) -> Path:
        """Where these versions live: every input of the build is in the name."""
        flags = dict.fromkeys(program.linker_flags for program in self.programs)
        tags = dict.fromkeys(program.tags for program in self.programs if program.tags)
        inputs = "\0".join([*map(inputs_of, self.modules), *flags, *tags])
        digest = hashlib.sha256(inputs.encode()).hexdigest()[:12]
        return cache_root(env) / self.name / f"{self.release}-{digest}"

    def missing(self, where: Path) -> list[Program]:
        """What has still to be built."""
        return [program for program in self.programs if not (where / program.name).is_file()]


def cache_root(env: Mapping[str, str]) -> Path:
    """Where everything is kept that takes long to make."""
    caches = Path(env.get("XDG_CACHE_HOME") or "~/.cache")
    return Path(env.get("ELASTI_CACHE") or caches / "elasti").expanduser().absolute()


def inputs_of(module: Path) -> str:
    """The pins, and the sources where the program is ours."""
    return "\0".join(path.read_text() for path in [module / "go.mod", *sorted(module.glob("*.go"))])


def pinned(module: Path, pattern: str) -> str:
    """What `pattern`'s group matches in a go.mod."""
    match = re.search(pattern, (module / "go.mod").read_text(), re.MULTILINE)
    if match is None:
        raise BuildError(f"{module / 'go.mod'} has no line like {pattern}")
    return match.group(1)


def pinned_release(module: Path, required: str) -> str:
    """The pinned version of a module that a go.mod requires, as in 'v1.2.3'."""
    return pinned(module, rf"^(?:require |\t){re.escape(required)} (v\S+)")


def as_numbers(version: str) -> tuple[int, ...]:
    """'go1.26.8' or '1.26.0' as something to compare."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def check_go(toolset: Toolset) -> None:
    """Raise unless there is a Go that can build the pins, or fetch one that can."""
    need = max((pinned(m, r"^go ([\d.]+)$") for m in toolset.modules), key=as_numbers)
    advice = f"install Go {need} or newer{toolset.instead}"
    if shutil.which("go") is None:
        raise BuildError(f"no `go` on PATH: {advice}")
    # Asked outside the modules: inside, a Go that is too old may refuse to answer at all.
    found = subprocess.run(
        ["go", "env", "GOVERSION", "GOTOOLCHAIN"],
        cwd="/",
        check=False,  # one so old that it fails here is too old
        stdout=subprocess.PIPE,
        text=True,
    )
    version, toolchain = [*found.stdout.splitlines(), "", ""][:2]
    # From 1.21 on a Go may fetch a newer toolchain by itself, unless it is told to stay local.
    fetches = toolchain not in ("", "local")
    if as_numbers(version) < as_numbers(need) and not fetches:
        raise BuildError(f"{version or 'this Go'} is too old: {advice}")


@contextmanager
def exclusive(where: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Hold the directory against another build; the lock goes with the process, however it ends."""
    where.mkdir(parents=True, exist_ok=True)
    with (where / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another build is at work; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def scratch(where: Path) -> Iterator[Path]:
    """A directory on the cache's file system, so that a rename out of it is atomic.

    It has one fixed name: what a killed build left is swept by the next one, which holds the lock.
    """
    path = where / ".building"
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def postponed() -> Iterator[None]:
    """Let an interruption wait for the end of the block: a program that starts gets its owner first."""
    came: list[int] = []
    usual = {
        number: signal.signal(number, lambda number, _frame: came.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in usual.items():
            signal.signal(number, handler)
    if came:
        raise KeyboardInterrupt


def run(
    command: Sequence[str], name: str, say: Callable[[str], None], *, cwd: Path, env: dict[str, str]
) -> int:
    """The command's exit status; until then, say now and then that it still runs.

    It ends with us, whatever interrupts the wait.
    """
    began = time.monotonic()
    process = None
    try:
        with postponed():
            process = subprocess.Popen(command, cwd=cwd, env=env)
        while True:
            try:
                return process.wait(HEARTBEAT_SECONDS)
            except subprocess.TimeoutExpired:
                say(f"  {name}: {time.monotonic() - began:.0f} s")
    except BaseException:
        if process is not None:
            process.terminate()
            process.wait()
        raise


def compile_to(target: Path, program: Program, say: Callable[[str], None]) -> None:
    """Build one program as the file `target`."""
    command = ["go", "build", "-trimpath", "-ldflags", program.linker_flags]
    command += ["-tags", program.tags] if program.tags else []
    env = {
        **os.environ,
        "CGO_ENABLED": "0",  # static: no C compiler here, no libc wherever the cache is copied
        "GOFLAGS": "-mod=readonly -buildvcs=false",
        "GOWORK": "off",
    }
    command += ["-o", str(target), program.package]
    status = run(command, program.name, say, cwd=program.module, env=env)
    if status != 0:
        raise BuildError(f"go build {program.package} failed with status {status}, see above")


def build(toolset: Toolset, env: Mapping[str, str], say: Callable[[str], None]) -> Path:
    """Build what is missing; return the directory that has it all."""
    where = toolset.directory(env)
    if not toolset.missing(where):
        say(f"already built: {where}")
        return where
    check_go(toolset)
    began = time.monotonic()
    with exclusive(where, say), scratch(where) as tmp:
        todo = toolset.missing(where)
        say(f"building {toolset.title} into {where}")
        say("this takes some minutes, once")
        for number, program in enumerate(todo, start=1):
            say(f"[{number}/{len(todo)}] {program.name}")
            compile_to(tmp / program.name, program, say)
            (tmp / program.name).rename(where / program.name)
    say(f"built in {time.monotonic() - began:.0f} s: {where}")
    return where


def speaker(prefix: str) -> Callable[[str], None]:
    """Tell how far it is, also through a pipe."""
    return lambda line: print(f"{prefix}: {line}", flush=True)


def terminated(_number: int, _frame: FrameType | None) -> NoReturn:
    """Make SIGTERM an exception: the compiler and the scratch directory go as on Ctrl-C."""
    raise KeyboardInterrupt


def reported(prefix: str, work: Callable[[], None]) -> int:
    """Do the work as a command does: the exit status, and a sentence where it fails."""
    signal.signal(signal.SIGTERM, terminated)
    try:
        work()
    except BuildError as error:
        print(f"{prefix}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{prefix}: interrupted; run it again to go on", file=sys.stderr)
        return 130
    return 0


def command(
    prefix: str, usage: str | None, toolset: Callable[[], Toolset], arguments: Sequence[str]
) -> int:
    """Do what the arguments of a toolset's `build` say; the exit status."""
    if arguments not in ([], ["--where"]):
        print(usage, file=sys.stderr)
        return 2

    def work() -> None:
        if arguments:
            print(toolset().directory(os.environ))
        else:
            build(toolset(), os.environ, speaker(prefix))

    return reported(prefix, work)
