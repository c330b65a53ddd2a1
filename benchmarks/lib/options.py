"""Parts of the benchmarks' command lines."""

import argparse


def make_parser(doc):
  """Returns an ArgumentParser whose --help is a program's docstring."""
  return argparse.ArgumentParser(
    description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
  )


def cut(words):
  """Returns (words before a '--', words after it)."""
  at = words.index('--') if '--' in words else len(words)
  return words[:at], words[at + 1 :]


def count(text):
  """Parses a number of 1 or more, for argparse's type."""
  if not text.isdecimal() or int(text) < 1:
    raise argparse.ArgumentTypeError(f'{text!r}: expected 1 or more')
  return int(text)


def names_of(known, may_be_none=False):
  """Returns a parser of comma-separated names, for argparse's type.

  Args:
    known: names, str; any other is a command-line error.
    may_be_none: bool, whether an empty text means no names.
  """

  def parse(text):
    names = text.split(',') if text or not may_be_none else []
    for name in names:
      if name not in known:
        raise argparse.ArgumentTypeError(
          f'{name!r} is none of {", ".join(known)}'
        )
    return names

  return parse
