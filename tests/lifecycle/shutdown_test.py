"""The end: what workers say to the ps."""

import collections
import contextlib
import time
import types

import pytest
import tensorflow.compat.v1 as tf

from distmnist.cluster import cluster as cluster_lib
from distmnist.cluster import probing
from distmnist.common import cli
from distmnist.common.names import ATTEMPT
from distmnist.lifecycle import shutdown
from distmnist.logdir import report as report_lib
from distmnist.logdir import saving

PS = '/job:ps/task:0'
CLUSTER = types.SimpleNamespace(name='worker 0', num_ps=1)


@pytest.fixture
def said(monkeypatch):
  """The messages in each queue, {(device, name): list}, in this process."""
  found = collections.defaultdict(list)

  class Queue:
    def __init__(self, cluster, server, place, name):
      self._messages = found[place, name]

    def send(self, message, timeout_secs=5.0):
      self._messages.append(message)

    def take(self):
      return self._messages.pop(0)

    def size(self):
      return len(self._messages)

  monkeypatch.setattr(shutdown.message_queue, 'MessageQueue', Queue)
  return found


def make_others():
  """Returns the shutdown.Others of the chief and of worker 1."""
  hosts = ('p:1',), ('v:1', 'w:1'), 'worker'
  return [
    shutdown.Others(cluster_lib.make_cluster(*hosts, i), None) for i in range(2)
  ]


def test_what_a_worker_has_sent_is_heard_after_it_is_gone(
  said, logged, monkeypatch
):
  chief, worker = make_others()

  def find_gone(self, addresses):
    # It has sent and left since the chief looked for messages.
    worker.send_stats(report_lib.WorkerStats(1, local_steps=5))
    return dict(addresses)

  monkeypatch.setattr(probing.Absences, 'find_gone', find_gone)
  [stats] = chief.wait_at_end(60, time.sleep)
  assert (stats.worker, stats.local_steps) == (1, 5)
  assert logged == []


class Box:
  """Takes what a worker says to its ps."""

  def __init__(self):
    self.messages = []

  def send(self, message, timeout_secs):
    self.messages.append(message)


@pytest.fixture
def box(monkeypatch):
  box = Box()
  monkeypatch.setattr(
    shutdown, 'open_done_queue', lambda *args: contextlib.nullcontext(box)
  )
  return box


@pytest.mark.parametrize(
  'attempt, amid, comes_back',
  [
    ('', contextlib.nullcontext, False),
    ('2', contextlib.nullcontext, True),
    ('', cli.amid_run, True),
  ],
)
def test_a_ps_stays_for_a_worker_whose_exit_code_starts_it_again(
  box, monkeypatch, attempt, amid, comes_back
):
  if attempt:
    monkeypatch.setenv(ATTEMPT, attempt)
  stop = types.SimpleNamespace(is_requested=False)
  with (
    pytest.raises(cli.PassingError) as caught,
    shutdown.reporting_end_to_ps(CLUSTER, None, stop),
    amid(),
  ):
    raise cli.PassingError('the checkpoint cannot be read')
  assert (caught.value.exit_code == cli.LOST) == comes_back
  [message] = box.messages
  assert (message['ok'], message['comes_back']) == (False, comes_back)


@pytest.mark.parametrize(
  'failure, kind',
  [
    (tf.errors.UnavailableError(None, None, 'a ps'), cli.LostError),
    (tf.errors.InternalError(None, None, 'a bug'), tf.errors.InternalError),
    (RuntimeError('the session was closed'), RuntimeError),
  ],
)
def test_what_ends_a_worker_is_told_and_raised(box, failure, kind):
  stop = types.SimpleNamespace(is_requested=False)
  with (
    pytest.raises(kind),
    shutdown.reporting_end_to_ps(CLUSTER, None, stop),
  ):
    raise failure
  assert box.messages == [{'done': 'worker 0', 'ok': False, 'comes_back': True}]


def test_a_worker_at_its_end_is_done_and_does_not_come_back(box):
  stop = types.SimpleNamespace(is_requested=False)
  with shutdown.reporting_end_to_ps(CLUSTER, None, stop):
    pass
  assert box.messages == [{'done': 'worker 0', 'ok': True, 'comes_back': False}]


def test_what_one_worker_says_the_others_hear(said):
  chief, worker = make_others()
  assert not (worker.is_stop_for_all() or chief.is_stop_for_all())
  worker.stop_all()
  assert worker.is_stop_for_all() and chief.is_stop_for_all()
  assert not worker.is_saved()
  chief.say_saved()
  assert worker.is_saved()
  assert chief.num_left() == 0
  worker.send_stats(report_lib.WorkerStats(1, local_steps=5))
  assert chief.num_left() == 1
  [stats] = chief.wait_at_end(60, pytest.fail)
  assert (stats.worker, stats.local_steps) == (1, 5)
  # Only the chief is asked for a checkpoint.
  said[PS, 'save'].append({'ps': 0})
  assert chief.is_save_wanted() and not worker.is_save_wanted()


def test_a_save_that_fails_after_a_signal_ends_with_not_saved(box):
  stop = types.SimpleNamespace(
    is_requested=True, find_unsaved=lambda: 'step 9 is not saved'
  )
  with (
    pytest.raises(cli.NotSavedError, match='disk is full; step 9 is not saved'),
    shutdown.reporting_end_to_ps(CLUSTER, None, stop),
    cli.amid_run(),
  ):
    raise saving.PassingSaveError('disk is full')
  assert not box.messages
