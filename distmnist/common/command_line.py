"""Parses a command line into flags: flag files, values, clear messages.

A flag file is UTF-8 text, one flag per line, as --name=value or --name value;
lines that start with # or //, and what follows a # after a space, are comments.
A # in a text in quotes is none; the quotes belong to the value.
If there is no file configs/NAME, it is the one shipped with distmnist.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Iterable, Sequence

from absl import flags

from distmnist.common.names import PACKAGE_DIR
from distmnist.storage import urls

# The most that a flag can hold in a graph: int64.
_MAX_INT = 2**63 - 1
_PATHS = (
  *('logdir', 'resume', 'checkpoint'),
  *('output', 'inputs', 'images', 'labels'),
)
# The path flags that may be the address of a store.
_ADDRESSES = ('logdir', 'data_dir', 'export_dir', 'resume', 'checkpoint')


class FlagFileError(flags.Error):
  """A --flagfile cannot be read."""


# A text in quotes, or a comment. The one in it's does not begin a text.
_COMMENT = re.compile(r"""((?<!\w)"[^"]*"|(?<!\w)'[^']*')|(?:^|\s)#.*""")
# Mistakes found while modules were imported: the next `parse` of the process's
# flags raises the first, where a program can say it in one line.
import_errors: list[Exception] = []


def parse(
  values: flags.FlagValues, argv: Sequence[str], known_only: bool = False
) -> list[str]:
  """Sets the flags of `values` from `argv`.

  Args:
    values: where the flags are defined.
    argv: program name first.
    known_only: whether unknown flags are allowed.

  Returns:
    The words that are not flags.

  Raises:
    flags.Error: one line that names the flag and what was expected.
    Exception: the first of `import_errors`.
  """
  program, *words = argv
  words = expand(words)
  if values is flags.FLAGS and import_errors:
    raise import_errors[0]
  try:
    rest = values([program, *words], known_only=known_only)[1:]
  except (flags.IllegalFlagValueError, ValueError) as error:
    # absl also lets a ValueError out: --noname=1 does not take an argument.
    raise flags.IllegalFlagValueError(_reword(str(error))) from error
  check_values(values)
  return rest


def expand(words: Iterable[str], _open: tuple[str, ...] = ()) -> list[str]:
  """Returns `words` with the content of each --flagfile in its place.

  Raises:
    FlagFileError: a file cannot be read.
  """
  found = []
  words = list(words)
  while words:
    word = words.pop(0)
    if word == '--':
      return [*found, word, *words]
    name, equals, path = word.partition('=')
    if name not in ('--flagfile', '-flagfile'):
      found.append(word)
      continue
    if not equals:
      if not words:
        raise FlagFileError('--flagfile needs the path of a file')
      path = words.pop(0)
    path = _find(path)
    if path in _open:
      raise FlagFileError(f'--flagfile={path} reads itself')
    found += expand(_read(path), (*_open, path))
  return found


def fits_in_file(word: str) -> bool:
  """Whether a flag file can hold a word of a command line as it is."""
  with contextlib.suppress(FlagFileError):
    return _parse(word, '') == [word]
  return False


def find_value(words: Sequence[str], name: str) -> str | None:
  """Returns the last value of a flag among `words`, or None.

  Args:
    words: without --flagfile.
    name: of a flag that takes a value.
  """
  found = None
  for i, word in enumerate(words):
    flag, equals, value = word.partition('=')
    if flag in (f'--{name}', f'-{name}'):
      found = value if equals else ''.join(words[i + 1 : i + 2])
  return found


def check_values(values: flags.FlagValues) -> None:
  """Checks what the types of the flags alone do not ensure.

  Raises:
    flags.IllegalFlagValueError: a number is not finite or exceeds int64, or a
      path is an address that cannot be used.
  """
  for name in values:
    flag = values[name]
    if not flag.present:
      continue
    many = flag.value if isinstance(flag.value, list) else [flag.value]
    for value in many:
      expected = None
      if isinstance(value, float) and not math.isfinite(value):
        expected = 'expected a finite number'
      elif type(value) is int and abs(value) > _MAX_INT:
        expected = f'expected a number of at most {_MAX_INT}'
      elif _is_path(name) and urls.is_remote(str(value)):
        expected = _find_mistake(name, str(value))
      elif _is_path(name) and '\0' in str(value):
        expected = 'expected a path without a NUL'
      elif _is_path(name) and not _is_utf8(str(value)):
        value, expected = ascii(value), 'expected a path in UTF-8'
      if expected:
        raise flags.IllegalFlagValueError(
          _reword(f'flag --{name}={value}: {expected}')
        )


def _is_utf8(text: str) -> bool:
  """Whether a word of the command line was UTF-8."""
  return all(not '\ud800' <= character <= '\udfff' for character in text)


def _find_mistake(name: str, value: str) -> str | None:
  if name in _ADDRESSES:
    return urls.find_mistake(value)
  flags_of_addresses = ', '.join(f'--{known}' for known in _ADDRESSES)
  return (
    'expected a path on this machine: an address of a store (://) can be given '
    f'to {flags_of_addresses} alone'
  )


def _is_path(name: str) -> bool:
  return name.endswith('_dir') or name in _PATHS


def _find(path: str) -> str:
  """Returns the path of a flag file: the user's own, else the one shipped."""
  path = os.path.expanduser(path)
  if not os.path.exists(path) and path.startswith('configs/'):
    # In a wheel the folder is within the package, in a checkout beside it.
    for folder in (PACKAGE_DIR, PACKAGE_DIR.parent):
      if (folder / path).is_file():
        return str(folder / path)
  return path


def _read(path: str) -> list[str]:
  """Returns the flags of a file."""
  try:
    with open(path, encoding='utf-8-sig') as file:
      text = file.read()
  except (OSError, ValueError) as error:
    reason = getattr(error, 'strerror', None) or 'it is not UTF-8 text'
    raise FlagFileError(f'--flagfile={path} cannot be read: {reason}') from None
  return _parse(text, path)


def _parse(text: str, path: str) -> list[str]:
  lines = []
  for line in text.splitlines():
    line = _COMMENT.sub(lambda match: match[1] or '', line).strip()
    if not line or line.startswith('//'):
      continue
    if not re.match(r'--?\w', line) or '\0' in line:
      raise FlagFileError(
        f'--flagfile={path}: {line[:60]!r} is not a flag: expected '
        '--name=value, one a line'
      )
    # Join --name value into one word for the parser.
    lines.append(re.sub(r'^(-[^\s=]+)\s+', r'\1=', line))
  return lines


# What Python or absl says about a word, and what is meant.
_MEANT = (
  (r'invalid literal for int\(\) with base \d+: .*', 'expected a whole number'),
  (r'could not convert string to float: .*', 'expected a number'),
  (r"\('Non-boolean argument to boolean flag', .*\)", 'expected true or false'),
  (r'Exceeds the limit .*', 'expected a shorter number'),
)


def _reword(message: str) -> str:
  for pattern, words in _MEANT:
    message = re.sub(pattern, words, message, flags=re.DOTALL)
  # Show a list as it was given.
  message = re.sub(
    r"=\['([^]]*)'\]", lambda m: '=' + m[1].replace("', '", ','), message
  )
  return re.sub(r'(\S{100})\S{100,}', r'\1...', message)


# A keytab or a key store is a file: its path is no secret, its password is.
_SECRET = re.compile(
  r'password|passwd|secret|token|credential|key(?!tab|store)', re.IGNORECASE
)


def is_secret(name: str) -> bool:
  """Whether others must not see the value of Spark's setting `name`."""
  return bool(_SECRET.search(name))


def hide_secret(setting: str) -> str:
  """Returns `setting` (name=value) for others to read: name=... if secret."""
  name, _, _ = setting.partition('=')
  return f'{name}=...' if is_secret(name) else setting
