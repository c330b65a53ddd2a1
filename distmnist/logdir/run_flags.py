"""The flags of a run, as its log directory keeps them."""

import os

from absl import flags

from distmnist.common import cli, files, help_text
from distmnist.storage import paths

FLAGS = flags.FLAGS
_FLAGS_FILE = 'train.flags'
# The file of --problem, as it was when the run last began.
PROBLEM_FILE = 'problem.py'
# Flags that concern one task alone.
_NOT_KEPT = 'logdir', 'fed_dir'


def ours():
  """Returns the flags that distmnist defines, a list of absl Flags."""
  modules = FLAGS.flags_by_module_dict()
  return [
    flag
    for name in sorted(modules)
    if help_text.is_ours(name)
    for flag in modules[name]
  ]


def path_in(logdir):
  """Returns the path of the file of flags in a log directory."""
  return os.path.join(logdir, _FLAGS_FILE)


def write(logdir):
  """Keeps the flags of this process; `evaluate` then needs none of them."""
  with files.replacing(path_in(logdir)) as file:
    file.writelines(
      flag.serialize() + '\n'
      for flag in ours()
      if flag.name not in _NOT_KEPT and flag.value is not None
    )


def are_kept(logdir):
  """Whether `write` has kept the flags of a run in `logdir`."""
  return paths.exists(path_in(logdir))


def find_changed(logdir, names):
  """Returns the first flag of `names` that differs from what `write` kept.

  Args:
    logdir: str.
    names: list of str; one that was not kept had its default, as `write` keeps
      all but those that are None.

  Returns:
    (then, now), two str such as '--model=cnn', or None if none differs or
    nothing was kept.
  """
  try:
    kept = read(logdir)
  except cli.RunError:
    return None
  for name in names:
    flag = FLAGS[name]
    # A flag may take several words, and a Boolean one may begin with `no`.
    keys = {f'--{name}'} | ({f'--no{name}'} if flag.boolean else set())
    then = [word for word in kept if word.partition('=')[0] in keys]
    now = flag.serialize().splitlines()
    if then != now and (then or flag.value != flag.default):
      return tuple(' '.join(words) or f'no --{name}' for words in (then, now))
  return None


def read(logdir):
  """Returns the list of flags that `write` has kept.

  Raises:
    cli.RunError: there are none.
  """
  path = path_in(logdir)
  try:
    return paths.read_text(path).splitlines()
  except (OSError, ValueError) as error:
    reason = getattr(error, 'strerror', None) or 'it is damaged'
    raise cli.choose_error(error)(
      f'no run of distmnist.train in --logdir={logdir}: {path} cannot be read '
      f'({reason})'
    ) from error
