"""Which numbers of a line go to a logger."""

import types

from distmnist.watching import forwarding


def test_samples_and_evaluations_have_numbers():
  lines = [
    {'kind': 'start', 'task': 'ps 0', 'time': 1},
    {'kind': 'sample', 'task': 'ps 0', 'time': 2, 'rss_bytes': 5, 'cost': None},
    {
      **{'kind': 'sample', 'task': 'worker 0', 'time': 3, 'step': 9},
      **{'state': 'training', 'cost': 1.5, 'metrics': {'accuracy': 0.5}},
    },
    {
      **{'kind': 'evaluation', 'task': 'evaluator 0', 'time': 4, 'step': 8},
      **{'split': 'test', 'metrics': {'accuracy': 0.75, 'mae': None}},
    },
    {'kind': 'event', 'task': 'launcher', 'time': 5, 'event': 'ended'},
  ]
  assert list(forwarding.find_numbers(lines)) == [
    ('ps 0', 2, None, {'rss_bytes': 5}),
    ('worker 0', 3, 9, {'cost': 1.5, 'accuracy': 0.5}),
    ('test', 4, 8, {'accuracy': 0.75}),
  ]


def test_the_flags_are_those_of_the_launcher():
  state = types.SimpleNamespace(launcher={'flags': ['--model=cnn', '--x']})
  run = types.SimpleNamespace(state=state)
  assert forwarding.find_flags(run) == {'model': 'cnn', 'x': ''}
  state.launcher = {'flags': ['--logdir', '/a/run', '--x', '-5', '--y=1=2']}
  assert forwarding.find_flags(run) == {
    'logdir': '/a/run',
    'x': '-5',
    'y': '1=2',
  }
  state.launcher = None
  assert forwarding.find_flags(run) == {}
