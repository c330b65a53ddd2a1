"""Fork servers that are forks themselves, where a launch would import again.

`subprocess.Popen` of forked_programs.py: a fork server of distmnist.train, or
of a module on PYTHONPATH, which a launch starts by its command, is a fork of
the launch. That has
TensorFlow; what else it has imported is forgotten. What a process inherits is
as by an exec: the files, the environment, the signals and the session.
"""

import contextlib
import importlib
import os
import signal
import subprocess
import sys
import traceback

from absl import flags

from distmnist.common.names import FORK_SERVER


class Baseline:
  """What was there before the program was imported, and can be again."""

  def __init__(self):
    self._modules = set(sys.modules)

  def restore(self):
    defined = flags.FLAGS.flags_by_module_dict()
    for name in set(sys.modules) - self._modules:
      if not name.startswith('distmnist.'):
        continue
      for flag in [*defined.get(name, ())]:
        delattr(flags.FLAGS, flag.name)
      del sys.modules[name]
      package, _, attribute = name.rpartition('.')
      if package in self._modules:
        vars(sys.modules[package]).pop(attribute, None)


def add_to_path(env):
  """Lets this process import from the PYTHONPATH of `env`, a dict."""
  folders = env.get('PYTHONPATH', '').split(os.pathsep)
  sys.path[:0] = [x for x in folders if x and x not in sys.path]


def make_popen(baseline):
  """Returns a subclass of subprocess.Popen."""

  class Popen(subprocess.Popen):
    def _execute_child(self, args, *how):
      if list(args[1:3]) != ['-m', FORK_SERVER]:
        return super()._execute_child(args, *how)
      pass_fds, env, pipes = how[3], how[5], how[9:15]
      for stream in (sys.stdout, sys.stderr):
        stream.flush()
      self.pid = os.fork()
      if not self.pid:
        _serve(args[3:], env, pipes, pass_fds, baseline)
      self._child_created = True
      self._close_pipe_fds(*pipes)

  return Popen


def _serve(words, env, pipes, pass_fds, baseline):
  """Becomes a fork server; does not return."""
  code = 1
  try:
    os.setsid()
    signal.set_wakeup_fd(-1)
    for signum in signal.valid_signals():
      if callable(signal.getsignal(signum)):
        signal.signal(signum, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _take_files(pipes, pass_fds)
    os.environ.clear()
    os.environ.update(env)
    add_to_path(env)
    baseline.restore()
    fork_server = importlib.import_module(FORK_SERVER)
    fd, module, *namespace_fds = (word.strip() for word in words)
    namespace_fds = map(int, filter(None, namespace_fds))
    code = fork_server.main(int(fd), module, *namespace_fds)
  except BaseException:
    traceback.print_exc()
  finally:
    with contextlib.suppress(OSError, ValueError):
      sys.stdout.flush()
    os._exit(code)


def _take_files(pipes, pass_fds):
  """Makes the child's pipe ends 0, 1 and 2; closes all else but `pass_fds`."""
  stdin, _, _, stdout, _, stderr = pipes
  for target, source in enumerate((stdin, stdout, stderr)):
    os.dup2(source, target)
  for name in os.listdir('/proc/self/fd'):
    if int(name) > 2 and int(name) not in pass_fds:
      with contextlib.suppress(OSError):
        os.close(int(name))
