"""Which checkpoints stay in a folder: the latest, and what these need.

A partial checkpoint (common/partial_names.py) is of no use without its base, so
that one stays as long as it does.
"""

import contextlib
import os

from distmnist.common import files
from distmnist.logdir import checkpoint_reader, checkpoints
from distmnist.storage import urls


class KeptCheckpoints:
  """Lists the checkpoints of a folder for TensorFlow, and drops the oldest."""

  def __init__(self, folder, max_to_keep):
    """
    Args:
      folder: str.
      max_to_keep: int, how many stay there besides what they need.
    """
    self._folder = folder
    self._max_to_keep = max_to_keep
    self._bases = {}

  def find_base(self, path):
    """Returns the path (str) of a partial checkpoint's base; None if whole."""
    if path not in self._bases:
      self._bases[path] = checkpoint_reader.find_base(path)
    return self._bases[path]

  def is_partial(self, path):
    """Whether `find_base` or `add` has found a base; asks no store."""
    return bool(self._bases.get(path))

  def add(self, path, may_be_partial):
    """Lists a new checkpoint, and drops those that it replaces.

    Args:
      path: str, already there.
      may_be_partial: bool; if not, nobody has to look.
    """
    self._bases.pop(path, None)
    if not may_be_partial:
      self._bases[path] = None
    before = [
      p for p in checkpoints.list_checkpoints(self._folder) if p != path
    ]
    latest = [path, *before[: self._max_to_keep - 1]]
    needed = {*latest, *map(self.find_base, latest)}
    self._note([p for p in [path, *before] if p in needed])
    for old in before:
      if old not in needed:
        with contextlib.suppress(OSError):
          checkpoints.remove(old)

  def _note(self, paths):
    """Writes TensorFlow's list of checkpoints, `paths`, latest first."""
    # Names alone: the folder may be moved.
    names = [os.path.basename(path) for path in paths]
    lines = [f'model_checkpoint_path: "{names[0]}"']
    lines += [f'all_model_checkpoint_paths: "{n}"' for n in reversed(names)]
    with files.replacing(os.path.join(self._folder, 'checkpoint')) as file:
      file.write('\n'.join(lines) + '\n')
    if not urls.is_remote(self._folder):
      files.sync(self._folder)
