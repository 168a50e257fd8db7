"""A headless Chromium, driven by its DevTools protocol over a pipe, without a port.

Messages are JSON, each ended by a zero byte. Source: chromedevtools.github.io/devtools-protocol,
and Chromium's `--remote-debugging-pipe`.
"""

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any, Self

PROGRAM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
"""None: there is no browser here."""
_ANSWER_S_MAX = 30.0
_KEYS = {"Tab": 9, "Enter": 13}


class Browser:
    """A browser with one page; a context manager.

    Args:
        folder: for its profile and its log.
    """

    def __init__(self, folder: Path) -> None:
        assert PROGRAM is not None
        commands_out, commands = os.pipe()
        answers, answers_in = os.pipe()
        program = [
            *(PROGRAM, "--headless", "--disable-gpu", "--disable-dev-shm-usage"),
            *("--remote-debugging-pipe", f"--user-data-dir={folder / 'profile'}"),
            *(["--no-sandbox"] if os.getuid() == 0 else []),  # It refuses to be root with one.
            "about:blank",
        ]
        with (folder / "browser.log").open("wb") as log:
            # It reads commands from 3 and answers on 4. For a shell higher numbers are files.
            self._process = subprocess.Popen(
                ["sh", "-c", 'exec "$@" 3</dev/fd/$IN 4>/dev/fd/$OUT', "sh", *program],
                env=os.environ | {"IN": str(commands_out), "OUT": str(answers_in)},
                pass_fds=[commands_out, answers_in],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        os.close(commands_out)
        os.close(answers_in)
        self._commands, self._answers = commands, answers
        self._pending = b""
        self._number = 0
        self._session = ""
        self.events: list[dict[str, Any]] = []
        """All that the page has told of, the oldest first."""

    def __enter__(self) -> Self:
        try:
            target = self.call("Target.createTarget", url="about:blank")["targetId"]
            attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
            self._session = attached["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network"):
                self.call(f"{domain}.enable")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        os.killpg(self._process.pid, 9)  # With its helpers, which are in its session alone.
        self._process.wait()
        os.close(self._commands)
        os.close(self._answers)

    def call(self, method: str, **parameters: Any) -> Any:
        """Call a method of the protocol; return its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + _ANSWER_S_MAX
        while True:
            told = self._next(deadline)
            if told.get("id") == self._number:
                assert "error" not in told, told
                return told["result"]
            self.events.append(told)

    def open(self, address: str) -> None:
        """Open a page and wait until it is loaded."""
        self.act(lambda: self.call("Page.navigate", url=address))

    def act(self, act: Any) -> None:
        """Do something that loads a page, and wait until it is loaded."""
        begin = len(self.events)
        act()
        deadline = time.monotonic() + _ANSWER_S_MAX
        while not any(
            event.get("method") == "Page.loadEventFired" for event in self.events[begin:]
        ):
            self.events.append(self._next(deadline))

    def show(self, *, width: int, height: int, scheme: str) -> None:
        """Take another size, and dark or light."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            **{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600},
        )
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression of JavaScript in the page."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def press(self, key: str) -> None:
        """Press a key, and let it go."""
        codes = {"key": key, "code": key, "windowsVirtualKeyCode": _KEYS[key]}
        text = {"text": "\r"} if key == "Enter" else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", **codes, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **codes)

    def write(self, text: str) -> None:
        """Write into what has the focus."""
        self.call("Input.insertText", text=text)

    def screenshot(self, path: Path) -> None:
        """Store a picture of what is shown."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def _next(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._pending:
            ready, _, _ = select.select(
                [self._answers], [], [], max(deadline - time.monotonic(), 0)
            )
            assert ready, "the browser does not answer"
            read = os.read(self._answers, 1 << 20)
            assert read, "the browser has ended: see browser.log"
            self._pending += read
        message, _, self._pending = self._pending.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found
