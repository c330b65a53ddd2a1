"""tensorboard: the event files, read back as TensorBoard does."""

import struct

import pytest

from distmnist.sweeps import trials

pytest.importorskip('tensorboard', reason='needs TensorBoard')

from tensorboard.compat.proto import event_pb2  # noqa: E402
from tensorboard.plugins.hparams import (  # noqa: E402
  api_pb2,
  metadata,
)

from distmnist.sweeps import tensorboard  # noqa: E402


def read(folder):
  """Returns ({tag: content of an HParams summary}, {tag: (step, number)})."""
  [path] = folder.glob('events.out.tfevents.*')
  infos, scalars, data = {}, {}, path.read_bytes()
  while data:
    # Length, its checksum, the message, its checksum.
    (size,) = struct.unpack('<Q', data[:8])
    event = event_pb2.Event.FromString(data[12 : 12 + size])
    data = data[16 + size :]
    for value in event.summary.value:
      if value.metadata.plugin_data.plugin_name == 'hparams':
        infos[value.tag] = value.metadata.plugin_data.content
      else:
        scalars[value.tag] = (event.step, value.simple_value)
  return infos, scalars


RESULT = {
  'validation_accuracy': 0.875,
  'test_accuracy': 0.75,
  'final_loss': None,
  'global_step': 90,
}


@pytest.fixture
def two(tmp_path):
  """A trial that is done, and one that has diverged."""
  found = trials.make_trials(
    [
      {'learning_rate': '0.1', 'strategy': 'ssp', 'use_locking': 'true'},
      {'learning_rate': '1e3', 'strategy': '7', 'use_locking': 'false'},
    ],
    str(tmp_path),
  )
  for trial in found:
    trial.begin()
  found[0].state, found[0].results, found[0].secs = trials.DONE, [RESULT], 2.5
  found[1].state = trials.DIVERGED
  return found


def test_the_experiment_has_each_flag_with_its_kind_and_values(two, tmp_path):
  tensorboard.Writer(two, str(tmp_path))
  infos, scalars = read(tmp_path)
  experiment = metadata.parse_experiment_plugin_data(
    infos['_hparams_/experiment']
  )
  assert [
    (info.name, info.type, list(info.domain_discrete))
    for info in experiment.hparam_infos
  ] == [
    ('learning_rate', api_pb2.DATA_TYPE_FLOAT64, [0.1, 1000]),
    ('strategy', api_pb2.DATA_TYPE_STRING, ['ssp', '7']),
    ('use_locking', api_pb2.DATA_TYPE_BOOL, [True, False]),
  ]
  assert [info.name.tag for info in experiment.metric_infos] == [
    *('validation_accuracy', 'test_accuracy', 'final_loss', 'secs'),
  ]
  assert not scalars


def test_many_numbers_are_a_range(tmp_path):
  found = trials.make_trials([{'x': str(i)} for i in range(13)], str(tmp_path))
  tensorboard.Writer(found, str(tmp_path))
  experiment = metadata.parse_experiment_plugin_data(
    read(tmp_path)[0]['_hparams_/experiment']
  )
  (info,) = experiment.hparam_infos
  assert (info.domain_interval.min_value, info.domain_interval.max_value) == (
    0,
    12,
  )


def test_a_trial_has_its_flags_its_numbers_and_its_end(two, tmp_path):
  writer = tensorboard.Writer(two, str(tmp_path))
  for trial in two:
    writer.write(trial)
    writer.write(trial)  # Once is enough.
  infos, scalars = read(tmp_path / '01')
  start = metadata.parse_session_start_info_plugin_data(
    infos['_hparams_/session_start_info']
  )
  assert start.group_name == '01'
  assert start.hparams['learning_rate'].number_value == 0.1
  assert start.hparams['strategy'].string_value == 'ssp'
  assert start.hparams['use_locking'].bool_value is True
  assert scalars == {
    'validation_accuracy': (90, 0.875),
    'test_accuracy': (90, 0.75),
    'secs': (90, 2.5),
  }
  end = metadata.parse_session_end_info_plugin_data(
    infos['_hparams_/session_end_info']
  )
  assert end.status == api_pb2.STATUS_SUCCESS
  assert end.end_time_secs - start.start_time_secs == pytest.approx(2.5)


def test_the_seeds_of_a_combination_are_one_group(two, tmp_path):
  one, other = two
  other.combination, other.repeat = one.combination, 1
  writer = tensorboard.Writer(two, str(tmp_path))
  names = set()
  for trial in two:
    writer.write(trial)
    infos, _ = read(tmp_path / trial.name)
    start = metadata.parse_session_start_info_plugin_data(
      infos['_hparams_/session_start_info']
    )
    names.add(start.group_name)
  assert names == {'01'}


def test_a_trial_that_diverged_is_a_failure_until_it_runs_again(two, tmp_path):
  writer = tensorboard.Writer(two, str(tmp_path))
  writer.write(two[1])
  infos, scalars = read(tmp_path / '02')
  end = metadata.parse_session_end_info_plugin_data(
    infos['_hparams_/session_end_info']
  )
  assert end.status == api_pb2.STATUS_FAILURE
  assert 'test_accuracy' not in scalars
  tensorboard.forget(two[1])
  two[1].state, two[1].results = trials.DONE, [RESULT]
  writer.write(two[1])
  assert read(tmp_path / '02')[1]['test_accuracy'] == (90, 0.75)
