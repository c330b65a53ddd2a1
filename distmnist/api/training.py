"""A training as a call: run waits for its end, start does not."""

import json
import os
import tempfile
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from distmnist.api import notebook, process
from distmnist.storage import paths, urls

if TYPE_CHECKING:
  from matplotlib.axes import Axes


class Report(dict):
  """A run's report.json, whose entries are attributes as well.

  test_metrics is {name: float, or None if it is not finite}; docs/output.md
  explains test_accuracy, global_step, examples_per_sec and the others.

  Attributes:
    curve: notebook.Curve, the loss, read from the printed lines.
  """

  def __getattr__(self, name: str) -> Any:
    try:
      return self[name]
    except KeyError:
      raise AttributeError(f'a report has no {name!r}') from None

  def plot(self, axes: 'Axes | None' = None) -> 'Axes':
    """Draws the loss over the global steps; returns where.

    Args:
      axes: what to draw into; None for those of a new figure.

    Raises:
      ImportError: matplotlib is not installed.
    """
    return self.curve.plot(axes)

  @property
  def logdir(self) -> str | None:
    """The log directory."""
    return self['flags'].get('logdir')


def run(
  problem: str | os.PathLike | types.ModuleType | None = None,
  on_line: Callable[[str], object] | None = None,
  **settings,
) -> Report:
  """Trains, and returns the report.

    report = distmnist.run(problem='mine.py', strategy='easgd', num_workers=3)

  Args:
    problem: a file or a module as --problem takes it, or an imported module;
      None for the images of `dataset`.
    on_line: called with each line that the training prints. By default it is
      printed, and a notebook cell also shows the loss curve.
    **settings: flags of launch and train by their names: num_ps, num_workers,
      launcher, strategy, epochs, logdir, ... True and False stand for --name
      and --noname, a list for its items joined by commas. They win over those
      of a flagfile.

  Raises:
    process.Error: a wrong setting, or the training has failed.
    ValueError: a launcher for other hosts without a logdir.
    KeyboardInterrupt: passed on once the training is stopped.
  """
  with start(problem, on_line, **settings) as training:
    return training.result()


def start(
  problem: str | os.PathLike | types.ModuleType | None = None,
  on_line: Callable[[str], object] | None = None,
  **settings,
) -> process.Process:
  """Starts a training in the background; see `run`.

  Raises:
    ValueError: a launcher for other hosts without a logdir.
  """
  return start_words(process.make_words(problem, settings), on_line)


def start_words(
  words: list[str],
  on_line: Callable[[str], object] | None = None,
  reword: Callable[[str], str | None] = str,
) -> process.Process:
  """Starts a training with flags as they stand on a command line.

  Args:
    words: the flags of launch and train, in any order.
    on_line: see `run`.
    reword: gives a line as it is to be shown, or None.

  Raises: see `start`.
  """
  given = process.read_flags(words)
  process.check_is_shared(given, given.get('logdir'), 'logdir')
  report_path, folder = given.get('report_file'), None
  if given.get('launcher') not in process.THIS_MACHINE:
    # A report_file would be one of the chief's host.
    report_path = os.path.join(given['logdir'], 'report.json')
  elif not report_path:
    folder = tempfile.TemporaryDirectory(prefix='distmnist_run_')
    report_path = os.path.join(folder.name, 'report.json')
    words.append(f'--report_file={report_path}')
  curve = notebook.Curve()
  show = on_line or notebook.make_on_line(curve)

  def take(line: str) -> None:
    curve.take(line)
    show(line)

  def read(code: int) -> Report | None:
    return None if code else read_report(report_path, curve)

  return process.Process('launch', words, take, read, folder, reword)


def read_report(path: str, curve: notebook.Curve) -> Report | None:
  """Returns the report at a path or an address, None if there is none."""
  path = urls.expand(path)
  if not paths.exists(path):
    return None
  report = Report(json.loads(paths.read_text(path)))
  report.curve = curve
  return report
