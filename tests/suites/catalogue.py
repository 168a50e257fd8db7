"""All suites by name."""

from tests.suites.aiokafka import AIOKAFKA
from tests.suites.go_tests import FRANZ_GO_CHAOS_TESTS, FRANZ_GO_TESTS, KFAKE_TESTS
from tests.suites.java_checks import FLINK, STREAMS
from tests.suites.kafka_connect import KAFKA_CONNECT
from tests.suites.kafka_python import KAFKA_PYTHON_TESTS
from tests.suites.kafka_tools import KAFKA_TOOLS
from tests.suites.kcat import KCAT
from tests.suites.librdkafka import LIBRDKAFKA_FIXED_TESTS, LIBRDKAFKA_TESTS
from tests.suites.mirror_maker import MIRROR_MAKER
from tests.suites.spark_kafka import SPARK_KAFKA
from tests.suites.suite import Suite

SUITES: dict[str, Suite] = {
    suite.name: suite
    for suite in (
        FRANZ_GO_TESTS,
        FRANZ_GO_CHAOS_TESTS,
        KFAKE_TESTS,
        KAFKA_PYTHON_TESTS,
        AIOKAFKA,
        KAFKA_TOOLS,
        KAFKA_CONNECT,
        MIRROR_MAKER,
        STREAMS,
        FLINK,
        SPARK_KAFKA,
        KCAT,
        LIBRDKAFKA_TESTS,
        LIBRDKAFKA_FIXED_TESTS,
    )
}
