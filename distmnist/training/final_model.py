"""The trained model in the log directory, as a file of its own library."""

import logging
import os

from distmnist.common import cli
from distmnist.logdir import checkpoint_files
from distmnist.storage import copies
from distmnist.training import averages

_log = logging.getLogger(__name__)

_FILE = 'model.keras'


def write(problem, logdir, values, best_path=None):
  """Writes the model that a training has given, if it is one of Keras.

  Args:
    problem: problem.Problem.
    logdir: str; None for nowhere.
    values: dict of variable name -> array, the center at the end, with its
      averages if there are any.
    best_path: str, the checkpoint whose values are taken in their place, or
      None.

  Raises:
    cli.RunError: the file cannot be written.
  """
  if not logdir:
    return
  if best_path:
    reader = checkpoint_files.open_reader(best_path)
    names = reader.get_variable_to_shape_map()
    values = {name: reader.get_tensor(name) for name in names}
  path = os.path.join(logdir, _FILE)
  try:
    with copies.drafting(path) as draft:
      is_saved = problem.save_model(averages.put_in_place(values), draft)
    if is_saved:
      _log.info(f'{"model":<20}{path}')
  except OSError as error:
    raise cli.RunError(
      f'{path} cannot be written: {error.strerror or error}; the checkpoints '
      'in this folder have the weights'
    ) from error
