"""A line of metrics.jsonl: how it is written, and which lines are ours.

metrics.schema.json defines the fields.
"""

import json
import math
import re
from collections.abc import Callable, Iterable
from typing import Any

# A line as JSON has it.
Line = dict[str, Any]

_TASK = re.compile(r'launcher|(ps|worker|evaluator) \d{1,7}')
# What a launcher tells of, which may be a part of it, too.
_PART = re.compile(r'(?!(ps|worker|evaluator)\b)\w[\w ]*|' + _TASK.pattern)
# By the year 5138, so that any calendar has it.
_MAX_TIME = 1e11


def clean(value: Any, shorten: Callable[[float], float] = float) -> Any:
  """Returns `value` as JSON has it, with None for floats that are not finite.

  Args:
    value: a nest of dicts, lists and tuples.
    shorten: changes each finite float.
  """
  if isinstance(value, dict):
    return {str(name): clean(x, shorten) for name, x in value.items()}
  if isinstance(value, (list, tuple)):
    return [clean(x, shorten) for x in value]
  if hasattr(value, 'item'):  # From NumPy.
    value = value.item()
  if not isinstance(value, float):
    return value
  return shorten(value) if math.isfinite(value) else None


def shorten(value: float) -> float:
  """Returns a number with fewer digits, as JSON has it."""
  return round(value, 3) if abs(value) >= 1e6 else float(f'{value:.7g}')


def format_lines(lines: Iterable[Line]) -> bytes:
  """Returns the bytes of a file with these lines."""
  return ''.join(f'{json.dumps(line)}\n' for line in lines).encode()


def _is_number(value: Any) -> bool:
  return isinstance(value, (int, float)) and math.isfinite(value)


def _is_whole(value: Any) -> bool:
  return isinstance(value, int) and abs(value) < 2**63


def _is_text(value: Any) -> bool:
  return isinstance(value, str)


def _are_texts(value: Any) -> bool:
  return isinstance(value, list) and all(map(_is_text, value))


def _are_named_texts(value: Any) -> bool:
  return isinstance(value, dict) and all(map(_is_text, value.values()))


def _are_parts(value: Any) -> bool:
  return _are_texts(value) and all(map(_PART.fullmatch, value))


def _are_numbers(value: Any) -> bool:
  """Whether it is a dict of numbers, or of None for those not finite."""
  return isinstance(value, dict) and all(
    number is None or _is_number(number) for number in value.values()
  )


def _is_histogram(value: Any) -> bool:
  return _are_numbers(value) and all(
    name.isdecimal() and isinstance(number, int)
    for name, number in value.items()
  )


def _are_steps(value: Any) -> bool:
  """Whether it is a list of pairs of global steps."""
  return isinstance(value, list) and all(
    isinstance(pair, list)
    and len(pair) == 2
    and all(isinstance(step, int) for step in pair)
    for pair in value
  )


def _is_process(value: Any) -> bool:
  return isinstance(value, dict) and isinstance(value.get('pid'), int)


# The fields that something is computed from, and what each has to be unless it
# is None, which those of _NEVER_NONE are not. Others may say what they like.
_FIELDS: dict[str, Callable[[Any], bool]] = {
  'time': lambda value: _is_number(value) and 0 <= value < _MAX_TIME,
  'task': lambda value: _is_text(value) and bool(_TASK.fullmatch(value)),
  'about': lambda value: _is_text(value) and bool(_PART.fullmatch(value)),
  'tasks': _are_parts,
  'waiting': _are_texts,
  'flags': _are_texts,
  'process': _is_process,
  'versions': _are_named_texts,
  'staleness': _is_histogram,
  'sessions': _are_steps,
  'rows': _are_numbers,
  'metrics': _are_numbers,
  **dict.fromkeys(
    (
      *('kind', 'life', 'state', 'text', 'unit', 'launch', 'event', 'split'),
      'host',
    ),
    _is_text,
  ),
  **dict.fromkeys(('attempt', 'code', 'last_step', 'step'), _is_whole),
  **dict.fromkeys(
    (
      *('loss', 'cpu_cores', 'cpu_secs', 'every_secs'),
      *('epoch', 'examples', 'local_steps', 'rss_bytes'),
      *('bytes_pulled', 'bytes_pushed', 'received_bytes', 'sent_bytes'),
      *('examples_per_sec', 'received_bytes_per_sec', 'sent_bytes_per_sec'),
      *('staleness_mean', 'batch_size', 'begun', 'bytes_sent'),
      *('bytes_received', 'nonfinite_pushes', 'pushes', 'timed_steps'),
      'first_epoch',
      *('timed_examples_of_all', 'train_secs', 'steps'),
    ),
    _is_number,
  ),
}
_NEVER_NONE = 'attempt', 'tasks'
# What each line has to have, and each of a kind, or event, besides.
_NEEDED = 'time', 'task', 'life', 'kind'
_NEEDED_BY: dict[Any, tuple[str, ...]] = {
  'sample': ('state',),
  'end': ('ok', 'text'),
  'event': ('event',),
  'evaluation': ('split', 'metrics', 'step'),
  'means': ('step', 'epoch', 'steps', 'metrics'),
  'started': ('about',),
  'ended': ('about', 'code'),
}


def parse(text: bytes) -> Line | None:
  """Returns one line, or None if it is not one of ours.

  The folder is shared: another version, another tool or another user may have
  written there, and what reads the lines relies on their fields.
  """
  try:
    line = json.loads(text)
    needed = [
      *_NEEDED,
      *_NEEDED_BY.get(line['kind'], ()),
      *_NEEDED_BY.get(line.get('event'), ()),
    ]
    if any(line.get(name) is None for name in needed):
      return None
    for name, value in line.items():
      if value is None and name not in _NEVER_NONE:
        continue
      if name in _FIELDS and not _FIELDS[name](value):
        return None
    return line
  except (
    *(ValueError, TypeError, KeyError, AttributeError),
    *(RecursionError, OverflowError),  # Deep nests, huge whole numbers.
  ):
    return None
