"""results: what is taken from a report, and by what trials are compared."""

import pytest

from distmnist.common import cli
from distmnist.sweeps import results


def test_it_has_the_metric_by_which_it_is_judged():
  found = results.take(
    {
      'judged_by': '-mse',
      'validation_metrics': {'mse': 0.5, 'mae': 1.0},
      'test_metrics': {'mse': 0.25},
      'global_step': 7,
      'host': 'a',
    }
  )
  assert found['validation_mse'] == 0.5 and found['test_mse'] == 0.25
  assert found['global_step'] == 7 and 'host' not in found
  assert results.is_result(found)
  assert results.read_metric([found]) == ('validation_mse', -1)
  # Where one trial of a sweep has no validation, all are compared by the test.
  other = {**found, 'validation_mse': None}
  assert results.read_metric([found, other]) == ('test_mse', -1)
  assert results.read_metric([]) == ('validation_accuracy', 1)
  # Without either it is the training data that all have.
  trained = results.take({'judged_by': '-mse', 'train_metrics': {'mse': 1.0}})
  assert results.read_metric([trained]) == ('train_mse', -1)


def test_by_speed_no_metric_is_needed_but_kept():
  report = {'examples_per_sec': 500.0, 'test_accuracy': 0.5}
  found = results.take(report, results.SPEED)
  assert results.is_result(found)
  assert results.read_metric([found]) == ('examples_per_sec', 1)
  assert results.choose_value(found) == ('examples_per_sec', 500)
  assert found['test_accuracy'] == 0.5
  assert results.is_result(results.take({'examples_per_sec': 1}, results.SPEED))
  with pytest.raises(ValueError, match='no examples_per_sec: .* --train_secs'):
    results.take({'test_accuracy': 0.5}, results.SPEED)


def test_trials_of_two_metrics_are_not_compared():
  auc = {'judged_by': '+auc', 'test_auc': 0.5}
  with pytest.raises(cli.RunError, match=r"by '\+accuracy' and .* '\+auc'"):
    results.read_metric([auc, {'test_accuracy': 0.5}])
  with pytest.raises(cli.RunError, match='accuracy of other examples'):
    results.read_metric([{'test_accuracy': 0.5}, {'validation_accuracy': 0.5}])


@pytest.mark.parametrize(
  'value',
  [
    {},
    {'test_accuracy': None},
    {'test_accuracy': 0.5, 'validation_accuracy': float('nan')},
    {'test_accuracy': 0.5, 'final_loss': 10**400},
    {'test_accuracy': 0.5, 'global_step': 1.5},
    {'test_accuracy': 0.5, 'judged_by': '-mse'},
    {'test_accuracy': 0.5, 'judged_by': '+examples_per_sec'},
    {'test_accuracy': 0.5, 'host': 1},
  ],
)
def test_what_no_table_can_show_is_no_result(value):
  assert not results.is_result(value)


@pytest.mark.parametrize(
  'report, message',
  [
    ({}, 'it has no accuracy'),
    ({'test_accuracy': 'good'}, 'not all are numbers'),
    # Otherwise it would change by what the others are compared.
    (
      {
        'judged_by': '-mse',
        'validation_metrics': {'mse': None},
        'test_metrics': {'mse': 1.0},
      },
      'its validation_mse is not a finite number',
    ),
  ],
)
def test_a_report_without_a_number_is_none(report, message):
  with pytest.raises(ValueError, match=message):
    results.take(report)
