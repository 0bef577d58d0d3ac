# SPDX-License-Identifier: Apache-2.0
"""``/healthz`` and ``/metrics`` of a server or broker, on an address of their own (extra ``metrics`` for the second).

Each request is served by a thread: nothing here touches the server's loop but one short call.  When `AT_ONCE` are under
way the oldest one of the busiest source goes, and the new one is let in: who sends nothing keeps no monitor out.
"""

from __future__ import annotations

import errno
import http.server
import importlib.util
import os
import socket
import socketserver
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Protocol

from obmm.background import BackgroundLogger
from obmm.closing import Closing
from obmm.errors import ObmmError
from obmm.exchange.admission import source_of
from obmm.exchange.door import bind
from obmm.exchange.server import Server
from obmm.undisturbed import joined

log = BackgroundLogger("obmm.exchange.server")

AT_ONCE = 16
MOST_THREADS = 64  # with those that were sent away and have not ended yet
PATIENCE_S = 5.0
PAUSE_S = 0.2  # after a failure of the listener


class Watched(Protocol):
    """Whose health is asked for."""

    @property
    def alive(self) -> bool:
        """Its loop turns."""
        ...


class Observatory(Closing):
    """Answers GET /healthz (200 while the loop of `watched` turns, else 503) and GET /metrics until `close`.

    `collectors` are of `prometheus_client`: the figures that are shown, `ServerFigures` among them.
    """

    def __init__(self, watched: Watched, host: str, port: int, collectors: Sequence[Any]) -> None:
        listener = bind([host], port, loopback_only=False)[0]
        listener.setblocking(True)
        try:
            self._http = _Http(listener, watched, collectors)
        except BaseException:
            listener.close()
            raise
        self.port: int = listener.getsockname()[1]
        self._thread = threading.Thread(target=self._http.serve_always, name="obmm-observe", daemon=True)
        try:
            self._thread.start()
        except BaseException:
            listener.close()
            raise
        self._open = True

    def close(self) -> None:
        """Stop answering.  Idempotent."""
        if not self._open:
            return
        self._http.ending = True
        self._http.shutdown()
        self._http.server_close()
        joined(self._thread, PATIENCE_S)
        self._open = False

    def __repr__(self) -> str:
        return f"<metrics and health on port {self.port}>"


class _Http(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, listener: socket.socket, watched: Watched, collectors: Sequence[Any]) -> None:
        super().__init__(listener.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.watched = watched
        self.collectors = collectors
        self.ending = False
        self._mutex = threading.Lock()
        self._under_way: dict[socket.socket, str] = {}  # to their sources, oldest first
        self._served = 0

    def serve_always(self) -> None:
        """Until `shutdown`, whatever the system refuses meanwhile."""
        while not self.ending:
            try:
                self.serve_forever(poll_interval=0.2)
            except Exception as error:
                log.stranger("metrics and health: %r", error)
                time.sleep(PAUSE_S)

    def get_request(self) -> tuple[Any, Any]:
        try:
            return super().get_request()
        except Exception as error:  # out of descriptors, or of memory: whoever waits is served later
            log.stranger("no connection for metrics or health: %r", error)
            time.sleep(PAUSE_S)
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN)) from None

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._mutex:
            if self._served >= MOST_THREADS:
                self.shutdown_request(request)
                return
            if len(self._under_way) >= AT_ONCE:
                self._send_away()
            self._under_way[request] = source_of(str(client_address[0]))
            self._served += 1
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._over(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._over(request)

    def _send_away(self) -> None:
        """The oldest request of the source with most of them: its thread finds nothing more to read, and ends."""
        busiest = Counter(self._under_way.values()).most_common(1)[0][0]
        oldest = next(request for request, source in self._under_way.items() if source == busiest)
        del self._under_way[oldest]
        with suppress(OSError):
            oldest.shutdown(socket.SHUT_RDWR)

    def _over(self, request: socket.socket) -> None:
        with self._mutex:
            self._under_way.pop(request, None)
            self._served -= 1

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.stranger("a request for metrics from %s failed", client_address)


class _Handler(http.server.BaseHTTPRequestHandler):
    timeout = PATIENCE_S
    server: _Http

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/healthz":
            alive = self.server.watched.alive
            self._send(200 if alive else 503, "text/plain; charset=utf-8", b"ok\n" if alive else b"not serving\n")
        elif path == "/metrics":
            self._metrics()
        else:
            self._send(404, "text/plain; charset=utf-8", b"/healthz and /metrics are here\n")

    def _metrics(self) -> None:
        if importlib.util.find_spec("prometheus_client") is None:
            self._send(
                501, "text/plain; charset=utf-8", b"install the extra `metrics`: pip install prometheus-client\n"
            )
            return
        try:
            text = exposition(self.server.collectors)
        except ObmmError:
            self._send(503, "text/plain; charset=utf-8", b"not serving\n")
            return
        self._send(200, "text/plain; version=0.0.4; charset=utf-8", text)

    def _send(self, code: int, kind: str, body: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Not a line per scrape."""


def exposition(collectors: Sequence[Any]) -> bytes:
    """The figures of `collectors` in Prometheus' text format."""
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry(auto_describe=False)
    for each in collectors:
        registry.register(each)
    text: bytes = generate_latest(registry)
    return text


class ServerFigures:
    """A server of the exchange: one look at it gives all figures."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def describe(self) -> Iterator[Any]:
        """Nothing is asked before somebody looks."""
        return iter(())

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        counts = self._server.counts()
        for name, text in (
            ("connections", "open connections"),
            ("handshakes", "connections whose handshake is not over"),
            ("regions", "published regions"),
            ("grants_waiting", "grants whose journal lines are not on the disk yet"),
            ("uptime_seconds", "since the server started"),
            ("closing", "1 while the server revokes everything to end"),
        ):
            yield GaugeMetricFamily(f"obmm_exchange_{name}", text, value=counts[name])
        leases = GaugeMetricFamily("obmm_exchange_leases", "leases that were not released, by state", labels=["state"])
        for state, count in counts["leases"].items():
            leases.add_metric([state], count)
        yield leases
        for name, label, text in (
            ("events", "event", "what became of leases: granted, released, expired, revoked, ended, ..."),
            ("refused", "reason", "connections and requests that were refused"),
            ("lines_dropped", "log", "lines that were not written: no reader took them, or strangers cause too many"),
        ):
            family = CounterMetricFamily(f"obmm_exchange_{name}", text, labels=[label])
            for key, count in counts[name].items():
                family.add_metric([key], count)
            yield family
