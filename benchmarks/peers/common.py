"""What all peers share: flags, data, the nets' numbers, the record of a run.

No framework is imported here. A peer is as fast as its framework allows; the
data (uint8 images in memory, a shard and a shuffle per worker), the initial
weights, the optimizer and what is recorded are the same for all.
"""

import argparse
import dataclasses
import itertools
import json
import math
import pathlib
import time

import numpy as np

PIXELS = 784


@dataclasses.dataclass(frozen=True)
class Net:
  """The numbers of a distmnist net.

  Attributes:
    batch_size: int, images of one step of one worker.
    learning_rate: float.
    shapes: dict of variable name -> shape; weights are [..., in, out].
    optimizer: str, 'adam' or 'sgd'.
    weight_stddev: float, of normal initial weights; 0 for Glorot's uniform.
  """

  batch_size: int
  learning_rate: float
  shapes: dict
  optimizer: str = 'adam'
  weight_stddev: float = 0.0


_MLP_SHAPES = {
  'hidden1/weights': (784, 100),
  'hidden1/biases': (100,),
  'softmax/weights': (100, 10),
  'softmax/biases': (10,),
}
NETS = {
  'mlp': Net(100, 0.003, _MLP_SHAPES),
  'cnn': Net(
    128,
    0.001,
    {
      'conv1/weights': (5, 5, 1, 32),
      'conv1/biases': (32,),
      'conv2/weights': (5, 5, 32, 64),
      'conv2/biases': (64,),
      'dense1/weights': (3136, 1024),
      'dense1/biases': (1024,),
      'softmax/weights': (1024, 10),
      'softmax/biases': (10,),
    },
  ),
  # Schlag's example, configs/schlag.flags: for classic.py alone.
  'schlag': Net(100, 0.001, _MLP_SHAPES, 'sgd', 1.0),
}
DROPOUT_RATE = 0.5


def compute_glorot_limit(shape):
  """Returns l of the uniform -l..l for weights of `shape`; 0 for biases."""
  if len(shape) == 1:
    return 0.0
  fan_in_and_out = (shape[-2] + shape[-1]) * math.prod(shape[:-2])
  return math.sqrt(6 / fan_in_and_out)


def parse_args():
  """Returns the flags that the driver gives to every peer."""
  parser = argparse.ArgumentParser()
  parser.add_argument('--net', choices=NETS, required=True)
  parser.add_argument('--data', type=pathlib.Path, required=True)
  parser.add_argument('--folder', type=pathlib.Path, required=True)
  parser.add_argument('--job', default='worker')
  parser.add_argument('--task', type=int, default=0)
  parser.add_argument('--ps', type=lambda s: s.split(','), default=[])
  parser.add_argument('--workers', type=lambda s: s.split(','), required=True)
  parser.add_argument('--coordinator')
  parser.add_argument('--steps', type=int, required=True, help='of a worker')
  parser.add_argument(
    '--leave', action='store_true', help='with own steps, while others go on'
  )
  parser.add_argument('--snapshot_steps', type=int, default=0, help='of all')
  parser.add_argument('--steps_per_call', type=int, default=1)
  return parser.parse_args()


# ---- The data ----
def write_data(folder, split, images, labels):
  """Writes what `load` reads: bare bytes, which tf.data can read as well."""
  np.ascontiguousarray(images, np.uint8).tofile(folder / f'{split}.images')
  np.ascontiguousarray(labels, np.uint8).tofile(folder / f'{split}.labels')


def load(folder, split):
  """Returns images uint8 [n, 784] and labels uint8 [n]."""
  images = np.fromfile(folder / f'{split}.images', np.uint8)
  return images.reshape(-1, PIXELS), np.fromfile(
    folder / f'{split}.labels', np.uint8
  )


def make_batches(num_images, worker, num_workers, batch_size):
  """Yields batches of indices of this worker's shard, shuffled, for ever."""
  shard = np.arange(worker, num_images, num_workers)
  for seed in itertools.count():
    order = np.random.default_rng([seed, worker]).permutation(shard)
    for start in range(0, len(order) - batch_size + 1, batch_size):
      yield order[start : start + batch_size]


# ---- The record ----
class Recorder:
  """Records when a process made its steps, and its weights every so often.

  The counts of all workers are in a file that each of them maps, so that an
  asynchronous worker can go on until all others have made their steps too: all
  then run side by side in the time that counts.
  """

  def __init__(self, args):
    self._name = f'{args.job}_{args.task}'
    self._folder = args.folder
    self._batch_size = NETS[args.net].batch_size
    self._snapshot_steps = args.snapshot_steps
    self._next_snapshot = args.snapshot_steps
    self._task = args.task
    self._counts = np.memmap(
      args.folder / 'counts', np.int64, 'r+', shape=len(args.workers)
    )
    self._marks = []
    self._window = 0
    self._num_steps = 0

  def step(self, num_steps=1):
    """To be called after each call that made `num_steps` steps."""
    self._num_steps += num_steps
    self._counts[self._task] = self._num_steps
    self._marks.append((time.monotonic(), self._num_steps * self._batch_size))

  def start_window(self):
    """Starts the time that counts for the speed; by default after one step."""
    self._window = len(self._marks) - 1

  def have_all_done(self, num_steps, alone=False):
    """Whether each worker (only this one if `alone`) made `num_steps` steps."""
    done = self._num_steps if alone else int(self._counts.min())
    return done >= num_steps

  def is_over(self, args, step):
    """Whether a worker that trains asynchronously has made its last step.

    If accuracy is the goal, the total work bounds the run; if not, it lasts
    until every worker has made its steps.

    Args:
      args: Namespace of `parse_args`.
      step: int, the steps of all workers so far.
    """
    if args.snapshot_steps:
      return step >= args.steps * len(args.workers)
    return self.have_all_done(args.steps, alone=args.leave)

  def snapshot_if_due(self, step, get_weights):
    """Saves the weights and the time, every --snapshot_steps steps of all.

    Args:
      step: int, the steps of all workers so far.
      get_weights: callable -> dict of name -> array, as in Net.shapes.
    """
    if self._snapshot_steps and step >= self._next_snapshot:
      self._next_snapshot = (
        step - step % self._snapshot_steps + self._snapshot_steps
      )
      weights = get_weights()
      now = time.monotonic()
      path = self._folder / f'snapshot_{step:08}.npz'
      np.savez(path, time=now, **weights)

  def save(self, **facts):
    """Writes the record; test accuracy and the like come as `facts`."""
    first_step_time, _ = self._marks[0]
    record = {
      'first_step_time': first_step_time,
      'marks': self._marks[self._window :],
      **facts,
    }
    path = self._folder / f'{self._name}.json'
    path.write_text(json.dumps(record), 'utf-8')


def compute_accuracy(predict, folder, chunk_size=250):
  """Returns the test accuracy, 0..1.

  Args:
    predict: callable, uint8 [n, 784] -> logits [n, 10], an array.
    folder: path of the data.
    chunk_size: int, as in distmnist's evaluation.
  """
  images, labels = load(folder, 'test')
  num_correct = 0
  for start in range(0, len(images), chunk_size):
    logits = predict(images[start : start + chunk_size])
    answers = labels[start : start + chunk_size]
    num_correct += int((np.argmax(logits, 1) == answers).sum())
  return num_correct / len(images)
