"""The host of executors, with the test in place of the agents."""

import signal
import time

import pytest

from distmnist.common import cli
from distmnist.launching import host as host_lib
from distmnist.launching.supervisor import restart_policy, task_group
from distmnist.spark import agent_host, executor_host, spark_job
from tests.support import host_room
from tests.support.host_room import NAMES, STOP, TASKS

LEAVE = {'leave': True}


def test_all_start_together_and_leave_together(room):
  room.start_all()
  assert room.jobs[0].is_started
  ps, chief = room.join('ps 0'), room.join('worker 0')
  assert room.read(chief, 0) == []
  assert not room.host.is_ready
  agents = [ps, chief, room.join('worker 1')]
  assert [room.read(agent) for agent in agents] == [[{'go': True}]] * 3
  assert room.host.is_ready
  chief.send(end=0, report={'test_accuracy': 0.9})
  assert room.next_event() == ('worker 0', 0)
  agents[2].send(end=0)
  assert room.read(chief, 0) == []
  ps.send(end=0)
  assert [room.read(agent) for agent in agents] == [[LEAVE]] * 3
  assert sorted(room.events) == [('ps 0', 0), ('worker 1', 0)]
  assert room.host.report == {'test_accuracy': 0.9}
  assert room.host.reasons == {}


def test_a_job_is_submitted_once_all_tasks_were_asked_for(room):
  for name in NAMES:
    assert room.jobs == []
    room.host.start(host_lib.Request(name, [], {}, 'log'))
  assert len(room.jobs) == 1


def test_lines_go_to_a_log_a_task_and_are_shown(room):
  agents = room.join_all()
  agents['worker 0'].send(lines=['one', 'two'])
  agents['worker 1'].send(lines=['other'])
  room.turn_until(lambda: len(room.shown) == 3)
  assert sorted(room.shown) == [
    ('worker 0', 'one'),
    ('worker 0', 'two'),
    ('worker 1', 'other'),
  ]
  assert (room.folder / 'worker 0.log').read_text() == 'one\ntwo\n'


@pytest.mark.parametrize(
  ('end', 'code', 'reason'),
  [
    (5, 5, ''),
    (-9, -9, ''),
    *[
      (end, cli.LOST, 'stopped by a signal that the driver did not send')
      for end in (None, True, 256, -65)
    ],
  ],
)
def test_an_end_has_its_code_and_its_reason(room, end, code, reason):
  agents = room.join_all()
  agents['worker 1'].send(end=end)
  assert room.next_event() == ('worker 1', code)
  assert room.host.reasons.get('worker 1', '') == reason


def test_orders_to_stop_are_sent_once_and_the_second_is_to_stop_at_once(room):
  agents = room.join_all()
  room.host.signal(['worker 0', 'worker 1'], signal.SIGTERM)
  room.host.signal(['worker 0'], signal.SIGTERM)
  assert [room.read(agents[name]) for name in NAMES[1:]] == [[STOP]] * 2
  room.host.signal(['worker 0', 'ps 0'], signal.SIGKILL)
  assert room.read(agents['worker 0']) == [STOP]
  assert room.read(agents['ps 0'], 2) == [STOP, STOP]
  agents['worker 1'].send(end=None)
  assert room.next_event() == ('worker 1', -signal.SIGTERM)


def test_a_lost_executor_is_told_while_its_task_still_saves(room):
  agents = room.join_all()
  lost = 'its executor, 127.0.0.1 (pid 7), has died'
  agents['worker 0'].send(lost=lost)
  assert room.next_event() == ('worker 0', None)
  assert room.host.reasons == {'worker 0': lost}
  room.host.signal(['worker 0'], signal.SIGTERM)
  assert room.read(agents['worker 0']) == [STOP]
  agents['worker 0'].send(end=None)
  assert room.next_event() == ('worker 0', -signal.SIGTERM)


def test_a_connection_that_ends_is_a_lost_executor(room):
  agents = room.join_all()
  agents['ps 0'].close()
  assert room.next_event() == ('ps 0', cli.LOST)
  assert room.host.reasons['ps 0'] == (
    'lost connection to its executor 127.0.0.1 (pid 7)'
  )


def test_the_next_attempt_starts_anew_once_there_are_slots(room):
  agents = room.join_all()
  for name in NAMES:
    agents[name].send(end=3)
    assert room.next_event() == (name, 3)
  assert room.num_waits == 0
  room.start_all()
  late = room.greet('worker 1', attempt=1)
  assert room.read_to_the_end(late) == []
  again = {name: room.join(name, attempt=2) for name in NAMES}
  assert room.jobs[0].is_gone and room.jobs[1].is_started
  assert room.num_waits == 1
  # What is left of the last attempt says nothing of this one.
  agents['worker 0'].close()
  again['worker 0'].send(end=4)
  assert room.next_event() == ('worker 0', 4)


def test_an_attempt_that_has_not_begun_is_given_up_at_once(room):
  room.start_all()
  agent = room.join('worker 0')
  room.host.signal(['worker 0'], signal.SIGTERM)
  assert room.read(agent) == [LEAVE]
  assert sorted(room.events) == [(name, -signal.SIGTERM) for name in NAMES]
  assert room.jobs[0].is_ours
  late = room.greet('worker 1')
  assert room.read_to_the_end(late) == []


def test_an_executor_that_is_lost_early_fails_a_task(room):
  room.start_all()
  room.join('ps 0').close()
  room.next_event()
  said = 'ExecutorLostFailure (executor 3 exited) Reason: code 137'
  room.jobs[0].error, room.jobs[0].has_ended = Exception(said), True
  assert room.next_event() == ('worker 0', cli.LOST)
  assert room.host.reasons['worker 0'].startswith('executor 3 was lost')


def test_a_task_that_spark_starts_once_more_is_lost(room):
  agents = room.join_all()
  again = room.greet('worker 1')
  assert room.read_to_the_end(again) == []
  assert room.next_event() == ('worker 1', None)
  assert room.host.reasons['worker 1'] == 'Spark has started it once more'
  assert agents['worker 1'].is_open


def test_an_agent_that_does_not_kill_its_task_is_dropped(room, monkeypatch):
  monkeypatch.setattr(agent_host, 'KILL_SECS', 0.01)
  agents = room.join_all()
  room.host.signal(['ps 0'], signal.SIGKILL)
  assert room.next_event() == ('ps 0', cli.LOST)
  while agents['ps 0'].is_open:  # once closed, the agent ends its task
    agents['ps 0'].receive(5)


def test_addresses_are_named_once_they_are_known(room):
  text = 'worker 1 (e-2:1) failed'
  assert room.host.locate(text) == text
  room.join_all()
  assert room.host.locate(text) == 'worker 1 (127.0.0.1:2224) failed'


def test_the_end_of_a_host_ends_what_still_runs(room):
  agents = room.join_all()
  room.close()
  for name in NAMES:
    messages = []
    while agents[name].is_open:
      messages += agents[name].receive(5)
    assert messages == [STOP, STOP]
  assert room.jobs[0].is_gone


def test_an_address_that_is_not_ours_is_a_clear_error(room):
  conf = {'spark.driver.host': '192.0.2.77'}
  with pytest.raises(cli.RunError, match='cannot listen on 192.0.2.77'):
    executor_host.ExecutorHost(TASKS, print, print, ('start', 1), conf, print)


@pytest.mark.parametrize('is_cancelled', [False, True])
def test_a_job_that_spark_gives_up_is_explained(room, is_cancelled):
  room.start_all()
  (job,) = room.jobs
  job.error, job.has_ended = Exception('no such class'), True
  job.is_cancelled = is_cancelled
  said = 'given up the job: no such class'
  with pytest.raises(cli.RunError, match=said):
    room.host.poll(0)
  with pytest.raises(cli.RunError, match=said):
    room.host.check_end(has_failed=False)
  if not is_cancelled:
    room.host.check_end(has_failed=True)
    return
  with pytest.raises(cli.RunError, match=said):
    room.host.check_end(has_failed=True)
  room.host.kill()
  with pytest.raises(cli.RunError, match=said):
    room.start_all()


def test_agents_have_some_time_to_say_what_has_happened(room, monkeypatch):
  room.join_all()
  (job,) = room.jobs
  job.error, job.has_ended = Exception('no such class'), True
  assert room.host.poll(0) == []
  monkeypatch.setattr(spark_job, 'END_SECS', -1.0)
  room.host._deadline = None
  with pytest.raises(cli.RunError, match='given up the job'):
    room.host.poll(0)


def test_tasks_that_spark_does_not_start_are_named(tmp_path):
  room = host_room.Room(tmp_path, start_secs=0.0)
  room.start_all()
  said = 'waited 0 s for Spark to start ps 0, worker 0, worker 1: are'
  with pytest.raises(cli.LostError, match=said):
    room.host.poll(0)
  room.close()


def test_nothing_submitted_is_nothing_to_end(room):
  room.host.kill()
  room.close()


class Obedient:
  """Agents that do as they are told, as the tick of a TaskGroup."""

  def __init__(self, room):
    self.room = room
    self.agents = {}
    self.attempt = 0
    self.told = []

  def __call__(self):
    if len(self.room.jobs) > self.attempt:
      self.attempt = len(self.room.jobs)
      for name in NAMES:
        self.agents[name] = self.room.join(name, self.attempt)
    for name, agent in self.agents.items():
      for message in agent.receive():
        if 'stop' in message:
          self.told.append(name)
          agent.send(end=None)


@pytest.mark.slow
def test_a_lost_task_ends_all_in_order_and_all_start_again(
  room, monkeypatch, caplog
):
  monkeypatch.setattr(restart_policy, 'FIRST_BACKOFF_SECS', 0)
  agents = Obedient(room)
  limits = restart_policy.Limits(1, restart_together=True)
  group = task_group.TaskGroup(
    room.host, str(room.folder), limits, on_tick=agents
  )
  with group:
    room._is_closed = True  # the group closes it
    for task in TASKS:
      group.start(task)
    while not room.host.is_ready:
      group.wait(TASKS, 0.1)
    agents.agents['worker 1'].send(lost='its executor has died')
    deadline = time.monotonic() + 60
    while agents.attempt < 2 or not room.host.is_ready:
      assert time.monotonic() < deadline
      group.wait(TASKS, 0.1)
    assert sorted(agents.told[:2]) == ['worker 0', 'worker 1']
    assert agents.told[2:] == ['ps 0']
    for name in ('worker 1', 'worker 0', 'ps 0'):
      agents.agents[name].send(end=0)
    assert group.wait(TASKS, 60) == []
    assert group.failure is None
  assert caplog.messages == [
    'worker 1 (e-2:1): its executor has died: restart 1 of 1 in 0 s, with all'
    ' other tasks'
  ]
  log = (room.folder / 'ps_0.log').read_text()
  assert log == '--- restart 1 of 1 ---\n'
