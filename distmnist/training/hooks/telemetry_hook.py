"""What a worker counts, prints and writes of its steps, in order."""

import tensorflow.compat.v1 as tf


class TelemetryHook(tf.train.SessionRunHook):
  """Counts a step before it is shown, and keeps its sums after all counted."""

  def __init__(self, progress, nonfinite, sums, tracer, check_folder):
    """
    Args:
      progress: progress.Progress.
      nonfinite: nonfinite.Counter.
      sums: lives.Sums, of what the others have counted.
      tracer: tracer.Tracer, or None.
      check_folder: callable, called in the first session, when the chief has
        signed its log directory.
    """
    self._progress, self._nonfinite = progress, nonfinite
    self._sums, self._tracer = sums, tracer
    self._check_folder = check_folder
    self._is_checked = False

  def begin(self):
    self._progress.begin()
    self._nonfinite.build()

  def after_create_session(self, session, coord):
    self._progress.begin_session()
    if not self._is_checked:
      self._is_checked = True
      self._check_folder()

  def before_run(self, run_context):
    return self._tracer.choose_args() if self._tracer else None

  def after_run(self, run_context, run_values):
    self._progress.count_run(run_context.session)
    self._nonfinite.look_if_due(run_context.session)
    self._sums.write_if_due()
    if self._tracer:
      self._tracer.write(run_values)

  def end(self, session):
    self._progress.end()
    self._nonfinite.look(session)
    self._sums.end()
    if self._tracer:
      self._tracer.end()
