"""The benchmark of shaped links: its numbers, its network and its end."""

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time

import pytest

from distmnist.exchange import traffic as traffic_lib
from tests.support.runner import DEADLINE_SECS, REPO, import_benchmark

links = import_benchmark('links')
link_runs = import_benchmark('lib.link_runs')
network = import_benchmark('lib.network')
usage = import_benchmark('lib.usage')


@pytest.fixture
def needs_network():
  """Skips where no network of our own can be had."""
  try:
    network.Network(1, 100).close()
  except network.CannotError as error:
    pytest.skip(str(error))


def make_result(case, repeat, step_secs):
  return {
    'case': case,
    'repeat': repeat,
    'status': 'ok',
    'step_secs': step_secs,
    'busiest': 0.5,
    'cores_busy': 0.25,
  }


RESULTS = [
  make_result('one_ps', 0, 40.0),
  make_result('balanced', 0, 20.0),
  make_result('async_balanced', 0, 20.0),
  make_result('agn', 0, 5.0),
  make_result('one_ps', 1, 36.0),
  make_result('balanced', 1, 24.0),
  make_result('async_balanced', 1, 24.0),
  {'case': 'agn', 'repeat': 1, 'status': 'failed', 'reason': 'ps 0:\nlast'},
  make_result('one_ps', 2, 38.0),
  make_result('balanced', 2, 20.0),
  make_result('async_balanced', 2, 18.0),
  make_result('agn', 2, 3.0),
]
PLANS = {
  'one_ps': (156e6, 156e6, 37.4),
  'balanced': (156e6, 156e6, 18.7),
  'async_balanced': (156e6, 156e6, 12.5),
  'agn': (15.6e6, 15.6e6, 4.5),
}


def test_a_step_is_that_of_the_workers_mean_speed():
  # One of 2 s and one of 4 s a step: 3/4 of a step a second, for two.
  marks = [[1.0, 3.0, 5.0], [0.0, 4.0]]
  assert link_runs.compute_step_secs(marks, 1) == pytest.approx(8 / 3)


def test_only_whole_periods_count():
  # The exchange is in every third step, and takes 7 s.
  times = [0, 1, 8, 9, 10, 17, 18, 19]
  assert link_runs.compute_step_secs([times], 3) == 3
  assert link_runs.round_up(4, 3) == 6
  assert link_runs.round_up(6, 3) == 6


def test_the_busiest_link_is_that_of_one_way():
  moved = link_runs.subtract([(5_000_000, 30), (70, 90)], [(0, 10), (0, 0)])
  assert moved == [(5_000_000, 20), (70, 90)]
  assert link_runs.compute_busiest(moved, 2.0, 40) == pytest.approx(0.5)


def test_the_plan_is_read_as_it_is_printed():
  traffic = traffic_lib.Traffic(155_787_048.0, 1_000.0, 3, [1.0])
  text = f'ps 0\n{traffic.format()}\n200 Mbit/s: 18,694.45 ms a step at least,'
  plan = link_runs.parse_plan(text)
  assert plan == (155_787_048, 1000, pytest.approx(18.69445))


def test_ratios_are_of_neighbours_and_the_table_names_what_failed(capsys):
  links.print_tables(RESULTS, PLANS)
  lines = capsys.readouterr().out.splitlines()
  assert lines[2:6] == [
    '| sync, 1 ps | 312.0 | 0.0789 | 38 | 37.4 | -2 % | 50 % | 0.25 |',
    '| sync, 2 ps balanced | 312.0 | 0.15 | 20 | 18.7 | -7 % | 50 % | 0.25 |',
    '| async, 2 ps balanced | 312.0 | 0.15 | 20 | 12.5 | -38 % | 50 % | 0.25 |',
    '| agn, T=10, 2 ps balanced (1 failed) | 31.2 | 0.75 | 4 | 4.5 | +12 % '
    '| 50 % | 0.25 |',
  ]
  assert lines[9:11] == [
    '| sync, 2 ps balanced | sync, 1 ps | 1.90 | 1.50 | 2.00 | 1.7 | hit |',
    # Of the first repeat and of the last: 4 and 6.
    '| agn, T=10, 2 ps balanced | async, 2 ps balanced | 5.00 | 4.00 | 6.00 '
    '| 5 | hit |',
  ]
  assert lines[11:] == ['', 'agn failed: ps 0:', 'last']


def test_cases_keep_their_order_and_an_unknown_one_is_refused(capsys):
  args = links.parse_args(['--cases=agn,one_ps', '--repeats=2'])
  assert (args.cases, args.repeats) == (['one_ps', 'agn'], 2)
  with pytest.raises(SystemExit) as end:
    links.parse_args(['--cases=two_ps'])
  assert end.value.code == 2
  assert "'two_ps' is none of one_ps, round_robin" in capsys.readouterr().err


def test_without_root_it_is_skipped_with_the_reason(monkeypatch, capsys):
  monkeypatch.setattr(os, 'geteuid', lambda: 1000)
  assert links.main([]) == 0
  assert capsys.readouterr().out == (
    'skipped: network namespaces with shaped links need root\n'
  )


def test_without_its_programs_it_is_skipped_with_their_names(
  monkeypatch, capsys
):
  monkeypatch.setattr(os, 'geteuid', lambda: 0)
  monkeypatch.setattr(shutil, 'which', lambda name: name in ('ip', 'nsenter'))
  assert links.main([]) == 0
  assert 'skipped: no program tc, setpriv on' in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.alone
def test_a_link_carries_its_rate_both_ways(needs_network):
  # A host that others share may stall for a moment; a link that is half duplex,
  # or shaped wrongly, is so every time.
  slower = []
  for _ in range(10):
    to_and_fro = network.measure_link(100, secs=0.5)
    # TCP's payload is 95 % of what is sent; the bucket is full at the start.
    assert max(to_and_fro) < 105
    slower.append(min(to_and_fro))
    if slower[-1] > 90:
      break
  assert max(slower) > 90


@pytest.mark.slow
def test_hosts_see_their_own_link_alone(needs_network):
  before = os.listdir('/sys/class/net')
  with network.Network(2, 100) as hosts:
    done = subprocess.run(
      hosts.wrap(1, ['ip', '-j', 'addr']), capture_output=True, check=True
    )
    assert os.listdir('/sys/class/net') == before
  links = json.loads(done.stdout)
  assert [link['ifname'] for link in links] == ['lo', 'net0']
  assert links[1]['addr_info'][0]['local'] == hosts.address(1) == '10.77.0.2'


COMMAND = [
  *(sys.executable, 'benchmarks/links.py', '--model=softmax'),
  *('--mbits=1000', '--cases=one_ps', '--repeats=1'),
]


@pytest.mark.daily
@pytest.mark.slow
def test_a_cluster_is_measured_on_links(needs_network, tmp_path):
  done = subprocess.run(
    [*COMMAND, '--steps=5', f'--out={tmp_path}'],
    cwd=REPO,
    capture_output=True,
    text=True,
    timeout=DEADLINE_SECS,
  )
  assert done.returncode == 0, done.stderr
  assert '| sync, 1 ps | 0.2 |' in done.stdout
  [result] = json.loads((tmp_path / 'raw.json').read_text())['results']
  assert all(len(times) >= 6 for times in result['marks'])
  # All of them have sent and received.
  assert len(result['moved']) == 4
  assert all(sent and received for sent, received in result['moved'])
  assert 'sync, 1 ps' in (tmp_path / 'table.md').read_text()


@pytest.mark.daily
@pytest.mark.slow
@pytest.mark.parametrize(
  'signum, code', [(signal.SIGINT, 130), (signal.SIGKILL, -9)]
)
def test_whatever_ends_it_leaves_no_task(needs_network, signum, code):
  # In the background it would inherit that Ctrl-C is ignored.
  earlier = signal.signal(signal.SIGINT, signal.default_int_handler)
  benchmark = subprocess.Popen(
    [*COMMAND, '--steps=1000000'],
    cwd=REPO,
    stdout=subprocess.DEVNULL,
    stderr=subprocess.DEVNULL,
  )
  signal.signal(signal.SIGINT, earlier)
  with contextlib.ExitStack() as stack:
    stack.callback(benchmark.wait)
    stack.callback(benchmark.kill)
    tasks = wait_for_tasks(benchmark.pid, 4)
    pidfds = [os.pidfd_open(pid) for pid in tasks]
    for pidfd in pidfds:
      stack.callback(os.close, pidfd)
    benchmark.send_signal(signum)
    assert benchmark.wait(60) == code
    for pidfd in pidfds:
      assert select.select([pidfd], [], [], 20)[0]


def wait_for_tasks(pid, count):
  """Returns the pids of `count` tasks of train below process `pid`."""
  deadline = time.monotonic() + DEADLINE_SECS
  while time.monotonic() < deadline:
    found = [
      child
      for child in usage.find_descendants([pid])
      if '--job_name=' in read_command(child)
    ]
    if len(found) == count:
      return found
    time.sleep(0.02)
  raise TimeoutError(f'{len(found)} tasks')


def read_command(pid):
  try:
    with open(f'/proc/{pid}/cmdline') as file:
      return file.read()
  except OSError:
    return ''
