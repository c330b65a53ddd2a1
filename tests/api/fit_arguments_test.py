"""fit_arguments: what Keras's fit takes, and what of the data is judged on."""

import numpy as np
import pytest

from distmnist.api import fit, fit_arguments

X, Y = np.arange(10.0), np.arange(10)


@pytest.mark.parametrize(
  'name, instead',
  [
    ('callbacks', 'early_stopping_patience'),
    ('sample_weight', 'a loss of its own'),
    ('verbose', 'log_secs'),
  ],
)
def test_what_is_for_keras_is_refused_with_what_to_do(name, instead):
  with pytest.raises(ValueError, match=f'{name} is for Keras.*{instead}'):
    fit.fit(None, X, Y, **{name: 1})
  fit_arguments.check(['epochs', 'validation_steps'])


def test_the_last_part_is_judged_on_in_place_of_trained():
  x = {'a': X, 'b': X + 1}
  splits = fit_arguments.make_splits(x, Y, None, 0.25)
  (x_train, y_train), (x_judged, y_judged) = splits.values()
  # Of 10, 7.5 are trained on: 7, as by Keras.
  assert x_train['b'].tolist() == [*range(1, 8)]
  assert x_judged['b'].tolist() == [8, 9, 10]
  assert y_train.tolist() == [*range(7)] and y_judged.tolist() == [7, 8, 9]


@pytest.mark.parametrize('y', [{'a': Y, 'b': Y}, (Y, Y)])
def test_what_several_outputs_need_is_told_at_the_call(y):
  with pytest.raises(ValueError, match='y has 2 arrays, .* write a file with'):
    fit_arguments.make_splits(X, y, None, None)


def test_without_a_part_all_is_trained_on():
  splits = fit_arguments.make_splits(X, Y, None, None)
  assert len(splits) == 1 and splits['train'][0] is X
  splits = fit_arguments.make_splits(X, Y, (X[:2], Y[:2]), None)
  assert [len(x) for x, _ in splits.values()] == [10, 2]


@pytest.mark.parametrize('part', [1, 1.5, -0.5, 0.99])
def test_a_part_that_leaves_one_side_empty_is_refused(part):
  with pytest.raises(ValueError, match=f'validation_split={part:g} of 10 exam'):
    fit_arguments.make_splits(X, Y, None, part)


def test_either_the_part_or_the_data_is_given():
  with pytest.raises(ValueError, match='expected one'):
    fit_arguments.make_splits(X, Y, (X, Y), 0.5)
