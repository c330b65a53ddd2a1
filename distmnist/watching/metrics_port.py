"""The metrics of all tasks of a run as Prometheus reads them, on 127.0.0.1.

The text format 0.0.4: one gauge per number, one label per task. Each request
reads the log directory anew. This is a process of its own, which the launcher
starts: whoever connects uses up nothing that the run needs.
"""

from __future__ import annotations

import http.server
import socket
import sys
import threading
from collections.abc import Iterable
from typing import Any

from distmnist.watching import run_state, watched_run

_GAUGES = {
  'up': ('is_live', 'Whether the task runs, as far as is known.'),
  'step': ('step', 'The last global step that a worker saw.'),
  'examples_per_second': ('examples_per_sec', 'Training examples of a worker.'),
  'staleness_updates': ('staleness', 'Mean staleness of the last pushes.'),
  'received_bytes_per_second': ('received_per_sec', 'On its TCP sockets.'),
  'sent_bytes_per_second': ('sent_per_sec', 'On its TCP sockets.'),
  'resident_memory_bytes': ('rss_bytes', 'Of the process.'),
  'restarts': ('restarts', 'By its launcher.'),
}
_MAX_CONNECTIONS = 16
_IDLE_SECS = 5.0
_TYPE = 'text/plain; version=0.0.4; charset=utf-8'


def format_text(state: run_state.RunState) -> str:
  """Returns the page."""
  rows, lines = state.make_rows(), []
  for name, (field, text) in _GAUGES.items():
    values = [(row.task, getattr(row, field)) for row in rows]
    lines += _format_gauge(name, text, 'task', values)
  found = [
    (f'{_escape(split)}",metric="{_escape(name)}', value)
    for split, line in state.evaluations.items()
    for name, value in line['metrics'].items()
  ]
  lines += _format_gauge('evaluation', 'The last one.', 'split', found)
  return '\n'.join([*lines, ''])


def _format_gauge(
  name: str, text: str, label: str, values: Iterable[tuple[str, float | None]]
) -> list[str]:
  lines = [
    f'distmnist_{name}{{{label}="{key}"}} {float(value):.15g}'
    for key, value in values
    if value is not None
  ]
  head = [f'# HELP distmnist_{name} {text}', f'# TYPE distmnist_{name} gauge']
  return head + lines if lines else []


def _escape(text: str) -> str:
  """Returns `text` as the value of a label."""
  text = text.replace('\\', r'\\').replace('"', r'\"')
  return text.replace('\n', r'\n')


class Server(http.server.ThreadingHTTPServer):
  """Answers GET /metrics, each connection in a thread, within bounds.

  Other users of this machine can connect as well. They get no more of it than
  `_MAX_CONNECTIONS` threads, and an idle connection is closed after
  `_IDLE_SECS`.
  """

  def __init__(self, logdir: str, listener: socket.socket) -> None:
    """
    Args:
      listener: a socket that listens.
    """
    run, lock = watched_run.WatchedRun(logdir), threading.Lock()

    class Handler(http.server.BaseHTTPRequestHandler):
      timeout = _IDLE_SECS

      def do_GET(self) -> None:  # noqa: N802 (the library's)
        if self.path.partition('?')[0] != '/metrics':
          self.send_error(404, 'see /metrics')
          return
        with lock:
          body = format_text(run.look()).encode()
        self.send_response(200)
        self.send_header('Content-Type', _TYPE)
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)

      def log_message(self, *_: Any) -> None:
        pass

    super().__init__(('127.0.0.1', 0), Handler, bind_and_activate=False)
    self.socket.close()
    self.socket = listener
    self._free = threading.BoundedSemaphore(_MAX_CONNECTIONS)

  def process_request(self, request: Any, client_address: Any) -> None:
    if self._free.acquire(blocking=False):
      super().process_request(request, client_address)
    else:
      self.shutdown_request(request)

  def process_request_thread(self, request: Any, client_address: Any) -> None:
    try:
      super().process_request_thread(request, client_address)
    finally:
      self._free.release()

  def handle_error(self, request: Any, client_address: Any) -> None:
    # Who asks may leave before the answer.
    if not isinstance(sys.exc_info()[1], OSError):
      super().handle_error(request, client_address)


def run() -> None:
  """Serves until it is killed: LOGDIR and the number of a socket are given."""
  logdir, fd = sys.argv[1:]
  with Server(logdir, socket.socket(fileno=int(fd))) as server:
    server.serve_forever()


if __name__ == '__main__':
  run()
