"""A stand-in for OpenAI's Chat Completions: it answers with the last message it received.

python3 examples/stand_in_model.py [PORT]
export OPENAI_BASE_URL=http://127.0.0.1:8099/v1 OPENAI_API_KEY=none
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Handler(BaseHTTPRequestHandler):
    """Answers `POST /v1/chat/completions`."""

    def do_POST(self) -> None:
        """Repeat the last message."""
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        body = json.dumps(completion(asked)).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def completion(asked: dict[str, Any]) -> dict[str, Any]:
    """Return the answer to a request, in OpenAI's format."""
    text = f"You said: {asked['messages'][-1]['content']}"
    message = {"role": "assistant", "content": text}
    return {
        "id": "chatcmpl-stand-in",
        "object": "chat.completion",
        "created": 0,
        "model": asked["model"],
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
    }


if __name__ == "__main__":
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 8099
    print(f"A stand-in model on http://127.0.0.1:{port}/v1", flush=True)
    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
