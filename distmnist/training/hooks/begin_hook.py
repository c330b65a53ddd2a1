"""Records in the log directory that a run has begun."""

import tensorflow.compat.v1 as tf

from distmnist.logdir import logdirs
from distmnist.training import run_folder


class BeginHook(tf.train.SessionRunHook):
  """Records in the log directory that a run begins or resumes, once it does.

  If the start fails, or the run is already at its end, what the last life left
  stays as it is.
  """

  def __init__(self, logdir, images, problem):
    """
    Args:
      logdir: str.
      images, problem: see run_folder.write_run.
    """
    self._logdir = logdir
    self._images = images
    self._problem = problem
    self._has_begun = False

  def before_run(self, run_context):
    if not self._has_begun:
      run_folder.write_run(self._logdir, self._images, self._problem)

  def after_run(self, run_context, run_values):
    if not self._has_begun:
      self._has_begun = True
      logdirs.remove_report(self._logdir)
