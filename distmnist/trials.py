"""The trials of a sweep: what is known of each, on the disk, and who runs them.

DIR/trials/03/ has a trial's run/ (train's --logdir), its log, and trial.json,
which is written whole or not at all with each change of its state.

A runner is what a sweep asks for trials: LocalRunner, on this machine, or
SparkRunner (spark_trials.py), which needs DIR to be shared. It is a context,
collects in `signals` those that come meanwhile, and has three methods:

  start(name, argv, log, env, limit)
      begins a command, which may take no longer than `limit`; returns the size
      of its log
  wait()
      returns [(name, exit code), ...] of some that have ended, none if a signal
      came first
  stop(signum, grace_secs)
      ends all of them, and returns such a list
"""

import contextlib
import dataclasses
import json
import math
import os
import re
import signal
import time

from distmnist import cli, files, fork_client, stop_grace, task_logs

WAITING = 'waiting'  # has never run
RUNNING = 'running'
DONE = 'done'
DROPPED = 'dropped'  # by halving: others were better
STOPPED = 'stopped'  # by a signal, and to be run again
FAILED = 'failed'
DIVERGED = 'diverged'
LOST = (FAILED, DIVERGED)

# What a trial's result has of train's report.json.
_REPORTED = (
  'validation_accuracy',
  'test_accuracy',
  'final_cost',
  'global_step',
  'images_per_sec',
)
_STATES = (WAITING, RUNNING, DONE, DROPPED, STOPPED, *LOST)
_STOPPED_CODES = (128 + signal.SIGINT, 128 + signal.SIGTERM, cli.NOT_SAVED)
_TAIL_BYTES = 1 << 14


def _is_number(value):
  return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_result(value):
  return isinstance(value, dict) and all(
    name in _REPORTED and (number is None or _is_number(number))
    for name, number in value.items()
  )


# What `load` takes over, and which values: others may write to a sweep's folder
# if its owner lets them.
_LOADED = {
  'state': lambda value: value in _STATES,
  'secs': lambda value: _is_number(value) and 0 <= value < math.inf,
  'cause': lambda value: isinstance(value, str),
  'results': lambda value: (
    isinstance(value, list) and all(map(_is_result, value))
  ),
}


@dataclasses.dataclass
class Trial:
  """One combination and what came of it.

  Attributes:
    number: int, from 1.
    name: str, the number with leading zeros: its folder.
    combination: {flag: value}, str.
    folder: str, where all of it is.
    state: one of the states above.
    secs: float, what all of its runs have taken.
    cause: str, why it has failed or diverged.
    results: list of dict, one a rung that it has come to the end of; see
      _REPORTED.
  """

  number: int
  name: str
  combination: dict
  folder: str
  state: str = WAITING
  secs: float = 0.0
  cause: str = ''
  results: list = dataclasses.field(default_factory=list)

  @property
  def logdir(self):
    return os.path.join(self.folder, 'run')

  @property
  def log(self):
    return os.path.join(self.folder, 'log')

  @property
  def result(self):
    """The last of the results; {} if there is none."""
    return self.results[-1] if self.results else {}

  @property
  def _path(self):
    return os.path.join(self.folder, 'trial.json')

  def load(self):
    """Takes over what is known of it from before: what came of it, no more.

    Raises:
      cli.RunError: the file cannot be read, or is none that `save` has written.
    """
    try:
      known = read_json(self._path)
    except FileNotFoundError:
      return
    except (OSError, ValueError) as error:
      raise self._bad_file(f'cannot be read ({error})') from error
    if not isinstance(known, dict):
      raise self._bad_file('is no JSON object')
    for name, is_valid in _LOADED.items():
      if name in known:
        if not is_valid(known[name]):
          raise self._bad_file(f'has {name} {known[name]!r:.60}')
        setattr(self, name, known[name])

  def _bad_file(self, what):
    return cli.RunError(
      f'{self._path} {what}: no sweep has written it so; delete'
      f' {self.folder} to run the trial anew'
    )

  def save(self):
    names = ('number', 'combination', 'state', 'secs', 'cause', 'results')
    write_json(self._path, {name: getattr(self, name) for name in names})

  def begin(self):
    """Notes that it runs; the report of a shorter run of it goes."""
    os.makedirs(self.folder, exist_ok=True)
    with contextlib.suppress(
      OSError
    ):  # That it is no folder is train's to say.
      os.remove(self._report_path)
    self.state, self.cause = RUNNING, ''
    self.save()

  def note_if_ended(self):
    """Notes that it had ended when its sweep was killed, if it had.

    Its report is written last, and is not there while it runs.
    """
    if self.state == RUNNING and os.path.exists(self._report_path):
      self._take_report()

  def end(self, code, secs, log_start):
    """Notes the end of a run of it.

    Args:
      code: int, the exit code, or -n after signal n.
      secs: float, what the run has taken.
      log_start: int, where the log of this run begins, in bytes.
    """
    self.secs = round(self.secs + secs, 2)
    if code == 0:
      self._take_report()
      return
    self.state = STOPPED if code in _STOPPED_CODES else FAILED
    if self.state == FAILED:
      self.cause = find_cause(self.log, log_start, code)
      if cli.DIVERGED in self.cause:
        self.state = DIVERGED
    self.save()

  def stop(self, secs):
    """Notes that the run was killed, as it did not leave when told to."""
    self.secs, self.state = round(self.secs + secs, 2), STOPPED
    self.save()

  def drop(self):
    self.state = DROPPED
    self.save()

  @property
  def _report_path(self):
    return os.path.join(self.logdir, 'report.json')

  def _take_report(self):
    try:
      report = read_json(self._report_path)
      result = {name: report.get(name) for name in _REPORTED}
      if not _is_result(result):
        raise ValueError(f'not all are numbers: {result}')
      self.results.append(result)
      self.state = DONE
    except (AttributeError, OSError, ValueError) as error:
      self.state, self.cause = FAILED, f'it has left no report: {error}'
    self.save()


@dataclasses.dataclass(frozen=True)
class Limit:
  """How long a command may take.

  Attributes:
    secs: float, from its start on; then it is told to leave.
    grace_secs: float, how long it has for that; then it is killed.
  """

  secs: float = math.inf
  grace_secs: float = 0.0

  def note(self, log, code):
    """Returns the exit code of a command that was told to leave for this.

    Args:
      log: str, the path of its log, which gets the reason as its last error.
      code: int, what it has ended with; 0 stays, as it was done in time.
    """
    if code == 0:
      return code
    task_logs.append(
      log,
      [
        f'distmnist.sweep: error: not done within'
        f' --trial_timeout_secs={self.secs:g}'
      ],
    )
    return cli.FAILED


NO_LIMIT = Limit()


def make_trials(combinations, folder):
  """Returns a list of Trial, each in a folder of its own in `folder`, a str."""
  width = max(2, len(str(len(combinations))))
  trials = []
  for number, combination in enumerate(combinations, 1):
    name = f'{number:0{width}d}'
    path = os.path.join(folder, name)
    trials.append(Trial(number, name, combination, path))
  return trials


def find_cause(log, start, code):
  """Returns why a run has failed, one line (str).

  That is the last error in its log, of a task rather than of the launcher that
  shows the last lines of the task; else the last line; else the exit code.

  Args:
    log: str, a path.
    start: int, where the log of this run begins, in bytes.
    code: int, the exit code, or -n after signal n.
  """
  ending = f'exit code {code}'
  if code < 0:
    ending = f'killed by {signal.Signals(-code).name}'
  with contextlib.suppress(OSError), open(log, 'rb') as file:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(start, size - _TAIL_BYTES))
    text = file.read().decode(errors='replace')
    lines = [line.strip(' |') for line in text.splitlines() if line.strip()]
    for line in reversed(lines):
      match = re.match(r'distmnist\.(\w+): error: (.*)', line)
      if match and match[1] != 'launch':
        return match[2]
      match = re.match(
        r'distmnist\.launch: error: .* failed .*?: (.*); log', line
      )
      if match and not re.match('exit code|killed by', match[1]):
        return match[1]
    if lines and code > 0:
      return f'{lines[-1]} ({ending})'
  return ending


@dataclasses.dataclass
class _Command:
  """A command of a LocalRunner that runs.

  Attributes:
    log: str, a path.
    limit: Limit.
    deadline: float, when (by time.monotonic) it is told to leave or, once it is
      told, killed.
    is_told: whether it was told to leave, since it has taken too long.
  """

  log: str
  limit: Limit
  deadline: float
  is_told: bool = False


class LocalRunner:
  """Runs commands on this machine, as children of one fork server.

  A context: its end is the end of all of them, and so is ours by kill -9. While
  it is open SIGINT, SIGTERM and SIGHUP do not end this process: they are
  collected in `signals`, and they interrupt `wait`.

  Attributes:
    signals: list of int, what this process received.
  """

  def __init__(
    self, module, log, lock, stop_grace_secs=stop_grace.DEFAULT_SECS
  ):
    """
    Args:
      module: dotted name to import before the first fork, or '' for a new
        Python a command.
      log: str, path of the fork server's own log.
      lock: file; it stays open until the last process is gone.
      stop_grace_secs: float, train's.
    """
    self._log = log
    self._client = fork_client.ForkServerClient(
      module,
      log,
      os.environ,
      'the trials',
      kept_fds=[lock.fileno()],
      grace_secs=stop_grace.for_orphans(stop_grace_secs),
    )
    self._running = {}  # name -> _Command
    self.signals = self._client.signals

  def __enter__(self):
    # Of this time alone.
    open(self._log, 'wb', opener=files.no_follow).close()
    self._client.__enter__()
    return self

  def __exit__(self, *error):
    self._client.__exit__(*error)

  def start(self, name, argv, log, env=(), limit=NO_LIMIT):
    """Begins a command; returns the size of its log before, in bytes.

    Args:
      name: str, what it is called here.
      argv: list of str, ('python', '-m', module, flags...).
      log: str, a path; what it prints is appended there.
      env: dict, its environment beyond ours.
      limit: Limit, how long it may take.

    Raises:
      OSError: the log cannot be written.
    """
    with open(log, 'ab', opener=files.no_follow) as file:
      size = file.seek(0, os.SEEK_END)
    deadline = time.monotonic() + limit.secs
    self._running[name] = _Command(log, limit, deadline)
    self._client.start(name, argv, env, log)
    return size

  def wait(self):
    """Waits until a command ends or a signal comes.

    Raises:
      cli.RunError: the module cannot be imported, or the server has died.
    """
    while self._running and not self.signals:
      self._end_overdue()
      first = min(command.deadline for command in self._running.values())
      if ended := self._wait(first - time.monotonic(), 0):
        return ended
    return []

  def stop(self, signum, grace_secs):
    """Ends all commands; who has not left after its grace is killed.

    All are killed at once if another signal comes.

    Returns:
      [(name, code), ...].
    """
    if not self._client.is_ready:
      # The import is still on: nothing has begun, nor will.
      self._client.kill()
      ended, self._running = [(n, -signal.SIGKILL) for n in self._running], {}
      return ended
    ended, num_signals = [], len(self.signals)
    deadline = time.monotonic() + grace_secs
    # A second time would be: at once.
    untold = [name for name, one in self._running.items() if not one.is_told]
    self._client.signal(untold, signum)
    while self._running and time.monotonic() < deadline:
      ended += self._wait(deadline - time.monotonic(), num_signals)
      if len(self.signals) > num_signals:
        break
    self._client.signal(self._running, signal.SIGKILL)
    while self._running:
      ended += self._wait(float('inf'), float('inf'))
    return ended

  def _end_overdue(self):
    """Tells who has taken too long to leave, and kills who does not."""
    now = time.monotonic()
    for name, command in self._running.items():
      if now < command.deadline:
        continue
      if command.is_told:
        self._client.signal([name], signal.SIGKILL)
        command.deadline = math.inf
      else:
        self._client.signal([name], signal.SIGTERM)
        command.is_told = True
        command.deadline = now + command.limit.grace_secs

  def _wait(self, timeout_secs, num_signals):
    deadline = time.monotonic() + timeout_secs
    while self._running and len(self.signals) <= num_signals:
      secs = deadline - time.monotonic()
      if secs <= 0:
        break
      if ended := self._client.turn(None if secs == float('inf') else secs):
        return [(name, self._note_end(name, code)) for name, code in ended]
    return []

  def _note_end(self, name, code):
    command = self._running.pop(name)
    return command.limit.note(command.log, code) if command.is_told else code


def read_json(path):
  """Returns what the file `path` has; raises OSError, ValueError."""
  with open(path, encoding='utf-8') as file:
    return json.load(file)


def write_json(path, value):
  """Writes `value` to the file `path`, whole or not at all."""
  with files.replacing(path) as file:
    json.dump(value, file, indent=2)
    file.write('\n')
