"""evaluator: which checkpoints it finds, when it ends, and how it is told."""

import contextlib
import json
import os
import re
import types

import pytest

from distmnist.cluster import cluster as cluster_lib
from distmnist.common import cli, console, owner
from distmnist.common.names import ATTEMPT, LAUNCH_ID
from distmnist.lifecycle import task as task_lib
from distmnist.logdir import checkpoints, logdirs
from distmnist.training import evaluator
from distmnist.watching import metrics_file
from tests.support import in_process
from tests.support.runner import SMALL, read_report, wait_for_line


@pytest.fixture
def folder(tmp_path, monkeypatch):
  """A run whose checkpoints and end are empty files; time moves by `pause`.

  folder.events is a list of callables, one for each pause.
  """
  clock = types.SimpleNamespace(now=100.0)
  clock.monotonic = lambda: clock.now
  monkeypatch.setattr(evaluator, 'time', clock)
  made = types.SimpleNamespace(path=str(tmp_path), events=[], num_pauses=0)

  def touch(name):
    (tmp_path / name).write_text('')

  def pause(secs):
    clock.now += secs
    made.num_pauses += 1
    if made.events:
      made.events.pop(0)()

  made.save = lambda step: touch(f'model.ckpt-{step}.index')
  made.drop = lambda step: os.remove(tmp_path / f'model.ckpt-{step}.index')
  made.end = lambda: touch('report.json')
  made.pause = pause
  made.follow = lambda secs: [
    int(path.rpartition('-')[2])
    for path in evaluator.follow(made.path, secs, pause)
  ]
  return made


def test_each_new_checkpoint_is_found_once_and_in_order(folder):
  folder.save(0)

  def save_two():
    folder.save(20)
    folder.save(100)
    folder.drop(0)

  folder.events = [save_two, lambda: None, lambda: folder.save(150), folder.end]
  assert folder.follow(secs=10) == [0, 20, 100, 150]
  assert folder.num_pauses == 4


def test_what_comes_with_the_end_is_not_missed(folder):
  def end():
    folder.save(7)
    folder.end()

  folder.events = [end]
  assert folder.follow(secs=10) == [7]


def test_a_run_that_has_ended_is_looked_at_once(folder):
  folder.save(3)
  folder.end()
  assert folder.follow(secs=10) == [3]
  assert folder.num_pauses == 0


def test_the_wait_for_a_checkpoint_is_bounded_and_starts_anew_with_each(folder):
  folder.events = [lambda: folder.save(1)] + [lambda: None] * 4
  folder.events += [lambda: folder.save(2)]
  assert folder.follow(secs=1.1) == [1, 2]
  # Six pauses to the second one, and 1.1 s after it.
  assert folder.num_pauses == 6 + 6


@pytest.fixture
def run_task(folder, set_flags, monkeypatch):
  """Returns run_task() -> (exit code, lines), in folder.path."""

  class Evaluator:
    def __init__(self, *_):
      pass

    def compute_checkpoint(self, path):
      if not os.path.exists(f'{path}.index'):
        raise cli.RunError(f'checkpoint {path} cannot be read')
      if path.endswith('-666'):
        raise cli.RunError(f'checkpoint {path} has no weights')
      return {'accuracy': 0.5}

  monkeypatch.setattr(evaluator.evaluation, 'Evaluator', Evaluator)
  monkeypatch.setattr(
    checkpoints, 'read_step', lambda path: int(path.rpartition('-')[2])
  )
  monkeypatch.setattr(
    evaluator.tf.train,
    'checkpoint_exists',
    lambda path: os.path.exists(f'{path}.index'),
  )
  monkeypatch.setattr(evaluator.console, 'time', evaluator.time)
  set_flags(
    *('--dataset=synthetic', '--synthetic_test_images=10'),
    f'--logdir={folder.path}',
    '--continuous_timeout_secs=2',
  )
  member = cluster_lib.Cluster(job_name='evaluator', start_timeout_secs=3)

  def run():
    lines = []
    console.print_logs(lines.append)
    stop = in_process.NoStop()
    stop.wait = folder.pause
    task = task_lib.Task(member, stop)
    code = evaluator.run_task(task)
    return code, [line.replace(folder.path, 'RUN') for line in lines]

  return run


@pytest.mark.slow
def test_the_task_ends_with_the_run(folder, run_task):
  folder.events = [lambda: folder.save(0), lambda: folder.save(9), folder.end]
  assert run_task() == (
    0,
    [
      'evaluator 0 evaluates each new checkpoint in RUN',
      'step 0  test accuracy 0.5000  RUN/model.ckpt-0',
      'step 9  test accuracy 0.5000  RUN/model.ckpt-9',
      'the run has ended',
    ],
  )


def read_starts(run_task):
  """Returns how the lines of a task that ends well begin, after the first."""
  code, lines = run_task()
  assert code == 0
  return [line.split('  ')[0] for line in lines[1:]]


@pytest.mark.slow
def test_the_report_of_an_earlier_run_is_not_the_end_of_this_one(
  folder, run_task
):
  folder.end()
  folder.save(5)

  def begin():
    os.remove(logdirs.report_path(folder.path))

  folder.events = [lambda: None, begin, lambda: folder.save(9), folder.end]
  assert read_starts(run_task) == [
    'step 5',
    'step 9',
    'the run has ended',
  ]


@pytest.mark.slow
@pytest.mark.parametrize('env', [{}, {ATTEMPT: '2', LAUNCH_ID: 'this'}])
def test_what_an_earlier_run_has_saved_is_not_taken_for_this_one(
  folder, run_task, set_flags, monkeypatch, env
):
  for name, value in env.items():
    monkeypatch.setenv(name, value)
  set_flags('--resume=never')
  folder.save(0)
  folder.save(5)

  def begin():  # As restart.prepare and run_folder.sign do.
    folder.drop(0)
    folder.drop(5)
    logdirs.sign(folder.path, 'a life')

  folder.events = [lambda: None, begin, lambda: folder.save(0), folder.end]
  assert read_starts(run_task) == [
    'step 0',
    'the run has ended',
  ]
  # Started again by its launcher, or late: what is there is of this run.
  folder.events = []
  with owner.Owner('--logdir', folder.path) as chief:
    chief.take()
    os.remove(logdirs.report_path(folder.path))
    folder.events = [folder.end]
    assert read_starts(run_task) == [
      'step 0',
      'the run has ended',
    ]


@pytest.mark.slow
def test_a_chief_with_nothing_to_do_is_not_waited_for(folder, run_task):
  folder.end()
  folder.save(5)
  life = metrics_file.Writer(folder.path, 'worker 0', 'a life')

  def begin():
    logdirs.sign(folder.path, 'a life')

  folder.events = [begin, lambda: life.write('end', ok=True, text='')]
  assert run_task()[1][-1] == 'the run has ended'
  assert folder.num_pauses == 2


@pytest.mark.slow
def test_who_comes_when_all_is_over_waits_for_a_chief_and_then_ends(
  folder, run_task
):
  folder.end()
  folder.save(5)
  code, lines = run_task()
  assert code == 0
  assert lines[1:] == [
    'waiting for a chief: the run in RUN has ended',
    'step 5  test accuracy 0.5000  RUN/model.ckpt-5',
    'the run has ended',
  ]
  # --start_timeout_secs.
  assert folder.num_pauses == 15


@pytest.mark.slow
def test_a_checkpoint_that_is_gone_is_passed_over(
  folder, run_task, monkeypatch
):
  monkeypatch.setattr(
    evaluator, 'follow', lambda *_: [f'{folder.path}/model.ckpt-1']
  )
  folder.end()
  code, lines = run_task()
  assert code == 0
  assert lines[-2] == (
    'RUN/model.ckpt-1 is gone, not evaluated: newer ones have taken its place'
  )


@pytest.mark.slow
def test_a_checkpoint_that_is_replaced_meanwhile_is_read_again(
  folder, run_task, monkeypatch
):
  describe, tries = evaluator.describe, []

  def describe_late(*words):
    tries.append(words)
    if len(tries) == 1:
      raise cli.RunError('half of it is gone')
    return describe(*words)

  monkeypatch.setattr(evaluator, 'describe', describe_late)
  folder.save(5)
  monkeypatch.setattr(
    evaluator, 'follow', lambda *_: [f'{folder.path}/model.ckpt-5']
  )
  folder.end()
  code, lines = run_task()
  assert code == 0
  assert 'step 5  test accuracy 0.5000  RUN/model.ckpt-5' in lines


@pytest.mark.slow
def test_a_checkpoint_of_another_model_is_an_error(folder, run_task):
  folder.save(666)
  with pytest.raises(cli.RunError, match='-666 has no weights$'):
    run_task()


@pytest.mark.slow
def test_a_disk_that_fails_for_a_while_is_not_final(
  folder, run_task, monkeypatch
):
  def describe(*_):
    raise cli.PassingError('the checkpoint cannot be read: EIO')

  monkeypatch.setattr(evaluator, 'describe', describe)
  folder.save(5)
  with pytest.raises(cli.PassingError, match='EIO') as caught:
    run_task()
  assert caught.value.exit_code == cli.LOST


@pytest.mark.slow
def test_no_checkpoint_is_an_error_that_says_where_to_look(
  folder, run_task, monkeypatch
):
  with pytest.raises(
    cli.RunError, match=f'^no checkpoint in --logdir={folder.path} within 2 s: '
  ) as caught:
    run_task()
  assert 'check that all tasks share this folder' in str(caught.value)
  assert caught.value.exit_code == 1
  monkeypatch.setenv(ATTEMPT, '2')
  assert caught.value.exit_code == cli.LOST


@pytest.mark.slow
def test_a_run_that_stands_still_may_go_on_later(folder, run_task):
  folder.save(3)
  with pytest.raises(
    cli.LostError, match='for 2 s after .*model.ckpt-3, and the run has not end'
  ):
    run_task()


def test_an_evaluator_without_a_logdir_is_refused(run_task, set_flags):
  set_flags('--logdir=')
  with pytest.raises(
    cli.UsageError, match='^--logdir is missing: an evaluator'
  ):
    run_task()


# Real tasks, told by TF_CONFIG alone, as a TFJob tells its pods.


@pytest.fixture
def hold_addresses():
  """Returns hold(num) -> 'host:port' of so many ports, until the test ends."""
  with contextlib.ExitStack() as stack:

    def hold(num_ports):
      ports = stack.enter_context(in_process.hold_ports(num_ports))
      return [f'127.0.0.1:{port}' for port in ports]

    yield hold


@pytest.fixture
def tfjob(tasks, tmp_path, hold_addresses):
  """Returns start(job, *flags), for one task of each job."""
  jobs = 'chief', 'evaluator', 'ps', 'worker'
  cluster = {
    job: [address]
    for job, address in zip(jobs, hold_addresses(len(jobs)), strict=True)
  }

  def start(job, *flags):
    task = {'type': job, 'index': 0}
    config = {'cluster': cluster, 'task': task, 'environment': 'cloud'}
    return tasks.start(
      tmp_path / f'{job}.log',
      *SMALL,
      f'--logdir={tmp_path}/run',
      *flags,
      TF_CONFIG=json.dumps(config),
    )

  return start


@pytest.mark.daily
@pytest.mark.slow
def test_a_tfjob_runs_to_its_end(tasks, tfjob, tmp_path):
  flags = '--train_steps=1500', '--save_steps=300', '--log_secs=0.1'
  evaluator_task = tfjob('evaluator', *flags)
  wait_for_line(evaluator_task, 'evaluator 0 evaluates each new checkpoint')
  others = [tfjob(job, *flags) for job in ('ps', 'chief', 'worker')]
  assert tasks.wait(evaluator_task, *others) == [0] * 4
  ps, chief, worker = others
  assert 'this task is ps 0, by TF_CONFIG\n' in ps.output
  assert 'this task is worker 0, by TF_CONFIG, which calls it chief 0' in (
    chief.output
  )
  assert 'this task is worker 1, by TF_CONFIG, which calls it worker 0' in (
    worker.output
  )
  report = read_report(tmp_path / 'run')
  assert len(report['workers']) == 2
  assert report['workers_not_heard_of'] == []
  found = re.findall(
    r'^step (\d+)  test accuracy (0\.\d{4}), loss \S+  (\S+)$',
    evaluator_task.output,
    re.M,
  )
  steps = [int(step) for step, _, _ in found]
  assert steps == sorted(set(steps))
  # The last five are kept, also for an evaluator that is slow. A chief that is
  # held up saves less often.
  kept = checkpoints.list_checkpoints(str(tmp_path / 'run'))
  assert set(kept) <= {path for _, _, path in found}
  assert len(steps) >= 2
  assert found[-1][:2] == (
    str(report['global_step']),
    f'{report["test_accuracy"]:.4f}',
  )
  assert report['test_accuracy'] > 0.5
  assert evaluator_task.output.endswith('the run has ended\n')


@pytest.mark.slow
def test_an_evaluator_leaves_on_sigterm(tasks, tfjob):
  task = tfjob('evaluator')
  wait_for_line(task, 'evaluator 0 evaluates each new checkpoint')
  tasks.signal(task, 15)
  assert tasks.wait(task) == [143]


@pytest.mark.daily
@pytest.mark.slow
def test_flags_and_tf_config_make_one_cluster(tasks, tmp_path, hold_addresses):
  """Their tasks compare what they were told, and find it the same."""
  ps_address, chief_address, worker_address = hold_addresses(3)
  flags = *SMALL, '--train_steps=100', f'--logdir={tmp_path}/run'
  hosts = (
    f'--ps_hosts={ps_address}',
    f'--worker_hosts={chief_address}, {worker_address}',
  )
  config = {
    'cluster': {
      'ps': [ps_address],
      'chief': [chief_address],
      'worker': [worker_address],
    },
    'task': {'type': 'worker', 'index': 0},
  }
  started = [
    tasks.start(
      tmp_path / 'ps', *flags, *hosts, *('--job_name=ps', '--task_index=0')
    ),
    tasks.start(
      tmp_path / 'chief',
      *flags,
      *hosts,
      *('--job_name=worker', '--task_index=0'),
      TF_CONFIG=json.dumps(config),
    ),
    tasks.start(tmp_path / 'worker', *flags, TF_CONFIG=json.dumps(config)),
  ]
  assert tasks.wait(*started) == [0] * 3
  assert (
    'the cluster is read from flags: TF_CONFIG not used\n' in started[1].output
  )
  assert len(read_report(tmp_path / 'run')['workers']) == 2
