"""A training as a call: run waits for its end, start does not."""

import contextlib
import json
import os
import types

from distmnist.api import notebook, process
from distmnist.storage import paths, urls

_THIS_MACHINE = None, 'local'


class Report(dict):
  """A run's report.json, whose entries are attributes as well.

  test_metrics is {name: float, or None if it is not finite}; docs/output.md
  explains test_accuracy, global_step, images_per_sec and the others.

  Attributes:
    curve: curve.Curve, the cost, read from the printed lines.
  """

  def __getattr__(self, name):
    try:
      return self[name]
    except KeyError:
      raise AttributeError(f'a report has no {name!r}') from None

  def plot(self, axes=None):
    """Draws the cost over the global steps; returns matplotlib's Axes.

    Args:
      axes: the Axes to draw into; None for those of a new figure.

    Raises:
      ImportError: matplotlib is not installed.
    """
    return self.curve.plot(axes)

  @property
  def logdir(self):
    """str, the log directory, or None."""
    return self['flags'].get('logdir')


def run(problem=None, on_line=None, **settings):
  """Trains, and returns the Report.

    report = distmnist.run(problem='mine.py', strategy='easgd', num_workers=3)

  Args:
    problem: str, a file or a module as --problem takes it, or an imported
      module; None for the images of `dataset`.
    on_line: callable(line), called with each line that the training prints. By
      default it is printed, and a notebook cell also shows the cost curve.
    **settings: flags of launch and train by their names: num_ps, num_workers,
      launcher, strategy, epochs, logdir, ... True and False stand for --name
      and --noname, a list for its items joined by commas. They win over those
      of a flagfile.

  Raises:
    process.Error: a wrong setting, or the training has failed.
    KeyboardInterrupt: passed on once the training is stopped.
  """
  with start(problem, on_line, **settings) as training:
    return training.result()


def start(problem=None, on_line=None, **settings):
  """Starts a training in the background; see `run`.

  Returns:
    Training.

  Raises:
    ValueError: a launcher for other hosts without a logdir.
  """
  words = make_words(problem, settings)
  given = read_flags(words)
  logdir = given.get('logdir')
  check_is_shared(given, logdir)
  if given.get('launcher') in _THIS_MACHINE:
    return Training(words, on_line, given.get('report_file'))
  return Training(words, on_line, os.path.join(logdir, 'report.json'))


def check_is_shared(given, folder, name='logdir'):
  """Raises ValueError for tasks on other hosts without a folder.

  Args:
    given: dict, see read_flags.
    folder: str or None.
    name: str, what the caller calls the folder.
  """
  far = None
  if given.get('launcher') not in _THIS_MACHINE:
    far = 'launcher'
  elif given.get('runner') == 'spark':  # Of a sweep.
    far = None if given.get('master', '').startswith('local') else 'runner'
  if far and not folder:
    raise ValueError(
      f'{far}={given[far]!r} without {name}: expected a folder, for the '
      'report, that all hosts and this machine share'
    )


def read_flags(words):
  """Returns {name: value} of flags with a value, those of flag files as well.

  A flag file that cannot be read has none, which the program will say.

  Args:
    words: list of str, see make_words.
  """
  from distmnist.common import command_line  # noqa: PLC0415  Needs absl.

  with contextlib.suppress(command_line.FlagFileError):
    words = command_line.expand(words)
  found = [word.lstrip('-').partition('=') for word in words if word[:1] == '-']
  return {name: value for name, _, value in found}


def make_words(problem, settings):
  """Returns the flags (list of str) of `run`'s arguments.

  A flagfile comes first: what the call itself says wins, in whatever order.
  """
  if isinstance(problem, types.ModuleType):
    problem = problem.__file__
  if problem is not None:
    settings = {'problem': os.fspath(problem), **settings}
  words = [_make_word(n, v) for n, v in settings.items() if v is not None]
  return sorted(words, key=lambda word: not word.startswith('--flagfile='))


def _make_word(name, value):
  if isinstance(value, bool):
    return f'--{name}' if value else f'--no{name}'
  if isinstance(value, (list, tuple)):
    value = ','.join(map(str, value))
  return f'--{name}={value}'


class Training(process.Process):
  """A running training; as a context manager, it stops at the context's end.

  Its methods may be called from any thread.
  """

  def __init__(self, words, on_line=None, report_path=None):
    """
    Args:
      words: list of str, flags of launch and train.
      on_line: see `run`.
      report_path: str, where the report will be; by default in a file for this
        call, on this machine.
    """
    self._report_path = report_path and urls.expand(os.fspath(report_path))
    self._curve = notebook.Curve()
    self._show = on_line or notebook.make_on_line(self._curve)
    super().__init__('launch', words)

  def _prepare(self, folder):
    if self._report_path:
      return []
    self._report_path = os.path.join(folder, 'report.json')
    return [f'--report_file={self._report_path}']

  def _take(self, line):
    self._curve.take(line)
    self._show(line)

  def _read(self, code):
    if code or not paths.exists(self._report_path):
      return None
    report = Report(json.loads(paths.read_text(self._report_path)))
    report.curve = self._curve
    return report
