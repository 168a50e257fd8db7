"""What holds for every layer of tests."""

import signal

from hypothesis import settings

import millrace.client  # noqa: F401  # Before gRPC, whose handlers of forks it switches off.


def pytest_configure() -> None:
    """Let no example fail for its time; let SIGINT and SIGHUP end programs that a test starts.

    Several tests run at once, on machines that others use. And a shell's background job ignores
    SIGINT, and `nohup` SIGHUP, and so would all their children; a handler of Python's is set back
    to the default where a child begins.
    """
    settings.register_profile("busy machine", deadline=None)
    settings.load_profile("busy machine")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)
