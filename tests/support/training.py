"""A worker of a cluster in this process, which trains as the program does."""

import threading

import tensorflow.compat.v1 as tf

from distmnist.lifecycle import liveness, lost_workers
from distmnist.lifecycle import session as session_lib
from distmnist.logdir import history as history_lib
from distmnist.logdir import restart
from distmnist.training import flag_checks, worker_graph
from distmnist.training.hooks import batch_hook, stop_hook
from distmnist.training.problems import problem as problem_lib
from distmnist.training.problems import problem_checks, problem_data
from tests.support import in_process

SEED = 3
_building = threading.Lock()


class _Start(tf.train.SessionRunHook):
  """Keeps the first values."""

  def __init__(self, variables):
    self._variables = variables

  def after_create_session(self, session, coord):
    self.values = read(session, self._variables)


def read(session, variables):
  """Returns {name: array}, of variables that are too small to be cut."""
  return {v.op.name.split('/part_')[0]: session.run(v) for v in variables}


def train(member, server=None):
  """Trains by the flags; returns (first, last values of the center, losses).

  Args:
    member: cluster.Cluster of a worker.
    server: tf.train.Server of this worker, or None for one process.
  """
  task = in_process.make_task(member, server)
  with tf.Graph().as_default():
    # A model of Keras, all workers' here, is built by one at a time.
    with _building:
      problem = problem_lib.from_flags()
      splits = problem_data.load_training_splits(problem)
      sizes = [split.num_examples for split in splits]
      choice = flag_checks.check(member, *sizes)
      problem_checks.check_graph(
        problem, splits[0], choice.plan.slice_size, choice.strategy
      )
      graph = worker_graph.build(task, choice, splits[0], SEED)
    steps, hooks_of_steps = _make_steps(task, choice, graph)
    last, losses = {}, []
    start = _Start(graph.step.center)
    of_rule = [*choice.strategy.hooks(task.stop), graph.step.table.hook()]
    hooks = [
      liveness.LivenessHook(task),
      start,
      steps,
      *of_rule,
      *hooks_of_steps,
      in_process.AtEnd(lambda s: last.update(read(s, graph.step.center))),
    ]
    scaffold = session_lib.ClusterScaffold(
      task, restart.Restart(None, 'auto', 10**9), tf.train.Saver(), of_rule
    )
    with session_lib.make_session(task, scaffold, hooks) as session:
      while not session.should_stop():
        session.run([])
        losses += [steps.last['loss']] if steps.done else []
  return start.values, last, losses


def _make_steps(task, choice, graph):
  """Returns a fused_steps.Steps, and the hooks by which it runs and ends."""
  history = history_lib.from_flags(None, task.cluster.task_index, life=1)
  source = worker_graph.make_source(task, choice.plan, graph, history, SEED)
  steps, _ = worker_graph.make_steps(source, graph, has_summaries=False)
  stop = stop_hook.StopHook(
    steps,
    graph.step.global_step,
    graph.step.table.find_end,
    task.stop,
    lambda: False,
    choice.strategy.request_stop,
  )
  batches = batch_hook.BatchHook(
    source,
    graph.step.table,
    steps,
    choice.strategy,
    lost_workers.LostWorkers(
      task.cluster, task.watchdog, task.stalls.warn_secs
    ),
    lambda: False,
    task,
  )
  return steps, [stop, batches]
