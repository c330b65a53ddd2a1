"""keras_problem: losses and metrics in the words of Keras, as it has them."""

import keras
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist import runtime
from distmnist.common import cli
from distmnist.data import split
from distmnist.training import evaluation
from distmnist.training.problems import problem, problem_checks, problem_data
from tests.support import problems

HEAD = """
import keras
import numpy as np

layers = keras.layers

def load(split):
  rng = np.random.default_rng(0)
  x = rng.normal(size=[9, 3])
  return x, (x[:, 0] > 0).astype('int32')
"""
MODEL = """
def make_model():
  return keras.Sequential([layers.Dense(4), layers.Dense({}, {!r})])
"""


@pytest.fixture
def make(set_flags, tmp_path):
  def make_problem(more, units=1, activation='sigmoid', named='net.py'):
    text = HEAD + more
    if 'make_model' not in more:
      text += MODEL.format(units, activation)
    return problems.load(problems.write(tmp_path / named, text), set_flags)

  return make_problem


def check(found):
  train, _ = problem_data.load_training_splits(found)
  problem_checks.check_graph(found, train, batch_size=3)


def evaluate(found, monkeypatch):
  """Returns (ours, Keras's own), metrics of the model's first values."""
  monkeypatch.setattr(evaluation, 'CHUNK_SIZE', 4)
  x, y = found.load('test')
  evaluator = evaluation.Evaluator(found, split.make(x, y))
  model = found.module._model._model
  weights = found.module._model._weights
  with runtime.eagerly():
    values = {w.name: w.variable.numpy() for w in weights}
    values['global_step'] = 0
    outputs = model(x.astype('float32')).numpy()
  return evaluator.compute(values), y, outputs


@pytest.mark.slow
def test_metrics_are_those_of_all_examples_at_once(make, monkeypatch):
  found = make("""
loss = 'binary_crossentropy'
best = '+auc'
metrics = [
  keras.metrics.AUC(name='auc'),
  'Accuracy',
  'r2_score',
  'mse',
  keras.metrics.mean_absolute_error,
  keras.metrics.Precision(),
]
""")
  ours, y, outputs = evaluate(found, monkeypatch)
  with runtime.eagerly():
    y = y[:, None]
    auc = keras.metrics.AUC()
    auc.update_state(y, outputs)
    precision = keras.metrics.Precision()
    precision.update_state(y, outputs)
    r2 = keras.metrics.R2Score()(y.astype('float32'), outputs)
    expected = {
      'auc': float(auc.result()),
      'Accuracy': float(((outputs > 0.5) == y).mean()),
      'r2_score': float(r2),
      'mse': float(((outputs - y) ** 2).mean()),
      'mean_absolute_error': float(np.abs(outputs - y).mean()),
      'precision': float(precision.result()),
      'loss': float(keras.losses.BinaryCrossentropy()(y, outputs)),
    }
  assert ours == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
  'loss',
  [
    'keras.losses.SparseCategoricalCrossentropy()',
    'keras.losses.sparse_categorical_crossentropy',
  ],
)
def test_a_loss_may_be_an_object_or_a_function(make, loss, monkeypatch):
  found = make(f"loss = {loss}\nmetrics = ['accuracy']", 2, 'softmax')
  ours, y, outputs = evaluate(found, monkeypatch)
  likelihood = np.log(outputs[np.arange(len(y)), y])
  assert ours == pytest.approx(
    {
      'loss': -likelihood.mean(),
      'accuracy': (outputs.argmax(1) == y).mean(),
    },
    rel=1e-5,
  )


@pytest.mark.slow
def test_a_loss_and_metrics_may_be_functions_of_the_file(make, monkeypatch):
  found = make("""
def loss(y, outputs):
  return keras.ops.abs(outputs[:, 0])

def metrics(y, outputs):
  return {'large': outputs[:, 0] > 0.5}

def finish(means):
  return means | {'small': 1 - means['large']}
""")
  ours, _, outputs = evaluate(found, monkeypatch)
  expected = {'loss': outputs.mean(), 'large': (outputs > 0.5).mean()}
  expected['small'] = 1 - expected['large']
  assert ours == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
def test_a_loss_of_several_outputs_may_be_imported(make):
  found = make("""
def loss(y, outputs):
  return keras.ops.abs(outputs['a'][:, 0]) + outputs['b'][:, 0]
loss.__module__ = 'a_file_beside_it'

def make_model():
  x = layers.Input([3])
  outputs = {name: layers.Dense(1, 'sigmoid')(x) for name in 'ab'}
  return keras.Model(x, outputs)
""")
  check(found)


@pytest.mark.slow
def test_what_a_model_is_compiled_with_counts(make, monkeypatch):
  found = make("""
def own(y, outputs):
  return keras.ops.square(y - outputs)
def make_model():
  model = keras.Sequential([layers.Dense(1)])
  model.compile('adam', own, 0.5, ['mae'], weighted_metrics=['mse'])
  return model
""")
  ours, y, outputs = evaluate(found, monkeypatch)
  change = outputs[:, 0] - y
  mse, mae = (change**2).mean(), np.abs(change).mean()
  assert ours == pytest.approx({'loss': mse / 2, 'mse': mse, 'mae': mae})


@pytest.mark.slow
def test_the_model_is_made_once_and_from_the_seed(make, set_flags):
  first = make("loss = 'mse'")
  assert problem.from_flags(seed=5).module is first.module


@pytest.mark.slow
@pytest.mark.parametrize(
  'more, message',
  [
    ("loss = 'mes'", 'in loss(): ValueError: Could not interpret loss ident'),
    ("loss = 'mse'\nmetrics = ['acuracy']", 'Could not interpret metric ident'),
    ('', "in loss(): ValueError: there is no loss: expected loss = 'mse'"),
    (
      "loss = 'mse'\ndef make_model():\n  return 3",
      'make_model() gave 3: expected a keras.Model',
    ),
    (
      "loss = 'mse'\ndef make_model():\n  return 1 / 0",
      'net.py:13, in make_model(): ZeroDivisionError: division by zero',
    ),
    (
      "loss = 'mse'\nclass Net(keras.Sequential):\n  train_step = None\n"
      'def make_model():\n  return Net()',
      'net.py: Net has a train_step() of its own, which no strategy calls',
    ),
    (
      "loss = 'mse'\ndef build(x, is_training):\n  return x",
      'has build and make_model: leave one of them out',
    ),
    (
      "loss = 'mse'\ndef make_model():\n"
      '  return keras.Sequential([layers.Dense(1, trainable=False)])',
      'the model has no trainable weight',
    ),
    (
      "loss = 'mse'\nclass Net(keras.Model):\n  def call(self, x):\n"
      '    return layers.Dense(1)(x)\ndef make_model():\n  return Net()',
      'in build(): ValueError: dense_1/kernel: a variable is made while the',
    ),
    (
      "loss = 'mse'\ndef make_model():\n"
      '  return keras.Sequential([layers.Input([5]), layers.Dense(1)])',
      'in build(): ValueError: Input 0 with name',
    ),
  ],
)
def test_what_is_wrong_is_one_line(make, more, message):
  with pytest.raises(cli.UsageError) as raised:
    check(make(more))
  assert message in str(raised.value)
  assert '\n' not in str(raised.value)


_LAYER = """
import tensorflow as tf
loss = 'mse'
class Mine(layers.Layer):{}
  def call(self, x):
    return x @ {}
def make_model():
  return keras.Sequential([layers.Dense(3), Mine(name='mine')])
"""


@pytest.mark.slow
@pytest.mark.parametrize(
  'made, is_known',
  [
    ("self.add_weight(shape=(3, 1), name='w')", False),
    ("keras.Variable(np.ones([3, 1]), name='w')", True),
    ("tf.Variable(tf.ones([3, 1]), name='w')", True),
    ('layers.Dense(3)(x)[:3, :1]', False),
  ],
)
def test_a_layer_that_makes_a_variable_at_each_call_is_named(
  make, recwarn, made, is_known
):
  # Keras infers the shape by a call of its own, unless the layer knows it.
  known = '\n  def compute_output_shape(self, x):\n    return *x[:-1], 1\n'
  with pytest.raises(cli.UsageError) as raised:
    check(make(_LAYER.format(known if is_known else '', made)))
  message = str(raised.value)
  assert 'Mine.call(): ' in message or ' sequential/mine' in message
  assert ': a variable is made while the layer is called: make it' in message
  assert '\n' not in message
  assert not recwarn.list


@pytest.mark.slow
def test_a_metric_of_several_numbers_is_refused(make):
  found = make("loss = 'mse'\nmetrics = [keras.metrics.F1Score()]")
  outputs = tf.zeros([4, 3])
  with pytest.raises(cli.UsageError, match="as with average='macro'"):
    found.metrics(outputs, outputs)


def test_another_backend_is_refused(make, monkeypatch):
  monkeypatch.setattr(keras.backend, 'backend', lambda: 'jax')
  with pytest.raises(cli.UsageError, match='expected KERAS_BACKEND=tensorflow'):
    make("loss = 'mse'")


@pytest.mark.slow
def test_layers_of_the_file_itself_have_names_of_their_own(make):
  check(
    make("""
loss = 'mse'
FIRST = layers.Dense(2)
def make_model():
  x = layers.Input([3])
  return keras.Model(x, layers.Dense(1)(FIRST(x)))
""")
  )


@pytest.mark.slow
@pytest.mark.parametrize(
  'metrics', ["{'out': ['mae', 'mse']}", "[['mae', 'mse']]", "['mae', 'mse']"]
)
def test_metrics_of_the_only_output_may_have_its_name(make, metrics):
  found = make(f"""
loss = {{'out': 'mse'}}
def make_model():
  model = keras.Sequential([layers.Input([2]), layers.Dense(1, name='out')])
  model.compile(loss='mse', metrics={metrics})
  return model
""")
  y = tf.zeros([4, 1])
  assert found.metrics(y, y).keys() == {'mae', 'mse'}


@pytest.mark.slow
def test_weights_count_where_keras_counts_them(make, monkeypatch):
  found = make("""
loss = 'binary_crossentropy'
metrics = ['AUC', 'mae']
weighted_metrics = ['AUC', 'accuracy']
""")
  monkeypatch.setattr(evaluation, 'CHUNK_SIZE', 4)
  x, y = found.load('test')
  w = np.float32([5, 1, 0, 2, 1, 9, 1, 0.5, 3])
  evaluator = evaluation.Evaluator(found, split.make(x, y, w))
  model = found.module._model._model
  with runtime.eagerly():
    model.compile(
      loss='binary_crossentropy',
      metrics=['AUC', 'mae'],
      weighted_metrics=['AUC', 'accuracy'],
    )
    theirs = model.evaluate(
      *(x.astype('f'), y[:, None], 4),
      sample_weight=w,
      return_dict=True,
      verbose=0,
    )
    values = {
      each.name: each.variable.numpy() for each in found.module._model._weights
    }
  ours = evaluator.compute(values | {'global_step': 0})
  assert ours['AUC'] != ours['weighted_AUC']
  ours = {name.lower(): value for name, value in ours.items()}
  theirs = {name.lower(): value for name, value in theirs.items()}
  assert ours == pytest.approx(theirs, rel=1e-6)
