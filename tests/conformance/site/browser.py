"""Reads the built site in a headless Chromium: python tests/conformance/site/browser.py [SITE].

Every page at 1,280 and 390 pixels: nothing is wider than the page, every picture is there, nothing
is asked of a network. On some of them what a reader does: search a flag as it is typed, filter the
flags, copy a command, change the language. A page with injected faults must be found first.
Chromium and its driver are the system's (Debian: chromium-driver; GitHub's runners have Chrome).
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

# Selenium fetches no browser and no driver by itself.
os.environ["SE_OFFLINE"] = "true"

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

ROOT: Final = Path(__file__).resolve().parents[3]
WIDTHS: Final = (1280, 390)
FLAGS: Final = ("--swap-attention", "--tp-comm-overlap")

INJECTED: Final = """<!doctype html><html><body><article>
<div style="width: 700px">wide</div><img src="nowhere.png"><table style="width: 1500px"></table>
<script src="http://127.0.0.1:9/script.js"></script></article></body></html>"""

#: What a page shows of itself: pixels beyond its width, pictures that are missing, its requests.
LOOK: Final = """
const article = document.querySelector("article");
return {
  beyond: document.documentElement.scrollWidth - innerWidth,
  wide: [...article.querySelectorAll("table")].filter((one) => innerWidth > 1000 &&
    one.getBoundingClientRect().right > article.getBoundingClientRect().right + 1).length,
  gone: [...document.images].filter((one) => one.complete && !one.naturalWidth)
    .map((one) => one.src),
  foreign: performance.getEntriesByType("resource").map((one) => one.name)
    .filter((name) => name.startsWith("http")),
};
"""


def main(words: list[str]) -> int:
    """The exit status: 0 where nothing is wrong."""
    site = Path(words[0] if words else ROOT / "build/site").resolve()
    if not (site / "index.html").is_file():
        print(f"there is no site in {site}: run `make site`", file=sys.stderr)
        return 2
    browser = start()
    try:
        with tempfile.TemporaryDirectory() as place:
            injected = Path(place) / "injected.html"
            injected.write_text(INJECTED)
            found = list(look(browser, injected))
        if len(found) < 5:
            print(f"injected faults were not all found, only: {found}", file=sys.stderr)
            return 1
        pages = sorted(site.rglob("*.html"))
        wrong = [fault for page in pages for fault in look(browser, page)]
        wrong += [*searched(browser, site), *filtered(browser, site)]
        wrong += [*copied(browser, site), *translated(browser, site)]
    finally:
        browser.quit()
    print("\n".join(wrong) or f"{len(pages)} pages at {WIDTHS} pixels: nothing is wrong")
    return 1 if wrong else 0


def start() -> webdriver.Chrome:
    """Headless Chromium or Chrome.

    :raises SystemExit: there is none.
    """
    names = ("chromium", "chromium-browser", "google-chrome")
    browser = next(filter(None, map(shutil.which, names)), None)
    driver = shutil.which("chromedriver")
    if not browser or not driver:
        sys.exit(f"no Chromium with its driver: none of {names}, or no chromedriver, is in PATH")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for word in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        "--window-size=1280,900",
    ):
        options.add_argument(word)
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))


def look(browser: webdriver.Chrome, page: Path) -> Iterator[str]:
    """What is wrong with a page by itself."""
    for width in WIDTHS:
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        browser.get(page.as_uri())
        seen = browser.execute_script(LOOK)
        at = f"{page.name} at {width} pixels:"
        if seen["beyond"] > 0:
            yield f"{at} {seen['beyond']} pixels wider than the window"
        if seen["wide"]:
            yield f"{at} {seen['wide']} tables wider than the text"
        yield from (f"{at} no picture {name}" for name in seen["gone"])
        yield from (f"{at} asks for {name}" for name in seen["foreign"])
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def searched(browser: webdriver.Chrome, site: Path) -> Iterator[str]:
    """A flag, as it is typed, leads to the page of flags first."""
    for flag in FLAGS:
        browser.get((site / "index.html").as_uri())
        field = browser.find_element(By.CSS_SELECTOR, ".md-search__input")
        field.click()
        field.send_keys(flag)
        WebDriverWait(browser, 20).until(
            lambda it: it.find_elements(By.CSS_SELECTOR, ".md-search-result__link")
        )
        first = browser.find_element(By.CSS_SELECTOR, ".md-search-result__link")
        if "flags.html" not in str(first.get_attribute("href")):
            yield f"search of {flag}: the first result is {first.get_attribute('href')}"
    browser.get((site / "index.html").as_uri())
    field = browser.find_element(By.CSS_SELECTOR, ".md-search__input")
    field.click()
    field.send_keys("--no-such-flag-qzx")
    WebDriverWait(browser, 20).until(
        lambda it: "flag" not in it.find_element(By.CSS_SELECTOR, ".md-search-result__meta").text
    )


def filtered(browser: webdriver.Chrome, site: Path) -> Iterator[str]:
    """The page of flags shows what was typed, and nothing else."""
    browser.get((site / "flags.html").as_uri())
    field = browser.find_element(By.CSS_SELECTOR, ".flag-filter")
    for words, least in ((FLAGS[0], 1), ("refused", 50), ("--no-such-flag", 0)):
        field.clear()
        field.send_keys(words)
        rows = browser.find_elements(By.CSS_SELECTOR, "table[data-flags] tbody tr:not([hidden])")
        if len(rows) < least or any(words not in row.text for row in rows):
            yield f"filter {words!r} shows {len(rows)} rows"


def copied(browser: webdriver.Chrome, site: Path) -> Iterator[str]:
    """The button copies commands without their prompt, and without what they print."""
    browser.get((site / "start.html").as_uri())
    # The block with a prompt, a command, and its output.
    block = next(
        one
        for one in browser.find_elements(By.CSS_SELECTOR, "div.highlight")
        if one.find_elements(By.CSS_SELECTOR, ".gp") and one.find_elements(By.CSS_SELECTOR, ".go")
    )
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", block)
    button = block.find_element(By.CSS_SELECTOR, "button, .md-clipboard")
    button.click()  # as a reader does: scripts may not copy by themselves
    browser.execute_script(
        "const area = document.createElement('textarea'); area.id = 'pasted';"
        "document.querySelector('article').prepend(area); area.focus()"
    )
    area = browser.find_element(By.ID, "pasted")
    area.send_keys(Keys.CONTROL, "v")
    text = str(area.get_property("value"))
    if not text.startswith("ACCEL_BRIDGE_BACKEND=cpu accel-bridge") or "usable" in text:
        yield f"the copy button copies {text!r}"


def translated(browser: webdriver.Chrome, site: Path) -> Iterator[str]:
    """The menu of languages keeps the page, and the other language has its own menu."""
    browser.get((site / "ascend.html").as_uri())
    link = browser.find_element(By.CSS_SELECTOR, "a[hreflang=zh]").get_attribute("href")
    if not str(link).endswith("/ascend.zh-CN.html"):
        yield f"ascend.html: Chinese leads to {link}"
    browser.get((site / "ascend.zh-CN.html").as_uri())
    tabs = [one.text for one in browser.find_elements(By.CSS_SELECTOR, ".md-tabs__link")]
    if not tabs or any(text.isascii() for text in tabs):
        yield f"ascend.zh-CN.html: tabs are {tabs}"


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
