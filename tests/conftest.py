"""What holds for every layer of tests."""

import signal

import millrace.client  # noqa: F401  # Before gRPC, whose handlers of forks it switches off.


def pytest_configure() -> None:
    """Let programs that a test starts be ended by SIGINT and SIGHUP.

    A shell's background job ignores SIGINT, and `nohup` SIGHUP, and so would all their children; a
    handler of Python's is set back to the default where a child begins.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)
