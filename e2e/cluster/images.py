"""Images, built here by buildah, and a containerd store that has them unpacked.

No image comes from a registry. An image is built again when its sources have changed; if an older
version was loaded, only its new layers are loaded. Nodes begin with hard links to the store's
files: neither containerd nor the kernel ever changes the files of an image, so that three nodes
cost no additional space.
"""

import fcntl
import hashlib
import importlib.metadata
import io
import json
import platform
import resource
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from e2e import programs
from e2e.cluster import disk
from e2e.cluster.commands import Background, CommandError, run, wait_until
from e2e.cluster.directories import ROOT, cache

BASE = "localhost/millrace-base"
PAUSE = "localhost/millrace-pause:1"
COREDNS = "localhost/millrace-coredns:1"
PROMETHEUS = "localhost/millrace-prometheus:1"
REPOSITORY = "localhost/millrace"
PRODUCT = f"{REPOSITORY}:dev"
VERSION = importlib.metadata.version("millrace")
"""Of this checkout."""
SPARK = f"{REPOSITORY}-spark:dev"
KAFKA_CLIENTS = f"{REPOSITORY}-kafka-clients:dev"
DOCKERFILE = ROOT / "images" / "Dockerfile"
SPARK_DOCKERFILE = ROOT / "spark-on-k8s" / "image" / "Dockerfile"
_KAFKA_DOCKERFILE = ROOT / "e2e" / "kafka_clients" / "Dockerfile"

SUITE = "bookworm"
"""The Debian of the product's image."""
_PACKAGES = "python3,python3-venv,ca-certificates"
_OCI_IMAGE = "application/vnd.oci.image.manifest.v1+json"
_LIMITS = {"nofile": (resource.RLIMIT_NOFILE, 1 << 20), "nproc": (resource.RLIMIT_NPROC, 1 << 15)}
"""With the most that each buildah allows: 1.28 lowers the number of processes for itself."""
_INIT_SOURCE = Path(__file__).with_name("init.c")


def _folder() -> Path:
    return cache() / "images"


def buildah_command(*arguments: str | Path) -> list[str | Path]:
    """Return the command line of a buildah that has the images of this module."""
    places = (f"--root={_folder() / 'storage'}", f"--runroot={_folder() / 'run'}")
    return ["buildah", *places, "--storage-driver=overlay", *arguments]


def limits() -> list[str]:
    """Return the options that give a container of buildah limits that the machine allows.

    buildah 1.39 raises them by itself, also above the hard limits of a machine, and fails there.
    """
    options = []
    for name, (number, most) in _LIMITS.items():
        hard = resource.getrlimit(number)[1]
        limit = most if hard == resource.RLIM_INFINITY else min(most, hard)
        options.append(f"--ulimit={name}={limit}:{limit}")
    return options


def _buildah(*arguments: str | Path) -> str:
    return run(*buildah_command(*arguments), seconds_max=1800.0)


@contextmanager
def _locked() -> Iterator[None]:
    disk.ensure(_folder())
    with (_folder() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _recipes() -> dict[str, str]:
    """Return the sources of each existing image."""
    try:
        recipes: dict[str, str] = json.loads((_folder() / "recipes.json").read_text())
    except FileNotFoundError:
        return {}
    return recipes


def _remember(image: str, recipe: str) -> None:
    (_folder() / "recipes.json").write_text(json.dumps(_recipes() | {image: recipe}))


def init_program() -> Path:
    """Return the first program of machines and pods, compiled once."""
    digest = hashlib.sha256(_INIT_SOURCE.read_bytes() + platform.machine().encode()).hexdigest()
    program = _folder() / f"init-{digest[:12]}"
    if not program.exists():
        with _locked(), tempfile.TemporaryDirectory(dir=_folder()) as made:
            compiled = Path(made, "init")
            run("cc", "-O2", "-Wall", "-Werror", "-static", "-o", compiled, _INIT_SOURCE)
            compiled.rename(program)
    return program


def build_parts() -> None:
    """Build the images that a cluster itself needs, unless they exist."""
    _build_of_one_file(PAUSE, init_program())
    _build_of_one_file(COREDNS, programs.path("coredns"))


def build_prometheus() -> str:
    """Build the image of Prometheus, unless it exists; return its name, here and on nodes."""
    programs.PROMETHEUS.main()
    _build_of_one_file(PROMETHEUS, programs.path("prometheus"))
    return PROMETHEUS


def _build_of_one_file(image: str, program: Path) -> None:
    """Build an image that holds one static program, unless it exists and has this program."""
    with _locked():
        name = "/bin/" + image.partition("-")[2].partition(":")[0]
        recipe = f"{name} {program}"  # Programs have names by their content.
        if _recipes().get(image) == recipe:
            return
        container = _buildah("from", "scratch").strip()
        _buildah("add", "--quiet", "--chmod=0755", container, program, name)
        _buildah("config", f"--entrypoint={json.dumps([name])}", container)
        _buildah("commit", "--quiet", "--rm", container, image)
        _remember(image, recipe)


def build_base(suite: str = SUITE, *more_packages: str) -> str:
    """Build an image of a Debian with Python, unless it exists; return its name.

    Args:
        suite: which Debian. That of the product's image by default.
        more_packages: what it has beside Python.
    """
    packages = ",".join([_PACKAGES, *more_packages])
    recipe = f"{suite} {packages} {platform.machine()}"
    image = f"{BASE}:{suite}-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"
    with _locked():
        if image not in _recipes():
            container = _buildah("from", "scratch").strip()
            root = Path(_buildah("mount", container).strip())
            choices = ("--variant=minbase", f"--include={packages}")
            mirror = (_mirror(),) if _mirror() else ()
            run("debootstrap", *choices, suite, root, *mirror, seconds_max=900.0)
            for rest in ("var/cache/apt", "var/lib/apt/lists", "var/log"):
                shutil.rmtree(root / rest)
                (root / rest).mkdir()
            (root / "etc/apt/sources.list").write_text("")
            _buildah("umount", container)
            path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
            _buildah("config", f"--env={path}", "--cmd=/bin/bash", container)
            _buildah("commit", "--quiet", "--rm", container, image)
            _remember(image, recipe)
    return image


def _mirror() -> str:
    """Return the source of this machine's Debian packages, of any suite; empty: unknown."""
    own = platform.freedesktop_os_release().get("VERSION_CODENAME", SUITE)
    for path in sorted(Path("/etc/apt").glob("sources.list.d/*.sources")):
        lines = path.read_text().splitlines()
        if any(line.startswith("Suites:") and own in line.split() for line in lines):
            return next(line.split()[1] for line in lines if line.startswith("URIs:"))
    return ""


def build_product() -> str:
    """Build the product's image from this checkout, unless it exists; return its name here.

    Nodes know it as `PRODUCT`. Here images of other checkouts may exist too.
    """
    return _build(PRODUCT, DOCKERFILE, BASE_IMAGE=build_base())


def build_spark() -> str:
    """Build the image of Spark's pods, as `build_product` does; nodes know it as `SPARK`."""
    bases = {"BASE_IMAGE": build_base(), "MILLRACE_IMAGE": build_product()}
    return _build(SPARK, SPARK_DOCKERFILE, **bases)


def build_kafka_clients() -> str:
    """Build the image with clients of Kafka; nodes know it as `KAFKA_CLIENTS`."""
    return _build(KAFKA_CLIENTS, _KAFKA_DOCKERFILE, MILLRACE_IMAGE=build_product())


def _build(name: str, dockerfile: Path, **bases: str) -> str:
    """Build the image of a Dockerfile of this checkout, unless it exists; return its name here."""
    with _locked(), tempfile.TemporaryDirectory(dir=_folder()) as made:
        ignored = _ignored_by(dockerfile)
        recipe = _recipe(dockerfile, ignored, bases)
        image = name.replace(":dev", f":{recipe[:12]}")
        if image in _recipes():
            return image
        _buildah(
            *("bud", "--quiet", "--layers", "--isolation=chroot", f"--tag={image}", *limits()),
            *(f"--build-arg={argument}={base}" for argument, base in bases.items()),
            *(f"--ignorefile={ignored}", f"--file={dockerfile}"),
            *build_secrets(Path(made)),
            ROOT,
        )
        _remember(image, recipe)
    return image


def build_release(version: str) -> str:
    """Build the product's image as if it were of another release, unless it exists.

    It has this checkout's code, with another version in its package.
    """
    product = build_product()
    image = f"{product}-{version}"
    with _locked():
        if image not in _recipes():
            container = _buildah("from", product).strip()
            root = Path(_buildah("mount", container).strip(), "opt/millrace/lib")
            (metadata,) = root.glob("python3*/site-packages/millrace-*.dist-info/METADATA")
            lines = metadata.read_text().splitlines(keepends=True)
            lines[lines.index(f"Version: {VERSION}\n")] = f"Version: {version}\n"
            metadata.write_text("".join(lines))
            _buildah("umount", container)
            _buildah("commit", "--quiet", "--rm", container, image)
            _remember(image, f"{_recipes()[product]} {version}")
    return image


def _ignored_by(dockerfile: Path) -> Path:
    return dockerfile.with_name("Dockerfile.dockerignore")


def _recipe(dockerfile: Path, ignored: Path, bases: dict[str, str]) -> str:
    """Return a digest of all sources of an image."""
    digest = hashlib.sha256(json.dumps(bases, sort_keys=True).encode())
    digest.update(dockerfile.read_bytes())
    for name in [line[1:] for line in ignored.read_text().splitlines() if line.startswith("!")]:
        for path in [ROOT / name, *sorted((ROOT / name).rglob("*"))]:
            if path.is_file() and path.parent.name != "__pycache__":
                digest.update(f"{path.relative_to(ROOT)}\0".encode())
                digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def build_secrets(folder: Path) -> list[str]:
    """Return the options that give only a build access to this machine's settings of pip and apt.

    Args:
        folder: for the files of these options, which the build needs.
    """
    write_pip_settings(folder)
    if _mirror():
        Path(folder, "sources.list").write_text(f"deb {_mirror()} {SUITE} main\n")
    return [f"--secret=id={path.name},src={path}" for path in sorted(folder.iterdir())]


def write_pip_settings(folder: Path) -> None:
    """Write the settings of this machine's pip: `pip.conf`, and `authorities.crt` if it has some.

    They are for a container that has the second one in `/run/secrets`.
    """
    listed = run(sys.executable, "-m", "pip", "config", "list")
    pairs = {}
    for line in listed.splitlines():
        name, _, value = line.partition("=")
        pairs[name.rpartition(".")[2]] = value.strip("'")
    authority = pairs.pop("cert", "")
    # The build does not see folders of this machine.
    pairs = {name: value for name, value in pairs.items() if not value.startswith("/")}
    if authority:
        pairs["cert"] = "/run/secrets/authorities.crt"
        shutil.copyfile(authority, folder / "authorities.crt")
    lines = ["[global]", *(f"{name} = {value}" for name, value in pairs.items())]
    (folder / "pip.conf").write_text("\n".join(lines))


def store() -> Path:
    """Return the folder of a containerd that has the images unpacked; no container runs in it."""
    sources = {PAUSE: PAUSE, COREDNS: COREDNS, PRODUCT: build_product()}
    with _locked():
        folder = _folder() / "containerd"
        record = folder.with_suffix(".json")
        try:
            stored = json.loads(record.read_text())
        except FileNotFoundError:
            stored = {}
        wanted = {name: _recipes()[image] for name, image in sources.items()}
        if stored != wanted:
            record.unlink(missing_ok=True)
            changed = [name for name, recipe in wanted.items() if stored.get(name) != recipe]
            try:
                _import_into_store(folder, {name: sources[name] for name in changed})
            except CommandError:
                # It has layers whose snapshots are gone, as after a run that was killed.
                shutil.rmtree(folder)
                _import_into_store(folder, sources)
            record.write_text(json.dumps(wanted))
        return folder


def _import_into_store(folder: Path, sources: dict[str, str]) -> None:
    run_in = _folder() / "import"
    settings, socket = run_in / "containerd.toml", run_in / "containerd.sock"
    containerd = Background(run_in, "containerd", str(settings))
    containerd.end()  # A containerd of a killed run would lock the store.
    shutil.rmtree(run_in, ignore_errors=True)
    run_in.mkdir()
    settings.write_text(
        f'version = 2\nroot = "{folder}"\nstate = "{run_in / "state"}"\n'
        f'disabled_plugins = ["io.containerd.grpc.v1.cri"]\n[grpc]\naddress = "{socket}"\n'
    )
    containerd.start("containerd", "--config", settings)
    try:
        client = ("ctr", f"--address={socket}", "--namespace=k8s.io")
        wait_until(lambda: _answers(*client, "version"), "containerd answers")
        for name, image in sources.items():
            archive = run_in / "image.tar"
            _export(image, name, archive, set(run(*client, "content", "ls", "-q").split()))
            run(*client, "images", "import", archive)
    finally:
        containerd.end()
        shutil.rmtree(run_in)


def export(image: str, name: str, archive: Path, present: Set[str]) -> None:
    """Write an archive of an image for containerd.

    Args:
        image: its name here.
        name: its name in containerd.
        archive: the file.
        present: digests that containerd has already, which are left out.
    """
    with _locked():
        _export(image, name, archive, present)


def _export(image: str, name: str, archive: Path, present: Set[str]) -> None:
    with tempfile.TemporaryDirectory(dir=_folder()) as made:
        # buildah's only format without compression; but it cannot leave layers out.
        whole = Path(made, "whole.tar")
        _buildah("push", "--quiet", image, f"docker-archive:{whole}:{image}")
        with tarfile.open(whole) as parts, tarfile.open(archive, "w") as tar:
            (listed,) = json.loads(_read(parts, "manifest.json"))
            layers: list[dict[str, Any]] = [
                {
                    "mediaType": "application/vnd.oci.image.layer.v1.tar",
                    "digest": f"sha256:{layer.removesuffix('.tar')}",
                    "size": parts.getmember(layer).size,
                }
                for layer in listed["Layers"]
            ]
            configuration = _read(parts, listed["Config"])
            manifest = {
                "schemaVersion": 2,
                "mediaType": _OCI_IMAGE,
                "config": _add_blob(tar, configuration, "application/vnd.oci.image.config.v1+json"),
                "layers": layers,
            }
            described = _add_blob(tar, json.dumps(manifest).encode(), _OCI_IMAGE)
            described["annotations"] = {"io.containerd.image.name": name}
            index = {"schemaVersion": 2, "manifests": [described]}
            _add(tar, "index.json", json.dumps(index).encode())
            _add(tar, "oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
            for file, layer in zip(listed["Layers"], layers, strict=True):
                if layer["digest"] not in present:
                    member = parts.getmember(file)
                    content = parts.extractfile(member)
                    member.name = _path(layer["digest"])
                    tar.addfile(member, content)


def _read(tar: tarfile.TarFile, path: str) -> bytes:
    file = tar.extractfile(path)
    assert file is not None, "a plain file"
    return file.read()


def _add_blob(tar: tarfile.TarFile, content: bytes, media_type: str) -> dict[str, Any]:
    """Add a blob; return its descriptor."""
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    _add(tar, _path(digest), content)
    return {"mediaType": media_type, "digest": digest, "size": len(content)}


def _path(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def _add(tar: tarfile.TarFile, path: str, content: bytes) -> None:
    described = tarfile.TarInfo(path)
    described.size = len(content)
    tar.addfile(described, io.BytesIO(content))


def _answers(*command: str) -> bool:
    try:
        run(*command)
    except CommandError:
        return False
    return True


def clone_store(destination: Path) -> None:
    """Give a node a store of its own, unless it has one."""
    if destination.exists():
        return
    source = store()
    destination.parent.mkdir(parents=True, exist_ok=True)
    with _locked(), tempfile.TemporaryDirectory(dir=destination.parent) as made:
        clone = Path(made, "clone")
        try:
            run("cp", "--archive", "--link", source, clone)
        except CommandError:  # It is on another file system.
            shutil.rmtree(clone)
            run("cp", "--archive", source, clone)
        for database in source.rglob("*.db"):  # Only these files are ever written to.
            linked = clone / database.relative_to(source)
            linked.unlink()
            shutil.copy2(database, linked)
        clone.rename(destination)
