import io

import pytest

from distmnist.launching.screen import log_view


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
  screen = log_view.Screen({'': log}, out)
  append(log, 'one\ntw')
  screen.update()
  assert out.getvalue() == 'one\n'
  append(log, 'o\n')
  screen.update()
  assert out.getvalue() == 'one\ntwo\n'
  screen.finish()


def test_a_log_that_was_removed_is_followed_again(log):
  out = io.StringIO()
  screen = log_view.Screen({'': log}, out)
  append(log, 'one\n')
  screen.update()
  log.unlink()
  screen.update()
  append(log, 'two\n')
  screen.update()
  append(log, 'three\n')
  screen.finish()
  assert out.getvalue() == 'one\ntwo\nthree\n'


def test_a_log_that_a_later_run_has_renamed_is_followed(log):
  out = io.StringIO()
  screen = log_view.Screen({'': log}, out)
  log.rename(f'{log}.1')
  append(log, 'of the later run\n')
  append(f'{log}.1', 'of this one\n')
  screen.update()
  assert out.getvalue() == 'of this one\n'
  screen.finish()


@pytest.mark.parametrize(
  ('out', 'appended', 'shown'),
  [
    (io.StringIO(), b'new\n', 'new\n'),
    # A last line without its newline.
    (io.StringIO(), b'cut', 'cut\n'),
    # Steps share one line of a terminal, which is closed at the end.
    (
      Terminal(),
      b'start\nstep 1\nstep 2\ndone\n',
      'start\n\rstep 1\x1b[K\rstep 2\x1b[K\ndone\n',
    ),
    (Terminal(), b'step 1\n', '\rstep 1\x1b[K\n'),
    (io.StringIO(), b'step 1\nstep 2\n', 'step 1\nstep 2\n'),
    # Bytes that are not text do not stop the screen.
    (io.StringIO(), b'\xff\n', '\N{REPLACEMENT CHARACTER}\n'),
  ],
)
def test_at_the_end_all_is_shown_but_what_was_there(log, out, appended, shown):
  append(log, 'old\n')
  screen = log_view.Screen({'': log}, out)
  with open(log, 'ab') as file:
    file.write(appended)
  screen.finish()
  assert out.getvalue() == shown


def test_a_line_of_ours_does_not_end_one_of_a_task(log, capsys):
  screen = log_view.Screen({'': log}, Terminal())
  log.write_text('step 1\n')
  screen.update()
  screen.print_line('one')
  assert screen._out.getvalue().endswith('\n')
  assert capsys.readouterr().err == 'distmnist.launch: one\n'
  screen.finish()


def test_a_log_is_read_in_pieces(log):
  append(log, '')
  tail = log_view.Log(log)
  append(log, 'one\ntwo\n' + 10 * 'x' + '\nend')
  assert tail.read_lines(5) == ['one']
  assert tail.read_lines(5) == ['two']
  assert tail.read_lines(5) == [7 * 'x']
  assert tail.read_lines(5) == [3 * 'x']
  assert tail.finish() == ['end']


def test_a_line_without_an_end_comes_in_pieces(log):
  append(log, '')
  tail = log_view.Log(log)
  append(log, 12 * 'x')
  assert tail.read_lines(5) == ['xxxxx']
  assert tail.read_lines(5) == ['xxxxx']
  assert tail.read_lines(5) == []
  assert tail.finish() == ['xx']
