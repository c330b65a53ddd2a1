"""Owners of a folder, and what stands in their file."""

import json
import os

from distmnist.common import owner


def make(folder):
  """Returns the owner.Owner of a folder, which has not taken it."""
  return owner.Owner('--logdir', str(folder))


def take(folder, **kwargs):
  """Returns an Owner that has taken the folder."""
  it = make(folder)
  it.take(**kwargs)
  return it


def rewrite(folder, **fields):
  """Changes what the file says."""
  [path] = folder.glob('distmnist-files/owner.json.*')
  path.write_text(json.dumps(json.loads(path.read_text()) | fields))
  return path


def be_elsewhere(folder, silent_secs=0.0):
  """Makes the owner one of another machine, last seen so long ago."""
  path = rewrite(folder, machine='another', host='elsewhere')
  stat = path.stat()
  os.utime(path, (stat.st_atime, stat.st_mtime - silent_secs))
  return path


class Clock:
  """Stands for sleep, and for what the other does meanwhile."""

  def __init__(self, do):
    self.num_looks = 0
    self._do = do

  def __call__(self, secs):
    self.num_looks += 1
    assert self.num_looks < 100
    self._do()
