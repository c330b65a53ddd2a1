"""Whether epochs can still be counted in global steps, in a run that goes on.

`--epochs` becomes a number of global steps, and so does a schedule in epochs:
right as long as all of them have the same number of images. A run may go on
with another --batch_size, another number of workers or another rule; then only
the table of its batches (batches/batch_table.py) tells how much was read.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from distmnist.common import cli
from distmnist.logdir import checkpoint_reader
from distmnist.nn import schedules
from distmnist.training.batches import batch_table

if TYPE_CHECKING:
  from distmnist.training import schedule


def check(
  path: str | None, plan: schedule.Plan, is_of_other_run: bool = False
) -> None:
  """Checks what a chief resumes from.

  Args:
    path: the checkpoint; None at the beginning of a run.
    is_of_other_run: whether another run has left it: then all epochs are still
      to be made.

  Raises:
    cli.UsageError: --epochs would end the training too soon or too late, or the
      learning rate would change too soon or too late.
  """
  epochs = None if is_of_other_run else plan.epochs
  if not path or (epochs is None and not schedules.counts_epochs()):
    return
  with checkpoint_reader.Reader(path) as reader:
    if batch_table.NAME not in reader.shapes:
      return
    table = reader.read(batch_table.NAME)
    step = int(reader.read('global_step'))
  dealing = plan.dealing
  step = batch_table.count_steps(table, step)
  if not batch_table.has_mixed_steps(table, step, dealing):
    return
  read = batch_table.count_images_read(table, step, dealing)
  so_far = f'{read / plan.images_per_epoch:.2f} epochs are read so far'
  why = (
    f'not all steps of the run in {path} have {plan.images_per_update} images, '
    'as they have now, so its steps do not count epochs'
  )
  if epochs is None:
    per_epoch = plan.images_per_epoch / plan.images_per_update
    raise cli.UsageError(
      f'--lr_schedule_unit=epochs: {why}: give the schedule in global steps '
      f'instead; {so_far}, at step {step}, and one more takes {per_epoch:g}'
    )
  left = math.ceil(epochs * plan.images_per_epoch) - read
  if left > 0:
    last_step = step + math.ceil(left / plan.images_per_update)
    so_far += f', and --train_steps={last_step} makes it {float(epochs):g}'
  raise cli.UsageError(
    f'--epochs={float(epochs):g}: {why}: give --train_steps instead; {so_far}'
  )
