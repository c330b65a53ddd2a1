"""Trains with many combinations of flags, and says which are best.

  python -m distmnist.sweep learning_rate=0.1,0.01 batch_size=32,64 \\
      --parallel=2 --sweep_dir=logs/sweep -- --model=cnn --epochs=2

Everything after -- goes to every trial, followed by the flags that words set:

  name=v1,v2,...  values (v1;v2 if they contain commas), each combined with
                  each of the other words, or one to one under --zip
  name=lo..hi     a range for --random=N: whole numbers are sampled evenly,
                  others in their logarithm, unless log:lo..hi or lin:lo..hi

--repeats=3 runs each combination with three seeds, and compares the means.
Every combination is checked by train before the first trial starts. A trial
that fails does not stop the others. Repeat the command to run what is missing.

Each trial is one process; with --num_ps, --num_workers, --max_restarts or
--launcher a `distmnist.launch`, which gets its flags from here; with
--runner=spark --master=... a Spark task. All hosts share the --sweep_dir.
It needs Optuna: pip install distmnist[sweep].
"""

from __future__ import annotations

import logging
import os
import shlex
import signal

from absl import flags

from distmnist.cluster import task_environment
from distmnist.common import child_program, cli, console, refusals
from distmnist.common.names import SWEEP
from distmnist.common.refusals import Refusal
from distmnist.launchers import spark
from distmnist.launching import cluster_flags
from distmnist.launching import train_flags as train_flags_lib
from distmnist.spark import sweep_backend
from distmnist.sweeps import (
  halving,
  journal,
  local_backend,
  progress,
  results,
  sweep_folder,
  trial_command,
  trial_loop,
)
from distmnist.sweeps import spec as spec_lib
from distmnist.sweeps import trials as trials_lib

_log = logging.getLogger(SWEEP)  # It may run as __main__.

FLAGS = flags.FLAGS

_SWEEP_DIR = flags.DEFINE_string(
  'sweep_dir',
  None,
  'Folder for the trials and the results. Default: a temporary one, which the '
  'same command finds again.',
)
_PARALLEL = flags.DEFINE_integer(
  'parallel',
  None,
  'Number of trials that run at the same time; on this machine they share the '
  'cores. Default: 1, or all slots of a local or local-cluster Spark.',
  lower_bound=1,
)
_RUNNER = flags.DEFINE_enum(
  'runner',
  'local',
  ['local', 'spark'],
  'What runs a trial: this machine, or an executor of the Spark that --master '
  'names.',
)
_ZIP = flags.DEFINE_bool(
  'zip',
  False,
  'Combine the first value of each flag, then the second of each, and so on.',
)
_RANDOM = flags.DEFINE_integer(
  'random',
  None,
  'Number of distinct combinations to sample, by --seed of train. Default: all '
  'are tried.',
  lower_bound=1,
)
_SAMPLER = flags.DEFINE_enum(
  'sampler',
  'random',
  ['random', 'tpe'],
  'How --random samples. random: each combination independently; tpe: each by '
  "Optuna's tree-structured Parzen estimator, from the trials that have ended.",
)
_REPEATS = flags.DEFINE_integer(
  'repeats',
  1,
  'Number of trials of each combination, which differ in --seed, from that '
  'after the -- on; combinations are compared by their means.',
  lower_bound=1,
)
_HALVING = flags.DEFINE_integer(
  'halving',
  None,
  'Successive halving by this factor N: all trials get a part of --train_steps '
  'or --epochs, the best 1 / N of them N times as much, and so on.',
  lower_bound=2,
)
_JUDGE = flags.DEFINE_enum(
  'judge',
  results.METRIC,
  results.JUDGES,
  'By what trials are compared. metric: the validation accuracy, or whatever '
  'the problem names; examples_per_sec: the speed of all workers together, for '
  'which --train_secs=10 of train is long enough.',
)
_TRIAL_TIMEOUT_SECS = flags.DEFINE_float(
  'trial_timeout_secs',
  None,
  'Seconds that a trial may take each time it runs, with --halving in each '
  'rung. One that takes longer is told to save and exit, and counts as '
  'failed; --retry_failed goes on with it. Default: no limit.',
  lower_bound=1,
)
_RETRY_FAILED = flags.DEFINE_bool(
  'retry_failed', False, 'Run failed trials again.'
)


def main(words: list[str], train_flags: list[str]) -> int:
  """Runs the trials; returns the exit code.

  Args:
    words: what to try.
    train_flags: the words after --.
  """
  child_program.end_with_starter()
  task_environment.forget(os.environ)
  console.print_logs(progress.print_line)
  spec = make_spec(words, train_flags)
  spec.check_flags()
  command = make_command(spec)
  trial_command.check_launcher(command, _SWEEP_DIR.value)
  folder = sweep_folder.SweepFolder(_SWEEP_DIR.value, spec)
  if FLAGS.dry_run:
    examples = spec.find_examples()
    for trial in trials_lib.make_trials(examples, folder.trials, spec.seeds):
      print(shlex.join(command.make(trial, 0)))
    return 0
  journal.check_ready()
  command.backend.check_ready()
  with folder.opened() as lock:
    kept = journal.Journal(folder.join(journal.NAME), spec, folder.trials)
    schedule = halving.Schedule(
      kept.trials, spec.rungs, spec.repeats, _RETRY_FAILED.value
    )
    shown = progress.Progress(schedule, folder.path)
    loop = trial_loop.TrialLoop(
      *(command, kept, schedule, folder, shown, _TRIAL_TIMEOUT_SECS.value)
    )
    signum = loop.run(lock)
    shown.show()
  if signum:
    again = f'the same command goes on, with --sweep_dir={folder.path}'
    _log.info(f'stopped by {signal.Signals(signum).name}: {again}')
    return 128 + signum
  progress.check_complete(kept.trials)
  return 0


# They need no facts.
_REFUSALS = (
  Refusal(
    'logs_dir',
    lambda f: FLAGS.logs_dir is not None,
    ' is not for a sweep: see --sweep_dir',
  ),
  Refusal(
    'sampler',
    lambda f: FLAGS.sampler == 'tpe' and not FLAGS.random,
    ' needs the number of trials: give it, such as --random=20',
  ),
  Refusal(
    'sampler',
    lambda f: FLAGS.sampler == 'tpe' and FLAGS.zip,
    ' proposes each trial from those before it, and --zip combines values in '
    'an order of its own: leave one of them out',
  ),
  Refusal(
    'sampler',
    lambda f: FLAGS.sampler == 'tpe' and FLAGS.halving,
    ' proposes each trial from those before it, and --halving has all trials '
    'start before one ends: leave one of them out',
  ),
)


def make_spec(words: list[str], train_flags: list[str]) -> spec_lib.Spec:
  """Returns what to try, from the flags that say it.

  Raises:
    cli.UsageError: the command line cannot work.
  """
  refusals.refuse(_REFUSALS)
  spec = spec_lib.Spec(
    words=list(words),
    # Flags of a --flagfile count as given.
    flags=list(train_flags_lib.expand(train_flags)),
    num_ps=cluster_flags.NUM_PS.value,
    num_workers=cluster_flags.NUM_WORKERS.value,
    module=cluster_flags.MODULE.value,
    zip=_ZIP.value,
    random=_RANDOM.value,
    sampler=_SAMPLER.value,
    halving=_HALVING.value,
    judge=_JUDGE.value,
    repeats=_REPEATS.value,
  )
  spec.check_words()
  return spec


def make_command(spec: spec_lib.Spec) -> trial_command.TrialCommand:
  """Returns how a trial is run, from the flags that say it.

  Raises:
    cli.UsageError: the flags do not fit --runner.
  """
  launch_flags = trial_command.launch_from_flags(spec)
  if _RUNNER.value == 'spark':
    backend = sweep_backend.from_flags(
      _PARALLEL.value, spec, _SWEEP_DIR.value, launcher=spark
    )
  else:
    num_parallel = min(_PARALLEL.value or 1, spec.num_trials)
    backend = local_backend.from_flags(
      num_parallel, spec.module, is_launched=launch_flags is not None
    )
  return trial_command.TrialCommand(spec, backend, launch_flags)


def run() -> None:
  """The console's entry point."""
  # One worker with no ps is a single process. The other flags of launch keep
  # their defaults.
  flags.set_default(cluster_flags.NUM_PS, 0)
  flags.set_default(cluster_flags.NUM_WORKERS, 1)
  cli.run(
    main,
    passthrough=True,
    takes_words=True,
    is_for_train=train_flags_lib.is_known,
  )


if __name__ == '__main__':
  run()
