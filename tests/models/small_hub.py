"""A hub on this machine, for the real client: it serves one repository's files over HTTP, some of them slowly."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "c" * 40
PIECE = 1024 * 1024


class SmallHub(ThreadingHTTPServer):
    """Serves `files` of somebody/model; a file named in `slow` comes a piece every tenth of a second."""

    daemon_threads = True

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files, self.slow = files, set[str]()
        self.sent: list[str] = []  # files that somebody began to read

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


@contextmanager
def small_hub(files: dict[str, bytes]) -> Iterator[SmallHub]:
    server = SmallHub(files)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: SmallHub

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, with_body: bool) -> None:
        path = self.path.split("?")[0]
        if path.startswith("/api/models/somebody/model/tree/"):
            self._json([self._entry(name, content) for name, content in self.server.files.items()])
        elif path.startswith("/api/models/somebody/model"):
            siblings = [{"rfilename": name} for name in self.server.files]
            self._json({"id": "somebody/model", "sha": COMMIT, "siblings": siblings})
        elif (name := path.rpartition("/")[2]) in self.server.files and "/resolve/" in path:
            self._file(name, with_body)
        else:
            self.send_error(404)

    @staticmethod
    def _entry(name: str, content: bytes) -> dict[str, object]:
        return {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}

    def _json(self, answer: object) -> None:
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _file(self, name: str, with_body: bool) -> None:
        content = self.server.files[name]
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", f'"{hashlib.sha1(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if not with_body:
            return
        self.server.sent.append(name)
        for start in range(0, len(content), PIECE):
            if name in self.server.slow:
                time.sleep(0.1)
            try:
                self.wfile.write(content[start : start + PIECE])
            except OSError:
                return
