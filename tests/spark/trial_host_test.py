"""The host of trials on Spark; the slow tests run a real local-cluster."""

import contextlib
import json
import math
import os
import signal
import threading
import time
from multiprocessing import connection

import psutil
import pytest

from distmnist.common import cli
from distmnist.spark import agent_host, executors, spark_job, trial_host
from distmnist.sweeps import runners
from tests.support import background, link_ends, sweeps
from tests.support.fake_spark import FakeSparkContext
from tests.support.runner import SMALL

CLUSTER = 'local-cluster[2,1,1024]'
DEADLINE_SECS = 240


# ---- With the test in place of Spark and of the agents ----
TOO_LONG = 'distmnist.sweep: error: not done within --trial_timeout_secs=0.05\n'


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


class Agent:
  """Says for an executor what the test wants."""

  def __init__(self, room, spec, executor='host-1 (pid 7)'):
    found = []

    def meet():
      found.append(link_ends.End.of_agent(*spec['driver'], spec['secret']))

    threading.Thread(target=meet).start()
    while not found:
      room.turn()
    self._room, self.link = room, found[0]
    self.port = self.link.link._socket.getsockname()[1]
    self.send(hello=spec['name'], executor=executor)
    room.turn()

  def send(self, **message):
    self._room.unheard.append(self.port)
    self.link.send(**message)

  def close(self):
    if self.link.is_open:
      self._room.unheard.append(self.port)
    self.link.close()

  def read(self):
    """Returns what was said to it since."""
    messages, new = [], True
    while new:
      new = self.link.receive(0.01)
      messages += new
    return messages


class Room:
  """A runner, its host's jobs, and the agents that the test lets in."""

  def __init__(self, folder, host, caplog):
    self.agents = []
    # What agents have sent and the server has not heard, by the agent's port.
    self.unheard, self._ports, self._ended = [], {}, set()
    hear = host._server._hear

    def note(link, message):
      if link not in self._ports:
        self._ports[link] = link._socket.getpeername()[1]
      hear(link, message)
      port = self._ports[link]
      if message is None:  # Nothing more is heard of what was sent.
        self._ended.add(port)
      elif port in self.unheard:
        self.unheard.remove(port)

    host._server._hear = note
    self._caplog = caplog
    self.folder = folder
    self.host = host
    self.runner = runners.Runner(host, grace_secs=60)

  @property
  def said(self):
    return self._caplog.messages

  def start(self, name, *flags, limit_secs=math.inf):
    argv = ['python', '-m', 'distmnist.train', *flags]
    log = str(self.folder / f'{name}.log')
    return self.runner.start(
      runners.Command(name, argv, log, {'A': 'b'}, limit_secs)
    )

  def job(self, name):
    return self.host._starts[name].job

  def join(self, name):
    """Lets the agent of a trial come; returns it."""
    return self.meet(self.job(name).spec)

  def meet(self, spec, **hello):
    self.agents.append(Agent(self, spec, **hello))
    return self.agents[-1]

  def turn(self):
    """Hears what there is; returns what has ended."""
    ended = []
    for _ in range(3):
      if not self.runner._running:
        break
      # What agents have sent comes by threads of the server's.
      deadline = time.monotonic() + 60
      while {*self.unheard} - self._ended:
        assert time.monotonic() < deadline, self.unheard
        connection.wait([self.host._server._wake], 0.01)
      self.host._server.wake()
      ended += self.runner._turn()
    return ended

  def log(self, name):
    return (self.folder / f'{name}.log').read_text()


@pytest.fixture
def room(tmp_path, monkeypatch, caplog):
  monkeypatch.setattr(executors, 'count_slots', lambda _: 2)
  monkeypatch.setattr(spark_job, 'Job', FakeJob)
  monkeypatch.setattr(agent_host, 'KILL_SECS', 0.1)
  monkeypatch.setattr(runners, '_KILL_SECS', 0.3)
  monkeypatch.setattr(trial_host, '_TICK_SECS', 0.01)
  with open(tmp_path / 'lock', 'a+') as lock:
    made = trial_host.TrialHost(FakeSparkContext(), lock, 60.0, 0.1)
    with made as host:
      room = Room(tmp_path, host, caplog)
      yield room
  for agent in room.agents:
    agent.link.close()


def test_lines_code_and_report_come_back(room):
  (room.folder / '01.log').write_text('before\n')
  (room.folder / 'run').mkdir()
  assert room.start('01', f'--logdir={room.folder}/run') == len('before\n')
  spec = room.job('01').spec
  assert spec['argv'][:3] == ['python', '-m', 'distmnist.train']
  assert spec['env'] == {'A': 'b'}
  path, word = spec['lock']
  with open(path) as lock:
    assert (lock.name, lock.read()) == (str(room.folder / 'lock'), word)
  agent = room.join('01')
  assert agent.read() == [{'go': True}]
  agent.send(lines=['one', 'two'])
  agent.send(end=0, report={'test_accuracy': 0.5})
  assert room.turn() == []
  assert agent.read() == [{'leave': True}]
  agent.close()
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
    agent.send(end=code)
    agent.close()
    room.job(name).end()
    assert room.turn() == [(name, code)]
  assert room.said == []


def test_a_lost_executor_concerns_its_own_trial(room):
  room.start('01')
  room.start('02')
  agents = {name: room.join(name) for name in ('01', '02')}
  first, other = room.job('01'), agents['02']
  agents['01'].read(), other.read()
  agents['01'].send(lost='its executor, host-1 (pid 7), has died')
  room.turn()
  assert agents['01'].read() == [{'stop': signal.SIGTERM}]
  first.end(ValueError('lost'))
  room.turn()
  # It still saves: no other may train in its folder.
  assert room.job('01') is first and room.said == []
  agents['01'].send(end=None)
  room.turn()
  agents['01'].close()
  room.turn()
  assert room.said == [
    'trial 01: its executor, host-1 (pid 7), has died: restart 1 of 3, from its'
    ' last checkpoint'
  ]
  again = room.job('01')
  assert again is not first
  assert again.spec['env'] == {'A': 'b', 'DISTMNIST_ATTEMPT': '2'}
  assert again.spec['name'] != first.spec['name']
  assert room.join('01').read() == [{'go': True}]
  assert room.log('01') == '--- restart 1 ---\n'
  assert other.read() == []


def test_a_connection_that_ends_waits_for_the_word_of_spark(room):
  room.start('01')
  room.join('01').close()
  assert room.turn() == []
  assert room.said == []
  room.job('01').end(ValueError('exit code -9'))
  room.turn()
  assert room.job('01').spec['env']['DISTMNIST_ATTEMPT'] == '2'
  assert 'lost connection to its executor host-1 (pid 7)' in room.said[0]


def test_a_trial_that_is_lost_again_and_again_has_failed(room):
  room.start('01')
  error = ValueError(
    'ExecutorLostFailure (executor 1 exited caused by one of the running tasks)'
    ' Reason: Command exited with code 137'
  )
  for _ in range(runners.MAX_RESTARTS):
    room.job('01').end(error)
    assert room.turn() == []
  room.job('01').end(error)
  assert room.turn() == [('01', cli.LOST)]
  assert room.log('01').splitlines()[-1] == (
    'distmnist.sweep: error: executor 1 was lost before its task began: Command'
    ' exited with code 137; this was restart 3 of 3'
  )


@pytest.mark.parametrize(
  'code, ended, log', [(143, 1, TOO_LONG), (None, 1, TOO_LONG), (0, 0, '')]
)
def test_a_trial_that_takes_too_long_is_told_to_leave(room, code, ended, log):
  room.start('01', limit_secs=0.05)
  agent = room.join('01')
  messages = agent.read()
  while len(messages) < 2:  # Its time begins with its agent.
    room.turn()
    messages += agent.read()
  assert messages == [{'go': True}, {'stop': signal.SIGTERM}]
  agent.send(end=code)
  agent.close()
  room.job('01').end()
  assert room.turn() == [('01', ended)]
  assert room.log('01') == log


def test_a_trial_that_waits_for_an_executor_takes_no_time(room):
  room.start('01', limit_secs=0.0)
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
  monkeypatch.setattr(executors, 'count_slots', refuse)
  with pytest.raises(cli.RunError, match='Spark has stopped'):
    room.start('02')
  room.job('01').end(ValueError('Connection refused'))
  with pytest.raises(cli.RunError, match='Spark has stopped'):
    room.runner.wait()


def test_a_folder_that_is_not_shared_ends_the_sweep(room):
  room.start('01')
  agent = room.join('01')
  agent.send(refused='host-1 does not share /x: No such file')
  with pytest.raises(cli.RunError, match='not share /x: .* --sweep_dir has to'):
    room.runner.wait()
  assert agent.read() == [{'go': True}, {'leave': True}]


def test_a_start_is_for_one_agent(room):
  room.start('01')
  old = room.job('01').spec
  first, second = room.join('01'), room.join('01')
  assert first.read() == [{'go': True}]
  assert second.read() == [] and not second.link.is_open
  first.close()
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
  room.host._wait_secs = 0.2
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
  agent.send(lost='Spark has ended its Python process on host-1')
  agent.send(end=None)
  agent.send()
  room.job('01').end()
  turn = room.runner._turn

  def leave_when_told(secs):
    if {'leave': True} in agent.read():
      agent.close()
    return turn(secs)

  room.runner._turn = leave_when_told
  ended = room.runner.stop(5)
  assert sorted(ended) == [('01', -15), ('02', -15)]
  assert waiting.is_cancelled


def test_who_does_not_stop_in_time_is_killed_then_left(room):
  room.start('01')
  agent = room.join('01')
  agent.read()
  assert room.runner.stop(0.1) == [('01', -signal.SIGKILL)]
  assert agent.read() == [{'stop': signal.SIGTERM}] * 2


def test_a_host_that_closes_early_has_its_trials_save(room, monkeypatch):
  monkeypatch.setattr(room.host, '_stop_secs', 60)
  room.start('01')
  room.start('02')
  agent, waiting = room.join('01'), room.job('02')
  agent.read()
  agent.send(end=None)
  room.job('01').end()
  poll = room.host.poll

  def leave_when_told(secs):
    if {'stop': signal.SIGTERM} in agent.read():
      agent.close()
    return poll(secs)

  monkeypatch.setattr(room.host, 'poll', leave_when_told)
  room.host._stop()
  assert room.host._left == set() and waiting.is_cancelled


# ---- The command line ----


def run(folder, *words, master=CLUSTER, **settings):
  return sweeps.run_fresh(
    folder, '--runner=spark', f'--master={master}', *words, **settings
  )


# ---- A real Spark ----


def slow(test):
  return pytest.mark.slow(pytest.mark.timeout(600)(test))


class Running(sweeps.Running):
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


def read_command(process):
  """Returns the words of a process, [] if it has ended meanwhile."""
  with contextlib.suppress(psutil.Error):
    return process.cmdline()
  return []


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


@slow
def test_halving_on_spark_with_a_failure_and_a_divergence(
  real_spark, two_gpus, tmp_path
):
  # The first two wait for each other: they run at the same time.
  do = (
    'do=all:print=ran,touch=a,wait=worker0.b,env=CUDA_VISIBLE_DEVICES,'
    'report=0.4;'
    'all:print=ran,touch=b,wait=worker0.a,report=0.3;'
    f'all:error=the_disk_is_full;{sweeps.DIVERGES};all:print=ran,report=0.2'
  )
  words = [do, '--halving=2']
  done = run(tmp_path, *words, *two_gpus, '--', '--train_steps=8')
  assert done.returncode == 1, done.stderr
  assert background.last_line(done.stderr).startswith(
    'distmnist.sweep: error: trial 03 (do=all:error=the_disk_is_full) failed:'
    ' the disk is full; log: '
  )
  assert sweeps.read_states(tmp_path) == [
    *('done', 'dropped', 'failed', 'diverged', 'dropped')
  ]
  results = sweeps.read_trial(tmp_path, '01')['results']
  assert [r['global_step'] for r in results] == [2, 4, 8]
  assert [row['trial'] for row in sweeps.read_table(done)][:2] == [
    *('01', '02')
  ]
  assert sweeps.count_runs(tmp_path) == [3, 2, 0, 0, 1]
  log = (tmp_path / 'sweep' / 'trials' / '01' / 'log').read_text()
  assert log.splitlines()[1] in [
    f"CUDA_VISIBLE_DEVICES='{gpu}'" for gpu in (4, 7)
  ]
  # With another runner it is the same sweep: nothing is left to be done.
  again = sweeps.run(tmp_path, *words, '--', '--train_steps=8')
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
      if f'--logdir={trials}/01/run' in read_command(p)
    )
    executor = find_executor(victim.pid)
    executor.kill()
    assert running.process.wait(DEADLINE_SECS) == 0, running.stderr.read_text()
    said = running.stderr.read_text()
  assert f'(pid {executor.pid}), has died: restart 1 of 3, from its' in said
  assert 'trial 02: ' not in said
  assert sweeps.read_states(tmp_path) == ['done', 'done']
  first, again = (trials / '01' / 'log').read_text().split('- restart 1 -')
  assert 'SIGTERM: saving and stopping' in first
  assert f'restored {trials}/01/run/model.ckpt-' in again
  assert 'restored' not in (trials / '02' / 'log').read_text()
  for name in ('01', '02'):
    (result,) = sweeps.read_trial(tmp_path, name)['results']
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
    background.assert_gone(processes)
  assert sweeps.read_states(tmp_path) == ['done', 'stopped', 'stopped']
  assert 'the same command goes on' in running.stderr.read_text()
  for name in ('02', '03'):
    log = tmp_path / 'sweep' / 'trials' / name / 'log'
    assert log.read_text() == 'ran\nleaving on 15\n'


@slow
def test_a_cluster_is_a_trial_on_one_executor(real_spark, tmp_path):
  sweeps.check_clusters(run, tmp_path)


@slow
def test_after_kill_9_the_next_sweep_waits_until_the_trials_are_gone(
  real_spark, tmp_path
):
  do = 'all:print=ran,deaf,touch=on,wait=go,report=0.7;all:report=0.5'
  words = [f'do={do}']
  with Running(tmp_path, *words) as running:
    running.wait_until(lambda: is_there(tmp_path, 'worker0.on'), DEADLINE_SECS)
    # What a trial says comes within a tenth of a second; then it has no driver.
    running.wait_until(lambda: sweeps.count_runs(tmp_path)[:1] == [1])
    processes = running.all_processes()
    trial = psutil.Process(int((tmp_path / 'worker0.on').read_text()))
    running.process.kill()
    running.process.wait()
  with sweeps.Running(tmp_path, *words) as running:
    running.wait_until(lambda: 'waiting for' in running.stderr.read_text())
    assert not background.has_ended(trial)  # It has some seconds to save.
    background.assert_gone(processes)
    (tmp_path / 'go').touch()
    assert running.process.wait(60) == 0
  assert 'trials of a sweep that was killed' in running.stderr.read_text()
  assert sweeps.count_runs(tmp_path) == [2, 0]


def test_what_a_trial_has_said_stays_though_its_agent_then_hangs(room):
  room.start('01')
  agent = room.join('01')
  agent.send(end=0)
  assert room.turn() == []  # Spark still has its task.
  assert room.runner.stop(0.1) == [('01', 0)]
