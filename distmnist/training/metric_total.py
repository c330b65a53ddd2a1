"""A metric that is no mean over the examples, such as AUC."""

from typing import Any, NamedTuple


class Total(NamedTuple):
  """What such a metric counts, in the graph.

  Attributes:
    states: list of tensors, which are added up over all batches; `finish` of a
      problem makes the metric of the sums.
    value: float32 scalar tensor, the metric of this batch alone.
  """

  states: list
  value: Any
