"""A training as a call: run waits for its end, start does not."""

from __future__ import annotations

import json
import os
import re
import types
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from distmnist.api import notebook, process
from distmnist.storage import paths, urls
from distmnist.watching import learning_curve

if TYPE_CHECKING:
  from matplotlib.axes import Axes

# Closing lines that say where something is kept.
_KEPT = re.compile(r'(model|report|page|curves) {2,}')


class Report(dict):
  """A run's report.json, whose entries are attributes as well.

  test_metrics is {name: float, or None if it is not finite}; docs/watching.md
  explains test_accuracy, global_step, examples_per_sec and the others.

  A notebook shows it with a picture of its curve.

  Attributes:
    curve: has no points where a run keeps no metrics: with a logdir in a store.
    history: {name: a number for each epoch}, as Keras's History.history; see
      `learning_curve.Curve.find_history`.
  """

  def __init__(
    self,
    fields: Mapping[str, Any],
    curve: learning_curve.Curve | None = None,
  ) -> None:
    """
    Args:
      fields: of report.json.
      curve: as far as the run has come.
    """
    super().__init__(fields)
    self.curve = curve or learning_curve.Curve(None)
    self.history = self.curve.find_history()

  def __getattr__(self, name: str) -> Any:
    try:
      return self[name]
    except KeyError:
      raise AttributeError(f'a report has no {name!r}') from None

  def __repr__(self) -> str:
    """Returns the few fields that are looked at first; all are in the dict."""
    shown: dict[str, Any] = {'global_step': self.get('global_step')}
    for split in 'train', 'validation', 'test':
      if found := self.get(f'{split}_metrics'):
        shown[f'{split}_metrics'] = {
          n: x if x is None else float(f'{x:.4g}') for n, x in found.items()
        }
    if pace := self.get('examples_per_sec'):
      shown['examples_per_sec'] = round(pace)
    said = [f'{n}={x!r}' for n, x in shown.items() if x is not None]
    return f'Report({", ".join(said)})'

  def plot(
    self, axes: Axes | None = None, name: str = learning_curve.LOSS
  ) -> Axes:
    """Draws the loss, or a metric; see `learning_curve.Curve.plot`."""
    return self.curve.plot(axes, name)

  def _repr_png_(self) -> bytes | None:
    """Returns the picture that a notebook shows; None without matplotlib."""
    return self.curve.find_picture()

  @property
  def logdir(self) -> str | None:
    """The log directory."""
    return self['flags'].get('logdir')


def run(
  problem: str | os.PathLike | types.ModuleType | None = None,
  on_line: Callable[[str], object] | None = None,
  **settings: Any,
) -> Report:
  """Trains, and returns the report.

    report = distmnist.run(problem='mine.py', strategy='easgd', num_workers=3)

  Args:
    problem: a file or a module as --problem takes it, or an imported module;
      None for the images of `dataset`.
    on_line: called with each line that the training prints. By default it is
      printed, and a notebook cell shows the learning curve while it grows.
    **settings: flags of launch and train by their names: num_ps, num_workers,
      launcher, strategy, epochs, logdir, ... True and False stand for --name
      and --noname, a list for its items joined by commas. They win over those
      of a flagfile.

  Raises:
    process.Error: a wrong setting, or the training has failed.
    ValueError: a launcher for other hosts without a logdir.
    OSError: what lies beside `like` cannot be looked at.
    KeyboardInterrupt: passed on once the training is stopped.
  """
  words = process.make_words(problem, settings)
  with start_words(words, on_line, is_awaited=True) as training:
    return training.result()


def start(
  problem: str | os.PathLike | types.ModuleType | None = None,
  on_line: Callable[[str], object] | None = None,
  **settings: Any,
) -> process.Process:
  """Starts a training in the background; see `run`.

  Raises:
    ValueError: a launcher for other hosts without a logdir.
    OSError: what lies beside `like` cannot be looked at.
  """
  return start_words(process.make_words(problem, settings), on_line)


def start_words(
  words: Sequence[str],
  on_line: Callable[[str], object] | None = None,
  reword: Callable[[str], str | None] = str,
  is_awaited: bool = False,
) -> process.Process:
  """Starts a training with flags as they stand on a command line.

  Args:
    words: the flags of launch and train, in any order.
    on_line: see `run`.
    reword: gives a line as it is to be shown, or None.
    is_awaited: whether the caller asks for the result at once, so that no line
      has to say the error; `on_line` gets it all the same.

  Raises: see `start`.
  """
  given = process.read_flags(words)
  logdir, temporary = given.get('logdir'), None
  like = given.get('like')
  if like and not logdir:
    # As launch would choose it.
    logdir = paths.choose_next(urls.expand(like))
    words = [*words, f'--logdir={logdir}']
  process.check_is_shared(given, logdir, 'logdir')
  if not logdir:
    temporary = _TemporaryFolders()
    logdir, reword = temporary.logdir, temporary.reword
    # What is given wins, as it comes later.
    words = [f'--logs_dir={temporary.logs_dir}', '--keep_checkpoints=1', *words]
    words.append(f'--logdir={logdir}')
  report_path = given.get('report_file')
  is_far = given.get('launcher') not in process.THIS_MACHINE
  if not report_path or is_far or like:
    # A report_file would be one of the chief's host, as may be that of `like`.
    report_path = os.path.join(logdir, 'report.json')
  place = None if urls.is_remote(logdir) else os.path.expanduser(logdir)
  curve = learning_curve.Curve(place)
  cell, take = None, on_line
  if take is None:
    cell = notebook.Cell(place, curve)
    take = process.without_error(cell.take) if is_awaited else cell.take

  def read(code: int) -> Report | None:
    if cell:
      cell.close()
    curve.look()
    report = None if code else read_report(report_path, curve)
    if temporary:
      temporary.has_failed = bool(code)
      if report:
        report['flags'].pop('logdir', None)
    return report

  return process.Process('launch', words, take, read, temporary, reword)


class _TemporaryFolders:
  """The log directory and the logs of a run that is to keep nothing.

  As a context manager they are removed at the end of the context, and if this
  process does not get there, at its end or by a later one. Of a run that has
  failed the logs stay, as its error names them.

  Attributes:
    logdir, logs_dir: their paths.
    has_failed: whether the run has.
  """

  def __init__(self) -> None:
    # Both need absl.
    from distmnist.launching.screen import task_logs  # noqa: PLC0415
    from distmnist.storage import scratch  # noqa: PLC0415

    self._logs = task_logs
    self.logdir = scratch.make('run')
    self.logs_dir = task_logs.make_logs_dir(None, None)
    self.has_failed = False

  def reword(self, line: str) -> str | None:
    """Returns a line; None for one that says what is kept here."""
    return None if _KEPT.match(line) and self.logdir in line else line

  def __enter__(self) -> _TemporaryFolders:
    return self

  def __exit__(self, *_: object) -> None:
    paths.remove_folder(self.logdir)
    if not self.has_failed:
      self._logs.remove_if_temporary(self.logs_dir)


def read_report(path: str, curve: learning_curve.Curve) -> Report | None:
  """Returns the report at a path or an address, None if there is none."""
  path = urls.expand(path)
  if not paths.exists(path):
    return None
  return Report(json.loads(paths.read_text(path)), curve)
