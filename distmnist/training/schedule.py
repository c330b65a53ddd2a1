"""The amount to read and train, set by flags: batches, epochs, steps."""

from __future__ import annotations

import dataclasses
import fractions
import math
from typing import TYPE_CHECKING

from absl import flags

from distmnist.common import cli
from distmnist.exchange.steps import run_length
from distmnist.logdir import checkpoint_reader
from distmnist.training.batches import batch_table

if TYPE_CHECKING:
  from distmnist.cluster import cluster as cluster_lib
  from distmnist.transport import strategy as strategy_lib

_BATCH_SIZE = flags.DEFINE_integer(
  'batch_size', 100, 'Images in one batch of one worker.', lower_bound=1
)
_GRADIENT_ACCUMULATION = flags.DEFINE_integer(
  'gradient_accumulation',
  1,
  'Batches of --batch_size in one step of a worker: their gradients are '
  'computed one after the other, in the memory of one batch, and their mean is '
  'the gradient of the step. The averages of batch norm move with each of '
  'these batches, in order. Each batch is a copy of the model in the graph.',
  lower_bound=1,
  upper_bound=1000,
)
_TRAIN_STEPS = flags.DEFINE_integer(
  'train_steps',
  None,
  'The global step (updates of the center, by all workers) at which training '
  'ends, also if --resume begins it at a later one than 0. With --epochs as '
  'well, whichever comes first.',
  lower_bound=1,
)
_EPOCHS = flags.DEFINE_float(
  'epochs',
  None,
  'Passes over the training images, each read exactly once; see '
  '--epochs_over. The work is shared: a fast worker does more of it. A run '
  'that is started again makes those that are left; one that --resume begins '
  'with the checkpoint of another --logdir makes all of them. By default 1 '
  'without --train_steps and --train_secs.',
  lower_bound=0,
  upper_bound=1e9,
)
_TRAIN_SECS = flags.DEFINE_float(
  'train_secs',
  None,
  'Seconds after the first step of worker 0 at which the training ends, as at '
  'its last step; one that is started again has as long once more. With '
  '--train_steps or --epochs as well, whichever comes first.',
  lower_bound=0.1,
)
_EPOCHS_OVER = flags.DEFINE_enum(
  'epochs_over',
  'shard',
  ['shard', 'dataset'],
  'What an epoch is. shard: one pass of all workers together, each taking '
  'batches of it; dataset: each worker passes over the whole set, in an order '
  'of its own, so that n workers make n passes in an epoch.',
)


@dataclasses.dataclass(frozen=True)
class Plan:
  """What is read, and how much all workers do.

  Attributes:
    num_images: the training images.
    images_per_epoch: what all workers read in an epoch.
    num_slices: the slices of a batch, each with --batch_size on each GPU.
    dealing: how the batches are dealt.
    epochs: the passes asked for; None if steps are.
  """

  num_images: int
  images_per_epoch: int
  num_slices: int
  dealing: batch_table.Dealing
  epochs: fractions.Fraction | None = None

  @property
  def batch_size(self) -> int:
    """Images in one local step."""
    return self.dealing.batch_size

  @property
  def images_per_update(self) -> int:
    """Images in one global step."""
    return self.dealing.images_per_step

  @property
  def slice_size(self) -> int:
    """Images of a local step that are processed at once."""
    return self.batch_size // self.num_slices

  @property
  def last_step(self) -> int:
    """The global step at which a training ends that begins at step 0."""
    return self.dealing.last_step

  def is_last(self, path: str, step: int, is_of_other_run: bool) -> bool:
    """Whether the training has ended with a checkpoint.

    The file is read only where its step may be the last: a run that has begun
    with the weights of another ends later than one that has not.

    Args:
      path, is_of_other_run: see `find_last_step`.

    Raises:
      cli.RunError: it cannot be read.
    """
    if step < self.last_step:
      return False
    return step >= self.find_last_step(path, is_of_other_run)

  def find_last_step(self, path: str, is_of_other_run: bool) -> int:
    """Returns the global step at which the training ends.

    Args:
      path: the checkpoint that it begins with or goes on from.
      is_of_other_run: whether another run has left it.

    Raises:
      cli.RunError: it cannot be read.
    """

    first_step = 0
    with checkpoint_reader.Reader(path) as reader:
      if is_of_other_run:
        first_step = int(reader.read('global_step'))
      elif batch_table.NAME in reader.shapes:
        table = reader.read(batch_table.NAME)
        first_step = batch_table.find_first_step(table)
    return self.dealing.begun_at(first_step).last_step


def secs_from_flags() -> float | None:
  """Returns --train_secs, None for no limit."""
  return _TRAIN_SECS.value


def describe_end(plan: Plan) -> str:
  """Returns how long a training is: '550 global steps', 'for 10 s'.

  Of --epochs and --train_steps the text has which comes first.
  """
  steps, secs = plan.dealing.known_last_step, _TRAIN_SECS.value
  if steps is None:
    return f'for {secs:g} s'
  text = f'{steps} global steps'
  by_steps, by_epochs = plan.dealing.train_steps, plan.dealing.epoch_steps
  if None not in (by_steps, by_epochs) and by_steps != by_epochs:
    first, later = f'--epochs={_EPOCHS.value:g}', f'--train_steps={by_steps}'
    if steps == by_steps:
      first, later = later, first
    text += f' ({first}; {later} is later)'
  return text + (f' or {secs:g} s' if secs else '')


def make_plan(
  cluster: cluster_lib.Cluster,
  strategy: strategy_lib.Strategy,
  num_images: int,
  unit: str = 'images',
) -> Plan:
  """Returns the Plan that the flags ask for.

  Args:
    num_images: the size of the training split.
    unit: what the problem calls its examples.

  Raises:
    cli.UsageError: a batch is larger than the training split, or there are more
      workers than examples.
  """
  num_towers = len(cluster.tower_devices)
  num_slices = _GRADIENT_ACCUMULATION.value
  batch_size = _BATCH_SIZE.value * num_towers * num_slices
  if batch_size > num_images:
    times = f' on each of {num_towers} GPUs' if num_towers > 1 else ''
    if num_slices > 1:
      times += f' times --gradient_accumulation={num_slices}'
    raise cli.UsageError(
      f'--batch_size={_BATCH_SIZE.value}{times} is larger than the '
      f'{num_images} training {unit}'
    )
  has_own_streams = _EPOCHS_OVER.value == 'dataset'
  if cluster.num_workers > num_images and not has_own_streams:
    raise cli.UsageError(
      f'{cluster.num_workers} workers share {num_images} training {unit}: '
      f'take at most {num_images} workers'
    )
  images_per_epoch = num_images * (
    cluster.num_workers if has_own_streams else 1
  )
  images_per_update = strategy.batches_per_update * batch_size
  if images_per_update >= 2**63:
    raise cli.UsageError(
      f'a global step of {strategy.batches_per_update} batches would have more '
      f'{unit} than can be counted: give a smaller --communication_period, '
      '--n_push or --replicas_to_aggregate'
    )
  epochs, epoch_steps = _find_epochs(images_per_epoch, images_per_update)
  train_steps = _TRAIN_STEPS.value
  ends = [n for n in (train_steps, epoch_steps) if n is not None]
  return Plan(
    num_images=num_images,
    images_per_epoch=images_per_epoch,
    num_slices=num_slices,
    epochs=epochs,
    dealing=batch_table.Dealing(
      num_workers=cluster.num_workers,
      batch_size=batch_size,
      batches_per_push=strategy.push_period,
      last_step=min(ends, default=batch_table.NO_LAST_STEP),
      is_lock_step=strategy.is_lock_step
      or cluster.num_workers == strategy.pushes_per_step == 1,
      pushes_per_step=strategy.pushes_per_step,
      has_own_streams=has_own_streams,
      steps_per_run=run_length.find_lease_unit(),
      train_steps=train_steps,
      epoch_steps=epoch_steps,
    ),
  )


def _find_epochs(
  images_per_epoch: int, images_per_update: int
) -> tuple[fractions.Fraction | None, int | None]:
  """Returns (passes asked for, their global steps); twice None if none are."""
  epochs = _EPOCHS.value
  if epochs is None:
    if (_TRAIN_STEPS.value, _TRAIN_SECS.value) != (None, None):
      return None, None
    epochs = 1
  # The number as typed, not the nearest float: 1.1 times 10 is 11.
  epochs = fractions.Fraction(repr(epochs))
  images = epochs * images_per_epoch
  return epochs, max(1, math.ceil(images / images_per_update))
