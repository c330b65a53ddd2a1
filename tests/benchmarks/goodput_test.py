"""benchmarks/goodput.py: when faults come, and what a history says of a run."""

import itertools
import os
import pathlib
import subprocess
import sys

import pytest

from tests.support.runner import import_benchmark

goodput = import_benchmark('goodput')
records = import_benchmark('lib.goodput_records')
goodput_tables = import_benchmark('lib.goodput_tables')
cpu_shares = import_benchmark('lib.cpu_shares')
import_benchmark('lib.plots')


def draw(seed, count=40):
  hits = records.draw_hits(seed, ['ps 0', 'ps 1'], ['kill', 'suspend'], 29)
  return list(itertools.islice(hits, count))


def test_help_names_its_flags(capsys):
  with pytest.raises(SystemExit) as end:
    goodput.parse_args(['--help'])
  assert end.value.code == 0
  assert '--shares' in capsys.readouterr().out


def test_one_fault_comes_in_each_period_drawn_by_the_seed():
  hits = draw('7')
  assert hits == draw('7') != draw('8')
  assert [int(hit.secs // 29) for hit in hits] == list(range(40))
  assert all(0.25 <= hit.secs / 29 % 1 <= 0.75 for hit in hits)
  assert {hit.task for hit in hits} == {'ps 0', 'ps 1'}
  assert {hit.kind for hit in hits} == {'kill', 'suspend'}


def test_a_role_has_its_tasks():
  names = ['ps 0', 'worker 0', 'worker 1', 'worker 2']
  assert records.find_targets('worker', names) == ['worker 1', 'worker 2']
  assert records.find_targets('chief', names) == ['worker 0']
  assert records.find_targets('ps', names) == ['ps 0']
  assert records.find_targets('ps', ['worker 0', 'worker 1']) == []


def make_ran(time, worker, step, num_batches=10):
  return {
    'event': 'ran',
    'time': 1000 + time,
    'worker': worker,
    'step': step,
    'tickets': list(range(num_batches)),
  }


# Worker 1 comes later; a restore takes back 20 steps, which are made again.
EVENTS = [
  make_ran(0.0, 0, 10),
  make_ran(0.9, 0, 20),
  make_ran(1.0, 1, 30),
  make_ran(1.5, 0, 40),
  make_ran(2.5, 1, 50),
  {'event': 'restored', 'time': 1005.0, 'worker': 0, 'step': 30},
  make_ran(6.0, 0, 40),
  make_ran(6.0, 1, 50),
  make_ran(7.0, 0, 60),
]


def test_steps_that_are_made_again_do_not_count():
  found = records.measure(EVENTS)
  assert found == {
    'start': 1001.0,
    'secs': 6.0,
    'steps': 30,
    'steps_lost': 20,
    'batches': 50,
  }


def test_batches_are_counted_second_by_second():
  assert records.count_by_second(EVENTS, 1000.0) == [
    20,
    20,
    10,
    0,
    0,
    0,
    20,
    10,
  ]


def make_run(pair, has_faults, secs, **more):
  return {
    'pair': pair,
    'has_faults': has_faults,
    'problem': '',
    'broken': [],
    'secs': secs,
    'steps': 1000,
    'steps_lost': 7 * has_faults,
    'batches': 2000,
    'batch_size': 100,
    'hits': [records.Hit(3.0, 'ps 0', 'kill')] * has_faults,
    'batches_by_second': [200] * int(secs),
    **more,
  }


@pytest.fixture
def cell():
  cell = records.Cell('async_sgd', 'ps', ['kill', 'suspend'], 60, 'a share')
  cell.steps = 1100
  cell.runs = [
    make_run(0, False, 9.0),
    make_run(0, True, 10.0),
    make_run(1, True, 10.0),
    {'pair': 1, 'has_faults': False, 'problem': 'exit code 3'},
    make_run(2, False, 10.0),
    make_run(2, True, 12.5, broken=['1 batches read twice: 3']),
  ]
  return cell


def test_goodput_is_of_whole_pairs(cell):
  pairs = records.find_pairs(cell)
  assert [records.compute_goodput(pair) for pair in pairs] == [
    *(pytest.approx(0.9), pytest.approx(0.8)),
  ]


def test_the_table_says_what_failed_and_what_broke(cell, capsys):
  goodput_tables.print_table([cell])
  lines = capsys.readouterr().out.splitlines()
  assert lines[2] == (
    '| async_sgd | ps | kill, suspend | a share | 85.0 | 80.0 to 90.0 | 21,111 '
    '| 17,944 | 1,100 | 9.5 | 10.0 | 1 | 7 | 1 | 1 of 6 |'
  )
  assert lines[4:] == [
    'async_sgd, ps: kill and suspend, 60 % of a core: exit code 3',
    '',
    'async_sgd, ps: kill and suspend, 60 % of a core: 1 batches read twice: 3',
  ]


@pytest.mark.slow
def test_the_plot_has_a_panel_a_row_and_marks_the_faults(cell):
  failed = records.Cell('sync_sgd', 'ps', ['kill'], 0)
  failed.runs = [{'problem': 'no start'}]
  figure = goodput_tables.build_figure([cell, failed], 'title')
  figure.draw_without_rendering()
  [axes] = figure.axes
  # The lower one of two.
  assert len(axes.lines[1].get_ydata()) == 12
  assert 'kill' in {text.get_text().strip() for text in axes.texts}


def test_each_row_has_kinds_of_one_way_to_start_and_a_role_that_is_there():
  args, extra = goodput.parse_args(
    ['--rules=ring_allreduce,async_sgd', '--shares=0', '--', '--model=cnn']
  )
  assert extra == ['--model=cnn']
  found = [(c.rule, c.role, c.kinds) for c in goodput.list_cells(args)]
  assert len(found) == 2 * 2 + 2 * 3
  assert found[0] == ('ring_allreduce', 'worker', ['kill', 'suspend'])
  assert found[-1] == ('async_sgd', 'ps', ['cut'])


@pytest.mark.parametrize('flag', ['--shares=some', '--kinds=x', '--roles=x'])
def test_a_wrong_command_line_exits_with_2(flag, capsys):
  with pytest.raises(SystemExit) as raised:
    goodput.parse_args([flag])
  assert raised.value.code == 2
  assert flag.partition('=')[0] in capsys.readouterr().err


@pytest.fixture
def sleeper():
  with subprocess.Popen(['sleep', '60']) as process:
    yield process
    process.kill()


def test_a_process_gets_its_group_or_is_pinned(sleeper):
  with cpu_shares.Shares(50, ['launch', 'ps 0']) as shares:
    shares.hold({'ps 0': sleeper.pid})
    if shares.how.startswith('50 %'):
      groups = pathlib.Path(f'/proc/{sleeper.pid}/cgroup').read_text()
      assert f'/goodput_{os.getpid()}_1\n' in groups
    else:
      assert len(os.sched_getaffinity(sleeper.pid)) == 1
    sleeper.kill()
    sleeper.wait()
  assert not [
    path
    for root in cpu_shares.ROOTS
    for path in root.glob(f'goodput_{os.getpid()}_*')
  ]


def test_where_no_group_can_be_made_a_task_is_pinned(sleeper, tmp_path):
  with cpu_shares.Shares(50, ['ps 0', 'worker 0'], [tmp_path]) as shares:
    assert 'taskset' in shares.how
    shares.hold({'ps 0': sleeper.pid, 'worker 0': 2**22 + 1})
  assert len(os.sched_getaffinity(sleeper.pid)) == 1
  assert not list(tmp_path.iterdir())


@pytest.mark.daily
@pytest.mark.slow
def test_a_run_with_a_kill_and_one_without_make_a_table(mnist_dir, tmp_path):
  done = subprocess.run(
    [
      *(sys.executable, goodput.__file__, '--rules=async_sgd'),
      *('--roles=worker', '--kinds=kill', '--shares=0', '--pairs=1'),
      *('--secs=10', '--every_secs=6', f'--out={tmp_path}'),
    ],
    env={**os.environ, 'DISTMNIST_DATA_DIR': str(mnist_dir)},
    capture_output=True,
    text=True,
    timeout=250,
  )
  assert done.returncode == 0, done.stdout + done.stderr
  table = (tmp_path / 'table.md').read_text()
  assert table.count('| async_sgd | worker | kill | no limit |') == 1
  assert '| 0 | 0 of 2 |' in table
  assert (tmp_path / 'goodput.png').read_bytes().startswith(b'\x89PNG')
