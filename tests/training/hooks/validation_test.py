"""validation: what is evaluated is what is kept; early stopping."""

import types

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.common import console
from distmnist.lifecycle import restoring
from distmnist.logdir import best, checkpoints, saving
from distmnist.training.hooks import validation


@pytest.fixture
def chief(tf_session, tmp_path):
  return Chief(tf_session, tmp_path / 'best')


class Chief:
  """A center of [w] whose accuracy is w, and a hook that evaluates it."""

  def __init__(self, session, folder, patience=2):
    self.session, self.folder, self.patience = session, folder, patience
    self.global_step = tf.train.get_or_create_global_step()
    self.w = tf.get_variable('w', [1])
    self.slot = tf.get_variable('w/Momentum', [1])
    session.run(tf.global_variables_initializer())
    self.steps = types.SimpleNamespace(last={'global_step': 0})
    self.meanwhile = lambda: None
    self.lines, self.stops = [], []
    console.print_logs(self.lines.append)
    self.begin()

  def begin(self):
    """A new life of the chief begins."""
    self.hook = validation.Validation(
      self.steps,
      self._evaluate,
      10,
      self.patience,
      best.Best(str(self.folder)),
      None,
      lambda run_context: self.stops.append(self.steps.last['global_step']),
    )
    self.hook.begin()
    self.begin_session()

  def begin_session(self):
    """Returns whether it is to make no step."""
    coord = tf.train.Coordinator()
    self.hook.after_create_session(self.session, coord)
    return coord.should_stop()

  def _evaluate(self, session):
    values = checkpoints.fetch_whole(session, tf.global_variables())
    self.meanwhile()
    accuracy = float(values['w'][0])
    return values, {'accuracy': accuracy, 'loss': 2.0}

  def set(self, step, w):
    self.session.run([self.global_step.assign(step), self.w.assign([w])])

  def run_to(self, step, w):
    self.set(step, w)
    self.steps.last['global_step'] = step
    context = types.SimpleNamespace(session=self.session, stop_requested=False)
    self.hook.after_run(context, None)

  def read_best(self):
    reader = tf.train.load_checkpoint(self.hook.best.path)
    return int(reader.get_tensor('global_step')), reader.get_tensor('w')[0]


def test_what_others_push_meanwhile_is_not_in_the_best(chief):
  chief.run_to(3, 0.25)
  # Others have pushed before the center is read, and while it is evaluated.
  chief.steps.last['global_step'] = 10
  chief.set(12, 0.5)
  chief.meanwhile = lambda: chief.set(17, 0.75)
  context = types.SimpleNamespace(session=chief.session, stop_requested=False)
  chief.hook.after_run(context, None)
  assert chief.lines == [
    'step 12: validation accuracy 0.5000, loss 2.0000 (best so far)'
  ]
  assert chief.read_best() == (12, 0.5)
  kept = chief.hook.best
  assert (kept.step, kept.value) == (12, 0.5)
  # All that a checkpoint holds is there: a training can go on from it.
  restoring.Restorer().restore(chief.session, kept.path)
  assert chief.session.run(chief.w).tolist() == [0.5]


def test_patience_runs_out_across_lives(chief):
  for step, w in [(5, 0), (10, 0.5), (15, 0), (20, 0.25)]:
    chief.run_to(step, w)
  assert chief.stops == []
  chief.begin()
  chief.run_to(25, 0)
  assert chief.stops == []
  chief.run_to(30, 0.375)
  assert len(chief.stops) == 1
  assert chief.lines[-1] == (
    'early stopping at step 30: 2 evaluations without a better one than 0.5000 '
    'at step 10'
  )
  chief.run_to(31, 0)  # A rule may take some steps to end.
  assert len(chief.stops) == 1
  assert chief.read_best() == (10, 0.5)
  # The chief was killed before it had ended.
  chief.begin()
  chief.run_to(32, 0)
  assert len(chief.stops) == 2


def test_what_has_ended_makes_no_step_when_it_is_started_again(chief):
  for step, w in [(5, 0), (10, 0.5), (20, 0.25), (30, 0.25)]:
    chief.run_to(step, w)
  del chief.lines[:], chief.stops[:]
  chief.begin()  # It takes over a live center, where others may wait for it.
  assert not chief.begin_session()
  chief.hook.on_new_center(chief.session)
  assert len(chief.stops) == 1
  assert chief.begin_session()
  assert chief.lines == [
    'early stopping at step 30: 2 evaluations without a better one than 0.5000 '
    'at step 10'
  ]


def test_without_patience_it_never_ends(tf_session, tmp_path):
  chief = Chief(tf_session, tmp_path, patience=0)
  for step in range(5, 100, 5):
    chief.run_to(step, 0.5)
  assert chief.stops == []
  assert len(chief.lines) == 9


def test_a_best_that_cannot_be_written_is_said(chief, monkeypatch):
  def fail(self, values, step):
    raise saving.SaveError('cannot write it')

  chief.run_to(5, 0)
  with monkeypatch.context() as patch:
    patch.setattr(saving.CheckpointWriter, 'save_values', fail)
    chief.run_to(10, 0.5)
  assert chief.lines == [
    'step 10: validation accuracy 0.5000, loss 2.0000 is not taken into '
    'account: cannot write it; the training goes on'
  ]
  chief.run_to(20, np.float32(0.25))
  assert chief.read_best() == (20, 0.25)


def test_what_is_never_a_number_ends_the_training_as_well(chief):
  for step, w in [(5, 0), (10, float('nan')), (15, 0), (20, float('nan'))]:
    chief.run_to(step, w)
  assert len(chief.stops) == 1
  assert chief.lines == [
    'step 10: validation accuracy nan, loss 2.0000',
    'step 20: validation accuracy nan, loss 2.0000',
    'early stopping at step 20: 2 evaluations none of which gave a number',
  ]
