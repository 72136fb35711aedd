"""The pages in headless Chromium: no error, no request, all of it reached by keyboard, nothing that axe finds."""

import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect, sync_playwright

from fuzz_attn.engine.events import Event
from fuzz_attn.report.page import page_server as server_module
from fuzz_attn.report.page import run_page as page_module
from fuzz_attn.report.page.page_server import PageServer
from fuzz_attn.report.page.run_log import read_run
from fuzz_attn.report.page.run_page import run_page
from fuzz_attn.report.page.trend import trend_page

CHROMIUM: Final = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")

VIEWS: Final[dict[str, dict[str, Any]]] = {
    "desktop": {"viewport": {"width": 1280, "height": 900}},
    "phone": {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True},
    "dark": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "dark"},
    "narrow and dark": {"viewport": {"width": 320, "height": 640}, "color_scheme": "dark"},
    "wide": {"viewport": {"width": 1600, "height": 1000}},
}
FIRST_PAINT: Final = 1.0
"""Seconds; on a quiet machine it takes 0.1 to 0.2."""
PATIENCE: Final = 600_000
"""Milliseconds; longer than any step takes on a busy machine."""
FOCUSABLE: Final = "a[href], summary, input, button, [tabindex='0']"
Events = Callable[..., list[Event]]
Log = Callable[..., Path]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-dev-shm-usage"]
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments, timeout=PATIENCE)
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def made() -> dict[str, str]:
    """Return the addresses of pages by their kind: drawing one takes seconds."""
    return {}


@pytest.fixture
def address(made: dict[str, str], events: Events, log: Log, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """Return the address of a page: of a run, with hostile texts, of a run of several targets, or of several runs."""
    kind = request.param
    if kind not in made:
        text = request.getfixturevalue("hostile") if kind == "hostile" else "words"
        runs = [log(events(failures=2, text=text, time=1e9 * day), f"2026010{day}-000000-1") for day in (1, 2)]
        logs = [read for folder in runs for read in read_run(folder)]
        pages = {
            "trend": lambda: trend_page(logs, tmp_path, 0.0),
            "targets": lambda: run_page(logs, 0.0),
        }
        page = pages.get(kind, lambda: run_page(logs[:1], 0.0))()
        made[kind] = page_module.save(page, tmp_path / "page.html").as_uri()
    return made[kind]


def new_page(browser: Browser, view: str) -> Page:
    """Return an empty page, which waits as long as a busy machine needs."""
    page = browser.new_context(**VIEWS[view]).new_page()
    page.set_default_timeout(PATIENCE)
    return page


def opened(browser: Browser, address: str, view: str) -> tuple[Page, list[str], list[str]]:
    """Return a page with all parts open, the errors in it and the addresses that it asked for."""
    page = new_page(browser, view)
    errors: list[str] = []
    requests: list[str] = []
    page.on("console", lambda message: errors.append(message.text))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(address)
    page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    return page, errors, requests


@pytest.mark.parametrize(
    ("address", "view"),
    [
        pytest.param("run", "wide", marks=pytest.mark.slow),
        ("hostile", "phone"),
        pytest.param("run", "narrow and dark", marks=pytest.mark.slow),
        pytest.param("trend", "phone", marks=pytest.mark.slow),
        pytest.param("targets", "desktop", marks=pytest.mark.slow),
    ],
    indirect=["address"],
)
def test_a_page_loads_nothing_and_has_nothing_serious(browser: Browser, address: str, view: str) -> None:
    page, errors, requests = opened(browser, address, view)
    assert errors == []
    assert requests == [address]
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), "it scrolls sideways"
    found = Axe().run(page).response["violations"]
    assert [(each["id"], each["impact"], each["nodes"][0]["html"]) for each in found] == []
    assert errors == []
    page.context.close()


def test_axe_finds_what_is_wrong(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "bad.html"
    path.write_text("<html><body><img src='data:,'><p style='color:#eee;background:#fff'>pale</p></body></html>")
    page, _, _ = opened(browser, path.as_uri(), "desktop")
    assert {"image-alt", "color-contrast"} <= {each["id"] for each in Axe().run(page).response["violations"]}
    page.context.close()


@pytest.mark.slow
@pytest.mark.parametrize("address", ["run", "trend"], indirect=True)
def test_the_keyboard_reaches_everything(browser: Browser, address: str) -> None:
    page, _, _ = opened(browser, address, "phone")
    page.evaluate(
        f'document.querySelectorAll("{FOCUSABLE}").forEach((each, index) => {{ each.dataset.stop = index; }})'
    )
    stops = page.evaluate(f'document.querySelectorAll("{FOCUSABLE}").length')
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the results"
    assert page.evaluate("document.activeElement.getBoundingClientRect().left >= 0"), "it is seen once it has the focus"
    seen = [page.evaluate("document.activeElement.dataset.stop")]
    for _ in range(stops - 1):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.dataset.stop"))
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    assert seen == [str(stop) for stop in range(stops)]
    wide = page.evaluate(
        "[...document.querySelectorAll('main *')].filter((each) => each.scrollWidth > each.clientWidth + 1"
        " && getComputedStyle(each).overflowX === 'auto' && each.tabIndex !== 0).length"
    )
    assert wide == 0, "a part that scrolls takes the focus, so that keys can scroll it"
    page.context.close()


@pytest.mark.parametrize("address", ["run"], indirect=True)
def test_keys_open_a_part_and_follow_the_contents(browser: Browser, address: str) -> None:
    page = new_page(browser, "desktop")
    page.goto(address)
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    part = page.locator("summary", has_text="Features and pairs")
    part.focus()
    page.keyboard.press("Enter")
    assert page.locator("table", has_text="Cases with both features of a pair").is_visible()
    page.locator("nav a", has_text="Details").focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.querySelector('#details').getBoundingClientRect().top < window.innerHeight")
    page.locator(".row a[href='#failure-2']").focus()
    page.keyboard.press("Enter")
    top = page.evaluate("document.querySelector('#failure-2').getBoundingClientRect().top")
    bar = page.evaluate("document.querySelector('.bar').getBoundingClientRect().bottom")
    assert bar <= top < 500, "the title is seen below the navigation, which stays"
    page.context.close()


@pytest.mark.parametrize("address", ["run"], indirect=True)
def test_failures_are_searched_and_filtered(browser: Browser, address: str) -> None:
    page = new_page(browser, "desktop")
    page.goto(address)
    rows, sections = page.locator(".row:visible"), page.locator("article:visible")
    page.get_by_label("Search the failures").fill("window 0.25")
    assert (rows.count(), sections.count()) == (1, 1), "what is in a section is found too"
    assert page.locator(".tools [role=status]").text_content() == "1 of 2 shown"
    page.get_by_label("Search the failures").fill("")
    page.get_by_role("button", name="New 2").press("Enter")
    assert (rows.count(), page.locator("[aria-pressed=true]").text_content()) == (2, "New 2")
    page.get_by_label("Search the failures").fill("no such words")
    assert (rows.count(), sections.count()) == (0, 0)
    page.context.close()


@pytest.mark.parametrize("address", ["run"], indirect=True)
def test_commands_are_copied(browser: Browser, address: str) -> None:
    page = new_page(browser, "desktop")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto(address)
    button = page.get_by_role("button", name="Copy the command: Does it still fail? Failure 2")
    button.click()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.endswith("replay saved/1.json --trust")
    assert button.text_content() == "Copied"
    page.get_by_role("button", name="Copy as text").first.click()
    lines = page.evaluate("navigator.clipboard.readText()").splitlines()
    assert lines[0] == "1. Window: words"
    assert any(line.endswith("explain saved/0.json --trust") for line in lines)
    assert not {"Copy", "Next", "List", "query 0"} & set(lines), "no button, link or label of a drawing"
    page.context.close()


@pytest.mark.parametrize("address", ["run"], indirect=True)
def test_without_scripts_everything_is_there(browser: Browser, address: str) -> None:
    page = browser.new_context(java_script_enabled=False).new_page()
    page.goto(address)
    assert (page.locator(".row:visible").count(), page.locator("article:visible").count()) == (2, 2)
    assert page.locator("button:visible, input:visible").count() == 0
    page.context.close()


def test_forty_failures_of_a_million_cases_are_painted_at_once(
    browser: Browser, events: Events, log: Log, tmp_path: Path
) -> None:
    folder = log(events(failures=40, text="a message as long as they are " * 8))
    path = folder / "events.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"cases":3', b'"cases":1000000'))
    page = new_page(browser, "desktop")
    saved = page_module.save(run_page(read_run(folder), 0.0), tmp_path / "page.html")
    assert saved.stat().st_size < 5e6
    page.goto(saved.as_uri())
    paints = "performance.getEntriesByName('first-contentful-paint').map((each) => each.startTime)"
    while not (
        painted := page.evaluate(paints)
    ):  # the page's policy forbids what `wait_for_function` would evaluate in it
        page.wait_for_timeout(20)
    assert painted[0] < FIRST_PAINT * 1000
    assert page.locator(".headline").text_content() == "40 failures in 1\u202f000\u202f000 cases"
    page.context.close()


@pytest.mark.parametrize("address", ["run"], indirect=True)
def test_a_printed_page_has_no_controls(browser: Browser, address: str) -> None:
    page = new_page(browser, "desktop")
    page.goto(address)
    page.emulate_media(media="print")
    assert page.locator("nav:visible, button:visible, input:visible").count() == 0
    assert page.locator("article:visible").count() == 2
    page.context.close()


@pytest.mark.parametrize("address", ["run"], indirect=True)
def test_dark_and_light_differ_and_charts_follow(browser: Browser, address: str) -> None:
    colours = []
    for view in ("desktop", "dark"):
        page, _, _ = opened(browser, address, view)
        script = "[document.body, document.querySelector('svg.chart text')].map((each) => getComputedStyle(each))"
        colours.append(page.evaluate(f"(({script})).map((style, index) => index ? style.fill : style.backgroundColor)"))
        page.context.close()
    light_paper, light_ink, dark_paper, dark_ink = (_brightness(colour) for pair in colours for colour in pair)
    assert min(light_paper, dark_ink) > 600
    assert max(light_ink, dark_paper) < 200


def _brightness(colour: str) -> int:
    """Return the sum of red, green and blue of a colour as the browser writes it: ``rgb(1, 2, 3)``."""
    return sum(map(int, colour.removeprefix("rgb(").removesuffix(")").split(",")))


def test_the_served_page_renews_itself(
    browser: Browser, events: Events, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "RENEW_SECONDS", 0.0)
    monkeypatch.setattr(server_module, "_SHARE", 1e9)
    folder = log(events(failures=0))
    with PageServer(folder) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            _check_renewal(browser, server.address, folder / "events.jsonl")
        finally:
            server.shutdown()
            thread.join()


def _check_renewal(browser: Browser, address: str, log: Path) -> None:
    page, errors, requests = opened(browser, address, "desktop")
    assert [each["id"] for each in Axe().run(page).response["violations"]] == []
    page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = false; })")
    page.locator("summary", has_text="Features and pairs").click()
    log.write_bytes(log.read_bytes().replace(b'"cases":3', b'"cases":4'))
    page.evaluate("renew()")
    expect(page.locator(".verdict").first).to_contain_text("4 cases")
    assert page.evaluate("[...document.querySelectorAll('details')].filter((each) => each.open).length") == 1
    assert page.evaluate("document.activeElement.textContent") == "Features and pairs"
    assert errors == []
    assert set(requests) == {address, f"{address}live.js", f"{address}page.js"}
    page.context.close()
