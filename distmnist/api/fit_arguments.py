"""The arguments of Keras's fit: what each is in distmnist.fit, or instead."""

import math
import operator

_WEIGHTS = (
  'weights are part of the loss: write a problem with a loss of its own for '
  'distmnist.run'
)
_INSTEAD = {
  'callbacks': (
    'early_stopping_patience, lr_schedule and logdir stand for the most usual '
    'ones, and on_line gets each line'
  ),
  'class_weight': _WEIGHTS,
  'initial_epoch': 'with a logdir, the same call goes on where it ended',
  'sample_weight': _WEIGHTS,
  'shuffle': 'each epoch is shuffled, by seed',
  'steps_per_epoch': 'give epochs or train_steps',
  'validation_batch_size': 'the validation data is read in parts that fit',
  'validation_freq': 'give validation_steps, the steps from one to the next',
  'verbose': 'log_secs are the seconds between lines, and on_line gets each',
}


def check(settings):
  """Refuses what Keras's fit takes and distmnist.fit does not.

  Args:
    settings: iterable of str, the names of what was given.

  Raises:
    ValueError: one of them is.
  """
  for name in settings:
    if name in _INSTEAD:
      raise ValueError(
        f'{name} is for Keras, not for distmnist.fit: {_INSTEAD[name]}'
      )


def make_splits(x, y, validation_data, validation_split):
  """Returns {name: (x, y)} of NumPy's arrays: train, and validation if given.

  Args:
    x: array [n, ...], or a dict, tuple or list of arrays.
    y: array [n, ...].
    validation_data: (x, y) or None.
    validation_split: float, the part of x and y, their last examples, that is
      validation data instead; or None.

  Raises:
    ValueError: both are given; the one is not a pair, or the other not a part
      that leaves examples on both sides; y has several arrays; or as by
      array_folder.make.
  """
  from distmnist.data import array_folder  # noqa: PLC0415  Cheap until used.

  pairs = {'train': (x, y)}
  if validation_data is not None:
    if not isinstance(validation_data, (tuple, list)) or (
      len(validation_data) != 2
    ):
      raise ValueError('validation_data: expected (x, y), without weights')
    if validation_split:
      raise ValueError('validation_data and validation_split: expected one')
    pairs['validation'] = validation_data
  splits = {name: array_folder.make(*pair) for name, pair in pairs.items()}
  if (parts := len(array_folder.flatten(splits['train'][1])[1])) > 1:
    raise ValueError(
      f'y has {parts} arrays, and fit trains models of one output: for several '
      'write a file with make_model(), loss(y, outputs) and metrics(y, outputs)'
      ' for distmnist.run, see docs/keras.md'
    )
  if not validation_split:
    return splits
  train = splits['train']
  number = len(array_folder.flatten(train[0])[1][0])
  # Keras's own formula.
  end = math.floor(number * (1 - validation_split))
  if not 0 < end < number:
    raise ValueError(
      f'validation_split={validation_split:g} of {number} examples: expected a '
      'part between 0 and 1 that leaves some to train on and some to judge by'
    )
  return {
    name: tuple(
      array_folder.map_arrays(operator.itemgetter(part), nest) for nest in train
    )
    for name, part in (
      ('train', slice(end)),
      ('validation', slice(end, None)),
    )
  }
