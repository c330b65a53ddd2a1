"""The metrics of this process, for any module that adds to them."""

import contextlib

from distmnist.watching import sampler

_of_process = None


@contextlib.contextmanager
def kept(logdir, task, life, every_secs, collect=dict, sinks=()):
  """Keeps metrics of this process in the block; yields the Sampler, or None.

  Args:
    logdir: str, or None to keep nothing.
    task: str, such as 'ps 0'.
    life: str, different in each process.
    every_secs: float, from one sample to the next.
    collect, sinks: see sampler.Sampler.
  """
  global _of_process
  if not logdir:
    yield None
    return
  mine = sampler.Sampler(logdir, task, life, every_secs)
  mine.collect = collect
  mine.sinks += sinks
  _of_process = mine.start()
  error = 'ended amid its work'
  try:
    yield mine
    error = ''
  except BaseException as raised:
    error = ' '.join(str(raised).split()) or type(raised).__name__
    raise
  finally:
    _of_process = None
    mine.close(error)


def write(kind, **fields):
  """Writes a line, if the metrics of this process are kept."""
  if _of_process:
    _of_process.write(kind, **fields)


def are_kept():
  """Whether there are samples of this process."""
  return bool(_of_process)


def sample():
  """Has a sample written now; does not wait."""
  write('sample')


def collect_by(collect):
  """Adds what `collect`, a callable() -> dict, returns to the samples."""
  if _of_process:
    _of_process.collect = collect
