"""Server: serves the page of a run while the run goes on. It answers four addresses and reads no other file."""

from __future__ import annotations

import socket
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import Final, NamedTuple

from fuzz_attn.engine.listeners.event_log import logs_in
from fuzz_attn.errors import FuzzAttnError, ReportError
from fuzz_attn.report.page.run_log import read_run
from fuzz_attn.report.page.run_page import environment, run_page

LOOPBACK: Final = "127.0.0.1"
RENEW_SECONDS: Final = 5.0
"""A page is made again at most so often, and costs at most a tenth of the time, however many ask for it."""
_SHARE: Final = 0.1
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class Page(NamedTuple):
    """A page and the mark of the logs that it was made from."""

    mark: str
    text: bytes


class GrowingPage:
    """The page of a run, made again when its logs have grown and the last one is old enough."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._again = 0.0
        self._page = Page("", b"")

    def page(self) -> Page:
        """Return the page; raises :class:`ReportError` where the logs cannot be read."""
        with self._lock:  # so that a page is made once for all who ask
            began = time.monotonic()
            mark = self._mark() if began >= self._again else self._page.mark
            if mark != self._page.mark:
                text = run_page(read_run(self._folder), time.time(), live=True)
                self._page = Page(mark, text.encode(errors="backslashreplace"))
                spent = time.monotonic() - began
                self._again = began + spent + max(RENEW_SECONDS, spent / _SHARE)
            return self._page

    def _mark(self) -> str:
        try:
            sizes = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in logs_in(self._folder)]
        except OSError as error:
            raise ReportError(f"{self._folder}: cannot be read: {error.strerror}") from error
        return f'"{abs(hash(tuple(sizes))):x}"'


class PageServer(ThreadingHTTPServer):
    """Serves a run on one address; raises :class:`ReportError` where that is taken or not of this machine.

    On a loopback address it answers only requests that name one, so that no page of the web can read it under a name
    that leads here.
    """

    daemon_threads = True

    def __init__(self, folder: Path, host: str = LOOPBACK, port: int = 0) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.growing = GrowingPage(folder)
        self.growing.page()
        try:
            super().__init__((host, port), _Handler)
        except (OSError, OverflowError) as error:
            raise ReportError(f"{host}:{port} cannot be served: {error}") from error
        self.local_only = ip_address(str(self.server_address[0])).is_loopback

    @property
    def address(self) -> str:
        """The address of the page."""
        host, port = str(self.server_address[0]), self.server_address[1]
        return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    server_version = "fuzz-attn"
    sys_version = ""
    timeout = 30

    def do_GET(self) -> None:
        """Answer with the page, its scripts, or nothing."""
        if self.server.local_only and not _is_local(self.headers.get("Host", "")):
            self._answer(HTTPStatus.FORBIDDEN, "text/plain", b"This address serves this machine only.\n")
        elif self.path == "/":
            self._page()
        elif self.path in ("/live.js", "/page.js"):
            self._answer(HTTPStatus.OK, "text/javascript", environment().get_template(self.path[1:]).render().encode())
        else:
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", b"There is only the page of the run, at /\n")

    do_HEAD = do_GET  # noqa: N815 - the name that http.server calls

    def _page(self) -> None:
        try:
            page = self.server.growing.page()
        except FuzzAttnError as error:
            self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, "text/plain", f"{error}\n".encode())
            return
        if self.headers.get("If-None-Match") == page.mark:
            self._answer(HTTPStatus.NOT_MODIFIED, "text/html", b"", page.mark)
        else:
            self._answer(HTTPStatus.OK, "text/html", page.text, page.mark)

    def _answer(self, status: HTTPStatus, kind: str, content: bytes, mark: str = "") -> None:
        self.send_response(status)
        headers = _HEADERS | {"Content-Type": f"{kind}; charset=utf-8", "Content-Length": str(len(content))}
        for name, value in (headers | ({"ETag": mark} if mark else {})).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of http.server
        """Print nothing: the terminal is the user's."""


def _is_local(host: str) -> bool:
    """Return whether the header Host names this machine by a loopback address, whatever the port."""
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    try:
        return name == "localhost" or ip_address(name).is_loopback
    except ValueError:
        return False
