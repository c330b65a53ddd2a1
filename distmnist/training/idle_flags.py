"""Which of the given flags are for another rule, net or schedule than chosen.

The help text of a flag begins with what it is for, such as `bmuf:` or `mlp,
dnn:`, the values of --strategy, --model or --lr_schedule. Under another value a
flag has no effect. That is no mistake where flags are shared by several
trainings (a sweep over rules, a --flagfile), but it may be one elsewhere: a
rate for each worker, and the rule forgotten that reads it.
"""

import re

from absl import flags

from distmnist.common.names import PACKAGE

FLAGS = flags.FLAGS
_CHOICES = 'strategy', 'model', 'lr_schedule'
# absl puts the values of an enum flag before its help text.
_FOR = re.compile(r'(?:<.*?>: )?((?:\w+, )*\w+): ')
_LOCAL = 'local_optimizer', 'local_learning_rate'


def describe(rule, strategy, has_model=True):
  """Returns a list of str, one line for each flag that is for something else.

  Args:
    rule: str, the name of the strategy.
    strategy: strategy.Strategy.
    has_model: bool, whether --model is trained.
  """
  given, lines = _find_given(), []
  for choice in _CHOICES:
    values = set(FLAGS[choice].parser.enum_values)
    chosen = rule if choice == 'strategy' else FLAGS[choice].value
    for flag in given:
      found = _FOR.match(flag.help)
      names = found[1].split(', ') if found else []
      is_known = values.issuperset(names) and (has_model or choice != 'model')
      if names and is_known and chosen not in names:
        lines.append(
          f'{_show(flag)} is for --{choice}={", ".join(names)}, and this is '
          f'{chosen}'
        )
  if not strategy.has_local_steps:
    lines += [
      f'{_show(flag)} is for strategies with local steps, and {rule} has none'
      for flag in given
      if flag.name in _LOCAL
    ]
  return lines


def _find_given():
  """Returns our flags that are not as by default, sorted by name."""
  return [
    FLAGS[name]
    for name in sorted(FLAGS)
    if FLAGS[name].value != FLAGS[name].default
    and FLAGS.find_module_defining_flag(name).startswith(f'{PACKAGE}.')
  ]


def _show(flag):
  return flag.serialize().splitlines()[0]
