"""Checks the flags of many trainings at once: python -m distmnist.check FILE.

FILE is JSON: num_ps, num_workers, and `flags`, a list of str for each training.
What train would say of each before it starts, None or one line, becomes a list
in FILE.checked. TensorFlow is imported once, and a data set is loaded once.
"""

import distmnist.runtime  # noqa: F401  TensorFlow, quiet and in graph mode.

# isort: split
import dataclasses
import json
import os

from absl import flags
from absl.testing import flagsaver

from distmnist import cli, train, workload
from distmnist import cluster as cluster_lib

FLAGS = flags.FLAGS


def main(words):
  (path,) = words
  with open(path, encoding='utf-8') as file:
    asked = json.load(file)
  checker = Checker(asked['num_ps'], asked['num_workers'])
  found = [checker.find_mistake(words) for words in asked['flags']]
  with open(path + '.new', 'w', encoding='utf-8') as file:
    json.dump(found, file)
  os.replace(path + '.new', path + '.checked')


class Checker:
  """Has train's own checks of a worker 0, for a cluster of one shape.

  That the data are missing is no mistake in the flags of one training: it ends
  the program.
  """

  def __init__(self, num_ps, num_workers):
    self._hosts = {}
    if num_ps + num_workers > 1:
      self._hosts = {
        'ps_hosts': tuple(f'ps{i}:2222' for i in range(num_ps)),
        'worker_hosts': tuple(f'worker{i}:2222' for i in range(num_workers)),
      }
    self._data_flags = None
    self._sizes = None

  def find_mistake(self, words):
    """Returns what is wrong with the flags `words`, one line, or None."""
    with flagsaver.flagsaver():
      try:
        self._check(words)
      except (flags.Error, cli.UsageError) as error:
        return ' '.join(str(error).split())
    return None

  def _check(self, words):
    no_flags = FLAGS(['train', *words])[1:]
    if no_flags:
      raise cli.UsageError(f'{no_flags[0]!r} is not a flag of train')
    cluster = dataclasses.replace(cluster_lib.from_flags(), **self._hosts)
    train.check_flags(cluster, *self._count_images())

  def _count_images(self):
    """Returns the sizes of the training and of the validation split."""
    data_flags = [
      (flag.name, flag.value)
      for module, found in FLAGS.flags_by_module_dict().items()
      if module.startswith(('distmnist.workload', 'distmnist.datasets.'))
      for flag in found
      if flag.name != 'model'
    ]
    if data_flags != self._data_flags:
      splits = workload.load_training_splits()
      self._sizes = [len(split.images) for split in splits]
      self._data_flags = data_flags
    return self._sizes


def run():
  cli.run(main, leave=os._exit, takes_words=True)


if __name__ == '__main__':
  run()
