import contextlib
import time

import pytest
import tensorflow.compat.v1 as tf

from distmnist.cluster import cluster as cluster_lib
from distmnist.common import console as console_lib
from distmnist.lifecycle import session as session_lib
from distmnist.training import (
  flag_checks,
  run_folder,
  worker_graph,
  worker_loop,
)
from distmnist.training.problems import problem as problem_lib
from distmnist.training.problems import problem_data
from tests.support import in_process, problems


class Run:
  """One process that trains by the loop of the program."""

  def __init__(self):
    self.lines = []
    self.task = task = in_process.make_task(cluster_lib.Cluster())
    console_lib.print_logs(self.lines.append)
    task.serve()
    problem = problem_lib.from_flags()
    splits = problem_data.load_training_splits(problem)
    choice = flag_checks.check(
      task.cluster, *(split.num_examples for split in splits)
    )
    folder = run_folder.RunFolder(task, choice.plan.last_step, splits)
    task.begin_history(folder.path)
    with contextlib.ExitStack() as at_end, tf.Graph().as_default():
      folder.claim(problem, at_end)
      folder.sign()
      graph = worker_graph.build(task, choice, splits[0], seed=3)
      console = console_lib.Console(0)
      console.say = self.lines.append
      self.loop = worker_loop.WorkerLoop(task, choice, graph, folder, console)
      judges = dict.fromkeys(['test', 'validation'], splits[1])
      self.loop.build(3, judges)
      with session_lib.make_session(
        task, self.loop.scaffold, self.loop.hooks
      ) as session:
        while not session.should_stop():
          session.run([])
      self.loop.tell_chief()
      task.watchdog.close()
      self.loop.report(time.monotonic())

  def hooks(self):
    return [type(hook).__name__ for hook in self.loop.hooks]


@pytest.fixture
def train(set_flags):
  def run(*words):
    set_flags(
      *problems.FEW_IMAGES,
      '--model=softmax',
      '--batch_size=10',
      '--train_steps=4',
      *words,
    )
    return Run()

  return run


@pytest.mark.slow
def test_a_chief_has_few_hooks_and_ends_by_saving_and_waiting(train, tmp_path):
  words = '--trace_steps=2', '--validation_steps=2'
  run = train(f'--logdir={tmp_path}', *words)
  hooks = run.hooks()
  assert hooks == [
    *('LivenessHook', 'Steps', 'StopHook', 'BatchHook'),
    *('TelemetryHook', 'Chief', 'EndHook'),
  ]
  assert run.task.stop.find_unsaved() is None
  assert (tmp_path / 'model.ckpt-4.index').exists()
  assert (tmp_path / 'metrics' / 'worker_0' / 'trace_2.json').exists()
  assert (tmp_path / 'report.json').exists()


@pytest.mark.slow
def test_a_run_that_is_asked_to_stop_writes_no_report(train, monkeypatch):
  monkeypatch.setattr(in_process.NoStop, 'is_requested', True)
  run = train()
  assert run.lines[-1].startswith('stopped ')
  assert not any('test accuracy' in line for line in run.lines)


def test_each_hook_has_its_place_whatever_the_order_of_the_call():
  first, rules, last = object(), [object(), object()], object()
  found = worker_loop.order_hooks(
    end=last, save=None, rule=rules, liveness=first
  )
  assert found == [first, *rules, last]
  with pytest.raises(ValueError, match='no place in ORDER: later'):
    worker_loop.order_hooks(later=last)
