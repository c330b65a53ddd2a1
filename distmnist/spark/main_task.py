"""A user's own function, on each worker of a cluster that Spark runs.

  def main_fun(args, ctx):
    with tf.device(ctx.device_setter()):
      ...
    with tf.train.MonitoredTrainingSession(
      ctx.target, ctx.is_chief, config=ctx.config
    ) as session:
      ...

  spark.run(sc, main_fun, args, num_ps=1, num_workers=2)

`main_fun` runs on the workers, as in TensorFlowOnSpark. A ps serves without it,
until the workers are done.
"""

import distmnist.runtime  # TensorFlow, quiet and in graph mode.

# isort: split
import base64
import functools
import json
import os
import pickle
import signal
import sys
import traceback

import tensorflow.compat.v1 as tf

from distmnist.cluster import cluster as cluster_lib
from distmnist.cluster import role_flags, server
from distmnist.common import cli, command_line
from distmnist.data import array_folder


class Context:
  """What a function knows about the cluster.

  Attributes:
    job_name: str, 'worker'.
    task_index: int, counted from 0, which is the chief.
    name: str, 'worker 0'.
    is_chief: bool.
    num_workers: int.
    cluster_spec: {'ps': list of 'host:port', 'worker': likewise}.
    target: str, this task's server, for a session.
    config: tf.ConfigProto for a session that needs the ps and no other worker:
      a late worker does not wait for one that is done.
    data, test_data: (x, y), arrays [n, ...] or nests of them, this worker's own
      part of the feed and the chief's test examples; None if there are none.
  """

  def __init__(self, words):
    """Starts the server of this task.

    Args:
      words: list of str, the flags that the executor passed.

    Raises:
      cli.RunError: it cannot serve on its port.
    """
    read = functools.partial(command_line.find_value, words)
    hosts = [
      role_flags.parse_hosts(read(f'{job}_hosts'), f'{job}_hosts')
      for job in ('ps', 'worker')
    ]
    cluster = cluster_lib.make_cluster(
      *hosts, read('job_name'), int(read('task_index') or 0)
    )
    self.job_name, self.task_index = cluster.job_name, cluster.task_index
    self.name, self.is_chief = cluster.name, cluster.is_chief
    self.num_workers = cluster.num_workers
    self.cluster_spec = cluster.spec().as_dict()
    if self.job_name == 'ps':
      distmnist.runtime.hide_gpus()
    threads = int(read('intra_op_parallelism_threads') or 0)
    self._server = server.make_server(
      cluster, tf.ConfigProto(intra_op_parallelism_threads=threads)
    )
    self.target = self._server.target if self._server else ''
    self.config = cluster.session_config(
      tf.ConfigProto(allow_soft_placement=True)
    )
    folder = read('fed_dir')
    self.data, self.test_data = (
      _load(folder, split) if folder else None for split in ('train', 'test')
    )

  def device_setter(self):
    """Returns what puts variables on the ps, in turn, for tf.device."""
    if 'ps' not in self.cluster_spec:
      return ''
    return tf.train.replica_device_setter(
      cluster=self.cluster_spec,
      worker_device=f'/job:worker/task:{self.task_index}',
    )


def main():
  words = sys.argv[1:]
  # Before the server starts its threads, which would otherwise get the signal.
  is_ps = command_line.find_value(words, 'job_name') == 'ps'
  ending = {signal.SIGTERM, signal.SIGINT}
  if is_ps:
    signal.pthread_sigmask(signal.SIG_BLOCK, ending)
  ctx = Context(words)
  if is_ps:
    print(f'{ctx.name} serves', flush=True)
    signal.sigwait(ending)
    # The server's threads would wait for sessions that are gone.
    sys.stdout.flush()
    os._exit(0)
  with open(command_line.find_value(words, 'main'), encoding='ascii') as file:
    function, args = pickle.loads(base64.b64decode(file.read()))
  try:
    result = function(args, ctx)
  except Exception as error:
    traceback.print_exc()
    raise _explain(function, error) from error
  if ctx.is_chief:
    _write(command_line.find_value(words, 'logdir'), function, result)


def _explain(function, error):
  """Returns the error (cli.RunError) that says where `function` failed."""
  frames = traceback.extract_tb(error.__traceback__)
  own = [f for f in frames if f.name == function.__name__] or frames
  said = (str(error).splitlines() or [''])[0]
  is_lost = type(error).__name__ in ('UnavailableError', 'AbortedError')
  kind = cli.LostError if is_lost else cli.RunError
  return kind(
    f'{os.path.basename(own[-1].filename)}:{own[-1].lineno}, in '
    f'{function.__name__}(): {type(error).__name__}: {said[:300]}'
  )


def _write(logdir, function, result):
  """Writes what the chief's function returned where the agent finds it."""
  try:
    content = json.dumps({'result': result})
  except (TypeError, ValueError) as error:
    raise cli.UsageError(
      f'{function.__name__}() returned {type(result).__name__}: {error}; '
      'expected what JSON has: numbers, texts, lists and dicts'
    ) from error
  os.makedirs(logdir, exist_ok=True)
  with open(os.path.join(logdir, 'report.json'), 'w', encoding='utf-8') as file:
    file.write(content)


def _load(folder, split):
  found = array_folder.load(folder, split)
  if found is None:
    return None
  _, (first, *_) = array_folder.flatten(found[1])
  return found if len(first) else None


if __name__ == '__main__':
  cli.run(main, sys.argv[:1])  # The flags are not absl flags.
