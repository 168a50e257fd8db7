"""Images, made here by buildah, and a store of containerd's that has them unpacked.

Nothing comes from a registry of images. What each image is made from names it, so that it is made
once. Nodes get the store by hard links: neither containerd nor the kernel ever changes what an
image has brought, so that three nodes have it for the price of none.
"""

import fcntl
import hashlib
import json
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e import programs
from e2e.cluster.commands import Background, CommandError, run, wait_until
from e2e.cluster.places import ROOT, cache

BASE = "localhost/millrace-base"
PAUSE = "localhost/millrace-pause:1"
COREDNS = "localhost/millrace-coredns:1"
PRODUCT = "localhost/millrace:dev"

_SUITE = "bookworm"
_PACKAGES = "python3,python3-venv,ca-certificates"
_INIT_SOURCE = Path(__file__).with_name("init.c")


def _folder() -> Path:
    return cache() / "images"


def _buildah(*arguments: str | Path) -> str:
    places = (f"--root={_folder() / 'storage'}", f"--runroot={_folder() / 'run'}")
    return run("buildah", *places, "--storage-driver=overlay", *arguments, seconds_max=1800.0)


@contextmanager
def _locked() -> Iterator[None]:
    _folder().mkdir(parents=True, exist_ok=True)
    with (_folder() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _id(image: str) -> str:
    """Return the id of an image; empty: it is not there."""
    try:
        return _buildah("inspect", "--type=image", "--format={{.FromImageID}}", image).strip()
    except CommandError:
        return ""


def init_program() -> Path:
    """Return the program that machines and pods begin with, compiled once."""
    digest = hashlib.sha256(_INIT_SOURCE.read_bytes() + platform.machine().encode()).hexdigest()
    program = _folder() / f"init-{digest[:12]}"
    if not program.exists():
        with _locked(), tempfile.TemporaryDirectory(dir=_folder()) as made:
            compiled = Path(made, "init")
            run("cc", "-O2", "-Wall", "-Werror", "-static", "-o", compiled, _INIT_SOURCE)
            compiled.rename(program)
    return program


def build_parts() -> None:
    """Build the images that a cluster itself needs, where they are not there yet."""
    _build_of_one_file(PAUSE, init_program())
    _build_of_one_file(COREDNS, programs.path("coredns"))


def _build_of_one_file(image: str, program: Path) -> None:
    """Build an image that holds one static program, unless it is there and of this one."""
    with _locked():
        label = program.name if program.parent == _folder() else program.parent.name
        labels = '{{index .OCIv1.Config.Labels "made-from"}}'
        try:
            if _buildah("inspect", "--type=image", f"--format={labels}", image).strip() == label:
                return
        except CommandError:
            pass
        container = _buildah("from", "scratch").strip()
        name = "/" + image.partition("-")[2].partition(":")[0]
        _buildah("add", "--quiet", "--chmod=0755", container, program, name)
        _buildah(
            "config", f"--label=made-from={label}", f"--entrypoint={json.dumps([name])}", container
        )
        _buildah("commit", "--quiet", "--rm", container, image)


def build_base() -> str:
    """Build the image that the product's image is built on, unless it is there; return its name."""
    recipe = f"{_SUITE} {_PACKAGES} {platform.machine()}"
    image = f"{BASE}:{_SUITE}-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"
    with _locked():
        if not _id(image):
            container = _buildah("from", "scratch").strip()
            root = Path(_buildah("mount", container).strip())
            choices = ("--variant=minbase", f"--include={_PACKAGES}")
            mirror = (_mirror(),) if _mirror() else ()
            run("debootstrap", *choices, _SUITE, root, *mirror, seconds_max=900.0)
            for rest in ("var/cache/apt", "var/lib/apt/lists", "var/log"):
                shutil.rmtree(root / rest)
                (root / rest).mkdir()
            (root / "etc/apt/sources.list").write_text("")
            _buildah("umount", container)
            path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
            _buildah("config", f"--env={path}", "--cmd=/bin/bash", container)
            _buildah("commit", "--quiet", "--rm", container, image)
    return image


def _mirror() -> str:
    """Return where this machine itself gets its Debian packages from; empty: unknown."""
    for path in sorted(Path("/etc/apt").glob("sources.list.d/*.sources")):
        lines = path.read_text().splitlines()
        if any(line.startswith("Suites:") and _SUITE in line.split() for line in lines):
            return next(line.split()[1] for line in lines if line.startswith("URIs:"))
    return ""


def build_product() -> None:
    """Build the product's image from this checkout."""
    base = build_base()
    with _locked(), tempfile.TemporaryDirectory(dir=_folder()) as made:
        secrets = []
        for name, content in _pip_settings().items():
            Path(made, name).write_bytes(content)
            secrets.append(f"--secret=id={name},src={Path(made, name)}")
        _buildah(
            *("bud", "--quiet", "--layers", "--isolation=chroot", f"--build-arg=BASE_IMAGE={base}"),
            *secrets,
            f"--tag={PRODUCT}",
            f"--ignorefile={ROOT / 'images' / 'Dockerfile.dockerignore'}",
            f"--file={ROOT / 'images' / 'Dockerfile'}",
            ROOT,
        )


def _pip_settings() -> dict[str, bytes]:
    """Return what this machine's pip goes by, as files that the build alone sees."""
    listed = run(sys.executable, "-m", "pip", "config", "list")
    pairs = {}
    for line in listed.splitlines():
        name, _, value = line.partition("=")
        pairs[name.rpartition(".")[2]] = value.strip("'")
    authority = pairs.pop("cert", "")
    # Folders of this machine the build does not see.
    pairs = {name: value for name, value in pairs.items() if not value.startswith("/")}
    files = {}
    if authority:
        pairs["cert"] = "/run/secrets/authorities.crt"
        files["authorities.crt"] = Path(authority).read_bytes()
    files["pip.conf"] = "\n".join(["[global]", *(f"{k} = {v}" for k, v in pairs.items())]).encode()
    return files


def store() -> Path:
    """Return the folder of a containerd that has the images, unpacked; nothing runs in it."""
    with _locked():
        folder = _folder() / "containerd"
        record = folder.with_suffix(".json")
        ids = {image: _id(image) for image in (PAUSE, COREDNS, PRODUCT)}
        try:
            known = json.loads(record.read_text())
        except FileNotFoundError:
            known = {}
        if known != ids:
            changed = [image for image, id_ in ids.items() if id_ and known.get(image) != id_]
            record.unlink(missing_ok=True)
            _import_into_store(folder, changed)
            record.write_text(json.dumps(ids))
        return folder


def _import_into_store(folder: Path, images: list[str]) -> None:
    with tempfile.TemporaryDirectory() as state:
        socket = f"{state}/containerd.sock"
        settings = Path(state, "containerd.toml")
        settings.write_text(
            f'version = 2\nroot = "{folder}"\nstate = "{state}/state"\n'
            f'disabled_plugins = ["io.containerd.grpc.v1.cri"]\n[grpc]\naddress = "{socket}"\n'
        )
        containerd = Background(Path(state), "containerd", str(settings))
        containerd.start("containerd", "--config", settings)
        try:
            client = ("ctr", f"--address={socket}", "--namespace=k8s.io")
            wait_until(lambda: _answers(*client, "version"), "containerd answers")
            for image in images:
                archive = export(image, Path(state, "image.tar"))
                run(*client, "images", "import", "--base-name=localhost", archive)
                archive.unlink()
        finally:
            containerd.end()


def export(image: str, archive: Path) -> Path:
    """Write an image to a file that containerd can import."""
    _buildah("push", "--quiet", image, f"docker-archive:{archive}:{image}")
    return archive


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
        except CommandError:  # Another file system.
            shutil.rmtree(clone)
            run("cp", "--archive", source, clone)
        for database in source.rglob("*.db"):  # All that is ever written to.
            linked = clone / database.relative_to(source)
            linked.unlink()
            shutil.copy2(database, linked)
        clone.rename(destination)
