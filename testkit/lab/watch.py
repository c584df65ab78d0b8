"""Sees what happens in a lab and when: Slurm's nodes and jobs, the calls of the three programs, EC2's instances, the mapping.

In:  a lab. Out: a timeline of changes, their history for later questions, and `wait` for what must come.
Never: changes anything.
"""

import json
import re
import threading
import time

POLL = 0.25  # seconds
# What is waited for must come, and the times given are what a fast machine needs at most; they only end a scenario that fails. On a
# slow machine everything takes some times as long, and what is quick elsewhere may stand still for a while.
PATIENCE = 4
LEAST = 240  # seconds
ADDRESS = re.compile(r"\bNodeAddr=(\S+)")
STATE = re.compile(r"\bState=(\S+)")
REASON = re.compile(r"\bReason=(.*?)(?: \[[^\][]*@[^\][]*\]|$)")


class NotSeen(Exception):
    """Something that had to happen did not, within its time."""


def parse_nodes(text):
    """`scontrol show nodes -o` → {name: {state, address, reason}}."""
    nodes = {}
    for line in text.splitlines():
        if line.startswith("NodeName="):
            name = line.split()[0].removeprefix("NodeName=")
            found = {key: pattern.search(line) for key, pattern in (("state", STATE), ("address", ADDRESS), ("reason", REASON))}
            nodes[name] = {key: match.group(1) if match else "" for key, match in found.items()}
    return nodes


def is_up(node):
    """Registered, and on its way neither up nor down."""
    return bool(node) and not re.search(r"POWER|NOT_RESPONDING|DOWN|UNKNOWN", node["state"])


def is_off(node):
    """idle~: powered down and ready to be used again."""
    return bool(node) and node["state"].startswith("IDLE") and "POWERED_DOWN" in node["state"]


class Watch:
    def __init__(self, lab, show):
        self.lab, self.show = lab, show
        self.zero = time.time()
        self.nodes, self.jobs, self.instances = {}, {}, {}
        self.calls = []  # (time, program, hostlist)
        self.mapping = {"nodes": {}, "condemned": {}}
        self.history = {}  # (kind, name) → [(time, value)]
        self.failures = []
        self.lines = []
        self.changed = threading.Condition()
        self.enough = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True, name="watch")

    def start(self):
        self.thread.start()

    def stop(self):
        self.enough.set()
        if self.thread.is_alive():
            self.thread.join()

    def say(self, text, at=None):
        line = f"[{(at or time.time()) - self.zero:6.1f} s] {text}"
        self.lines.append(line)
        if self.show:
            print(line, flush=True)

    def on_instance(self, instance):
        """Called by the stand-ins for every change of an instance's state."""
        with self.changed:
            self.instances[instance["id"]] = instance
            self._record("instance", instance["id"], instance["state"])
            self.say(f"EC2: instance {instance['id']} is {instance['state']} ({instance['address']})")
            self.changed.notify_all()

    def wait(self, what, condition, timeout):
        """Returns the condition's first true value; `NotSeen` with `what` when there is none in a multiple of `timeout` seconds. A state
        that passes may be over before the next look: the condition is of what stays, or of `first`."""
        timeout = max(timeout * PATIENCE, LEAST)
        deadline = time.monotonic() + timeout
        with self.changed:
            while True:
                value = condition(self)
                if value:
                    return value
                left = deadline - time.monotonic()
                if left <= 0:
                    raise NotSeen(f"not seen within {timeout} s: {what}")
                self.changed.wait(min(left, 1.0))

    def first(self, kind, name, test, after=0.0):
        """When `test` was first true of a recorded value, not before `after`; None if never."""
        return next((at for at, value in self.history.get((kind, name), []) if at >= after and test(value)), None)

    def calls_of(self, program, node=None):
        return [call for call in self.calls if call[1] == program and (node is None or node in self.lab.expand(call[2]))]

    def instances_of(self, node):
        """Ids of the instances that the mapping ever named for this node, in order."""
        values = [value[1] for _, value in self.history.get(("mapping", node), []) if value and value[1]]
        return list(dict.fromkeys(values))

    def _record(self, kind, name, value):
        values = self.history.setdefault((kind, name), [])
        if values and values[-1][1] == value:
            return False
        values.append((time.time(), value))
        return True

    def _run(self):
        while not self.enough.wait(POLL):
            calls = self._read_calls()
            mapping = self._read_mapping()
            nodes, jobs = self._read_slurm()
            with self.changed:
                for at, program, hostlist in calls:
                    self.calls.append((at, program, hostlist))
                    self.say(f"slurmctld calls {program} {hostlist}", at)
                self._see_mapping(mapping)
                self._see_nodes(nodes)
                self._see_jobs(jobs)
                self.changed.notify_all()

    def _read_calls(self):
        try:
            with open(self.lab.root / "programs/calls.log", encoding="utf-8") as file:
                lines = [line.split() for line in file if line.endswith("\n")]
        except FileNotFoundError:
            return []
        return [(float(at), program, hostlist) for at, program, hostlist in lines[len(self.calls) :]]

    def _read_mapping(self):
        try:
            text = (self.lab.root / "state/mapping.json").read_text(encoding="utf-8")
        except FileNotFoundError:
            return {"nodes": {}, "condemned": {}}
        try:
            mapping = json.loads(text)
            return {"nodes": dict(mapping["nodes"]), "condemned": dict(mapping["condemned"])}
        except (ValueError, KeyError, TypeError) as error:
            self.failures.append(f"mapping.json was not a whole mapping ({error!r}): {text[:200]!r}")
            return None

    def _read_slurm(self):
        if not self.lab.slurmctld_runs():
            return None, None
        nodes = self.lab.command(["scontrol", "show", "nodes", "-o"], timeout=10, check=False)
        jobs = self.lab.command(["squeue", "--noheader", "--states=all", "--format=%i|%T|%N"], timeout=10, check=False)
        return parse_nodes(nodes) if nodes else None, jobs

    def _see_mapping(self, mapping):
        if mapping is None:
            return
        for name in mapping["nodes"].keys() | self.mapping["nodes"].keys():
            entry = mapping["nodes"].get(name)
            self._record("mapping", name, (entry.get("state"), entry.get("instance_id")) if entry else None)
        self.mapping = mapping

    def _see_nodes(self, nodes):
        for name, node in (nodes or {}).items():
            self.nodes[name] = node
            state = node["state"].replace("+CLOUD", "")
            known = ("node", name) in self.history
            if self._record("node", name, node["state"]) and known:
                reason = f", reason: {node['reason']}" if node["reason"] else ""
                self.say(f"node {name}: {state}{reason}")
            if self._record("address", name, node["address"]) and node["address"] != name:
                self.say(f"node {name} has address {node['address']}")

    def _see_jobs(self, text):
        for line in (text or "").splitlines():
            number, state, nodes = line.split("|")
            self.jobs[number] = state
            if self._record("job", number, state):
                self.say(f"job {number}: {state}{' on ' + nodes if nodes else ''}")
