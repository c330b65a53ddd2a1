"""Runs distmnist's programs as forks: a case takes milliseconds.

`python -m tests.support.forked_programs` imports TensorFlow and Keras once. The
first request of a program forks a process that imports the program, and nothing
else: the flags of one are not another's. Each of its cases is a fork of that,
and so are the fork servers that it starts. A line of JSON each, where a null in
`env` unsets a variable:

  in:   {"program", "argv", "cwd", "env", "timeout_secs"}
  out:  {"code", "out", "err", "left"}: the exit code, -n by signal n, None if
        it did not end; stdout; stderr; whether a process outlived it, 0 or 1

A request with "files" = [stdout, stderr], paths, is answered by {"pid"} while
the program runs, and who asks must be a subreaper: the program is its child.
"""

import contextlib
import ctypes
import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback

from tests.support import forked_servers
from tests.support.paths import REPO

_DEADLINE_SECS = 200
# What a program has started may take this long to follow it.
_GRACE_SECS = 5
_PR_SET_CHILD_SUBREAPER = 36


class Programs:
  """The tests' side: `run` stands for a program's command."""

  def __init__(self):
    self._environ = dict(os.environ)
    self._process = subprocess.Popen(
      [sys.executable, '-m', 'tests.support.forked_programs'],
      cwd=REPO,
      env={**os.environ, 'OPENBLAS_NUM_THREADS': '1'},
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      text=True,
      start_new_session=True,
    )

  def run(self, program, words, cwd, timeout_secs=_DEADLINE_SECS, **env):
    """Runs `python -m distmnist.PROGRAM WORDS`; returns the reply, a dict.

    Its environment is that of now, not of when the first case was run, and
    `env`.
    """
    return self._ask(
      program, words, cwd, {**os.environ, **env}, timeout_secs=timeout_secs
    )

  def start(self, program, words, cwd, env, files):
    """Starts what `run` runs; returns its pid, of a child of this process.

    Args:
      program, words, cwd: as for `run`.
      env: {name: value}, all of its environment.
      files: (stdout, stderr), paths, which it opens to append.
    """
    _set_subreaper(True)
    try:
      return self._ask(program, words, cwd, env, files=files)['pid']
    finally:
      _set_subreaper(False)

  def _ask(self, program, words, cwd, env, **how):
    request = {
      'program': program,
      'argv': [str(word) for word in words],
      'cwd': str(cwd),
      'env': {**dict.fromkeys(self._environ), **env},
      **how,
    }
    self._process.stdin.write(json.dumps(request) + '\n')
    self._process.stdin.flush()
    return json.loads(self._process.stdout.readline())

  def close(self):
    self._process.stdin.close()
    self._process.wait(_DEADLINE_SECS)
    self._process.stdout.close()


def _serve(requests, replies):
  """Has each request answered by the process of its program."""
  programs = {}
  for line in requests:
    name = json.loads(line)['program']
    if name not in programs:
      programs[name] = _start(name, programs)
    to, back = programs[name]
    to.write(line)
    to.flush()
    replies.write(back.readline())
    replies.flush()
  for to, _ in programs.values():
    to.close()
    os.wait()


def _start(name, others):
  """Forks the process of a program; returns its (requests, replies)."""
  here_in, there_out = os.pipe()
  there_in, here_out = os.pipe()
  if not os.fork():
    for to, back in others.values():
      to.close()
      back.close()
    os.close(here_in)
    os.close(here_out)
    baseline = forked_servers.Baseline()
    module = importlib.import_module(f'distmnist.{name}')
    subprocess.Popen = forked_servers.make_popen(baseline)
    with open(there_in) as requests, open(there_out, 'w') as replies:
      _run_cases(module, requests, replies)
    os._exit(0)
  os.close(there_in)
  os.close(there_out)
  return open(here_out, 'w'), open(here_in)


def _set_subreaper(is_one):
  """Whether what loses its parent, of all that comes from us, becomes ours."""
  ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(is_one))


def _run_cases(module, requests, replies):
  _set_subreaper(True)  # So none is lost sight of.
  gc.freeze()
  for line in requests:
    request = json.loads(line)
    answer = _start_case if 'files' in request else _run_to_end
    replies.write(json.dumps(answer(module, request)) + '\n')
    replies.flush()


def _run_to_end(module, request):
  with (
    tempfile.TemporaryFile('w+', encoding='utf-8') as out,
    tempfile.TemporaryFile('w+', encoding='utf-8') as err,
  ):
    pid = os.fork()
    if not pid:
      _run_case(module, request, out, err)
    code = _wait(pid, request['timeout_secs'])
    left = _count_left()
    for file in (out, err):
      file.seek(0)
    return {'code': code, 'out': out.read(), 'err': err.read(), 'left': left}


def _start_case(module, request):
  """Leaves a case to the subreaper who has asked for it."""
  _set_subreaper(False)
  here, there = os.pipe()
  between = os.fork()
  if not between:
    if pid := os.fork():
      os.write(there, str(pid).encode())
      os._exit(0)
    os.close(here)
    os.close(there)
    stdout, stderr = request['files']
    with open(stdout, 'a') as out, open(stderr, 'a') as err:
      _run_case(module, request, out, err)
  os.waitpid(between, 0)
  pid = int(os.read(here, 20))
  os.close(here)
  os.close(there)
  _set_subreaper(True)
  return {'pid': pid}


def _run_case(module, request, out, err):
  code = 1
  try:
    os.setsid()
    nowhere = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nowhere, 0), (out.fileno(), 1), (err.fileno(), 2)):
      os.dup2(source, target)
    os.chdir(request['cwd'])
    for name, value in request['env'].items():
      if value is None:
        os.environ.pop(name, None)
      else:
        os.environ[name] = value
    forked_servers.add_to_path(os.environ)
    sys.argv = [module.__file__, *request['argv']]
    module.run()
  except SystemExit as end:
    code = end.code or 0
  except BaseException:
    traceback.print_exc()
  finally:
    with contextlib.suppress(OSError, ValueError):
      sys.stdout.flush()
      sys.stderr.flush()
    os._exit(code)


def _wait(pid, timeout_secs):
  """Returns the exit code of a child; None if it had to be killed."""
  deadline = time.monotonic() + timeout_secs
  while time.monotonic() < deadline:
    done, status = os.waitpid(pid, os.WNOHANG)
    if done:
      return os.waitstatus_to_exitcode(status)
    time.sleep(0.001)
  os.killpg(pid, signal.SIGKILL)
  os.waitpid(pid, 0)
  return None


def _count_left():
  """Returns 1 if a process is still there, else 0; kills none."""
  deadline = time.monotonic() + _GRACE_SECS
  while True:
    try:
      done, _ = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
      return 0
    if not done:
      if time.monotonic() > deadline:
        return 1
      time.sleep(0.01)


if __name__ == '__main__':
  import distmnist.runtime  # noqa: F401  TensorFlow.

  importlib.import_module('keras')  # Else each task with a model of it does.
  _serve(sys.stdin, sys.stdout)
