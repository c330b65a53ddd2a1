"""Links: messages whole and in order, from whoever knows the secret alone."""

import json
import pickle
import resource
import socket
import threading
import time

import pytest

from distmnist.spark import links
from tests.support import link_ends

SECRET = 'the secret of the run'
DEADLINE_SECS = 60


@pytest.fixture
def brief(monkeypatch):
  """Lets an agent wait briefly for each answer while it connects."""
  monkeypatch.setattr(links, 'CONNECT_SECS', 0.3)


@pytest.mark.slow
def test_an_agent_waits_for_its_first_order_as_long_as_it_takes(brief, ends):
  driver, agent = ends
  time.sleep(2 * links.CONNECT_SECS)  # The others come meanwhile.
  assert agent.receive() == [] and agent.is_open
  driver.send(go=True)
  assert receive_until(agent, bool) == [{'go': True}]


@pytest.fixture
def ends():
  """The ends of a driver and of an agent that have met."""
  with socket.create_server(('127.0.0.1', 0)) as listener:
    met = []

    def meet():
      met.append(link_ends.End.of_driver(listener, SECRET, DEADLINE_SECS))

    thread = threading.Thread(target=meet)
    thread.start()
    agent = link_ends.End.of_agent(*listener.getsockname(), SECRET)
    thread.join(DEADLINE_SECS)
  yield met[0], agent
  for end in (*met, agent):
    end.close()


def receive_until(end, is_enough):
  messages, deadline = [], time.monotonic() + DEADLINE_SECS
  while end.is_open and not is_enough(messages):
    assert time.monotonic() < deadline
    messages += end.receive(5)
  return messages


def test_messages_come_whole_and_in_order_in_both_directions(ends):
  driver, agent = ends
  large = 'é' * (1 << 18)
  for number in range(3):
    agent.send(lines=[number, large])
    driver.send(go=number)
  received = receive_until(driver, lambda m: len(m) == 3)
  assert received == [{'lines': [number, large]} for number in range(3)]
  assert receive_until(agent, lambda m: len(m) == 3)[2] == {'go': 2}
  assert driver.is_open and agent.is_open


@pytest.mark.parametrize(
  'nonsense',
  [
    *(b'hello', b'[1]', b'\xff\xfe', b'[' * 900),
    pickle.dumps({'end': 0}),  # Whoever loads one runs what it says.
    b'{"a": "' + b'x' * 2000 + b'"}',
  ],
)
def test_nonsense_ends_the_connection_and_is_not_passed_on(
  ends, nonsense, monkeypatch
):
  monkeypatch.setattr(links, 'MAX_MESSAGE_BYTES', 1000)
  driver, agent = ends
  agent.send(good=1)
  agent.link._connection.send_bytes(nonsense)
  assert receive_until(driver, lambda _: False) == [{'good': 1}]
  assert not driver.is_open
  assert driver.receive() == []


def test_the_end_of_the_other_comes_after_its_messages(ends):
  driver, agent = ends
  agent.send(end=0)
  agent.close()
  driver.send(into='the void')  # no error
  driver.send(into='the void')
  assert receive_until(driver, lambda _: False) == [{'end': 0}]
  assert not driver.is_open


def test_half_a_message_delays_nobody(ends):
  driver, agent = ends
  agent.link._socket.sendall(b'\x00\x00\x00\x09{"a"')
  assert driver.receive(0.1) == []
  agent.link._socket.sendall(b': 1}\n')
  assert receive_until(driver, bool) == [{'a': 1}]


def test_who_does_not_read_is_given_up(ends, monkeypatch):
  driver, agent = ends
  paused = threading.Event()
  agent.link._receive = lambda: (
    paused.wait() and None
  )  # After the next message it reads nothing.
  driver.send(go=True)
  driver.link._set_timeout(socket.SO_SNDTIMEO, 0.1)
  content = 'x' * (1 << 20)
  for _ in range(20):
    driver.send(content=content)
  assert receive_until(driver, lambda _: False) == []
  paused.set()


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


def meet_with_another_secret(peer):
  link = links.Link(peer.dup())
  with pytest.raises(OSError, match='does not know the secret'):
    link.meet('other', True, DEADLINE_SECS)
  link.close()


def echo(peer):
  """Sends all back that it is told: this proves nothing."""
  peer.sendall(b'\x00\x00\x00\x1f#CHALLENGE#' + b'x' * 20)
  for _ in range(3):
    peer.sendall(peer.recv(1000))


@pytest.mark.parametrize(
  'talk',
  [
    lambda peer: peer.sendall(b'220 smtp.example.org\n'),
    lambda peer: peer.sendall(b'\x00\x00\x00\x02{}'),
    lambda peer: peer.sendall(b'\xff\xff\xff\xff' + b'\xff' * 8),
    meet_with_another_secret,
    echo,
    lambda peer: peer.shutdown(socket.SHUT_WR),
    # It says nothing.
    pytest.param(lambda peer: None, marks=pytest.mark.slow),
  ],
)
def test_who_does_not_know_the_secret_is_not_the_driver(talk, monkeypatch):
  monkeypatch.setattr(links, 'CONNECT_SECS', 0.5)
  with pytest.raises(OSError, match='not the driver of this run'):
    links.connect('127.0.0.1', serve(talk), SECRET, print)


def test_the_secret_is_not_sent_and_another_connection_cannot_be_replayed():
  heard = []
  ours, theirs = link_ends.make_pair()
  agent, driver = links.Link(ours), links.Link(theirs)
  send_bytes = agent._connection.send_bytes
  agent._connection.send_bytes = lambda data: (
    heard.append(data),
    send_bytes(data),
  )
  thread = threading.Thread(
    target=driver.meet, args=(SECRET, True, DEADLINE_SECS)
  )
  thread.start()
  agent.meet(SECRET, False, DEADLINE_SECS)
  thread.join(DEADLINE_SECS)
  assert len(heard) == 3 and SECRET.encode() not in b''.join(heard)
  ours, theirs = link_ends.make_pair()
  again, other = links.Link(ours), links.Link(theirs)
  for data in heard:
    again._connection.send_bytes(data)
  with pytest.raises(OSError, match='does not know the secret'):
    other.meet(SECRET, True, DEADLINE_SECS)
  for link in (agent, driver, again, other):
    link.close()


def test_a_program_with_many_open_files_hears_too(ends):
  driver, agent = ends
  soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
  resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
  opened = []
  try:
    while not opened or opened[-1].fileno() < 1100:
      opened.append(socket.socket())
    ours, theirs = link_ends.make_pair()
    high, low = link_ends.End(links.Link(ours)), links.Link(theirs)
    assert ours.fileno() > 1024
    high.link.listen(high.hear)
    low.send(a=1)
    assert receive_until(high, bool) == [{'a': 1}]
    high.close()
    low.close()
  finally:
    for each in opened:
      each.close()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
  'text, value', [('{"a": 1}', {'a': 1}), ('[1]', None), ('{', None)]
)
def test_a_report_is_an_object(text, value):
  assert links.parse_object(text) == value
  assert links.parse_object(json.dumps(text)) is None
