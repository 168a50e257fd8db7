"""Kafka's libraries for Java, by what their documentation shows, as checks of ours in Java.

Maven fetches the libraries; the sources in `java` are compiled against them.
"""

import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.peers.kafka import LOG4J_PROPERTIES
from bench.peers.maven import KAFKA_VERSION, PeerMissingError, fetched, java
from tests.suites.kept import built
from tests.suites.outcome import Result
from tests.suites.suite import SuiteMissingError, Target
from tests.suites.told import checks_of, told_by

HERE = Path(__file__).parent / "java"
COMMON = HERE / "Checks.java"
LOG4J_VERSION = "2.25.2"
LOGGER = tuple(
    f"org.apache.logging.log4j:{name}:{LOG4J_VERSION}"
    for name in ("log4j-core", "log4j-slf4j-impl")
)
OPTIONS = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


@dataclass(frozen=True, kw_only=True)
class JavaChecks:
    """A library, and the class of its checks.

    Attributes:
        artifacts: the library, `group:artifact:version` each; their dependencies come with them.
        options: more of the Java machine's.
        test_timeout_s: for all tests together, times their number.
    """

    name: str
    version: str
    about: str
    main: str
    artifacts: Sequence[str]
    options: Sequence[str] = ()
    test_timeout_s: float = 90
    brokers: int = 1
    creates_topics: bool = False

    def build(self) -> None:
        """Fetch the library, and compile the checks."""
        try:
            self._classes()
        except PeerMissingError as error:
            raise SuiteMissingError(str(error)) from error

    def tests(self) -> Sequence[str]:
        """Return the tests."""
        return checks_of(self._source)

    def run(self, target: Target, tests: Sequence[str]) -> Iterator[Result]:
        """Run some of them, in one Java machine."""
        classes = self._classes()
        log4j = f"-Dlog4j2.configurationFile=file:{classes / 'log4j2.properties'}"
        yield from told_by(
            [
                *(java(), *OPTIONS, *self.options, log4j),
                *("-cp", f"{classes}:{self._libraries()}/*", "Checks", self.main),
            ],
            tests,
            target,
            folder=target.folder / self.name,
            test_timeout_s=self.test_timeout_s,
        )

    @property
    def _source(self) -> Path:
        return HERE / f"{self.main}.java"

    def _libraries(self) -> Path:
        return fetched(f"{self.name}-{self.version}", [*self.artifacts, *LOGGER])

    def _classes(self) -> Path:
        libraries = self._libraries()

        def compile_into(folder: Path) -> None:
            (folder / "log4j2.properties").write_text(LOG4J_PROPERTIES)
            # The compiler of the Java that runs them: a JRE has none.
            compiler = (java(), "-m", "jdk.compiler/com.sun.tools.javac.Main")
            jars = ":".join(map(str, libraries.glob("*.jar")))
            done = subprocess.run(
                [*compiler, "-cp", jars, "-d", folder, COMMON, self._source],
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                raise SuiteMissingError(
                    f"{self.name}'s checks could not be compiled; `sh requirements/install.sh"
                    f" suites` installs a JDK:\n{done.stderr[:2000]}"
                )

        sources = [COMMON.read_text(), self._source.read_text()]
        made_of = [*sources, *self.artifacts, *LOGGER, java()]
        return built(f"kafka-suites-{self.name}", made_of, compile_into)


STREAMS = JavaChecks(
    name="kafka-streams",
    version=KAFKA_VERSION,
    about="Kafka Streams: word counts, exactly once through kills, joins, windows, standbys",
    main="StreamsChecks",
    artifacts=(f"org.apache.kafka:kafka-streams:{KAFKA_VERSION}",),
)
FLINK_VERSION = "2.2.1"
FLINK_CONNECTOR_VERSION = "5.0.0-2.2"
FLINK = JavaChecks(
    name="flink",
    version=FLINK_CONNECTOR_VERSION,
    about="Flink's source and sink for Kafka: exactly once through failures and savepoints",
    main="FlinkChecks",
    artifacts=(
        f"org.apache.flink:flink-clients:{FLINK_VERSION}",
        f"org.apache.flink:flink-connector-base:{FLINK_VERSION}",
        f"org.apache.flink:flink-connector-kafka:{FLINK_CONNECTOR_VERSION}",
    ),
    options=(
        *("--add-opens", "java.base/java.lang=ALL-UNNAMED"),
        *("--add-opens", "java.base/java.util=ALL-UNNAMED"),
    ),
)
