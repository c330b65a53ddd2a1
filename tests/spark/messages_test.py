import fcntl
import json
import resource
import socket
import threading

import pytest

from distmnist.spark import handshake
from distmnist.spark import messages as messages_lib

SECRET = 'the secret of the run'


def connect():
  """Returns both ends of a connection by TCP."""
  with socket.create_server(('127.0.0.1', 0)) as listener:
    ours = socket.create_connection(listener.getsockname())
    return ours, listener.accept()[0]


@pytest.fixture
def pair():
  ours, theirs = connect()
  with ours, theirs:
    yield messages_lib.Connection(ours, max_bytes=1000), theirs


def receive_until(connection, is_enough):
  messages = []
  while connection.is_open and not is_enough(messages):
    messages += connection.receive(5)
  return messages


def test_messages_come_whole_and_in_order(pair):
  connection, peer = pair
  peer.sendall(b'{"a": 1}\n{"b"')
  assert receive_until(connection, bool) == [{'a': 1}]
  assert connection.receive() == []
  peer.sendall(b': "\xc3\xa9"}\n')
  assert receive_until(connection, bool) == [{'b': 'é'}]
  assert connection.is_open


def test_a_message_is_sent_as_one_line(pair):
  connection, peer = pair
  connection.send(lines=['one\ntwo'])
  received = peer.recv(100)
  assert received.count(b'\n') == 1
  assert json.loads(received) == {'lines': ['one\ntwo']}


@pytest.mark.parametrize(
  'nonsense',
  [
    b'hello\n',
    b'[1]\n',
    b'\xff\xfe\n',
    b'[' * 900 + b'\n',
    b'"' + b'x' * 2000,
    b'{"a": "' + b'x' * 2000 + b'"}\n',
  ],
)
def test_nonsense_ends_the_connection_and_is_not_passed_on(pair, nonsense):
  connection, peer = pair
  peer.sendall(b'{"good": 1}\n' + nonsense)
  messages = receive_until(connection, lambda _: False)
  assert messages == [{'good': 1}]
  assert not connection.is_open
  assert connection.receive() == []


def test_the_end_of_the_other_is_seen(pair):
  connection, peer = pair
  peer.close()
  assert receive_until(connection, lambda _: False) == []
  connection.send(into='the void')  # no error
  assert not connection.is_open


@pytest.fixture
def secured():
  ours, theirs = connect()
  agent, driver = map(messages_lib.Connection, (ours, theirs))
  agent.secure('key', 'agent', 'driver')
  driver.secure('key', 'driver', 'agent')
  with ours, theirs:
    yield agent, driver, ours, theirs


def test_messages_with_a_key_come_in_both_directions(secured):
  agent, driver, *_ = secured
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
def test_who_stands_between_cannot_forge(secured, forge):
  agent, driver, ours, theirs = secured
  agent.send(code=11)
  agent.send(code=12)
  first, second = theirs.recv(1000).splitlines(keepends=True)
  ours.sendall(forge(first) + second)
  received = receive_until(driver, lambda _: False)
  assert not driver.is_open
  assert received == ([{'code': 11}] if forge(first) == first + first else [])


def test_what_was_sent_does_not_come_back(secured):
  agent, _, _, theirs = secured
  agent.send(stop=15)
  theirs.sendall(theirs.recv(1000))
  assert receive_until(agent, lambda _: False) == []


def serve(*talk):
  """Returns the port of a peer that says `talk` to the first that connects.

  Args:
    *talk: bytes, or callables of what was heard since (bytes) to bytes; after
      each an answer is waited for.
  """
  listener = socket.create_server(('127.0.0.1', 0))

  def run():
    with listener, listener.accept()[0] as peer:
      heard = b''
      for line in talk:
        peer.sendall(line(heard) if callable(line) else line)
        heard = peer.recv(1000)

  threading.Thread(target=run, daemon=True).start()
  return listener.getsockname()[1]


def pack(message):
  return json.dumps(message).encode() + b'\n'


def talk_as_driver(secret):
  driver = handshake.Driver(secret)
  yield pack({'challenge': driver.challenge})
  yield lambda heard: pack(driver.answer(json.loads(heard)))


def test_who_connects_proves_and_has_it_proved():
  port = serve(*talk_as_driver(SECRET))
  connection = messages_lib.connect('127.0.0.1', port, SECRET)
  assert connection.is_open
  connection.close()


def echo(heard):
  return pack({'answer': json.loads(heard)['answer']})


@pytest.mark.parametrize(
  'talk',
  [
    [b'220 smtp.example.org\n'],
    [b'{}\n'],
    [b'{"challenge": "abc"}\n'],
    [pack({'challenge': 'a' * 64}), b'{"answer": "yes"}\n'],
    # A peer that sends our own answer back proves nothing.
    [pack({'challenge': 'a' * 64}), echo],
  ],
)
def test_who_does_not_know_the_secret_is_not_the_driver(talk):
  with pytest.raises(OSError, match='not the driver of this run'):
    messages_lib.connect('127.0.0.1', serve(*talk), SECRET)


def test_a_program_with_many_open_files_hears_too(pair):
  soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
  resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
  try:
    ours, theirs = pair
    fd = fcntl.fcntl(ours.fileno(), fcntl.F_DUPFD, 1500)
    with socket.socket(fileno=fd) as high:
      connection = messages_lib.Connection(high)
      theirs.sendall(pack({'a': 1}))
      assert connection.receive(5) == [{'a': 1}]
  finally:
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
