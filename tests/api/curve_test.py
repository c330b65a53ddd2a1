"""curve: the cost of a training, from what it prints."""

import pytest

from distmnist.api import curve as curve_lib


def test_lines_with_a_step_have_the_cost():
  curve = curve_lib.Curve()
  for line, is_point in (
    ('distmnist.launch: 1 ps and 2 workers on this machine', False),
    ('step 1/80  epoch 0.03  cost 0.8341', True),
    (
      'step 80/80  epoch 2.00  cost 2.73e-02  6.71 ms/step  18 examples/s',
      True,
    ),
    ('final cost          0.0273', False),
  ):
    assert curve.take(line) == is_point
  assert (curve.steps, curve.costs) == ([1, 80], [0.8341, 0.0273])


def test_it_is_drawn():
  pytest.importorskip('matplotlib')
  curve = curve_lib.Curve()
  curve.take('step 1/80  epoch 0.03  cost 0.8341')
  axes = curve.plot()
  assert axes.get_xlabel() == 'global step'
  assert curve.plot(axes) is axes and len(axes.lines) == 2
