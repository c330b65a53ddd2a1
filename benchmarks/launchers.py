"""The same flags through every launcher: one accuracy, and what each costs.

  python benchmarks/launchers.py [--launchers=NAME,...] [flags of train ...]

The default flags are configs/cnn_async.flags; there are 2 ps and 2 workers. ssh
goes to a real sshd on 127.0.0.1 and 127.0.0.2, slurm to a real one-node Slurm,
both started by the benchmark, and spark to a local-cluster with one executor
per task. A launcher that is not installed is skipped, with the reason.
"""

import contextlib
import importlib.util
import os
import pathlib
import shutil
import sys
import tempfile

import processes
import runs
import tables

from tests.support import slurm_cluster, sshd

NUM_PS = NUM_WORKERS = 2


@contextlib.contextmanager
def make_local(_):
  yield []


@contextlib.contextmanager
def make_ssh(folder):
  with sshd.start(folder) as here:
    # TensorFlow listens on all addresses: the two hosts share their ports.
    hosts = '127.0.0.1:2222,127.0.0.2:2322'
    yield [f'--hosts={hosts}', f'--ssh_options=-F {here}/config']


@contextlib.contextmanager
def make_slurm(folder):
  with slurm_cluster.start(folder) as config:
    os.environ['SLURM_CONF'] = str(config)
    yield []


@contextlib.contextmanager
def make_spark(_):
  yield [f'--master=local-cluster[{NUM_PS + NUM_WORKERS},1,1024]']


def why_no_spark():
  if importlib.util.find_spec('pyspark') is None:
    return 'no pyspark: pip install -e .[spark]'
  return '' if shutil.which('java') else 'no java: install Java 17'


# Name -> (make(folder), a context with the launcher's flags; why it can't run).
LAUNCHERS = {
  'local': (make_local, lambda: ''),
  'ssh': (make_ssh, sshd.why_not),
  'slurm': (make_slurm, slurm_cluster.why_not),
  'spark': (make_spark, why_no_spark),
}


def measure(name, flags):
  """Returns the cells of a launcher's row."""
  make, why_not = LAUNCHERS[name]
  if reason := why_not():
    return [name, f'skipped: {reason}', '-', '-', '-']
  with tempfile.TemporaryDirectory() as folder, make(folder) as launch_flags:
    result = runs.launch(
      *(NUM_PS, NUM_WORKERS, *flags),
      launch_flags=[f'--launcher={name}', *launch_flags],
    )
  report = result['report']
  return [
    name,
    f'{report["test_accuracy"]:.4f}',
    f'{report["examples_per_sec"]:,.0f}',
    f'{result["first_step_secs"]:.1f}',
    f'{result["end_secs"]:.1f}',
  ]


def main(words):
  names = list(LAUNCHERS)
  if words and words[0].startswith('--launchers='):
    names = words.pop(0).partition('=')[2].split(',')
  flags = words or [f'--flagfile={processes.REPO}/configs/cnn_async.flags']
  if 'DISTMNIST_DATA_DIR' in os.environ:
    # Environment variables do not travel over ssh.
    data_dir = pathlib.Path(os.environ['DISTMNIST_DATA_DIR']).resolve()
    flags.append(f'--data_dir={data_dir}')
  print(tables.describe_machine(), '\n', flush=True)
  tables.print_table(
    ['launcher', 'test accuracy', 'images/s', 'first step, s', 'in all, s'],
    [measure(name, flags) for name in names],
  )


if __name__ == '__main__':
  processes.exit_by(main, sys.argv[1:])
