"""What Keras itself makes of a net of keras_nets.py, eagerly, in one process.

  python -m tests.support.keras_reference FOLDER HOW,NET,NUM_WORKERS...

prints for each, a line of JSON, the largest difference of any weight between
FOLDER/NET_NUM_WORKERS/model.keras and ten steps of sgd, each with a batch of 20
for each worker, in distmnist's order: `by_fit` by model.fit on all of a step's
examples at once, and `by_worker` where each worker's batch has batch statistics
and dropout of its own, and the mean of the gradients counts.
"""

import json
import sys

import keras
import numpy as np
import tensorflow as tf
from absl import flags

from distmnist.data import data_order
from tests.support import keras_nets

_RATE, _STEPS, _BATCH = 0.1, 10, 20


def main(folder, *wanted):
  for how, net, num_workers in (words.split(',') for words in wanted):
    flags.FLAGS([net, f'--net={net}'])
    trained = keras.models.load_model(
      f'{folder}/{net}_{num_workers}/model.keras',
      custom_objects={'TwoTowers': keras_nets.TwoTowers},
    )
    train = {'by_fit': by_fit, 'by_worker': by_worker}[how]
    largest = _compare(trained, train(_make_model(), int(num_workers)))
    print(json.dumps({'how': how, 'net': net, 'largest': largest}))


def _make_model():
  keras.utils.clear_session()
  keras.utils.set_random_seed(0)
  return keras_nets.make_model()


def _compare(trained, model):
  pairs = zip(trained.weights, model.weights, strict=True)
  return max(float(np.abs(a.numpy() - b.numpy()).max()) for a, b in pairs)


def _read_batches(size):
  """Returns x and y of all steps, in distmnist's order."""
  x, y = keras_nets.load('train')
  order = data_order.Order(len(y), seed=0)
  places = order.find_images(np.arange(_STEPS * size))
  return tf.nest.map_structure(lambda a: a[places], x), y[places]


def by_fit(model, num_workers):
  size = num_workers * _BATCH
  model.compile('sgd', keras_nets.loss)
  model.optimizer.learning_rate = _RATE
  model.fit(*_read_batches(size), batch_size=size, shuffle=False, verbose=0)
  return model


def by_worker(model, num_workers):
  x, y = _read_batches(num_workers * _BATCH)
  model(
    tf.nest.map_structure(
      lambda a: keras.KerasTensor((None, *a.shape[1:]), a.dtype.name), x
    )
  )
  others = model.non_trainable_variables
  weights = {id(v) for v in model.weights}
  first = [v.numpy() for v in others]
  draws = None
  # `call` of the towers takes no such argument.
  is_own = isinstance(model, keras_nets.TwoTowers)
  mode = {} if is_own else {'training': True}
  for step in range(_STEPS):
    gradients, states = [], []
    for worker in range(num_workers):
      ticket = step * num_workers + worker
      cut = slice(ticket * _BATCH, (ticket + 1) * _BATCH)
      for v, value, n in zip(others, first, draws or [0] * 99, strict=False):
        if id(v) not in weights:
          v.assign(value + [0, n * ticket])
      before = [v.numpy() for v in others]
      with tf.GradientTape() as tape:
        outputs, new, losses = model.stateless_call(
          [v.value for v in model.trainable_variables],
          [v.value for v in others],
          tf.nest.map_structure(lambda a, c=cut: a[c], x),
          return_losses=True,
          **mode,
        )
        loss = keras_nets.loss(y[cut], outputs) + sum(losses)
      variables = [v.value for v in model.trainable_variables]
      gradients.append(tape.gradient(loss, variables))
      states.append([v.numpy() for v in new])
      draws = [
        0 if id(v) in weights else int(a[1] - b[1])
        for v, a, b in zip(others, states[-1], before, strict=True)
      ]
    for v, *each in zip(model.trainable_variables, *gradients, strict=True):
      v.assign_sub(_RATE * sum(map(tf.convert_to_tensor, each)) / num_workers)
    for v, *each in zip(others, *states, strict=True):
      if id(v) in weights:
        v.assign(np.mean(each, axis=0))
  return model


if __name__ == '__main__':
  main(*sys.argv[1:])
