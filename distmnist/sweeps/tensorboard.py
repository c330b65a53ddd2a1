"""What TensorBoard's HParams tab shows of a sweep, written without TensorFlow.

The folder of the sweep holds the experiment: its flags, and the numbers to
compare. The folder of each trial holds a session: its flags, its results as
scalars, and how it ended.
"""

from __future__ import annotations

import glob
import importlib
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from distmnist.common import files
from distmnist.sweeps import ranking
from distmnist.sweeps import trials as trials_lib

# Up to this many values of a flag: boxes to tick; more numbers: a range.
_MAX_BOXES = 12
# Python type of a value -> its type and field in TensorBoard's messages.
_KINDS = {
  bool: ('DATA_TYPE_BOOL', 'bool_value'),
  float: ('DATA_TYPE_FLOAT64', 'number_value'),
  str: ('DATA_TYPE_STRING', 'string_value'),
}
_PREFIX, _SUFFIX = 'events.out.tfevents', '.sweep'


class Writer:
  """Writes the event files of a sweep; existing ones stay.

  TensorBoard's own functions for it import TensorFlow; this uses its messages.
  """

  def __init__(self, trials: Sequence[trials_lib.Trial], folder: str) -> None:
    """Writes the experiment.

    Args:
      trials: all of the sweep; some have results.
      folder: that of the sweep.

    Raises:
      ImportError: TensorBoard is not installed.
    """
    # If it is missing, that shows here and not in `write`.
    hparams = 'tensorboard.plugins.hparams'
    self._api = importlib.import_module(f'{hparams}.api_pb2')
    self._metadata = importlib.import_module(f'{hparams}.metadata')
    data = importlib.import_module(f'{hparams}.plugin_data_pb2')
    self._make = data.HParamsPluginData
    self._parsers = {
      name: find_parser([trial.combination[name] for trial in trials])
      for name in trials[0].combination
    }
    self._metrics = *ranking.find_columns(trials), 'final_loss', 'secs'
    if _find_events(folder):
      return
    experiment = self._api.Experiment(time_created_secs=time.time())
    for name, parse in self._parsers.items():
      values = dict.fromkeys(parse(t.combination[name]) for t in trials)
      experiment.hparam_infos.append(self._describe(name, list(values)))
    for tag in self._metrics:
      experiment.metric_infos.add(name=self._api.MetricName(tag=tag))
    self._write(
      folder,
      {self._metadata.EXPERIMENT_TAG: self._make(experiment=experiment)},
    )

  def _describe(self, name: str, values: Sequence[Any]) -> Any:
    """Returns the HParamInfo of a flag that had these values."""
    kind, _ = _KINDS[type(values[0])]
    info = self._api.HParamInfo(name=name, type=kind)
    if isinstance(values[0], float) and len(values) > _MAX_BOXES:
      info.domain_interval.min_value = min(values)
      info.domain_interval.max_value = max(values)
    else:
      info.domain_discrete.extend(values)
    return info

  def write(self, trial: trials_lib.Trial) -> None:
    """Writes the session of `trial`, which is over."""
    if _find_events(trial.folder):
      return
    now = time.time()
    start, end = self._make(), self._make()
    start.session_start_info.start_time_secs = now - trial.secs
    # TensorBoard shows the means over the seeds of a combination.
    first = f'{trial.number - trial.repeat:0{len(trial.name)}d}'
    start.session_start_info.group_name = first
    for name, parse in self._parsers.items():
      value = parse(trial.combination[name])
      _, field = _KINDS[type(value)]
      setattr(start.session_start_info.hparams[name], field, value)
    end.session_end_info.end_time_secs = now
    end.session_end_info.status = (
      self._api.STATUS_FAILURE
      if trial.state in (trials_lib.FAILED, trials_lib.DIVERGED)
      else self._api.STATUS_SUCCESS
    )
    numbers = {**trial.result, 'secs': trial.secs}
    self._write(
      trial.folder,
      {
        self._metadata.SESSION_START_INFO_TAG: start,
        self._metadata.SESSION_END_INFO_TAG: end,
      },
      {t: numbers[t] for t in self._metrics if numbers.get(t) is not None},
      trial.result.get('global_step') or 0,
    )

  def _write(
    self,
    folder: str,
    infos: Mapping[str, Any],
    scalars: Mapping[str, float] | None = None,
    step: int = 0,
  ) -> None:
    """Writes an event file, whole or not at all.

    Args:
      infos: {tag: HParamsPluginData}.
      scalars: {tag: number}.
      step: that of the scalars.
    """
    from tensorboard.summary.writer import record_writer  # noqa: PLC0415

    event_pb2 = importlib.import_module('tensorboard.compat.proto.event_pb2')
    now = time.time()
    events = [event_pb2.Event(wall_time=now, file_version='brain.Event:2')]
    for tag, info in infos.items():
      events.append(event_pb2.Event(wall_time=now))
      events[-1].summary.value.add(
        tag=tag,
        tensor=self._metadata.NULL_TENSOR,
        metadata=self._metadata.create_summary_metadata(info),
      )
    for tag, number in (scalars or {}).items():
      events.append(event_pb2.Event(wall_time=now, step=step))
      events[-1].summary.value.add(tag=tag, simple_value=number)
    # TensorBoard reads only files with tfevents in their name.
    new = os.path.join(folder, 'new')
    with open(new, 'wb', opener=files.no_follow) as file:
      records = record_writer.RecordWriter(file)
      for event in events:
        records.write(event.SerializeToString())
    path = os.path.join(folder, f'{_PREFIX}.{now:.0f}{_SUFFIX}')
    os.replace(new, path)


def forget(trial: trials_lib.Trial) -> None:
  """Removes what was written for a trial that is to run again."""
  for path in _find_events(trial.folder):
    os.remove(path)


def _find_events(folder: str) -> list[str]:
  pattern = os.path.join(glob.escape(folder), f'{_PREFIX}.*{_SUFFIX}')
  return glob.glob(pattern)


def find_parser(texts: Iterable[str]) -> Callable[[str], bool | float | str]:
  """Returns the function that turns `texts` into values, all of one type."""
  texts = list(texts)
  if all(text in ('true', 'false') for text in texts):
    return lambda text: text == 'true'
  try:
    list(map(float, texts))
  except ValueError:
    return str
  return float
