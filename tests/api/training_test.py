"""training: run and start, as scripts, threads and notebooks call them."""

import io
import os
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import types

import psutil
import pytest

import distmnist
from distmnist.api import training
from distmnist.storage import copies
from distmnist.watching import learning_curve
from tests.support.background import wait_until
from tests.support.paths import REPO

SMALL = {
  'dataset': 'synthetic',
  'model': 'softmax',
  'synthetic_train_images': 3000,
  'synthetic_test_images': 500,
  'validation_images': 500,
}
FOREVER = {**SMALL, 'num_workers': 1, 'train_steps': 10**8, 'log_secs': 0.1}


def wait_until_gone(processes):
  _, alive = psutil.wait_procs(processes, timeout=200)
  assert not alive


def find_cluster(pid):
  """Returns a launcher and all that it has started."""
  launcher = psutil.Process(pid)
  return [launcher, *launcher.children(recursive=True)]


def test_other_hosts_need_a_logdir(tmp_path):
  file = tmp_path / 'a.flags'
  file.write_text('--launcher slurm')
  for settings in {'launcher': 'slurm'}, {'flagfile': file}:
    with pytest.raises(ValueError, match="launcher='slurm' without logdir"):
      distmnist.start(**settings)


@pytest.mark.daily
@pytest.mark.slow
def test_a_report_that_lies_in_a_store_is_read(store, tmp_path):
  (tmp_path / 'report.json').write_text('{"global_step": 3}')
  url = f'{store.url}/of_a_launcher'
  copies.upload_folder(str(tmp_path), url)

  curve = learning_curve.Curve(None)
  report = training.read_report(f'{url}/report.json', curve)
  assert report.global_step == 3 and report.curve is curve
  assert training.read_report(f'{url}/none.json', curve) is None


def test_a_report_has_attributes():
  report = training.Report({'global_step': 3, 'flags': {'logdir': 'logs/a'}})
  assert (report.global_step, report.logdir) == (3, 'logs/a')
  assert training.Report({'flags': {}}).logdir is None
  with pytest.raises(AttributeError, match="a report has no 'global_stp'"):
    _ = report.global_stp


def test_a_report_is_shown_in_a_line():
  fields = {
    'global_step': 192,
    'train_metrics': None,
    'validation_metrics': {'loss': 0.123456, 'auc': None},
    'examples_per_sec': 4541.3,
    'flags': {},
  }
  report = training.Report(fields)
  shown = eval(str(report), {'Report': dict})  # noqa: S307
  assert shown == {
    'global_step': 192,
    'validation_metrics': {'loss': 0.1235, 'auc': None},
    'examples_per_sec': 4541,
  }
  assert report == fields
  assert str(training.Report({})) == 'Report()'


@pytest.mark.slow
def test_the_package_costs_nothing_to_import():
  code = 'import sys, distmnist, distmnist.api.training; print(*sys.modules)'
  done = subprocess.run(
    [sys.executable, '-c', code], capture_output=True, text=True, check=True
  )
  loaded = set(done.stdout.split())
  assert not loaded & {'tensorflow', 'keras', 'absl', 'numpy'}
  with pytest.raises(AttributeError, match="'distmnist' has no attribute 'ru'"):
    _ = distmnist.ru


@pytest.mark.slow
def test_a_training_gives_its_report_and_its_lines(monkeypatch, tmp_path):
  monkeypatch.setattr(sys, 'argv', ['a notebook', '-f', 'kernel.json'])
  monkeypatch.setattr(sys, 'stdout', io.StringIO())
  (temporary := tmp_path / 'temporary').mkdir()
  monkeypatch.setattr(tempfile, 'tempdir', str(temporary))
  (here := tmp_path / 'here').mkdir()
  monkeypatch.chdir(here)
  report = distmnist.run(
    num_ps=1, num_workers=2, train_steps=100, optimizer='adam', **SMALL
  )
  assert report.global_step == 100
  assert report.test_accuracy == report.test_metrics['accuracy'] > 0.3
  assert report.logdir is None
  printed = sys.stdout.getvalue()
  assert 'test accuracy' in printed
  # Nothing is kept, and no line says that something is.
  assert [*here.iterdir(), *temporary.glob('distmnist_*/run_*')] == []
  assert not [*temporary.glob('distmnist_logs_*')]
  assert not re.search('^(report|page|curves) ', printed, re.M)
  # 100 steps of batches of 128 or so of 2500 images, seen by two workers.
  assert len(report.curve.find_points()) > 20
  assert {*report.history} == {'loss', 'accuracy', 'val_loss', 'val_accuracy'}
  assert report.history['loss'][0] > report.history['loss'][-1]


@pytest.mark.daily
@pytest.mark.slow
def test_a_training_like_another_is_kept_beside_it(tmp_path):
  small = {**SMALL, 'num_ps': 0, 'num_workers': 1, 'train_steps': 20}
  first = distmnist.run(on_line=str, logdir=tmp_path / 'run', **small)
  again = distmnist.run(on_line=str, like=first.logdir, learning_rate=0.02)
  assert again.logdir == f'{tmp_path}/run_2'
  report = training.read_report(
    f'{tmp_path}/run_2/report.json', learning_curve.Curve(None)
  )
  assert report.global_step == first.global_step == 20
  assert report['flags']['learning_rate'] == 0.02
  kept = [r['flags'].get('keep_checkpoints') for r in (first, report)]
  assert kept[0] == kept[1]


@pytest.mark.daily
@pytest.mark.slow
def test_a_problem_may_be_a_module_and_a_logdir_is_kept(tmp_path):
  module = types.ModuleType('regression')
  module.__file__ = str(REPO / 'examples' / 'regression.py')
  lines = []
  report = distmnist.run(
    module,
    lines.append,
    epochs=1,
    units=8,
    logdir=tmp_path / 'run',
    report_file=tmp_path / 'mine.json',
  )
  assert (tmp_path / 'mine.json').exists()
  assert report.test_metrics.keys() == {'mse', 'mae', 'loss', 'rmse'}
  assert report.logdir == str(tmp_path / 'run')
  assert (tmp_path / 'run' / 'report.json').exists()
  assert any('test rmse' in line for line in lines)


@pytest.mark.daily
@pytest.mark.slow
@pytest.mark.parametrize(
  'settings, code, message',
  [
    ({'epoch': 2}, 2, 'no flag --epoch: did you mean --epochs'),
    ({'dataset': 'npy', 'data_dir': '/none'}, 1, '/none'),
  ],
)
def test_what_is_wrong_is_the_sentence_of_the_task(
  settings, code, message, monkeypatch, tmp_path
):
  monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path))
  with pytest.raises(distmnist.Error) as raised:
    distmnist.run(
      **{
        'on_line': lambda line: None,
        'num_ps': 0,
        'num_workers': 1,
        **settings,
      }
    )
  assert message in str(raised.value)
  assert 'Traceback' not in '\n'.join(raised.value.lines)
  assert raised.value.exit_code == code
  # What an error may name stays, and nothing else does.
  assert not [*tmp_path.glob('distmnist_scratch_*/run_*')]
  assert len([*tmp_path.glob('distmnist_logs_*')]) == 1


@pytest.mark.daily
@pytest.mark.slow
def test_two_run_beside_each_other_and_end_when_they_are_told_to(tmp_path):
  with_logdir = distmnist.start(
    on_line=lambda line: None, logdir=tmp_path / 'run', num_ps=1, **FOREVER
  )
  steps = threading.Event()
  with distmnist.start(
    on_line=lambda line: 'step ' in line and steps.set(), num_ps=1, **FOREVER
  ) as other:
    assert steps.wait(60)
    assert (with_logdir.status(), other.status()) == ('running', 'running')
    with pytest.raises(TimeoutError, match='still runs after 0.1 s'):
      other.result(0.1)
    clusters = [find_cluster(t._process.pid) for t in (with_logdir, other)]
  assert other.status() == 'failed'
  wait_until_gone(clusters[1])
  saved = tmp_path / 'run'
  wait_until(lambda: [*saved.glob('model.ckpt-*')], lambda: 'no checkpoint')
  with_logdir.stop()
  with_logdir.stop()
  wait_until_gone(clusters[0])
  with pytest.raises(distmnist.Error) as raised:
    with_logdir.result()
  assert raised.value.exit_code == 143
  assert list((tmp_path / 'run').glob('model.ckpt-*.index'))


_CALLER = """
import signal, sys, threading
import distmnist

# Ctrl-C is ignored by what a shell has started in the background.
signal.signal(signal.SIGINT, signal.default_int_handler)

def train():
  distmnist.run(num_ps=1, num_workers=1, dataset='synthetic', model='softmax',
                train_steps=10**8, log_secs=0.1, on_line=tell)

def tell(line):
  print(line, flush=True)

if sys.argv[1] == 'thread':
  thread = threading.Thread(target=train)
  thread.start()
  thread.join()
else:
  train()
"""


@pytest.fixture
def caller(tmp_path):
  """Returns start(where) -> a caller in mid-run, and its cluster."""
  started = []

  def start(where):
    process = subprocess.Popen(
      [sys.executable, '-c', textwrap.dedent(_CALLER), where],
      stdout=subprocess.PIPE,
      stderr=subprocess.DEVNULL,
      text=True,
      env={**os.environ, 'PYTHONPATH': str(REPO)},
    )
    started.append(process)
    for line in process.stdout:
      if line.startswith('step '):
        break
    return process, psutil.Process(process.pid).children(recursive=True)

  yield start
  for process in started:
    process.kill()
    process.wait()
    process.stdout.close()


# Called from a thread: the kernel ends a child with the thread that made it.
@pytest.mark.slow
def test_a_caller_that_is_killed_leaves_no_process(caller):
  process, cluster = caller('thread')
  assert len(cluster) > 3  # A launcher, a fork server, two tasks.
  process.kill()
  wait_until_gone(cluster)


@pytest.mark.daily
@pytest.mark.slow
def test_ctrl_c_ends_the_training(caller):
  process, cluster = caller('main')
  process.send_signal(signal.SIGINT)
  process.stdout.read()
  assert process.wait(60) in (1, -signal.SIGINT)
  wait_until_gone(cluster)


_PAGE = (REPO / 'docs' / 'python.md').read_text()


# The first one is run by tests/house/packaging_test.py.
@pytest.mark.daily
@pytest.mark.slow
@pytest.mark.parametrize('number', range(1, 5))
def test_the_code_of_the_page_runs(number):
  code = _PAGE.split('```python\n')[1:][number].split('```')[0]
  done = subprocess.run(
    [sys.executable, '-c', code],
    cwd=REPO,
    capture_output=True,
    text=True,
    timeout=300,
  )
  assert done.returncode == 0, done.stdout + done.stderr
  assert 'test loss' in done.stdout or "'trial': " in done.stdout
