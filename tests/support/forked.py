"""A fork server, with the test in the launcher's place."""

import json
import os
import socket
import subprocess
import sys
import time

import psutil

from tests.support.paths import PYTHONPATH

# In place of `-m distmnist.launching.forking.fork_server FD MODULE`: makes
# its own namespace, as a user without rights. What is imported first could
# not be read later.
AS_NOBODY = """
import ctypes, os, sys, numpy.random
from distmnist.launching import network_namespace
from distmnist.launching.forking import fork_server
import fake_train
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
ctypes.CDLL(None).prctl(4, 1)  # as after an exec: /proc/self is one's own
try:
  namespace = network_namespace.make_namespace()
except OSError as error:
  print(error)
  sys.exit(1)
fork_server.main(int(sys.argv[1]), sys.argv[2], *namespace.fds)
"""


class Server:
  def __init__(
    self, module, log, program=('-m', 'distmnist.launching.forking.fork_server')
  ):
    self.socket, theirs = socket.socketpair(
      socket.AF_UNIX, socket.SOCK_SEQPACKET
    )
    self.socket.settimeout(90)
    fd = theirs.fileno()
    command = [sys.executable, *program, str(fd)]
    path = f'{PYTHONPATH}:{log.parent}'
    with theirs, open(log, 'wb') as file:
      self.process = subprocess.Popen(
        [*command, module],
        stdout=file,
        stderr=file,
        env={**os.environ, 'PYTHONPATH': path},
        pass_fds=[fd],
        start_new_session=True,
      )

  def __enter__(self):
    return self

  def __exit__(self, *_):
    self.socket.close()
    try:
      self.process.wait(60)
    finally:
      self.process.kill()
      self.process.wait()

  def send(self, **message):
    self.socket.send(json.dumps(message).encode())

  def start(self, name, log, *flags, isolate=False, **env):
    argv = ['python', '-m', 'fake_train', *flags]
    self.send(start=name, argv=argv, env=env, log=str(log), isolate=isolate)

  def read(self):
    return json.loads(self.socket.recv(1 << 16))


def start_and_wait(server, name, isolate):
  """Starts a task that waits, and returns it once it has been set up."""
  flag = '--do=worker0:forever'
  server.start(name, os.devnull, flag, isolate=isolate)
  process = psutil.Process(server.read()['pid'])
  deadline = time.monotonic() + 60
  while len(os.listdir(f'/proc/{process.pid}/fd')) != 3:
    assert time.monotonic() < deadline
    time.sleep(0.01)
  return process
