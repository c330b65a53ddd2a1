"""The formulas are found by optimizer; sparse_updates_test.py computes them."""

import pytest

from distmnist.nn import optimizers, row_formulas, sparse_updates


@pytest.mark.parametrize('name', sparse_updates.NUM_SLOTS)
def test_an_optimizer_with_tables_has_a_formula_of_its_slots(name):
  formula = row_formulas.find(optimizers.make_optimizer(name, 0.1))
  assert len(formula.slots) == sparse_updates.NUM_SLOTS[name]


def test_every_optimizer_is_one_or_the_other():
  known = {*sparse_updates.NUM_SLOTS, *sparse_updates.WITHOUT}
  assert known == {*optimizers.OPTIMIZERS}
