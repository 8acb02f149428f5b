"""Line by line over a unix socket: one question, one answer."""

from __future__ import annotations

import socketserver
from collections.abc import Callable
from pathlib import Path
from threading import Thread


def serve(at: Path, answer: Callable[[str], str]) -> None:
    """Answer each line of each connection, in threads of the background."""

    class Conversation(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            for line in self.rfile:
                self.wfile.write(f"{answer(line.decode().rstrip())}\n".encode())

    class Server(socketserver.ThreadingUnixStreamServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            """A client that went away in the middle is its own affair."""

    Thread(target=Server(str(at), Conversation).serve_forever, daemon=True).start()
