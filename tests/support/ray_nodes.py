"""A real Ray of two nodes on this machine, told by lines on stdin.

  add NUM_CPUS   starts a node, which is then `the last`
  kill           kills the last node, as a machine that is switched off

Each line is answered by one, the first of all with the address of this Ray. The
end of stdin ends all.
"""

import contextlib
import os
import subprocess
import sys
import tempfile

from tests.support.paths import PYTHONPATH, REPO


def main():
  # The paths of its sockets have to be short.
  with tempfile.TemporaryDirectory(
    prefix='ray_', dir='/tmp', ignore_cleanup_errors=True
  ) as folder:
    os.environ['RAY_TMPDIR'] = folder
    serve()


def serve():
  """Runs the nodes until stdin ends."""
  from ray import cluster_utils

  how = {'num_cpus': 2, 'include_dashboard': False}
  cluster = cluster_utils.Cluster(initialize_head=True, head_node_args=how)
  last = cluster.add_node(num_cpus=1)
  print(cluster.address, flush=True)
  for line in sys.stdin:
    word, *rest = line.split()
    if word == 'add':
      last = cluster.add_node(num_cpus=int(rest[0]))
    else:
      cluster.remove_node(last, allow_graceful=False)
    print('done', flush=True)
  cluster.shutdown()


class Nodes:
  """That Ray, as a context.

  Attributes:
    address: str, host:port.
  """

  def __init__(self, env, log):
    """
    Args:
      env: dict, the variables of the nodes.
      log: path, for what Ray says.
    """
    with open(log, 'w') as file:
      self._process = subprocess.Popen(
        [sys.executable, '-m', __name__],
        env={**env, 'PYTHONPATH': PYTHONPATH, 'RAY_USAGE_STATS_ENABLED': '0'},
        cwd=REPO,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=file,
        text=True,
        start_new_session=True,
      )
    self._log = log

  def __enter__(self):
    with contextlib.ExitStack() as unless_started:
      unless_started.push(self)
      self.address = self._read()
      unless_started.pop_all()
    return self

  def __exit__(self, *_):
    self._process.stdin.close()
    self._process.wait(60)
    self._process.stdout.close()

  def tell(self, line):
    self._process.stdin.write(f'{line}\n')
    self._process.stdin.flush()
    assert self._read() == 'done'

  def _read(self):
    line = self._process.stdout.readline().strip()
    assert line, self._log.read_text()
    return line


if __name__ == '__main__':
  main()
