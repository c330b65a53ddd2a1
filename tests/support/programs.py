"""Runs our programs, and puts bash scripts in place of a system's."""

import atexit
import functools
import os
import subprocess
import sys
from unittest import mock

from absl.testing import flagsaver

from distmnist import launch
from distmnist.common import cli
from tests.support import forked_programs
from tests.support.paths import REPO


def run(module, *words, code=0, cwd=REPO, **env):
  """Runs `python -m MODULE WORDS` to its end.

  Args:
    module: str, such as distmnist.train.
    *words: str.
    code: int, the exit code that it must have.
    cwd: str or path.
    **env: variables of its environment, besides our own.

  Returns:
    (stdout, stderr), both str.
  """
  done = subprocess.run(
    [sys.executable, '-m', module, *words],
    cwd=cwd,
    env={**os.environ, **env},
    capture_output=True,
    text=True,
    timeout=300,
  )
  assert done.returncode == code, done.stdout + done.stderr
  return done.stdout, done.stderr


def launch_inside(*words):
  """Runs launch in this process; returns its exit code.

  Launching renews what tells its tasks from those of another launch: nothing of
  that, and none of its flags, is left for the next test.
  """
  codes = []
  with flagsaver.flagsaver(), mock.patch.dict(os.environ):
    argv = ['launch', *words]
    cli.run(launch.main, argv, passthrough=True, leave=codes.append)
  return codes[0]


@functools.cache
def start_forked():
  """Returns the forked_programs.Programs of this process, one for all."""
  started = forked_programs.Programs()
  atexit.register(started.close)
  return started


def run_forked(program, *words, code=0, **env):
  """Runs a program as `run` does, by a fork: TensorFlow is imported once.

  Args:
    program: str, such as train.
    *words: str.
    code: int, the exit code that it must have.
    **env: variables of its environment, besides our own.

  Returns:
    (stdout, stderr), both str.
  """
  done = start_forked().run(program, words, REPO, timeout_secs=300, **env)
  assert done['code'] == code, done['out'] + done['err']
  assert not done['left'], 'a process has outlived it'
  return done['out'], done['err']


class LaunchPopen(subprocess.Popen):
  """A subprocess.Popen where a launch is a fork: TensorFlow is there already.

  It reads nothing, and writes to files. With libraries to preload, which a fork
  does not do, it is started as ever.
  """

  def _execute_child(self, args, *how):
    cwd, env, pipes = how[4], how[5], how[9:15]
    if env is None:
      env = os.environ
    is_launch = list(args[:3]) == [sys.executable, '-m', 'distmnist.launch']
    if not is_launch or 'LD_PRELOAD' in env:
      return super()._execute_child(args, *how)
    files = [f'/proc/{os.getpid()}/fd/{fd}' for fd in (pipes[3], pipes[5])]
    self.pid = start_forked().start(
      'launch', args[3:], cwd or os.getcwd(), env, files
    )
    self._child_created = True
    self._close_pipe_fds(*pipes)


def make(folder, **scripts):
  """Makes programs, {name: script}, in `folder`; returns PATH with it."""
  for name, script in scripts.items():
    path = folder / name
    path.write_text(f'#!/bin/bash\n{script}\n')
    path.chmod(0o755)
  return f'{folder}:{os.environ["PATH"]}'
