"""``trace --open``: all ranks in one file, served once to Perfetto's page, at the place of the first finding."""

from __future__ import annotations

import os
import secrets
import shutil
import sys
from collections.abc import Sequence
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from math import inf
from pathlib import Path
from socket import SHUT_WR
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

from stepscope.cli.console import log, out, say
from stepscope.core.dataclass import record
from stepscope.core.errors import MissingError
from stepscope.core.forks import stop_signals_raise
from stepscope.core.units import format_bytes
from stepscope.traces.alignment import corrected

if TYPE_CHECKING:
    from stepscope.records.finding import Finding
    from stepscope.records.trace_summary import TraceSummary

PAGE = "https://ui.perfetto.dev"

PORT = 9001
"""The page's own security policy lets it fetch from no other port of this machine."""


@record
class Spot:
    """A rank and a stretch of time on the merged clock, in ns. event: start and duration of an event of the rank's in it."""

    rank: int
    start_ns: int
    end_ns: int
    event: tuple[int, int] | None = None


def place_of(summary: TraceSummary, findings: Sequence[Finding]) -> Spot | None:
    """Return the step of the rank that the first finding is about; where it names none, one in the middle.

    None: the traces have no time budget.
    """
    ranks = {p.facts.rank: (p, p.budget) for p in summary.ranks if p.budget is not None}
    if not ranks:
        return None
    first = findings[0] if findings and findings[0].ranks and findings[0].ranks[0] in ranks else None
    rank = first.ranks[0] if first is not None else next(iter(ranks))
    own, budget = ranks[rank]
    spot = None if first is None else first.at_ns
    steps = [(s.start_ns, s.start_ns + s.parts.window_ns) for s in own.steps if s.parts.window_ns]
    if spot is not None:
        stretch = next((step for step in steps if step[0] <= sum(spot) // 2 < step[1]), spot)
    else:
        stretch = steps[len(steps) // 2] if steps else (budget.start_ns, budget.start_ns + budget.parts.window_ns)
    clocks = summary.collectives.clocks if summary.collectives is not None else None
    fits = {fit.rank: fit for fit in clocks.fits} if clocks is not None else {}

    def merged(of: int, time_ns: int) -> int:
        return corrected(fits[of], time_ns) if of in fits else time_ns

    def events(of: int, within: tuple[float, float]) -> list[tuple[int, int]]:
        communication = ranks[of][0].communication
        calls = () if communication is None else communication.collectives
        return [(merged(of, c.start_ns), c.duration_ns) for c in calls if within[0] <= c.end_ns <= within[1]]

    # The page selects the first event of a start and a duration, whosever it is.
    others = {event for other in ranks if other != rank for event in events(other, (-inf, inf))}
    alone = [event for event in events(rank, spot or stretch) if event not in others]
    # Perfetto ignores a stretch that is not within the trace.
    opening = min(merged(r, whole.start_ns) for r, (_, whole) in ranks.items())
    closing = max(merged(r, whole.start_ns + whole.parts.window_ns) for r, (_, whole) in ranks.items())
    return Spot(
        rank=rank,
        start_ns=max(opening, merged(rank, stretch[0])),
        end_ns=min(closing, merged(rank, stretch[1])),
        event=max(alone, key=sum, default=None),
    )


def link_to(url: str, place: Spot | None) -> str:
    """Return the address of the page that fetches ``url`` and shows the place: its time, its event, its rank's tracks."""
    asked = {"url": url}
    if place is not None:
        asked |= {"visStart": str(place.start_ns), "visEnd": str(place.end_ns)}
        if place.event is not None:
            asked |= {"ts": str(place.event[0]), "dur": str(place.event[1])}
        expand = f'[{{"id":"dev.perfetto.ExpandTracksByRegex","args":["^rank {place.rank}\\\\b"]}}]'
        asked["startupCommands"] = expand
    return f"{PAGE}/#!/?{urlencode(asked, safe=':/', quote_via=quote)}"


class _Once(BaseHTTPRequestHandler):
    """Answers the page's one request for the file, and ends the server; no other page may read the answer."""

    def __init__(self, *request: object, file: Path, place: str) -> None:
        self.file, self.place = file, place
        super().__init__(*request)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        if self.path != self.place or self.headers.get("Origin", PAGE) != PAGE:
            self.send_error(404)
            return
        self._head(200, size=self.file.stat().st_size)
        with self.file.open("rb") as file:
            shutil.copyfileobj(file, self.wfile)
        self.connection.shutdown(SHUT_WR)
        self.server.shutdown()

    def do_OPTIONS(self) -> None:
        """Answer what a browser asks before a page of the internet may fetch from this machine."""
        self._head(204)

    def _head(self, code: int, *, size: int = 0) -> None:
        self.send_response(code)
        self.send_header("Access-Control-Allow-Origin", PAGE)
        self.send_header("Access-Control-Allow-Private-Network", "true")
        self.send_header("Cache-Control", "no-store")
        self.send_header("Content-Type", "application/octet-stream")
        self.send_header("Content-Length", str(size))
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Write nothing: a request is not what the user waits for."""


class _Server(ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        """Write nothing, and serve on: a browser has gone while it was answered."""


def show(file: Path, place: Spot | None) -> None:
    """Print the link, open it where there is a browser, and wait for the page's request. Raises MissingError."""
    url = f"/{secrets.token_hex(8)}/{quote(file.name)}"
    try:
        server = _Server(("127.0.0.1", PORT), partial(_Once, file=file, place=url))
    except OSError as error:
        raise MissingError(
            f"--open: port {PORT} of this machine is taken",
            why=f"{PAGE} fetches from no other port ({error.strerror})",
            fix="end what listens there, or write the file with --merge and open it on the page by hand",
        ) from error
    with server, stop_signals_raise("terminated while a trace was served"):
        link = link_to(f"http://127.0.0.1:{server.server_port}{url}", place)
        say(link)
        out().file.flush()
        if not _browse(link):
            log(f"no browser here; from another machine, first: ssh -L {PORT}:127.0.0.1:{PORT} THIS_HOST")
        size = format_bytes(file.stat().st_size)
        log(f"waiting for the page to fetch {size}, which the browser may ask you to allow; Ctrl-C ends it")
        server.serve_forever()
    log("fetched; nothing is served any more")


def _browse(link: str) -> bool:
    """Open a browser of a desktop, or what ``BROWSER`` names; False where there is none: one in a terminal is not meant."""
    if sys.platform != "darwin" and not any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")):
        return False
    import webbrowser

    return webbrowser.open(link)
