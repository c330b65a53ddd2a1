"""Messages: whole and in order, from whoever knows the secret, and no other."""

import fcntl
import json
import resource
import socket
import threading

import pytest

from distmnist.spark import messages as messages_lib
from distmnist.spark.messages import AGENT, DRIVER

SECRET = 'the secret of the run'


def connect():
  """Returns both ends of a connection by TCP."""
  with socket.create_server(('127.0.0.1', 0)) as listener:
    ours = socket.create_connection(listener.getsockname())
    return ours, listener.accept()[0]


def meet(*connections):
  """Has both ends read all by which they meet."""
  while any(c.is_open and not c.is_authenticated for c in connections):
    for connection in connections:
      assert connection.receive(0.01) == []


@pytest.fixture
def ends():
  """An agent's and a driver's Connection that have met, and their sockets."""
  ours, theirs = connect()
  agent = messages_lib.Connection(ours, SECRET, AGENT)
  driver = messages_lib.Connection(theirs, SECRET, DRIVER)
  meet(agent, driver)
  with ours, theirs:
    yield agent, driver, ours, theirs


def sign(connection, text):
  """Returns the line (bytes) by which it would send `text`, bytes."""
  number = next(connection._num_sent)
  signature = connection._sign(connection._me, number, text)
  return signature + b' ' + text + b'\n'


def receive_until(connection, is_enough):
  messages = []
  while connection.is_open and not is_enough(messages):
    messages += connection.receive(5)
  return messages


def test_messages_come_whole_and_in_order(ends):
  agent, driver, ours, _ = ends
  second = sign(agent, b'{"a": 1}'), sign(agent, b'{"b": "\xc3\xa9"}')
  ours.sendall(second[0] + second[1][:70])
  assert receive_until(driver, bool) == [{'a': 1}]
  assert driver.receive() == []
  ours.sendall(second[1][70:])
  assert receive_until(driver, bool) == [{'b': 'é'}]
  assert driver.is_open


def test_a_message_is_sent_as_one_line(ends):
  agent, _, _, theirs = ends
  agent.send(lines=['one\ntwo'])
  received = theirs.recv(200)
  assert received.count(b'\n') == 1
  assert json.loads(received.partition(b' ')[2]) == {'lines': ['one\ntwo']}


@pytest.mark.parametrize(
  'nonsense',
  [
    b'hello',
    b'[1]',
    b'\xff\xfe',
    b'[' * 900,
    b'"' + b'x' * 2000,
    b'{"a": "' + b'x' * 2000 + b'"}',
  ],
)
def test_nonsense_ends_the_connection_and_is_not_passed_on(
  ends, nonsense, monkeypatch
):
  monkeypatch.setattr(messages_lib, 'MAX_MESSAGE_BYTES', 1000)
  agent, driver, ours, _ = ends
  ours.sendall(sign(agent, b'{"good": 1}') + sign(agent, nonsense))
  assert receive_until(driver, lambda _: False) == [{'good': 1}]
  assert not driver.is_open
  assert driver.receive() == []


def test_the_end_of_the_other_is_seen(ends):
  agent, driver, *_ = ends
  agent.close()
  assert receive_until(driver, lambda _: False) == []
  driver.send(into='the void')  # no error
  assert not driver.is_open


def test_messages_come_in_both_directions(ends):
  agent, driver, *_ = ends
  for number in range(3):
    agent.send(lines=[number])
    driver.send(go=number)
  assert receive_until(driver, lambda m: len(m) == 3)[2] == {'lines': [2]}
  assert receive_until(agent, lambda m: len(m) == 3)[2] == {'go': 2}


@pytest.mark.parametrize(
  'forge',
  [
    lambda line: line.replace(b'1', b'2'),  # changed
    lambda line: line.partition(b' ')[2],  # from a peer without the key
    lambda line: line + line,  # said once more
    lambda line: b'',  # left out, before the next one
    lambda line: b'\xff' + line,
  ],
)
def test_who_stands_between_cannot_forge(ends, forge):
  agent, driver, ours, theirs = ends
  agent.send(code=11)
  agent.send(code=12)
  first, second = theirs.recv(1000).splitlines(keepends=True)
  ours.sendall(forge(first) + second)
  received = receive_until(driver, lambda _: False)
  assert not driver.is_open
  assert received == ([{'code': 11}] if forge(first) == first + first else [])


def test_what_was_sent_does_not_come_back(ends):
  agent, _, _, theirs = ends
  agent.send(stop=15)
  theirs.sendall(theirs.recv(1000))
  assert receive_until(agent, lambda _: False) == []


def test_each_connection_has_a_key_of_its_own(ends):
  ours, theirs = connect()
  with ours, theirs:
    agent = messages_lib.Connection(ours, SECRET, AGENT)
    driver = messages_lib.Connection(theirs, SECRET, DRIVER)
    meet(agent, driver)
    assert agent.is_authenticated and driver.is_authenticated
    assert agent._key == driver._key != ends[0]._key


@pytest.mark.parametrize('secrets', [(SECRET, 'other'), ('other', SECRET)])
def test_who_does_not_know_the_secret_is_accepted_by_nobody(secrets):
  ours, theirs = connect()
  with ours, theirs:
    agent = messages_lib.Connection(ours, secrets[0], AGENT)
    driver = messages_lib.Connection(theirs, secrets[1], DRIVER)
    meet(agent, driver)
    for connection in (agent, driver):
      assert not connection.is_authenticated
      assert not connection.is_open


@pytest.mark.parametrize(
  'line',
  [
    *(b'', b'hello', b'{"challenge": "abc"}', b'a' * 63, b'A' * 64),
    b'a' * 5000 + b'a' * 64,
  ],
)
def test_a_challenge_that_is_none_is_refused(line):
  ours, theirs = connect()
  with ours, theirs:
    driver = messages_lib.Connection(theirs, SECRET, DRIVER)
    ours.sendall(line + b'\n')
    assert receive_until(driver, lambda _: False) == []
    assert not driver.is_authenticated


def test_a_peer_that_is_not_authenticated_says_little():
  ours, theirs = connect()
  with ours, theirs:
    driver = messages_lib.Connection(theirs, SECRET, DRIVER)
    ours.sendall(b'a' * 64 + b'\n' + b'x' * 4097)
    assert receive_until(driver, lambda _: False) == []


def test_what_was_heard_before_is_of_no_use():
  ours, theirs = connect()
  with ours, theirs:
    agent = messages_lib.Connection(ours, SECRET, AGENT)
    driver = messages_lib.Connection(theirs, SECRET, DRIVER)
    agent.receive(5)  # It answers with its proof.
    heard = theirs.recv(1000)
    assert heard.count(b'\n') == 2
  ours, theirs = connect()
  with ours, theirs:
    driver = messages_lib.Connection(theirs, SECRET, DRIVER)
    ours.sendall(heard)
    assert receive_until(driver, lambda _: False) == []
    assert not driver.is_authenticated


def serve(talk):
  """Returns the port of a peer that calls `talk` with who connects first."""
  listener = socket.create_server(('127.0.0.1', 0))

  def run():
    with listener, listener.accept()[0] as peer:
      talk(peer)
      while peer.recv(1000):
        pass

  threading.Thread(target=run, daemon=True).start()
  return listener.getsockname()[1]


def test_who_connects_proves_and_has_it_proved():
  drivers = []

  def talk(peer):
    driver = messages_lib.Connection(peer, SECRET, DRIVER)
    while driver.is_open and not driver.is_authenticated:
      driver.receive(5)
    drivers.append(driver)

  connection = messages_lib.connect('127.0.0.1', serve(talk), SECRET)
  assert connection.is_open
  connection.close()


def echo(peer):
  """Sends all back that it is told: this proves nothing."""
  for _ in range(2):
    peer.sendall(peer.recv(1000))


@pytest.mark.parametrize(
  'talk',
  [
    lambda peer: peer.sendall(b'220 smtp.example.org\n'),
    lambda peer: peer.sendall(b'{}\n'),
    lambda peer: peer.sendall(b'a' * 64 + b'\n' + b'b' * 64 + b' {}\n'),
    lambda peer: messages_lib.Connection(peer, 'other', DRIVER).receive(5),
    echo,
    lambda peer: peer.shutdown(socket.SHUT_WR),
  ],
)
def test_who_does_not_know_the_secret_is_not_the_driver(talk):
  with pytest.raises(OSError, match='not the driver of this run'):
    messages_lib.connect('127.0.0.1', serve(talk), SECRET)


def test_a_program_with_many_open_files_hears_too(ends):
  soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
  resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
  try:
    ours, theirs = connect()
    fd = fcntl.fcntl(ours.fileno(), fcntl.F_DUPFD, 1500)
    with ours, theirs, socket.socket(fileno=fd) as high:
      agent = messages_lib.Connection(high, SECRET, AGENT)
      driver = messages_lib.Connection(theirs, SECRET, DRIVER)
      meet(agent, driver)
      driver.send(a=1)
      assert agent.receive(5) == [{'a': 1}]
  finally:
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
