"""How the tests run: two or three at a time, and some of them alone."""

import contextlib
import fcntl
import gc
import inspect
import os
import pathlib
import signal
import sys

import pytest

_HERE = pathlib.Path(__file__).parent
# By default GPUs round what they multiply to 10 bits (TF32).
os.environ.setdefault('NVIDIA_TF32_OVERRIDE', '0')
# Hundreds of processes import the package; only the first has to compile it,
# and only the first run has to rewrite the asserts of all tests.
os.environ.pop('PYTHONDONTWRITEBYTECODE', None)
sys.dont_write_bytecode = False


def pytest_addoption(parser):
  parser.addoption(
    '--all',
    action='store_true',
    help='the tests and the cases that are marked as daily, too',
  )


@pytest.hookimpl(trylast=True)  # After that of xdist.
def pytest_configure(config):
  """Brings the fixtures, and TensorFlow with them, to what runs the tests."""
  gc.disable()  # Until all tests are there: what is loaded until then stays.
  # Not to xdist's controller, whose workers would wait for its import.
  if not config.pluginmanager.has_plugin('dsession'):
    config.pluginmanager.import_plugin('tests.support.fixtures')


def pytest_make_parametrize_id(val):
  """Returns the id of a signal; by default it depends on Python's version."""
  return str(int(val)) if isinstance(val, signal.Signals) else None


def pytest_pycollect_makeitem(collector, obj):
  """Makes no items, which take time, of a test that is left out whole."""
  option = collector.config.option
  if not inspect.isfunction(obj) or _is_named(collector.config):
    return None
  marks = getattr(obj, 'pytestmark', ())
  is_left_out = any(
    (mark.name == 'daily' and not mark.kwargs and not option.all)
    or (mark.name == 'slow' and option.markexpr == 'not slow')
    for mark in marks
  )
  return [] if is_left_out else None


def pytest_collection_finish():
  """From now on no collection of garbage looks at what has been loaded."""
  gc.freeze()
  gc.enable()


def pytest_collection_modifyitems(config, items):
  """Leaves out what is not for every run, and deals the others out.

  A case that is named on the command line is always run.
  """
  if not (config.option.all or _is_named(config)):
    _check_cases(items)
    kept, left_out = [], []
    for item in items:
      (left_out if _is_daily(item) else kept).append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=left_out)
  _deal(items, getattr(config, 'workerinput', {}).get('workercount', 1))


def _is_named(config):
  """Whether the command line names a test, and not only files and folders."""
  return any('::' in word for word in config.args)


def _is_daily(item):
  return any(
    _case(item) not in mark.kwargs.get('but', ())
    for mark in item.iter_markers('daily')
  )


def _case(item):
  return item.callspec.id if hasattr(item, 'callspec') else ''


def _check_cases(items):
  """Raises UsageError if a test of `items` lacks a case that every run has."""
  missing = {}
  for item in items:
    function = item.nodeid.partition('[')[0]
    for mark in item.iter_markers('daily'):
      wanted = missing.setdefault(function, set(mark.kwargs.get('but', ())))
      wanted.discard(_case(item))
  if lost := {key: sorted(cases) for key, cases in missing.items() if cases}:
    raise pytest.UsageError(f'daily(but=...): no such cases: {lost}')


def _deal(items, num_workers):
  """Deals the tests out to workers, each of which begins with an equal part.

  In each part what may take longest comes first and what is quick comes last,
  as a worker with nothing left takes from the end of another's. Tests that
  have the machine to themselves come after all others, one by one.
  """
  kinds = {'timeout': [], 'slow': [], 'quick': [], 'alone': []}
  for item in items:
    marks = {'quick', *(mark.name for mark in item.iter_markers())}
    first = next(k for k in ('alone', *kinds) if k in marks)
    kinds[first].append(item)
  alone = kinds.pop('alone')
  items.clear()
  for part in range(num_workers):
    for kind in kinds.values():
      first, end = (len(kind) * i // num_workers for i in (part, part + 1))
      items += kind[first:end]
  items += alone


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
  """Lets no test run beside one that is marked as `alone`.

  It is the outermost, so that no test's time-out counts the wait.
  """
  is_alone = item.get_closest_marker('alone')
  # A test that waits holds the door, or others would go in for ever.
  with (
    _locked(_HERE / 'conftest.py', alone=True) as leave_door,
    _locked(_HERE / '__init__.py', is_alone),
  ):
    leave_door()
    return (yield)


@contextlib.contextmanager
def _locked(path, alone):
  """Locks a file, exclusively or shared; yields what unlocks it."""
  with open(path) as file:

    def unlock():
      # Closing is not enough: a forked process may have it open as well.
      fcntl.flock(file, fcntl.LOCK_UN)

    fcntl.flock(file, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
    try:
      yield unlock
    finally:
      unlock()
