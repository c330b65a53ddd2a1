import json
import socket
import threading

import pytest

from distmnist import json_lines

SECRET = 'the secret of the run'


@pytest.fixture
def pair():
  listener = socket.create_server(('127.0.0.1', 0))
  ours = socket.create_connection(listener.getsockname())
  theirs, _ = listener.accept()
  listener.close()
  with ours, theirs:
    yield json_lines.Connection(ours, max_bytes=1000), theirs


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


@pytest.mark.parametrize(
  ('given', 'is_right'),
  [
    (json_lines.answer(SECRET, 'challenge'), True),
    (json_lines.answer('another', 'challenge'), False),
    (json_lines.answer(SECRET, 'another'), False),
    (SECRET, False),
    ('é', False),
    ('', False),
    (None, False),
    ([1], False),
  ],
)
def test_the_secret_is_shown_by_the_answer_to_a_challenge(given, is_right):
  assert json_lines.is_right(SECRET, 'challenge', given) == is_right


def test_two_challenges_differ():
  assert json_lines.make_challenge() != json_lines.make_challenge()


def serve(*lines):
  """Returns the port of who says `lines` (bytes) to the first who comes."""
  listener = socket.create_server(('127.0.0.1', 0))

  def run():
    with listener, listener.accept()[0] as peer:
      for line in lines:
        peer.sendall(line)
      peer.recv(1000)

  threading.Thread(target=run, daemon=True).start()
  return listener.getsockname()[1]


def test_who_connects_answers_the_challenge():
  port = serve(b'{"challenge": "abc"}\n')
  connection = json_lines.connect('127.0.0.1', port, SECRET)
  assert connection.is_open
  connection.close()


@pytest.mark.parametrize('greeting', [b'220 smtp.example.org\n', b'{}\n'])
def test_who_does_not_challenge_is_not_the_driver(greeting):
  with pytest.raises(OSError, match='not the driver of this run'):
    json_lines.connect('127.0.0.1', serve(greeting), SECRET)
