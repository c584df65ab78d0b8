"""Stand-ins for instances: what a machine does between RunInstances and TerminateInstances.

In:  moto's list of instances. Out: for each running one a real slurmd, started by the boot script we ship, which learns
its address from instance metadata (served here, IMDSv2) and its node name from slurmctld; none for images that never boot.
When moto no longer shows an instance as running, its processes are killed at once, as a power cut would, and its disk goes with it:
a slurmd that finds a job of the last machine there would tell slurmctld that the job has ended.
Never: looks at Slurm, or at the project's mapping, to decide what to boot.

The stand-in's uptime begins at its instance's launch (sysinfo_shim.c): slurmctld sees machines that booted then. This is
stricter than `slurmd -b`, whose uptime begins at its first report.
"""

import secrets
import shutil
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler

import processes
from capacity import Server

MARKER = "SLURM_EC2_LAB_INSTANCE"
POLL = 0.3  # seconds between two looks at moto
RESTART = 2.0  # seconds until the boot script is started again, as its systemd unit does


class Metadata:
    """IMDSv2 for all stand-ins on one port: the first part of the path says which instance asks."""

    def __init__(self, port):
        self.addresses, self.tokens = {}, set()
        metadata = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self, status, text=""):
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            def do_PUT(self):
                if not self.path.endswith("/latest/api/token"):
                    return self.answer(404)
                if not self.headers.get("X-aws-ec2-metadata-token-ttl-seconds", "").isdigit():
                    return self.answer(400)
                token = secrets.token_hex(8)
                metadata.tokens.add(token)
                return self.answer(200, token)

            def do_GET(self):
                if self.headers.get("X-aws-ec2-metadata-token") not in metadata.tokens:
                    return self.answer(401)
                instance, _, path = self.path.lstrip("/").partition("/")
                if path != "latest/meta-data/local-ipv4" or instance not in metadata.addresses:
                    return self.answer(404)
                return self.answer(200, metadata.addresses[instance])

            def log_message(self, *_):
                pass

        self.server = Server(("127.0.0.1", port), Handler)
        self.url = f"http://127.0.0.1:{port}"
        threading.Thread(target=self.server.serve_forever, daemon=True, name="metadata").start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()


class StandIns:
    """`boot_delay(instance)` gives the seconds from now, when it is first seen running, to the boot script's start; None: not yet, it
    is asked again at the next look."""

    def __init__(self, cloud, metadata, environment, node_boot, log_dir, on_change, boot_delay=lambda _instance: 1.0):
        self.cloud, self.metadata, self.node_boot = cloud, metadata, node_boot
        self.environment, self.log_dir, self.on_change = environment, log_dir, on_change
        self.boot_delay = boot_delay
        self.machines = {}  # id → Popen, or the monotonic time at which it is to be started
        self.seen = {}
        self.failures = []
        self.enough = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True, name="stand-ins")

    def start(self):
        self.thread.start()

    def stop(self):
        """No machine is started after this; those that run are killed."""
        self.enough.set()
        if self.thread.is_alive():
            self.thread.join()
        for instance in list(self.machines):
            self._cut_power(instance)

    def _run(self):
        client = self.cloud.client()
        while not self.enough.wait(POLL):
            try:
                self._look(client)
            except Exception as error:  # noqa: BLE001 - the scenario reports it; one bad look must not end the watch
                if not self.enough.is_set():
                    self.failures.append(f"stand-ins: {error!r}")

    def _look(self, client):
        instances = self.cloud.instances(client)
        now = time.monotonic()
        for instance_id, instance in instances.items():
            if self.seen.get(instance_id) != instance["state"]:
                self.seen[instance_id] = instance["state"]
                self.on_change(instance)
            if instance["state"] != "running":
                self._cut_power(instance_id)
            elif instance["image"] == self.cloud.images["dark"]:
                continue
            elif instance_id not in self.machines:
                delay = self.boot_delay(instance)
                if delay is not None:
                    self.metadata.addresses[instance_id] = instance["address"]
                    self.machines[instance_id] = now + delay
            elif isinstance(self.machines[instance_id], float):
                if now >= self.machines[instance_id]:
                    self.machines[instance_id] = self._boot(instance)
            elif self.machines[instance_id].poll() is not None:
                self.machines[instance_id] = now + RESTART

    def _boot(self, instance):
        environment = dict(self.environment)
        environment["SLURM_EC2_LAB_BOOT_TIME"] = str(instance["launched"])
        environment["NODE_BOOT_IMDS"] = f"{self.metadata.url}/{instance['id']}"
        environment[MARKER] = instance["id"]
        return processes.start([self.node_boot], self.log_dir / f"instance-{instance['id']}.log", environment)

    def _cut_power(self, instance_id):
        machine = self.machines.pop(instance_id, None)
        self.metadata.addresses.pop(instance_id, None)
        if isinstance(machine, subprocess.Popen):
            nodes = set()
            # One that was just being started is not seen at the first look.
            while pids := processes.with_marker(f"{MARKER}={instance_id}"):
                nodes |= {node for node in map(_slurmd_of, pids) if node}
                processes.kill(pids)
                time.sleep(0.02)
            if machine.poll() is None:
                machine.kill()
            machine.wait()
            for node in nodes:
                self._wipe(node)

    def _wipe(self, node):
        for path in (self.log_dir.parent / "spool" / node).iterdir():
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def _slurmd_of(pid):
    """The node of a slurmd: `slurmd … -N NODE`."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read().decode(errors="replace").split("\0")
    except OSError:
        return None
    is_slurmd = words[0].rpartition("/")[2] == "slurmd" and "-N" in words[:-1]
    return words[words.index("-N") + 1] if is_slurmd else None
