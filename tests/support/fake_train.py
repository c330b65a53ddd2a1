"""A training program that does what its flags say: stands in for train.

Imported by the fork server under the name of --module, hence on PYTHONPATH.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import psutil

from distmnist.cluster import stop_request

_servers = []  # that listen until the end of this process


def run():
  words = [word.lstrip('-').partition('=') for word in sys.argv[1:]]
  flags = {name: value for name, _, value in words}
  me = f'{flags.get("job_name", "worker")}{flags.get("task_index", 0)}'
  if 'DISTMNIST_NUM_PS' in os.environ:  # a task of a Slurm step
    index, num_ps, num_evaluators, num_tasks = (
      int(os.environ[name])
      for name in (
        'SLURM_PROCID',
        'DISTMNIST_NUM_PS',
        'DISTMNIST_NUM_EVALUATORS',
        'SLURM_STEP_NUM_TASKS',
      )
    )
    me = f'ps{index}' if index < num_ps else f'worker{index - num_ps}'
    if index >= num_tasks - num_evaluators:
      me = 'evaluator0'
  # do=worker0:print=a,exit=0;ps:serve ... what each task does, in order;
  # worker0@2: is for its second attempt alone.
  attempt = os.environ.get('DISTMNIST_ATTEMPT', '1')
  if 'download_only' in flags:
    me = 'data'
  if 'print_cluster' in flags:
    me = 'check'
  for script in flags.get('do', '').split(';'):
    who, _, actions = script.partition(':')
    who, _, when = who.partition('@')
    names = (me, me.rstrip('0123456789'), 'all')
    if who in names and when in ('', attempt):
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
  elif name == 'touch':  # tells a test how far we are, and our pid
    path = os.path.join(folder, f'{me}.{value}')
    with open(path + '.tmp', 'w') as file:
      file.write(str(os.getpid()))
    os.rename(path + '.tmp', path)
  elif name == 'wait':  # for another task's touch
    deadline = time.monotonic() + 60
    while not os.path.exists(os.path.join(folder, value)):
      assert time.monotonic() < deadline, f'no {value}'
      time.sleep(0.01)
  elif name == 'gone':  # waits for the end of the task that touched it
    with open(os.path.join(folder, value)) as file:
      pid = int(file.read())
    deadline = time.monotonic() + 60
    while psutil.pid_exists(pid):
      assert time.monotonic() < deadline, f'{value} lives'
      time.sleep(0.01)
  elif name == 'write':  # a line without its end
    sys.stdout.write(value)
  elif name == 'forever':
    threading.Event().wait(60)
  elif name in ('leave', 'lose'):
    # As train does: a signal ends the steps, not us. `lose` fails to save.
    signals = []
    for signum in (signal.SIGINT, signal.SIGTERM):
      signal.signal(signum, lambda n, _: signals.append(n))
    _act(f'touch={value or "ready"}', flags, me)
    deadline = time.monotonic() + 60
    while not signals and time.monotonic() < deadline:
      time.sleep(0.01)
    print(f'leaving on {signals[0]}')
    _act('touch=left', flags, me)
    if name == 'lose':
      print('distmnist.train: error: step 9 is not saved')
      sys.exit(75)
    sys.exit(128 + signals[0])
  elif name == 'save':  # As train does, over some seconds, unless told twice.
    stop = stop_request.StopRequest()
    _act('touch=ready', flags, me)
    with contextlib.suppress(stop_request.StoppedError):
      stop.wait(60)
    time.sleep(0.5)
    print('saved')
    sys.exit(stop.end())
  elif name == 'deaf':
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
  elif name == 'serve':
    _serve(_port_of(me, flags))
  elif name == 'connect':  # to another task, once it serves
    address = ('127.0.0.1', _port_of(value, flags))
    deadline = time.monotonic() + 60
    while True:
      try:
        socket.create_connection(address).close()
        break
      except ConnectionRefusedError:
        assert time.monotonic() < deadline, f'no answer from {value}'
        time.sleep(0.01)
    print(f'reached {value}')
  elif name == 'interfaces':
    print(f'interfaces {[name for _, name in socket.if_nameindex()]}')
  elif name == 'env':
    print(f'{value}={os.environ.get(value)!r}')
  elif name == 'random':
    print(f'random {np.random.randint(1 << 30)}')
  elif name == 'report':  # that of a training with this accuracy, by seed
    os.makedirs(flags['logdir'], exist_ok=True)
    accuracy = float(value) + int(flags.get('seed', 0)) / 100
    with open(os.path.join(flags['logdir'], 'report.json'), 'w') as file:
      json.dump(
        {
          'validation_accuracy': accuracy,
          'test_accuracy': accuracy / 2,
          'final_loss': 1 - accuracy,
          'global_step': int(flags.get('train_steps', 100)),
          'examples_per_sec': None,
        },
        file,
      )
  elif name == 'error':  # as cli.run has it
    print(f'distmnist.train: error: {value.replace("_", " ")}', file=sys.stderr)
    sys.exit(1)
  elif name == 'child':
    child = subprocess.Popen(['sleep', '60'])
    with open(os.path.join(folder, f'{me}.child'), 'w') as file:
      file.write(str(child.pid))
  elif name == 'stray':  # keeps our output open for a while after our end
    subprocess.Popen(['sleep', value], start_new_session=True)
  elif name == 'facts':
    print(f'sid {os.getsid(0) == os.getpid()}')
    print(f'stdin {os.readlink("/proc/self/fd/0")}')
    print(f'argv {sys.argv}')
    print(f'sigint {signal.getsignal(signal.SIGINT)}')
    print(f'sigterm {signal.getsignal(signal.SIGTERM)}')
  else:
    raise AssertionError(action)


def _port_of(task, flags):
  job, index = task.rstrip('0123456789'), task.lstrip('pworkes')
  hosts = flags[f'{job}_hosts'].split(',')
  return int(hosts[int(index)].rpartition(':')[2])


def _serve(port):
  """Says whether the launcher holds the port, and listens as gRPC does."""
  try:
    with socket.socket() as stranger:
      stranger.bind(('', port))
    print('the port was not held')
  except OSError:
    print('the port was held')
  _servers.append(socket.create_server(('', port)))  # with SO_REUSEADDR
  print(f'serving on {port}')


if __name__ == '__main__':
  run()
