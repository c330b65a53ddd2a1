"""Which images a worker's steps use, and what is fetched from each step."""

import tensorflow.compat.v1 as tf

from distmnist.exchange.steps import fused_steps
from distmnist.tables import row_counts
from distmnist.training.batches import batch_source


def make_source(task, plan, graph, history, seed):
  """Returns the batch_source.BatchSource of this worker."""
  return batch_source.BatchSource(
    plan.dealing,
    graph.examples,
    seed,
    task.cluster.task_index,
    graph.fed,
    history,
  )


def make_steps(source, graph, has_summaries):
  """Returns what runs a worker's steps, and the metrics that never change.

  Args:
    source: batch_source.BatchSource.
    graph: worker_graph.WorkerGraph.
    has_summaries: bool, whether to fetch the metrics of a step too.

  Returns:
    fused_steps.Steps with the metrics of a step, and {name: int} of those
    metrics that are the same in every step.
  """
  step, update = graph.step, graph.step.update
  metrics = {
    'global_step': update.train_op,
    'cost': step.loss,
    'staleness': update.staleness,
    'bytes_pulled': update.bytes_pulled,
    'bytes_pushed': update.bytes_pushed,
    **row_counts.find(),
  }
  last_step_tensors = step.metrics if has_summaries else {}
  steps = fused_steps.make(
    {n: x for n, x in metrics.items() if tf.is_tensor(x)},
    source,
    last_step_tensors,
    graph.warmup,
  )
  return steps, {n: x for n, x in metrics.items() if isinstance(x, int)}
