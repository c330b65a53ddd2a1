"""Trains with many combinations of flags, and says which are best.

  python -m distmnist.sweep learning_rate=0.1,0.01 batch_size=32,64 \\
      --parallel=2 --sweep_dir=logs/sweep -- --model=cnn --epochs=2

All after -- goes to every trial; what a word names is added to it. Words:

  name=v1,v2,...  values (v1;v2 if they have commas themselves), each with each
                  of the others, or one with one under --zip
  name=lo..hi     for --random=N, a range to draw from: whole numbers evenly,
                  others evenly by their logarithm; log:lo..hi and lin:lo..hi
                  say which

Every combination is checked by train before the first trial starts. A trial
that fails stops no other. The same command again does what is missing.

Each trial is one process. With --num_ps, --num_workers, --max_restarts or
--launcher it is a `distmnist.launch`, which gets its flags from here. With
--runner=spark --master=... each is a task of Spark, on an executor; --sweep_dir
is a folder that driver and executors share.
"""

import contextlib
import fcntl
import glob
import hashlib
import itertools
import json
import math
import os
import re
import shlex
import signal
import sys
import tempfile
import time

from absl import flags

from distmnist import (
  cli,
  combinations,
  console,
  files,
  halving,
  hparams,
  launch,
  on_spark,
  results,
  spark_trials,
  stop_grace,
  tasks,
)
from distmnist import train_flags as train_flags_lib
from distmnist import trials as trials_lib
from distmnist.launchers import local, spark

FLAGS = flags.FLAGS

_SWEEP_DIR = flags.DEFINE_string(
  'sweep_dir',
  None,
  'Folder for the trials and the results. By default one among the temporary '
  'ones, which the same command finds again.',
)
_PARALLEL = flags.DEFINE_integer(
  'parallel',
  None,
  'Trials that run at the same time; on this machine they share the cores. '
  'Default: 1, or all slots of a local or local-cluster of Spark.',
  lower_bound=1,
)
_RUNNER = flags.DEFINE_enum(
  'runner',
  'local',
  ['local', 'spark'],
  'What runs a trial: this machine, or a task of Spark, of which --master says '
  'where it is.',
)
_ZIP = flags.DEFINE_bool(
  'zip', False, 'The first value of each flag, then the second of each, ...'
)
_RANDOM = flags.DEFINE_integer(
  'random',
  None,
  'Draw so many different combinations instead of trying all.',
  lower_bound=1,
)
_RANDOM_SEED = flags.DEFINE_integer(
  'random_seed', 0, 'Of --random: the same seed draws the same.', lower_bound=0
)
_HALVING = flags.DEFINE_integer(
  'halving',
  None,
  'Successive halving: all trials get a part of the --train_steps or --epochs, '
  'the best 1 / N of them N times as much, and so on.',
  lower_bound=2,
)
_TRIAL_TIMEOUT_SECS = flags.DEFINE_float(
  'trial_timeout_secs',
  None,
  'Seconds that a trial may take each time it runs, with --halving in each'
  ' rung. Then it saves and leaves, and has failed: --retry_failed goes on with'
  ' it. By default there is no limit.',
  lower_bound=1,
)
_RETRY_FAILED = flags.DEFINE_bool(
  'retry_failed', False, 'Run trials that have failed before once more.'
)
# These are the sweep's to set, or would leave nothing to compare.
_OURS = (
  *tasks.CLUSTER_FLAGS,
  'logdir',
  'resume',
  'download_only',
  'help',
  'helpfull',
)
# A launcher waits for its workers, then for the ps, and has to end itself.
_LAUNCH_MARGIN_SECS = 4.5


def main(words, train_flags):
  """Runs the trials; returns the exit code.

  Args:
    words: list of str, what to try.
    train_flags: list of str, the words after --.
  """
  plan = make_plan(words, train_flags)
  check_train_flags(plan)
  check_runner_flags()
  if is_on_spark():
    check_spark(plan)
  folder = os.path.abspath(
    os.path.expanduser(_SWEEP_DIR.value or _default_folder(plan))
  )
  trials = trials_lib.make_trials(
    plan['combinations'], os.path.join(folder, 'trials')
  )
  num_parallel = find_num_parallel(len(trials))
  if FLAGS.dry_run:
    for trial in trials:
      print(shlex.join(make_command(trial, plan, 0, num_parallel)))
    return 0
  if is_on_spark():
    spark.check_ready(spark.get_master())
  with opened(folder, plan) as lock:
    for trial in trials:
      trial.load()
      trial.note_if_ended()
    sweep = Sweep(plan, trials, folder, num_parallel)
    signum = sweep.run(lock)
    show(trials, folder)
  if signum:
    say(
      f'stopped by {signal.Signals(signum).name}: the same command goes on, '
      f'with --sweep_dir={folder}'
    )
    return 128 + signum
  _raise_if_incomplete(trials)
  return 0


def make_plan(words, train_flags):
  """Returns what makes a sweep this one: a dict that JSON can hold.

  Raises:
    cli.UsageError: the command line cannot work.
  """
  if FLAGS.logs_dir is not None:
    raise cli.UsageError('--logs_dir is not for a sweep: see --sweep_dir')
  # Flags of a --flagfile count as given.
  given = train_flags_lib.expand(train_flags)
  choices = combinations.parse(words)
  for name in _OURS:
    if name in choices or tasks.flag_value(given, name) is not None:
      raise cli.UsageError(
        f'--{name} is not for a trial: the sweep gives each a logdir of its '
        'own and resumes it, and --num_ps and --num_workers before the -- give '
        'it a cluster'
      )
  if _RANDOM.value is not None:
    if _ZIP.value:
      raise cli.UsageError('--zip and --random exclude each other')
    found = combinations.make_random(choices, _RANDOM.value, _RANDOM_SEED.value)
  elif _ZIP.value:
    found = combinations.make_zip(choices)
  else:
    found = combinations.make_product(choices)
  return {
    'combinations': found,
    'flags': list(given),
    'num_ps': launch.NUM_PS.value,
    'num_workers': launch.NUM_WORKERS.value,
    'module': FLAGS.module,
    'rungs': make_rungs(len(found), choices, given),
  }


def check_train_flags(plan):
  """Checks each flag of the trials by itself, before anything is started.

  Raises:
    cli.UsageError: one is wrong.
  """
  if plan['module'] != tasks.TRAIN:
    return
  train_flags_lib.check(plan['flags'])
  each = map(combinations.to_flags, plan['combinations'])
  for word in sorted(set(itertools.chain(*each))):
    train_flags_lib.check([word])


def is_on_spark():
  """Whether Spark runs the trials."""
  return _RUNNER.value == 'spark'


def check_runner_flags():
  """Refuses flags of launch or a launcher that do not fit --runner.

  Raises:
    cli.UsageError: one is given.
  """
  if is_on_spark():
    if FLAGS.launcher != 'local':
      raise cli.UsageError(
        f'--runner=spark and --launcher={FLAGS.launcher} exclude each other: a '
        'trial has one executor of Spark, and no other machine'
      )
    if FLAGS['gpus'].present:
      raise cli.UsageError(
        '--gpus is for trials on this machine, and not for --runner=spark: '
        'leave it out'
      )
  elif FLAGS.launcher != 'spark':
    for flag in FLAGS.flags_by_module_dict()[spark.__name__]:
      if flag.present:
        raise cli.UsageError(
          f'--{flag.name} is for --runner=spark, and this is --runner=local: '
          'give the one or leave out the other'
        )


def check_spark(plan):
  """Checks what can be known of a sweep on Spark before anything starts.

  Raises:
    cli.UsageError: it cannot work.
  """
  master = spark.get_master()
  path = _SWEEP_DIR.value
  if path is None and not master.startswith('local'):
    raise cli.UsageError(
      '--sweep_dir is missing: give a folder that the driver and all executors '
      'of Spark share'
    )
  if path is not None and not path.startswith(('/', '~')):
    raise cli.UsageError(
      f'--sweep_dir={path}: expected the absolute path of a folder that the '
      'driver and all executors of Spark share'
    )
  on_spark.check_paths(plan['flags'])
  for combination in plan['combinations']:
    on_spark.check_paths(combinations.to_flags(combination))
  on_spark.check_fixed_slots(
    master,
    find_num_parallel(len(plan['combinations'])),
    who='{} trials run at the same time',
    advice='give a lower --parallel',
  )


def find_num_parallel(num_trials):
  """Returns how many of the trials run at the same time (int).

  Raises:
    cli.UsageError: it is not known how many there can be.
  """
  wanted = _PARALLEL.value
  if wanted is None and is_on_spark():
    wanted = on_spark.count_fixed_slots(spark.get_master())
    if wanted is None:
      raise cli.UsageError(
        '--parallel is missing: say how many trials Spark shall run at the '
        'same time, each in a slot of an executor'
      )
  return min(wanted or 1, num_trials)


def make_rungs(num_trials, choices, given):
  """Returns [[number of trials, flag for them], ...], one without --halving.

  Raises:
    cli.UsageError: it is not clear how long a whole training is.
  """
  if _HALVING.value is None:
    return [[num_trials, '']]
  budgets = {n: tasks.flag_value(given, n) for n in halving.BUDGETS}
  names = [name for name, value in budgets.items() if value is not None]
  if len(names) != 1 or set(halving.BUDGETS) & set(choices):
    raise cli.UsageError(
      '--halving shares out the length of a training: give either '
      '--train_steps or --epochs after the --, and do not sweep over them'
    )
  (name,) = names
  rungs = halving.compute_rungs(num_trials, _HALVING.value, name, budgets[name])
  return [list(rung) for rung in rungs]


def _default_folder(plan):
  digest = hashlib.sha256(json.dumps(plan).encode()).hexdigest()
  return os.path.join(
    tempfile.gettempdir(), f'distmnist_sweep_{os.getuid()}_{digest[:8]}'
  )


@contextlib.contextmanager
def opened(folder, plan):
  """Holds the folder for this sweep alone; yields the lock of its trials.

  Raises:
    cli.UsageError: it cannot be written, is another sweep's, or is in use.
  """
  path = os.path.join(folder, 'sweep.json')
  try:
    _make_folder(folder)
    own = _open_lock(os.path.join(folder, 'sweep.lock'))
    of_trials = _open_lock(os.path.join(folder, 'trials', 'lock'))
  except OSError as error:
    raise cli.UsageError(
      f'--sweep_dir={folder} cannot be written: {error.strerror}'
    ) from error
  files.warn_of_owner('sweep_dir', folder, say)
  with own, of_trials:
    if not _lock(own):
      raise cli.UsageError(
        f'--sweep_dir={folder} is in use by another sweep: wait for its end, '
        'or give another folder'
      )
    # The trials of a sweep that was killed have a few seconds to save and go.
    wait = console.Wait(
      stop_grace.for_orphans(stop_grace.parse(plan['flags'])) + 5, say
    )
    while not _lock(of_trials):
      if wait.is_over(f'for the trials of a sweep that was killed in {folder}'):
        raise cli.RunError(
          f'--sweep_dir={folder}: trials of a sweep that was killed still run'
        )
      time.sleep(0.05)
    with contextlib.suppress(FileNotFoundError):
      known = trials_lib.read_json(path)
      for name, value in plan.items():
        if known.get(name) != value:
          raise cli.UsageError(
            f'--sweep_dir={folder} holds another sweep: its {name} were '
            f'{_shorten(known.get(name))} and not {_shorten(value)}; give the '
            'same command line again, or another folder'
          )
    yield of_trials


def _make_folder(folder):
  """Makes the folder of a sweep, and trials/ in it.

  Raises:
    cli.UsageError: it is the default one, and another user has prepared it.
    OSError: it cannot be made.
  """
  if not _SWEEP_DIR.value:
    # Everybody can tell its name and write next to it. A folder that the user
    # has named may be for a group, or for executors that are other users.
    try:
      files.make_private(folder)
    except PermissionError as error:
      raise cli.UsageError(
        f'{error}, and a sweep without --sweep_dir needs a folder of its own:'
        ' give --sweep_dir'
      ) from error
  os.makedirs(os.path.join(folder, 'trials'), exist_ok=True)


def _open_lock(path):
  return open(path, 'a+', opener=files.no_follow)


def _lock(file):
  try:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    return False
  return True


def _shorten(value):
  if isinstance(value, list) and value and isinstance(value[0], dict):
    first = combinations.describe(value[0])
    return f'{len(value)} from {first} on'
  return repr(value)


def make_command(trial, plan, rung, num_parallel, secrets_file=None):
  """Returns the command of a trial, a list of str, with no secret in it.

  Args:
    trial: trials.Trial.
    plan: dict, as of `make_plan`.
    rung: int, how far it shall go.
    num_parallel: int, the trials that share the cores.
    secrets_file: str, the flagfile that has the secrets, or None to hide them.
  """
  num_ps, num_workers = plan['num_ps'], plan['num_workers']
  threads = max(1, count_cores(num_parallel) // num_workers)
  command = ['python', '-m', plan['module']]
  if is_launched(plan):
    command = [
      *('python', '-m', 'distmnist.launch', *find_launch_flags(secrets_file)),
      *(f'--num_ps={num_ps}', f'--num_workers={num_workers}'),
      *(f'--module={plan["module"]}', f'--logs_dir={trial.folder}/logs', '--'),
    ]
  shared = [
    f'--intra_op_parallelism_threads={threads}',
    '--inter_op_parallelism_threads=2',
  ]
  return [
    *command,
    # Other machines have cores of their own.
    *(shared if FLAGS.launcher == 'local' else []),
    '--validate_at_end',
    *_find_data_dir(plan, trial.combination),
    *plan['flags'],
    *combinations.to_flags(trial.combination),
    *filter(None, [plan['rungs'][rung][1]]),
    f'--logdir={trial.logdir}',
    '--resume=auto',
  ]


def _find_data_dir(plan, combination):
  """Returns --data_dir for executors of Spark, which lack our environment."""
  if not is_on_spark() or plan['module'] != tasks.TRAIN:
    return []
  given = [*plan['flags'], *combinations.to_flags(combination)]
  return on_spark.find_data_dir(given, os.environ)


def count_cores(num_parallel):
  """Returns how many cores (int) each of so many trials has.

  Raises:
    cli.UsageError: Spark's setting for it is no number.
  """
  if is_on_spark():
    text = get_spark_conf(num_parallel).get('spark.task.cpus', '1')
    if not re.fullmatch('[1-9][0-9]*', text):
      raise cli.UsageError(
        f'--spark_conf=spark.task.cpus={text}: expected a number of cores >= 1'
      )
    return int(text)
  return len(os.sched_getaffinity(0)) // num_parallel


def get_spark_conf(num_parallel):
  """Returns the settings of Spark, a dict."""
  settings = [*spark_trials.CONF, *FLAGS.spark_conf]
  return spark.make_conf(spark.get_master(), num_parallel, settings)


def is_launched(plan):
  """Whether each trial is a `distmnist.launch`, as a cluster has to be."""
  is_cluster = plan['num_ps'] + plan['num_workers'] > 1
  return is_cluster or FLAGS.max_restarts or FLAGS.launcher != 'local'


def find_launch_flags(secrets_file=None):
  """Returns what was given of the flags of launch and of the launchers.

  Not those that a sweep has in its own hands. A command line can be read by all
  users: a secret is in `secrets_file`, or without one, for a dry run, hidden.
  """
  given = _list_launch_flags()
  secret = [word for word in given if _hide_secret(word) != word]
  if not secrets_file:
    return [_hide_secret(word) for word in given]
  public = [word for word in given if word not in secret]
  return [f'--flagfile={secrets_file}'] * bool(secret) + public


def find_secrets():
  """Returns those flags of launch (list of str) that hold a secret."""
  return [word for word in _list_launch_flags() if _hide_secret(word) != word]


def _list_launch_flags():
  modules = FLAGS.flags_by_module_dict()
  given = [
    flag
    for module in sorted(modules)
    if module.startswith('distmnist.launch')
    and not (is_on_spark() and module == spark.__name__)
    for flag in modules[module]
    if flag.present
    and flag.name
    not in ('num_ps', 'num_workers', 'module', 'logs_dir', 'dry_run', 'gpus')
  ]
  words = []
  for flag in given:
    if isinstance(flag, flags.MultiFlag):
      words += [f'--{flag.name}={value}' for value in flag.value]
    else:
      words.append(flag.serialize())
  return words


def _hide_secret(word):
  name, _, value = word.partition('=')
  return (
    word if name != '--spark_conf' else f'{name}={spark.hide_secret(value)}'
  )


def share_gpus(gpus, num_parallel, slot):
  """Returns those of `gpus` that belong to a slot, 0 <= slot < num_parallel.

  Where there are fewer than slots, some have one together.
  """
  return gpus[slot::num_parallel] or gpus[slot % max(1, len(gpus)) :][:1]


class Sweep:
  """The trials on their way, rung by rung; without --halving there is one."""

  def __init__(self, plan, trials, folder, num_parallel):
    """
    Args:
      plan: dict, as of `make_plan`.
      trials: list of trials.Trial.
      folder: str, that of the sweep.
      num_parallel: int, how many run at the same time.
    """
    self._plan = plan
    self._trials = trials
    self._folder = folder
    self._secrets_path = os.path.join(folder, 'secret.flags')
    self._num_parallel = num_parallel
    self._num_rungs = len(plan['rungs'])
    self._is_launched = is_launched(plan)
    grace_secs = stop_grace.for_worker(stop_grace.parse(plan['flags']))
    grace_secs += _LAUNCH_MARGIN_SECS if self._is_launched else 0
    limit_secs = _TRIAL_TIMEOUT_SECS.value or math.inf
    self._limit = trials_lib.Limit(limit_secs, grace_secs)
    self._gpus = None
    if not is_on_spark():
      self._gpus = local.find_gpus(
        FLAGS.gpus, os.environ, glob.glob('/dev/nvidia*')
      )
    self._writer = None

  def run(self, lock):
    """Runs what is missing.

    Args:
      lock: file, kept open by all that is started.

    Returns:
      int, the signal that has ended it, or None.

    Raises:
      cli.UsageError: a combination cannot work; no trial has started.
    """
    left = self._find_left()
    text = (
      f'{len(self._trials)} trials in {self._folder}, '
      f'{self._num_parallel} at a time'
    )
    if len(left) < len(self._trials):
      verb = 'is' if len(left) == 1 else 'are'
      text += (
        f'; {len(left)} {verb} left to run' if left else '; all have ended'
      )
    say(text)
    if not left:
      self._write_hparams()
      return None
    secrets = contextlib.nullcontext()
    if words := find_secrets():
      secrets = files.private_file(self._secrets_path, '\n'.join(words))
    try:
      with secrets, self._make_runner(lock) as runner:
        self._run_all(runner)
    except spark.SignalError as error:
      return error.signum  # before the first trial
    return runner.signals[0] if runner.signals else None

  def _make_runner(self, lock):
    if is_on_spark():
      return spark_trials.SparkRunner(
        get_spark_conf(self._num_parallel),
        self._folder,
        lock,
        FLAGS.spark_wait_secs,
        say,
        stop_grace.parse(self._plan['flags']),
      )
    is_forked = FLAGS.fork_tasks and not self._is_launched
    return trials_lib.LocalRunner(
      self._plan['module'] if is_forked else '',
      os.path.join(self._folder, 'fork_server.log'),
      lock,
      stop_grace.parse(self._plan['flags']),
    )

  def _run_all(self, runner):
    if self._plan['module'] == tasks.TRAIN:
      self._check(runner)
    if not runner.signals:
      path = os.path.join(self._folder, 'sweep.json')
      trials_lib.write_json(path, self._plan)
      self._write_hparams()
    for rung in range(self._num_rungs):
      self._run_rung(runner, rung)
      if runner.signals:
        break
      self._drop_worst(rung)
    self._write_hparams()

  def _find_left(self):
    """Returns the trials to run now, of the first rung that has some."""
    for rung in range(self._num_rungs):
      if left := self._find_missing(rung):
        return left
    return []

  def _find_missing(self, rung):
    is_retried = _RETRY_FAILED.value
    return [
      trial
      for trial in self._find_members(rung)
      if len(trial.results) <= rung
      and trial.state != trials_lib.DIVERGED
      and (trial.state != trials_lib.FAILED or is_retried)
    ]

  def _find_members(self, rung):
    """Returns the trials that may come to the end of a rung."""
    members = self._trials
    for before in range(rung):
      number, _ = self._plan['rungs'][before + 1]
      members = results.choose(members, before, number)
    return members

  def _check(self, runner):
    """Has train check each combination.

    Raises:
      cli.UsageError: names the first that cannot work.
    """
    path = os.path.join(self._folder, 'check.json')
    log = os.path.join(self._folder, 'check.log')
    asked = {name: self._plan[name] for name in ('num_ps', 'num_workers')}
    asked['needs_data'] = True
    # Without `python -m MODULE`, and without launch and its flags.
    asked['flags'] = [
      [
        '--validate_at_end',
        *_find_data_dir(self._plan, trial.combination),
        *self._plan['flags'],
        *combinations.to_flags(trial.combination),
        *filter(None, [self._plan['rungs'][0][1]]),
        f'--logdir={trial.logdir}',
      ]
      for trial in self._trials
    ]
    trials_lib.write_json(path, asked)
    command = ['python', '-m', 'distmnist.check', path]
    start = runner.start('check', command, log)
    ended = runner.wait()
    if not ended:
      runner.stop(signal.SIGTERM, 0)
      return
    ((_, code),) = ended
    if code:
      cause = trials_lib.find_cause(log, start, code)
      raise cli.RunError(f'the trials cannot be checked: {cause}')
    found = trials_lib.read_json(f'{path}.checked')
    for name in (path, log, f'{path}.checked'):
      os.remove(name)
    wrong = [
      (trial, mistake)
      for trial, mistake in zip(self._trials, found, strict=True)
      if mistake
    ]
    if wrong:
      trial, mistake = wrong[0]
      more = f' ({len(wrong)} of {len(found)} cannot work)' * (len(wrong) > 1)
      raise cli.UsageError(
        f'no trial was started: with '
        f'{combinations.describe(trial.combination)}: {mistake}{more}'
      )

  def _run_rung(self, runner, rung):
    waiting, running = self._find_missing(rung), {}
    slots = list(range(self._num_parallel))
    while (waiting or running) and not runner.signals:
      while waiting and slots:
        trial, slot = waiting.pop(0), slots.pop()
        size = self._start(runner, trial, rung, slot)
        running[trial.name] = trial, slot, size, time.monotonic()
      for name, code in runner.wait():
        trial, slot, size, start = running.pop(name)
        slots.append(slot)
        trial.end(code, time.monotonic() - start, size)
        self._note(trial, rung)
    if not running:
      return
    say(f'{signal.Signals(runner.signals[0]).name}: the trials save and stop')
    for name, code in runner.stop(signal.SIGTERM, self._limit.grace_secs):
      trial, _, size, start = running.pop(name)
      secs = time.monotonic() - start
      if code:
        trial.stop(secs)
      else:
        trial.end(code, secs, size)

  def _start(self, runner, trial, rung, slot):
    command = make_command(
      trial, self._plan, rung, self._num_parallel, self._secrets_path
    )
    env = {}
    if self._gpus is not None:
      mine = share_gpus(self._gpus, self._num_parallel, slot)
      env['CUDA_VISIBLE_DEVICES'] = ','.join(mine)
    try:
      trial.begin()
      hparams.forget(trial)
      return runner.start(trial.name, command, trial.log, env, self._limit)
    except OSError as error:
      raise cli.RunError(
        f'trial {trial.name} cannot be written: {error}'
      ) from error

  def _note(self, trial, rung):
    """Says how a trial has ended, and has it in the results at once."""
    members = self._find_members(rung)
    missing = sum(
      len(t.results) <= rung and t.state not in trials_lib.LOST for t in members
    )
    text = combinations.describe(trial.combination)
    if self._num_rungs > 1:
      text += f' (rung {rung + 1} of {self._num_rungs})'
    outcome, _, _ = trial.cause.partition(';')
    if trial.state == trials_lib.DONE:
      by = results.find_ranking([trial])
      outcome = f'{by.replace("_", " ")} {trial.result[by]:.4f}'
    say(
      f'{len(members) - missing} of {len(members)}: trial {trial.name} '
      f'{trial.state} after {trial.secs:.1f} s: {text}: {outcome}'
    )
    results.write_csv(self._trials, os.path.join(self._folder, results.CSV))
    self._write_hparams()

  def _drop_worst(self, rung):
    if rung + 1 == self._num_rungs:
      return
    members, best = self._find_members(rung), self._find_members(rung + 1)
    dropped = [
      t for t in members if t not in best and t.state == trials_lib.DONE
    ]
    for trial in dropped:
      trial.drop()
    say(f'rung {rung + 1}: {len(best)} of {len(members)} go on')

  def _write_hparams(self):
    """Writes for TensorBoard what is not written yet."""
    try:
      if self._writer is None:
        self._writer = hparams.Writer(self._trials, self._folder)
    except ImportError as error:
      self._writer = False
      say(f'nothing for TensorBoard: {error}; pip install tensorboard')
    if not self._writer:
      return
    for trial in self._trials:
      is_last = len(trial.results) == self._num_rungs
      if trial.state in (*trials_lib.LOST, trials_lib.DROPPED) or is_last:
        self._writer.write(trial)


def show(trials, folder):
  """Prints the table, and writes the results."""
  if all(trial.state == trials_lib.WAITING for trial in trials):
    return
  print(*results.format_table(trials), sep='\n', flush=True)
  written = os.path.join(folder, results.CSV)
  results.write_csv(trials, written)
  try:
    path = os.path.join(folder, results.PLOT)
    results.write_plot(trials, path)
    written += f' and {path}'
  except ImportError as error:
    say(f'no plot: {error}; pip install matplotlib, or distmnist[plots]')
  best = results.rank(trials)[0]
  if best.state == trials_lib.DONE:
    by = results.find_ranking(trials).replace('_', ' ')
    flags_of_best = shlex.join(combinations.to_flags(best.combination))
    say(f'best by {by}: trial {best.name}, {flags_of_best}')
  say(f'results in {written}')


def _raise_if_incomplete(trials):
  """Raises cli.RunError that names the first of the trials that failed."""
  failed = [t for t in trials if t.state == trials_lib.FAILED]
  stopped = [t for t in trials if t.state == trials_lib.STOPPED]
  for state, found, advice in (
    ('failed', failed, 'once repaired, --retry_failed runs it again'),
    ('was stopped', stopped, 'the same command goes on with it'),
  ):
    if found:
      first = found[0]
      cause = f': {first.cause}' if first.cause else ''
      more = f', the first of {len(found)} that did' if len(found) > 1 else ''
      raise cli.RunError(
        f'trial {first.name} ({combinations.describe(first.combination)}) '
        f'{state}{more}{cause}; log: {first.log}; {advice}'
      )


def say(text):
  # Ours goes to stderr: stdout carries the table alone.
  print(f'distmnist.sweep: {text}', file=sys.stderr, flush=True)


def run():
  """The console's entry point."""
  # One worker with no ps is a single process. The other flags of launch are as
  # they are there.
  flags.set_default(launch.NUM_PS, 0)
  flags.set_default(launch.NUM_WORKERS, 1)
  cli.run(
    main,
    passthrough=True,
    takes_words=True,
    is_for_train=train_flags_lib.is_known,
  )


if __name__ == '__main__':
  run()
