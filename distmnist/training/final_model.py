"""The trained model in the log directory, in its own library's format."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from distmnist.common import cli
from distmnist.logdir import checkpoint_reader, checkpoints
from distmnist.storage import copies
from distmnist.training import averages

if TYPE_CHECKING:
  from distmnist.training import live_evaluation
  from distmnist.training.problems import problem as problem_lib

_log = logging.getLogger(__name__)

_FILE = 'model.keras'


def write(
  problem: problem_lib.Problem,
  logdir: str | None,
  source: live_evaluation.LiveEvaluation | str,
) -> None:
  """Writes the model that a training produced, if it is a Keras model.

  One that Keras cannot write, such as a model without the get_config() that it
  would need, is named in a warning; its checkpoints have the weights.

  Args:
    logdir: None to write nothing.
    source: what has the values: those at the end, or the path of a checkpoint.

  Raises:
    cli.RunError: the file cannot be written.
  """
  if not (logdir and problem.has_keras_model):
    return
  if not isinstance(source, str) and source.has_tables:
    source = checkpoints.find_latest(logdir) or source
  if isinstance(source, str):
    with checkpoint_reader.Reader(source) as reader:
      values = {name: reader.read(name) for name in reader.shapes}
  else:
    values = source.values
  file = os.path.join(logdir, _FILE)
  try:
    with copies.drafting(file) as draft:
      problem.save_model(averages.put_in_place(values), draft)
    _log.info(f'{"model":<20}{file}')
  except (NotImplementedError, TypeError, ValueError) as error:
    reason = ' '.join(str(error).split())[:200]
    _log.warning(
      f'{file} is not written, as Keras cannot save this model: {reason}; the '
      'checkpoints in this folder have the weights'
    )
  except OSError as error:
    raise cli.choose_error(error)(
      f'{file} cannot be written: {error.strerror or error}; the checkpoints '
      'in this folder have the weights'
    ) from error
