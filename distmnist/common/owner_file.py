"""What a file says of the process that owns something: whether it is alive.

Processes of several machines read it (owner.py). A process id means
something on one machine only, and only until it is reused, so the file also
names the machine, and when the process was started.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Mapping
from typing import Any

from distmnist.storage import process_tag


def describe_self(run: str | None = None) -> dict[str, Any]:
  """Returns what the file says about this process.

  Args:
    run: what all lives of one training have in common; a new one if None.
  """
  return {
    'life': secrets.token_hex(8),
    'run': run or secrets.token_hex(8),
    'host': socket.gethostname(),
    'pid': os.getpid(),
    'since': time.strftime('%Y-%m-%d %H:%M:%S'),
    'machine': process_tag.read_machine(),
    'start': process_tag.read_start(os.getpid()),
    'has_ended': False,
  }


def describe(found: Mapping[str, Any]) -> str:
  """Returns the pid, host and start of the process `found`, for people."""
  if not found:
    return 'a process that its file does not name'
  return (
    f'process {found.get("pid")} of host {found.get("host")} since '
    f'{found.get("since")}'
  )


def is_alive_here(found: Mapping[str, Any]) -> bool:
  """Whether `found` is a living process of this machine."""
  return _is_of_this_machine(found) and not _has_ended(found)


def is_known_dead(found: Mapping[str, Any]) -> bool:
  """Whether `found` is a process of this machine that has ended."""
  return _is_of_this_machine(found) and _has_ended(found)


def _is_of_this_machine(found: Mapping[str, Any]) -> bool:
  machine = found.get('machine')
  return machine is not None and machine == process_tag.read_machine()


def _has_ended(found: Mapping[str, Any]) -> bool:
  if found.get('has_ended'):
    return True
  start = process_tag.read_start(found['pid'])
  # A process id is reused after a while.
  return start is None or start != found['start']
