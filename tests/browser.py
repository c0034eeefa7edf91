"""A real headless Chromium, driven over its debugging pipe: no package and no port is needed."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

__all__ = ["Page", "browser"]

FLAGS = (
    "--headless",
    "--no-sandbox",  # root in a container has none
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
)


class Page:
    """A tab: `call` is any command of the DevTools protocol, the rest what tests need of it."""

    def __init__(self, read: int, write: int) -> None:
        self._read, self._write = read, write
        self._number, self._left, self._session = 0, b"", ""
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "DOM"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and wait for its result; events that come meanwhile are kept."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._write, data) :]
        while (answer := self._next()).get("id") != self._number:
            self.events.append(answer)
        assert "error" not in answer, f"{method}: {answer['error']}"
        result: dict[str, Any] = answer["result"]
        return result

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._left:
            piece = os.read(self._read, 1 << 20)
            assert piece, "Chromium has ended"
            self._left += piece
        message, _, self._left = self._left.partition(b"\0")
        parsed: dict[str, Any] = json.loads(message)
        return parsed

    def go(self, url: str) -> None:
        """Open a page, and wait until all that it names is there."""
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete'")

    def value(self, expression: str) -> Any:
        """Return the value of a JavaScript expression; await it if it is a promise."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, fact: str) -> None:
        """Wait in the page until an expression is true; the test's time limit bounds it."""
        wait = "new Promise(resolve => setTimeout(resolve, 20))"
        self.value(f"(async () => {{ while (!({fact})) await {wait}; }})()")

    def choose(self, selector: str, *files: Path) -> None:
        """Choose files in an input, as a user does."""
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", nodeId=node, files=[str(file) for file in files])

    def shot(self, path: Path, width: int, height: int) -> None:
        """A picture of the page as a window of this size shows it."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def requests(self) -> list[str]:
        """The addresses that the page has asked for."""
        asked = [e["params"] for e in self.events if e.get("method") == "Network.requestWillBeSent"]
        return [about["request"]["url"] for about in asked]

    def complaints(self) -> list[Any]:
        """Exceptions that nobody caught, and what was written to the console."""
        names = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled")
        return [e["params"] for e in self.events if e.get("method") in names]


@contextmanager
def browser(profile: Path) -> Iterator[Page]:
    """A tab of a new Chromium with an empty profile; skips where there is none."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        pytest.skip("needs Chromium (Debian: apt install chromium)")
    (ours_in, theirs_out), (theirs_in, ours_out) = os.pipe(), os.pipe()
    command = ("bash", "-c", f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}', "bash", program)
    process = subprocess.Popen(
        [*command, *FLAGS, f"--user-data-dir={profile}"],
        pass_fds=(theirs_in, theirs_out),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(theirs_in)
    os.close(theirs_out)
    try:
        yield Page(ours_in, ours_out)
    finally:
        os.close(ours_in)
        os.close(ours_out)
        process.kill()
        process.wait(30)
