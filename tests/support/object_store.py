"""An object store on this machine, which has trouble if a test says so.

moto's server stands for S3. A proxy in front of it delays answers, drops
connections, or answers 503 or 403 in place of the store.
"""

import contextlib
import http.client
import http.server
import logging
import threading
import warnings

BUCKET = 'training'
_ENVIRON = {
  'AWS_ACCESS_KEY_ID': 'test',
  'AWS_SECRET_ACCESS_KEY': 'test',
  'AWS_DEFAULT_REGION': 'us-east-1',
  'AWS_EC2_METADATA_DISABLED': 'true',
}
_DENIED = b"""<?xml version="1.0" encoding="UTF-8"?>
<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"""
_BUSY = b"""<?xml version="1.0" encoding="UTF-8"?>
<Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>
"""


class Store:
  """The store, as a client sees it.

  Attributes:
    url: str, of the bucket.
    environ: dict, what a process has to have in its environment.
    requests: list of (method, path), what came through the proxy.
    trouble: callable(method, path) -> None, or 'busy', 'denied' or 'reset';
      it may wait first.
  """

  def __init__(self, port, environ):
    self.url = f's3://{BUCKET}'
    self.environ = environ
    self.requests = []
    self.trouble = lambda method, path: None
    self._port = port

  def answer(self, handler):
    """Answers one request of a proxy's client."""
    self.requests.append((handler.command, handler.path))
    trouble = self.trouble(handler.command, handler.path)
    size = int(handler.headers.get('Content-Length') or 0)
    body = handler.rfile.read(size)
    if trouble == 'reset':
      handler.connection.close()
      handler.close_connection = True
      return
    if trouble:
      status, text = {'busy': (503, _BUSY), 'denied': (403, _DENIED)}[trouble]
      handler.send_response(status)
      handler.send_header('Content-Length', str(len(text)))
      handler.end_headers()
      if handler.command != 'HEAD':
        handler.wfile.write(text)
      return
    with contextlib.closing(
      http.client.HTTPConnection('127.0.0.1', self._port, timeout=200)
    ) as store:
      headers = dict(handler.headers)
      store.request(handler.command, handler.path, body, headers)
      answer = store.getresponse()
      content = answer.read()
      handler.send_response(answer.status)
      for name, value in answer.getheaders():
        if name.lower() not in ('connection', 'transfer-encoding'):
          handler.send_header(name, value)
      if answer.getheader('Content-Length') is None:
        handler.send_header('Content-Length', str(len(content)))
      handler.end_headers()
      if handler.command != 'HEAD':
        handler.wfile.write(content)


@contextlib.contextmanager
def running():
  """Yields a Store with an empty bucket."""
  logging.getLogger('werkzeug').setLevel(logging.ERROR)
  with warnings.catch_warnings():
    warnings.simplefilter('ignore')
    from moto.server import ThreadedMotoServer  # noqa: PLC0415

    server = ThreadedMotoServer(ip_address='127.0.0.1', port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
  store = Store(port, dict(_ENVIRON))

  class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'

    def log_message(self, *args):
      pass

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = (  # noqa: N815
      lambda self: store.answer(self)
    )

  class Proxy(http.server.ThreadingHTTPServer):
    def handle_error(self, request, client_address):
      pass  # A client that is gone, or the store at the end.

  with Proxy(('127.0.0.1', 0), Handler) as proxy:
    proxy.daemon_threads = True
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    store.environ['AWS_ENDPOINT_URL'] = f'http://127.0.0.1:{proxy.server_port}'
    try:
      make_bucket(store, port)
      yield store
    finally:
      proxy.shutdown()
      server.stop()


def make_bucket(store, port):
  with contextlib.closing(http.client.HTTPConnection('127.0.0.1', port)) as c:
    signed = (
      'AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request'
    )
    c.request('PUT', f'/{BUCKET}', headers={'Authorization': signed})
    assert c.getresponse().status == 200
