"""The driver's side, with the test in the place of the agents."""

import signal
import socket
import time

import pytest

from distmnist import cli, handshake, json_lines, spark_desk

SECRET = 'secret'
NAMES = ['ps 0', 'worker 0', 'worker 1']
STOP = {'stop': signal.SIGTERM}
# What is sent may take its time to arrive, on this machine too.
DEADLINE_SECS = 60


class Room:
  """A desk and who reports to it."""

  def __init__(self, folder):
    self.shown = []
    self.folder = folder
    self.desk = spark_desk.Desk(
      '127.0.0.1', SECRET, NAMES, str(folder), self.show
    )
    self.desk.begin()
    self.opened = []

  def show(self, name, line):
    self.shown.append((name, line))

  def connect(self, secret=SECRET):
    connection = json_lines.Connection(
      socket.create_connection(('127.0.0.1', self.desk.port))
    )
    self.opened.append(connection)
    (message,) = self.read(connection)
    agent = handshake.Agent(secret)
    connection.send(**agent.answer(message))
    if secret == SECRET:
      (message,) = self.read(connection)
      assert agent.is_driver(message)
      connection.secure(agent.key, 'agent', 'driver')
    return connection

  def greet(self, name, attempt=1, **other):
    connection = self.connect()
    hello = {
      'hello': name,
      'attempt': attempt,
      'address': '127.0.0.1:2222',
      'executor': '127.0.0.1 (pid 7)',
    }
    connection.send(**{**hello, **other})
    return connection

  def join(self, name, attempt=1):
    connection = self.greet(name, attempt)
    self.turn_until(lambda: name not in self.desk.missing)
    return connection

  def join_all(self, attempt=1):
    return {name: self.join(name, attempt) for name in NAMES}

  def turn_until(self, is_so):
    # One thread is the desk and all who speak with it.
    deadline = time.monotonic() + DEADLINE_SECS
    while not is_so():
      assert time.monotonic() < deadline
      self.desk.turn(0.01)

  def read(self, agent, num_messages=1):
    """What the desk has said to an agent since, as a list.

    Waits for as many messages; more may have come.
    """
    messages = []

    def is_enough():
      messages.extend(agent.receive())
      return len(messages) >= num_messages

    self.turn_until(is_enough)
    for _ in range(3):
      self.desk.turn(0.01)
    return messages + agent.receive()

  def read_to_the_end(self, agent):
    """What the desk has said until it closed the connection, as a list."""
    messages = []

    def is_closed():
      messages.extend(agent.receive())
      return not agent.is_open

    self.turn_until(is_closed)
    return messages


@pytest.fixture
def room(tmp_path, monkeypatch):
  # Nothing is late unless a test wants it so.
  for name in ('HELLO_SECS', 'LEAVE_SECS', 'STOP_MARGIN_SECS'):
    monkeypatch.setattr(spark_desk, name, 600)
  room = Room(tmp_path)
  with room.desk:
    yield room
  for connection in room.opened:
    connection.close()


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
  monkeypatch.setattr(spark_desk, 'LEAVE_SECS', 0.01)
  agents = room.join_all()
  for name in ('worker 0', 'worker 1'):
    agents[name].send(end=0)
  messages = []
  while STOP not in messages:
    messages += room.read(agents['ps 0'])
  assert 'still ran 0.01 s after the last worker' in room.desk.failure.cause


def test_who_does_not_stop_in_time_is_let_go(room, monkeypatch):
  monkeypatch.setattr(room.desk, '_stop_secs', 0.01)
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


@pytest.mark.parametrize('secret', ['another', ''])
def test_who_does_not_know_the_secret_is_sent_away(room, secret):
  stranger = room.connect(secret)
  stranger.send(
    hello='worker 0', attempt=1, address='a:1', executor='somewhere'
  )
  assert room.read_to_the_end(stranger) == []
  assert room.desk.missing == NAMES


@pytest.mark.parametrize(
  'wrong',
  [
    {'hello': 'worker 7'},
    {'hello': ['worker 0']},
    {'attempt': 0},
    {'attempt': 2},
    {'attempt': True},
    {'address': 'a:1\nfake line'},
    {'address': None},
    {'executor': '\x1b[2J'},
  ],
)
def test_a_hello_that_makes_no_sense_is_refused(room, wrong):
  connection = room.greet('worker 0', **wrong)
  assert room.read_to_the_end(connection) == []
  assert room.desk.missing == NAMES


def test_strangers_have_little_time(room, monkeypatch):
  monkeypatch.setattr(spark_desk, 'HELLO_SECS', 0.01)
  silent = json_lines.Connection(
    socket.create_connection(('127.0.0.1', room.desk.port))
  )
  room.opened.append(silent)
  (message,) = room.read_to_the_end(silent)
  assert list(message) == ['challenge']


def test_an_address_that_is_not_ours_is_a_clear_error(tmp_path):
  with pytest.raises(cli.RunError, match='cannot listen on 192.0.2.77'):
    spark_desk.Desk('192.0.2.77', SECRET, NAMES, str(tmp_path), print)


def test_more_agents_than_places_wait_in_the_queue(room):
  def connect():
    address = '127.0.0.1', room.desk.port
    return json_lines.Connection(socket.create_connection(address))

  agents = [connect() for _ in range(320)]
  room.opened += agents
  answered = []

  def is_done():
    for connection in agents:
      if connection not in answered and (message := connection.receive()):
        connection.send(**handshake.Agent(SECRET).answer(message[0]))
        connection.send(nonsense=1)  # he makes room for the next
        answered.append(connection)
    return len(answered) == 320

  room.turn_until(is_done)


def test_idle_strangers_of_one_address_make_room_soon(room, monkeypatch):
  monkeypatch.setattr(spark_desk, '_HURRIED_HELLO_SECS', 1.0)
  for _ in range(256):
    address = '127.0.0.1', room.desk.port
    room.opened.append(json_lines.Connection(socket.create_connection(address)))
  for _ in range(300):
    room.desk.turn(0)
  start = time.monotonic()
  room.join('ps 0')
  assert time.monotonic() - start < spark_desk.HELLO_SECS
