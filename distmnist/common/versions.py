"""The versions of what the numbers of a run may depend on."""

import contextlib
import importlib.metadata
import platform

import distmnist
from distmnist.common import commit
from distmnist.common.names import PACKAGE_DIR


def find() -> dict[str, str]:
  """Returns {name: version}, of the package its commit as well, if known."""
  found = {'distmnist': distmnist.__version__}
  if known := commit.find(PACKAGE_DIR):
    found['commit'] = known
  found['Python'] = platform.python_version()
  for name in ('tensorflow', 'numpy', 'keras'):
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
      found[name] = importlib.metadata.version(name)
  return found
