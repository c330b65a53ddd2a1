"""Checks the flags of many trainings: python -m distmnist.check_flags FILE.

FILE is JSON: num_ps, num_workers, `flags`, a list of str for each training, and
`needs_data`: whether the data set is here to be checked. FILE.checked becomes a
list of what train would say about each before it starts: None or one line.
TensorFlow is imported once, and a data set is loaded once.
"""

from __future__ import annotations

import distmnist.runtime  # noqa: F401  TensorFlow, quiet and in graph mode.

# isort: split
import dataclasses
import json
import os
from collections.abc import Sequence
from typing import Any

from absl import flags
from absl.testing import flagsaver

from distmnist import train  # noqa: F401  All its flags.
from distmnist.cluster import role_flags
from distmnist.common import cli, command_line, files
from distmnist.common.names import DATASETS, PROBLEMS
from distmnist.training import flag_checks
from distmnist.training.problems import problem as problem_lib
from distmnist.training.problems import problem_data, problem_module

FLAGS = flags.FLAGS


def main(words: Sequence[str]) -> None:
  if len(words) != 1:
    raise cli.UsageError(f'{len(words)} files were given: expected one')
  (path,) = words
  cluster, each = _read(path)
  checker = Checker(*cluster)
  found = [checker.find_mistake(flags_of_one) for flags_of_one in each]
  with files.replacing(path + '.checked') as file:
    json.dump(found, file)


def _read(path: str) -> tuple[tuple[int, int, bool], list[list[str]]]:
  """Returns what a file asks: (num_ps, num_workers, needs_data), and `flags`.

  Raises:
    cli.UsageError: it cannot be read, or is not such a file.
  """
  try:
    with open(path, encoding='utf-8') as file:
      asked = json.load(file)
    cluster = asked['num_ps'], asked['num_workers'], asked['needs_data']
    return cluster, asked['flags']
  except OSError as error:
    raise cli.UsageError(f'{path}: {error.strerror}') from error
  except KeyError as error:
    raise cli.UsageError(f'{path} lacks {error}') from error
  except (TypeError, ValueError) as error:
    raise cli.UsageError(f'{path} is not the JSON object expected') from error


class Checker:
  """Runs train's own checks of worker 0, for a cluster of one shape.

  Missing data are not a mistake in the flags of one training: they end the
  program. Without `needs_data`, nothing on this machine is checked.
  """

  def __init__(
    self, num_ps: int, num_workers: int, needs_data: bool = True
  ) -> None:
    self._needs_data = needs_data
    self._hosts: dict[str, Any] = {}
    if num_ps + num_workers > 1:
      self._hosts = {
        'ps_hosts': tuple(f'ps{i}:2222' for i in range(num_ps)),
        'worker_hosts': tuple(f'worker{i}:2222' for i in range(num_workers)),
      }
    self._data_flags: list[tuple[str, Any]] | None = None
    self._sizes: list[int] = []

  def find_mistake(self, words: Sequence[str]) -> str | None:
    """Returns what is wrong with the flags `words`, one line, or None."""
    try:
      # Outside the saver: the problem's flags stay for the other combinations.
      problem_module.import_named(words)
      with flagsaver.flagsaver():
        self._check(words)
    except (flags.Error, cli.UsageError) as error:
      return ' '.join(str(error).split())
    return None

  def _check(self, words: Sequence[str]) -> None:
    no_flags = command_line.parse(FLAGS, ['train', *words])
    if no_flags:
      raise cli.UsageError(f'{no_flags[0]!r} is not a flag of train')
    if not self._needs_data:
      # The hosts have GPUs of their own, and a launcher may choose the folder.
      FLAGS.num_gpus = 0
      FLAGS.logdir = FLAGS.logdir or os.curdir
    cluster = dataclasses.replace(role_flags.from_flags(), **self._hosts)
    if self._needs_data:
      flag_checks.check(cluster, *self._count_images())
    else:
      flag_checks.check_without_data(cluster)

  def _count_images(self) -> list[int]:
    """Returns the sizes of the training and of the validation split."""
    data_flags = [
      (flag.name, flag.value)
      for module, found in FLAGS.flags_by_module_dict().items()
      if module.startswith((problem_lib.__name__, PROBLEMS, DATASETS))
      for flag in found
      if flag.name != 'model'
    ]
    problem = problem_lib.from_flags()
    if problem.is_custom:
      own = problem.flags_of_meaning()
      data_flags += [(name, FLAGS[name].value) for name in own]
    if data_flags != self._data_flags:
      splits = problem_data.load_training_splits(problem)
      self._sizes = [split.num_examples for split in splits]
      self._data_flags = data_flags
    return self._sizes


def run() -> None:
  cli.run(main, leave=os._exit, takes_words=True)


if __name__ == '__main__':
  run()
