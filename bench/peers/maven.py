"""Fetches Apache Kafka, and Spark's source for it, by Maven, and finds the JDK that runs them.

The machine's JDK 17+ and Maven are used. If they are missing, Debian's packages are installed as
root or by password-less sudo; without these rights the error message has the exact command.
"""

import os
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from bench.directories import cache_directory
from bench.peers.trust_store import maven_options
from demo.spark_program import JAVA_VERSION_MIN, java_version_of

KAFKA_VERSION = "4.1.1"
KAFKA_ARTIFACTS = tuple(
    f"org.apache.kafka:{name}:{KAFKA_VERSION}" for name in ("kafka_2.13", "kafka-tools")
)
SPARK_VERSION = "4.2.0"
SPARK_KAFKA_ARTIFACTS = (
    f"org.apache.spark:spark-sql-kafka-0-10_2.13:{SPARK_VERSION}",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.1",
    "org.apache.commons:commons-pool2:2.12.1",
)
"""Without their dependencies: PySpark has those."""
APT_PACKAGES = "default-jre-headless maven"
INSTALL_TIMEOUT_S = 1200

POM = """\
<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>bench</groupId><artifactId>peer</artifactId><version>1</version>
  <dependencies>{dependencies}</dependencies>
</project>
"""
DEPENDENCY = (
    "<dependency><groupId>{group}</groupId>"
    "<artifactId>{artifact}</artifactId><version>{version}</version>{exclusions}</dependency>"
)
NO_MORE = (
    "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
)


class PeerMissingError(Exception):
    """The peer is not available here; the message has the command that helps."""


@cache
def class_path() -> str:
    """Return the Java class path of Kafka's broker and tools, fetched at the first call.

    Raises:
        PeerMissingError: no JDK or Maven and no right to install them, or the fetch failed.
    """
    libraries = fetched(f"kafka-{KAFKA_VERSION}", KAFKA_ARTIFACTS)
    return f"{libraries}/*"


@cache
def spark_kafka_jars() -> list[Path]:
    """Return the jars of Spark's source and sink for Kafka, fetched at the first call.

    Raises:
        PeerMissingError: as `class_path`.
    """
    libraries = fetched(
        f"spark-kafka-{SPARK_VERSION}", SPARK_KAFKA_ARTIFACTS, with_dependencies=False
    )
    return sorted(libraries.glob("*.jar"))


def fetched(name: str, artifacts: Sequence[str], *, with_dependencies: bool = True) -> Path:
    """Return the directory of the jars of artifacts, `group:artifact:version` each.

    Args:
        name: of their directory, in the cache.
        with_dependencies: whether the jars that they need are there, too.

    Raises:
        PeerMissingError: as `class_path`.
    """
    java()
    directory = cache_directory() / name
    complete = directory / "complete"
    if not complete.exists():
        directory.mkdir(exist_ok=True)
        dependencies = "".join(
            DEPENDENCY.format(
                group=group,
                artifact=artifact,
                version=version,
                exclusions="" if with_dependencies else NO_MORE,
            )
            for group, artifact, version in (coordinates.split(":") for coordinates in artifacts)
        )
        (directory / "pom.xml").write_text(POM.format(dependencies=dependencies))
        command = [
            _maven(), "--quiet", "--batch-mode", "dependency:copy-dependencies",
            "-DoutputDirectory=libs", "-DincludeScope=runtime",
        ]  # fmt: skip
        _run(command, cwd=directory, MAVEN_OPTS=maven_options(directory))
        complete.touch()
    return directory / "libs"


@cache
def java() -> str:
    """Return the path of a `java` of version 17 or later.

    Raises:
        PeerMissingError: none is there and none may be installed.
    """
    found = _find_java()
    if found is None:
        _install()
        found = _find_java()
    if found is None:
        raise PeerMissingError(f"no Java {JAVA_VERSION_MIN}+ found; {_how_to_install()}")
    return found


def java_version() -> int:
    """Return the major version of the Java in use."""
    return java_version_of(java())


def _maven() -> str:
    found = shutil.which("mvn")
    if found is None:
        _install()
        found = shutil.which("mvn")
    if found is None:
        raise PeerMissingError(f"no Maven found; {_how_to_install()}")
    return found


def _find_java() -> str | None:
    homes = [os.environ.get("JAVA_HOME"), *sorted(Path("/usr/lib/jvm").glob("*"), reverse=True)]
    candidates = [str(Path(home) / "bin" / "java") for home in homes if home]
    on_path = shutil.which("java")
    for candidate in ([on_path] if on_path else []) + candidates:
        if java_version_of(candidate) >= JAVA_VERSION_MIN:
            return candidate
    return None


def _how_to_install() -> str:
    return (
        "install them and run again:\n"
        f"    apt-get update && apt-get install -y --no-install-recommends {APT_PACKAGES}"
    )


@cache
def _install() -> None:
    """Install JDK and Maven where rights allow; once per process."""
    if shutil.which("apt-get") is None:
        raise PeerMissingError(
            f"Java {JAVA_VERSION_MIN}+ and Maven are needed: install them with this system's"
            " package manager and run again"
        )
    prefix = _root_prefix()
    for arguments in (
        ["update", "-qq"],
        ["install", "-y", "-qq", "--no-install-recommends", *APT_PACKAGES.split()],
    ):
        command = [*prefix, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", *arguments]
        print("benchmark set-up:", " ".join(command), flush=True)
        _run(command)


def _root_prefix() -> list[str]:
    if os.geteuid() == 0:
        return []
    sudo = shutil.which("sudo")
    if (
        sudo
        and subprocess.run([sudo, "-n", "true"], capture_output=True, check=False).returncode == 0
    ):
        return [sudo, "-n"]
    raise PeerMissingError(
        f"Java {JAVA_VERSION_MIN}+ and Maven are needed; as root, {_how_to_install()}"
    )


def _run(command: list[str], cwd: Path | None = None, **variables: str) -> None:
    try:
        subprocess.run(
            command,
            cwd=cwd,
            env={**os.environ, **variables},
            check=True,
            capture_output=True,
            text=True,
            timeout=INSTALL_TIMEOUT_S,
        )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired, OSError) as error:
        output = getattr(error, "stdout", "") or ""
        problem = getattr(error, "stderr", "") or ""
        raise PeerMissingError(
            f"`{' '.join(command)}` failed: {error}\n{output}{problem}".rstrip()
        ) from error
