"""Writes dicts as the YAML that a person would write.

Only what a manifest needs: dicts, lists, tuples, strings, whole numbers and
booleans. A string that YAML would read as something else is quoted, so that
whatever comes from a flag stays a string.
"""

import json
import re

# Words and flags: --ps_hosts=a:2222,b:2222 or nvidia.com/gpu.
_PLAIN = re.compile(r'(--?|/)?[A-Za-z]([A-Za-z0-9_./=,:+@-]*[A-Za-z0-9_/])?')
_QUANTITY = re.compile(r'[1-9][0-9]*(m|k|M|G|T|Ki|Mi|Gi|Ti)')
# What YAML 1.1, which kubectl reads, takes for a boolean or for nothing.
_NO_STRINGS = {'y', 'n', 'yes', 'no', 'on', 'off', 'true', 'false', 'null'}


def dump(documents):
  """Returns `documents` as one text (str).

  Args:
    documents: list of (comment, dict). The comment is a str of any number of
      lines, '' for none. In a dict a list has a line an element, a tuple is
      written in one line: [a, b].
  """
  texts = []
  for comment, document in documents:
    lines = [f'# {line}'.rstrip() for line in comment.splitlines()]
    texts.append('\n'.join([*lines, *_to_lines(document)]) + '\n')
  return '---\n'.join(texts)


def _to_lines(value):
  if not _is_block(value):
    return [_to_inline(value)]
  lines = []
  if isinstance(value, list):
    for element in value:
      first, *rest = _to_lines(element)
      lines += [f'- {first}', *(f'  {line}' for line in rest)]
    return lines
  for key, element in value.items():
    key = _to_inline(key)
    if _is_block(element):
      margin = '' if isinstance(element, list) else '  '
      lines.append(f'{key}:')
      lines += [margin + line for line in _to_lines(element)]
    else:
      lines.append(f'{key}: {_to_inline(element)}')
  return lines


def _is_block(value):
  return isinstance(value, (dict, list)) and bool(value)


def _to_inline(value):
  if isinstance(value, tuple):
    elements = (
      _quote(e) if isinstance(e, str) and ',' in e else _to_inline(e)
      for e in value
    )
    return f'[{", ".join(elements)}]'
  if isinstance(value, (dict, list)):
    return '{}' if isinstance(value, dict) else '[]'
  if isinstance(value, bool):
    return str(value).lower()
  if isinstance(value, int):
    return str(value)
  is_plain = _PLAIN.fullmatch(value) and value.lower() not in _NO_STRINGS
  if is_plain or _QUANTITY.fullmatch(value):
    return value
  return _quote(value)


def _quote(text):
  # JSON's quotes are YAML's, but for what cannot be printed.
  return ''.join(
    char if char.isprintable() else f'\\U{ord(char):08x}'
    for char in json.dumps(text, ensure_ascii=False)
  )
