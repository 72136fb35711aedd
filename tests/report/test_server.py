"""`fuzz-attn watch`: what the server answers, to whom, and that it reads nothing but the run's logs."""

import http.client
import threading
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from fuzz_attn.engine.events import Event
from fuzz_attn.errors import ReportError
from fuzz_attn.report.page import page_server as server_module
from fuzz_attn.report.page.page_server import PageServer

Events = Callable[..., list[Event]]
Log = Callable[..., Path]
Ask = Callable[..., http.client.HTTPResponse]


@pytest.fixture
def folder(events: Events, log: Log, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(server_module, "run_page", lambda logs, made, live: f"page of {logs[0].statistics.cases} cases")
    monkeypatch.setattr(server_module, "RENEW_SECONDS", 0.0)
    monkeypatch.setattr(server_module, "_SHARE", 1e9)
    return log(events(failures=0))


@pytest.fixture
def server(folder: Path) -> Iterator[PageServer]:
    with PageServer(folder) as served:
        thread = threading.Thread(target=served.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield served
        served.shutdown()
        thread.join()


@pytest.fixture
def ask(server: PageServer) -> Ask:
    """Return a function that asks for an address, as it is written, and returns the answer."""

    def asked(path: str = "/", method: str = "GET", **headers: str) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=60)
        connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        return connection.getresponse()

    return asked


def test_it_serves_on_the_loopback_address_unless_another_is_named(server: PageServer) -> None:
    assert server.server_address[0] == "127.0.0.1"
    assert server.address == f"http://127.0.0.1:{server.server_address[1]}/"


def test_the_page_and_its_script(ask: Ask) -> None:
    answer = ask()
    assert (answer.status, answer.read()) == (200, b"page of 3 cases")
    policy = answer.getheader("Content-Security-Policy") or ""
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy.replace("style-src 'unsafe-inline'", "")
    assert b"setInterval" in ask("/live.js").read()


def test_the_page_grows_with_its_log(ask: Ask, folder: Path) -> None:
    before = ask()
    mark = before.getheader("ETag") or ""
    assert ask(If_None_Match=mark).status == 304
    log = folder / "events.jsonl"
    log.write_bytes(log.read_bytes().replace(b'"cases":3', b'"cases":4'))
    after = ask(If_None_Match=mark)
    assert (after.status, after.read()) == (200, b"page of 4 cases")


@pytest.mark.parametrize(
    "path",
    [
        "/events.jsonl",
        "/../../../../etc/passwd",
        "/..%2f..%2f..%2fetc/passwd",
        "//etc/passwd",
        "/./",
        "/live.js/../events.jsonl",
        "/%00",
        "/report.html",
        "/index.html",
        "/?file=/etc/passwd",
        "http://127.0.0.1/",
        "*",
    ],
)
def test_no_other_address_is_answered(ask: Ask, path: str) -> None:
    answer = ask(path)
    assert answer.status == 404
    assert b"root:" not in answer.read()


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_nothing_can_be_changed(ask: Ask, method: str, folder: Path) -> None:
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert ask("/", method).status == 501
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_the_head_of_the_page_has_no_body(ask: Ask) -> None:
    answer = ask(method="HEAD")
    assert (answer.status, answer.getheader("Content-Length"), answer.read()) == (200, "15", b"")


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8000", 200),
        ("127.0.0.1", 200),
        ("[::1]:8000", 200),
        ("evil.example", 403),
        ("evil.example:8000", 403),
        ("127.0.0.1.evil.example", 403),
        ("", 403),
    ],
)
def test_a_name_of_the_web_that_leads_here_gets_nothing(ask: Ask, host: str, status: int) -> None:
    assert ask(Host=host).status == status


def test_a_log_that_goes_away_is_said(ask: Ask, folder: Path) -> None:
    (folder / "events.jsonl").unlink()
    answer = ask()
    assert answer.status == 500
    assert b"holds no events*.jsonl" in answer.read()


def test_a_folder_without_a_log_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="holds no events"):
        PageServer(tmp_path)


def test_a_port_that_is_taken_is_one_error(server: PageServer, folder: Path) -> None:
    with pytest.raises(ReportError, match=r"127\.0\.0\.1:\d+ cannot be served"):
        PageServer(folder, port=int(server.server_address[1]))


def test_a_page_is_made_once_for_many_readers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = count()
    monkeypatch.setattr(server_module, "run_page", lambda *_, **__: f"page {next(numbers)}")
    monkeypatch.setattr(server_module, "RENEW_SECONDS", 1000.0)
    page, log = server_module.GrowingPage(folder), folder / "events.jsonl"
    for _ in range(5):
        assert page.page().text == b"page 0"
        log.write_bytes(log.read_bytes() + b"\n")
