"""main_task: what a function on a worker is given, and what it leaves."""

import base64
import json
import pickle
import re
import sys

import numpy as np
import pytest

from distmnist.common import cli
from distmnist.data import array_folder
from distmnist.spark import main_task


def look(args, ctx):
  return {
    **{'args': args, 'name': ctx.name, 'is_chief': ctx.is_chief},
    **{'workers': ctx.num_workers, 'target': ctx.target},
    'x': ctx.data and ctx.data[0].tolist(),
    'test': ctx.test_data,
    'device': ctx.device_setter(),
  }


def fail(args, ctx):
  raise KeyError(args)


@pytest.fixture
def run(tmp_path, monkeypatch):
  """run(function, args, *flags) -> what the agent finds; None without."""

  def run_main(function, args, *flags):
    main = tmp_path / 'main'
    main.write_bytes(base64.b64encode(pickle.dumps((function, args))))
    words = [f'--main={main}', f'--logdir={tmp_path}/logdir', *flags]
    monkeypatch.setattr(sys, 'argv', ['main_task', *words])
    main_task.main()
    report = tmp_path / 'logdir' / 'report.json'
    return json.loads(report.read_text()) if report.exists() else None

  return run_main


def test_a_function_alone_has_no_cluster(run, tmp_path):
  array_folder.write(
    tmp_path,
    {'train': (np.arange(3), np.zeros(3)), 'test': (np.zeros(0), np.zeros(0))},
  )
  assert run(look, [1, 'a'], f'--fed_dir={tmp_path}')['result'] == {
    **{'args': [1, 'a'], 'name': 'worker 0', 'is_chief': True},
    **{'workers': 1, 'target': '', 'x': [0, 1, 2], 'test': None, 'device': ''},
  }


def test_an_error_says_where(run):
  with pytest.raises(
    cli.RunError, match=r"^main_task_test.py:\d+, in fail\(\): KeyError: 'x'$"
  ):
    run(fail, 'x')


def test_what_json_has_not_is_refused(run):
  with pytest.raises(
    cli.UsageError, match=re.escape('make_set() returned set: ')
  ):
    run(make_set, None)


def make_set(args, ctx):
  return {1}
