"""Which launch has begun a run that --resume asked for, and from what.

A chief that is killed and started again learns here whether the one before it
had done what --resume says.
"""

import json
import os

from distmnist.common import files
from distmnist.common.names import LAUNCH_ID

_FILE = 'begin.json'


def write(logdir, path):
  """Notes that this launch has begun its run; without a launcher, nothing.

  Args:
    logdir: str.
    path: str, the checkpoint that it begins with; None for the first weights.

  Raises:
    OSError: the file cannot be written.
  """
  launch = os.environ.get(LAUNCH_ID)
  if not launch:  # Then nobody starts this process again.
    return
  with files.replacing(os.path.join(logdir, _FILE)) as file:
    json.dump({'launch': launch, 'from': path}, file)


def read(logdir):
  """Returns {'launch': ..., 'from': path} as written; {} if nothing was."""
  return files.read_dict(os.path.join(logdir, _FILE))


def has_begun(logdir):
  """Whether this launch has written the file; True if no launch is known."""
  launch = os.environ.get(LAUNCH_ID)
  return not launch or read(logdir).get('launch') == launch
