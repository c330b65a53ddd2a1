"""The driver's side, with the test in the place of the agents."""

import pytest

from distmnist.common import cli
from distmnist.spark import agent_server, desk
from tests.support.desk_room import NAMES, SECRET, STOP


def test_all_go_together_and_leave_together(room):
  ps, chief = room.join('ps 0'), room.join('worker 0')
  assert room.desk.missing == ['worker 1']
  assert room.read(chief, 0) == []
  agents = [ps, chief, room.join('worker 1')]
  assert [room.read(agent) for agent in agents] == [[{'go': True}]] * 3
  assert room.desk.missing == []
  chief.send(end=0, report={'test_accuracy': 0.9})
  agents[2].send(end=0)
  assert room.read(chief, 0) == []
  assert not room.desk.is_over
  ps.send(end=0)
  assert [room.read(agent) for agent in agents] == [[{'leave': True}]] * 3
  assert room.desk.is_over
  assert room.desk.failure is None
  assert room.desk.report == {'test_accuracy': 0.9}


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
  assert (room.folder / 'worker_0.log').read_text() == 'one\ntwo\n'
  assert room.desk.last_lines('worker 1') == ['other']
  assert room.desk.last_lines('ps 0') == []


def test_after_a_failure_the_workers_are_stopped_before_the_ps(room):
  agents = room.join_all()
  for agent in agents.values():
    room.read(agent)
  agents['worker 1'].send(lines=['no more memory'], end=-9)
  assert room.read(agents['worker 0']) == [STOP]
  assert room.read(agents['ps 0'], 0) == []
  agents['worker 0'].send(end=None)
  assert room.read(agents['ps 0']) == [STOP]
  assert not room.desk.is_over
  agents['ps 0'].send(end=None)
  for agent in agents.values():
    assert room.read(agent) == [{'leave': True}]
  assert room.desk.is_over
  log = room.folder / 'worker_1.log'
  assert room.desk.failure.exit_code == 137
  assert str(room.desk.failure) == (
    f'worker 1 (127.0.0.1:2222) failed first: killed by SIGKILL; log: {log}'
  )


def test_the_first_of_two_failures_is_the_cause(room):
  agents = room.join_all()
  agents['worker 1'].send(end=5)
  assert room.read(agents['worker 0'], 2) == [{'go': True}, STOP]
  agents['worker 0'].send(end=3)
  # The desk has heard that both workers have ended.
  assert room.read(agents['ps 0'], 2) == [{'go': True}, STOP]
  assert room.desk.failure.name == 'worker 1'
  assert room.desk.failure.cause == 'exit code 5'


def test_a_lost_executor_is_named_and_its_task_still_saves(room):
  agents = room.join_all()
  for agent in agents.values():
    room.read(agent)
  agents['worker 0'].send(lost='its executor, 127.0.0.1 (pid 7), has died')
  assert room.read(agents['worker 0']) == [STOP]
  assert room.read(agents['ps 0'], 0) == []
  assert room.desk.failure.exit_code == cli.LOST
  assert '(pid 7), has died' in str(room.desk.failure)


def test_a_connection_that_ends_is_a_lost_executor(room):
  agents = room.join_all()
  agents['ps 0'].close()
  room.turn_until(lambda: room.desk.failure)
  assert room.desk.failure.name == 'ps 0'
  assert room.desk.failure.cause == (
    'no word from it any more; its executor was 127.0.0.1 (pid 7)'
  )


def test_the_next_attempt_starts_anew(room):
  agents = room.join_all()
  agents['worker 1'].send(end=3)
  room.turn_until(lambda: room.desk.failure)
  agents['worker 0'].send(end=None)
  agents['ps 0'].send(end=None)
  room.turn_until(lambda: room.desk.is_over)
  assert room.desk.begin() == 2
  assert (room.desk.failure, room.desk.is_over) == (None, False)
  assert room.desk.missing == NAMES
  again = room.join_all(attempt=2)
  assert room.read(again['ps 0']) == [{'go': True}]
  again['worker 0'].send(lines=['new'], end=4)
  room.turn_until(lambda: room.desk.failure)
  log = (room.folder / 'worker_0.log').read_text()
  assert log == '--- restart 1 ---\nnew\n'
  assert room.desk.last_lines('worker 0') == ['new']
  assert 'failed after 1 restart: exit code 4' in str(room.desk.failure)


def test_who_comes_too_late_may_leave(room):
  room.join('worker 0')
  room.desk.end_all()
  assert room.desk.is_over
  assert room.read(room.join('worker 1')) == [{'leave': True}]


def test_a_task_that_spark_starts_once_more_ends_the_attempt(room):
  agents = room.join_all()
  again = room.join('worker 1')
  assert room.read(again) == [{'leave': True}]
  assert room.desk.failure.cause == 'Spark has started it once more'
  assert room.read(agents['worker 0'], 2) == [{'go': True}, STOP]


def test_a_ps_that_stays_after_the_workers_is_stopped(room, monkeypatch):
  monkeypatch.setattr(agent_server, 'LEAVE_SECS', 0.01)
  agents = room.join_all()
  for name in ('worker 0', 'worker 1'):
    agents[name].send(end=0)
  messages = []
  while STOP not in messages:
    messages += room.read(agents['ps 0'])
  assert 'still ran 0.01 s after the last worker' in room.desk.failure.cause


def test_who_does_not_stop_in_time_is_let_go(room, monkeypatch):
  monkeypatch.setattr(room.desk._attempts[-1], 'stop_secs', 0.01)
  agents = room.join_all()
  room.desk.end_all()  # returns
  assert room.desk.is_over
  while agents['ps 0'].is_open:  # by this the agent ends its task
    agents['ps 0'].receive(5)


def test_a_second_interrupt_stops_at_once(room, monkeypatch):
  agents = room.join_all()
  turns = iter([None, KeyboardInterrupt()])
  turn = room.desk.turn

  def interrupt(secs):
    turn(secs)
    if error := next(turns):
      raise error

  monkeypatch.setattr(room.desk, 'turn', interrupt)
  with pytest.raises(KeyboardInterrupt):
    room.desk.end_all()
  monkeypatch.undo()
  for name in NAMES:
    assert room.read(agents[name], 3) == [{'go': True}, STOP, STOP], name


def test_an_address_that_is_not_ours_is_a_clear_error(tmp_path):
  with pytest.raises(cli.RunError, match='cannot listen on 192.0.2.77'):
    desk.Desk('192.0.2.77', SECRET, NAMES, str(tmp_path), print)
