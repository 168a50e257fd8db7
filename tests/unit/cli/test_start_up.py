import subprocess
import sys

HEAVY = {"grpc", "millrace.broker", "millrace.client", "numpy", "pyarrow", "rich"}


def test_the_command_line_is_read_before_anything_heavy_is_imported() -> None:
    program = "import sys, millrace.cli.main; print(*sys.modules)"
    modules = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    ).stdout.split()
    assert HEAVY.intersection(modules) == set()


def test_the_default_address_is_where_the_embedded_broker_listens() -> None:
    from millrace.cli.cluster import DEFAULT_BOOTSTRAP
    from millrace.core.broker_config import DEFAULT_PORT

    assert f"127.0.0.1:{DEFAULT_PORT}" == DEFAULT_BOOTSTRAP
