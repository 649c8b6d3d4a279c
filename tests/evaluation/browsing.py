"""A page in a real browser: headless Chromium, without a network."""

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

CHROMIUM, DRIVER = Path("/usr/bin/chromium"), Path("/usr/bin/chromedriver")
OPTIONS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage",
)  # fmt: skip


def require_chromium() -> None:
    """Without Chromium the test is skipped, but fails where DATARAX_TEST_BROWSER=1 asks for it."""
    missing = [str(path) for path in (CHROMIUM, DRIVER) if not path.exists()]
    if missing:
        reason = (
            f"{' and '.join(missing)} not found: install the Debian packages chromium and "
            "chromium-driver"
        )
        if os.environ.get("DATARAX_TEST_BROWSER") == "1":
            pytest.fail(reason)
        pytest.skip(reason)


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """A browser that logs its console and its network."""
    require_chromium()
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    for option in OPTIONS:
        options.add_argument(option)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options.add_argument(f"--user-data-dir={profile}")
        driver = webdriver.Chrome(options, Service(str(DRIVER)))
        try:
            yield driver
        finally:
            driver.quit()


def show(
    driver: Any, page: Path, *, width: int = 1280, scheme: str = "light", media: str = ""
) -> None:
    """Opens a page in a window of this width, with empty logs."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": features})
    driver.get("about:blank")
    console(driver)
    requests(driver)
    driver.get(page.as_uri())


def console(driver: Any) -> list[str]:
    """What the page complained about since the last call."""
    return [f"{entry['level']}: {entry['message']}" for entry in driver.get_log("browser")]


def requests(driver: Any) -> list[str]:
    """What was asked for since the last call, as URLs."""
    events = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    return [
        event["params"]["request"]["url"]
        for event in events
        if event["method"] == "Network.requestWillBeSent"
    ]
