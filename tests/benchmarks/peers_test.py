"""The table of distmnist and its peers, and how a peer is run and ended."""

import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import types

import numpy as np
import pytest

import distmnist.runtime  # noqa: F401  TensorFlow, quiet and in graph mode.

# isort: split
import tensorflow.compat.v1 as tf

from tests.support.runner import REPO, import_benchmark

peers = import_benchmark('peers')
kinds = import_benchmark('lib.peer_kinds')
scripts = import_benchmark('lib.peer_scripts')
peer_tables = import_benchmark('lib.peer_tables')
import_benchmark('lib.plots')
usage = import_benchmark('lib.usage')


def make_result(peer, repeat, examples_per_sec, mode='speed', **more):
  return {
    'net': 'mlp',
    'mode': mode,
    'repeat': repeat,
    'peer': peer,
    'status': 'ok',
    'examples_per_sec': examples_per_sec,
    'first_step_secs': 3.0 + repeat,
    'all_step_secs': 4.0,
    'gone_secs': 0.55,
    'is_killed': peer == 'classic',
    'peak_mb': 1234.4,
    'cpu_secs': 20.2,
    'test_accuracy': 0.95,
    **more,
  }


def make_bad(peer, repeat, status, reason):
  return {
    'net': 'mlp',
    'mode': 'speed',
    'repeat': repeat,
    'peer': peer,
    'status': status,
    'reason': reason,
  }


RESULTS = [
  make_result('ceiling', 0, 1000.0),
  make_result('async_sgd', 0, 500.0),
  make_result('classic', 0, 300.0),
  make_bad('tf2_ps', 0, 'failed', 'ps_0 ended with 3:\nlast words'),
  make_bad('torch_ddp', 0, 'skipped', 'no torch here'),
  make_result('ceiling', 1, 2000.0),
  make_result('async_sgd', 1, 1800.0),
  make_bad('classic', 1, 'failed', 'worker_1 ended with -9:\nits end'),
  make_bad('tf2_ps', 1, 'failed', 'again'),
  make_result('ceiling', 2, 1000.0),
  make_result('async_sgd', 2, 700.0),
  make_result('classic', 2, 500.0),
  make_result('async_sgd', 0, 1.0, 'accuracy', to_accuracy_secs=9.0),
  make_result('classic', 0, 1.0, 'accuracy', to_accuracy_secs=None),
  make_result('async_sgd', 1, 1.0, 'accuracy', to_accuracy_secs=11.0),
  make_result('classic', 1, 1.0, 'accuracy', to_accuracy_secs=30.0),
]


def test_medians_are_of_the_runs_that_went_well():
  rows = peer_tables.compute_medians(RESULTS, 'mlp')
  assert list(rows) == [
    *('ceiling', 'async_sgd', 'classic', 'tf2_ps', 'torch_ddp'),
  ]
  assert rows['ceiling']['examples_per_sec'] == 1000
  assert rows['async_sgd']['examples_per_sec'] == 700
  # The ratios of the repeats are 0.5, 0.9 and 0.7.
  assert rows['async_sgd']['over_ceiling'] == pytest.approx(0.7)
  assert rows['async_sgd']['over_ddp'] is None  # It was skipped.
  assert rows['async_sgd']['first_step_secs'] == 4
  assert rows['async_sgd']['to_accuracy_secs'] == 10
  assert rows['classic']['examples_per_sec'] == 400
  assert (rows['classic']['num_ok'], rows['classic']['num_runs']) == (2, 3)
  assert (
    rows['classic']['to_accuracy_secs'],
    rows['classic']['num_missed'],
  ) == (30, 1)


def test_ratios_are_of_neighbouring_runs():
  # Of one machine, whose speed changes between the repeats.
  results = [
    make_result('async_sgd', 0, 300.0),
    make_result('torch_ddp', 0, 200.0),
    make_result('async_sgd', 1, 90.0),
    make_result('torch_ddp', 1, 60.0),
    make_result('async_sgd', 2, 600.0),
    make_bad('torch_ddp', 2, 'failed', 'why'),
  ]
  rows = peer_tables.compute_medians(results, 'mlp')
  assert rows['async_sgd']['over_ddp'] == pytest.approx(1.5)
  assert rows['torch_ddp']['over_ddp'] == 1


def test_the_table_names_who_failed_or_was_skipped(capsys):
  peer_tables.print_tables(RESULTS)
  lines = capsys.readouterr().out.splitlines()
  assert lines[1] == 'mlp, batch 100, 2 workers'
  assert lines[3] == (
    '| who | images/s | over the ceiling | over DDP | first step, s '
    '| of every worker, s | last step to all gone, s | s to 97 % '
    '| peak MB | CPU s | test accuracy |'
  )
  assert lines[6:10] == [
    '| distmnist async_sgd, 1 ps | 700 | 0.70 | - | 4.0 | 4.0 | 0.6 | 10.0 '
    '| 1,234 | 20 | 0.9500 |',
    '| classic script, async, 1 ps (2 of 3 runs) | 400 | 0.40 | - | 4.0 '
    '| 4.0 | 0.6, killed | 30.0 (1 never) | 1,234 | 20 | 0.9500 |',
    '| TF2 ParameterServerStrategy, 1 ps | failed' + ' | -' * 9 + ' |',
    '| PyTorch DDP, gloo | skipped' + ' | -' * 9 + ' |',
  ]
  text = '\n'.join(lines[10:])
  assert (
    'ParameterServerStrategy, 1 ps failed: ps_0 ended with 3:\nlast' in text
  )
  assert 'PyTorch DDP, gloo skipped: no torch here' in text
  assert 'classic script, async, 1 ps failed: worker_1 ended with -9' in text


@pytest.mark.slow
def test_the_plot_has_a_bar_a_peer():
  figure = peer_tables.build_figure(RESULTS, 'title')
  figure.draw_without_rendering()
  [axes] = figure.axes
  assert len(axes.patches) == 5
  assert {'700', 'failed', 'skipped'} <= {t.get_text() for t in axes.texts}


def test_only_the_time_in_which_all_train_counts():
  # The first has a second alone, the other ends a second later.
  one = [[0.0, 100], [1.0, 300], [2.0, 400], [3.0, 500]]
  other = [[1.0, 100], [3.0, 200], [4.0, 400]]
  assert scripts.compute_images_per_sec([one, other]) == (200 + 100) / 2
  assert scripts.compute_images_per_sec([one, [[5.0, 100], [6.0, 200]]]) is None


TORCH = scripts.Script('torch_ddp.py', is_torch=True)


@pytest.fixture
def work(tmp_path):
  return kinds.Work('mlp', 2, 0, tmp_path, tmp_path / 'run', sys.executable, 60)


def test_a_peer_that_is_missing_is_skipped_with_its_reason(work):
  work.torch_python = '/no/such/python'
  result = peers.measure(TORCH, work)
  assert result['status'] == 'skipped'
  assert 'no such Python' in result['reason']


def test_a_python_without_torch_is_named(work, tmp_path):
  fake = tmp_path / 'python'
  fake.write_text('#!/bin/sh\necho "ImportError: No torch" >&2\nexit 1\n')
  fake.chmod(0o755)
  work.torch_python = str(fake)
  result = peers.measure(TORCH, work)
  assert result['status'] == 'skipped'
  assert '(ImportError: No torch): install the extra bench' in result['reason']


@pytest.fixture
def make_peer(monkeypatch, tmp_path):
  """Returns make(source) -> a peer that is this script."""
  monkeypatch.setattr(scripts, 'FOLDER', tmp_path)

  def make(source, **more):
    (tmp_path / 'fake.py').write_text(source)
    return scripts.Script('fake.py', **more)

  return make


WAIT = 'import threading; threading.Event().wait()'
FAIL = f"""
import sys
if '--task=1' in sys.argv:
  sys.exit('out of paint')
{WAIT}
"""


@pytest.mark.slow
def test_a_peer_that_fails_is_named_and_leaves_nobody(
  work, make_peer, tmp_path
):
  result = peers.measure(make_peer(FAIL, num_ps=1), work)
  assert result['status'] == 'failed'
  assert result['reason'] == 'worker_1 ended with 1:\nout of paint'
  assert not usage.find_by_word(str(tmp_path / 'fake.py'))


@pytest.mark.slow
def test_a_peer_that_hangs_is_ended(work, make_peer, tmp_path):
  work.limit_secs = 0.5
  result = peers.measure(make_peer(WAIT), work)
  assert result['status'] == 'failed'
  assert result['reason'].startswith('still ran after 0.5 s; worker_0')
  assert not usage.find_by_word(str(tmp_path / 'fake.py'))


@pytest.mark.slow
def test_a_server_is_killed_when_the_workers_are_done(
  work, make_peer, tmp_path
):
  source = f"""
import json, pathlib, sys
flags = dict(word.split('=', 1) for word in sys.argv[1:])
if flags['--job'] == 'ps':
  {WAIT}
# The same times in both, however late one of them was started.
record = dict(first_step_time=0.0, marks=[[0.0, 100], [1.0, 300]],
              test_accuracy=0.5)
path = pathlib.Path(flags['--folder']) / f"worker_{{flags['--task']}}.json"
path.write_text(json.dumps(record))
"""
  result = peers.measure(make_peer(source, num_ps=1), work)
  assert result['status'] == 'ok', result
  assert result['is_killed']
  assert result['examples_per_sec'] == 400
  assert result['peak_mb'] > 0.5
  assert 0 < result['cpu_secs'] < 10
  assert not usage.find_by_word(str(tmp_path / 'fake.py'))


def start(*words, **more):
  return subprocess.Popen(
    [sys.executable, str(REPO / 'benchmarks' / 'peers.py'), *words],
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
    **more,
  )


@pytest.mark.parametrize('flag', ['--peers=nobody', '--nets=x', '--steps=0'])
def test_a_wrong_command_line_exits_with_2(flag, capsys):
  with pytest.raises(SystemExit) as raised:
    peers.parse_args([flag])
  assert raised.value.code == 2
  assert flag.partition('=')[0] in capsys.readouterr().err


@pytest.mark.slow
def test_a_step_of_the_bare_script_is_one_message_each_way():
  bare = importlib.import_module('bare')  # peer_kinds has put it on the path.
  net, worker = kinds.common.NETS['mlp'], '/job:worker/task:1'
  args = types.SimpleNamespace(net='mlp', steps_per_call=3)
  images, labels = np.zeros([5, 784], np.uint8), np.zeros(5, np.uint8)

  def find_place(op):
    # TensorFlow puts what reads a variable where that is.
    return op.device or op.inputs[0].op.device

  with tf.Graph().as_default():
    center = bare.Center(net, worker)
    _, step = bare.build_steps(args, net, center, worker, images, labels)
    sent, todo, seen = set(), [step.op], set()
    while todo:
      op = todo.pop()
      if op in seen:
        continue
      seen.add(op)
      for source in [*(x.op for x in op.inputs), *op.control_inputs]:
        todo.append(source)
        sent.add((source, find_place(source), find_place(op)))
  ways = [(source, target) for _, source, target in sent if source != target]
  assert len(ways) == 6
  assert ways.count((worker, bare.PS)) == ways.count((bare.PS, worker)) == 3


@pytest.mark.daily
@pytest.mark.slow
def test_scripts_and_a_rule_make_a_table(mnist_dir, tmp_path):
  out = tmp_path / 'out'
  process = start(
    '--nets=mlp',
    '--peers=async_sgd,classic,bare_10',
    # A worker that starts late finds some of them left.
    '--steps=300',
    '--repeats=1',
    f'--out={out}',
    env={**os.environ, 'DISTMNIST_DATA_DIR': str(mnist_dir)},
  )
  output, _ = process.communicate(timeout=200)
  assert process.returncode == 0, output
  results = json.loads((out / 'raw.json').read_text())['results']
  assert [r['peer'] for r in results] == ['async_sgd', 'classic', 'bare_10']
  for result in results:
    assert result['examples_per_sec'] > 100
    assert 0 < result['first_step_secs'] <= result['all_step_secs']
    assert 0 < result['gone_secs'] < 60
    assert result['peak_mb'] > 500
    assert result['cpu_secs'] > 2
    assert result['test_accuracy'] > 0.5
  assert (out / 'table.md').read_text().count('| classic script') == 1
  assert (out / 'plot.png').read_bytes().startswith(b'\x89PNG')


@pytest.mark.daily(but=['classic'])
@pytest.mark.slow
@pytest.mark.parametrize('peer', ['classic', 'async_sgd'])
def test_a_signal_leaves_nobody_behind(mnist_dir, peer):
  process = start(
    *('--nets=mlp', f'--peers={peer}', '--steps=1000000', '--repeats=1'),
    env={**os.environ, 'DISTMNIST_DATA_DIR': str(mnist_dir)},
  )
  with process:
    pids = set()
    # All are there: ps and workers, or the launcher and its tasks.
    for _ in range(2000):
      pids = usage.find_descendants([process.pid]) - {process.pid}
      if len(pids) >= 3:
        break
      threading.Event().wait(0.05)
    assert len(pids) >= 3
    # Not SIGINT, which is ignored in the background.
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=200)
  assert process.returncode == 128 + signal.SIGTERM
  # A slow init may take its time over orphans.
  for _ in range(200):
    if not any(os.path.exists(f'/proc/{pid}') for pid in pids):
      break
    threading.Event().wait(0.05)
  assert not [pid for pid in pids if os.path.exists(f'/proc/{pid}')]
