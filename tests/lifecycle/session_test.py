"""The life of a cluster: real tasks on 127.0.0.1, started and killed."""

import dataclasses
import re
import signal
import socket
import time

import pytest
import tensorflow.compat.v1 as tf

from distmnist.cluster import deadlines
from distmnist.common import cli
from distmnist.lifecycle import session as session_lib
from distmnist.logdir import checkpoints, restart
from tests.support import in_process
from tests.support.runner import (
  SMALL,
  check_kept_best,
  read_report,
  steps_of,
  wait_for_line,
  wait_for_step,
)


def read_graph(logdir):
  """Returns the one GraphDef that TensorBoard finds in `logdir`."""
  [path] = (logdir / 'metrics' / 'graph').glob('events.*')
  [graph] = [
    event.graph_def
    for event in tf.train.summary_iterator(str(path))
    if event.graph_def
  ]
  return tf.GraphDef.FromString(graph)


def is_answering(address):
  host, port = address.split(':')
  with socket.socket() as probe:
    probe.settimeout(1)
    return probe.connect_ex((host, int(port))) == 0


SYNC = '--sync_replicas'
CHIEF = '/job:worker/task:0'


@pytest.mark.slow
def test_all_tasks_leave_by_themselves(tasks, make_real_cluster, tmp_path):
  cluster = make_real_cluster(2, 2)
  logdir = tmp_path / 'run'
  ps, workers = cluster.start_all(
    *SMALL, '--train_steps=80', f'--logdir={logdir}'
  )
  assert tasks.wait(*ps, *workers) == [0] * 4
  report = read_report(logdir)
  assert {row['worker'] for row in report['workers']} == {0, 1}
  assert report['workers_not_heard_of'] == []
  assert 80 <= report['global_step'] <= 81
  assert report['local_steps'] == report['global_step']
  last_worker = max(worker.end_time for worker in workers)
  # Where no worker says that it is done, a ps waits for a minute.
  assert all(task.end_time - last_worker < 55 for task in ps)
  for i, task in enumerate(ps):
    assert task.output.startswith(f'ps {i} serves on ')
    assert {'worker 0 is done', 'worker 1 is done'} <= set(
      task.output.splitlines()
    )
  assert not any(is_answering(a) for job in cluster.hosts.values() for a in job)
  (line,) = re.findall(r'^bytes held: .*$', workers[0].output, re.M)
  assert 'ps 0' in line and 'ps 1' in line


@pytest.mark.daily
@pytest.mark.slow
@pytest.mark.parametrize('rule', [(), (SYNC,)])
def test_half_the_bytes_cross_and_the_sockets_agree_with_the_plan(
  tasks, make_real_cluster, tmp_path, rule
):
  logdir = tmp_path / 'run'
  ps, workers = make_real_cluster(2, 2).start_all(
    *SMALL,
    *rule,
    '--model=mlp',
    '--wire_dtype=float16',
    '--partitioner=min_max',
    '--placement=round_robin',
    '--steps_per_run=5',
    '--train_steps=300',
    f'--logdir={logdir}',
  )
  assert tasks.wait(*workers, *ps) == [0] * 4
  report = read_report(logdir)
  # A worker that was held up may start a last run of five too late.
  assert 300 <= report['global_step'] <= 305
  a_step = 2 * (784 * 100 + 100 + 100 * 10 + 10)
  line = f'bytes a step: each worker pulls {a_step:,} and pushes {a_step:,}\n'
  assert line in workers[0].output
  for row in report['workers']:
    assert row['bytes_pulled'] == row['bytes_pushed']
    assert row['bytes_pulled'] == a_step * row['local_steps']
  # The chief also fetched the checkpoints and the center of the evaluation.
  row = report['workers'][1]
  planned = a_step * row['timed_steps']
  assert row['bytes_sent'] == pytest.approx(planned, rel=0.1)
  assert row['bytes_received'] == pytest.approx(planned, rel=0.1)
  assert report['test_accuracy'] > 0.3
  nodes = read_graph(logdir).node
  homes = {node.device.removesuffix('/device:CPU:0') for node in nodes}
  assert homes - {''} == {'/job:ps/task:0', '/job:ps/task:1', CHIEF}
  # A single step: none of the four copies that a run of five has beside it.
  assert sum(n.op == 'SparseSoftmaxCrossEntropyWithLogits' for n in nodes) == 1


@pytest.mark.daily
@pytest.mark.slow
def test_a_worker_is_ready_soon_after_the_chief(tasks, make_real_cluster):
  cluster = make_real_cluster(1, 2)
  flags = *SMALL, '--train_steps=1000000', '--log_secs=0'
  ps = cluster.start('ps', 0)
  other = cluster.start('worker', 1, *flags)
  wait_for_line(other, 'waiting for worker 0 at ')
  chief = cluster.start('worker', 0, *flags)
  wait_for_line(chief, 'step ')
  ready = time.monotonic()
  wait_for_line(other, 'step ')
  # TensorFlow's own wait would be 30 s.
  assert time.monotonic() - ready < 20
  for left in (chief, other), (ps,):
    for task in left:
      tasks.signal(task, signal.SIGTERM)
    assert tasks.wait(*left) == [128 + signal.SIGTERM] * len(left)


@pytest.mark.slow
def test_a_missing_ps_is_named_in_a_bounded_time(tasks, make_real_cluster):
  cluster = make_real_cluster(2, 1)
  ps = cluster.start('ps', 0)
  worker = cluster.start('worker', 0, *SMALL, '--start_timeout_secs=2')
  start = time.monotonic()
  assert tasks.wait(worker, ps) == [1, 1]
  # By default it is a minute.
  assert time.monotonic() - start < 55
  address = cluster.hosts['ps'][1]
  assert f'waiting for ps 1 at {address}\n' in worker.output
  assert f'no answer within 2 s from ps 1 at {address}' in worker.output
  assert 'Traceback' not in worker.output
  assert 'worker 0, the chief, has failed' in ps.output


@pytest.mark.slow
def test_a_missing_worker_is_named_by_the_chief(tasks, make_real_cluster):
  cluster = make_real_cluster(1, 2)
  ps = cluster.start('ps', 0)
  wait_for_line(ps, 'ps 0 serves on ')
  chief = cluster.start('worker', 0, *SMALL, '--start_timeout_secs=2')
  assert tasks.wait(chief, ps) == [1, 1]
  assert (
    f'no answer within 2 s from worker 1 at {cluster.hosts["worker"][1]}'
    in chief.output
  )


@pytest.mark.slow
def test_a_checkpoint_of_two_ps_loads_on_none(
  tasks, make_real_cluster, tmp_path
):
  logdir = f'--logdir={tmp_path / "run"}'
  ps, workers = make_real_cluster(2, 1).start_all(
    *SMALL, '--train_steps=40', logdir
  )
  assert tasks.wait(*ps, *workers) == [0] * 3
  loss = read_report(tmp_path / 'run')['final_loss']
  alone = tasks.run(tmp_path / 'alone', *SMALL, '--train_steps=80', logdir)
  assert alone.code == 0, alone.output
  assert 'restored' in alone.output
  assert re.search(
    r'^worker 0 +80 local steps, .* in 2 lives$', alone.output, re.M
  )
  assert read_report(tmp_path / 'run')['final_loss'] < loss


@pytest.mark.daily(but=['rule1-15'])
@pytest.mark.slow
@pytest.mark.parametrize(
  ('rule', 'signum'), [((), signal.SIGINT), ((SYNC,), signal.SIGTERM)]
)
def test_a_signal_saves_and_the_next_start_resumes(
  tasks, make_real_cluster, tmp_path, rule, signum
):
  logdir = tmp_path / 'run'
  flags = [*SMALL, '--log_secs=0', f'--logdir={logdir}', *rule]
  cluster = make_real_cluster(1, 2)
  ps, workers = cluster.start_all(*flags, '--train_steps=1000000')
  wait_for_line(workers[0], 'step 10')
  for worker in workers:
    tasks.signal(worker, signum)
  assert tasks.wait(*workers) == [128 + signum] * 2
  # After 8 s they would be ended by force.
  assert 'not done' not in workers[0].output + workers[1].output
  # The workers may come back, so the ps is told to leave, too.
  tasks.signal(ps[0], signum)
  assert tasks.wait(*ps) == [128 + signum]
  assert 'Traceback' not in workers[0].output + workers[1].output
  stopped_at = int(re.search(r'stopped at step (\d+)', workers[0].output)[1])
  latest = checkpoints.find_latest(str(logdir))
  saved = checkpoints.read_step(latest)
  # The other worker may go on until its own signal has reached it.
  assert saved >= stopped_at

  cluster = make_real_cluster(1, 2)
  ps, workers = cluster.start_all(*flags, f'--train_steps={saved + 20}')
  assert tasks.wait(*ps, *workers) == [0] * 3
  assert f'restored {latest}\n' in workers[0].output
  # One of the two may be too late for any of the 20.
  assert min(steps_of(workers[0]) + steps_of(workers[1])) > saved


@pytest.mark.slow
def test_a_second_signal_stops_at_once(tasks, make_real_cluster):
  cluster = make_real_cluster(1, 1)
  # The worker waits for a ps that is not there, out of reach of any step.
  worker = cluster.start('worker', 0, *SMALL)
  wait_for_line(worker, 'waiting for ps 0')
  tasks.signal(worker, signal.SIGTERM)
  wait_for_line(worker, 'SIGTERM: saving and stopping')
  tasks.signal(worker, signal.SIGTERM)
  assert tasks.wait(worker) == [143]
  # After 8 s it would be ended by force.
  assert 'not done' not in worker.output


@pytest.mark.daily
@pytest.mark.slow
def test_a_worker_killed_for_good_does_not_hold_up_those_with_a_backup(
  tasks, make_real_cluster, tmp_path
):
  logdir = tmp_path / 'run'
  cluster = make_real_cluster(1, 3)
  ps, workers = cluster.start_all(
    *SMALL,
    SYNC,
    '--replicas_to_aggregate=2',
    '--train_steps=200',
    '--log_secs=0',
    f'--logdir={logdir}',
  )
  wait_for_line(workers[2], 'step ')
  tasks.signal(workers[2], signal.SIGKILL)
  assert tasks.wait(workers[2]) == [-9]
  assert tasks.wait(*workers[:2], *ps) == [0] * 3
  report = read_report(logdir)
  assert report['workers_not_heard_of'] == [2]
  assert report['global_step'] >= 200
  assert 'worker 2 is gone: ending without it' in workers[0].output
  last_worker = max(worker.end_time for worker in workers[:2])
  # A ps waits 5 s for one that is lost, and not the minute of --start_timeout.
  assert all(task.end_time - last_worker < 30 for task in ps)


@pytest.mark.daily
@pytest.mark.slow
def test_a_worker_that_is_stopped_for_a_while_holds_up_sync_only_so_long(
  tasks, make_real_cluster, tmp_path
):
  logdir = tmp_path / 'run'
  cluster = make_real_cluster(1, 2)
  ps, workers = cluster.start_all(
    *(*SMALL, SYNC, '--train_steps=300', '--log_secs=0'),
    *('--summary_steps=50', f'--logdir={logdir}'),
  )
  for worker in workers:
    wait_for_line(worker, 'step ')
  tasks.suspend(workers[1])
  before = steps_of(workers[0])[-1]
  with pytest.raises(TimeoutError):
    tasks.wait(workers[0], timeout_secs=1)
  # Lock-step: at most the step that was under way, and one that had no line.
  assert steps_of(workers[0])[-1] <= before + 2
  tasks.signal(workers[1], signal.SIGCONT)
  assert tasks.wait(*workers, *ps) == [0] * 3
  report = read_report(logdir)
  rows = report['workers']
  assert report['global_step'] == 300
  assert [row['local_steps'] for row in rows] == [300, 300]
  assert [row['gradients_dropped'] for row in rows] == [0, 0]
  for i in range(2):
    assert list((logdir / 'metrics' / f'worker_{i}').glob('events.*'))


@pytest.mark.daily
@pytest.mark.slow
@pytest.mark.parametrize(
  ('rule', 'steps_per_run'),
  [('async_sgd', 1), ('sync_sgd', 10), ('sagn', 10), ('ssp', 10)],
)
def test_early_stopping_ends_all_workers(
  tasks, make_real_cluster, tmp_path, rule, steps_per_run
):
  logdir = tmp_path / 'run'
  cluster = make_real_cluster(1, 2)
  ps, workers = cluster.start_all(
    *SMALL,
    f'--strategy={rule}',
    f'--steps_per_run={steps_per_run}',
    '--learning_rate=0.05',
    '--train_steps=1000000',
    '--validation_steps=20',
    '--early_stopping_patience=3',
    f'--logdir={logdir}',
  )
  assert tasks.wait(*ps, *workers) == [0] * 3
  assert 'early stopping at step' in workers[0].output
  report = read_report(logdir)
  assert report['best_step'] < report['global_step'] < 1000000
  assert report['workers_not_heard_of'] == []
  # What is said of the best is true of the file, whatever went on meanwhile.
  check_kept_best(tasks, logdir)


@pytest.mark.slow
def test_a_chief_that_fails_lets_the_ps_go(tasks, make_real_cluster):
  cluster = make_real_cluster(1, 1)
  ps, (chief,) = cluster.start_all(
    *SMALL, '--optimizer=sgd', '--learning_rate=1e38'
  )
  assert tasks.wait(chief, *ps) == [1, 1]
  assert 'worker 0, the chief, has failed: see its log' in ps[0].output


@pytest.mark.slow
def test_an_evaluator_follows_a_run(tasks, make_real_cluster, tmp_path):
  logdir = tmp_path / 'run'
  evaluator = tasks.start(
    tmp_path / 'evaluate',
    f'--logdir={logdir}',
    '--continuous',
    module='distmnist.evaluate',
  )
  cluster = make_real_cluster(1, 1)
  ps, workers = cluster.start_all(
    *SMALL, '--train_steps=200', '--save_steps=50', f'--logdir={logdir}'
  )
  assert tasks.wait(*ps, *workers, evaluator) == [0] * 3
  lines = re.findall(
    r'^step (\d+)  test accuracy (0\.\d+)', evaluator.output, re.M
  )
  report = read_report(logdir)
  assert lines[-1] == ('200', f'{report["test_accuracy"]:.4f}')
  one = tasks.run(
    tmp_path / 'one',
    f'--logdir={logdir}',
    '--checkpoint=100',
    module='distmnist.evaluate',
  )
  assert one.output.startswith('step 100  test accuracy 0.')


def make_scaffold(cluster):
  """Returns (ClusterScaffold, task) of worker 1, which waits for a second."""
  member = dataclasses.replace(cluster.worker(1), start_timeout_secs=1)
  task = in_process.make_task(member, cluster.servers[1])
  tf.train.get_or_create_global_step()
  return session_lib.ClusterScaffold(
    task, restart.Restart(None, 'auto', 1), tf.train.Saver(), []
  ), task


@pytest.mark.slow
def test_a_ps_that_is_lost_again_and_again_is_not_waited_for_without_end(
  make_cluster, monkeypatch
):
  def lose(*_):
    raise tf.errors.UnavailableError(None, None, 'it is gone')

  monkeypatch.setattr(deadlines, 'call_and_look', lose)
  with tf.Graph().as_default():
    scaffold, _ = make_scaffold(make_cluster(1, 2))
    with pytest.raises(cli.PassingError, match='within 1 s: see its log'):
      scaffold.finalize()


@pytest.mark.daily
@pytest.mark.slow
def test_a_chief_that_restores_for_long_is_waited_for_as_long_as_it_beats(
  make_cluster,
):
  with tf.Graph().as_default():
    scaffold, task = make_scaffold(make_cluster(1, 2))
    end = time.monotonic() + 4
    task.watchdog.is_beating = lambda name: time.monotonic() < end
    with pytest.raises(cli.PassingError, match='did not initialise the var'):
      scaffold.finalize()
  assert time.monotonic() - end > 0.9


@pytest.mark.daily
@pytest.mark.slow
def test_a_chief_that_is_back_makes_what_is_lost_without_who_is_done(
  tasks, make_real_cluster, tmp_path
):
  cluster = make_real_cluster(1, 2)
  flags = (
    *SMALL,
    *('--train_steps=2000', '--save_steps=50', '--log_secs=0'),
    *('--start_timeout_secs=30', '--end_timeout_secs=1'),
    f'--logdir={tmp_path / "run"}',
  )
  [ps], [chief, other] = cluster.start_all(*flags)
  wait_for_line(other, 'step ')
  wait_for_step(chief, 60)  # Past a save.
  tasks.suspend(chief)
  assert tasks.wait(other) == [0], other.output  # It does the rest.
  for lost in chief, ps:
    tasks.signal(lost, signal.SIGKILL)
  tasks.wait(chief, ps)
  again = [
    cluster.start(job, 0, *flags, DISTMNIST_ATTEMPT='2')
    for job in ('ps', 'worker')
  ]
  assert tasks.wait(*again) == [0, 0], again[1].output
  assert 'restored ' in again[1].output
  assert read_report(tmp_path / 'run')['global_step'] == 2000
