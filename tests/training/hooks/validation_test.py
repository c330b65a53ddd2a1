"""validation: what is evaluated is what is kept; early stopping."""

import types

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.common import console
from distmnist.lifecycle import restoring
from distmnist.logdir import best, checkpoints, saving
from distmnist.nn import plateau
from distmnist.training.hooks import validation


@pytest.fixture
def chief(tf_session, tmp_path):
  return Chief(tf_session, tmp_path / 'best')


class Chief:
  """A center of [w] whose accuracy is w, and a hook that evaluates it."""

  def __init__(self, session, folder, patience=2, factor=None):
    self.session, self.folder, self.patience = session, folder, patience
    self.plateau = self.cuts = None
    self.global_step = tf.train.get_or_create_global_step()
    self.w = tf.get_variable('w', [1])
    self.slot = tf.get_variable('w/Momentum', [1])
    if factor:
      self.plateau = plateau.Plateau(self.global_step, factor)
      self.cuts = self.plateau.build_cuts()
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
      plateau=self.plateau,
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

  def run_to(self, step, w, is_last=False):
    context = types.SimpleNamespace(
      session=self.session, stop_requested=is_last
    )
    self.hook.before_run(context)
    self.set(step, w)
    self.steps.last['global_step'] = step
    self.hook.after_run(context, None)

  def read_cuts(self):
    """Returns the cuts that hold in the next step, the steps of all so far."""
    self.session.run(self.global_step.assign_add(1))
    lines = [line for line in self.lines if 'learning rate' in line]
    steps = [int(line.split(':')[0].removeprefix('step ')) for line in lines]
    return int(self.session.run(self.cuts)), steps

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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_without_patience_it_never_ends(tf_session, tmp_path):
  chief = Chief(tf_session, tmp_path, patience=0)
  for step in range(5, 100, 5):
    chief.run_to(step, 0.5)
  assert chief.stops == []
  assert len(chief.lines) == 9


@pytest.mark.slow
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


@pytest.mark.slow
def test_what_is_never_a_number_ends_the_training_as_well(chief):
  for step, w in [(5, 0), (10, float('nan')), (15, 0), (20, float('nan'))]:
    chief.run_to(step, w)
  assert len(chief.stops) == 1
  assert chief.lines == [
    'step 10: validation accuracy nan, loss 2.0000',
    'step 20: validation accuracy nan, loss 2.0000',
    'early stopping at step 20: 2 evaluations none of which gave a number',
  ]


@pytest.fixture
def cutting(tf_session, tmp_path, set_flags):
  set_flags('--lr_patience=2')
  return Chief(tf_session, tmp_path / 'best', patience=0, factor=0.5)


@pytest.mark.slow
def test_the_rate_is_cut_after_each_patience(cutting):
  path = [(5, 0), (10, 0.5), (20, 0.25), (30, 0.5), (40, 0.25), (50, 0.25)]
  path += [(60, 0.25), (70, 0.75), (80, 0.25), (90, float('nan'))]
  for step, w in path:
    cutting.run_to(step, w)
  assert cutting.read_cuts() == (3, [30, 50, 90])
  assert cutting.lines[2:4] == [
    'step 30: validation accuracy 0.5000, loss 2.0000',
    'step 30: the learning rate is 0.5 times what it was from the next step on '
    '(cut 1): 2 evaluations without a better one than 0.5000 at step 10',
  ]


@pytest.mark.slow
def test_a_cut_holds_for_those_who_have_gone_on_meanwhile(cutting):
  for step, w in [(5, 0), (10, 0.5), (20, 0.25)]:
    cutting.run_to(step, w)
  # Others, which wait for nobody, are at step 37 when the chief has judged.
  cutting.meanwhile = lambda: cutting.set(37, 0.25)
  cutting.run_to(30, 0.25)
  assert cutting.read_cuts() == (1, [37])
  cutting.meanwhile = lambda: None
  cutting.run_to(40, 0.25)
  assert cutting.read_cuts() == (1, [37])


@pytest.mark.slow
def test_rate_best_and_patience_outlive_a_chief_and_its_center(
  cutting, tmp_path
):
  for step, w in [(5, 0), (10, 0.5), (20, 0.25), (30, 0.25), (40, 0.25)]:
    cutting.run_to(step, w)
  saver = tf.train.Saver()
  path = saver.save(cutting.session, str(tmp_path / 'model.ckpt'))
  with tf.Session() as session:
    saver.restore(session, path)
    cutting.session = session
    cutting.begin()
    assert cutting.hook.best.step == 10
    cutting.run_to(42, 0.25)  # Its first step judges nothing.
    assert cutting.read_cuts() == (1, [30])
    cutting.run_to(50, 0.25)  # The fourth that is not better.
    assert cutting.read_cuts() == (2, [30, 50])


@pytest.mark.slow
def test_after_the_last_step_no_rate_is_cut_until_the_training_goes_on(
  cutting,
):
  for step, w in [(5, 0), (10, 0.5), (20, 0.25)]:
    cutting.run_to(step, w)
  cutting.run_to(30, 0.25, is_last=True)
  assert cutting.session.run(cutting.plateau.variable).tolist() == [0, -1]
  cutting.begin()
  cutting.run_to(31, 0.25)
  assert cutting.read_cuts() == (1, [30])


@pytest.mark.slow
def test_a_chief_makes_the_cut_that_an_earlier_one_had_only_noted(cutting):
  for step, w in [(5, 0), (10, 0.5), (20, 0.25)]:
    cutting.run_to(step, w)
  before = cutting.session.run(cutting.plateau.variable)
  cutting.run_to(30, 0.25)
  # It was killed once the evaluation was noted.
  cutting.session.run(cutting.plateau.variable.assign(before))
  cutting.lines.clear()
  cutting.begin()
  cutting.run_to(31, 0.25)
  cutting.run_to(32, 0.25)
  assert cutting.read_cuts() == (1, [30])


def set_back(cutting, step, cuts=(0, -1)):
  """Lets the chief find its center restored at `step` with these cuts."""
  cutting.set(step, 0)
  cutting.session.run(cutting.plateau.variable.assign(cuts))
  cutting.lines.clear()
  cutting.hook.on_new_center(cutting.session)
  cutting.begin_session()


@pytest.mark.slow
@pytest.mark.parametrize(
  'is_new_life, rest, worse',
  [
    (True, [(20, 0.25), (29, 0.25), (30, 0.25), (40, 0.25)], [20, 30, 40]),
    # Asynchronously no step is seen twice.
    (False, [(21, 0.25), (29, 0.25), (33, 0.25), (44, 0.25)], [21, 33, 44]),
  ],
)
def test_a_training_that_is_set_back_is_cut_where_it_was(
  cutting, is_new_life, rest, worse
):
  for step, w in [(5, 0), (10, 0.5), (20, 0.25), (30, 0.25), (40, 0.25)]:
    cutting.run_to(step, w)
  if is_new_life:
    cutting.begin()
  set_back(cutting, 19)
  assert cutting.hook.best.num_worse == 0
  for step, w in rest:
    cutting.run_to(step, w)
  assert cutting.read_cuts() == (1, [worse[1]])
  cutting.run_to(50, 0.25)
  assert cutting.hook.best.num_worse == 4
  assert cutting.read_cuts() == (2, [worse[1], 50])


@pytest.mark.slow
@pytest.mark.parametrize('is_new_life', [False, True])
def test_a_cut_before_the_best_is_made_again(cutting, is_new_life):
  path = [(10, 0.5), (20, 0.25), (30, 0.25), (40, 0.75), (50, 0.25)]
  for step, w in path:
    cutting.run_to(step, w)
  if is_new_life:
    cutting.begin()
  set_back(cutting, 25)
  cutting.run_to(29, 0.25)
  assert not [line for line in cutting.lines if 'learning rate' in line]
  for step, w in path[2:]:
    cutting.run_to(step, w)
  assert cutting.read_cuts() == (1, [30])
  cutting.run_to(60, 0.25)
  assert cutting.read_cuts() == (2, [30, 60])


@pytest.mark.slow
def test_what_is_due_at_the_first_step_of_a_life_is_evaluated(cutting):
  for step, w in [(9, 0), (10, 0.5)]:
    cutting.run_to(step, w)
  cutting.set(19, 0.25)
  cutting.begin()
  cutting.run_to(20, 0.25)
  assert cutting.hook.best.num_worse == 1


@pytest.mark.slow
def test_what_is_stopped_early_is_not_cut(cutting):
  cutting.patience = 2
  cutting.begin()
  for step, w in [(10, 0.5), (20, 0.25), (30, 0.25), (31, 0.25), (32, 0.25)]:
    cutting.run_to(step, w)
  assert len(cutting.stops) == 1
  assert cutting.read_cuts() == (0, [])


@pytest.mark.slow
def test_no_second_cut_is_made_as_long_as_the_first_is_untold(cutting):
  for step, w in [(10, 0.5), (20, 0.25), (30, 0.25), (40, 0.25)]:
    cutting.run_to(step, w)
  # The message of step 40 was lost: the cut is told again in that of 50.
  cutting.session.run(cutting.plateau.variable.assign([1, 50]))
  cutting.run_to(50, 0.25)
  assert cutting.session.run(cutting.plateau.variable).tolist() == [1, 50]
  cutting.run_to(51, 0.25)
  assert cutting.session.run(cutting.plateau.variable).tolist() == [2, 51]
