"""A network of this program's own: hosts on one switch, each link at one speed.

A host is a network namespace with an address; the switch is a bridge in another
one. The link between them is a veth pair with a token bucket (tc tbf) at both
ends, so that it carries its rate in both directions at once. The machine's own
network is not touched: everything lives in unnamed namespaces that only our
descriptors keep alive, so it is gone when we are, even by kill -9.
"""

import concurrent.futures
import contextlib
import dataclasses
import json
import os
import shutil
import socket
import subprocess
import sys
import time

from distmnist.common.names import FIRST_PORT, TRAIN
from distmnist.launching import jobs, network_namespace
from lib import processes  # noqa: F401 (distmnist is that of this checkout)

PROGRAMS = 'ip', 'tc', 'nsenter', 'setpriv'
# A packet on a virtual link may be 64 KiB, and a bucket has to hold it.
_MIN_BURST_BYTES = 128 << 10
_BURST_SECS = 0.001
_QUEUE_MSECS = 50


class CannotError(Exception):
  """This machine or this user cannot have such a network; the text says why."""


class Network:
  """Hosts 0, 1, ... and the switch between them; a context that ends them."""

  def __init__(self, num_hosts, mbits):
    """
    Args:
      num_hosts: int.
      mbits: int, what each link carries each way, in 10^6 bit/s.

    Raises:
      CannotError: it cannot be made here.
    """
    if os.geteuid():
      raise CannotError('network namespaces with shaped links need root')
    missing = [name for name in PROGRAMS if not shutil.which(name)]
    if missing:
      raise CannotError(f'no program {", ".join(missing)} on this machine')
    self._mbits = mbits
    self._switch, self._hosts = None, []
    try:
      self._switch = self._make_namespace()
      self._call('ip', 'link', 'add', 'switch', 'type', 'bridge')
      self._call('ip', 'link', 'set', 'switch', 'up')
      for i in range(num_hosts):
        self._hosts.append(self._make_namespace())
        self._connect(i)
    except BaseException:
      self.close()
      raise

  def __enter__(self):
    return self

  def __exit__(self, *_):
    self.close()

  def close(self):
    namespaces = filter(None, [self._switch, *self._hosts])
    self._switch, self._hosts = None, []
    for namespace in namespaces:
      namespace.close()

  def address(self, host):
    """Returns the address (str) of a host, an int."""
    return f'10.77.0.{host + 1}'

  def wrap(self, host, argv):
    """Returns the command (list of str) that runs `argv` on a host.

    It becomes `argv` itself, under the same pid, and the kernel kills it when
    we end, however that happens.
    """
    death = 'setpriv', '--pdeathsig', 'KILL', '--'
    # We may have ended before the kernel was asked to.
    unless = 'bash', '-c', f'((PPID == {os.getpid()})) && exec "$0" "$@"'
    return [*_enter(self._hosts[host]), *death, *unless, *argv]

  def make_socket(self, host):
    """Returns a TCP socket of that host, for use by this process."""

    def make():
      self._hosts[host].enter()
      return socket.socket()

    # Only this thread enters the namespace, and it ends.
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
      return pool.submit(make).result()

  def drop(self, host, share):
    """Drops `share`, up to 1, of the packets that a host sends from now on."""
    self.let_through(host)
    self._call('tc', 'qdisc', 'add', 'dev', 'net0', 'clsact', host=host)
    # Classic BPF: draws a random number of 32 bits; TC_ACT_SHOT unless it is
    # below the limit. Few kernels have netem.
    limit = min(2**32 - 1, int((1 - share) * 2**32))
    code = f'4,32 0 0 4294963256,53 0 1 {limit},6 0 0 2,6 0 0 4294967295'
    self._call(
      *('tc', 'filter', 'add', 'dev', 'net0', 'egress'),
      *('bpf', 'da', 'bytecode', code),
      host=host,
    )

  def let_through(self, host):
    """Stops dropping a host's packets."""
    with contextlib.suppress(CannotError):  # None were dropped.
      self._call('tc', 'qdisc', 'del', 'dev', 'net0', 'clsact', host=host)

  def take_over(self, host, other):
    """Gives a host's address to another one; the host loses its link."""
    [link] = json.loads(
      self._call('ip', '-j', 'link', 'show', 'net0', host=host)
    )
    self._call('ip', 'link', 'set', 'net0', 'down', host=host)
    change = 'ip', 'link', 'set', 'net0'
    self._call(*change, 'address', link['address'], host=other)
    address = f'{self.address(host)}/24'
    self._call('ip', 'addr', 'flush', 'dev', 'net0', host=other)
    self._call('ip', 'addr', 'add', address, 'dev', 'net0', host=other)

  def read_bytes(self):
    """Returns a list of (bytes from a host, bytes to it) since the start."""
    counts = {}
    for link in json.loads(self._call('ip', '-s', '-j', 'link')):
      stats = link['stats64']
      counts[link['ifname']] = stats['rx']['bytes'], stats['tx']['bytes']
    return [counts[f'port{i}'] for i in range(len(self._hosts))]

  def _connect(self, i):
    peer = 'peer', 'name', 'net0', 'netns', _path(self._hosts[i])
    self._call('ip', 'link', 'add', f'port{i}', 'type', 'veth', *peer)
    self._call('ip', 'link', 'set', f'port{i}', 'master', 'switch', 'up')
    address = f'{self.address(i)}/24'
    self._call('ip', 'addr', 'add', address, 'dev', 'net0', host=i)
    self._call('ip', 'link', 'set', 'net0', 'up', host=i)
    burst = max(_MIN_BURST_BYTES, int(self._mbits * 1e6 / 8 * _BURST_SECS))
    bucket = [
      *('root', 'tbf', 'rate', f'{self._mbits}mbit'),
      *('burst', str(burst), 'latency', f'{_QUEUE_MSECS}ms'),
    ]
    self._call('tc', 'qdisc', 'add', 'dev', f'port{i}', *bucket)
    self._call('tc', 'qdisc', 'add', 'dev', 'net0', *bucket, host=i)

  def _call(self, *command, host=None):
    """Runs a command on a host or the switch; returns its output, a str."""
    where = self._switch if host is None else self._hosts[host]
    done = subprocess.run(
      [*_enter(where), *command], capture_output=True, text=True
    )
    if done.returncode:
      reason = ' '.join((done.stderr or done.stdout).split())
      raise CannotError(f'{" ".join(command)}: {reason}')
    return done.stdout

  def _make_namespace(self):
    try:
      namespace = network_namespace.make_namespace()
    except OSError as error:
      raise CannotError(str(error)) from error
    if len(namespace.fds) > 1:
      namespace.close()
      raise CannotError('this root may not make network namespaces')
    return namespace


def _path(namespace):
  # Under our pid, any process finds it, whatever it has inherited.
  return f'/proc/{os.getpid()}/fd/{namespace.fds[-1]}'


def _enter(namespace):
  return ['nsenter', f'--net={_path(namespace)}', '--']


def make_tasks(network, num_ps, num_workers, flags, module=TRAIN):
  """Returns a list of jobs.Task, run by this Python: task i is for host i."""
  num_tasks = num_ps + num_workers
  hosts = [f'{network.address(i)}:{FIRST_PORT}' for i in range(num_tasks)]
  num_cores = len(os.sched_getaffinity(0))
  return [
    dataclasses.replace(task, argv=[sys.executable, *task.argv[1:]])
    for task in jobs.make_tasks(
      hosts[:num_ps],
      hosts[num_ps:],
      flags,
      num_cores=num_cores,
      module=module,
    )
  ]


def measure_link(mbits, secs=2.0):
  """Sends as much as a link carries in `secs`, both ways at once.

  Args:
    mbits: int, the rate asked for.

  Returns:
    (to, fro): floats, the megabits a second of TCP payload that arrived.
  """
  num_bytes = int(mbits * 1e6 / 8 * secs)

  def send(connection):
    block = memoryview(bytes(1 << 18))
    for start in range(0, num_bytes, len(block)):
      connection.sendall(block[: num_bytes - start])

  def receive(connection):
    left, start = num_bytes, time.monotonic()
    while left:
      data = connection.recv(min(left, 1 << 18))
      if not data:
        raise ConnectionError('the link was closed')
      left -= len(data)
    return num_bytes * 8e-6 / (time.monotonic() - start)

  with (
    Network(2, mbits) as network,
    network.make_socket(0) as server,
    network.make_socket(1) as client,
    concurrent.futures.ThreadPoolExecutor(4) as pool,
  ):
    server.bind((network.address(0), 2222))
    server.listen()
    client.connect((network.address(0), 2222))
    with server.accept()[0] as accepted:
      sent = [pool.submit(send, end) for end in (client, accepted)]
      received = [pool.submit(receive, end) for end in (accepted, client)]
      for job in sent:
        job.result()
      return tuple(job.result() for job in received)
