"""Headless Chromium, spoken to through a pipe in the protocol of its developer tools; no driver, no package."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
PATIENCE = 60.0
BACKGROUND = "getComputedStyle(document.body).backgroundColor"
"""Checks of a page, as a script."""


def find() -> str | None:
    """The browser, if there is one."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """One page in a browser. `told` is what it complained of: errors of scripts, of the console, of what it loads."""

    def __init__(self, process: subprocess.Popen[bytes], to: int, back: int):
        self.process, self.to, self.back = process, to, back
        self.rest, self.last = b"", 0
        self.events: list[dict[str, Any]] = []
        self.told: list[str] = []
        self.requested: list[str] = []
        self.session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A command, and its result."""
        self.last += 1
        message = {"id": self.last, "method": method, "params": parameters}
        message |= {"sessionId": self.session} if self.session else {}
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while (answer := self._message()).get("id") != self.last:
            self._hear(answer)
        assert "error" not in answer, f"{method}: {answer['error']}"
        return answer["result"]

    def open(self, page: Path, width: int, height: int, dark: bool = False) -> None:
        """Show a file in a window of that size."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.events.clear()
        self.call("Page.navigate", url=page.resolve().as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self._hear(self._message())

    def open_fitting(self, page: Path, width: int, dark: bool, *selectors: str) -> None:
        """Show a report of that width, in which nothing scrolls sideways, in the colours asked for."""
        self.open(page, width, 800, dark)
        assert self.evaluate("document.documentElement.scrollWidth") <= width
        for selector in ("figure", "p", "pre", "h1", ".legend", *selectors):
            widest = f"Math.max(0, ...[...document.querySelectorAll('{selector}')].map(e => e.scrollWidth))"
            assert self.evaluate(widest) <= width, selector
        assert (self.evaluate(BACKGROUND) == "rgb(255, 255, 255)") is not dark

    def evaluate(self, script: str) -> Any:
        """The value of an expression on the page."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def screenshot(self, path: Path) -> None:
        """A picture of the whole page."""
        data = self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(data))

    def _message(self) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE
        while b"\0" not in self.rest:
            ready, _, _ = select.select([self.back], [], [], max(0.0, deadline - time.monotonic()))
            data = os.read(self.back, 1 << 20) if ready else b""
            assert data, "the browser does not answer"
            self.rest += data
        message, _, self.rest = self.rest.partition(b"\0")
        return json.loads(message)

    def _hear(self, event: dict[str, Any]) -> None:
        if "method" not in event:
            return
        self.events.append(event)
        about = event.get("params", {})
        if event["method"] == "Runtime.exceptionThrown":
            self.told.append(about["exceptionDetails"]["text"])
        elif event["method"] == "Runtime.consoleAPICalled" and about["type"] in ("error", "warning", "assert"):
            self.told.append(str(about["args"]))
        elif event["method"] == "Log.entryAdded" and about["entry"]["level"] in ("error", "warning"):
            self.told.append(about["entry"]["text"])
        elif event["method"] == "Network.requestWillBeSent":
            self.requested.append(about["request"]["url"])


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """A browser with a profile of its own, ended at last."""
    program = find()
    assert program
    # It reads commands from descriptor 3 and answers on 4; ours are higher, so that none is in the way.
    ends = [end for pipe in (os.pipe(), os.pipe()) for end in pipe]
    theirs_in, to, back, theirs_out = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends)
    for end in ends:
        os.close(end)
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
    options = shlex.join([*flags, f"--user-data-dir={profile}", "--remote-debugging-pipe"])
    command = f'exec "$0" {options} 3<&{theirs_in} 4>&{theirs_out}'
    process = subprocess.Popen(
        ["bash", "-c", command, program], pass_fds=(theirs_in, theirs_out), stderr=subprocess.DEVNULL
    )
    os.close(theirs_in)
    os.close(theirs_out)
    try:
        page = Browser(process, to, back)
        yield page
        page.session = None
        page.call("Browser.close")  # its children end with it, and write to the profile no more
        process.wait(PATIENCE)
    finally:
        process.kill()
        process.wait()
        os.close(to)
        os.close(back)
