"""The log directory is told that a run begins, once it has begun."""

import tensorflow.compat.v1 as tf

from distmnist.logdir import logdirs
from distmnist.training import run_folder


class BeginHook(tf.train.SessionRunHook):
  """Notes in the log directory that a run begins, or goes on, once it does.

  A start that fails, or one of a run that is at its end, leaves what the last
  life has left.
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
