"""Means of steps: none is left out, no line is of two epochs, lines are few."""

import math

import pytest

from distmnist.training.telemetry import step_means


def run(steps, metric_every=1, epoch_steps=100):
  """Returns the lines of (global step, loss)."""
  lines = []
  means = step_means.StepMeans(
    ('loss', 'accuracy'),
    lambda step: 1 + (step - 1) // epoch_steps,
    lambda **fields: lines.append(fields),
  )
  for i, (step, loss) in enumerate(steps):
    values = {'global_step': step, 'loss': loss, 'staleness': 7}
    if i % metric_every == 0:
      values['accuracy'] = loss / 2
    means.add(values)
  means.flush()
  means.flush()
  return lines


def test_the_lines_have_all_steps_and_their_means():
  losses = {step: float(step % 7) for step in range(1, 351)}
  lines = run(losses.items())
  assert sum(line['steps'] for line in lines) == 350
  before = 0
  for line in lines:
    mean = sum(losses[s] for s in range(before + 1, line['step'] + 1))
    mean /= line['step'] - before
    assert line['metrics']['loss'] == pytest.approx(mean)
    assert line['metrics']['accuracy'] == pytest.approx(mean / 2)
    assert line['steps'] == line['step'] - before
    before = line['step']


def test_a_line_ends_with_the_epoch():
  lines = run((step, 1.0) for step in range(1, 351))
  ends = {line['epoch']: line['step'] for line in lines}
  assert ends == {1: 100, 2: 200, 3: 300, 4: 350}
  # The steps of another worker may be those at an epoch's end.
  lines = run((step, 1.0) for step in range(1, 351, 3))
  of_first = sum(line['steps'] for line in lines if line['epoch'] == 1)
  assert of_first == 34  # 1, 4, ... 100.


def test_many_short_epochs_share_lines(monkeypatch):
  steps = [(step, 1.0) for step in range(1, 10_001)]
  lines = run(steps, epoch_steps=1)
  assert len(lines) < 800
  epoch = 0  # Each is in one line.
  for line in lines:
    assert line.get('first_epoch', line['epoch']) == epoch + 1
    epoch = line['epoch']
    assert line['steps'] == 1 + epoch - line.get('first_epoch', epoch)
  assert epoch == 10_000
  # All have one if there are few, or they are long, or begin once more.
  assert len(run(steps[:500], epoch_steps=1)) == 500
  back = run(steps[:1001] + steps[900:910], epoch_steps=1)
  assert [x['epoch'] for x in back if x['step'] == 1001]
  monkeypatch.setattr(step_means, '_EPOCH_SECS', 0.0)
  lines = run(steps[:5000], epoch_steps=1)
  assert [line['epoch'] for line in lines] == [*range(1, 5001)]


def test_lines_become_rare_while_a_run_grows_longer():
  def count(steps):
    return len(run((1 + i / 1e6, 1.0) for i in range(steps)))

  assert count(20) == 20
  for steps in 1000, 20_000:
    assert count(steps) == pytest.approx(
      20 + 20 * math.log(steps / 20), rel=0.3
    )


def test_a_metric_that_not_every_step_fetches_has_the_mean_of_those_it_has():
  lines = run(((step, float(step)) for step in range(1, 101)), metric_every=50)
  assert lines[0]['metrics'] == {'loss': 1.0, 'accuracy': 0.5}
  assert 'accuracy' not in lines[1]['metrics']
  assert sum('accuracy' in line['metrics'] for line in lines) == 2


def test_a_center_that_is_set_back_begins_another_line():
  steps = [(step, 1.0) for step in (*range(1, 151), *range(90, 121))]
  lines = run(steps)
  assert sum(line['steps'] for line in lines) == len(steps)
  at = [line['step'] for line in lines]
  assert at[at.index(150) + 1] <= 100
