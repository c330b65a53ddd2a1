"""A worker that its launcher starts again, and what it finds."""

import contextlib
import time

import pytest

from distmnist.cluster import cluster
from distmnist.common import cli
from distmnist.common.names import ATTEMPT
from distmnist.lifecycle import late_start, shutdown
from tests.support import in_process


class Restart:
  def __init__(self, is_finished):
    self._is_finished = is_finished

  def is_finished(self):
    return self._is_finished

  looks_finished = is_finished


@pytest.mark.parametrize(
  ('attempt', 'index', 'is_finished', 'is_ps_there', 'expected'),
  [
    ('2', 1, True, False, True),
    ('', 1, True, False, True),  # by hand
    ('2', 0, True, False, True),  # the chief, which may have a report to write
    ('2', 1, False, False, False),
    ('2', 1, True, True, False),  # the others wait at the end
    ('', 0, True, True, False),
  ],
)
def test_a_worker_knows_that_its_run_has_ended(
  monkeypatch, attempt, index, is_finished, is_ps_there, expected
):
  monkeypatch.delenv(ATTEMPT, raising=False)
  monkeypatch.setattr(late_start, '_PATIENCE_SECS', 0.05)
  if attempt:
    monkeypatch.setenv(ATTEMPT, attempt)
  with contextlib.ExitStack() as stack:
    [port] = stack.enter_context(in_process.hold_ports(1))
    if is_ps_there:
      monkeypatch.setattr(late_start.probing, 'find_silent', lambda _: {})
    spec = cluster.make_cluster(
      (f'127.0.0.1:{port}',), ('x:1', 'x:2'), 'worker', index
    )
    assert (
      late_start.has_ended(spec, Restart(is_finished), time.sleep) is expected
    )


@pytest.mark.parametrize(
  ('attempt', 'is_first', 'expected'),
  [
    ('', True, cli.FAILED),
    ('', False, cli.LOST),
    ('2', True, cli.LOST),
  ],
)
def test_who_comes_back_takes_the_others_for_late_and_not_for_wrong(
  monkeypatch, attempt, is_first, expected
):
  monkeypatch.delenv(ATTEMPT, raising=False)
  if attempt:
    monkeypatch.setenv(ATTEMPT, attempt)
  error = shutdown.choose_absence_error(is_first)('gone')
  assert error.exit_code == expected
