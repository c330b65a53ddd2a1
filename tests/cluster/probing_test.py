"""probing: which tasks listen, which are gone, and how often they are asked."""

import errno
import socket
import threading
import time
import types

import pytest

from distmnist.cluster import probing
from distmnist.common import cli, console

# The wait for other tasks, with a clock that only `sleep` moves.


@pytest.fixture
def clock(monkeypatch):
  fake = types.SimpleNamespace(now=50.0)
  fake.monotonic = lambda: fake.now
  fake.sleep = lambda secs: setattr(fake, 'now', fake.now + secs)
  for module in (probing, console):
    monkeypatch.setattr(module, 'time', fake)
  return fake


@pytest.fixture
def answer_at(monkeypatch, clock):
  """answer_at[address] = secs: from when on a task answers."""
  times = {}
  monkeypatch.setattr(
    probing,
    'ask',
    lambda address, secs: (
      probing.Answer.THERE
      if clock.now >= 50 + times.get(address, float('inf'))
      else probing.Answer.SILENT
    ),
  )
  return times


def test_who_listens_answers():
  with socket.create_server(('127.0.0.1', 0)) as server:
    address = f'127.0.0.1:{server.getsockname()[1]}'
    assert probing.ask(address) is probing.Answer.THERE
    probing.wait_for_tasks({'ps 0': address}, 0)
  assert probing.ask(address) is probing.Answer.REFUSED


@pytest.mark.parametrize('host', ['nowhere.invalid', 'a..b'])
def test_a_host_that_cannot_be_looked_up_does_not_answer(host):
  assert probing.ask(f'{host}:2222') is not probing.Answer.THERE


def test_nobody_to_wait_for_is_no_wait(clock, answer_at):
  probing.wait_for_tasks({}, 0)
  assert clock.now == 50


def test_the_wait_ends_when_the_last_one_answers(clock, answer_at, logged):
  answer_at |= {'a:1': 0.3, 'b:1': 0.7}
  probing.wait_for_tasks({'ps 0': 'a:1', 'ps 1': 'b:1'}, 9)
  assert clock.now == pytest.approx(50.7, abs=0.06)
  assert logged == []


def test_a_long_wait_says_for_whom_after_a_second_then_every_five(
  clock, answer_at
):
  answer_at |= {'a:1': 0.0, 'b:1': 3.0, 'c:1': 8.0}
  lines = []
  console.print_logs(lambda line: lines.append((round(clock.now - 50), line)))
  probing.wait_for_tasks({'ps 0': 'a:1', 'ps 1': 'b:1', 'worker 0': 'c:1'}, 60)
  assert lines == [
    (1, 'waiting for ps 1 at b:1, worker 0 at c:1'),
    (6, 'waiting for worker 0 at c:1 (6 of 60 s)'),
  ]


def test_a_task_that_has_answered_is_not_asked_again(monkeypatch, clock):
  asked = []

  def ask(address, secs):
    asked.append(address)
    is_there = address == 'a:1' or clock.now > 50.3
    return probing.Answer.THERE if is_there else probing.Answer.REFUSED

  monkeypatch.setattr(probing, 'ask', ask)
  probing.wait_for_tasks({'ps 0': 'a:1', 'ps 1': 'b:1'}, 9)
  assert asked.count('a:1') == 1
  assert asked.count('b:1') > 2


def test_the_wait_is_bounded_and_names_those_that_did_not_answer(
  clock, answer_at
):
  answer_at |= {'a:1': 0.0}
  with pytest.raises(cli.RunError) as caught:
    probing.wait_for_tasks({'ps 0': 'a:1', 'ps 1': 'b:1'}, 2.5)
  for named in '2.5 s', 'ps 1 at b:1', '--start_timeout_secs':
    assert named in str(caught.value)
  assert clock.now == pytest.approx(52.5, abs=0.13)


def test_a_host_whose_name_is_unknown_is_told_apart(monkeypatch):
  with socket.create_server(('127.0.0.1', 0)) as server:
    closed = server.getsockname()

  def find(host, port, **how):
    if host == 'b':
      raise socket.gaierror(socket.EAI_NONAME, 'Name or service not known')
    return [(socket.AF_INET, socket.SOCK_STREAM, 6, '', closed)]

  monkeypatch.setattr(socket, 'getaddrinfo', find)
  monkeypatch.setattr(probing, '_names', {})
  with pytest.raises(cli.RunError) as caught:
    probing.wait_for_tasks({'ps 0': 'a:1', 'ps 1': 'b:1', 'ps 2': 'b:2'}, 0)
  assert 'b:2: no host is known here as b; start it, or' in str(caught.value)


@pytest.mark.parametrize(
  ('answer', 'were_there', 'advice'),
  [
    ('refused', False, 'start it, or check the address, the port and the fire'),
    ('silent', False, 'start it, or check the address, the port and the fire'),
    ('unknown', False, 'it could not be asked, as no name server answers'),
    ('refused', True, 'it was there before, and has ended or is cut off'),
  ],
)
def test_the_advice_is_for_what_was_found(
  monkeypatch, clock, answer, were_there, advice
):
  answers(monkeypatch, *[answer] * 3)
  tasks = {'ps 0': '127.0.0.1:1'}
  with pytest.raises(cli.RunError) as caught:
    probing.wait_for_tasks(tasks, 0, were_there=were_there)
  assert f'from ps 0 at 127.0.0.1:1: {advice}' in str(caught.value)


def answers(monkeypatch, *words):
  """Makes the looks of `Absences` find these answers, one after the other."""
  left = list(words)
  monkeypatch.setattr(
    probing, 'ask', lambda address, secs: probing.Answer(left.pop(0))
  )


def test_a_refused_connection_is_an_absence_at_once(monkeypatch, clock):
  answers(monkeypatch, 'refused')
  assert probing.Absences().find_gone({'worker 1': 'a:1'}) == {
    'worker 1': 'a:1'
  }


def test_silence_is_an_absence_only_at_several_looks(monkeypatch, clock):
  answers(monkeypatch, 'silent', 'there', *['silent'] * 4)
  absences, found = probing.Absences(), []
  for _ in range(6):
    found.append(bool(absences.find_gone({'worker 1': 'a:1'})))
    clock.sleep(2)
  assert found == [False] * 5 + [True]


def test_who_beats_is_there_though_the_port_is_silent(monkeypatch, clock):
  answers(monkeypatch, *['silent'] * 9)
  secs = iter([0.5] * 7 + [6, None])
  absences = probing.Absences(lambda name: next(secs))
  found = []
  for _ in range(9):
    found.append(bool(absences.find_gone({'worker 1': 'a:1'})))
    clock.sleep(2)
  assert found == [False] * 7 + [True] * 2


def test_without_a_file_descriptor_nobody_is_taken_for_gone(monkeypatch):
  def make_socket(*_):
    raise OSError(errno.EMFILE, 'Too many open files')

  monkeypatch.setattr(probing.socket, 'socket', make_socket)
  addresses = {'ps 0': '127.0.0.1:9'}
  assert probing.ask('127.0.0.1:9') is probing.Answer.UNKNOWN
  assert probing.find_silent(addresses) == {}
  assert probing.Absences().find_gone(addresses) == {}


def test_a_name_server_that_does_not_answer_holds_nobody_up(monkeypatch):
  is_over = threading.Event()
  monkeypatch.setattr(probing, '_NAMES_SECS', 0.1)
  monkeypatch.setattr(
    probing.socket, 'getaddrinfo', lambda *_, **__: is_over.wait(120)
  )
  start = time.monotonic()
  found = probing.ask_all({'ps 0': 'slow.invalid:1'}, timeout_secs=0.1)
  assert found == {'ps 0': probing.Answer.UNKNOWN}
  assert time.monotonic() - start < 60
  is_over.set()


def test_a_name_is_not_looked_up_at_each_look(monkeypatch):
  asked = []

  def look_up(host, port, **_):
    asked.append(host)
    return [(socket.AF_INET, socket.SOCK_STREAM, 0, '', ('127.0.0.1', port))]

  monkeypatch.setattr(probing.socket, 'getaddrinfo', look_up)
  for _ in range(3):
    probing.ask('kept.invalid:9')
  assert asked == ['kept.invalid']


@pytest.mark.slow
def test_all_who_are_silent_are_waited_for_together(monkeypatch):
  def ask(address, secs):
    time.sleep(min(secs, 0.5))
    return probing.Answer.SILENT

  monkeypatch.setattr(probing, 'ask', ask)
  start = time.monotonic()
  workers = {f'worker {i}': f'10.255.255.1:{i}' for i in range(1, 33)}
  probing.wait_until_gone(workers, timeout_secs=2)
  assert time.monotonic() - start < 8  # One by one it would be 16.


def test_a_long_wait_looks_rarely(clock, answer_at):
  answer_at['a:1'] = 590
  pauses = []

  def pause(secs):
    pauses.append(secs)
    clock.sleep(secs)

  probing.wait_for_tasks({'ps 0': 'a:1'}, 600, pause)
  assert pauses[0] <= 0.05 and max(pauses) <= 2
  # Every 50 ms it would be 12,000.
  assert len(pauses) < 500
  assert len(set(pauses)) > 100  # Tasks do not keep in step.
