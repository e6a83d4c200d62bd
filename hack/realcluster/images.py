"""The images of a real cluster, made without any registry, as archives that containerd imports.

`stock` makes those that only the pins decide, into the cache: the pods' pause, CoreDNS, an app that can
sleep, servers of Debian's (PostgreSQL, Redis, gRPC), and under the name python:3.13-slim a stand-in for
that image, which an offline machine cannot pull: Debian trixie (what the real one is based on) with
Debian's own Python 3.13. Its label says so.
`project` builds the project's image from its own Dockerfile on that stand-in, into the tree's `build`.

Everything is kept under a digest of what it is made of, and appears by a rename.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hack.gobuild import BuildError, cache_root, exclusive, run, scratch, speaker
from hack.realcluster.programs import (
    BUILDING,
    ESSENTIAL,
    HERE,
    ROOT,
    ProgramsMissing,
    require,
    toolsets,
    which,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

BASE = "docker.io/library/python:3.13-slim"
PAUSE = "registry.k8s.io/pause:3.10"
APP = "localhost/app:dev"
PROJECT = "localhost/elasti:dev"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
PACKAGES = "ca-certificates,python3,python3-venv,python3-pip,curl,iproute2"
SERVERS = "localhost/servers:dev"
SERVER_PACKAGES = "postgresql,redis,nginx-light,python3-grpcio,python3-aiohttp,curl"
UNNEEDED = ("doc", "man", "locale")


def bootstrap(packages: str, *more: str) -> tuple[str, ...]:
    """The command that makes a root file system of Debian's packages; its last word is to follow."""
    return (
        "mmdebstrap",
        "--quiet",
        "--variant=minbase",
        f"--include={packages}",
        '--aptopt=Acquire::Languages "none"',
        *(f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in UNNEEDED),
        *more,
        "trixie",
    )


BOOTSTRAP = bootstrap(PACKAGES)
# PostgreSQL refuses a user without a name.
SERVER_USER = '--customize-hook=echo app:x:65532:65532::/tmp:/bin/sh >> "$1/etc/passwd"'
# A compiler for queries, as large as everything else together.
NO_JIT = "--dpkgopt=path-exclude=/usr/lib/*/libLLVM*"
SERVER_BOOTSTRAP = bootstrap(SERVER_PACKAGES, SERVER_USER, NO_JIT)
BASE_FILE = """\
FROM scratch
ADD rootfs.tar /
LABEL standin="Debian trixie and its python3; NOT docker.io/library/python:3.13-slim"
ENV PATH=/usr/local/bin:/usr/local/sbin:/usr/bin:/usr/sbin:/bin:/sbin LANG=C.UTF-8
CMD ["python3"]
"""
PROGRAM_FILE = 'FROM scratch\nCOPY {0} /{0}\nUSER 65532:65532\nENTRYPOINT ["/{0}"]\n'
# As root, with no capability but the one that its port needs: its pod says so.
COREDNS_FILE = 'FROM scratch\nCOPY coredns /coredns\nENTRYPOINT ["/coredns"]\n'
APP_LINES = """\
COPY app /app
WORKDIR /app
ENV PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
CMD ["python3", "-m", "tests.e2e.app"]
"""
APP_FILE = f"FROM {BASE}\n{APP_LINES}"
SERVERS_FILE = f"FROM scratch\nADD rootfs.tar /\nENV LANG=C.UTF-8\n{APP_LINES}"
# The app that the end-to-end tests count requests with.
APP_SOURCES = ("tests/e2e/app.py", "tests/e2e/prober/__init__.py", "tests/e2e/prober/contract.py")

say = speaker("realcluster: images")


def coredns_tag() -> str:
    """CoreDNS under the name that its users know."""
    return f"registry.k8s.io/coredns/coredns:{toolsets()['coredns'].release}"


def program_tag(name: str) -> str:
    """The image of a program that is built only when it is asked for."""
    return f"localhost/{name}:{toolsets()[name].release}"


@dataclass(frozen=True, slots=True)
class Stock:
    """One image whose content the pins decide: its archive's name, its tag, how it is made."""

    name: str
    tag: str
    containerfile: str
    sources: tuple[tuple[str, Path], ...]
    """The files that it adds to what it stands on, by their names in the context."""
    rootfs: tuple[str, ...] = ()
    """The command that makes its rootfs.tar, where it has one."""


def stock_images(env: Mapping[str, str]) -> list[Stock]:
    """Those that every node imports."""
    tools = {n: ((n, toolsets()[n].directory(env) / n),) for n in ("pause", "coredns")}
    app = tuple((f"app/{name}", ROOT / name) for name in APP_SOURCES)
    return [
        Stock("pause", PAUSE, PROGRAM_FILE.format("pause"), tools["pause"]),
        Stock("coredns", coredns_tag(), COREDNS_FILE, tools["coredns"]),
        Stock("app", APP, APP_FILE, app),
    ]


def extra_images(env: Mapping[str, str]) -> list[Stock]:
    """Those that are imported where they are used: servers, and programs that were asked for."""
    names = [name for name in toolsets() if name not in ESSENTIAL]
    built = {name: toolsets()[name].directory(env) / name for name in names}
    app = tuple((f"app/{name}", ROOT / name) for name in APP_SOURCES)
    servers = (*app, ("app/echo.py", HERE / "servers" / "echo.py"))
    return [
        Stock("servers", SERVERS, SERVERS_FILE, servers, SERVER_BOOTSTRAP),
        *(
            Stock(name, program_tag(name), PROGRAM_FILE.format(name), ((name, path),))
            for name, path in built.items()
            if path.exists()
        ),
    ]


def digest(*parts: str | bytes) -> str:
    """A short name for all of it."""
    whole = hashlib.sha256()
    for part in parts:
        raw = part.encode() if isinstance(part, str) else part
        whole.update(len(raw).to_bytes(8, "big") + raw)
    return whole.hexdigest()[:12]


def base_directory(env: Mapping[str, str]) -> Path:
    """Where the stand-in's root file system is, and the storage of images that stand on it."""
    return cache_root(env) / "realcluster" / "base" / f"trixie-{digest(*BOOTSTRAP, BASE_FILE)}"


def archive(image: Stock, env: Mapping[str, str]) -> Path:
    """The file that an image is (or would be) in."""
    # A built program's directory has its version in its name; our own files have their texts.
    origins = [p.read_bytes() if p.suffix == ".py" else str(p) for _, p in image.sources]
    base = base_directory(env)
    name = digest(base.name, image.tag, image.containerfile, *image.rootfs, *origins)
    return base / f"{image.name}-{name}.tar"


def command(*words: str) -> None:
    """Run one step to its end, with a line now and then; BuildError where it fails.

    No mount that it makes outlives it, however it ends.
    """
    program = which(words[0])
    assert program is not None, "the packages have been looked for"
    alone = ["unshare", "--mount", "--propagation=private", program, *words[1:]]
    status = run(alone, words[0], say, cwd=ROOT, env=dict(os.environ))
    if status != 0:
        raise BuildError(f"{shlex.join(words)} failed with status {status}, see above")


def buildah(storage: Path, *words: str) -> None:
    """Run buildah on images of our own: the machine's are not touched."""
    where = ["--root", str(storage / "storage"), "--runroot", str(storage / "run")]
    command("buildah", *where, "--storage-driver", "overlay", *words)


def save(storage: Path, tag: str, target: Path) -> None:
    """Write an image as an archive that is whole or absent."""
    target.parent.mkdir(parents=True, exist_ok=True)
    half = target.with_suffix(".half")
    half.unlink(missing_ok=True)
    buildah(storage, "push", "--quiet", tag, f"docker-archive:{half}:{tag}")
    half.rename(target)


def link_rootfs(bootstrapping: tuple[str, ...], where: Path, context: Path) -> None:
    """Put a root file system of Debian's packages into a context; it is made once."""
    rootfs = where / f"rootfs-{digest(*bootstrapping)}.tar"
    if not rootfs.exists():
        say("making a root file system from Debian's packages")
        half = rootfs.with_suffix(".half.tar")
        half.unlink(missing_ok=True)
        command(*bootstrapping, str(half))
        half.rename(rootfs)
    os.link(rootfs, context / "rootfs.tar")


def make_base(where: Path, tmp: Path) -> None:
    """The stand-in, in the storage."""
    context = tmp / "base"
    context.mkdir()
    link_rootfs(BOOTSTRAP, where, context)
    (context / "Dockerfile").write_text(BASE_FILE)
    buildah(where, "bud", "--quiet", "--pull-never", "--tag", BASE, str(context))
    (where / ".made").touch()


def stock(env: Mapping[str, str]) -> list[Path]:
    """Make what is missing of the stock images and the extra ones; return all the archives."""
    wanted = {image: archive(image, env) for image in (*stock_images(env), *extra_images(env))}
    where = base_directory(env)
    if (where / ".made").exists() and all(path.exists() for path in wanted.values()):
        say(f"already made: {where}")
        return list(wanted.values())
    require(BUILDING)
    began = time.monotonic()
    with exclusive(where, say), scratch(where) as tmp:
        if not (where / ".made").exists():
            make_base(where, tmp)
        for image, path in wanted.items():
            if not path.exists():
                make(image, path, where, tmp)
    say(f"made in {time.monotonic() - began:.0f} s: {where}")
    return list(wanted.values())


def make(image: Stock, target: Path, storage: Path, tmp: Path) -> None:
    """Build one stock image and write its archive."""
    context = tmp / f"context-{image.name}"
    context.mkdir()
    for name, source in image.sources:
        (context / name).parent.mkdir(parents=True, exist_ok=True)
        (context / name).write_bytes(source.read_bytes())
        (context / name).chmod(0o755)
    if image.rootfs:
        link_rootfs(image.rootfs, storage, context)
    (context / "Dockerfile").write_text(image.containerfile)
    buildah(storage, "bud", "--quiet", "--pull-never", "--tag", image.tag, str(context))
    save(storage, image.tag, target)


def copied_files(root: Path) -> Iterator[Path]:
    """What the Dockerfile copies out of the tree, and what decides how."""
    yield from (root / "Dockerfile", root / ".dockerignore")
    patterns = (root / ".dockerignore").read_text().split()
    text = (root / "Dockerfile").read_text().replace("\\\n", " ")
    for line in re.findall(r"^COPY (?!--from)(.*)$", text, re.MULTILINE):
        for source in shlex.split(line)[:-1]:
            for path in sorted([root / source, *(root / source).rglob("*")]):
                if path.is_file() and not is_ignored(str(path.relative_to(root)), patterns):
                    yield path


def is_ignored(path: str, patterns: list[str]) -> bool:
    """What a .dockerignore says: the last line that matches the path, or a directory it is in."""
    ignored = False
    for pattern in patterns:
        words = re.split(r"(\*\*/|\*|\?)", pattern.removeprefix("!"))
        wild = {"**/": "(?:.*/)?", "*": "[^/]*", "?": "[^/]"}
        if re.fullmatch("".join(wild.get(w, re.escape(w)) for w in words) + "(/.*)?", path):
            ignored = not pattern.startswith("!")
    return ignored


def project_archive(env: Mapping[str, str], root: Path = ROOT) -> Path:
    """The file that the project's image is (or would be) in, for the tree as it is now."""
    parts = [
        part for p in copied_files(root) for part in (str(p.relative_to(root)), p.read_bytes())
    ]
    name = f"elasti-{digest(base_directory(env).name, *parts)}.tar"
    return root / "build" / "realcluster-image" / name


def project(env: Mapping[str, str]) -> Path:
    """Build the project's image if the tree has changed; return its archive."""
    target, storage = project_archive(env), base_directory(env)
    if target.exists():
        say(f"already made: {target}")
        return target
    stock(env)
    began = time.monotonic()
    with exclusive(storage, say), scratch(storage) as tmp:
        settings = tmp / "pip.conf"
        settings.write_text(pip_settings(env))
        # The Dockerfile is used as it is. The volumes are there only while its RUN lines run: this
        # machine's certificates and package index, which may be a mirror's.
        shared = {CERTIFICATES: CERTIFICATES, settings: Path("/etc/pip.conf")}
        volumes = [f"--volume={here}:{there}:ro" for here, there in shared.items() if here.exists()]
        runtime = ["--network=host", "--isolation=oci", f"--runtime={which('runc')}"]
        # What a killed build left, and what the image before this one was made of.
        buildah(storage, "rm", "--all")
        buildah(storage, "bud", "--pull-never", *runtime, *volumes, "--tag", PROJECT, str(ROOT))
        buildah(storage, "rmi", "--prune")
        for old in target.parent.glob("elasti-*.tar"):
            old.unlink()
        save(storage, PROJECT, target)
    size = target.stat().st_size / 1e6
    say(f"built {PROJECT} in {time.monotonic() - began:.0f} s, {size:.0f} MB with its base")
    return target


def extra_archive(name: str, env: Mapping[str, str]) -> Path:
    """The archive of an image that no node imports by itself; or ProgramsMissing."""
    found = [archive(image, env) for image in extra_images(env) if image.name == name]
    if not found or not found[0].exists():
        raise ProgramsMissing(f"no image {name}: run `make realcluster COMPONENTS=all`")
    return found[0]


def ready(env: Mapping[str, str]) -> list[Path]:
    """Every archive that a node imports, the project's of the tree as it is; or ProgramsMissing."""
    found = [*(archive(image, env) for image in stock_images(env)), project_archive(env)]
    absent = [path.name for path in found if not path.exists()]
    if absent:
        raise ProgramsMissing(f"no image {', '.join(absent)}: run `make realcluster`")
    return found


def pip_settings(env: Mapping[str, str]) -> str:
    """A pip.conf for the build: the machine's certificates, and its index where it names one."""
    lines = ["[global]", f"cert = {CERTIFICATES}"] if CERTIFICATES.exists() else ["[global]"]
    index = env.get("PIP_INDEX_URL")
    return "\n".join([*lines, *([f"index-url = {index}"] if index else [])]) + "\n"
