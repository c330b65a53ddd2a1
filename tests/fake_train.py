"""A training program that does what its flags say: stands in for train.

Imported by the fork server under the name of --module, hence on PYTHONPATH.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
import time

import numpy as np


def run():
  words = [word.lstrip('-').partition('=') for word in sys.argv[1:]]
  flags = {name: value for name, _, value in words}
  me = f'{flags.get("job_name", "worker")}{flags.get("task_index", 0)}'
  # do=WORKER0:print,exit0;ps0:serve ... what each task does, in order.
  for script in flags.get('do', '').split(';'):
    who, _, actions = script.partition(':')
    if who in (me, me.rstrip('0123456789'), 'all'):
      for action in actions.split(','):
        _act(action, flags, me)


def _act(action, flags, me):
  name, _, value = action.partition('=')
  folder = flags.get('folder')
  if name == 'print':
    print(value.replace('_', ' '))
  elif name == 'count':
    for number in range(int(value)):
      print(f'{me} line {number}')
  elif name == 'exit':
    sys.exit(int(value))
  elif name == 'raise':
    raise ValueError(value)
  elif name == 'kill':
    os.kill(os.getpid(), int(value))
  elif name == 'touch':  # tells a test how far we are, and who we are
    path = os.path.join(folder, f'{me}.{value}')
    with open(path + '.tmp', 'w') as file:
      file.write(str(os.getpid()))
    os.rename(path + '.tmp', path)
  elif name == 'wait':  # for another task's touch
    deadline = time.monotonic() + 60
    while not os.path.exists(os.path.join(folder, value)):
      assert time.monotonic() < deadline, f'no {value}'
      time.sleep(0.01)
  elif name == 'forever':
    threading.Event().wait(60)
  elif name == 'leave':  # as train does: a signal ends the steps, not us
    signals = []
    for signum in (signal.SIGINT, signal.SIGTERM):
      signal.signal(signum, lambda n, _: signals.append(n))
    _act(f'touch={value or "ready"}', flags, me)
    deadline = time.monotonic() + 60
    while not signals and time.monotonic() < deadline:
      time.sleep(0.01)
    print(f'leaving on {signals[0]}')
    _act('touch=left', flags, me)
    sys.exit(128 + signals[0])
  elif name == 'deaf':
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
  elif name == 'serve':
    _serve(flags)
  elif name == 'env':
    print(f'{value}={os.environ.get(value)!r}')
  elif name == 'random':
    print(f'random {np.random.randint(1 << 30)}')
  elif name == 'child':
    child = subprocess.Popen(['sleep', '60'])
    with open(os.path.join(folder, f'{me}.child'), 'w') as file:
      file.write(str(child.pid))
  elif name == 'facts':
    print(f'sid {os.getsid(0) == os.getpid()}')
    print(f'stdin {os.readlink("/proc/self/fd/0")}')
    print(f'argv {sys.argv}')
    print(f'sigint {signal.getsignal(signal.SIGINT)}')
    print(f'sigterm {signal.getsignal(signal.SIGTERM)}')
  else:
    raise AssertionError(action)


def _serve(flags):
  """Takes over the port that the launcher holds, and says whether it could."""
  hosts = flags[f'{flags["job_name"]}_hosts'].split(',')
  port = int(hosts[int(flags['task_index'])].rpartition(':')[2])
  try:
    socket.socket().bind(('', port))
    print('the port was not held')
  except OSError:
    print('the port was held')
  os.close(int(os.environ['DISTMNIST_HELD_PORT_FD']))
  server = socket.create_server(('127.0.0.1', port))
  print(f'serving on {port}')
  server.close()


if __name__ == '__main__':
  run()
