"""Writes the list of train's flags that launch checks them by.

  python -m scripts.train_flags          writes launching/train_flags.json
  python -m scripts.train_flags FILE     writes FILE

To be run after a flag of train was added, removed or given another type,
default or bound. The list is made from the flags of train itself, imported; it
lacks those of libraries and of other packages, which may differ elsewhere.
"""

import json
import pathlib
import sys

from absl import flags

from distmnist import train  # noqa: F401  All its flags.
from distmnist.common.names import PACKAGE, ROOMS_OF_FLAGS
from distmnist.launching.train_flags import MANIFEST

# What a parser calls its type -> the function of absl.flags that makes one.
_KINDS = {
  'bool': 'bool',
  'comma separated list of strings': 'list',
  'float': 'float',
  'int': 'integer',
  'string': 'string',
  'string enum': 'enum',
}


def describe(flag):
  """Returns the arguments of train_flags._define_flag, a dict, for a flag."""
  parser = flag.parser
  kind = _KINDS[parser.flag_type()]
  found = {'kind': kind, 'default': flag.default}
  if kind == 'enum' and flag.name in ROOMS_OF_FLAGS:
    found['room'] = ROOMS_OF_FLAGS[flag.name]
  elif kind == 'enum':
    found['enum_values'] = parser.enum_values
  for bound in 'lower_bound', 'upper_bound':
    if getattr(parser, bound, None) is not None:
      found[bound] = getattr(parser, bound)
  return found


def run():
  path = pathlib.Path(*sys.argv[1:]) if sys.argv[1:] else MANIFEST
  found = {
    flag.name: describe(flag)
    for module, its_flags in flags.FLAGS.flags_by_module_dict().items()
    if module.startswith(f'{PACKAGE}.')
    for flag in its_flags
  }
  # A line each: a change of a flag is a change of its line.
  lines = (f'  "{name}": {json.dumps(found[name])}' for name in sorted(found))
  path.write_text('{\n' + ',\n'.join(lines) + '\n}\n')


if __name__ == '__main__':
  run()
