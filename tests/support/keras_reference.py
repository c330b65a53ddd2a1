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

STEPS, BATCH = 10, 20
# Always 0.1.
_RATE = keras.optimizers.schedules.PiecewiseConstantDecay([99], [0.1, 0.1])


def main(folder, *wanted):
  for how, net, num_workers in (words.split(',') for words in wanted):
    flags.FLAGS([net, f'--net={net}'])
    path = f'{folder}/{net}_{num_workers}/model.keras'
    trained = keras.models.load_model(path)
    train = {'by_fit': by_fit, 'by_worker': by_worker}[how]
    model = make_model()
    train(model, int(num_workers), _RATE)
    largest = compare(trained, model)
    print(json.dumps({'how': how, 'net': net, 'largest': largest}))


def make_model() -> keras.Model:
  """The net of --net with the values of seed 0."""
  keras.utils.clear_session()
  keras.utils.set_random_seed(0)
  return keras_nets.make_model()


def compare(trained: keras.Model, model: keras.Model) -> float:
  """The largest difference of any weight of two models."""
  pairs = zip(trained.weights, model.weights, strict=True)
  return max(float(np.abs(a.numpy() - b.numpy()).max()) for a, b in pairs)


def _read_batches(size, seed, w):
  """Returns x, y and w of all steps, in distmnist's order."""
  x, y = keras_nets.load('train')
  order = data_order.Order(len(y), seed)
  places = order.find_images(np.arange(STEPS * size))
  return tf.nest.map_structure(
    lambda a: None if a is None else a[places], (x, y, w)
  )


def by_fit(
  model,
  num_workers,
  rate,
  seed=0,
  sample_weight=None,
  class_weight=None,
  jit_compile='auto',
):
  """Trains by model.fit, the batches of a step's workers as one.

  Args:
    model: keras.Model.
    num_workers: int.
    rate: keras.optimizers.schedules.LearningRateSchedule.
    seed: int, of the order of the examples.
    sample_weight: array [n], by the example, or None.
    class_weight: as fit takes it.
    jit_compile: as compile takes it.
  """
  size = num_workers * BATCH
  x, y, w = _read_batches(size, seed, sample_weight)
  optimizer = keras.optimizers.SGD(rate)
  model.compile(optimizer, keras_nets.loss, jit_compile=jit_compile)
  how = {'shuffle': False, 'verbose': 0, 'class_weight': class_weight}
  model.fit(x, y, size, sample_weight=w, **how)


def by_worker(model, num_workers, rate, seed=0, sample_weight=None):
  """Trains by the mean of the gradients of the workers' batches; see by_fit."""
  x, y, w = _read_batches(num_workers * BATCH, seed, sample_weight)
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
  for step in range(STEPS):
    gradients, states = [], []
    for worker in range(num_workers):
      ticket = step * num_workers + worker
      cut = slice(ticket * BATCH, (ticket + 1) * BATCH)
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
        of_batch = None if w is None else w[cut]
        loss = keras_nets.loss(y[cut], outputs, of_batch) + sum(losses)
      variables = [v.value for v in model.trainable_variables]
      gradients.append(tape.gradient(loss, variables))
      states.append([v.numpy() for v in new])
      draws = [
        0 if id(v) in weights else int(a[1] - b[1])
        for v, a, b in zip(others, states[-1], before, strict=True)
      ]
    for v, *each in zip(model.trainable_variables, *gradients, strict=True):
      total = sum(map(tf.convert_to_tensor, each))
      v.assign_sub(rate(step) * total / num_workers)
    for v, *each in zip(others, *states, strict=True):
      if id(v) in weights:
        v.assign(np.mean(each, axis=0))


if __name__ == '__main__':
  main(*sys.argv[1:])
