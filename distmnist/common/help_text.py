"""What a program's --help and --helpfull print: its flags, by subject."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Collection, Iterable, Mapping

from absl import flags

from distmnist.common.names import PACKAGE

FLAGS = flags.FLAGS
_WIDTH = 80
# The subject of each package's flags, in the order in which readers want them.
_SUBJECTS = {
  'cluster': 'The cluster',
  'launching': 'Tasks and their logs',
  'launchers': 'Launchers',
  'spark': 'Spark',
  'sweeps': 'Sweeps',
  'strategies': 'Update rules',
  'exchange': 'The center, and what moves',
  'transport': 'The center, and what moves',
  'tables': 'Tables of rows',
  'models': 'Models',
  'nn': 'Optimizer, learning rate and layers',
  'datasets': 'Data sets',
  'readers': 'Data sets',
  'problems': 'The images',
  'data': 'Images and batches',
  'training': 'Steps, validation and reports',
  'train': 'A run of train',
  'logdir': 'Checkpoints and the log directory',
  'lifecycle': 'Heartbeats and lost tasks',
  'serving': 'Serving',
  'common': 'Help',
}


_added: set[str] = set()


def add_ours(module_name: str) -> None:
  """Counts a module of the user's as one of distmnist's."""
  _added.add(module_name)


def is_ours(module_name: str) -> bool:
  """Whether flags of this module (absl's name for it) are distmnist's."""
  # absl files the flags of __main__ under the path of the program.
  return module_name in {sys.argv[0], *_added} or module_name.startswith(
    f'{PACKAGE}.'
  )


def make(
  program: str,
  module_name: str,
  first: Collection[str] = (),
  is_full: bool = False,
  is_shown: Callable[[str], bool] = lambda name: True,
) -> str:
  """Returns the text of --help.

  Args:
    program: what a user types.
    module_name: of the program; its docstring comes first.
    first: names of the flags that matter most; by default the program's own.
    is_full: for --helpfull: all flags are explained, including those of
      libraries; else only the first are, and the others are listed by name.
    is_shown: whether the program reads a flag, by its name.
  """
  own = {module_name, sys.argv[0]}
  subjects = _choose(_group(own), is_shown)
  if not (first or is_full):
    first = [flag.name for flag in subjects.get('This program', [])]
  about = sys.modules[module_name].__doc__ or ''  # None with python -OO.
  lines = [f'{program}: {about.strip()}', '']
  if is_full:
    libraries = _choose(_group_libraries(), is_shown)
    for subject, found in (subjects | libraries).items():
      lines += [f'{subject}:', *map(_explain, found), '']
  else:
    if first:
      lines += ['The flags that matter most:']
      lines += [*(_explain(FLAGS[name]) for name in first), '']
    others = 'All others' if first else 'All flags'
    lines += [f'{others}, explained by --helpfull:']
    for subject, found in subjects.items():
      names = [_name(flag) for flag in found if flag.name not in first]
      if names:
        lines += [f'  {subject}', _wrap(', '.join(names), '    ')]
    lines.append('')
  lines.append('--flagfile=FILE reads flags from a file; later flags win.')
  return '\n'.join(lines)


def _group(own: Collection[str]) -> dict[str, list[flags.Flag]]:
  """Returns {subject: its flags}; `own` are names of modules."""
  found: dict[str, list[flags.Flag]] = {
    name: [] for name in ('This program', *_SUBJECTS.values())
  }
  # Flags of a launcher that are defined in another file.
  adopted = {
    flag.name: module
    for module, its_flags in FLAGS.key_flags_by_module_dict().items()
    for flag in its_flags
  }
  for module, its_flags in FLAGS.flags_by_module_dict().items():
    for flag in its_flags:
      home = adopted.get(flag.name, module)
      if home in own:
        found['This program'].append(flag)
      elif is_ours(home):
        is_packaged = home.startswith(f'{PACKAGE}.')
        room = home.split('.')[1] if is_packaged else 'Yours'
        found.setdefault(_SUBJECTS.get(room, room), []).append(flag)
  return _sort(found)


def _choose(
  subjects: Mapping[str, Iterable[flags.Flag]],
  is_shown: Callable[[str], bool],
) -> dict[str, list[flags.Flag]]:
  """Returns the {subject: its flags} of which some are shown."""
  chosen = {
    subject: [flag for flag in found if is_shown(flag.name)]
    for subject, found in subjects.items()
  }
  return {subject: found for subject, found in chosen.items() if found}


def _group_libraries() -> dict[str, list[flags.Flag]]:
  return _sort(
    {
      f'Library {module}': its_flags
      for module, its_flags in FLAGS.flags_by_module_dict().items()
      if not is_ours(module)
    }
  )


def _sort(
  subjects: Mapping[str, Iterable[flags.Flag]],
) -> dict[str, list[flags.Flag]]:
  """Returns the subjects that have flags, each flag once, sorted by name."""
  return {
    subject: sorted({f.name: f for f in found}.values(), key=lambda f: f.name)
    for subject, found in subjects.items()
    if found
  }


def _name(flag: flags.Flag) -> str:
  return f'--[no]{flag.name}' if flag.boolean else f'--{flag.name}'


def _explain(flag: flags.Flag) -> str:
  """Returns a flag's explanation, default and bounds."""
  # absl adds that a flag can be given again, as our own texts say.
  text = (flag.help or '').partition(';\n    repeat this option')[0]
  notes = []
  if choices := getattr(flag.parser, 'enum_values', None):
    text = text.partition('>: ')[2]  # absl puts the choices first.
    notes.append(f'one of {", ".join(choices)}')
  if flag.default not in (None, [], ''):
    notes.append(f'default: {str(flag.default_as_str).strip(chr(39))}')
  if flag.parser.syntactic_help:
    notes.append(flag.parser.syntactic_help)
  text = f'{_name(flag)}: {text}'
  if notes:
    text += f' ({"; ".join(notes)})'
  return _wrap(text, '  ', '    ')


def _wrap(text: str, indent: str, next_indent: str | None = None) -> str:
  return textwrap.fill(
    ' '.join(text.split()),
    _WIDTH,
    initial_indent=indent,
    subsequent_indent=indent if next_indent is None else next_indent,
    break_long_words=False,
    break_on_hyphens=False,
  )
