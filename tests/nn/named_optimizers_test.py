"""named_optimizers: what a name stands for; equations: optimizers_test.py."""

import pytest

from distmnist.nn import named_optimizers, optimizers


def make(name, use_locking):
  common = {'learning_rate': 0.1, 'use_locking': use_locking}
  return named_optimizers.make(name, 0.9, common, {})


@pytest.mark.parametrize('use_locking', [False, True])
def test_every_name_has_an_optimizer_that_locks_if_asked_to(use_locking):
  made = [make(name, use_locking) for name in optimizers.OPTIMIZERS]
  assert all(each._use_locking == use_locking for each in made)
  # Momentum with and without Nesterov's; AdamW is Adam and a decay.
  assert len({type(each) for each in made}) == len(made) - 2
