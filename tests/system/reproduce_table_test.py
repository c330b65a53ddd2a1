"""The table of all update rules: what it keeps, says and draws."""

import csv
import io
import itertools
import json
import os
import signal
import subprocess
import sys

import pytest

from tests.support.paths import REPO
from tests.support.runner import import_benchmark

strategies = import_benchmark('strategies')
table = import_benchmark('lib.strategy_table')
plots = import_benchmark('lib.plots')


RECORD = {
  'flags': {'strategy': 'agn', 'epochs': '3'},
  'machine': '2 cores',
  'exit_code': 0,
  'wall_secs': 201.26,
}
REPORT = {
  'flags': {'model': 'cnn', 'dataset': 'mnist', 'epochs': 3.0},
  'test_accuracy': 0.98914,
  'examples_per_sec': 1023.4,
  'pushes': 936,
  'bytes_pulled': 24_000_000_000,
  'bytes_pushed': 3_000_000,
  'staleness_mean': 1.014,
  'staleness_max': 4,
  'global_step': 936,
  'examples': 179712,
  'workers': [{'worker': 0}, {'worker': 1}],
}
# As it was before reports knew of pushes and bytes.
OLD_REPORT = {
  k: v for k, v in REPORT.items() if k != 'pushes' and 'bytes' not in k
}
FAILED = {**RECORD, 'exit_code': 1, 'wall_secs': 5.02}


def test_a_table_has_a_line_a_run():
  rows = [
    table.make_row('agn', [(RECORD, REPORT)]),
    table.make_row('old', [(RECORD, OLD_REPORT)]),
    table.make_row('bad', [(FAILED, None)]),
  ]
  assert table.format_table(rows).splitlines() == [
    '| rule | test accuracy | seeds | wall s | images/s | pushes '
    '| MB pulled a worker | MB pushed a worker | staleness, mean | max '
    '| global steps | images |',
    '|---|' + '--:|' * 11,
    '| agn | 0.9891 | 1 | 201 | 1,023 | 936 | 12,000 | 1.5 | 1.01 | 4 | 936 '
    '| 179,712 |',
    '| old | 0.9891 | 1 | 201 | 1,023 | - | - | - | 1.01 | 4 | 936 | 179,712 |',
    '| bad | failed | 0 | - | - | - | - | - | - | - | - | - |',
  ]


def test_a_row_has_the_means_of_the_seeds_that_did_not_fail():
  better = {**REPORT, 'test_accuracy': 0.99114, 'staleness_max': 2}
  pairs = [(RECORD, REPORT), (RECORD, better), (FAILED, None)]
  row = table.make_row('agn', pairs)
  assert (row['num_seeds'], row['status']) == (2, '1 of 3 failed')
  assert row['test_accuracy'] == pytest.approx(0.99014)
  # 0.002 / sqrt(2)
  assert row['test_accuracy_std'] == pytest.approx(0.00141, abs=1e-5)
  assert (row['staleness_max'], row['examples']) == (4, 179712)
  busy = table.make_row('agn', pairs, is_busy=True)
  assert busy['wall_secs'] is None
  assert 'wall s' not in table.format_table([busy])


def test_a_csv_has_all_digits_and_empty_cells():
  rows = [
    table.make_row('agn', [(RECORD, REPORT)]),
    table.make_row('bad', [(FAILED, None)]),
  ]
  file = io.StringIO()
  table.write_csv(rows, file)
  good, bad = csv.DictReader(io.StringIO(file.getvalue()))
  assert good == {
    'name': 'agn',
    'status': 'ok',
    'test_accuracy': '0.98914',
    'test_accuracy_std': '',
    'num_seeds': '1',
    'wall_secs': '201.26',
    'examples_per_sec': '1023.4',
    'pushes': '936.0',
    'mb_pulled': '12000.0',
    'mb_pushed': '1.5',
    'staleness_mean': '1.014',
    'staleness_max': '4',
    'global_step': '936.0',
    'examples': '179712.0',
  }
  assert (bad['status'], bad['wall_secs'], bad['examples']) == (
    'failed',
    '',
    '',
  )


@pytest.mark.parametrize(
  ('record', 'report', 'expected'),
  [
    (RECORD, REPORT, True),
    (None, None, False),
    (None, REPORT, False),
    (RECORD, None, False),
    (RECORD, {**REPORT, 'test_accuracy': None}, False),
    ({**RECORD, 'exit_code': 1}, REPORT, False),
    # Interrupted: there is a record from the start, none from the end.
    ({**RECORD, 'exit_code': None}, REPORT, False),
    ({**RECORD, 'flags': {**RECORD['flags'], 'seed': '1'}}, REPORT, False),
  ],
)
def test_only_what_is_complete_for_the_same_flags_is_kept(
  record, report, expected
):
  assert table.is_complete(record, report, RECORD['flags']) is expected


def test_a_comment_or_a_repeated_flag_makes_no_other_run(tmp_path):
  config = tmp_path / 'a.flags'
  config.write_text('# First.\n--epochs=3\n--strategy=agn\n')
  first = strategies.Run('a', config, [], tmp_path).read_flags()
  config.write_text('# Measured: 0.99.\n--strategy=agn\n--epochs=1\n')
  again = strategies.Run('a', config, ['--epochs=3'], tmp_path).read_flags()
  assert first == again == {'epochs': '3', 'strategy': 'agn'}


def test_a_rule_without_ps_gets_none(tmp_path):
  def find_num_ps(strategy):
    config = tmp_path / 'a.flags'
    config.write_text(f'--strategy={strategy}\n')
    command = strategies.Run('a', config, [], tmp_path).command()
    return [word for word in command if word.startswith('--num_ps')]

  assert find_num_ps('ring_allreduce') == ['--num_ps=0']
  assert find_num_ps('agn') == ['--num_ps=1']


def test_without_names_all_configs_are_run(tmp_path):
  found = strategies.find_runs([], tmp_path, ['--epochs=1'], 2)
  paths = sorted((REPO / 'configs' / 'strategies').glob('*.flags'))
  # All with the first seed, then all with the second.
  assert [run.config for run in found] == 2 * paths
  assert [run.name for run in found] == 2 * [path.stem for path in paths]
  assert found[-1].folder == tmp_path / paths[-1].stem / 'seed_1'
  flags = found[-1].read_flags()
  assert (flags['seed'], flags['epochs']) == ('1', '1')


def test_what_cannot_be_run_is_told_before_anything_runs(tmp_path):
  (tmp_path / 'mine' / 'seed_0').mkdir(parents=True)
  mine = tmp_path / 'mine.flags'
  mine.touch()
  for names, message in [
    (['nowhere'], 'nowhere is no file, and none of .*configs/strategies'),
    (['sync_sgd', 'sync_sgd'], 'two configs are called sync_sgd'),
    ([str(mine)], 'mine/seed_0 is there and no run of this table'),
  ]:
    with pytest.raises(ValueError, match=message):
      strategies.find_runs(names, tmp_path, [], 1)


@pytest.mark.parametrize('names', [['nowhere'], ['--', '--logdir=x'], ['--x']])
def test_a_wrong_command_line_exits_with_2(tmp_path, names, capsys):
  with pytest.raises(SystemExit) as raised:
    strategies.main([f'--out={tmp_path}/out', *names])
  assert raised.value.code == 2
  assert names[-1] in capsys.readouterr().err
  assert not (tmp_path / 'out').exists()


@pytest.mark.slow
@pytest.mark.parametrize('num_seeds', [1, 3])
@pytest.mark.parametrize('num_rows', [1, 20])
def test_no_two_words_of_the_plot_overlap(num_rows, num_seeds):
  rows = []
  for i in range(num_rows):
    record = RECORD if i % 5 else FAILED
    base = REPORT if i % 4 else OLD_REPORT
    reports = [
      {**base, 'test_accuracy': 0.99 - 0.001 * i - 0.002 * seed}
      for seed in range(num_seeds)
    ]
    pairs = [(record, report) for report in reports]
    rows.append(table.make_row(f'quite_a_long_rule_{i}', pairs))
  title = table.describe([REPORT, OLD_REPORT])
  figure = plots.build_rules(rows, title, table.format_mb)
  figure.draw_without_rendering()
  words = [*figure.texts, *figure.axes[0].get_yticklabels()]
  for axes in figure.axes:
    low, high = axes.get_xlim()
    words += axes.texts
    # There are ticks outside the limits, too, which are not drawn.
    words += [
      label
      for label in axes.get_xticklabels()
      if low <= label.get_position()[0] <= high
    ]
  # The parts of a title touch.
  boxes = [(w.get_text(), w.get_window_extent().padded(-1)) for w in words]
  assert len(boxes) > 2 * num_rows
  for (a, one), (b, other) in itertools.combinations(boxes, 2):
    assert not one.overlaps(other), (a, b)
  for name, box in boxes:
    assert figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1, name


SMALL = (
  '--dataset=synthetic',
  '--synthetic_train_images=2000',
  '--synthetic_test_images=500',
  '--model=softmax',
)


@pytest.fixture
def checkout(tmp_path):
  """A checkout with a .venv that is made already, by this Python."""
  folder = tmp_path / 'checkout'
  (folder / '.venv' / 'bin').mkdir(parents=True)
  files = 'setup.py', 'constraints.txt'
  for name in ('benchmarks', 'configs', 'distmnist', 'scripts', *files):
    (folder / name).symlink_to(REPO / name)
  (folder / '.venv' / 'installed-plots').write_text(
    ''.join((REPO / name).read_text() for name in files)
  )
  python = folder / '.venv' / 'bin' / 'python'
  python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
  python.chmod(0o755)
  return folder


def start(checkout, *words):
  return subprocess.Popen(
    [checkout / 'scripts' / 'reproduce_table.sh', *words],
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
    env={**os.environ, 'PYTHON': sys.executable},
  )


def run(checkout, *words):
  process = start(checkout, *words)
  output, _ = process.communicate(timeout=280)
  return process.returncode, output


@pytest.mark.daily
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_rules_make_a_table_and_a_failure_a_marked_row(checkout, tmp_path):
  out = tmp_path / 'out'
  words = [f'--out={out}', '--epochs=1', '--seeds=2', 'sync_sgd', 'async_sgd']
  code, output = run(checkout, *words, '--', *SMALL)
  assert code == 0, output
  rows = list(csv.DictReader(io.StringIO((out / 'table.csv').read_text())))
  assert [row['name'] for row in rows] == ['sync_sgd', 'async_sgd']
  for row in rows:
    reports = [
      json.loads((out / row['name'] / seed / 'report.json').read_text())
      for seed in ('seed_0', 'seed_1')
    ]
    assert (row['status'], row['num_seeds']) == ('ok', '2')
    low, high = sorted(report['test_accuracy'] for report in reports)
    assert float(row['test_accuracy']) == pytest.approx((low + high) / 2)
    assert 0.3 < low < high
    assert float(row['wall_secs']) > min(r['total_secs'] for r in reports)
    # 2000 images hold 15 pairs of batches of 64.
    assert float(row['examples']) >= 2 * 15 * 64
  lines = (out / 'table.md').read_text().splitlines()
  assert lines[0].startswith(
    'softmax on synthetic, 2 workers, batch_size=64, epochs=1, seeds 0/1; '
  )
  assert [line.split()[1] for line in lines[-2:]] == ['sync_sgd', 'async_sgd']
  assert '\n'.join(lines) in output
  assert (out / 'plot.png').read_bytes().startswith(b'\x89PNG')
  assert '<svg' in (out / 'plot.svg').read_text()

  # Again, with one that fails between the two.
  report = out / 'async_sgd' / 'seed_0' / 'report.json'
  written = report.stat().st_mtime_ns
  bad = tmp_path / 'bad.flags'
  bad.write_text('# No such rule.\n--strategy=nowhere\n')
  words[2:] = ['--seeds=1', 'sync_sgd', str(bad), 'async_sgd']
  code, output = run(checkout, *words, '--', *SMALL)
  assert code == 1, output
  assert output.count(': kept, complete for the same flags') == 2
  assert 'FAILED' in output and output.endswith('failed: bad, seed_0\n')
  assert report.stat().st_mtime_ns == written
  rows = list(csv.DictReader(io.StringIO((out / 'table.csv').read_text())))
  assert [row['status'] for row in rows] == ['ok', 'failed', 'ok']


@pytest.mark.daily
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_interrupted_run_is_ended_and_run_again(checkout, tmp_path):
  out = tmp_path / 'out'
  words = [f'--out={out}', '--seeds=1', 'async_sgd', '--', *SMALL]
  process = start(checkout, '--epochs=100000', *words)
  log = out / 'async_sgd' / 'seed_0' / 'launch.log'
  with process.stdout:
    assert 'running' in process.stdout.readline()
    for _ in range(1200):
      if log.exists() and 'step ' in log.read_text():
        break
      with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.1)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143
  assert 'stopped by SIGTERM' in log.read_text()
  record = json.loads((out / 'async_sgd' / 'seed_0' / 'run.json').read_text())
  assert record['exit_code'] is None
  code, output = run(checkout, '--epochs=1', *words)
  assert code == 0, output
  assert 'kept' not in output
