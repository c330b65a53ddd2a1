"""fit: a Keras model of the caller's, trained by a cluster."""

import os
import signal
import subprocess
import sys
import tempfile

import keras
import numpy as np
import pytest
import tensorflow as tf

from distmnist import runtime
from distmnist.api import fit, process
from distmnist.common import owner
from tests.support.paths import REPO

X = np.ones([32, 1], np.float32)
with runtime.eagerly():
  MODEL = keras.Sequential()
FIT_ARGUMENTS_X, Y = np.arange(10.0), np.arange(10)


class Stepping(keras.Sequential):
  def train_step(self, data):
    raise NotImplementedError


def test_a_judge_has_a_direction():
  with pytest.raises(ValueError, match=r"^best='auc': expected .*'\+auc'"):
    fit.fit(MODEL, X, X, optimizer='sgd', best='auc')


def test_a_judge_has_the_name_of_the_metric():
  with pytest.raises(ValueError, match=r"^best='\+val_auc': expected '\+auc'"):
    fit.fit(MODEL, X, X, optimizer='sgd', best='+val_auc')
  with pytest.raises(ValueError, match=r"^best='val_auc': expected .*'\+auc'"):
    fit.fit(MODEL, X, X, optimizer='sgd', best='val_auc')


@pytest.mark.parametrize(
  'given, names',
  [
    ({}, {'train'}),
    ({'validation_data': (X, X), 'test_data': (X, X)}, {'validation', 'test'}),
    ({'validation_split': 0.4, 'test_data': (X, X)}, {'validation', 'test'}),
  ],
)
def test_the_splits_have_the_names_of_the_arguments(monkeypatch, given, names):
  found = []
  monkeypatch.setattr(fit, '_train', lambda *args: found.extend(args[2:4]))
  best = '+auc' if 'validation' in names else None
  fit.fit(MODEL, X, X, optimizer='sgd', batch_size=9, best=best, **given)
  splits, settings = found
  assert splits.keys() == names | {'train'}
  assert settings.get('best') == best


@pytest.mark.slow
@pytest.mark.parametrize('resume, is_resumed', [(None, True), ('never', False)])
def test_a_run_that_begins_anew_has_the_model_of_its_call(
  tmp_path, monkeypatch, resume, is_resumed
):
  found = []

  def fill(*args):
    found.append(args[3])
    raise InterruptedError

  monkeypatch.setattr('distmnist.problems.fitted.fill', fill)
  (tmp_path / 'model.ckpt-7.index').touch()
  with runtime.eagerly():
    model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
    model.compile('sgd', 'mse')
    with pytest.raises(InterruptedError):
      fit.fit(model, X, X, logdir=str(tmp_path), resume=resume)
  assert found == [is_resumed]


@pytest.fixture
def small_model():
  with runtime.eagerly():
    model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
    model.compile('sgd', 'mse')
    yield model


@pytest.mark.slow
@pytest.mark.parametrize('file', ['launcher.json', 'owner.json'])
def test_the_folder_of_a_run_that_goes_on_stays_as_it_is(
  tmp_path, small_model, file
):
  fitted = tmp_path / 'distmnist-files' / 'fitted' / 'model.keras'
  fitted.parent.mkdir(parents=True)
  fitted.touch()
  theirs = owner.Owner('--logdir', str(tmp_path), file)
  with theirs:
    theirs.take()
    with pytest.raises(process.Error, match=r'logdir=\S+ is in use by process'):
      fit.fit(small_model, X, X, logdir=str(tmp_path))
  assert fitted.read_bytes() == b''


@pytest.mark.skipif(os.geteuid() != 0, reason='only root can give a file away')
@pytest.mark.parametrize(
  'part',
  [
    '.',
    *(f'distmnist-files{x}' for x in ('', '/fitted', '/fitted/model.keras')),
  ],
)
def test_models_in_the_folder_of_another_user_are_refused(
  tmp_path, small_model, part
):
  fitted = tmp_path / 'distmnist-files' / 'fitted'
  fitted.mkdir(parents=True)
  (fitted / 'model.keras').touch()
  os.chown(tmp_path / part, 12345, 12345)
  with pytest.raises(ValueError, match=r'another user \(uid 12345\): expected'):
    fit.fit(small_model, X, X, logdir=str(tmp_path))


@pytest.mark.parametrize(
  'given, named',
  [
    ({'body/.*': {'learning_rate': 2}}, r"^groups\['body/\.\*'\] matches"),
    ({'.*': {'rate': 2}}, r"^groups\['\.\*'\] has 'rate'"),
  ],
)
def test_wrong_groups_are_refused_before_anything_starts(
  monkeypatch, small_model, given, named
):
  monkeypatch.setattr('distmnist.problems.fitted.fill', pytest.fail)
  with pytest.raises(ValueError, match=named):
    fit.fit(small_model, X, X, groups=given)


def test_a_list_of_numbers_is_no_array():
  message = '0.5 is a single value: expected an array'
  with runtime.eagerly():
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile('sgd', 'mse')
    with pytest.raises(ValueError, match=message):
      fit.fit(model, np.zeros([2, 1]), [0.5, 1.0])


def test_a_store_is_refused_in_one_line():
  with pytest.raises(ValueError, match='is in a store, but fit passes') as why:
    fit.fit(None, None, None, logdir='s3://bucket/run')
  assert '\n' not in str(why.value)


@pytest.mark.parametrize(
  'error, left', [(process.Error('x', 1, []), ['logs']), (KeyError, None)]
)
def test_of_a_temporary_folder_the_logs_that_an_error_names_stay(
  monkeypatch, tmp_path, error, left
):
  monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path))

  def fail(model, logdir, *others):
    for name in 'logs', 'fitted', 'metrics':
      os.makedirs(os.path.join(logdir, name))
    with open(os.path.join(logdir, 'train.flags'), 'w'):
      pass
    raise error

  monkeypatch.setattr(fit, '_train', fail)
  with pytest.raises(type(error) if left else error):
    fit.fit(MODEL, X, X, optimizer='sgd')
  assert [os.listdir(f) for f in tmp_path.iterdir()] == ([left] if left else [])


# A script that is killed while it has a temporary folder.
_KILLED = """
import os, signal
from distmnist.api import fit

with fit._opened(None) as folder:
  os.makedirs(os.path.join(folder, 'logs'))
  if '{left}':
    os.mkdir(os.path.join(folder, '{left}'))
  os.kill(os.getpid(), signal.SIGTERM)
"""


@pytest.mark.slow
def test_what_a_killed_process_has_left_is_removed(monkeypatch, tmp_path):
  env = {**os.environ, 'PYTHONPATH': REPO, 'TMPDIR': str(tmp_path)}
  for left in 'fitted', 'fitted', '':
    command = [sys.executable, '-c', _KILLED.format(left=left)]
    done = subprocess.run(command, env=env, check=False)
    assert done.returncode == -signal.SIGTERM
  # The second process has removed what the first one left.
  assert len(os.listdir(tmp_path)) == 1
  monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path))
  with fit._opened(None) as mine:
    # Another call of a living process.
    os.mkdir(os.path.join(mine, 'fitted'))
    with fit._opened(None):
      pass
    assert os.listdir(mine) == ['fitted']
  # Logs alone are those that an error has named.
  assert [os.listdir(path) for path in tmp_path.iterdir()] == [['logs']]


def test_other_hosts_need_a_logdir_that_they_share():
  with pytest.raises(ValueError, match="launcher='ssh' without logdir: expec"):
    fit.fit(MODEL, X, X, optimizer='sgd', launcher='ssh')


@pytest.mark.parametrize(
  'given, words',
  [
    ({'train_steps': 9}, {'train_steps': 9, 'batch_size': 32}),
    ({'batch_size': None, 'epochs': 2}, {'batch_size': 32, 'epochs': 2}),
    ({'flagfile': 'fit.flags', 'epochs': 2}, {'epochs': 2}),
  ],
)
def test_a_setting_that_is_given_is_not_cut_short(
  monkeypatch, tmp_path, given, words
):
  found = {}
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'fit.flags').write_text('--batch_size=8\n--logdir=run\n')
  monkeypatch.setattr(
    fit, '_train', lambda *args: found.update(args[3], logdir=args[1])
  )
  fit.fit(MODEL, X, X, optimizer='sgd', **given)
  names = 'train_steps', 'batch_size', 'epochs'
  assert {n: x for n, x in found.items() if n in names} == words
  assert (found['logdir'] == 'run') == ('flagfile' in given)


def test_a_model_without_a_shape_is_made_for_what_numpy_takes(monkeypatch):
  def fill(folder, model, *others):
    raise InterruptedError(model.built)

  monkeypatch.setattr('distmnist.problems.fitted.fill', fill)
  with runtime.eagerly():
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile('sgd', 'mse')
    with pytest.raises(InterruptedError, match='True'):
      fit.fit(model, memoryview(X), X)


@pytest.mark.parametrize(
  'name, instead',
  [
    ('callbacks', 'early_stopping_patience'),
    ('validation_freq', 'validation_steps'),
    ('verbose', 'log_secs'),
  ],
)
def test_what_is_for_keras_is_refused_with_what_to_do(name, instead):
  with pytest.raises(ValueError, match=f'{name} is for Keras.*{instead}'):
    fit.fit(None, FIT_ARGUMENTS_X, Y, **{name: 1})
  fit.check_arguments(['epochs', 'validation_steps'])


@pytest.mark.parametrize('name', ['TextVectorization', 'StringLookup'])
def test_a_layer_that_looks_words_up_comes_before_fit(name):
  with runtime.eagerly():
    layer = getattr(keras.layers, name)(name='words')
    inner = keras.Sequential([keras.Input([], dtype='string'), layer])
    model = keras.Sequential([inner])
    model.compile('sgd', 'mse')
    with pytest.raises(
      ValueError, match=r"'words' .* before fit, x = words\(x"
    ):
      fit.fit(model, np.array(['a']), X[:1])


@pytest.mark.parametrize(
  'make, message',
  [
    (lambda: 3, r'the model is of type int: expected a keras\.Model'),
    (
      lambda: keras.Sequential(
        [keras.layers.Dense(1, kernel_constraint='non_neg')]
      ),
      r"'\S*dense\S*/kernel' has a constraint",
    ),
    (
      lambda: keras.Sequential(
        [
          keras.Input(batch_shape=[3, 1]),
          keras.layers.Reshape([1, 1]),
          keras.layers.LSTM(1, stateful=True, name='mine'),
        ]
      ),
      "'mine' is stateful",
    ),
    (
      lambda: keras.Sequential([keras.layers.Dense(1, dtype='mixed_float16')]),
      'computes in float16',
    ),
    (
      lambda: Stepping([keras.layers.Dense(1)]),
      'Stepping has a train_step',
    ),
  ],
)
def test_what_no_rule_can_train_is_refused_before_anything_is_written(
  tmp_path, make, message
):
  with runtime.eagerly():
    model = make()
    if isinstance(model, keras.Model):
      model.compile('sgd', 'mse', auto_scale_loss=False)
    with pytest.raises(ValueError, match=message) as why:
      fit.fit(model, X, X, logdir=str(tmp_path))
  assert '\n' not in str(why.value)
  assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
  'make, said',
  [
    (
      lambda: {'optimizer': keras.optimizers.Adam(0.1)},
      r"^optimizer .* with Adam\(\.\.\.\), or .*'adam'",
    ),
    (
      lambda: {
        'learning_rate': keras.optimizers.schedules.CosineDecay(0.1, 100)
      },
      r'^learning_rate .* Adam\(CosineDecay\(\.\.\.\)\), or .*=0\.01',
    ),
  ],
)
def test_objects_of_keras_are_for_compile(small_model, make, said):
  with pytest.raises(ValueError, match=said) as why:
    fit.fit(small_model, X, X, **make())
  assert '\n' not in str(why.value)


@pytest.mark.parametrize(
  'given, said',
  [
    ({'batch_size': 33}, '^batch_size=33 is larger than the 32 training exa'),
    (
      {'batch_size': 17, 'gradient_accumulation': 2},
      '^batch_size=17 times gradient_accumulation=2 is larger than the 32',
    ),
    ({'validation_split': 0.5}, '^batch_size=32 is larger than the 16'),
    ({'num_ps': 0}, "^num_ps=0: async_sgd.* num_ps=1, or .*'ring_allreduce'"),
    ({'num_ps': 0, 'num_workers': 1}, None),
    ({'num_ps': 0, 'strategy': 'ring_allreduce'}, None),
    ({'batch_size': 16, 'gradient_accumulation': 2}, None),
    ({'batch_size': 'many'}, None),  # launch refuses it.
  ],
)
def test_what_no_cluster_could_train_starts_none(
  monkeypatch, small_model, given, said
):
  started = []
  monkeypatch.setattr(fit, '_train', lambda *args: started.append(args))
  if said is None:
    fit.fit(small_model, X, X, **given)
  else:
    with pytest.raises(ValueError, match=said):
      fit.fit(small_model, X, X, **given)
  assert len(started) == (said is None)


def mine(y, outputs):
  return keras.ops.mean(abs(y - outputs), -1)


@pytest.mark.parametrize(
  'metrics, weighted, taken, refused',
  [
    (['mae'], None, ['-loss', '-mae'], ['-mse', '+val', '-weighted_mae']),
    (['AUC', mine], None, ['+AUC', '-mine'], ['+auc']),
    (
      lambda: [keras.metrics.AUC(name='area')],
      *(['mae'], ['+area', '-mae'], ['+AUC', '+auc']),
    ),
    ([['mae']], ['mae'], ['-mae', '-weighted_mae'], ['-weighted_loss']),
    (None, None, ['-loss'], ['-mae']),
    (lambda: [keras.metrics.AUC], None, ['+auc', '+what'], []),
  ],
)
def test_the_best_is_by_what_is_measured(
  monkeypatch, metrics, weighted, taken, refused
):
  started = []
  monkeypatch.setattr(fit, '_train', lambda *args: started.append(args))
  with runtime.eagerly():
    model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
    made = metrics() if callable(metrics) else metrics
    model.compile('sgd', 'mse', metrics=made, weighted_metrics=weighted)
    for best in taken:
      fit.fit(model, X, X, validation_data=(X, X), best=best)
    assert len(started) == len(taken)
    for best in refused:
      with pytest.raises(ValueError, match='no metric is .* one of .*loss'):
        fit.fit(model, X, X, validation_data=(X, X), best=best)
  assert len(started) == len(taken)


def test_early_stopping_needs_what_to_judge_by(small_model):
  with pytest.raises(ValueError, match='^best=.-loss. needs validation_data'):
    fit.fit(small_model, X, X, best='-loss', test_data=(X, X))
  with pytest.raises(ValueError, match='needs validation_data or validation_'):
    fit.fit(small_model, X, X, early_stopping_patience=2)
  with pytest.raises(ValueError, match='^lr_schedule=plateau needs valid'):
    fit.fit(small_model, X, X, lr_schedule='plateau')


@pytest.mark.parametrize(
  'line, said',
  [
    (
      'distmnist.launch: error: worker 0 (h:1) failed first: --problem=fitted: '
      'fitted.py:7, in build(): it --fails (see distmnist.train --help); log: '
      '/tmp/f/logs/worker_0.log',
      'distmnist.launch: error: worker 0 (h:1) failed first: in build(): it '
      'fails; log: /tmp/f/logs/worker_0.log',
    ),
    ('1 ps and 2 workers here, logs in /tmp/f/logs', '1 ps and 2 workers here'),
    ('model               /tmp/f/model.keras', None),
    ('page                python -m distmnist.report --logdir=/tmp/f', None),
    ('step 1/9  loss 0.5', 'step 1/9  loss 0.5'),
  ],
)
def test_lines_are_in_the_words_of_fit(line, said):
  assert fit.reword_line('/tmp/f', line) == said
  if ': error: ' not in line:  # A folder that stays may be named.
    assert fit.reword_line(None, line) == line


def test_that_there_is_no_gpu_is_no_line_of_a_run():
  line = 'E0000 00:00:1.2 3 cuda_platform.cc:52] failed call to cuInit: x'
  assert fit.reword_line('/tmp/f', line) is fit.reword_line(None, line) is None


@pytest.mark.parametrize(
  'said, is_off, expected',
  [
    ('--noise=0.1 and --normalize', {'shuffle'}, 'noise=0.1 and normalize'),
    ('--noshuffle and --nowait', {'shuffle'}, 'shuffle and nowait'),
  ],
)
def test_a_setting_has_the_name_that_the_caller_gave(said, is_off, expected):
  begin = 'distmnist.launch: error: '
  assert fit.reword_line(None, begin + said, is_off) == begin + expected


@pytest.mark.parametrize('given', [{'train_steps': 60}, {'train_steps': 40}])
def test_a_schedule_without_a_rate_starts_nothing(monkeypatch, given):
  started = []
  monkeypatch.setattr(fit, '_train', lambda *args: started.append(args))
  rate = keras.optimizers.schedules.PiecewiseConstantDecay([50], [0.1, -0.1])
  with runtime.eagerly():
    model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(rate), 'mse')
    if given['train_steps'] < 50:
      fit.fit(model, X, X, **given)
      assert started
      return
    with pytest.raises(ValueError, match='gives -0.1 at step 60: expected'):
      fit.fit(model, X, X, **given)
    assert not started


def test_what_is_false_is_named_without_its_no(monkeypatch):
  found = []
  monkeypatch.setattr(fit, '_train', lambda *args: found.append(args[3]))
  fit.fit(MODEL, X, X, optimizer='sgd', normalize=True, shuffle_files=False)
  assert found[0]['reword']('a: error: --noshuffle_files, --nonormalize') == (
    'a: error: shuffle_files, nonormalize'
  )


@pytest.mark.slow
@pytest.mark.parametrize('given, size', [({}, 4), ({'batch_size': 2}, 2)])
def test_a_data_set_is_read_once_for_its_batch_size_too(
  monkeypatch, given, size
):
  x, found = np.arange(6.0), []
  batches = iter([(x[:4, None], x[:4]), (x[4:, None], x[4:])])
  with runtime.eagerly():
    spec = tf.TensorSpec([None, 1]), tf.TensorSpec([None])
    dataset = tf.data.Dataset.from_generator(
      lambda: batches, output_signature=spec
    ).apply(tf.data.experimental.assert_cardinality(2))
    monkeypatch.setattr(fit, '_train', lambda *args: found.extend(args[2:4]))
    fit.fit(MODEL, dataset, optimizer='sgd', **given)
  splits, settings = found
  assert splits['train'][1].tolist() == x.tolist()
  assert settings['batch_size'] == size


@pytest.mark.daily
@pytest.mark.slow
def test_a_group_is_moved_as_it_says():
  with runtime.eagerly():
    layers = [keras.layers.Dense(2, name=name) for name in ('body', 'head')]
    model = keras.Sequential([keras.Input([1]), *layers])
    model.compile('sgd', 'mse')
    before = [w.numpy() for w in model.weights]
    said = []
    fit.fit(
      *(model, X, np.ones([32, 2], np.float32)),
      groups={
        'body/kernel': {'learning_rate': 0},
        'head/.*': {'optimizer': 'adam'},
      },
      **{'batch_size': 32, 'num_ps': 1, 'num_workers': 1},
      on_line=said.append,
    )
    after = [w.numpy() for w in model.weights]
  same = [(x == y).all() for x, y in zip(before, after, strict=True)]
  assert same == [True, False, False, False]
  assert any('sgd, 0 times the rate: ' in line for line in said)
  assert any('adam: ' in line for line in said)


@pytest.mark.slow
def test_the_history_is_that_of_keras():
  """With all examples in each batch, both make the same steps."""
  random = np.random.default_rng(0)
  x = random.normal(size=[64, 3]).astype(np.float32)
  y = x @ np.float32([[1.0], [2.0], [3.0]])
  held = x[:16] + 1, y[:16]
  arguments = {'epochs': 6, 'batch_size': 64, 'validation_data': held}
  metrics = {'metrics': ['mae', 'r2_score']}
  with runtime.eagerly():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.05), 'mse', **metrics)
    other = keras.models.clone_model(model)
    other.set_weights(model.get_weights())
    other.compile(keras.optimizers.SGD(0.05), 'mse', **metrics)
    theirs = other.fit(x, y, verbose=0, **arguments).history
    _, report = fit.fit(
      *(model, x, y),
      **arguments,
      on_line=lambda line: None,
      num_ps=0,
      num_workers=1,
    )
  ours = report.history
  for name in 'loss', 'mae':
    assert ours[name] == pytest.approx(theirs[name], rel=1e-5), name
  # The first step only begins the count of steps to the first validation.
  for name in 'val_loss', 'val_r2_score':
    assert ours[name][1:] == pytest.approx(theirs[name][1:], rel=1e-5), name
  assert 'r2_score' not in ours  # The mean of those of batches would be none.
