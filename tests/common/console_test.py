"""console: plain lines in a log, one line redrawn on a terminal."""

import concurrent.futures
import io
import logging
import os
import types

import pytest

from distmnist.common import console


class Terminal(io.StringIO):
  def isatty(self):
    return True


@pytest.fixture
def clock(monkeypatch):
  """What the console takes for the time: set clock.now, in seconds."""
  fake = types.SimpleNamespace(now=100.0)
  fake.monotonic = lambda: fake.now
  monkeypatch.setattr(console, 'time', fake)
  return fake


def test_progress_in_a_log_is_a_plain_line():
  stream = io.StringIO()
  lines = console.Console(stream=stream)
  lines.progress('step 1/4', 0.25)
  lines.say('done')
  assert stream.getvalue() == 'step 1/4\ndone\n'


def test_progress_on_a_terminal_is_drawn_over_itself():
  stream = Terminal()
  lines = console.Console(stream=stream)
  lines.progress('step 1/4', 0.25)
  lines.progress('step 3/4', 0.75)
  assert stream.getvalue() == (
    '\r\x1b[K[#####...............] step 1/4'
    '\r\x1b[K[###############.....] step 3/4'
  )
  stream.truncate(stream.seek(0))
  lines.progress('step 5', None)
  assert stream.getvalue() == '\r\x1b[Kstep 5'


def test_a_line_comes_below_the_progress_line_and_not_onto_it():
  stream = Terminal()
  lines = console.Console(stream=stream)
  lines.say('first')
  lines.progress('x', 0)
  lines.say('second')
  lines.say('third')
  assert stream.getvalue() == (
    f'first\n\r\x1b[K[{"." * 20}] x\nsecond\nthird\n'
  )


def test_more_than_all_the_work_is_a_full_bar():
  stream = Terminal()
  console.Console(stream=stream).progress('x', 1.2)
  assert stream.getvalue() == f'\r\x1b[K[{"#" * 20}] x'


def test_progress_is_due_at_once_and_then_every_so_many_seconds(clock):
  lines = console.Console(every_secs=2.0, stream=io.StringIO())
  assert lines.is_due()
  lines.progress('x', 0.5)
  assert not lines.is_due()
  clock.now += 1.9
  assert not lines.is_due()
  clock.now += 0.2
  assert lines.is_due()


def test_a_terminal_is_redrawn_ten_times_a_second(clock):
  lines = console.Console(every_secs=60, stream=Terminal())
  lines.progress('x', 0.5)
  clock.now += 0.09
  assert not lines.is_due()
  clock.now += 0.02
  assert lines.is_due()


def test_each_line_of_a_wait_says_something_new(clock):
  said = []
  console.print_logs(lambda line: said.append((clock.now - 100, line)))
  wait = console.Wait(12.5)
  while not wait.is_over('for ps 0'):
    clock.now += 0.5
  assert said == [
    (1, 'waiting for ps 0'),
    (6, 'waiting for ps 0 (6 of 12 s)'),
    (11, 'waiting for ps 0 (11 of 12 s)'),
  ]


def test_a_wait_that_is_renewed_has_its_whole_time_again(clock):
  lines = []
  console.print_logs(lines.append)
  wait = console.Wait(12)
  clock.now += 10
  assert not wait.is_over('for worker 0')
  wait.renew()
  clock.now += 11
  assert not wait.is_over('for worker 0')
  assert lines == ['waiting for worker 0', 'waiting for worker 0 (21 of 22 s)']
  clock.now += 1
  assert wait.is_over('for worker 0')


def test_zero_seconds_are_a_line_a_step(clock):
  lines = console.Console(every_secs=0, stream=io.StringIO())
  lines.progress('x', 0.5)
  assert lines.is_due()


def test_who_waits_for_long_looks_less_often(clock):
  wait = console.Wait(600)
  pauses = []
  for secs in (0, 10, 290):
    clock.now += secs
    pauses.append([wait.choose_pause() for _ in range(9)])
  first, later, last = pauses
  assert all(0.03 <= secs <= 0.05 for secs in first)
  assert all(0.35 <= secs <= 0.5 for secs in later)
  assert all(1.4 <= secs <= 2 for secs in last)
  assert len(set(last)) > 1


def test_what_modules_log_is_printed_once_as_plain_lines(capsys):
  console.print_logs(lambda line: None)
  lines = []
  console.print_logs(lines.append)
  logging.getLogger('distmnist.some.module').info('%d ps', 2)
  logging.getLogger('distmnist.some.module').debug('not this')
  logging.getLogger('other').warning('nor this')
  assert lines == ['2 ps']
  assert capsys.readouterr() == ('', '')


@pytest.mark.parametrize('time', [1, 2])
def test_a_program_run_in_a_test_leaves_the_logs_to_the_next(time, caplog):
  logging.getLogger('distmnist.x').info('seen')
  assert caplog.messages == ['seen']
  console.print_logs(print)


def test_a_line_that_a_full_disk_does_not_take_is_lost_and_no_more():
  with open('/dev/full', 'w') as stream:
    lines = console.Console(stream=stream)
    lines.progress('step 1/4', 0.25)
    lines.say('done')
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def test_a_pipe_that_nobody_reads_ends_the_main_thread_and_no_other():
  reader, writer = os.pipe()
  os.close(reader)
  with open(writer, 'w') as stream:
    lines = console.Console(stream=stream)
    with concurrent.futures.ThreadPoolExecutor() as others:
      others.submit(lines.say, 'a wait').result()
    with pytest.raises(BrokenPipeError):
      lines.say('step 1')
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
