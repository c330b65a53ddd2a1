"""keras_checks: tried where it is used, and here by itself."""

import keras
import pytest

from distmnist import runtime
from distmnist.training.problems import keras_checks


@pytest.mark.parametrize(
  'name', ['train_step', 'test_step', 'compute_loss', 'compute_metrics']
)
def test_each_step_of_a_model_s_own_is_named(name):
  with runtime.eagerly():
    model = type('Mine', (keras.Sequential,), {name: lambda self: None})()
  with pytest.raises(ValueError, match=rf'^Mine has a {name}\(\) of its own'):
    keras_checks.check(model)


def test_what_keras_trains_without_more_ado_passes():
  with runtime.eagerly():
    bfloat16 = keras.layers.Dense(2, dtype='mixed_bfloat16')
    model = keras.Sequential([keras.Input([3]), bfloat16])
  keras_checks.check(model)
