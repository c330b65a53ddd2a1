"""The runner of trials on Spark; the slow tests run a real local-cluster."""

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import socket

import psutil
import pytest

from distmnist import (
  cli,
  handshake,
  json_lines,
  on_spark,
  spark_trials,
  sweep,
  trials,
)
from distmnist.launchers import spark
from tests import sweep_test
from tests.runner import SMALL

CLUSTER = 'local-cluster[2,1,1024]'
DEADLINE_SECS = 240


# ---- With the test in the place of Spark and of the agents ----


class FakeJob:
  """A job that ends when the test says so."""

  def __init__(self, sc, rdd, on_end):
    self.spec = rdd
    self.error = None
    self.has_ended = False
    self.is_cancelled = False
    self._on_end = on_end

  def start(self):
    pass

  def cancel(self):
    self.is_cancelled = True
    self.end(ValueError('cancelled'))

  def end(self, error=None):
    self.error, self.has_ended = error, True
    self._on_end()

  def explain(self):
    return str(self.error)


class FakeContext:
  """A SparkContext; the RDD of a trial is its spec."""

  pythonExec = 'python3'  # noqa: N815 (as Spark says)

  def getConf(self):  # noqa: N802 (as Spark says)
    return {'spark.driver.host': '127.0.0.1', 'spark.master': 'local'}

  def parallelize(self, *_):
    return self

  def mapPartitions(self, task):  # noqa: N802
    return task.args[0]


class Agent:
  """Says on behalf of an executor what the test wants."""

  def __init__(self, spec):
    self.spec = spec
    connected = socket.create_connection(tuple(spec['driver']))
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    self.link = json_lines.Connection(connected)

  def meet(self, turn, executor='host-1 (pid 7)'):
    turn()
    (message,) = self.link.receive(5)
    agent = handshake.Agent(self.spec['secret'])
    self.link.send(**agent.answer(message))
    turn()
    (message,) = self.link.receive(5)
    assert agent.is_driver(message)
    self.link.secure(agent.key, 'agent', 'driver')
    self.link.send(hello=self.spec['name'], executor=executor)
    turn()

  def read(self):
    """Returns what was said to it since."""
    messages, new = [], True
    while new:
      new = self.link.receive(0.01)
      messages += new
    return messages


class Room:
  """A runner, its jobs, and the agents that the test lets in."""

  def __init__(self, folder, lock):
    self.said, self.agents = [], []
    self.folder = folder
    self.runner = spark_trials.SparkRunner(
      {}, str(folder), lock, 0.2, self.said.append
    )

  def start(self, name, *flags, limit=trials.NO_LIMIT):
    argv = ['python', '-m', 'distmnist.train', *flags]
    return self.runner.start(
      name, argv, str(self.folder / f'{name}.log'), {'A': 'b'}, limit
    )

  def job(self, name):
    return self.runner._runs[name].job

  def join(self, name):
    """Has the agent of a trial come; returns it."""
    return self.meet(self.job(name).spec)

  def meet(self, spec, **hello):
    self.agents.append(Agent(spec))
    self.agents[-1].meet(self.turn, **hello)
    return self.agents[-1]

  def turn(self):
    """What is there to be heard is heard."""
    ended = []
    for _ in range(3):
      self.runner._door.wake()
      ended += self.runner._turn()
    return ended

  def log(self, name):
    return (self.folder / f'{name}.log').read_text()


@pytest.fixture
def room(tmp_path, monkeypatch):
  monkeypatch.setattr(
    spark, 'opened', lambda *_: contextlib.nullcontext(FakeContext())
  )
  monkeypatch.setattr(on_spark, 'ship_package', lambda _: None)
  monkeypatch.setattr(on_spark, 'count_slots', lambda _: 2)
  monkeypatch.setattr(on_spark, 'Job', FakeJob)
  monkeypatch.setattr(spark_trials, '_KILL_SECS', 0.1)
  monkeypatch.setattr(spark_trials, '_TICK_SECS', 0.01)
  with open(tmp_path / 'lock', 'a+') as lock:
    room = Room(tmp_path, lock)
    with room.runner:
      # Which Python, and who reaches the ports, is said at the start.
      room.said.clear()
      yield room
      monkeypatch.setattr(room.runner, '_stop_secs', 0.1)
  for agent in room.agents:
    agent.link.close()


def test_lines_code_and_report_come_back(room):
  (room.folder / '01.log').write_text('before\n')
  (room.folder / 'run').mkdir()
  assert room.start('01', f'--logdir={room.folder}/run') == len('before\n')
  spec = room.job('01').spec
  assert spec['argv'][:3] == ['python', '-m', 'distmnist.train']
  assert (spec['env'], spec['attempt']) == ({'A': 'b'}, 1)
  path, word = spec['lock']
  with open(path) as lock:
    assert (lock.name, lock.read()) == (str(room.folder / 'lock'), word)
  agent = room.join('01')
  assert agent.read() == [{'go': True}]
  agent.link.send(lines=['one', 'two'])
  agent.link.send(end=0, report={'test_accuracy': 0.5})
  assert room.turn() == []
  assert agent.read() == [{'leave': True}]
  agent.link.close()
  assert room.turn() == []  # Spark still has its task.
  room.job('01').end()
  assert room.runner.wait() == [('01', 0)]
  assert room.log('01') == 'before\none\ntwo\n'
  report = json.loads((room.folder / 'run' / 'report.json').read_text())
  assert report == {'test_accuracy': 0.5}


def test_a_failure_and_a_death_have_their_codes_and_start_nothing(room):
  for name, code in (('01', 1), ('02', -9)):
    room.start(name)
    agent = room.join(name)
    agent.link.send(end=code)
    agent.link.close()
    room.job(name).end()
    assert room.turn() == [(name, code)]
  assert room.said == []


def test_a_lost_executor_concerns_its_own_trial(room):
  room.start('01')
  room.start('02')
  agents = {name: room.join(name) for name in ('01', '02')}
  first, other = room.job('01'), agents['02']
  agents['01'].read(), other.read()
  agents['01'].link.send(lost='its executor, host-1 (pid 7), has died')
  room.turn()
  assert agents['01'].read() == [{'stop': signal.SIGTERM}]
  first.end(ValueError('lost'))
  room.turn()
  # It still saves: nobody else may train in its folder.
  assert room.job('01') is first and room.said == []
  agents['01'].link.send(end=None)
  room.turn()
  agents['01'].link.close()
  room.turn()
  assert room.said == [
    'trial 01: its executor, host-1 (pid 7), has died: restart 1 of 3, from its'
    ' last checkpoint'
  ]
  again = room.job('01')
  assert again is not first
  assert again.spec['attempt'] == 2
  assert again.spec['name'] != first.spec['name']
  assert room.join('01').read() == [{'go': True}]
  assert room.log('01') == '--- restart 1 ---\n'
  assert other.read() == []


def test_a_connection_that_ends_waits_for_the_word_of_spark(room):
  room.start('01')
  room.join('01').link.close()
  assert room.turn() == []
  assert room.job('01').spec['attempt'] == 1
  room.job('01').end(ValueError('exit code -9'))
  room.turn()
  assert room.job('01').spec['attempt'] == 2
  assert 'no word from it any more; its executor was host-1' in room.said[0]


def test_a_trial_that_is_lost_again_and_again_has_failed(room):
  room.start('01')
  error = ValueError(
    'ExecutorLostFailure (executor 1 exited caused by one of the running tasks)'
    ' Reason: Command exited with code 137'
  )
  for _ in range(spark_trials.MAX_RESTARTS):
    room.job('01').end(error)
    assert room.turn() == []
  room.job('01').end(error)
  assert room.turn() == [('01', cli.LOST)]
  assert room.log('01').splitlines()[-1] == (
    'distmnist.sweep: error: executor 1 was lost before its task began: Command'
    ' exited with code 137; this was restart 3 of 3'
  )


TOO_LONG = 'distmnist.sweep: error: not done within --trial_timeout_secs=0.05\n'


@pytest.mark.parametrize(
  'code, ended, log', [(143, 1, TOO_LONG), (None, 1, TOO_LONG), (0, 0, '')]
)
def test_a_trial_that_takes_too_long_is_told_to_leave(room, code, ended, log):
  room.start('01', limit=trials.Limit(0.05, 60))
  agent = room.join('01')
  messages = agent.read()
  while len(messages) < 2:  # Its time begins with its agent.
    room.turn()
    messages += agent.read()
  assert messages == [{'go': True}, {'stop': signal.SIGTERM}]
  agent.link.send(end=code)
  agent.link.close()
  room.job('01').end()
  assert room.turn() == [('01', ended)]
  assert room.log('01') == log


def test_a_trial_that_waits_for_an_executor_takes_no_time(room):
  room.start('01', limit=trials.Limit(0.0, 0.0))
  room.turn()
  assert not room.job('01').is_cancelled and room.log('01') == ''


def test_what_no_executor_has_ends_the_sweep(room):
  room.start('01')
  room.job('01').end(ValueError('ModuleNotFoundError: No module named absl'))
  with pytest.raises(cli.RunError, match='No module named absl'):
    room.runner.wait()


def test_a_spark_that_has_stopped_ends_the_sweep(room, monkeypatch):
  def refuse(_):
    raise cli.RunError('Spark has stopped: its log says why')

  room.start('01')
  monkeypatch.setattr(on_spark, 'count_slots', refuse)
  with pytest.raises(cli.RunError, match='Spark has stopped'):
    room.start('02')
  room.job('01').end(ValueError('Connection refused'))
  with pytest.raises(cli.RunError, match='Spark has stopped'):
    room.runner.wait()


def test_a_folder_that_is_not_shared_ends_the_sweep(room):
  room.start('01')
  agent = room.join('01')
  agent.link.send(refused='host-1 does not share /x: No such file')
  with pytest.raises(cli.RunError, match='not share /x: .* --sweep_dir has to'):
    room.runner.wait()
  assert agent.read() == [{'go': True}, {'leave': True}]


def test_a_start_is_for_one_agent(room):
  room.start('01')
  old = room.job('01').spec
  first, second = room.join('01'), room.join('01')
  assert first.read() == [{'go': True}]
  assert second.read() == [] and not second.link.is_open
  first.link.close()
  room.turn()
  room.job('01').end()
  room.turn()
  late = room.meet(old)
  assert late.read() == [] and not late.link.is_open
  assert room.join('01').read() == [{'go': True}]


@pytest.mark.parametrize('executor', [None, 'a\nb', '\x1b[2J'])
def test_a_hello_that_makes_no_sense_is_refused(room, executor):
  room.start('01')
  agent = room.meet(room.job('01').spec, executor=executor)
  assert agent.read() == [] and not agent.link.is_open


def test_no_slot_for_any_trial_is_said_and_given_up(room):
  room.start('01')
  with pytest.raises(cli.LostError, match='waited 0.2 s for Spark to start'):
    room.runner.wait()


def test_a_signal_interrupts_the_wait_and_the_stop_is_told_once(room):
  room.start('01')
  room.start('02')
  agent = room.join('01')
  agent.read()
  os.kill(os.getpid(), signal.SIGINT)
  assert room.runner.wait() == []
  assert room.runner.signals == [signal.SIGINT]
  waiting = room.job('02')
  agent.link.send(lost='Spark has ended its Python process on host-1')
  agent.link.send(end=None)
  agent.link.send()
  room.job('01').end()
  turn = room.runner._turn

  def leave_when_told():
    if {'leave': True} in agent.read():
      agent.link.close()
    return turn()

  room.runner._turn = leave_when_told
  ended = room.runner.stop(signal.SIGTERM, 5)
  assert sorted(ended) == [('01', -15), ('02', -15)]
  assert waiting.is_cancelled


def test_who_does_not_stop_in_time_is_killed_then_left(room):
  room.start('01')
  agent = room.join('01')
  agent.read()
  assert room.runner.stop(signal.SIGTERM, 0.1) == [('01', -signal.SIGKILL)]
  assert agent.read() == [{'stop': signal.SIGTERM}] * 2


# ---- The command line ----


def run(folder, *words, master=CLUSTER, **settings):
  return sweep_test.run(
    folder, '--runner=spark', f'--master={master}', *words, **settings
  )


@pytest.mark.parametrize(
  ('flags', 'message'),
  [
    ([], '--master is missing: give spark://host:7077'),
    (
      ['--master=yarn', '--parallel=2'],
      '--sweep_dir is missing: give a folder',
    ),
    (
      ['--master=yarn', '--sweep_dir=/shared/x'],
      '--parallel is missing: say how many trials Spark',
    ),
    (
      [f'--master={CLUSTER}', '--sweep_dir=x'],
      '--sweep_dir=x: expected the absolute path of a folder',
    ),
    (
      [f'--master={CLUSTER}', '--parallel=3'],
      'local-cluster[2,1,1024] has 2 slots, but 3 trials run at the same time',
    ),
  ],
)
def test_what_cannot_work_on_spark_is_refused(set_flags, flags, message):
  set_flags('--num_ps=0', '--num_workers=1', '--runner=spark', *flags)
  plan = sweep.make_plan(['a=1,2,3,4'], [])
  with pytest.raises(cli.UsageError) as error:
    sweep.check_spark(plan)
  assert message in str(error.value)


def test_a_relative_path_of_a_trial_is_refused(set_flags):
  set_flags(
    *('--num_ps=0', '--num_workers=1', '--runner=spark', '--master=local')
  )
  for words, given in (
    (['a=1'], ['--data_dir=x']),
    (['data_dir=x'], ['--a=1']),
  ):
    with pytest.raises(cli.UsageError, match='--data_dir=x is relative'):
      sweep.check_spark(sweep.make_plan(words, given))


@pytest.mark.parametrize(
  ('flags', 'message'),
  [
    (['--runner=spark', '--launcher=ssh'], 'exclude each other'),
    (['--runner=spark', '--gpus=1'], '--gpus is for trials on this machine'),
    (['--master=yarn'], '--master is for --runner=spark'),
    (['--spark_conf=spark.a=b'], '--spark_conf is for --runner=spark'),
  ],
)
def test_flags_of_another_runner_are_refused(set_flags, flags, message):
  set_flags(*flags)
  with pytest.raises(cli.UsageError, match=message):
    sweep.check_runner_flags()


def test_a_trial_has_the_cores_of_its_slot(set_flags):
  flags = ['--runner=spark', '--num_ps=0', '--num_workers=1']
  set_flags(*flags, '--master=local-cluster[2,4,1024]')
  assert sweep.count_cores(2) == 1
  assert sweep.find_num_parallel(99) == 8
  assert sweep.find_num_parallel(3) == 3
  set_flags(*flags, '--master=yarn', '--spark_conf=spark.task.cpus=3')
  assert sweep.count_cores(2) == 3
  set_flags(*flags, '--master=yarn', '--spark_conf=spark.task.cpus=x')
  with pytest.raises(cli.UsageError, match='expected a number of cores'):
    sweep.count_cores(2)


def test_spark_does_not_start_a_trial_again_by_itself(set_flags):
  set_flags('--runner=spark', f'--master={CLUSTER}')
  conf = sweep.get_spark_conf(2)
  assert conf['spark.task.maxFailures'] == '1'
  assert conf['spark.executor.instances'] == '2'


# ---- A real Spark ----


@pytest.fixture
def real_spark():
  if importlib.util.find_spec('pyspark') is None:
    pytest.skip('no pyspark: pip install .[spark]')
  if not (os.environ.get('JAVA_HOME') or shutil.which('java')):
    pytest.skip('no Java: Spark needs Java 17')


def slow(test):
  return pytest.mark.slow(pytest.mark.timeout(600)(test))


class Running(sweep_test.Running):
  """A sweep on Spark in the background."""

  def __init__(self, folder, *words, **settings):
    super().__init__(
      folder, '--runner=spark', f'--master={CLUSTER}', *words, **settings
    )

  def __exit__(self, *error):
    found = self.all_processes() if self.process.poll() is None else []
    super().__exit__(*error)
    for process in found:
      with contextlib.suppress(psutil.NoSuchProcess):
        process.kill()


def find_executor(pid):
  """The JVM above a trial's process."""
  return next(
    parent
    for parent in psutil.Process(pid).parents()
    if 'CoarseGrainedExecutorBackend' in ' '.join(parent.cmdline())
  )


def is_there(folder, name):
  with contextlib.suppress(FileNotFoundError, ValueError):
    return bool(int((folder / name).read_text()))
  return False


@pytest.fixture
def two_gpus(tmp_path):
  """Settings for two executors that believe to have a GPU each."""
  script = tmp_path / 'gpus.sh'
  script.write_text(
    '#!/bin/sh\necho \'{"name": "gpu", "addresses": ["4", "7"]}\'\n'
  )
  script.chmod(0o755)
  return [
    '--spark_conf=spark.worker.resource.gpu.amount=1',
    f'--spark_conf=spark.worker.resource.gpu.discoveryScript={script}',
    '--spark_conf=spark.executor.resource.gpu.amount=1',
    '--spark_conf=spark.task.resource.gpu.amount=1',
  ]


@slow
def test_halving_on_spark_with_a_failure_and_a_divergence(
  real_spark, two_gpus, tmp_path
):
  # The first two wait for each other: they run at the same time.
  do = (
    'do=all:print=ran,touch=a,wait=worker0.b,env=CUDA_VISIBLE_DEVICES,'
    'report=0.4;'
    'all:print=ran,touch=b,wait=worker0.a,report=0.3;'
    f'all:error=the_disk_is_full;{sweep_test.DIVERGES};all:print=ran,report=0.2'
  )
  words = [do, '--halving=2']
  done = run(tmp_path, *words, *two_gpus, '--', '--train_steps=8')
  assert done.returncode == 1, done.stderr
  assert sweep_test.last_line(done.stderr).startswith(
    'distmnist.sweep: error: trial 03 (do=all:error=the_disk_is_full) failed:'
    ' the disk is full; log: '
  )
  assert sweep_test.read_states(tmp_path) == [
    *('done', 'dropped', 'failed', 'diverged', 'dropped')
  ]
  results = sweep_test.read_trial(tmp_path, '01')['results']
  assert [r['global_step'] for r in results] == [2, 4, 8]
  assert [row['trial'] for row in sweep_test.read_table(done)][:2] == [
    *('01', '02')
  ]
  assert sweep_test.count_runs(tmp_path) == [3, 2, 0, 0, 1]
  log = (tmp_path / 'sweep' / 'trials' / '01' / 'log').read_text()
  assert log.splitlines()[1] in [
    f"CUDA_VISIBLE_DEVICES='{gpu}'" for gpu in (4, 7)
  ]
  # With another runner it is the same sweep: nothing is left to be done.
  again = sweep_test.run(tmp_path, *words, '--', '--train_steps=8')
  assert 'all have ended' in again.stderr
  assert again.stdout == done.stdout


@slow
def test_a_killed_executor_costs_its_trial_nothing_that_was_saved(
  real_spark, tmp_path
):
  words = [
    *('learning_rate=0.01,0.1', '--', *SMALL, '--optimizer=sgd'),
    *('--train_steps=3000', '--save_steps=100'),
  ]
  trials = tmp_path / 'sweep' / 'trials'
  with Running(tmp_path, *words, module='distmnist.train') as running:
    running.wait_until(
      lambda: list(trials.glob('01/run/model.ckpt-*.index')), DEADLINE_SECS
    )
    victim = next(
      p
      for p in running.all_processes()
      if f'--logdir={trials}/01/run' in p.cmdline()
    )
    executor = find_executor(victim.pid)
    executor.kill()
    assert running.process.wait(DEADLINE_SECS) == 0, running.stderr.read_text()
    said = running.stderr.read_text()
  assert f'(pid {executor.pid}), has died: restart 1 of 3, from its' in said
  assert 'trial 02: ' not in said
  assert sweep_test.read_states(tmp_path) == ['done', 'done']
  first, again = (trials / '01' / 'log').read_text().split('- restart 1 -')
  assert 'SIGTERM: saving and stopping' in first
  assert f'restored {trials}/01/run/model.ckpt-' in again
  assert 'restored' not in (trials / '02' / 'log').read_text()
  for name in ('01', '02'):
    (result,) = sweep_test.read_trial(tmp_path, name)['results']
    assert result['global_step'] == 3000


@slow
def test_ctrl_c_has_the_trials_save_and_leaves_nothing(real_spark, tmp_path):
  words = [
    'do=all:print=ran,report=0.5;all:print=ran,leave=a;all:print=ran,leave=b'
  ]
  with Running(tmp_path, *words) as running:
    running.wait_until(
      lambda: all(is_there(tmp_path, f'worker0.{name}') for name in 'ab'),
      DEADLINE_SECS,
    )
    processes = running.all_processes()
    assert len(processes) > 8  # JVMs, Python processes, agents, trials
    running.process.send_signal(signal.SIGINT)
    assert running.process.wait(DEADLINE_SECS) == 130
    sweep_test.assert_gone(processes, 5)
  assert sweep_test.read_states(tmp_path) == ['done', 'stopped', 'stopped']
  assert 'the same command goes on' in running.stderr.read_text()
  for name in ('02', '03'):
    log = tmp_path / 'sweep' / 'trials' / name / 'log'
    assert log.read_text() == 'ran\nleaving on 15\n'


@slow
def test_a_cluster_is_a_trial_on_one_executor(real_spark, tmp_path):
  do = 'all:touch=x,report=0.5;worker1:error=boom'
  done = run(
    *(tmp_path, f'do={do}', '--num_ps=1', '--num_workers=2', '--isolate=off')
  )
  assert done.returncode == 1, done.stderr
  assert sweep_test.read_states(tmp_path) == ['done', 'failed']
  assert sweep_test.read_trial(tmp_path, '02')['cause'] == 'boom'
  logs = tmp_path / 'sweep' / 'trials' / '01' / 'logs'
  assert sorted(path.name for path in logs.iterdir()) == [
    *('ps_0.log', 'worker_0.log', 'worker_1.log')
  ]


@slow
def test_after_kill_9_the_next_sweep_waits_until_the_trials_are_gone(
  real_spark, tmp_path
):
  do = 'all:print=ran,deaf,touch=on,wait=go,report=0.7;all:report=0.5'
  words = [f'do={do}']
  with Running(tmp_path, *words) as running:
    running.wait_until(lambda: is_there(tmp_path, 'worker0.on'), DEADLINE_SECS)
    # What a trial says comes within a tenth of a second; then it has no driver.
    running.wait_until(lambda: sweep_test.count_runs(tmp_path)[:1] == [1])
    processes = running.all_processes()
    trial = psutil.Process(int((tmp_path / 'worker0.on').read_text()))
    running.process.kill()
    running.process.wait()
  with sweep_test.Running(tmp_path, *words) as running:
    running.wait_until(lambda: 'waiting for' in running.stderr.read_text())
    assert not sweep_test.has_ended(trial)  # It has some seconds to save.
    sweep_test.assert_gone(processes, 20)
    (tmp_path / 'go').touch()
    assert running.process.wait(60) == 0
  assert 'trials of a sweep that was killed' in running.stderr.read_text()
  assert sweep_test.count_runs(tmp_path) == [2, 0]
