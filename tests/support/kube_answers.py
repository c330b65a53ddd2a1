"""What a cluster answers about the Pods and objects of a run."""

import json
import pathlib
import sys


def make_pod(name, created='2026-01-01T00:00:00Z', **state):
  """Returns a Pod (dict): running={}, waiting={...}, terminated={...}."""
  statuses = [{'name': 'tensorflow', 'state': state}] if state else []
  return {
    'kind': 'Pod',
    'metadata': {'name': name, 'creationTimestamp': created},
    'status': {'phase': 'Pending', 'containerStatuses': statuses},
  }


def make_end(code, finished='2026-01-01T01:00:00Z', reason='Error'):
  return {'exitCode': code, 'finishedAt': finished, 'reason': reason}


def make_object(kind, *conditions, name=None):
  """Returns the object (dict) that is watched, in some conditions."""
  name = name or ('mnist-worker-0' if kind == 'Job' else 'mnist')
  conditions = [{'type': each, 'status': 'True'} for each in conditions]
  return {
    'kind': kind,
    'metadata': {'name': name},
    'status': {'conditions': conditions},
  }


class Cluster:
  """A kubectl in a folder, which plays moments that a test has written."""

  def __init__(self, folder, monkeypatch):
    self.folder = folder
    kubectl = folder / 'bin' / 'kubectl'
    kubectl.parent.mkdir()
    program = pathlib.Path(__file__).with_name('fake_kubectl.py')
    kubectl.write_text(f'#!/bin/sh\nexec {sys.executable} -IS {program} "$@"\n')
    kubectl.chmod(0o755)
    monkeypatch.setenv('FAKE_KUBECTL', str(folder))
    monkeypatch.setenv('PATH', f'{kubectl.parent}:/usr/bin:/bin')

  def play(self, *moments):
    """Has it answer with each (object, list of Pods) in turn."""
    played = [{'object': found, 'pods': pods} for found, pods in moments]
    (self.folder / 'moments.json').write_text(json.dumps(played))

  @property
  def calls(self):
    """What it was called with, a list of (words, stdin)."""
    lines = (self.folder / 'calls').read_text().splitlines()
    return [tuple(json.loads(line)) for line in lines]
