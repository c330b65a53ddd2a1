"""A task's actor, on the node where Ray has placed it; see ray_host.py.

The processes on the node are

  Ray's Python process   TaskActor: holds the task's port, passes signals on,
                         answers with what the task writes
  the agent              launching/agent.py, as on a host that ssh has
                         reached: runs the task, and ends it once its stdin ends
  the task               its output in a file that has no name

So a task ends in order, and all that it has started with it, however its actor
ends: with the launcher, by `ray stop`, by SIGKILL.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence

from distmnist.cluster import task_environment
from distmnist.common import ports
from distmnist.common.names import AGENT, PACKAGE_DIR
from distmnist.launching import child_process

# How often to look for output, and after how long to answer without any.
_TICK_SECS = 0.1
_ANSWER_SECS = 5.0
# The most of a log that one answer holds.
_READ_BYTES = 1 << 18
# The agent leaves after 60 s without a line.
_BEAT_SECS = 10.0
# Ray kills the children of an actor that ends, but not what they have started:
# the shell goes, and the agent ends the task in order.
_SHELL = 'exec 3<&0; "$@" <&3 3<&- & exec 3<&-; wait $!'
_READY = f'{AGENT}: ready\n'.encode()


class TaskActor:
  """Runs one task. Its methods are coroutines, so that none waits for another.

  Ray makes the actor; its class has to be importable on the node.
  """

  def __init__(self) -> None:
    # Held until the actor ends, so that the task finds its port free.
    (self._held,) = ports.hold_ports(1)
    self._output = tempfile.TemporaryFile()  # noqa: SIM115

  async def find_address(self) -> str:
    """Returns where the task will serve, host:port."""
    import ray

    host, port = ray.util.get_node_ip_address(), self._held.getsockname()[1]
    return f'[{host}]:{port}' if ':' in host else f'{host}:{port}'

  async def start(
    self,
    argv: Sequence[str],
    env: Mapping[str, str],
    folder: str,
    grace_secs: float,
  ) -> str | None:
    """Starts the task; returns why it cannot, or None.

    Args:
      argv: ('python', '-m', module, flags...).
      env: variables beyond the node's.
      folder: where it runs.
      grace_secs: from SIGTERM to SIGKILL once the actor is gone.
    """
    if not os.path.isdir(folder):
      return f'there is no folder {folder}: --ray_dir names one that is'
    request = {'argv': argv, 'env': env, 'port': None, 'grace_secs': grace_secs}
    self._agent = subprocess.Popen(
      ['sh', '-c', _SHELL, 'sh', sys.executable, '-m', AGENT],
      cwd=folder,
      env=_make_env(),
      stdin=subprocess.PIPE,
      stdout=self._output,
      stderr=self._output,
      start_new_session=True,
    )
    self._say(json.dumps(request))
    self._beats = asyncio.create_task(self._beat())
    return None

  async def signal(self, signum: int) -> None:
    """Sends a signal to the task, unless it has ended."""
    self._say(str(int(signum)))

  async def follow(self, offset: int) -> tuple[bytes, int, int | None]:
    """Waits up to 5 s for the task to write more, or to end.

    Args:
      offset: what was read before, in bytes.

    Returns:
      (bytes, int, int or None): what is new, the next offset, and the exit code
      once the task has ended and all is read, 128 + n by signal n.
    """
    for _ in range(round(_ANSWER_SECS / _TICK_SECS)):
      code = self._agent.poll()  # Before the last look at what it has written.
      data = os.pread(self._output.fileno(), _READ_BYTES, offset)
      if data:
        shown = data if offset else data.removeprefix(_READY)
        return shown, offset + len(data), None
      if code is not None:
        return b'', offset, code
      await asyncio.sleep(_TICK_SECS)
    return b'', offset, None

  async def _beat(self) -> None:
    while self._agent.poll() is None:
      self._say('')
      await asyncio.sleep(_BEAT_SECS)

  def _say(self, line: str) -> None:
    stdin = child_process.get_pipe(self._agent.stdin)
    with contextlib.suppress(BrokenPipeError):
      stdin.write(f'{line}\n'.encode())
      stdin.flush()


def _make_env() -> dict[str, str]:
  """Returns the node's variables, as far as they are for a task."""
  import ray

  env = dict(os.environ)
  # The flags say which task it is, not variables of the node.
  task_environment.forget(env)
  paths = [str(PACKAGE_DIR.parent), env.get('PYTHONPATH')]
  env['PYTHONPATH'] = os.pathsep.join(path for path in paths if path)
  # None without any: otherwise TensorFlow would take all of the machine.
  gpus = ray.get_runtime_context().get_accelerator_ids()['GPU']
  env['CUDA_VISIBLE_DEVICES'] = ','.join(map(str, gpus))
  return env
