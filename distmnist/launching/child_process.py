"""A child that ends with its parent, and takes its process group with it."""

import contextlib
import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def die_with_parent():
  """Has the kernel kill this process once its parent ends, however it ends."""
  ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def has_ended(pid):
  """Whether a child has ended and waits to be reaped; kills its group then.

  Whatever the child has started is killed before the child is reaped: until
  then no other process group can have this number.
  """
  flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
  if os.waitid(os.P_PID, pid, flags) is None:
    return False
  with contextlib.suppress(ProcessLookupError, PermissionError):
    os.killpg(pid, signal.SIGKILL)
  return True
