"""Timelines in Chrome's trace format, and one of all tasks of a run.

ui.perfetto.dev and chrome://tracing open them. They show a task as a process,
and what it did in a row per kind: compute, pull, push, wait. Events of one kind
that overlap get rows of their own.
"""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Sequence
from typing import Any

from distmnist.common import files, layout

NAME = 'timeline.json'
# Kind: its colour, one of the names that Chrome reserves.
KINDS = {
  'compute': 'thread_state_running',
  'pull': 'rail_response',
  'push': 'rail_load',
  'wait': 'grey',
}
_ROWS_OF_A_KIND = 1000

# `task` and `name` are texts, `kind` is one of KINDS, `start` and `micros` are
# microseconds of one clock, and `args` is a dict.
Event = dict[str, Any]


def lay_out(events: Sequence[Event]) -> dict[str, Any]:
  """Returns the trace of events, for JSON."""
  tasks = sorted({event['task'] for event in events}, key=_order)
  first = min((event['start'] for event in events), default=0)
  found = []
  for pid, task in enumerate(tasks, 1):
    found.append(_make_meta('process_name', pid, name=task))
    found.append(_make_meta('process_sort_index', pid, sort_index=pid))
    for number, kind in enumerate(KINDS):
      mine = [e for e in events if (e['task'], e['kind']) == (task, kind)]
      for row, some in enumerate(_share_out(mine)):
        tid = _ROWS_OF_A_KIND * number + row + 1
        name = kind if row == 0 else f'{kind} {row + 1}'
        found.append(_make_meta('thread_name', pid, tid, name=name))
        found.append(_make_meta('thread_sort_index', pid, tid, sort_index=tid))
        found += [_make_event(event, pid, tid, first) for event in some]
  return {'traceEvents': found, 'distmnist': {'start': first}}


def read(trace: dict[str, Any]) -> list[Event]:
  """The inverse of `lay_out`: returns the events of a trace."""
  names = {
    event['pid']: event['args']['name']
    for event in trace['traceEvents']
    if event['name'] == 'process_name'
  }
  first = trace['distmnist']['start']
  return [
    {
      'task': names[event['pid']],
      'kind': event['cat'],
      'name': event['name'],
      'start': event['ts'] + first,
      'micros': event['dur'],
      'args': event['args'],
    }
    for event in trace['traceEvents']
    if event['ph'] == 'X'
  ]


def merge(logdir: str) -> str | None:
  """Writes one timeline of what all workers have traced.

  Returns:
    Its path, or None if there is no trace.

  Raises:
    OSError: it cannot be written.
  """
  pattern = layout.metrics_dir(glob.escape(logdir), 'worker_*/trace_*.json')
  events = []
  for path in sorted(glob.glob(pattern)):
    try:
      with open(path, encoding='utf-8') as file:
        events += read(json.load(file))
    except (OSError, ValueError, KeyError, TypeError):
      continue  # Cut off, or of another version.
  if not events:
    return None
  path = os.path.join(logdir, NAME)
  with files.replacing(path) as file:
    json.dump(lay_out(events), file)
  return path


def _share_out(events: Sequence[Event]) -> list[list[Event]]:
  """Returns `events` in rows, none with two that overlap."""
  rows: list[list[Event]] = []
  for event in sorted(events, key=lambda e: (e['start'], -e['micros'])):
    for row in rows:
      if row[-1]['start'] + row[-1]['micros'] <= event['start']:
        row.append(event)
        break
    else:
      rows.append([event])
  return rows


def _make_event(
  event: Event, pid: int, tid: int, first: float
) -> dict[str, Any]:
  return {
    'ph': 'X',
    'pid': pid,
    'tid': tid,
    'ts': round(event['start'] - first, 3),
    'dur': event['micros'],
    'name': event['name'],
    'cat': event['kind'],
    'cname': KINDS[event['kind']],
    'args': event['args'],
  }


def _make_meta(
  what: str, pid: int, tid: int = 0, **args: Any
) -> dict[str, Any]:
  return {'ph': 'M', 'pid': pid, 'tid': tid, 'name': what, 'args': args}


def _order(task: str) -> tuple[bool, int]:
  job, _, index = task.partition(' ')
  return job != 'ps', int(index or 0)
