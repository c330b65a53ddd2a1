"""Finds what makes a run faster, on its own hosts and links, before it starts.

The trials are runs of launch, each ended after some seconds of training;
coordinate_search.py lists what they try.
"""

import contextlib
import logging
import os
import shutil
import signal
import tempfile

from absl import flags

from distmnist.common import cli, refusals, signals
from distmnist.common.names import TRAIN
from distmnist.common.refusals import Refusal
from distmnist.launching import cluster_flags, train_flags
from distmnist.storage import urls
from distmnist.sweeps import coordinate_search, speed_trial

FLAGS = flags.FLAGS
_log = logging.getLogger(__name__)

AUTOTUNE_SECS = flags.DEFINE_float(
  'autotune_secs',
  30.0,
  "Seconds of training that the trials of --autotune, or of plan's --suggest, "
  'take together, not counting the start of each.',
  lower_bound=1.0,
)

# With these, the tasks and this machine can share the folder of the trials.
_LAUNCHERS = 'local', 'ssh', 'slurm', 'command'
# Flags of launch that a trial does without, or sets itself.
_OURS = (
  *('autotune', 'autotune_secs', 'suggest', 'mbits', 'flagfile', 'logs_dir'),
  *('show_logs', 'live_table', 'max_restarts', 'min_workers', 'dry_run'),
  *('evaluator', 'tensorboard', 'metrics_port', 'slurm_wait'),
  *('help', 'helpfull'),
)


# What cannot be tuned; they need no facts.
_REFUSALS = (
  Refusal(
    'module',
    lambda f: FLAGS.module != TRAIN,
    f' cannot be tuned: the flags that are tried are those of {TRAIN}',
  ),
  Refusal(
    'launcher',
    lambda f: FLAGS.launcher not in _LAUNCHERS,
    f' cannot be tuned: expected one of {", ".join(_LAUNCHERS)}',
  ),
)
# Facts: logdir, str or None, train's flag.
_OF_FOLDER = (
  Refusal(
    'launcher',
    lambda f: (
      FLAGS.launcher != 'local' and (not f.logdir or urls.is_remote(f.logdir))
    ),
    ': the trials of autotune need a folder that the hosts share: give train a '
    '--logdir on it',
  ),
)


def read_given():
  """Returns the flags given to this program (list of str), except `_OURS`."""
  words = []
  for name in FLAGS:
    flag = FLAGS[name]
    if not flag.present or name in _OURS:
      continue
    if isinstance(flag, flags.MultiFlag):
      words += [f'--{name}={value}' for value in flag.value]
    else:
      words.append(flag.serialize())
  return words


def run(launch_words, words):
  """Tries the settings and logs what each gains.

  Args:
    launch_words: list of str, the flags of launch.
    words: list of str, the flags of train, with each --flagfile read.

  Returns:
    The words to take (list of str), and the signal (int) that stopped it or
    None.

  Raises:
    cli.UsageError: no trial can be run.
    cli.RunError: the run with the flags as given cannot be measured.
  """
  num_ps = cluster_flags.NUM_PS.value
  num_workers = cluster_flags.NUM_WORKERS.value
  refusals.refuse(_REFUSALS)
  given = train_flags.check(words)
  refusals.refuse(_OF_FOLDER, logdir=given['logdir'].value)
  settings = coordinate_search.select(given, num_ps)
  tried = [word for setting in settings for word in setting.words]
  found = train_flags.find_mistakes(
    [[*words, word] for word in tried], num_ps, num_workers
  )
  mistakes = dict(zip(tried, found, strict=True))
  num_trials = coordinate_search.count_trials(settings, mistakes)
  secs = AUTOTUNE_SECS.value / num_trials
  _log.info(
    f'autotune: {num_trials} trials of {secs:.1f} s and a start each, on the'
    ' hosts of the run'
  )
  received = []
  with (
    _make_folder(given['logdir'].value) as folder,
    signals.collecting(received),
  ):
    runner = speed_trial.Runner(
      [*launch_words, *words], folder, num_workers, secs, received
    )
    rows, taken = coordinate_search.climb(settings, runner.measure, mistakes)
  if received:
    name = signal.Signals(received[0]).name
    _log.info(f'{name}: autotune was stopped, and nothing is taken')
    return [], received[0]
  if not rows[0].speed:
    raise cli.RunError(f'autotune: the run as given: {rows[0].note}')
  for line in coordinate_search.format_rows(rows, runner.unit):
    _log.info(line)
  _log.info(f'autotune takes {" ".join(taken) or "the flags as given"}')
  return taken, None


@contextlib.contextmanager
def _make_folder(logdir):
  """Yields a folder for the trials, which is removed at the end."""
  beside = None
  if logdir and '://' not in logdir:
    beside = os.path.dirname(os.path.abspath(os.path.expanduser(logdir)))
    os.makedirs(beside, exist_ok=True)
  folder = tempfile.mkdtemp(prefix='distmnist_autotune_', dir=beside)
  try:
    yield folder
  finally:
    shutil.rmtree(folder, ignore_errors=True)
