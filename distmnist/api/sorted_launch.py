"""`distmnist.launch` for flags in any order, as a call in Python gives them.

  python -m distmnist.api.sorted_launch --num_workers=3 --strategy=easgd

Those that launch knows go before the --, the others after it.
"""

import sys

from absl import flags

from distmnist import launch


def sort(words):
  """Returns the flags (list of str) as launch takes them."""
  ours, others = [], []
  for word in words:
    name = word.removeprefix('--').partition('=')[0]
    is_ours = {name, name.removeprefix('no')} & {*flags.FLAGS}
    (ours if is_ours else others).append(word)
  return [*ours, '--', *others]


if __name__ == '__main__':
  sys.argv[1:] = sort(sys.argv[1:])
  launch.run()
