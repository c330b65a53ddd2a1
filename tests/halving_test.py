"""halving: which rungs there are, by hand."""

import pytest

from distmnist import cli, halving


@pytest.mark.parametrize(
  'trials, eta, name, budget, rungs',
  [
    (
      12,
      3,
      'train_steps',
      '900',
      [(12, '--train_steps=100'), (4, '--train_steps=300')]
      + [(1, '--train_steps=900')],
    ),
    (
      8,
      2,
      'epochs',
      '4',
      [(8, '--epochs=0.5'), (4, '--epochs=1'), (2, '--epochs=2')]
      + [(1, '--epochs=4')],
    ),
    (
      7,
      4,
      'train_steps',
      '10',
      [(7, '--train_steps=2')] + [(1, '--train_steps=10')],
    ),
    (2, 3, 'epochs', '1.5', [(2, '--epochs=1.5')]),
    (3, 3, 'epochs', '1', [(3, '--epochs=0.3333333333'), (1, '--epochs=1')]),
  ],
)
def test_rungs(trials, eta, name, budget, rungs):
  assert halving.compute_rungs(trials, eta, name, budget) == rungs


def test_the_rungs_cost_what_the_docstring_says():
  n, eta = 81, 3
  rungs = halving.compute_rungs(n, eta, 'train_steps', '8100')
  steps = [int(flag.partition('=')[2]) for _, flag in rungs]
  # A rung goes on from the one before it.
  cost = sum(
    number * (now - before)
    for (number, _), now, before in zip(rungs, steps, [0, *steps], strict=False)
  )
  assert [number for number, _ in rungs] == [81, 27, 9, 3, 1]
  assert 0 < cost <= (4 + 1) / eta**4 * n * 8100


@pytest.mark.parametrize('budget', ['0', '-3', 'x', 'nan', 'inf', '1.5'])
def test_a_budget_that_is_none_is_refused(budget):
  with pytest.raises(cli.UsageError, match=f'--train_steps={budget}: expected'):
    halving.compute_rungs(9, 3, 'train_steps', budget)


def test_a_first_rung_without_a_step_is_refused():
  with pytest.raises(cli.UsageError, match='=8 is too little for --halving=3'):
    halving.compute_rungs(9, 3, 'train_steps', '8')
