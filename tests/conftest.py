"""What holds for every layer of tests."""

import signal


def pytest_configure() -> None:
    """Let programs that a test starts be interrupted by SIGINT.

    A shell's background job ignores SIGINT, and so would all its children; a handler of Python's
    is set back to the default where a child begins.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
