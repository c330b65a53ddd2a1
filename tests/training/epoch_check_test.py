"""epoch_check: whether --epochs still counts in a run that goes on."""

import fractions

import numpy as np
import pytest

from distmnist.common import cli
from distmnist.logdir import saving
from distmnist.training import epoch_check, schedule
from distmnist.training.batches import batch_table
from tests.support.dealings import BATCH, make_dealing

N = 12 * BATCH  # Images.


def make_plan(dealing, epochs):
  return schedule.Plan(
    *(N, N, 1, dealing),
    epochs=epochs and fractions.Fraction(epochs),
  )


def save(folder, lives):
  """Saves what lives, (dealing, last global step), have left; the path."""
  table, step = batch_table.make_table(lives[0][0]), 0
  for dealing, last_step in lives:
    per_step = dealing.batches_per_push * dealing.pushes_per_step
    table = batch_table.fold(table, step, dealing, per_step)
    step = last_step
  writer = saving.CheckpointWriter(str(folder), 5)
  writer.save_values(
    {batch_table.NAME: table, 'global_step': np.int64(step)}, step
  )
  return writer.path_of_step(step)


@pytest.fixture(autouse=True)
def flags(set_flags):
  set_flags()


ONE = make_dealing(1, 1, 90, is_lock_step=True)
TWO = make_dealing(2, 1, 90, is_lock_step=True)._replace(pushes_per_step=2)


@pytest.mark.slow
def test_steps_of_one_size_count(tmp_path):
  for path in (None, save(tmp_path, [(TWO, 3), (TWO, 5)])):
    epoch_check.check(path, make_plan(TWO, 2))
  # A life that ended before its first step has none of another size.
  epoch_check.check(save(tmp_path, [(ONE, 0)]), make_plan(TWO, 1))
  epoch_check.check(save(tmp_path, [(ONE, 0), (TWO, 5)]), make_plan(TWO, 1))
  ends = [(ONE, 6), (TWO, 6), (ONE, 6)]
  epoch_check.check(save(tmp_path, ends), make_plan(ONE, 1))
  epoch_check.check(save(tmp_path, [*ends, (ONE, 8)]), make_plan(ONE, 1))
  # Nor does it matter where steps are what was asked for.
  epoch_check.check(save(tmp_path, [(ONE, 6)]), make_plan(TWO, None))


@pytest.mark.parametrize(
  'lives, epochs, said',
  [
    # Half an epoch by 6 steps of one batch; then two batches a step.
    ([(ONE, 6)], 1, r'0\.50 epochs are read so far, and --train_steps=9 makes'),
    ([(ONE, 6)], 1.5, r'and --train_steps=12 makes it 1\.5$'),
    (
      [(ONE, 12)],
      1,
      r'give --train_steps instead; 1\.00 epochs are read so fa',
    ),
    # Steps of this size, but not all of them.
    ([(ONE, 6), (TWO, 7)], 1, r'0\.67 epochs .*, and --train_steps=9 makes'),
    # Lives without a step do not hide those before them.
    ([(ONE, 6), (ONE, 6)], 1, r'0\.50 epochs .*, and --train_steps=9 makes'),
    ([(ONE, 6), (TWO, 6)], 1, r'0\.50 epochs .*, and --train_steps=9 makes'),
  ],
)
def test_steps_of_several_sizes_do_not(tmp_path, lives, epochs, said):
  path = save(tmp_path, lives)
  with pytest.raises(cli.UsageError, match=said):
    epoch_check.check(path, make_plan(TWO, epochs))


def test_a_schedule_in_epochs_needs_steps_of_one_size(tmp_path, set_flags):
  words = '--lr_schedule=step', '--lr_boundaries=0.5'
  set_flags(*words, '--lr_schedule_unit=epochs')
  epoch_check.check(save(tmp_path, [(TWO, 3)]), make_plan(TWO, None))
  path = save(tmp_path, [(ONE, 6)])
  with pytest.raises(cli.UsageError) as caught:
    epoch_check.check(path, make_plan(TWO, None))
  assert str(caught.value) == (
    f'--lr_schedule_unit=epochs: not all steps of the run in {path} have '
    f'{2 * BATCH} images, as they have now, so its steps do not count epochs: '
    'give the schedule in global steps instead; 0.50 epochs are read so far, '
    'at step 6, and one more takes 6'
  )
  for flag in '--lr_schedule_unit=steps', '--lr_schedule=constant':
    set_flags('--lr_schedule_unit=epochs', *words, flag, '--lr_boundaries=9')
    epoch_check.check(path, make_plan(TWO, None))
