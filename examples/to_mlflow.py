"""Copies a run from its metrics.jsonl to MLflow, which has to be installed.

  pip install mlflow-skinny sqlalchemy alembic
  python examples/to_mlflow.py logs/run

One run of MLflow: the flags of train are its parameters, and what all tasks
have written its metrics, TASK/NAME, over the global step (a ps has none: over
the seconds). MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME are MLflow's own.
"""

import json
import os
import pathlib
import re
import sys

_BATCH = 1000  # The most metrics that MLflow takes in one call.
_MAX_CHARS = 500  # Of a parameter.


def read_points(logdir):
  """Yields (name, number, time in seconds, step) of a run, task by task."""
  for path in sorted(pathlib.Path(logdir).glob('metrics/*/metrics.jsonl')):
    begin = None
    for text in path.read_text('utf-8', errors='replace').splitlines():
      try:
        line = json.loads(text)
      except ValueError:
        continue  # Cut off by a full disk.
      begin = begin or line['time']
      if line['kind'] not in ('sample', 'evaluation'):
        continue
      numbers = {**line, **(line.get('metrics') or {})}
      step = numbers.pop('step', None)
      step = int(line['time'] - begin) if step is None else step
      group = line.get('split', line['task']).replace(' ', '_')
      del numbers['time']
      for name, number in numbers.items():
        if type(number) in (int, float):
          # Of the characters of a name, MLflow takes these alone.
          name = re.sub(r'[^\w .-]', '_', name)
          yield f'{group}/{name}', number, line['time'], step


def read_flags(logdir):
  """Returns {name: value} of the flags of train."""
  words = pathlib.Path(logdir, 'train.flags').read_text('utf-8').splitlines()
  pairs = [word.lstrip('-').partition('=')[::2] for word in words if word]
  return {name: value[:_MAX_CHARS] for name, value in pairs}


def main(logdir):
  metrics = list(read_points(logdir))
  if not metrics:
    sys.exit(f'{logdir} has no metrics/TASK/metrics.jsonl of a run')
  try:
    import mlflow
  except ImportError as error:
    sys.exit(f'{error}: pip install mlflow-skinny sqlalchemy alembic')
  mlflow.set_experiment(os.environ.get('MLFLOW_EXPERIMENT_NAME', 'distmnist'))
  with mlflow.start_run(run_name=pathlib.Path(logdir).resolve().name) as run:
    mlflow.log_params(read_flags(logdir))
    client = mlflow.MlflowClient()
    for i in range(0, len(metrics), _BATCH):
      batch = [
        mlflow.entities.Metric(name, number, int(1000 * secs), step)
        for name, number, secs, step in metrics[i : i + _BATCH]
      ]
      client.log_batch(run.info.run_id, batch)
  print(f'{len(metrics)} numbers in run {run.info.run_id}')


if __name__ == '__main__':
  main(*(sys.argv[1:] or sys.exit(__doc__)))
