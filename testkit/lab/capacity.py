"""A door in front of moto that has no capacity for some launch templates; moto itself never runs out.

In:  EC2's requests. Out: InsufficientInstanceCapacity for RunInstances with one of these templates, moto's answer to all else.
"""

import threading
import urllib.error
import urllib.parse
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

REFUSAL = """<?xml version="1.0" encoding="UTF-8"?>
<Response><Errors><Error><Code>InsufficientInstanceCapacity</Code><Message>We currently do not have sufficient c5.large capacity in
the Availability Zone you requested.</Message></Error></Errors><RequestID>11111111-2222-3333-4444-555555555555</RequestID></Response>"""
HOP = {"connection", "content-length", "transfer-encoding", "date", "server"}


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # the default of 5 turns callers away when this process has to wait for a processor


class Door:
    def __init__(self, port, behind, empty_templates):
        self.asked = []  # templates of all RunInstances, in order
        door = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                fields = dict(urllib.parse.parse_qsl(body.decode()))
                if fields.get("Action") == "RunInstances":
                    template = fields.get("LaunchTemplate.LaunchTemplateName")
                    door.asked.append(template)
                    if template in empty_templates:
                        return self.answer(500, {"Content-Type": "text/xml"}, REFUSAL.encode())
                headers = {key: value for key, value in self.headers.items() if key.lower() not in HOP}
                request = urllib.request.Request(behind + self.path, data=body, headers=headers, method="POST")
                try:
                    with urllib.request.urlopen(request, timeout=300) as answer:
                        return self.answer(answer.status, answer.headers, answer.read())
                except urllib.error.HTTPError as error:
                    return self.answer(error.code, error.headers, error.read())

            def answer(self, status, headers, body):
                self.send_response(status)
                for key, value in headers.items():
                    if key.lower() not in HOP:
                        self.send_header(key, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.server = Server(("127.0.0.1", port), Handler)
        self.endpoint = f"http://127.0.0.1:{port}"
        threading.Thread(target=self.server.serve_forever, daemon=True, name="capacity").start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()
