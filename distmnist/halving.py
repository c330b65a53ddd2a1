"""Successive halving: many trials for a few steps, few for many.

Jamieson & Talwalkar 2016, arXiv 1502.07943. With n trials, a factor eta and the
budget B of a whole training, s = floor(log_eta(n)), rung k = 0..s has

  n_k = floor(n / eta^k) trials, each until it has done B / eta^(s - k)

and the n_(k+1) best of them go on from where they are. So the rungs cost about
as much as each other, and all of them (s + 1) / eta^s * n whole trainings at
most. A trial that learns slowly at first is lost: the price of the bet.
"""

import math

from distmnist import cli

# The flags that say how long a training is.
BUDGETS = ('train_steps', 'epochs')


def compute_rungs(num_trials, eta, name, budget):
  """Returns [(number of trials, flag of train), ...], a pair a rung.

  Args:
    num_trials: int >= 1.
    eta: int >= 2.
    name: one of BUDGETS.
    budget: str, the value of that flag for a whole training.

  Raises:
    cli.UsageError: it is no number above 0, or the first rung has no step.
  """
  try:
    whole = int(budget) if name == 'train_steps' else float(budget)
  except ValueError:
    whole = 0
  if not 0 < whole < math.inf:
    raise cli.UsageError(f'--{name}={budget}: expected a number above 0')
  last = 0
  while eta ** (last + 1) <= num_trials:
    last += 1
  parts = [whole / eta ** (last - rung) for rung in range(last + 1)]
  if name == 'train_steps':
    if parts[0] < 1:
      raise cli.UsageError(
        f'--train_steps={whole} is too little for --halving={eta}: '
        f'{num_trials} trials make {last + 1} rungs, of which the first has '
        f'1 / {eta**last} of the steps'
      )
    parts = [round(part) for part in parts]
  return [
    (num_trials // eta**rung, f'--{name}={part:.10g}')
    for rung, part in enumerate(parts)
  ]
