"""--template: the command that has a scheduler run one task. Pure.

  qsub -N {name} -o {log} {script}

`{command}` is the task as one word for a shell, `{script}` the path of a file
that contains it, `{name}` the task's name and `{log}` a file for what the
scheduler itself writes.
"""

from __future__ import annotations

import shlex
import string

from distmnist.common import cli

FIELDS = ('command', 'script', 'name', 'log')


def check(flag: str, template: str) -> None:
  """Refuses a template with which no task would run.

  Args:
    flag: the flag's name.

  Raises:
    cli.UsageError: `template` is wrong; says why.
  """
  expected = f'expected {{command}} or {{script}} once, as in {_EXAMPLE}'
  try:
    parts = list(string.Formatter().parse(template))
  except ValueError as error:
    raise cli.UsageError(
      f'--{flag}={template}: {error}: write {{{{ and }}}} for literal braces'
    ) from error
  for _, name, spec, conversion in parts:
    if spec or conversion:
      raise cli.UsageError(
        f'--{flag}={template}: {{{name}}} takes no conversion or format: write'
        ' it without what follows the name'
      )
  fields = [name for _, name, _, _ in parts if name is not None]
  unknown = [name for name in fields if name not in FIELDS]
  if unknown:
    raise cli.UsageError(
      f'--{flag}={template}: {{{unknown[0]}}} is not known: expected'
      f' {", ".join(f"{{{name}}}" for name in FIELDS)}; write {{{{ and }}}} for'
      ' literal braces'
    )
  if sum(name in ('command', 'script') for name in fields) != 1:
    raise cli.UsageError(f'--{flag}={template}: {expected}')


_EXAMPLE = "--template='qsub -N {name} -o {log} {script}'"


def fill(template: str, command: str, script: str, name: str, log: str) -> str:
  """Returns the command for a shell; the arguments are unquoted."""
  return template.format(
    command=shlex.quote(command),
    script=shlex.quote(script),
    name=name.replace(' ', '_'),
    log=shlex.quote(log),
  )
