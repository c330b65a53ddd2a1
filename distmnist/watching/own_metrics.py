"""The metrics of a process, for whatever adds to them."""

import contextlib

from distmnist.watching import sampler


class OwnMetrics:
  """Writes lines to LOGDIR/TASK/metrics.jsonl while they are kept."""

  def __init__(self):
    self._sampler = None

  @contextlib.contextmanager
  def kept(self, logdir, task, life, every_secs, collect=dict, sinks=()):
    """Keeps metrics of this process in the block; yields the Sampler, or None.

    Args:
      logdir: str, or None to keep nothing.
      task: str, such as 'ps 0'.
      life: str, different in each process.
      every_secs: float, from one sample to the next.
      collect, sinks: see sampler.Sampler.
    """
    if not logdir:
      yield None
      return
    mine = sampler.Sampler(logdir, task, life, every_secs)
    mine.collect = collect
    mine.sinks += sinks
    self._sampler = mine.start()
    error = 'ended amid its work'
    try:
      yield mine
      error = ''
    except BaseException as raised:
      error = ' '.join(str(raised).split()) or type(raised).__name__
      raise
    finally:
      self._sampler = None
      mine.close(error)

  def write(self, kind, **fields):
    """Writes a line, if they are kept."""
    sampler = self._sampler  # Another thread may end them.
    if sampler:
      sampler.write(kind, **fields)

  def are_kept(self):
    """Whether there are samples of this process."""
    return bool(self._sampler)

  def sample(self):
    """Has a sample written now; does not wait."""
    self.write('sample')

  def collect_by(self, collect):
    """Adds what `collect`, a callable() -> dict, returns to the samples."""
    if self._sampler:
      self._sampler.collect = collect
