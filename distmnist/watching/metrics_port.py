"""The metrics of all tasks of a run as Prometheus reads them, on 127.0.0.1.

The text format 0.0.4: one gauge per number, one label per task. Each request
reads the log directory anew.
"""

import http.server
import sys
import threading

from distmnist.watching import watched_run

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
_TYPE = 'text/plain; version=0.0.4; charset=utf-8'


def format_text(state):
  """Returns the page (str) of a run_state.RunState."""
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


def _format_gauge(name, text, label, values):
  lines = [
    f'distmnist_{name}{{{label}="{key}"}} {float(value):.15g}'
    for key, value in values
    if value is not None
  ]
  head = [f'# HELP distmnist_{name} {text}', f'# TYPE distmnist_{name} gauge']
  return head + lines if lines else []


def _escape(text):
  """Returns `text` as the value of a label."""
  text = text.replace('\\', r'\\').replace('"', r'\"')
  return text.replace('\n', r'\n')


class _HttpServer(http.server.ThreadingHTTPServer):
  def handle_error(self, request, client_address):
    # Who asks may leave before the answer.
    if not isinstance(sys.exc_info()[1], OSError):
      super().handle_error(request, client_address)


class Server:
  """Answers GET /metrics in threads of its own. A context."""

  def __init__(self, logdir, port):
    """
    Args:
      logdir: str.
      port: int, 0 for any free one.

    Raises:
      OSError: the port is taken.
    """
    run, lock = watched_run.WatchedRun(logdir), threading.Lock()

    class Handler(http.server.BaseHTTPRequestHandler):
      def do_GET(self):  # noqa: N802 (the library's)
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

      def log_message(self, *_):
        pass

    self._server = _HttpServer(('127.0.0.1', port), Handler)
    self.port = self._server.server_address[1]

  def __enter__(self):
    threading.Thread(target=self._server.serve_forever, daemon=True).start()
    return self

  def __exit__(self, *_):
    self._server.shutdown()
    self._server.server_close()
