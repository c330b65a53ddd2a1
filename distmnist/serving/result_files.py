"""What a model returns for each example, on the screen and in files.

.csv     file, index, then a column for each value; name_0, name_1 ... for an
         output with several
.jsonl   one example per line: {"file": ..., "index": ..., "output": ...}; null
         for a number that is not finite, which JSON does not have
.npz     an array [n, ...] for each output; bfloat16 as float32

An output of the name `file` or `index` is called output_file, output_index.
"""

import csv
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, NamedTuple

import numpy as np

from distmnist.common import cli, files
from distmnist.watching import metrics_line

# {name of an output: array [n, ...]}.
Results = Mapping[str, np.ndarray]

_ENDINGS = '.csv', '.jsonl', '.npz'
# The names of what tells where an example came from.
_TAKEN = 'file', 'index'
_NUM_SHOWN = 10
_NUM_VALUES = 6  # Of an array, on the screen.


class Part(NamedTuple):
  """The examples of one file; `is_single`: the file is one, as a PNG."""

  path: str
  num_examples: int
  is_single: bool = False


def check(path: str) -> None:
  """Raises cli.UsageError or cli.RunError if nothing can be written there."""
  if reason := files.find_obstacle(path):
    raise cli.RunError(f'--output={path} cannot be written: {reason}')
  if os.path.splitext(path)[1].lower() not in _ENDINGS:
    raise cli.UsageError(
      f'--output={path}: expected a name that ends in one of '
      f'{", ".join(_ENDINGS)}'
    )


def write(path: str, parts: Sequence[Part], results: Results) -> None:
  """Writes the results, whole or not at all, as the path's ending says.

  Args:
    path: see `check`.
    parts: where the examples come from, in the order of the results.
    results: of all of them.

  Raises:
    cli.RunError: it cannot be written.
  """
  ending = os.path.splitext(path)[1].lower()
  results = {
    f'output_{name}' if name in _TAKEN else name: array
    for name, array in results.items()
  }
  places = [(part.path, i) for part in parts for i in range(part.num_examples)]
  try:
    with files.replacing(path, 'wb' if ending == '.npz' else 'w') as out:
      if ending == '.npz':
        arrays = {n: _as_saved(a) for n, a in results.items()}
        np.savez(out, **arrays)  # type: ignore[arg-type]  (no allow_pickle)
      elif ending == '.jsonl':
        _write_jsonl(out, places, results)
      else:
        _write_csv(out, places, results)
  except OSError as error:
    raise cli.RunError(
      f'--output={path} cannot be written: {error.strerror}'
    ) from error


def _write_jsonl(
  out: IO[str], places: Sequence[tuple[str, int]], results: Results
) -> None:
  for i, place in enumerate(places):
    row = dict(zip(_TAKEN, place, strict=True))
    row |= {n: _as_json(array[i]) for n, array in results.items()}
    out.write(json.dumps(metrics_line.clean(row)) + '\n')


def _write_csv(
  out: IO[str], places: Sequence[tuple[str, int]], results: Results
) -> None:
  flat = {}
  for name, array in results.items():
    if array.ndim == 1:
      flat[name] = array
      continue
    columns = array.reshape(len(array), -1)
    flat |= {f'{name}_{i}': columns[:, i] for i in range(columns.shape[1])}
  writer = csv.writer(out)
  writer.writerow([*_TAKEN, *flat])
  for i, place in enumerate(places):
    # str of a NumPy float is the shortest that reads back as the same.
    writer.writerow([*place, *(_as_text(array[i]) for array in flat.values())])


def format_lines(
  parts: Sequence[Part],
  results: Results,
  output: str | None,
  describe: Callable[[str, object], str],
) -> Iterator[str]:
  """Yields the lines to print: the first examples of each file.

  Args:
    parts, results: see `write`.
    output: the file that has all of them.
    describe: the text of one output (name, value) of an example; '' for what is
      not printed.
  """
  start = 0
  for path, size, is_single in parts:
    num_shown = min(size, _NUM_SHOWN)
    for i in range(num_shown):
      texts = [describe(n, array[start + i]) for n, array in results.items()]
      place = path if is_single else f'{path}[{i}]'
      yield '  '.join([place, *filter(None, texts)])
    start += size
    if num_left := size - num_shown:
      where = f'in {output}' if output else 'with --output=FILE.csv'
      yield f'{path}: and {num_left:,} more, {where}'


def describe(name: str, value: object) -> str:
  """Returns 'scores 0.25 0.75', at most six values of one array."""
  values = np.asarray(value).reshape(-1)
  texts = [
    f'{each:.4g}' if isinstance(each, np.floating) else str(_as_json(each))
    for each in values[:_NUM_VALUES]
  ]
  return ' '.join([name, *texts, *(['...'] * (len(values) > _NUM_VALUES))])


def _as_json(value: object) -> object:
  if isinstance(value, np.ndarray | np.generic):
    value = value.tolist()
  if isinstance(value, list):
    return [_as_json(each) for each in value]
  if isinstance(value, complex):
    return str(value)
  return value.decode('utf-8', 'replace') if isinstance(value, bytes) else value


def _as_text(value: object) -> str:
  return str(_as_json(value) if isinstance(value, bytes) else value)


def _as_saved(array: np.ndarray) -> np.ndarray:
  if array.dtype.kind == 'V':  # A type that NumPy cannot read back: bfloat16.
    return array.astype(np.float32)
  return array.astype(bytes) if array.dtype.kind == 'O' else array
