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

from __future__ import annotations

import distmnist.runtime  # TensorFlow, quiet and in graph mode.

# isort: split
import base64
import json
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import tensorflow.compat.v1 as tf
from absl import flags

from distmnist.cluster import errors, role_flags
from distmnist.cluster import server as server_lib
from distmnist.common import cli
from distmnist.data import array_folder
from distmnist.logdir import logdirs
from distmnist.training import script_errors
from distmnist.training.problems import (
  problem_data,  # noqa: F401  --fed_dir
  user_calls,
)

if TYPE_CHECKING:
  from distmnist.cluster import cluster as cluster_lib

# An agent sends it to the driver in one message, of at most 4 MiB.
_MAX_RESULT_BYTES = 4_000_000
_MAIN = flags.DEFINE_string(
  'main', None, 'File with the function and its arguments, as Spark sends it.'
)


class Context:
  """What a function knows about the cluster.

  Attributes:
    job_name: 'worker'.
    task_index: counted from 0, which is the chief.
    name: 'worker 0'.
    cluster_spec: {'ps': list of 'host:port', 'worker': likewise}.
    target: this task's server, for a session.
    config: tf.ConfigProto for a session that needs the ps and no other worker:
      a late worker does not wait for one that is done.
    data, test_data: (x, y), arrays [n, ...] or nests of them, this worker's own
      part of the feed and the chief's test examples; None if there are none.
  """

  def __init__(self, cluster: cluster_lib.Cluster, folder: str | None) -> None:
    """Starts the server of this task.

    Args:
      folder: where the examples of this worker are.

    Raises:
      cli.RunError: it cannot serve on its port.
    """
    self.job_name, self.task_index = cluster.job_name, cluster.task_index
    self.name, self.is_chief = cluster.name, cluster.is_chief
    self.num_workers = cluster.num_workers
    self.cluster_spec = cluster.spec().as_dict()
    self._server = server_lib.make_server(
      cluster, server_lib.make_server_config(cluster.num_gpus)
    )
    self.target = self._server.target if self._server else ''
    self.config = cluster.session_config(
      tf.ConfigProto(allow_soft_placement=True)
    )
    self.data, self.test_data = (
      _load(folder, split) if folder else None for split in ('train', 'test')
    )

  def device_setter(self) -> Callable[[tf.Operation], str] | str:
    """Returns what puts variables on the ps, in turn, for tf.device."""
    if 'ps' not in self.cluster_spec:
      return ''
    return tf.train.replica_device_setter(
      cluster=self.cluster_spec,
      worker_device=f'/job:worker/task:{self.task_index}',
    )


def main() -> None:
  cluster = role_flags.from_flags()
  # Before the server starts its threads, which would otherwise get the signal.
  is_ps = cluster.job_name == 'ps'
  ending = {signal.SIGTERM, signal.SIGINT}
  if is_ps:
    distmnist.runtime.hide_gpus()
    signal.pthread_sigmask(signal.SIG_BLOCK, ending)
  ctx = Context(cluster, flags.FLAGS.fed_dir)
  if is_ps:
    print(f'{ctx.name} serves', flush=True)
    signal.sigwait(ending)
    # The server's threads would wait for sessions that are gone.
    sys.stdout.flush()
    os._exit(0)
  logdir = logdirs.from_flags()
  if not (_MAIN.value and logdir):
    raise cli.UsageError('--main or --logdir is missing: Spark gives both')
  with open(_MAIN.value, encoding='ascii') as file:
    function, args = pickle.loads(base64.b64decode(file.read()))
  try:
    with script_errors.explained(function.__code__.co_filename):
      result = function(args, ctx)
  except Exception as error:
    traceback.print_exc()
    if isinstance(error, (cli.RunError, cli.UsageError)):
      raise
    is_loss = isinstance(error, tf.errors.OpError) and errors.is_loss(error)
    raise (cli.LostError if is_loss else cli.RunError)(
      f'{function.__name__}(): {user_calls.describe(error)}'
    ) from error
  if ctx.is_chief:
    _write(logdir, function, result)


def _write(logdir: str, function: Callable[..., Any], result: Any) -> None:
  """Writes what the chief's function returned where the agent finds it."""
  try:
    content = json.dumps({'result': result})
  except (TypeError, ValueError) as error:
    raise cli.UsageError(
      f'{function.__name__}() returned {type(result).__name__}: {error}; '
      'expected what JSON has: numbers, texts, lists and dicts'
    ) from error
  if len(content) > _MAX_RESULT_BYTES:
    raise cli.UsageError(
      f'{function.__name__}() returned {len(content)} bytes of JSON: expected'
      f' at most {_MAX_RESULT_BYTES}: write the rest to a file'
    )
  os.makedirs(logdir, exist_ok=True)
  with open(os.path.join(logdir, 'report.json'), 'w', encoding='utf-8') as file:
    file.write(content)


def _load(folder: str, split: str) -> Any:
  found = array_folder.load(folder, split)
  if found is None:
    return None
  _, (first, *_) = array_folder.flatten(found[1])
  return found if len(first) else None


if __name__ == '__main__':
  cli.run(main)
