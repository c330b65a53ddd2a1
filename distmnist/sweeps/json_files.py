"""JSON files, in which a sweep keeps what it knows."""

import json

from distmnist.common import files


def read(path):
  """Returns the content of the file `path`; raises OSError or ValueError."""
  with open(path, encoding='utf-8') as file:
    return json.load(file)


def write(path, value):
  """Writes `value` to the file `path`, whole or not at all."""
  with files.replacing(path) as file:
    json.dump(value, file, indent=2)
    file.write('\n')
