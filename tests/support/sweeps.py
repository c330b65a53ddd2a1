"""Sweeps, as users run them, most with fake_train.py in train's place."""

import os
import subprocess
import sys
import types

import optuna
import psutil

from tests.support import background, programs
from tests.support.paths import REPO, SUPPORT

# Far more than anything takes where nothing else wants the cores.
DEADLINE_SECS = 100
DIVERGES = 'all:error=the_loss_is_nan:_the_training_has_diverged'


def make_command(folder, *words, module='fake_train'):
  return [
    *(sys.executable, '-m', 'distmnist.sweep', f'--sweep_dir={folder}/sweep'),
    *(f'--module={module}', *map(str, words)),
    *(() if '--' in words else ('--',)),
    *((f'--folder={folder}',) if module == 'fake_train' else ()),
  ]


def make_env():
  paths = [str(REPO), str(SUPPORT), os.environ.get('PYTHONPATH', '')]
  return {**os.environ, 'PYTHONPATH': ':'.join(filter(None, paths))}


def run(folder, *words, **settings):
  """Runs a sweep, as a fork; returns its returncode, stdout and stderr."""
  done = programs.start_forked().run(
    'sweep',
    make_command(folder, *words, **settings)[3:],
    REPO,
    timeout_secs=250,
    PYTHONPATH=make_env()['PYTHONPATH'],
  )
  assert not done['left'], 'a process has outlived it'
  return types.SimpleNamespace(
    returncode=done['code'], stdout=done['out'], stderr=done['err']
  )


def run_fresh(folder, *words, **settings):
  """Runs a sweep as `run` does, but as a new process.

  Spark wants that; and alone it takes less time than what is to be forked.
  """
  return subprocess.run(
    make_command(folder, *words, **settings),
    env=make_env(),
    capture_output=True,
    text=True,
    timeout=250,
  )


def read_table(done):
  """Returns the rows of the table on stdout, a list of dict."""
  first, *lines = done.stdout.splitlines()
  header = first.split()
  rows = [line.split(maxsplit=len(header) - 1) for line in lines]
  return [dict(zip(header, row, strict=True)) for row in rows]


def read_outcomes(folder):
  """Returns {name: outcome} of the trials that have begun, by name."""
  path = folder / 'sweep' / 'journal.log'
  if not path.exists():
    return {}
  backend = optuna.storages.journal.JournalFileBackend(str(path))
  storage = optuna.storages.JournalStorage(backend)
  if not optuna.get_all_study_names(storage):
    return {}
  study = optuna.load_study(study_name='sweep', storage=storage)
  # Of those with the same name the last one counts.
  found = {
    trial.user_attrs['trial']: trial.user_attrs['outcome']
    for trial in study.trials
    if 'outcome' in trial.user_attrs
  }
  return dict(sorted(found.items()))


def read_trial(folder, name):
  return read_outcomes(folder)[name]


def read_states(folder):
  return [outcome['state'] for outcome in read_outcomes(folder).values()]


def count_runs(folder):
  """Returns how often each trial has said that it ran."""
  logs = sorted((folder / 'sweep' / 'trials').glob('*/log'))
  return [log.read_text().count('ran\n') for log in logs]


class Running(background.Running):
  """A sweep in the background; its end is the end of all that it started."""

  def __init__(self, folder, *words, **settings):
    super().__init__(
      folder,
      make_command(folder, *words, **settings),
      stdout=subprocess.PIPE,
      env=make_env(),
      text=True,
    )

  def all_processes(self):
    return psutil.Process(self.process.pid).children(recursive=True)

  def kill(self):
    """Kills it by SIGKILL; returns once its trials are gone as well."""
    processes = self.all_processes()
    self.process.kill()
    self.process.wait()
    # Until their end they hold their lock, and see what they wait for.
    background.assert_gone(processes)


def check_clusters(run, folder):
  """Checks a sweep with a cluster a trial; `run` is one of those above."""
  do = 'all:touch=x,report=0.5;worker1:error=boom'
  done = run(
    *(folder, f'do={do}', '--num_ps=1', '--num_workers=2', '--isolate=off')
  )
  assert done.returncode == 1, done.stderr
  assert read_states(folder) == ['done', 'failed']
  assert read_trial(folder, '02')['cause'] == 'boom'
  logs = folder / 'sweep' / 'trials' / '01' / 'logs'
  assert sorted(path.name for path in logs.iterdir()) == [
    *('ps_0.log', 'worker_0.log', 'worker_1.log')
  ]
