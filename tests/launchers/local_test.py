import io

import pytest

from distmnist.launchers import local


class Terminal(io.StringIO):
  def isatty(self):
    return True


@pytest.fixture
def log(tmp_path):
  return tmp_path / 'worker_0.log'


def append(log, text):
  with open(log, 'a') as file:
    file.write(text)


def test_lines_appear_when_they_are_complete(log):
  out = io.StringIO()
  screen = local.Screen(log, out)
  append(log, 'one\ntw')
  screen.update()
  assert out.getvalue() == 'one\n'
  append(log, 'o\n')
  screen.update()
  assert out.getvalue() == 'one\ntwo\n'
  screen.finish()


def test_lines_of_an_earlier_run_are_not_shown(log):
  append(log, 'old\n')
  out = io.StringIO()
  screen = local.Screen(log, out)
  append(log, 'new\n')
  screen.finish()
  assert out.getvalue() == 'new\n'


def test_a_last_line_without_its_end_is_shown(log):
  out = io.StringIO()
  screen = local.Screen(log, out)
  append(log, 'cut')
  screen.finish()
  assert out.getvalue() == 'cut\n'


def test_steps_share_one_line_of_a_terminal(log):
  out = Terminal()
  screen = local.Screen(log, out)
  append(log, 'start\nstep 1\nstep 2\ndone\n')
  screen.finish()
  assert out.getvalue() == 'start\n\rstep 1\x1b[K\rstep 2\x1b[K\ndone\n'


def test_steps_are_lines_where_there_is_no_terminal(log):
  out = io.StringIO()
  screen = local.Screen(log, out)
  append(log, 'step 1\nstep 2\n')
  screen.finish()
  assert out.getvalue() == 'step 1\nstep 2\n'


def test_a_line_left_open_is_closed_at_the_end(log):
  out = Terminal()
  screen = local.Screen(log, out)
  append(log, 'step 1\n')
  screen.finish()
  assert out.getvalue() == '\rstep 1\x1b[K\n'


def test_bytes_that_are_no_text_do_not_stop_the_screen(log):
  out = io.StringIO()
  screen = local.Screen(log, out)
  log.write_bytes(b'\xff\n')
  screen.finish()
  assert out.getvalue() == '\N{REPLACEMENT CHARACTER}\n'
