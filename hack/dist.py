"""Everything of a release that can be made on this machine, byte for byte the same each time.

    python hack/dist.py build [DIRECTORY]   wheels, sdists, chart, the image's build context, notes, SBOM and
                                            checksums, into dist/
    python hack/dist.py try                 build twice and compare; install the wheels and run the demo
    python hack/dist.py version             write VERSION into elasti-operator and the chart
    python hack/dist.py tag TAG             print the package that a tag releases, and its version

The product's version is in VERSION; that of each library in its `_version.py`. A tag is v0.3.0 for the
product, and kubeloop-v0.3.0 for a library.

Times in archives are those of the last commit (SOURCE_DATE_EPOCH, unless it is set). The SBOM lists what
the image has: elasti-operator, and what it needs, in the versions of requirements-dev.lock.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import uuid
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("kubeloop", "kubeloop-kinds", "devkube", "elasti")
PRODUCT = "elasti-operator"
LOCK = ROOT / "requirements-dev.lock"
CHART = ROOT / "charts" / "elasti"
VERSION = r'(?<=__version__ = ")[^"]+'
PLACES = {
    "packages/elasti/src/elasti/_version.py": VERSION,
    "charts/elasti/Chart.yaml": r"(?<=^version: )\S+|(?<=^appVersion: )\S+",
}
"""Where the product's version is written, and how it is found there."""


def version(package: str = "elasti") -> str:
    """Return a package's version."""
    if package == "elasti":
        return (ROOT / "VERSION").read_text().strip()
    path = ROOT / "packages" / package / "src" / package.replace("-", "_") / "_version.py"
    return str(re.findall(VERSION, path.read_text())[0])


def released(tag: str) -> str:
    """Return the package that a tag releases; ends the program if the tag has another version."""
    found = re.fullmatch(r"(?:([a-z-]+)-)?v(\d\S*)", tag)
    package = (found[1] or "elasti") if found else ""
    if not found or package not in PACKAGES or found[2] != version(package):
        wanted = [f"{name}-v{version(name)}" for name in PACKAGES[:-1]]
        raise SystemExit(f"dist: tag {tag!r} is none of v{version()}, {', '.join(wanted)}")
    return package


def stamp() -> None:
    """Write the product's version everywhere."""
    for place, pattern in PLACES.items():
        path = ROOT / place
        path.write_text(re.sub(pattern, version(), path.read_text(), flags=re.MULTILINE))


def epoch() -> int:
    """The time that all archives have."""
    if given := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(given)
    command = ["git", "-C", str(ROOT), "-c", "safe.directory=*", "log", "-1", "--format=%ct"]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def build(directory: Path) -> None:
    """Make everything."""
    directory.mkdir(parents=True, exist_ok=True)
    for stale in directory.iterdir():
        stale.unlink()
    env = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch())}
    for name in PACKAGES:
        subprocess.run(
            [
                sys.executable,
                "-m",
                "hatchling",
                "build",
                "-t",
                "sdist",
                "-t",
                "wheel",
                "-d",
                directory,
            ],
            cwd=ROOT / "packages" / name,
            env=env,
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        title = f"{name.replace('-', '_')}-{version(name)}-notes.md"
        (directory / title).write_text(notes(name))
    package_chart(directory)
    package_context(directory)
    name = f"{PRODUCT}-{version()}.cdx.json"
    (directory / name).write_text(json.dumps(sbom(), indent=2) + "\n")
    sums = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
        for path in sorted(directory.iterdir())
    ]
    (directory / "SHA256SUMS").write_text("".join(sums))


def package_chart(directory: Path) -> None:
    """Let Helm package the chart, then give all files one time: Helm takes the clock's."""
    where = subprocess.run(
        [ROOT / "hack/charttools/build", "--where"], check=True, capture_output=True, text=True
    ).stdout.strip()
    helm = Path(where) / "helm"
    if not helm.is_file():
        raise SystemExit("dist: no Helm: run `make charttools` (once, needs Go)")
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run(
            [helm, "package", CHART, "--destination", scratch],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        (made,) = Path(scratch).iterdir()
        with (
            tarfile.open(made) as source,
            (directory / made.name).open("wb") as file,
            gzip.GzipFile("", "wb", fileobj=file, mtime=epoch()) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as target,
        ):
            for member in sorted(source.getmembers(), key=lambda item: item.name):
                member.mtime = epoch()
                member.pax_headers = {}
                target.addfile(member, source.extractfile(member))


def notes(package: str) -> str:
    """Return what the changelog says of a package's version."""
    place = ROOT if package == "elasti" else ROOT / "packages" / package
    sections = re.split(r"^## ", (place / "CHANGELOG.md").read_text(), flags=re.MULTILINE)[1:]
    for title in (version(package), "Unreleased"):
        for section in sections:
            first, _, text = section.partition("\n")
            if first.split()[0] == title:
                return text.strip() + "\n"
    raise SystemExit(f"dist: the changelog of {package} has no section {version(package)}")


def context() -> list[str]:
    """Return the files that `docker build` sends: the Dockerfile, and what it copies but for tests."""
    copied = re.findall(
        r"^COPY (?!--from)(.+) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE
    )
    wanted = ["Dockerfile", *(name for line in copied for name in line.split())]
    command = ["git", "-C", str(ROOT), "-c", "safe.directory=*", "ls-files", "-z", "--", *wanted]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\0")
    return sorted(name for name in listed if name and not re.match("packages/[^/]+/tests/", name))


def package_context(directory: Path) -> None:
    """Pack what the image is built from: docker build - < elasti-VERSION-image.tar.gz."""
    path = directory / f"elasti-{version()}-image.tar.gz"
    with (
        path.open("wb") as file,
        gzip.GzipFile("", "wb", fileobj=file, mtime=epoch()) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as target,
    ):
        for name in context():
            member = target.gettarinfo(ROOT / name, name)
            member.mtime, member.uid, member.gid, member.uname, member.gname = epoch(), 0, 0, "", ""
            member.mode = 0o755 if member.mode & 0o100 else 0o644
            with (ROOT / name).open("rb") as content:
                target.addfile(member, content)


def locked() -> dict[str, str]:
    """The pinned versions, by name."""
    pins = re.findall(r"^([\w.-]+)==([^\s;]+)", LOCK.read_text(), re.MULTILINE)
    return {canonicalize_name(name): pin for name, pin in pins}


def needed(name: str, extras: frozenset[str] = frozenset()) -> set[str]:
    """A distribution and all that it needs here, without its optional parts."""
    found: set[str] = set()
    todo = [(canonicalize_name(name), extras)]
    while todo:
        one, wanted = todo.pop()
        if one in found:
            continue
        found.add(one)
        for line in metadata.requires(one) or ():
            needs = Requirement(line)
            choices = wanted or {""}
            if needs.marker is None or any(needs.marker.evaluate({"extra": c}) for c in choices):
                todo.append((canonicalize_name(needs.name), frozenset(needs.extras)))
    return found


def sbom() -> dict[str, object]:
    """What the image has, as CycloneDX 1.6."""
    pins = {**locked(), "kubeloop": version("kubeloop"), PRODUCT: version()}
    parts = [
        {
            "type": "library",
            "bom-ref": f"pkg:pypi/{name}@{pins[name]}",
            "name": name,
            "version": pins[name],
            "purl": f"pkg:pypi/{name}@{pins[name]}",
        }
        for name in sorted(needed(PRODUCT))
    ]
    (product,) = (part for part in parts if part["name"] == PRODUCT)
    refs = [part["bom-ref"] for part in parts if part is not product]
    # Of the content, so that the same content has the same number.
    serial = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(parts))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(epoch(), UTC).isoformat(),
            "component": {**product, "type": "application"},
        },
        "components": [part for part in parts if part is not product],
        "dependencies": [{"ref": product["bom-ref"], "dependsOn": refs}],
    }


def try_it() -> None:
    """Build twice, compare; install the wheels where nothing is, and run the demo from there."""
    with tempfile.TemporaryDirectory() as scratch:
        one, other, venv = (Path(scratch) / name for name in ("one", "other", "venv"))
        build(one)
        build(other)
        names = sorted(path.name for path in one.iterdir())
        for name in names:
            if (one / name).read_bytes() != (other / name).read_bytes():
                raise SystemExit(f"dist: two builds of {name} differ")
        print(f"dist: two builds are the same: {', '.join(names)}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
        wheels = [str(path) for path in one.glob("*.whl")]
        # The wheels have no hashes in a lock, and pip wants them for all or for none.
        pins = Path(scratch) / "pins.txt"
        pins.write_text("".join(f"{name}=={pin}\n" for name, pin in locked().items()))
        pip = [str(venv / "bin/pip"), "install", "--quiet", f"--constraint={pins}", *wheels]
        subprocess.run(pip, check=True)
        env = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
        env["PATH"] = f"{venv / 'bin'}:{env['PATH']}"
        subprocess.run([venv / "bin" / "elasti", "demo"], check=True, cwd=scratch, env=env)


def main(arguments: list[str]) -> None:
    """Do what the arguments say."""
    match arguments:
        case ["build", *place] if len(place) < 2:  # one, or the usual
            build(Path(place[0]) if place else ROOT / "dist")
        case ["try"]:
            try_it()
        case ["version"]:
            stamp()
        case ["tag", tag]:
            package = released(tag)
            print(f"package={package}\nversion={version(package)}")
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
