"""What Prometheus reads."""

import contextlib
import socket
import struct
import threading
import urllib.error
import urllib.request

import pytest

from distmnist.watching import metrics_file, metrics_port, run_state


@contextlib.contextmanager
def serving(logdir):
  """A metrics_port.Server in a thread."""
  with metrics_port.Server(str(logdir), socket.create_server(HERE)) as server:
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
      yield server
    finally:
      server.shutdown()
      thread.join()


def get(server, path):
  address = f'http://127.0.0.1:{server.socket.getsockname()[1]}{path}'
  with urllib.request.urlopen(address, timeout=60) as page:
    return page.headers['Content-Type'], page.read().decode()


HERE = '127.0.0.1', 0


@pytest.mark.slow
def test_a_gauge_a_number_and_a_label_a_task(tmp_path):
  worker = metrics_file.Writer(str(tmp_path), 'worker 0', 'a', host='h', pid=1)
  worker.write('sample', state='training', step=7, rss_bytes=2500)
  with serving(tmp_path) as server:
    worker.write('evaluation', split='test', step=7, metrics={'accuracy': 0.5})
    kind, text = get(server, '/metrics')
    with pytest.raises(urllib.error.HTTPError, match='404'):
      get(server, '/')
  assert kind == 'text/plain; version=0.0.4; charset=utf-8'
  lines = text.splitlines()
  assert 'distmnist_step{task="worker 0"} 7' in lines
  assert '# TYPE distmnist_step gauge' in lines
  assert 'distmnist_resident_memory_bytes{task="worker 0"} 2500' in lines
  assert 'distmnist_evaluation{split="test",metric="accuracy"} 0.5' in lines
  assert 'distmnist_staleness_updates' not in text  # Nothing is known of it.
  assert text.endswith('\n')


@pytest.mark.slow
def test_who_leaves_before_the_answer_is_no_error(tmp_path, capfd):
  with serving(tmp_path) as server:
    with socket.create_connection(server.socket.getsockname()) as gone:
      gone.setsockopt(
        *(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
      )
      gone.sendall(b'GET /metrics HTTP/1.1\r\n')
    get(server, '/metrics')
  assert 'Traceback' not in capfd.readouterr().err


@pytest.mark.slow
def test_idle_connections_are_few_and_soon_closed(tmp_path, monkeypatch):
  monkeypatch.setattr(metrics_port, '_MAX_CONNECTIONS', 3)
  with serving(tmp_path) as server, contextlib.ExitStack() as stack:
    address = server.socket.getsockname()
    idle = [
      stack.enter_context(socket.create_connection(address, 60))
      for _ in range(4)
    ]
    # The fourth is one too many, and the others have said nothing for a while.
    for connection in reversed(idle):
      assert connection.recv(1) == b''
    get(server, '/metrics')


def test_numbers_are_whole_and_names_escaped():
  metrics = {'a"\\\n': 0.1}
  state = run_state.RunState().take(
    [
      {'task': 'worker 0', 'life': 'a', **line}
      for line in (
        {'kind': 'start', 'time': 0.0},
        {'kind': 'sample', 'time': 1.0, 'state': 'training', 'step': 12345678},
        {'kind': 'evaluation', 'split': 'test', 'step': 1, 'metrics': metrics},
      )
    ]
  )
  lines = metrics_port.format_text(state).splitlines()
  assert 'distmnist_step{task="worker 0"} 12345678' in lines
  name = r'a\"\\\n'
  assert f'distmnist_evaluation{{split="test",metric="{name}"}} 0.1' in lines
