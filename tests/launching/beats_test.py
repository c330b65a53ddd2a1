"""Signs of life, while the process that asked for them does nothing."""

import os
import select

import psutil
import pytest

from distmnist.launching import beats
from tests.support.background import assert_gone, wait_until


@pytest.mark.slow
def test_a_pipe_gets_empty_lines_until_it_is_closed_and_a_file_changes(
  tmp_path,
):
  reader, writer = os.pipe()
  os.set_blocking(writer, False)
  path = tmp_path / 'launcher'
  with beats.Beats(0.05) as mine:
    [process] = [
      p
      for p in psutil.Process().children()
      if p.cmdline()[-3:-2] == [beats.__file__]
    ]
    assert os.getsid(process.pid) != os.getsid(0)
    mine.add_pipe(writer)
    mine.add_file(str(path))
    os.close(writer)
    for _ in range(2):
      assert select.select([reader], [], [], 60)[0]
      assert not os.read(reader, 100).strip(b'\n')
    wait_until(lambda: path.exists() and path.read_text() > '1', path.exists)
  # Its end is the end of what the pipe says.
  while os.read(reader, 100):
    pass
  os.close(reader)
  assert_gone([process])


def test_a_pipe_that_is_dropped_ends_while_others_go_on():
  (dropped, writer), other = os.pipe(), os.pipe()
  with beats.Beats(0.05) as mine:
    for fd in writer, other[1]:
      mine.add_pipe(fd)
    assert os.read(dropped, 100)
    mine.drop_pipe(writer)
    os.close(writer)
    while os.read(dropped, 100):
      pass
    for _ in range(2):
      assert os.read(other[0], 1) == b'\n'
  for fd in (dropped, *other):
    os.close(fd)


def test_one_pipe_that_is_gone_and_one_that_is_full_hold_up_nobody():
  pipes = [os.pipe() for _ in range(3)]
  os.close(pipes[0][0])
  os.set_blocking(pipes[1][1], False)
  while True:
    try:
      os.write(pipes[1][1], b'x' * 65536)
    except BlockingIOError:
      break
  with beats.Beats(0.05) as mine:
    for _, writer in pipes:
      mine.add_pipe(writer)
    assert select.select([pipes[2][0]], [], [], 60)[0]
  for end in (pipes[0][1], *pipes[1], *pipes[2]):
    os.close(end)
