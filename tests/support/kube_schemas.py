"""The schemas of Kubernetes, of JobSet and of Kubeflow Trainer."""

import functools
import json

import pytest

from tests.support import manifests
from tests.support.paths import TESTS

# Before it the schema wants onPodConditions where they cannot be.
OLDEST = '1.29'


def validate(documents):
  """Checks objects, and those in them; skips the test without the schemas."""
  kubernetes_validate = pytest.importorskip('kubernetes_validate')
  for document in documents:
    for each in manifests.unpack(json.loads(json.dumps(document))):
      if validator := _make_validator(each['kind']):
        # metadata is the same for all kinds, and not in the schema.
        validator.validate({**each, 'metadata': {}})
        continue
      for version in (OLDEST, kubernetes_validate.latest_version()):
        kubernetes_validate.validate(each, version, strict=True)


@functools.cache
def _make_validator(kind):
  """Returns the validator of an add-on's objects, None for other kinds."""
  path = TESTS / 'support' / 'schemas' / f'{kind}.json'
  if not path.exists():
    return None
  schema = json.loads(path.read_text())
  _forbid_unknown(schema)
  jsonschema = pytest.importorskip('jsonschema')
  return jsonschema.Draft202012Validator(schema)


def _forbid_unknown(schema):
  """Makes a misspelt field an error, as kubectl does."""
  if isinstance(schema, list):
    for part in schema:
      _forbid_unknown(part)
  elif isinstance(schema, dict):
    if schema.get('type') == 'object' and isinstance(
      schema.get('properties'), dict
    ):
      schema.setdefault('additionalProperties', False)
    for part in schema.values():
      _forbid_unknown(part)
