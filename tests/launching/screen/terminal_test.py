"""Writing to a terminal that has closed."""

import contextlib
import io
import os
import sys

import pytest

from distmnist.launching.screen import log_view, terminal


@contextlib.contextmanager
def closed(monkeypatch):
  """Has stdout and stderr be a terminal that has closed; yields its path."""
  ours, theirs = os.openpty()
  with open(theirs, 'w') as stream:
    monkeypatch.setattr(sys, 'stdout', stream)
    monkeypatch.setattr(sys, 'stderr', stream)
    os.close(ours)
    yield f'/proc/self/fd/{theirs}'


def test_what_is_shown_on_one_goes_nowhere_from_then_on(monkeypatch, tmp_path):
  log = tmp_path / 'log'
  with closed(monkeypatch) as path:
    screen = log_view.Screen({'': log})
    for line in ('step 1\n', 'step 2\n', 'x\n'):
      with open(log, 'a') as file:
        file.write(line)
      screen.update()
    screen.finish()
    assert os.readlink(path) == os.devnull


def test_a_line_of_ours_is_no_error_either(monkeypatch):
  with closed(monkeypatch) as path:
    log_view.print_line('one')
    log_view.print_line('two')
    assert os.readlink(path) == os.devnull


def test_a_pipe_that_nobody_reads_is_left_to_the_program(monkeypatch):
  ours, theirs = os.pipe()
  os.close(ours)
  with open(theirs, 'wb', buffering=0) as stream:
    monkeypatch.setattr(sys, 'stdout', stream)
    with pytest.raises(BrokenPipeError), terminal.may_close():
      stream.write(b'x')


def test_an_error_of_a_disk_stays_one(monkeypatch, tmp_path):
  with open(tmp_path / 'x', 'w') as stream:
    monkeypatch.setattr(sys, 'stdout', stream)
    monkeypatch.setattr(sys, 'stderr', stream)
    with pytest.raises(OSError, match='disk'), terminal.may_close():
      raise OSError(5, 'disk')


def test_a_full_disk_loses_lines_and_ends_nothing(monkeypatch, tmp_path):
  (tmp_path / 'log').write_text('')
  raw = open('/dev/full', 'wb', buffering=0)  # noqa: SIM115 (closed below)
  with io.TextIOWrapper(raw, write_through=True) as stream:
    monkeypatch.setattr(sys, 'stdout', stream)
    monkeypatch.setattr(sys, 'stderr', stream)
    screen = log_view.Screen({'': tmp_path / 'log'})
    (tmp_path / 'log').write_text('step 1\n')
    screen.update()
    screen.print_line('one')
    screen.finish()
