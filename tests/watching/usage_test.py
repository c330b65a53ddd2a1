"""What this process uses, as the kernel counts it."""

import json
import os
import subprocess
import sys
import time

from distmnist.watching import usage
from tests.support.paths import PYTHONPATH

# In a process of its own: gRPC pings on the connections of other tests count.
_SEND = """
import json, socket, time
from distmnist.watching import usage

with socket.create_server(('127.0.0.1', 0)) as listener:
  client = socket.create_connection(listener.getsockname())
  server, _ = listener.accept()
with client, server:
  mine = usage.Usage()
  client.sendall(bytes(1000))
  while len(server.recv(1000, socket.MSG_PEEK)) < 1000:
    pass
  deadline = time.monotonic() + 10
  found = mine.look()
  # Sent counts once it was acknowledged.
  while found['sent_bytes'] < 1000 and time.monotonic() < deadline:
    found = mine.look()
print(json.dumps(found))
"""


def test_bytes_are_counted_since_the_first_look():
  program = subprocess.run(
    [sys.executable, '-c', _SEND],
    env={**os.environ, 'PYTHONPATH': PYTHONPATH},
    stdout=subprocess.PIPE,
    check=True,
    timeout=60,
  )
  found = json.loads(program.stdout)
  assert found['sent_bytes'] == found['received_bytes'] == 1000
  assert found['received_bytes_per_sec'] >= 0


def test_memory_and_time_are_those_of_this_process():
  mine = usage.Usage()
  sum(range(10**6))
  found = mine.look()
  assert 0 < found['cpu_secs'] <= time.process_time()
  assert found['cpu_cores'] > 0
  assert found['rss_bytes'] == usage.read_rss(os.getpid()) or (
    found['rss_bytes'] > 1e6
  )


def test_the_memory_of_no_process_is_unknown():
  assert usage.read_rss(2**30) is None
